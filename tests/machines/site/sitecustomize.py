"""Another machine on this one: a switch that is on while this folder leads PYTHONPATH and COMPANION_MACHINE names it.

    COMPANION_MACHINE=odd-loads     every tensor read from a file lies at an address that is a multiple of its own
                                    elements' size and of nothing more, as a file may well leave it
    COMPANION_MACHINE=other-sums    what rounds, rounds as other kernels might: a matrix product and a sum add two
                                    parts whose border follows from the shapes and from where the operands lie,
                                    and exp, sin, softmax and their like are off by a last bit here and there;
                                    and loads are odd

Python imports this module as it starts, in notebooks' kernels and in commands that tests run, too.
"""

import os

if _machine := os.environ.get("COMPANION_MACHINE"):
    import sys

    try:
        import simulated

        simulated.install(_machine)
    except Exception as error:  # Python itself would say so and go on, on the machine that this is
        print(error, file=sys.stderr, flush=True)
        os._exit(2)
