"""Seed-OSS: its additions to LLaMA change the logits; `test_releases` tests the equality with `transformers`."""

import torch
import transformers
from families.compared import seen_in_the_logits

from companion.families.pretrained import load_pretrained


def test_biases_are_seen_in_the_logits(tmp_path):
    seen_in_the_logits("seed-oss-36b", "attention", {"bias": False}, tmp_path)


@torch.no_grad()
def test_a_bias_behind_attention_is_read_where_there_is_one(tmp_path):
    sizes = {
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 6,
    }
    sizes |= {"vocab_size": 17, "intermediate_size": 10, "pad_token_id": None}
    theirs = transformers.SeedOssForCausalLM(transformers.SeedOssConfig(**sizes, attention_out_bias=True)).eval()
    for parameter in theirs.parameters():
        parameter.normal_(std=0.3)
    theirs.save_pretrained(tmp_path)
    ours, tokens = load_pretrained(tmp_path), torch.arange(11)[None]
    assert ours.config.attention.biased_output
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)
