"""The runtime shape checker is active in the tests for the whole package, and its message names the axis."""

from dataclasses import dataclass
from typing import Literal

import pytest
import shapes
import torch
from jaxtyping import Float, TypeCheckError
from shapes import check, like_calls_once
from torch import Tensor

from companion import (
    AttentionConfig,
    FeedForwardConfig,
    KVCache,
    ModelConfig,
    MoEConfig,
    Transformer,
    attend,
    linear_attention,
    rms_norm,
    route,
    switch_loss,
    tiled_attention,
)
from companion.layers.positions import Learned
from companion.training.losses import cross_entropy_sum

Q, K, V = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 7, 6), torch.randn(2, 2, 7, 3)
CONFIG = ModelConfig(
    vocab=11,
    d_model=12,
    layers=1,
    context=8,
    attention=AttentionConfig(3),
    feed_forward=FeedForwardConfig(10),
    moe=MoEConfig(3, 2),
)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: attend(Q, K[..., :4], V), "k has d_head=4: expected 6, as in q"),
        (lambda: attend(Q, K, V[:, :, :5]), "v has key=5: expected 7, as in k"),
        (lambda: attend(Q, K[:1, ..., :4], V), "k has batch=1, d_head=4: expected batch=2, d_head=6, as in q"),
        (lambda: tiled_attention(Q, K, V[:, :1]), "v has kv_head=1: expected 2, as in k"),
        (lambda: linear_attention(Q, K[:, :, :, :5], V), "k has d_head=5: expected 6, as in q"),
        (lambda: rms_norm(torch.randn(2, 6), torch.ones(5), 1e-6), "gain has d_model=5: expected 6, as in x"),
        (lambda: Learned(8, 6)(torch.rand(2, 3)), "positions is float32 .*: expected a tensor of whole numbers"),
        (
            lambda: Transformer(CONFIG).features(torch.zeros(5, dtype=torch.long)),
            r"expected two axes, \(batch, token\)",
        ),
        (lambda: switch_loss(route(torch.randn(2, 3, 4), 2).logits), "routing=.*: expected a RoutingStats"),
    ],
)
def test_at_the_door_a_wrong_shape_or_type_is_said_in_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


@pytest.mark.parametrize(
    ("call", "axis"),
    [
        (lambda: KVCache.create(CONFIG, 2, 8).select(torch.zeros(2, 1, dtype=torch.long)), "row"),
        (lambda: cross_entropy_sum(torch.randn(2, 3, 11), torch.zeros(2, 4, dtype=torch.long)), "token=3"),
    ],
)
def test_behind_the_door_the_checker_of_the_tests_names_the_axis(call, axis):
    with pytest.raises(TypeCheckError, match=axis):
        call()


def test_a_call_that_is_unlike_those_before_is_checked_and_so_is_another_result():
    @like_calls_once(typechecker=check)
    def rows(x: Float[Tensor, "row 3"], width: int, where: Literal["left", "right"]) -> Float[Tensor, "row 3"]:
        return torch.ones(len(x), width)

    x = torch.ones(2, 3)
    for _ in range(3):
        rows(x, 3, "left")
    for wrong in (
        (x, 4, "left"),
        (x, 3, "above"),
        (x.long(), 3, "left"),
        (torch.ones(2, 5), 3, "left"),
        ([x], 3, "left"),
    ):
        for _ in range(2):
            with pytest.raises(TypeCheckError, match="rows"):
                rows(*wrong)
    assert rows(x, width=3, where="right").shape == (2, 3)
    with pytest.raises(TypeCheckError, match="where"):
        rows(x, width=3, where="below")


def test_an_object_that_is_made_unlike_those_before_is_checked():
    @like_calls_once(typechecker=check)
    @dataclass
    class Rows:
        x: Float[Tensor, "row 3"]
        y: Float[Tensor, "row"]
        where: Literal["left", "right"] = "left"

    x, y = torch.ones(2, 3), torch.ones(2)
    for _ in range(3):
        Rows(x, y)
    for wrong in ((x, torch.ones(3)), (torch.ones(2, 4), y), (x.long(), y), (x, y, "above"), (x, [y]), (x, None)):
        for _ in range(2):
            with pytest.raises(TypeCheckError, match="Rows"):
                Rows(*wrong)
    with pytest.raises(TypeCheckError, match="where"):
        Rows(x, y, where="below")
    assert Rows(y=y, x=x, where="right").where == "right"


def test_checks_of_a_function_within_another_are_made_once_and_hold_each_time(monkeypatch):
    made = []
    every = shapes.every_call
    monkeypatch.setattr(shapes, "every_call", lambda *given, **how: made.append(1) or every(*given, **how))

    def doubled(x: Tensor, out: int) -> Tensor:
        @like_calls_once(typechecker=check)
        def inner(x: Float[Tensor, "row 3"]) -> Float[Tensor, "row 3"]:
            return torch.ones(len(x), out)

        return inner(x)

    for _ in range(4):
        assert doubled(torch.ones(2, 3), 3).shape == (2, 3)
    assert len(made) == 1
    for x, out in ((torch.ones(2, 3), 4), (torch.ones(2, 4), 3)):
        with pytest.raises(TypeCheckError, match="inner"):
            doubled(x, out)


def test_lists_are_alike_whatever_their_length_but_not_of_other_things():
    assert shapes.kind_of([1, 2, 3]) == shapes.kind_of([4]) != shapes.kind_of([4, 0.5])
    assert shapes.kind_of([[1], [2, 3]]) == shapes.kind_of([[4]]) != shapes.kind_of([["a"]])
