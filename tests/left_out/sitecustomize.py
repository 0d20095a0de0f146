"""Rubbish is looked for less often in the processes that tests start. Most of them only import, which makes a million
objects that stay, and to go through these again and again was a tenth of their time."""

import gc

gc.set_threshold(50_000, 20, 20)
