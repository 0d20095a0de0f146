"""Hostile answers to exercise 2.3. Each attack must earn no points and have one of the outcomes listed for it.

An attack is the body of `visible_softmax(scores, may_look)`. If an attack runs at all, it runs in the grader's sandbox.
For `ATTACKS`, no operators are forbidden, so that they can get as far as possible. `BREACHES` break the rules of the
exercise, most of them by calling a forbidden operator.
"""

from __future__ import annotations

WRONG, CRASHED, TIMEOUT, REFUSED = ("wrong",), ("crashed",), ("timeout",), ("refused",)

_FRAMES = """
import struct, sys
frame = sys._getframe()
while not {"codec", "channel", "outcome", "results"} <= set(frame.f_locals):
    frame = frame.f_back
codec, channel = frame.f_locals["codec"], frame.f_locals["channel"]
outcome, results = frame.f_locals["outcome"], frame.f_locals["results"]
def send(data):
    channel.sendall(struct.pack("<q", len(data)) + data)
"""

_ALWAYS_EQUAL = """
class Right(torch.Tensor):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def equal(self, other): return True
    def detach(self): return self
    def clone(self): return self
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return True if func.__name__ in ("isclose", "allclose", "equal", "__eq__") else super().__torch_function__(func, types, args, kwargs or {})
return scores.as_subclass(Right)
"""  # noqa: E501

# Read the reference's own body with C++ code, which no Python hook sees.
# If the file can be read, this attack is a right answer.
_NATIVE = r"""
try: text = bytes(torch.from_file('{references}', size={size}, dtype=torch.uint8).tolist()).decode()
except RuntimeError: raise RuntimeError('it cannot be read') from None
text = text[text.index('def visible_softmax'):]
body = text[text.index('### BEGIN SOLUTION'):text.index('### END SOLUTION')]
names = {'torch': torch, 'math': math}
exec('def reference(scores, may_look):\n    ' + body, names)
return names['reference'](scores, may_look)
"""

