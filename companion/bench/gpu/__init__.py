"""Everything that needs a GPU, in one command and under eight minutes: `make gpu`, or `python -m companion.bench.gpu`.

Nothing is asked for beyond Python, PyTorch, numpy, safetensors and jaxtyping; what else could be used is looked for
before anything starts. Each part runs in a process of its own, with a limit of its own: one that fails, hangs or
crashes says why, and the others go on. Without a GPU all of it is rehearsed, with tiny sizes.

figures.py    what a part hands over, figure by figure
sizes.py      how large everything is, on a GPU and in rehearsal
whole.py      parts about a whole model: training, decoding, what the cache gains
pieces.py     the other parts: the ceiling, the tests, attention, experts, one process of NCCL
graphs.py     decode steps recorded once and replayed (CUDA graphs)
child.py      one part, in its process
run.py        all parts in turn, the JSON and the page
page.py       one page of numbers
__main__.py   the command
"""
