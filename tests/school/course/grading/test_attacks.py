"""Answers that try to earn marks, to stop the grader or to fill its memory earn nothing, and grading goes on."""

from dataclasses import replace

import pytest
import torch

from companion_school.course.grading.answers import Answer
from companion_school.course.grading.exercise_mark import KeyRing, begin
from companion_school.course.grading.sandbox.parent import Found, Limits, Worker
from companion_school.exercises.catalogue import find_exercise

EXERCISE = replace(find_exercise("2.3"), forbidden=())  # so that everything is run
CHANNEL = """
import sys, socket
frame = sys._getframe()
while "channel" not in frame.f_locals: frame = frame.f_back
channel = frame.f_locals["channel"]
"""
ATTACKS = {
    # values that are small on their way and large once they are looked at
    "a tensor of 2**40 empty rows": "return torch.empty(2**40, 0)",
    "a list of tensors of no entries": "return [torch.empty(2**20, 2**20, 0)]",
    "gradients of no entries": (
        f"{CHANNEL}\noutcome, codec = frame.f_locals['outcome'], frame.f_locals['codec']\n"
        "false = codec._facts(outcome(scores, gradients=(torch.empty(2**40, 0),)))\n"
        "codec.pack_outcome = lambda found: codec.pack(false)\nreturn scores"
    ),
    "a dict of whole numbers with one hash": "return {k * (2**61 - 1): 0 for k in range(20_000)}",
    "a dict of tuples with one hash": (
        "import itertools\nreturn {key: 0 for key in itertools.product((-1, -2), repeat=14)}"
    ),
    "a generator without end": "return (0 for _ in iter(int, 1))",
    "a mapping without end": (
        "import collections.abc, itertools\nclass Endless(collections.abc.Mapping):\n"
        "    __len__ = lambda self: 1\n    __getitem__ = lambda self, key: 0\n"
        "    __iter__ = lambda self: itertools.count()\nreturn Endless()"
    ),
    # tensors of every strange kind
    "numbers that are none": "return torch.full_like(scores, math.nan)",
    "numbers without end": "return torch.full_like(scores, math.inf)",
    "a conjugate view": "return torch.complex(scores, scores).conj()",
    "a negative view": "return torch.complex(scores, scores).conj().imag",
    "strides of nought": "return scores.as_strided((2**9, 2**9), (0, 0))",
    "a nested tensor": "return torch.nested.nested_tensor([scores])",
    "a quantized tensor": "return torch.quantize_per_tensor(scores.float(), 1.0, 0, torch.qint8)",
    "a fake tensor": (
        "from torch._subclasses.fake_tensor import FakeTensorMode\nreturn FakeTensorMode().from_tensor(scores)"
    ),
    "four bits": "return torch.zeros(2, 3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)",
    "a tensor with named axes": "return scores.refine_names(*'abcdef'[: scores.dim()])",
    # objects that pretend
    "a class that says it is a tensor": "class Liar:\n    __class__ = torch.Tensor\nreturn Liar()",
    "a float that writes itself": "class Own(float):\n    def hex(self): return [1]\nreturn Own(1.0)",
    "an error with a long name": "raise type('x' * 10**6, (Exception,), {})",
    "a group of errors": "raise ExceptionGroup('\\x1b[31m' * 10**4, [ValueError(), ExceptionGroup('', [OSError()])])",
    "an object that is reduced to a command": (
        "import os\nclass Command:\n    def __reduce__(self): return os.system, ('true',)\nreturn Command()"
    ),
    "an object that leaves when it is deleted": (
        "class Leaves:\n    def __del__(self): raise SystemExit(0)\nLeaves()\nreturn scores"
    ),
    # what the process shares with the functions that call it
    "JSON that says other things": "import json\njson.dumps = lambda value: '{\"dict\": []}'\nreturn scores",
    "a comparison that hides what is written": "torch.equal = lambda *_: True\nscores.zero_()\nreturn scores",
    "copies that are others": "torch.Tensor.clone = lambda self, **_: torch.zeros(9)\nreturn scores",
    "an end that does not end": "import os\nos._exit = lambda _: None\nraise SystemExit",
    "a stack that is full": (
        "import sys, traceback\nsys.setrecursionlimit(len(traceback.extract_stack()) + 5)\nreturn scores"
    ),
    "a collector that raises": ("import gc\ngc.callbacks.append(lambda *_: 1 / 0)\ngc.set_threshold(1)\nreturn scores"),
    "a late end of the process": (
        "import faulthandler\nfaulthandler.dump_traceback_later(0.01, exit=True)\nreturn scores"
    ),
    # what the process shares with the grader
    "a line to every open file": (
        "import os\nfor number in range(64):\n    try: os.write(number, b'{\"child\": 1}\\n')\n"
        "    except OSError: pass\nreturn scores"
    ),
    "a channel that is closed by half": f"{CHANNEL}\nchannel.shutdown(socket.SHUT_RD)\nreturn scores",
    "descriptors sent along": (
        f"{CHANNEL}\nsocket.send_fds(channel, [bytes(8)], [channel.fileno()] * 20)\nreturn scores"
    ),
    "a signal to all": "import os\nos.kill(-1, 9)\nreturn scores",
    "the best known result, printed": 'print(\'{"result": "right"}\')\nreturn None',
}


@pytest.fixture(scope="module")
def worker():
    with Worker(Limits(seconds=3, memory_gib=0.5)) as started:
        yield started


@pytest.fixture(scope="module")
def keys():
    return KeyRing(b"a secret of the attacks")


def mark(worker, keys, source):
    return begin(worker, EXERCISE, Found(True, Answer(source)), keys, "eve")()


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_earns_nothing_and_harms_nobody(worker, keys, attack):
    lines = "".join(f"    {line}\n" for line in ATTACKS[attack].strip().splitlines())
    before = worker._process.pid
    found = mark(worker, keys, f"def visible_softmax(scores, may_look):\n{lines}")
    assert found.points == 0 and found.outcome in ("wrong", "crashed", "timeout", "missing"), found
    assert worker._process.pid == before
    assert all(len(text) < 2_000 and text.isprintable() for text in (found.public.fault, found.public.input))


def test_after_all_of_them_a_right_answer_is_right(worker, keys):
    found = mark(worker, keys, EXERCISE.solution)
    assert (found.outcome, found.points, found.robust) == ("right", EXERCISE.points, True)


def test_the_table_of_a_public_result_is_no_answer(worker, keys):
    """Constants and the arguments themselves, which need no idea."""
    for body in ("return scores", "return may_look", "return torch.ones(2, 3)", "return 0", "return None", "return []"):
        assert mark(worker, keys, f"def visible_softmax(scores, may_look):\n    {body}").points == 0
    assert torch.ones(1).dtype is torch.float32
