"""Models of ours in published layouts: `transformers` reads what is written, whole, and computes the same."""

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
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    RotaryScaling,
    WindowConfig,
)
from companion.families.exported import export_model
from companion.families.pretrained import load_pretrained
from companion.families.registry import families

OF_EACH = {json.loads(path.read_text())["model_type"]: path for path in reversed(PUBLISHED)}
"""One release of every family."""
CONFIG = ModelConfig(41, 24, 2, 32, AttentionConfig(4, 2), FeedForwardConfig(36))


@torch.no_grad()
def read_by_transformers(folder):
    """Their model of a folder, in which each of its parameters came from the file."""
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
    again = load_pretrained(tmp_path / "ours")  # and so do we: bit for bit
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
}


@pytest.mark.parametrize("kind", OURS)
def test_a_model_of_ones_own_becomes_the_simplest_kind_that_has_all_of_it(kind, tmp_path):
    transformers.logging.set_verbosity_error()
    model = drawn(OURS[kind], std=0.2).eval()
    assert export_model(tmp_path, model, further={"eos_token_id": 3}).kind == kind
    theirs = read_by_transformers(tmp_path)
    assert theirs.config.eos_token_id == 3 and theirs.config.bos_token_id is None
    same_logits(model, theirs)


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
        ({"attention": AttentionConfig(4, bias=True)}, "mistral", r"attention.bias=True: expected False.*as a mistral"),
        ({"moe": MoEConfig(3, 2, shared=1)}, "mixtral", "moe.shared=1: expected 0"),
        ({}, "gemma2", "norm.placement='pre': expected 'both'; norm.unit_offset=False: expected True"),
        ({}, "gpt5", "kind='gpt5': expected one of bert, "),
    ],
)
def test_a_part_that_a_family_does_not_have_is_refused_by_name(changes, kind, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_model(tmp_path / "out", drawn(CONFIG.with_(**changes)), kind=kind)
    assert not (tmp_path / "out").exists()
