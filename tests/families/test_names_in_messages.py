"""Messages about a published file use the names in the file, never our own names for them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from companion.families.export import export_model
from companion.families.inspected import read_card
from companion.families.pretrained import load_pretrained
from companion.families.registry import families
from companion.ground.fields import plain
from companion.transformer import Transformer

LLAMA = {
    "model_type": "llama",
    "vocab_size": 31,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 20,
}


@pytest.mark.parametrize(
    "field, value, said",
    [
        ("hidden_size", "16", "hidden_size='16': expected a whole number >= 1"),
        ("num_hidden_layers", -1, "num_hidden_layers=-1: expected a whole number >= 1"),
        ("num_attention_heads", 0, "num_attention_heads=0: expected"),
        ("num_key_value_heads", 3, "num_key_value_heads=3: expected a divisor of num_attention_heads=4"),
        ("head_dim", 0, "head_dim=0: expected a whole number >= 1"),
        ("max_position_embeddings", True, "max_position_embeddings=True: expected a whole number >= 1"),
        ("tie_word_embeddings", "no", "tie_word_embeddings='no': expected True or False"),
        ("rope_theta", "10000", "rope_theta='10000': expected a number from 1 to 1e12"),
    ],
)
def test_a_wrong_value_is_named_as_the_file_has_it(field, value, said):
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}} if field == "rope_theta" else {}
    [refused] = read_card(LLAMA | rope | {field: value}).refused
    assert refused.startswith(f"config.json: {said}")


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral", "qwen3", "gemma2", "glm4", "olmo2", "granite", "phi3"])
def test_every_size_of_a_kind_is(kind):
    """The kind may call it n_embd, hidden_size or num_experts."""
    sizes = [one for one in families()[kind].table.values() if one.kind == "used" and one.required]
    card = {one.name: "silu" if "act" in one.name else 32 for one in sizes} | {"model_type": kind}
    for one in sizes:
        if "act" not in one.name:
            found = read_card(card | {one.name: "sixteen"}).refused
            assert found and any(f"{one.name}='sixteen'" in said for said in found), found


def test_a_published_file_that_does_not_say_its_kind_is_not_taken_for_ours(tmp_path: Path):
    card = {name: value for name, value in LLAMA.items() if name != "model_type"}
    (tmp_path / "config.json").write_text(json.dumps(card | {"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ValueError, match="config.json: the field model_type, which names the architecture, is missing"):
        load_pretrained(tmp_path)


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 12}
CARDS = {
    "llama": LLAMA | {"attention_bias": False, "mlp_bias": False},
    "gpt2": {"vocab_size": 31, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 20},
    "mixtral": LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "bert": SIZES | {"vocab_size": 31, "type_vocab_size": 2, "max_position_embeddings": 20},
}
Q, KV, WTE = (
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.1.self_attn.k_proj.weight",
    "transformer.wte.weight",
)
BLOCK, EXPERT = "transformer.h.0.attn.c_attn.weight", "model.layers.0.block_sparse_moe.experts"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Make a folder of each of these kinds."""
    home = tmp_path_factory.mktemp("written")
    for kind, card in CARDS.items():
        config = read_card(card | {"model_type": kind}).config
        assert config is not None
        export_model(home / kind, Transformer(config), kind=kind)
    return home


ASKED = {
    "llama head_dim=6": f"{Q} has shape (16, 16): config.json's num_attention_heads=4 * head_dim=6 asks for (24, 16)",
    "llama num_key_value_heads=1 head_dim=4": (
        f"{KV} has shape (8, 16): config.json's num_key_value_heads=1 * head_dim=4 asks for (4, 16)"
    ),
    "llama hidden_size=24": "embed_tokens.weight has shape (31, 16): config.json's hidden_size=24 asks for (31, 24)",
    "llama num_hidden_layers=3": "; config.json's num_hidden_layers=3 asks for the first of these",
    "llama num_hidden_layers=1": "; config.json's num_hidden_layers=1 has no place for the first of these",
    "llama attention_bias=true": ": missing model.layers.0.self_attn.q_proj.bias; ",
    "llama mlp_bias=true": "; config.json's mlp_bias=True asks for the first of these",
    "llama tie_word_embeddings=true": (
        "lm_head.weight differs from model.embed_tokens.weight: expected one tied table, as tie_word_embeddings says"
    ),
    "gpt2 n_embd=24": f"{BLOCK} has shape (16, 48): config.json's n_embd=24 asks for (24, 72)",
    "gpt2 vocab_size=40": f"{WTE} has shape (31, 16): config.json's vocab_size=40 asks for (40, 16)",
    "gpt2 n_positions=30 n_ctx=30": "wpe.weight has shape (20, 16): config.json's n_positions=30 asks for (30, 16)",
    "gpt2 n_layer=3": ": missing transformer.h.2.ln_1.weight; ",
    "mixtral num_local_experts=6": "; config.json's num_local_experts=6 asks for the first of these",
    "mixtral intermediate_size=20": (
        f"{EXPERT}.0.w1.weight has shape (12, 16): config.json's intermediate_size=20 asks for (20, 16)"
    ),
    "bert type_vocab_size=3": (
        "token_type_embeddings.weight has shape (2, 16): config.json's type_vocab_size=3 asks for (3, 16)"
    ),
}
"""A kind, what is changed in its config.json, and what is said then."""


@pytest.mark.parametrize("asked", ASKED)
def test_tensors_that_do_not_fit_are_called_as_in_the_file_with_the_field_that_decides(asked, written, tmp_path):
    kind, *fields = asked.split()
    changed = {name: json.loads(value) for name, _, value in (field.partition("=") for field in fields)}
    card = json.loads((written / kind / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(card | changed))
    (tmp_path / "model.safetensors").write_bytes((written / kind / "model.safetensors").read_bytes())
    with pytest.raises(ValueError) as refused:
        load_pretrained(tmp_path)
    assert ASKED[asked] in str(refused.value)
    assert "decoder.blocks" not in str(refused.value) and len(str(refused.value).replace(str(tmp_path), "")) < 1600


@pytest.mark.parametrize("kind, name", [("llama", Q), ("gpt2", BLOCK), ("mixtral", f"{EXPERT}.0.w2.weight")])
def test_numbers_that_are_none_are_said_of_the_tensor_of_the_file(kind, name, written, tmp_path):
    (tmp_path / "config.json").write_bytes((written / kind / "config.json").read_bytes())
    tensors = load_file(written / kind / "model.safetensors")
    tensors[name].fill_(torch.nan)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError) as refused:
        load_pretrained(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}: {name} has")


def test_a_remedy_is_a_field_that_the_file_may_have():
    [one] = read_card(CARDS["gpt2"] | {"model_type": "gpt2", "n_head": 5}).refused
    assert one == "config.json: n_head=5: expected a divisor of n_embd=16"
    [other] = read_card(LLAMA | {"hidden_size": 18}).refused
    assert other.endswith("expected a divisor of hidden_size=18, or an explicit head_dim")


def test_a_long_path_keeps_its_end_where_the_name_is():
    path = "/home/somebody/" + "a long folder/" * 20 + "SmolLM2-135M/config.json"
    assert plain(path).startswith("/home/somebody/a") and plain(path).endswith("/SmolLM2-135M/config.json")
    assert len(plain(path)) == 100
