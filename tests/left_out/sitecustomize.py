"""Collect garbage less often in the processes that tests start.

Most of them only import modules, which makes a million permanent objects, and scanning these repeatedly took a tenth of
their time.
"""

import gc

gc.set_threshold(50_000, 20, 20)
