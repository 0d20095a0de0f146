"""The proof that a training run survives being killed, and what must come out the same on every machine.

kills        the runs that are killed, and what each kill left
moments      what a victim is to do: at which moments it dies, and how a run is told from another
victim       the process that is killed: another program, which nobody imports
comparisons  small calculations, for `companion doctor`
"""
