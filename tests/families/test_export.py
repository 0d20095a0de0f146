"""Our models exported in published layouts: `transformers` loads them completely and computes the same."""

import json
from dataclasses import replace

import pytest
import torch
from families.compared import PUBLISHED, TOKENS, class_of, ids, release, transformers
from models import drawn

from companion import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LatentConfig,
    LinearConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    RotaryScaling,
    WindowConfig,
)
from companion.families.export import export_model
from companion.families.pretrained import load_pretrained
from companion.families.registry import families

OF_EACH = {json.loads(path.read_text())["model_type"]: path for path in reversed(PUBLISHED)}
"""One release of every family."""
CONFIG = ModelConfig(41, 24, 2, 32, AttentionConfig(4, 2), FeedForwardConfig(36))


@torch.no_grad()
def read_by_transformers(folder):
    """Load a folder with `transformers`, and check that each parameter comes from the file."""
    made = class_of(json.loads((folder / "config.json").read_text()))
    theirs, told = made.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    assert not any(told.values()), told
    return theirs.float().eval()


@torch.no_grad()
def same_logits(ours, theirs):
    tokens, extra, asked = ids(3, TOKENS, 0), {}, {}
    if ours.config.stack == "encoder_decoder":
        source = ids(3, TOKENS, 9)
        extra, tokens, asked = {"source": ours.encode(source)}, source, {"decoder_input_ids": tokens}
    found = theirs(tokens, **asked)
    logits = found.prediction_logits if "prediction_logits" in found else found.logits
    wanted = ours(asked.get("decoder_input_ids", tokens), **extra).logits
    torch.testing.assert_close(logits / wanted.std(), wanted / wanted.std(), rtol=1e-4, atol=5e-5)


def test_every_family_has_a_release_here():
    assert set(OF_EACH) == set(families())


@pytest.mark.parametrize("kind", sorted(OF_EACH))
def test_transformers_reads_what_is_written_of_every_family(kind, tmp_path):
    transformers.logging.set_verbosity_error()
    ours, _ = release(OF_EACH[kind], 0, tmp_path / "theirs")
    assert export_model(tmp_path / "ours", ours, kind=kind).kind == kind
    same_logits(ours, read_by_transformers(tmp_path / "ours"))
    again = load_pretrained(tmp_path / "ours")  # our own loader gives the same logits, bit for bit
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in ours.state_dict().items())


YARN = PositionConfig(scaling=RotaryScaling("yarn", 2.0, 16))
OURS = {
    "llama": CONFIG,
    "mistral": CONFIG.with_(attention=replace(CONFIG.attention, window=WindowConfig(7)), positions=YARN),
    "gpt2": CONFIG.with_(
        attention=AttentionConfig(4, bias=True),
        feed_forward=FeedForwardConfig(30, "gelu", bias=True),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer", eps=1e-5),
        embedding=EmbeddingConfig(tied=False),
        dropout=0.2,
    ),
    "mixtral": CONFIG.with_(moe=MoEConfig(3, 2, capacity=1.5, noise=0.1)),
    "qwen3": CONFIG.with_(attention=replace(CONFIG.attention, qk_norm="head")),
    "deepseek_v3": CONFIG.with_(
        attention=AttentionConfig(4, d_head=6, d_v=5, latent=LatentConfig(9, 4)),
        positions=PositionConfig(layout="interleaved", scaling=RotaryScaling("yarn", 3.0, 8)),
    ),
    "qwen3_next": CONFIG.with_(
        layers=3,
        attention=AttentionConfig(
            4, 2, bias=True, gate="width", qk_norm="head", linear=LinearConfig((True, False, False), key_heads=2, d_v=5)
        ),
        norm=NormConfig(eps=0.01, unit_offset=True),
        moe=MoEConfig(
            3, 2, "softmax_topk", shared=1, shared_gate=True, shared_d_ff=20, pattern=(True, False), plain_d_ff=28
        ),
    ),
    "kimi_linear": CONFIG.with_(
        layers=3,
        attention=AttentionConfig(
            4,
            d_head=6,
            d_v=5,
            latent=LatentConfig(9, 4, eps=1e-6),
            linear=LinearConfig(
                (False, True), heads=1, d_head=7, decay="channel", convolution=1, gate="sigmoid", rank=7
            ),
        ),
        positions=PositionConfig("none"),
        norm=NormConfig(eps=0.01),
        embedding=EmbeddingConfig(tied=False),
        moe=MoEConfig(4, 2, "sigmoid", shared=2, balanced=True, scale=1.5, pattern=(True, False), plain_d_ff=28),
    ),
}


