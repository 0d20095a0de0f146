"""Processes that run a lesson's own functions: what is sent to them, what they return, and what is counted."""

import operator

import pytest
import torch
import torch.distributed as dist

from companion_school.study.workers import Workers, _definitions

SCALE = 3.0
TABLE = {"shift": [torch.arange(3.0)], "name": "é"}


@pytest.fixture(scope="module")
def workers():
    started = Workers(3)
    yield started
    started.close()


def passed_on(parcel):
    rank, n = dist.get_rank(), dist.get_world_size()
    arrived = torch.empty_like(parcel)
    sending = dist.isend(parcel, (rank + 1) % n)
    dist.recv(arrived, (rank - 1) % n)
    sending.wait()
    return arrived


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return SCALE * x

    @staticmethod
    def backward(ctx, gradient):
        return SCALE * gradient


class Counter:
    def __init__(self, start=2):
        self.count = start

    def more(self, *, by=1):
        self.count += by
        return self.count


def everything(x, again):
    rank = dist.get_rank()
    arrived = passed_on(x[rank])
    mine = x[rank].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(Scaled.apply(mine).sum(), mine)
    tall = Counter(5)
    return {"arrived": arrived, "gradient": gradient, "count": (Counter().more(), tall.more(by=again[rank])),
            "table": TABLE, "product": operator.mul(rank, 2), "lambda": [(lambda at: at + rank)(1)]}  # fmt: skip


@pytest.mark.parametrize("count", [3, 2])
def test_a_function_runs_in_each_process_with_what_it_uses_and_its_bytes_are_counted(workers, count):
    x = torch.randn(3, 2, 5)
    found = workers.run(everything, x, [1, 20, 300], processes=count)
    assert len(found) == count
    for rank, one in enumerate(found):
        assert torch.equal(one["arrived"], x[rank - 1 if rank else count - 1])
        assert torch.equal(one["gradient"], torch.full((2, 5), 3.0))
        assert one["count"] == (3, 5 + [1, 20, 300][rank])
        assert one["table"]["name"] == "é" and torch.equal(one["table"]["shift"][0], torch.arange(3.0))
        assert (one["product"], one["lambda"]) == (2 * rank, [1 + rank])
    assert workers.sent == [2 * 5 * 4] * count and workers.messages == [1] * count


def fails_in_one(x):
    if dist.get_rank() == 1:
        raise ArithmeticError("a part is missing")
    dist.recv(x, 1)


def test_a_failure_is_told_with_its_process_and_the_next_run_works_again(workers):
    with pytest.raises(RuntimeError, match=r"process 1 of 2: (?s:.*)ArithmeticError: a part is missing"):
        workers.run(fails_in_one, torch.zeros(2), processes=2)
    assert workers.run(passed_on, torch.ones(1), processes=2)[0].item() == 1.0


def test_what_cannot_be_sent_is_refused(workers):
    outer = 1

    def closed():
        return outer

    with pytest.raises(ValueError, match=r"function=<function .*closed.*>: expected a function defined at the top"):
        workers.run(closed)
    names = {"__name__": "somewhere", "lock": object()}
    exec("def uses():\n    return lock\nclass Odd:\n    table = {}\ndef odd():\n    return Odd()", names)
    with pytest.raises(ValueError, match=r"lock: expected a function, a class, .* got object, which cannot be sent"):
        list(_definitions(names["uses"]))
    with pytest.raises(ValueError, match=r"Odd.table: expected only methods in a class"):
        list(_definitions(names["odd"]))
    for count in (0, 17, "2"):
        with pytest.raises(ValueError, match=rf"count={count!r}: expected a whole number from 1 to 16"):
            Workers(count)
    for count in (0, 4):
        with pytest.raises(ValueError, match=rf"processes={count}: expected a whole number from 1 to 3"):
            workers.run(passed_on, torch.ones(1), processes=count)
