"""LLaMA computes the same as `transformers`; unsupported settings are rejected."""

import pytest
from families.compared import (
    as_without,
    refused_by_name,
    same_logits_whole_cached_and_padded,
    same_texts_from_a_ragged_batch,
    seen_in_the_logits,
)
from theirs import llama

MODELS = {
    "llama, every head its own keys": lambda: llama(num_key_value_heads=6),
    "llama, grouped": lambda: llama(),
    "llama, one key head, wide heads, another base, tied, biases": lambda: llama(
        num_key_value_heads=1,
        head_dim=8,
        rope_parameters={"rope_theta": 500.0, "rope_type": "default"},
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        rms_norm_eps=1e-3,
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_logits_equal_whole_cached_and_padded(make, tmp_path):
    same_logits_whole_cached_and_padded(make(), tmp_path)


def test_a_ragged_batch_continues_as_theirs_does_one_by_one(tmp_path):
    same_texts_from_a_ragged_batch(llama(), tmp_path)


REFUSED = [
    (
        {"rope_parameters": {"rope_type": "ntk", "factor": 2.0, "rope_theta": 1e4}},
        "rope_type='ntk'",
    ),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling={'type': 'linear'"),
    ({"hidden_act": "relu"}, "hidden_act='relu'"),
    ({"sliding_window": 8}, "sliding_window=8"),
    ({"quantization_config": {"bits": 4}}, "quantization_config: the weights are quantized"),
    ({"pretraining_tp": 2}, "pretraining_tp=2"),
    ({"num_key_value_heads": 4}, "num_key_value_heads=4"),
    ({"model_type": "t6"}, "model_type='t6'"),
]


@pytest.mark.parametrize(("change", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_a_field_that_would_change_the_function_is_refused_by_name(change, named, tmp_path):
    refused_by_name(llama(), change, named, tmp_path)


def test_a_field_left_out_has_its_published_default(tmp_path):
    as_without(
        llama(), ("rope_parameters", "rms_norm_eps", "tie_word_embeddings", "attention_bias", "mlp_bias"), tmp_path
    )


def test_scaled_frequencies_are_seen_in_the_logits(tmp_path):
    seen_in_the_logits("llama-3.2-1b", "positions", {"scaling": None}, tmp_path)
