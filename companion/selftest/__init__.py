"""The proof that a training run survives being killed, and what must come out the same on every machine.

kills            the runs that are killed, and what each kill left
victim           the process that is killed, what its plan may be, and how a run is told from another
"""
