"""Configurations: JSON round trip, and a clear word for what cannot be."""

import json

import pytest

from companion import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
)

FULL = ModelConfig(
    vocab=11,
    d_model=12,
    layers=3,
    context=7,
    attention=AttentionConfig(6, 2, d_head=4, d_v=5, bias=True),
    feed_forward=FeedForwardConfig(13, "relu"),
    positions=PositionConfig("rotary", 500.0, "interleaved"),
    norm=NormConfig("layer", "post", 1e-5),
    embedding=EmbeddingConfig(tied=False, scaled=True, norm=True, head="masked"),
    moe=MoEConfig(4, 2),
    stack="encoder_decoder",
    dropout=0.1,
)


def small(**changes):
    fields = {"vocab": 11, "d_model": 12, "layers": 1, "context": 7}
    return ModelConfig(**fields | {"attention": AttentionConfig(3), "feed_forward": FeedForwardConfig(8)} | changes)


@pytest.mark.parametrize("config", [FULL, small()])
def test_json_round_trip(config):
    assert ModelConfig.from_json(config.to_json()) == config


def test_sizes_are_filled_in():
    sizes = small(attention=AttentionConfig(6, 2)).sizes
    assert (sizes.heads, sizes.kv_heads, sizes.d_head, sizes.d_v) == (6, 2, 2, 2)
    assert FULL.sizes.d_v == 5


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: small(attention=AttentionConfig(5)), "heads=5: expected a divisor of d_model=12"),
        (lambda: AttentionConfig(6, 4), "kv_heads=4: expected a divisor of heads=6"),
        (lambda: small(attention=AttentionConfig(4)), "d_head=3: expected an even width"),
        (lambda: small(d_model=9, positions=PositionConfig("sinusoidal")), "d_model=9: expected an even width"),
        (lambda: small(vocab=0), "vocab=0: expected a whole number >= 1"),
        (lambda: small(layers=True), "layers=True: expected a whole number"),
        (lambda: small(dropout=1.0), r"dropout=1.0: expected a probability in \[0, 1\)"),
        (lambda: small(stack="both"), "stack='both': expected one of 'decoder', 'encoder', 'encoder_decoder'"),
        (lambda: NormConfig("batch"), "NormConfig.kind='batch': expected one of 'layer', 'rms'"),
        (lambda: FeedForwardConfig(8, "tanh"), "activation='tanh'"),
        (lambda: PositionConfig(base=0), "base=0"),
        (lambda: PositionConfig("sinusoidal", layout="quarter"), "layout='quarter': expected one of 'half', 'inter"),
        (lambda: EmbeddingConfig(head="dense"), "EmbeddingConfig.head='dense': expected one of 'linear'"),
        (lambda: EmbeddingConfig(segments=-1), "segments=-1: expected a whole number >= 0"),
        (lambda: EmbeddingConfig(classes=2), "classes=2: expected 0 unless pooled=True"),
        (lambda: small(embedding=EmbeddingConfig(segments=2)), "segments=2: expected 0; only an encoder has segments"),
        (
            lambda: small(embedding=EmbeddingConfig(pooled=True)),
            "pooled=True: expected False; only an encoder has a pooler",
        ),
    ],
)
def test_impossible_models_are_refused(unchecked, build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, r"config\.colour: unknown field"),
        ({"vocab": "many"}, r"config\.vocab='many': expected int"),
        ({"attention": {"heads": 3, "width": 2}}, r"config\.attention\.width: unknown field"),
        ({"attention": 3}, r"config\.attention: expected an object"),
        ({"attention": {}}, r"config\.attention: .*heads"),
        ({"dropout": True}, r"config\.dropout=True: expected float"),
    ],
)
def test_bad_json_says_which_field(unchecked, change, message):
    data = json.loads(small().to_json()) | change
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_json(json.dumps(data))
    with pytest.raises(ValueError, match="expected JSON"):
        ModelConfig.from_json(json.dumps(data)[:-5])
