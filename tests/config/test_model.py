"""Configurations: the JSON round trip, and clear errors for what is impossible."""

import json

import pytest
import torch

from companion import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    RotaryScaling,
    Transformer,
    WindowConfig,
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

LONG = ModelConfig(
    vocab=11,
    d_model=12,
    layers=7,
    context=64,
    attention=AttentionConfig(
        6,
        2,
        d_head=8,
        bias=True,
        output_bias=False,
        qk_norm="width",
        score_width=3.0,
        softcap=50.0,
        window=WindowConfig(5, (True, True, False), base=100.0),
        sinks=True,
        gate="width",
    ),
    feed_forward=FeedForwardConfig(13, "geglu_tanh"),
    positions=PositionConfig(
        partial_rotary_factor=0.5,
        scaling=RotaryScaling("yarn", 4.0, 16, slow=0.5, magnitude=1.5, whole=False),
        pattern=(True, True, True, False),
    ),
    norm=NormConfig("rms", "both", unit_offset=True),
    embedding=EmbeddingConfig(scaled=True, rounded=True, logit_softcap=30.0),
)
MULTIPLIED = LONG.with_(
    positions=PositionConfig(
        partial_rotary_factor=0.5,
        scaling=RotaryScaling("longrope", 4.0, 16, short=(1.0, 1.5), long=(2, 7.5), magnitude=1.2),
    ),
    embedding=EmbeddingConfig(multiplier=12, logit_divisor=16.0),
    residual=0.22,
)


def small(**changes):
    fields = {"vocab": 11, "d_model": 12, "layers": 1, "context": 7}
    return ModelConfig(**fields | {"attention": AttentionConfig(3), "feed_forward": FeedForwardConfig(8)} | changes)


def longrope(**changes):
    return RotaryScaling(
        **{"kind": "longrope", "factor": 2, "original": 64, "short": (1.0, 2.0), "long": (3, 4)} | changes
    )