@pytest.mark.parametrize("kind", OURS)
def test_a_model_of_ones_own_becomes_the_simplest_kind_that_has_all_of_it(kind, tmp_path):
    transformers.logging.set_verbosity_error()
    model = drawn(OURS[kind], std=0.2).eval()
    assert export_model(tmp_path, model, further={"eos_token_id": 3}).kind == kind
    theirs = read_by_transformers(tmp_path)
    assert theirs.config.eos_token_id == 3 and theirs.config.bos_token_id is None
    same_logits(model, theirs)


@pytest.mark.parametrize("kind", ["qwen3_next", "kimi_linear"])
@pytest.mark.parametrize("pattern", [(True,), (True, True, False), None])
def test_any_layers_may_be_linear(kind, pattern, tmp_path):
    """All layers are linear, with the usual interval, or none is."""
    transformers.logging.set_verbosity_error()
    linear = OURS[kind].attention.linear
    linear = None if pattern is None else replace(linear, pattern=pattern)
    model = drawn(OURS[kind].with_(attention=replace(OURS[kind].attention, linear=linear), moe=None), std=0.2).eval()
    # Qwen3.5 needs fewer fields if no layer has experts.
    assert export_model(tmp_path, model).kind == {"qwen3_next": "qwen3_5_text"}.get(kind, kind)
    assert load_pretrained(tmp_path).config.attending == model.config.attending
    theirs = read_by_transformers(tmp_path)
    same_logits(model, theirs)
    greedy = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert theirs.generate(torch.tensor([[3, 1, 4]]), **greedy).shape == (1, 6)
    every = {(True,): 4, (True, True, False): 3, None: 1}[pattern]
    said = json.loads((tmp_path / "config.json").read_text())
    assert said.get("full_attention_interval", every) == every


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"attention": AttentionConfig(4, gate="head")}, None, "attention.gate='head': expected None"),
        ({"positions": PositionConfig("sinusoidal")}, None, "positions.kind='sinusoidal': expected "),
        ({"embedding": EmbeddingConfig(norm=True)}, None, "embedding.norm=True: expected False"),
        (
            {"positions": PositionConfig(layout="interleaved")},
            "llama",
            "positions.layout='interleaved': expected 'half'",
        ),
        ({"attention": AttentionConfig(4, bias=True)}, "mistral", r"bias=True: expected False.*type mistral"),
        ({"attention": AttentionConfig(4, linear=LinearConfig())}, "llama", r"attention\.linear\..*: expected None"),
        (
            {"attention": AttentionConfig(4, gate="width", qk_norm="head", linear=LinearConfig(negative=True))},
            "qwen3_next",
            "attention.linear.negative=True: expected False",
        ),
        ({"positions": PositionConfig("none")}, "kimi_linear", "embedding.tied=True: expected False"),
        ({"moe": MoEConfig(3, 2, shared=1)}, "mixtral", "moe.shared=1: expected 0"),
        ({}, "gemma2", "norm.placement='pre': expected 'both'; norm.unit_offset=False: expected True"),
        ({}, "gpt5", "kind='gpt5': expected one of bart, bert, "),
    ],
)
def test_a_part_that_a_family_does_not_have_is_refused_by_name(changes, kind, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_model(tmp_path / "out", drawn(CONFIG.with_(**changes)), kind=kind)
    assert not (tmp_path / "out").exists()
