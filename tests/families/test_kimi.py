"""Kimi Linear: its additions change the logits, and unsupported fields are named.

`test_releases` tests the equality of logits with `transformers`.
"""

import json

import torch
from families.compared import PUBLISHED, refused_by_name, release, same_function, seen_in_the_logits

from companion.config.model import LatentConfig
from companion.families.pretrained import load_pretrained

(PATH,) = [path for path in PUBLISHED if path.stem == "kimi-linear-48b-a3b"]


def test_what_it_adds_is_seen_in_the_logits(tmp_path):
    for group, fields in (("moe", {"balanced": False}), ("moe", {"scale": 1.0}), ("moe", {"gating": "sigmoid_topk"})):
        seen_in_the_logits(PATH.stem, group, fields, tmp_path)


def test_latents_know_no_positions_and_have_an_epsilon_of_their_own(tmp_path):
    ours, _ = release(PATH, 0, tmp_path)
    assert ours.config.positions.kind == "none"
    assert (ours.config.norm.eps, ours.config.attention.latent) == (0.01, LatentConfig(10, 4, None, eps=1e-6))


def test_a_folder_that_transformers_writes_is_read_alike(tmp_path):
    """It lists the kinds of layers in fields of its own, in addition to those of the release."""
    ours, theirs = release(PATH, 0, tmp_path)
    theirs.save_pretrained(tmp_path)
    assert load_pretrained(tmp_path).config == ours.config
    path = tmp_path / "config.json"
    said = json.loads(path.read_text())
    del said["linear_attn_config"], said["first_k_dense_replace"]
    path.write_text(json.dumps(said))
    assert load_pretrained(tmp_path).config == ours.config
    assert {"layer_types", "mlp_layer_types", "linear_head_dim"} <= set(said)


def test_what_would_be_another_function_is_refused_by_name(tmp_path):
    _, theirs = release(PATH, 0, tmp_path)
    lists = {"full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 4, "num_heads": 3}
    for change, named in (
        ({"mla_use_nope": False}, "mla_use_nope=False"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings=True"),
        ({"moe_router_activation_func": "softmax"}, 'expected "sigmoid"'),
        ({"linear_attn_config": lists}, "each layer from 1 to 5 in one of its two lists"),
        ({"linear_attn_config": lists | {"gate_lower_bound": -5.0}}, "an object with only"),  # a field of Kimi K3
        ({"mlp_layer_types": ["dense"]}, "5 kinds of networks"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_scaling"),
    ):
        refused_by_name(theirs, change, named, tmp_path)


@torch.no_grad()
def test_more_heads_of_another_width(tmp_path):
    import transformers

    _, theirs = release(PATH, 0, tmp_path)
    config = theirs.config
    config.linear_num_heads, config.linear_head_dim, config.linear_conv_kernel_dim = 1, 7, 2
    torch.manual_seed(2)
    theirs = transformers.KimiLinearForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    said = json.loads(path.read_text())
    said["linear_attn_config"] = said["linear_attn_config"] | {
        "num_heads": 1, "head_dim": 7, "short_conv_kernel_size": 2,
    }  # fmt: skip
    path.write_text(json.dumps(said))
    same_function(load_pretrained(tmp_path), theirs)