@pytest.mark.parametrize("config", [FULL, LONG, MULTIPLIED, small()])
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
        (lambda: AttentionConfig(2, qk_norm="row"), "qk_norm='row': expected one of 'head', 'width'"),
        (lambda: AttentionConfig(2, softcap=0.0), "softcap=0.0: expected a number > 0, or None"),
        (lambda: AttentionConfig(2, score_width=-1), "score_width=-1: expected a number > 0, or None"),
        (lambda: AttentionConfig(2, window=8), "window=8: expected a WindowConfig"),
        (lambda: WindowConfig(0), "width=0: expected a whole number >= 1"),
        (lambda: WindowConfig(3, ()), r"pattern=\(\): expected at least one True"),
        (lambda: WindowConfig(3, [True]), r"pattern=\[True\]: expected a tuple of True and False"),
        (lambda: WindowConfig(3, (1, 0)), r"pattern=\(1, 0\): expected a tuple of True and False"),
        (lambda: WindowConfig(3, base=0.0), "base=0.0: expected a number > 0, or None"),
        (
            lambda: small(attention=AttentionConfig(3, window=WindowConfig(2)), stack="encoder_decoder"),
            "window=.*an encoder_decoder cannot have windows",
        ),
        (lambda: NormConfig(placement="post", first=False), "first=False: expected True for placement='post'"),
        (
            lambda: small(
                attention=AttentionConfig(3, window=WindowConfig(2, base=5.0)), positions=PositionConfig("learned")
            ),
            "base=5.0: expected None for positions.kind='learned'",
        ),
        (lambda: NormConfig("layer", unit_offset=True), "unit_offset=True: expected False for kind='layer'"),
        (
            lambda: small(embedding=EmbeddingConfig(norm=True, apart=True)),
            "apart=True: expected False, except in an encoder_decoder with learned positions or embedding.norm",
        ),
        (
            lambda: small(stack="encoder_decoder", embedding=EmbeddingConfig(apart=True)),
            "apart=True: expected False, except in an encoder_decoder with learned positions or embedding.norm",
        ),
        (lambda: EmbeddingConfig(dense_bias=False), "dense_bias=False: expected True for head='linear'"),
        (lambda: NormConfig("rms", bias=False), "bias=False: expected True for kind='rms'"),
        (
            lambda: small(norm=NormConfig(placement="parallel"), stack="encoder_decoder"),
            "placement='parallel': expected one without 'parallel' in an encoder_decoder",
        ),
        (lambda: EmbeddingConfig(rounded=True), "rounded=True: expected False unless scaled=True"),
        (lambda: EmbeddingConfig(logit_softcap=-3), "logit_softcap=-3: expected a number > 0, or None"),
        (lambda: EmbeddingConfig(multiplier=0), "multiplier=0: expected a number > 0"),
        (lambda: EmbeddingConfig(multiplier=2.0, scaled=True), "multiplier=2.0: expected 1.0 with scaled=True"),
        (lambda: EmbeddingConfig(logit_divisor=-1), "logit_divisor=-1: expected a number > 0"),
        (lambda: small(residual=0), "residual=0: expected a number > 0"),
        (
            lambda: PositionConfig(partial_rotary_factor=0.0),
            "partial_rotary_factor=0.0: expected a number above 0 and at most 1",
        ),
        (
            lambda: small(positions=PositionConfig(partial_rotary_factor=0.25)),
            "partial_rotary_factor=0.25: expected a share of d_head=4 that is an even",
        ),
        (
            lambda: PositionConfig("learned", partial_rotary_factor=0.5),
            "partial_rotary_factor=0.5: expected 1.0 for kind='learned'",
        ),
        (
            lambda: PositionConfig("none", scaling=RotaryScaling("linear", 2)),
            "scaling=.*: expected None for kind='none'",
        ),
        (lambda: PositionConfig("learned", pattern=(True, False)), "pattern=.*: expected .* for kind='learned'"),
        (lambda: PositionConfig(pattern=(False,)), r"pattern=\(False,\): expected at least one True"),
        (
            lambda: PositionConfig(base=1.0, scaling=RotaryScaling("yarn", 2.0, 64)),
            "base=1.0: expected a number > 1 for yarn",
        ),
        (lambda: RotaryScaling("ntk", 2.0), "RotaryScaling.kind='ntk': expected one of 'linear', 'dynamic', 'yarn'"),
        (lambda: RotaryScaling("linear", 0.5), "factor=0.5: expected a number >= 1"),
        (lambda: RotaryScaling("linear", 2.0, 64), "original=64: expected None for kind='linear'"),
        (lambda: RotaryScaling("yarn", 2.0), "original=None: expected a whole number >= 1"),
        (lambda: RotaryScaling("dynamic", 2.0, 64, slow=2.0), "slow=2.0: expected None for kind='dynamic'"),
        (lambda: RotaryScaling("llama3", 2.0, 64, slow=5.0), "slow=5.0: expected a number > 0 and below fast=4.0"),
        (lambda: RotaryScaling("yarn", 2.0, 64, slow=32.0), "slow=32.0: expected a number > 0 and below fast=32.0"),
        (lambda: RotaryScaling("llama3", 2.0, 64, magnitude=1.2), "magnitude=1.2: expected None for kind='llama3'"),
        (lambda: RotaryScaling("llama3", 2.0, 64, whole=False), "whole=False: expected True for kind='llama3'"),
        (lambda: RotaryScaling("yarn", 2.0, 64, short=(1.0,)), "expected None for kind='yarn'"),
        (lambda: longrope(short=None), "short=None: expected a number > 0 for each rotated pair"),
        (lambda: longrope(long=(1.0, 0.0)), "0.0.: expected a number > 0 for each rotated pair"),
        (lambda: longrope(long=(1.0,)), "expected the same number of entries as short, 2"),
        (lambda: longrope(short=[1.0, 2.0]), "2.0.: expected a tuple of finite numbers"),
        (lambda: longrope(original=1), "original=1: expected a whole number > 1"),
        (
            lambda: small(positions=PositionConfig(scaling=longrope(short=(1.0,), long=(2.0,)))),
            "expected a number for each of the 2 rotated pairs",
        ),
        (
            lambda: small(embedding=EmbeddingConfig(pooled=True)),
            "pooled=True: expected False; only an encoder has a pooler",
        ),
    ],
)
def test_impossible_models_are_refused(unchecked, build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_number_that_no_tensor_holds_as_a_whole_one_is_a_float(unchecked):
    norm = NormConfig(eps=10**30)
    assert norm == NormConfig(eps=1e30) and type(norm.eps) is float and type(NormConfig(eps=1).eps) is int
    ids = torch.zeros(1, 3, dtype=torch.long)
    assert torch.equal(Transformer(small(norm=norm))(ids).logits * 0, torch.zeros(1, 3, small().vocab))


def test_patterns_begin_anew_and_say_what_each_layer_is():
    layers = [LONG.layer(i) for i in range(7)]
    assert [attention.window is not None for attention, _ in layers] == [True, True, False, True, True, False, True]
    assert [positions.kind for _, positions in layers] == ["rotary"] * 3 + ["none"] + ["rotary"] * 3
    local, whole = layers[0][1], layers[2][1]
    assert (local.base, local.scaling, local.partial_rotary_factor) == (100.0, None, 0.5)
    assert (whole.base, whole.scaling, whole.partial_rotary_factor) == (10000.0, LONG.positions.scaling, 0.5)
    assert FULL.layer(2) == (FULL.attention, FULL.positions) and not FULL.local(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention": {"heads": 3, "window": {"width": 2, "pattern": "local"}}}, r"pattern='local': expected a tuple"),
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
