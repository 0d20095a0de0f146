"""Models too large for any machine are rejected by counting their parameters, before anything is built."""

from dataclasses import replace

import pytest
import torch

from companion import AttentionConfig, FeedForwardConfig, ModelConfig, PositionConfig, Transformer
from companion.config.model import EmbeddingConfig, MoEConfig
from companion.config.parameter_count import OBJECTS, check_makeable
from companion.ground.memory import memory

HEADS = AttentionConfig(3, 1, d_head=4, d_v=5)
SMALL = ModelConfig(11, 12, 2, context=9, attention=HEADS, feed_forward=FeedForwardConfig(8))
ENCODER = SMALL.with_(stack="encoder")
SIZES = {
    **{name: lambda size, name=name: SMALL.with_(**{name: size}) for name in ("vocab", "d_model", "layers")},
    "context": lambda size: SMALL.with_(context=size, positions=PositionConfig("learned")),
    "heads": lambda size: SMALL.with_(attention=replace(HEADS, heads=size)),
    "d_head": lambda size: SMALL.with_(attention=replace(HEADS, d_head=size)),
    "d_v": lambda size: SMALL.with_(attention=replace(HEADS, d_v=size)),
    "d_ff": lambda size: SMALL.with_(feed_forward=FeedForwardConfig(size)),
    "experts": lambda size: SMALL.with_(moe=MoEConfig(size, 2)),
    "shared": lambda size: SMALL.with_(moe=MoEConfig(3, 2, shared=size)),
    "segments": lambda size: ENCODER.with_(embedding=EmbeddingConfig(segments=size)),
    "classes": lambda size: ENCODER.with_(embedding=EmbeddingConfig(pooled=True, classes=size)),
}


@pytest.mark.parametrize("size", [10**12, 10**30, 10**400, 10**5000], ids=["1e12", "1e30", "1e400", "1e5000"])
@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_nobody_has_is_refused_by_name(name, size):
    with pytest.raises(ValueError, match=rf"^{name}=.*: this model needs .*, this machine has [\d.]+ .B$") as error:
        Transformer(SIZES[name](size))
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("name", SIZES)
def test_on_a_device_without_numbers_what_pytorch_can_count_is_made(name):
    size = 10**8
    with torch.device("meta"):
        if name != "layers":  # every layer would be an object in memory
            Transformer(SIZES[name](size))
        with pytest.raises(ValueError, match=rf"^{name}=10000000.*(this model needs|expected smaller sizes)"):
            Transformer(SIZES[name](size**4))


def test_a_model_that_fits_is_made_and_what_is_counted_is_less_than_it_takes(monkeypatch):
    check_makeable(SMALL)
    room = memory()
    assert room is not None
    largest = room // OBJECTS
    check_makeable(SMALL.with_(layers=largest // 2))
    with pytest.raises(ValueError, match=f"layers={largest + 1}: this model needs"):
        check_makeable(SMALL.with_(layers=largest + 1))
