"""Forbidden operators are noticed when they run, however the answer is written."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

from companion_school.checking.call import Result, in_this_process
from companion_school.checking.examine import examine, key_of
from companion_school.checking.exercise import Case
from companion_school.checking.operator_watch import Watch, forbidden_uses
from companion_school.exercises.catalogue import exercises

X = torch.randn(2, 5, dtype=torch.float64)


def fused_attention():
    return torch.ops.aten._scaled_dot_product_attention_math(X[None], X[None], X[None])


def fused_adamw():
    ones = [[torch.ones(3)] for _ in range(4)]
    rates = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    torch._fused_adamw_(*ones, [], [torch.ones(())], amsgrad=False, maximize=False, **rates)


def functional_adamw():
    from torch.optim._functional import adamw as step

    settings = {"beta1": 0.9, "beta2": 0.99, "lr": 0.1, "weight_decay": 0.0, "eps": 1e-8}
    step(*([torch.ones(3)] for _ in range(4)), [], [torch.zeros(())], amsgrad=False, maximize=False, **settings)


def without_functions():
    with torch._C.DisableTorchFunction():
        return torch.softmax(X, -1)


def in_a_thread():
    with ThreadPoolExecutor(1) as threads:
        threads.submit(X.softmax, -1).result()


def square(x):
    return (x * x).sum()


def backward():
    leaf = X.clone().requires_grad_()
    square(leaf).backward()


@pytest.mark.parametrize(
    ("forbidden", "call"),
    [
        ("softmax", without_functions),
        ("softmax", in_a_thread),
        ("softmax", lambda: F.softmin(-X, -1)),
        ("softmax", lambda: torch._safe_softmax(X, -1)),
        ("log_softmax", lambda: F.cross_entropy(X, torch.tensor([0, 1]))),
        ("scaled_dot_product_attention", lambda: F.scaled_dot_product_attention(X, X, X)),
        ("scaled_dot_product_attention", fused_attention),
        ("RMSNorm", lambda: torch.rms_norm(X, [5])),
        ("LayerNorm", lambda: torch.native_layer_norm(X, [5], None, None, 1e-5)),
        ("AdamW", fused_adamw),
        ("optim", lambda: torch.optim.SGD([torch.nn.Parameter(X.clone())]).step()),
        ("tile", lambda: torch.tile(X, (2, 1))),
        ("backward", backward),
        ("autograd", lambda: torch.func.grad(square)(X)),
        ("vjp", lambda: torch.func.jacrev(square)(X)),
        ("functorch", lambda: torch.func.jvp(square, (X,), (X,))),
        ("autograd", lambda: torch.ops.aten._softmax_backward_data(X, X.softmax(-1), -1, X.dtype)),
        ("MultiheadAttention", lambda: torch.nn.MultiheadAttention(4, 2)(*[torch.ones(1, 3, 4)] * 3)),
        ("get_total_norm", lambda: vars(torch.nn.utils)["get_total" + "_norm"]([X])),
        ("clip_grad_norm_", lambda: torch.nn.utils.clip_grad_norm_([torch.nn.Parameter(X.clone())], 1.0)),
        ("optim", functional_adamw),
    ],
)
def test_it_is_seen_by_whatever_way_it_was_called(forbidden, call):
    watch = Watch([forbidden])
    with watch:
        call()
    assert watch.seen
    with (again := Watch([forbidden])):
        X.exp() / X.exp().sum(-1, keepdim=True)
    assert not again.seen, "each watch has a record of its own"


def test_what_only_looks_forbidden_passes():
    with (watch := Watch(["softmax", "tile", "autograd", "repeat"])):
        X.quantile(0.5)
        torch.func.vmap(lambda row: row * 2)(X)
        torch.complex(X, X).abs()
        X[:, None].expand(-1, 3, -1)
    assert not watch.seen


def test_who_stops_the_record_is_refused():
    with (watch := Watch(["softmax"])):
        torch._C._autograd._disable_profiler_legacy()
        torch.softmax(X, -1)
    assert "something that stops PyTorch's recording of operators" in watch.seen


def test_who_stops_the_record_of_what_python_enters_is_refused():
    with (watch := Watch(["MultiheadAttention"])):
        sys.setprofile(None)
    assert watch.seen == ["something that stops the recording of Python calls"]
    assert sys.getprofile() is None


def test_bytes_are_counted_where_that_is_asked_for():
    watch = Watch([])
    watch.measures = True
    with watch:
        for _ in range(3):
            torch.ones(1000, dtype=torch.float64).sum()
    assert 8000 <= watch.peak < 9000, "at once, and not in all"


HIDDEN_NAMES = [  # each of these reaches a softmax or stops the record of one
    "getattr(torch, 'soft' + 'max')(x, -1)",
    "f = getattr\nf(torch, name)(x, -1)",
    "[*map(getattr, [torch], [name])]",
    "torch.__dict__[name](x, -1)",
    "vars(torch)[name](x, -1)",
    "object.__getattribute__(torch, name)(x, -1)",
    "exec('y = torch.soft' + 'max(x, -1)')",
    "eval(name)(x)",
    "from operator import methodcaller as m\nm(name, -1)(x)",
    "import importlib\nimportlib.import_module(name)",
    "__import__(name)",
    "from torch.nn.functional import *",
    "match torch:\n    case object(softmax=f): f(x, -1)",
    "torch.ops.aten.log(x)",
    "torch.jit.CompilationUnit(text).f(x)",
    "import sys\nsys._getframe(1).f_locals['watch']",
    "import sys\nsys.modules[name]",
    "try: x()\nexcept Exception as e: e.__traceback__.tb_frame",
    "torch._C._VariableFunctions",
    "torch.overrides.get_ignored_functions()",
    "import gc\ngc.get_objects()",
    "torch.nn.functional.log_softmax(x, -1).exp()",
    "torch.nn.Softmax(-1)(x)",
    "torch.distributions.Categorical(logits=x).probs",
    "torch.nn.functional.softmin(-x, -1)",
    "from _pickle import loads\nloads(b'ctorch\\nsoft' + b'max\\n.')(x, -1)",
    "from torch._decomp import decomposition_table as table\n[f for op, f in table.items() if str(op) == name]",
    "[f for op, f in torch._decomp.decomposition_table.items() if str(op) == name]",
    "from torch.distributions.utils import logits_to_probs\nlogits_to_probs(x)",
    "torch.distributions.Multinomial(1, logits=x).probs",
    "from torch import distributions as d\nd.Multinomial(1, logits=x).probs",
    "t = torch\nt.distributions.Multinomial(1, logits=x).probs",
    "import pydoc\npydoc.locate(name)(x, -1)",
    "import string\nstring.Formatter().get_field(name, [torch], {})[0](x, -1)",
    "import timeit\ntimeit.timeit(name, globals={'x': x})",
    "import code\ncode.InteractiveInterpreter({'x': x}).runsource(name)",
    "from unittest import mock\nmock.patch(name).get_original()[0](x, -1)",
    "torch.load(file, weights_only=False)(x, -1)",
    "import numpy as np\nnp.load(file, allow_pickle=True)",
    "import typing\ntyping.get_type_hints(A)['x'](x, -1)",
    "import functools\nfunctools.update_wrapper(catcher, torch, assigned=[name], updated=())",
    "print.__self__.eval(name)",
    "from sys import modules as m\nm[name]",
    "import sys\n(lambda s: s.modules['builtins'].eval(name))(sys)",
    "import os\nos.sys.modules[name]",
    "torch.nn.functional.importlib.import_module(name)",
    "from torch.testing._internal import common_methods_invocations as c\nc.op_db",
    "x.__reduce_ex__(2)[0].__globals__",
    "class K(torch.Tensor): pass\nmatch x.as_subclass(K):\n    case K(f): f(-1)",
    "class K(torch.Tensor): __match_args__ = (name,)",
    "K = type('K', (torch.Tensor,), {'__match' + '_args__': (name,)})",
    "import dataclasses\ndataclasses.make_dataclass('K', [name], bases=(torch.Tensor,))",
    "import dataclasses\ndataclasses.fields(K)[0].default(x, -1)",
    "from dataclasses import astuple\nastuple(x.as_subclass(K))[0](-1)",
    "class K(torch.Tensor): __annotations__[name] = int",
    "def f(): pass\nf.__annotations__ = {'x': name}",
    "import functools\ndef f(x: 'found.append(torch.softmax)'): pass\nfunctools.singledispatch(print).register(f)",
    "import sys\nsys.meta_path[-1].find_spec('functional', [folder]).loader.exec_module(Holder())",
    "from sys import meta_path",
    "import sys\nsys.addaudithook(lambda event, values: frames.append(values))",
    "torch.nn.Softmax2d()(x)",
    "torch.nn.TransformerEncoderLayer(4, 1).self_attn(x, x, x)[1]",
    "torch.nn.Transformer(4, 1).encoder.layers[0].self_attn(x, x, x)[1]",
    "from torch.nn import Transformer as T\nT(4, 1).encoder.layers[0].self_attn(x, x, x)[1]",
    "torch.\uff53oftmax(x, -1)",  # Python reads the wide letter as s
]


@pytest.mark.parametrize("code", HIDDEN_NAMES)
def test_a_text_shows_what_it_forbids_and_what_hides_it(code):
    assert forbidden_uses(f"import torch\n{code}", ("softmax", "log_softmax")) != []


@pytest.mark.parametrize(
    "code",
    [
        "model.eval()\nre.compile('a')\nself._cache = x\nself.modules()\nimport sys\nsys.maxsize",
        "getattr(x, 'shape')",
        "from torch import nn\nfrom torch.nn import functional as G\nF = torch.nn.functional\nnn.ReLU()(F.relu(x))",
        "class A(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self._kept = None",
        "import numpy as np, dataclasses, os\nos.path.join(a)\nnp.linalg.norm(x), torch.linalg.norm(x)",
        "def softmax(x): return x.exp()\nsoftmax(x)",
        "match x:\n    case int(n) | float(n) | tuple([n, *_]): pass\n    case A(size=n): pass",
        "import sys, dataclasses\n@dataclasses.dataclass\nclass A:\n    n: int = 1\ndataclasses.replace(A())\ntype(x)",
        "from model import Transformer\nTransformer(4)",
        "def visible_softmax(scores, may_look): return scores",
    ],
)
def test_a_text_that_hides_nothing_is_taken(code):
    assert forbidden_uses(code, ("softmax", "log_softmax"), ("model",)) == []
    assert forbidden_uses("import inspect, gc\nexec('x')", ()) == []


class Late(torch.Tensor):
    """A tensor that computes its values only when they are read."""

    def detach(self):
        return torch.softmax(torch.Tensor(self), -1)


class LateList(list):
    def __iter__(self):
        return iter([torch.softmax(X, -1)])


class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        return torch.softmax(X, -1)


@pytest.mark.parametrize(
    "late", [lambda s, m: s.as_subclass(Late), lambda s, m: LateList([s]), lambda s, m: s.as_subclass(Own)]
)
def test_nothing_is_computed_once_the_record_has_ended(late):
    verdict = examine(key_of(exercises()["2.3"]), in_this_process(late, ("softmax",))).strict
    assert verdict.result is Result.WRONG


def test_an_answer_that_does_it_is_refused_at_the_desk():
    exercise = exercises()["2.3"]
    verdict = examine(
        key_of(exercise), in_this_process(lambda s, m: torch._safe_softmax(s, -1), exercise.forbidden)
    ).strict
    assert verdict.result is Result.REFUSED and "softmax" in verdict.fault


def test_a_short_name_is_found_as_a_word_of_another():
    assert forbidden_uses("torch.svd_lowrank(x)", ("svd",)) == ["svd_lowrank"]
    assert forbidden_uses("x.textile()", ("tile",)) == []


LATER = """
import numbers, re, warnings
class Number:
    def __init__(self, make): self.make = make
    def __float__(self): return float(self.make())