ATTACKS: dict[str, tuple[str, tuple[str, ...]]] = {
    # Attempts to make the grader hang
    "loops for ever": ("while True: pass", TIMEOUT),
    "swallows interrupts": ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", TIMEOUT),
    "ignores every signal": (
        "import signal\nfor number in range(1, 32):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except Exception: pass\nwhile True: pass",
        TIMEOUT,
    ),
    "sleeps": ("import time\ntime.sleep(10**6)", TIMEOUT),
    "prints for ever": ("while True: print('x' * 10**6)", TIMEOUT),
    "returns a list without end": (
        "class Endless(list):\n    def __iter__(self):\n        while True: yield 0\nreturn Endless()",
        ("wrong", "timeout", "crashed"),
    ),
    "answers one byte a second": (
        f"{_FRAMES}\nimport time\nwhile True:\n    channel.sendall(b'\\0')\n    time.sleep(1)",
        ("timeout", "crashed"),
    ),
    # Attempts to escape the sandbox or to harm the machine
    "ends the process": ("import os\nos._exit(0)", CRASHED),
    "leaves by SystemExit": ("raise SystemExit(0)", CRASHED),
    "raises KeyboardInterrupt": ("raise KeyboardInterrupt", CRASHED),
    "crashes the interpreter": ("import faulthandler\nfaulthandler._sigsegv()", ("wrong", "crashed")),
    "fork bomb": ("import os\nwhile True: os.fork()", CRASHED),
    "fork bomb that swallows refusals": (
        "import os\nwhile True:\n    try: os.fork()\n    except BaseException: pass",
        TIMEOUT,
    ),
    "starts a shell": ("import os\nos.system('true')\nreturn scores", ("wrong", "crashed")),
    "starts a process": ("import subprocess\nsubprocess.run(['true'])", CRASHED),
    "starts processes of Python's": (
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
        ("refused", "crashed"),
    ),
    "starts threads that outlive the call": (
        "import threading\ndef work():\n    while True: pass\n"
        "for _ in range(100): threading.Thread(target=work, daemon=True).start()",
        ("crashed", "timeout"),
    ),
    "kills its parent": ("import os\nos.kill(os.getppid(), 9)", ("wrong", "crashed")),
    "kills its process group": ("import os\nos.killpg(0, 9)", ("wrong", "crashed")),
    "takes all memory in a list": ("hog = []\nwhile True: hog.append(bytearray(2**27))", ("crashed", "timeout")),
    "makes a huge tensor": ("return torch.ones(2**36)", CRASHED),
    "recurses without end": ("return visible_softmax(scores, may_look)", CRASHED),
    "recurses without a limit": (
        "import sys\nsys.setrecursionlimit(10**9)\ndef down(): return [down()]\nreturn down()",
        ("crashed", "timeout"),
    ),
    "writes ten gigabytes": (
        "with open('big', 'wb') as file:\n    for _ in range(10**4): file.write(bytes(2**20))",
        CRASHED,
    ),
    "writes by way of PyTorch": ("torch.save(torch.ones(9), '/tmp/companion-hostile-student')", CRASHED),
    "raises its limits": ("import resource\nresource.setrlimit(resource.RLIMIT_CPU, (-1, -1))", CRASHED),
    "opens a socket": ("import socket\nsocket.create_connection(('127.0.0.1', 9), 1)", CRASHED),
    "calls the C library": ("import ctypes\nctypes.CDLL(None).getpid()", ("wrong", "crashed")),
    "closes all files": ("import os\nos.closerange(0, 256)\nreturn scores", CRASHED),
    "leaves a timer behind": (
        "import signal\nsignal.signal(signal.SIGALRM, lambda *a: None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\nreturn scores",
        ("wrong", "crashed"),
    ),
    "waits at its end": ("import atexit, time\natexit.register(time.sleep, 10**6)\nreturn scores", WRONG),
    "takes all descriptors": ("import os\nwhile True: os.dup(0)", CRASHED),
    "starts a process natively": (
        "import os\ntry: os.posix_spawn('/bin/sleep', ['sleep', '9'], {})\nexcept BaseException: pass\nreturn scores",
        ("wrong", "crashed"),
    ),
    "unpickles a command": (
        "import io, os, pickle\nclass Command:\n    def __reduce__(self): return os.system, ('true',)\n"
        "return torch.load(io.BytesIO(pickle.dumps(Command())), weights_only=False)",
        ("wrong", "crashed"),
    ),
    "traces what is called": ("import sys\nsys.settrace(lambda *a: None)\nreturn scores", ("wrong", "crashed")),
    # Attempts to discover the secret or the right answer
    "reads the secret": ("return open('{secret}').read()", CRASHED),
    "reads the references": (
        "try: return open('{references}').read()\nexcept PermissionError as error: raise type(error)('no') from None",
        CRASHED,
    ),
    "reads the references by way of PyTorch": (_NATIVE, CRASHED),
    "reads what the kernel tells": ("return open('/proc/self/maps').read()", ("wrong", "crashed")),
    "looks into folders": ("import os\nreturn str(os.listdir('/'))", WRONG),
    "imports the companion": (
        "from companion_school.exercises.lesson_02 import visible_softmax as theirs\nreturn theirs(scores, may_look)",
        REFUSED,
    ),
    "imports the companion by another name": (
        "import importlib\ntheirs = importlib.import_module('compa' + 'nion.layers.attention')\n"
        "return theirs.softmax(scores)",
        ("refused", "crashed"),  # blocked by the import hook, or by the sandbox, which has no such module
    ),
    "looks for it among the modules": (
        "import sys\nfound = [one for name, one in sys.modules.items() if 'lesson' in name or 'compan' in name]\n"
        "return found[0].visible_softmax(scores, may_look)",
        CRASHED,
    ),
    "looks for it among the objects": (
        "import gc\nfor one in gc.get_objects():\n    if getattr(one, '__name__', '') == 'visible_softmax': return one",
        ("wrong", "crashed"),
    ),
    "looks for what is expected in the frames": (
        "import sys\nframe = sys._getframe(1)\nwhile frame:\n    for one in list(frame.f_locals.values()):\n"
        "        if hasattr(one, 'expected'): return one.expected\n"
        "        if isinstance(one, dict) and one.get('refuse'): raise ValueError('as asked')\n"
        "    frame = frame.f_back\nreturn scores",
        WRONG,
    ),
    "counts the calls": (
        "count = visible_softmax.__dict__['n'] = visible_softmax.__dict__.get('n', 0) + 1\n"
        "if count > 6: raise ValueError('refused')\nreturn scores",
        ("wrong", "crashed"),
    ),
    # Attempts to change the verdict
    "replaces the comparisons": (
        "yes = lambda *a, **k: True\ntorch.testing.assert_close = yes\n"
        "torch.allclose = torch.equal = torch.isclose = yes\nreturn scores",
        ("wrong", "crashed"),
    ),
    "asks for NaN in the cases of its frames": (
        "import sys\nframe = sys._getframe()\nwhile frame:\n    for one in list(frame.f_locals.values()):\n"
        "        if type(one).__name__ == 'Case': object.__setattr__(one, 'only_nan', True)\n"
        "    frame = frame.f_back\nreturn scores * math.nan",
        WRONG,
    ),
    "leaves PyTorch without numbers": ("torch.set_default_device('meta')\nreturn scores", WRONG),
    "writes over an operator of PyTorch": (
        "torch.library.Library('aten', 'IMPL').impl('exp', lambda x: x, 'CPU')\nreturn scores",
        ("wrong", "crashed"),
    ),
    "replaces the built-ins": (
        "import builtins\nbuiltins.all = builtins.any = builtins.isinstance = lambda *a: True\nreturn scores",
        ("wrong", "crashed"),
    ),
    "replaces the check": (
        f"{_FRAMES}\nframe.f_globals['_serve'] = None\ncodec.pack_outcome = lambda found: b'right'\nreturn scores",
        CRASHED,
    ),
    "equals everything": (_ALWAYS_EQUAL, ("wrong", "crashed")),
    "returns an object that computes later": (
        "class Later:\n    shape, dtype = scores.shape, scores.dtype\n"
        "    def __getattr__(self, name): return lambda *a, **k: self\n"
        "    def __eq__(self, other): return True\n    __hash__ = None\nreturn Later()",
        CRASHED,
    ),
    "returns a thousand nested lists": (
        "inner = []\nfor _ in range(5000): inner = [inner]\nreturn inner",
        ("wrong", "crashed"),
    ),
    "returns a huge number": ("return 10**4000", CRASHED),
    "returns a tensor without numbers": ("return torch.empty(2, 3, device='meta')", CRASHED),
    "returns a sparse tensor": ("return scores.to_sparse()", CRASHED),
    "returns itself in a list": ("whole = []\nwhole.append(whole)\nreturn whole", CRASHED),
    "returns more numbers than there is memory": ("return scores[:1, :1].expand(2**20, 2**20)", CRASHED),
    "returns a number of its own": (
        "import numbers\nclass Own:\n    def __int__(self): return 'one'\n    def __float__(self): raise SystemExit\n"
        "numbers.Real.register(Own)\nreturn Own()",
        CRASHED,
    ),
    "raises an error whose class lies": (
        "class Liar(Exception):\n    __class__ = property(lambda self: ValueError)\nraise Liar",
        CRASHED,
    ),
    "raises an error without a message": (
        "class Mute(Exception):\n    def __str__(self): raise self\nraise Mute",
        CRASHED,
    ),
    "raises markup": ("raise RuntimeError('<script>alert(1)</script>' * 1000)", CRASHED),
    "says that it is right": (f"{_FRAMES}\nsend(codec.pack_outcome(outcome(result=results.RIGHT)))", CRASHED),
    "says that it took too long": (f"{_FRAMES}\nsend(codec.pack_outcome(outcome(result=results.TIMEOUT)))", CRASHED),
    "sends noise": (f"{_FRAMES}\nsend(b'noise')", CRASHED),
    "sends a message of an exabyte": (f"{_FRAMES}\nchannel.sendall(struct.pack('<q', 2**60))", CRASHED),
    "sends a message of less than nothing": (f"{_FRAMES}\nchannel.sendall(struct.pack('<q', -1))", CRASHED),
    "sends without end": (f"{_FRAMES}\nwhile True: channel.sendall(bytes(2**20))", ("crashed", "timeout", "wrong")),
    "sends a header that lies": (f"{_FRAMES}\nsend(struct.pack('<qq', 2**50, -5) + bytes(9))", CRASHED),
    "sends deep JSON": (f"{_FRAMES}\nsend(struct.pack('<qq', 10**5, 0) + b'[' * 10**5)", CRASHED),
    "changes arguments that there are not": (
        f"{_FRAMES}\nsend(codec.pack_outcome(outcome(scores, changed=(99,))))",
        CRASHED,
    ),
    "counts gradients that there are not": (
        f"{_FRAMES}\nsend(codec.pack_outcome(outcome(scores, gradients=(scores,) * 9, changed=(-1,))))",
        CRASHED,
    ),
    "sends replies in advance": (
        f"{_FRAMES}\nfor _ in range(50): send(codec.pack_outcome(outcome(scores)))\nreturn scores",
        ("wrong", "timeout"),  # no process reads the replies, so sending eventually blocks
    ),
}

BREACHES: dict[str, tuple[str, tuple[str, ...]]] = {
    "calls the banned operator by its opposite": (
        "return torch.nn.functional.softmin(-scores.masked_fill(~may_look, -math.inf), -1)",
        REFUSED,
    ),
    "calls the banned operator": ("return torch.softmax(scores, dim=-1)", REFUSED),
    "spells the banned operator": ("return getattr(torch, 'soft' + 'max')(scores, -1)", REFUSED),
    "calls the banned operator's core": ("return getattr(torch.ops.aten, 'soft' + 'max')(scores, -1)", REFUSED),
    "catches that it is refused": (
        "try: return getattr(scores, 'soft' + 'max')(-1)\nexcept BaseException: return scores",
        REFUSED,
    ),
    "writes into its argument": (
        "z = scores.masked_fill_(~may_look, -math.inf)\ne = (z - z.max(-1, keepdim=True).values).exp()\n"
        "return e / e.sum(-1, keepdim=True)",
        WRONG,
    ),
}
