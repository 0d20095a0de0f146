"""What an exercise forbids is seen by what it does, however it is written."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

from companion_school.checking.call import Result, in_this_process
from companion_school.checking.examine import examine, key_of
from companion_school.checking.operator_watch import Watch, unwatched
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
    assert "something that stops PyTorch's own record of operators" in watch.seen


def test_who_stops_the_record_of_what_python_enters_is_refused():
    with (watch := Watch(["MultiheadAttention"])):
        sys.setprofile(None)
    assert watch.seen == ["something that stops the record of what Python enters"]
    assert sys.getprofile() is None


def test_bytes_are_counted_where_that_is_asked_for():
    watch = Watch([])
    watch.measures = True
    with watch:
        for _ in range(3):
            torch.ones(1000, dtype=torch.float64).sum()
    assert 8000 <= watch.peak < 9000, "at once, and not in all"


def test_what_no_operator_shows_is_looked_for_in_the_text():
    assert unwatched(("softmax", "decode", "MultiheadAttention")) == ["decode"]


def test_an_answer_that_does_it_is_refused_at_the_desk():
    exercise = exercises()["2.3"]
    verdict = examine(
        key_of(exercise), in_this_process(lambda s, m: torch._safe_softmax(s, -1), exercise.forbidden)
    ).strict
    assert verdict.result is Result.REFUSED and "softmax" in verdict.fault