numbers.Real.register(Number)
class Last:
    def __init__(self, make): self.make = make
    def __del__(self): self.make()
def as_a_number(x): return Number(lambda: torch.softmax(x, -1)[0])
def as_warnings_are_reset(x):
    out = torch.zeros(2)
    warnings.showwarning = Last(lambda: out.copy_(torch.softmax(x, -1)))
    return out
def with_other_words(x):
    re.findall, re.sub = (lambda *_: []), (lambda *_: "")
    return torch.softmax(x, -1)
"""


@pytest.mark.parametrize("name", ["as_a_number", "as_warnings_are_reset", "with_other_words"])
def test_what_an_answer_computes_once_it_has_returned_is_seen_too(name, monkeypatch):
    import re

    for each in ("findall", "sub"):
        monkeypatch.setattr(re, each, getattr(re, each))
    names = {"torch": torch}
    exec(LATER, names)
    outcome = in_this_process(names[name], ("softmax",))(Case("it", (torch.ones(2),)))
    assert outcome.result is Result.REFUSED, outcome


def test_a_hook_on_a_gradient_cannot_write_into_the_result():
    def answer(x):
        made = x * 0
        x.register_hook(lambda _: made.detach().fill_(1.0))
        return made

    outcome = in_this_process(answer)(Case("it", (torch.ones(2),), gradients=True))
    assert outcome.value.tolist() == [0.0, 0.0]
