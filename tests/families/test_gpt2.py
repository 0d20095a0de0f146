"""GPT-2 computes the same as `transformers` for every release; unsupported settings are rejected."""

import pytest
import torch
from families.compared import (
    as_without,
    refused_by_name,
    same_logits_whole_cached_and_padded,
    same_texts_from_a_ragged_batch,
)
from safetensors.torch import load_file, save_file
from theirs import gpt2

from companion.families.pretrained import load_pretrained

MODELS = {
    "gpt2": lambda: gpt2(),
    "gpt2, d_ff by default, exact gelu, untied": lambda: gpt2(
        n_inner=None, activation_function="gelu", tie_word_embeddings=False
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_logits_equal_whole_cached_and_padded(make, tmp_path):
    same_logits_whole_cached_and_padded(make(), tmp_path)


def test_a_ragged_batch_continues_as_theirs_does_one_by_one(tmp_path):
    same_texts_from_a_ragged_batch(gpt2(), tmp_path)


def test_the_first_release_of_gpt2_is_read_too(tmp_path):
    """Its tensors have no prefix, and each layer stores its causal mask."""
    theirs = gpt2()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): t for name, t in load_file(path).items() if name != "lm_head.weight"}
    for layer in range(3):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(24, 24).tril()[None, None]
    save_file(tensors, path)
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(load_pretrained(tmp_path)(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)


REFUSED = [
    ({"scale_attn_weights": False}, "scale_attn_weights=False"),
    ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    ({"add_cross_attention": True}, "add_cross_attention=True"),
    ({"activation_function": "tanh"}, "activation_function='tanh'"),
    ({"n_ctx": 12}, "n_ctx=12"),
    ({"alibi": True}, "alibi=True"),
    ({"n_embd": 21}, "n_embd=21"),
]


@pytest.mark.parametrize(("change", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_a_field_that_would_change_the_function_is_refused_by_name(change, named, tmp_path):
    refused_by_name(gpt2(), change, named, tmp_path)


def test_a_field_left_out_has_its_published_default(tmp_path):
    names = ("layer_norm_epsilon", "activation_function", "resid_pdrop", "tie_word_embeddings")
    as_without(gpt2(), names, tmp_path)
