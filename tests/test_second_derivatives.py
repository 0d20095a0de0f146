"""Custom backward passes can be differentiated a second time, or raise if they cannot.

PyTorch records the operations of a hand-written backward pass. If one of them is not recorded, a second derivative
silently lacks a part. So each backward pass is listed here with the test that differentiates it twice.
"""

import ast
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import companion
from companion.layers.experts import Reordered, grouped_operator
from companion.training.distributed.expert_parallel import _Exchange

ROOT = Path(companion.__file__).parents[1]
HERE, LOSSES = "tests/test_second_derivatives.py", "tests/training/test_losses.py"
TESTS = {
    "layers/experts.py Reordered": (HERE, "test_rows_in_another_order"),
    "layers/experts.py grouped_operator": (HERE, "test_products_of_groups"),
    "layers/kernels/tiled.py _Tiled": (
        "tests/layers/kernels/test_tiled.py",
        "test_second_derivatives_are_those_of_the_formula",
    ),
    "training/distributed/expert_parallel.py _Exchange": (HERE, "test_rows_of_other_processes"),
    "training/losses.py _InChunks": (LOSSES, "test_a_gradient_is_differentiated_again_or_says_that_it_is_not"),
    "training/losses.py _ThroughHead": (
        LOSSES,
        "test_a_gradient_through_the_head_is_not_differentiated_again_without_a_word",
    ),
}


def by_hand():
    """Return each `torch.autograd.Function` of the package, and each custom operator with a backward pass."""
    for path in sorted((ROOT / "companion").rglob("*.py")):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT / "companion").as_posix()
        yield from (f"{name} {found}" for found in re.findall(r"^class (\w+)\(.*\bFunction\)", text, re.M))
        yield from (f"{name} {found}" for found in re.findall(r"(\w+)\.register_autograd\(", text))


def test_each_is_differentiated_twice_by_a_test_that_is_there():
    assert sorted(by_hand()) == sorted(TESTS)
    for path, name in TESTS.values():
        defined = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        assert name in [item.name for item in defined if isinstance(item, ast.FunctionDef)], path


def test_rows_in_another_order():
    order = torch.tensor([3, 0, 2, 1, 5, 4])
    inverse = order.argsort()
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: Reordered.apply(x, order, inverse, 2).pow(3), x)


def test_products_of_groups():
    """PyTorch's own product can be differentiated twice; the one that compilers do not trace raises."""
    rows = torch.randn(6, 8, requires_grad=True)
    matrices = torch.randn(2, 8, 12, requires_grad=True)
    ends = torch.tensor([2, 6], dtype=torch.int32)

    def seconds(product):
        first = torch.autograd.grad(product().pow(3).sum(), (rows, matrices), create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), (rows, matrices))

    wanted = seconds(lambda: torch.cat([rows[:2] @ matrices[0], rows[2:] @ matrices[1]]))
    for ours, theirs in zip(seconds(lambda: F.grouped_mm(rows, matrices, offs=ends)), wanted, strict=True):
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(RuntimeError, match="grouped_outer.* no autograd formula"):
        seconds(lambda: grouped_operator(rows, matrices, ends))


def test_rows_of_other_processes():
    """In a group of one process the exchange is the identity, and so are its derivatives."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
        group = dist.group.WORLD
        assert torch.autograd.gradcheck(lambda x: _Exchange.apply(x, [5], [5], group), x)
        assert torch.autograd.gradgradcheck(lambda x: _Exchange.apply(x, [5], [5], group).pow(3), x)
    finally:
        dist.destroy_process_group()
