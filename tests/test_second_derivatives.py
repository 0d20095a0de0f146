"""What has a backward pass of its own: its gradient can be differentiated again, or says that it cannot.

PyTorch records what a hand-written backward pass does; where it does something that is not recorded, a second
derivative lacks a part without a word. So each of them is named here, with the test that differentiates it twice.
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
    "training/losses.py _Last": (LOSSES, "test_a_gradient_is_differentiated_again_or_says_that_it_is_not"),
    "training/losses.py _ThroughHead": (
        LOSSES,
        "test_a_gradient_through_the_head_is_not_differentiated_again_without_a_word",
    ),
}


def by_hand():
    """Each `torch.autograd.Function` of the package, and each operator of its own with a backward pass."""
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
    """PyTorch's own product is differentiated twice; the one that a compiler does not look into says that it is not."""
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
    """In a group of one the exchange gives back what it is given: so do its first and second derivatives."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
        group = dist.group.WORLD
        assert torch.autograd.gradcheck(lambda x: _Exchange.apply(x, [5], [5], group), x)
        assert torch.autograd.gradgradcheck(lambda x: _Exchange.apply(x, [5], [5], group).pow(3), x)
    finally:
        dist.destroy_process_group()
