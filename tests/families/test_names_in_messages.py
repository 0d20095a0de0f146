"""A message about a published file names what stands in the file, and never our name of it."""

import json
from pathlib import Path

import pytest

from companion.families.inspected import read_card
from companion.families.pretrained import load_pretrained
from companion.families.registry import families

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
    """Whatever the kind calls it: n_embd, hidden_size, num_experts."""
    sizes = [one for one in families()[kind].table.values() if one.kind == "taken" and one.required]
    card = {one.name: "silu" if "act" in one.name else 32 for one in sizes} | {"model_type": kind}
    for one in sizes:
        if "act" not in one.name:
            found = read_card(card | {one.name: "sixteen"}).refused
            assert found and any(f"{one.name}='sixteen'" in said for said in found), found


def test_a_published_file_that_does_not_say_its_kind_is_not_taken_for_ours(tmp_path: Path):
    card = {name: value for name, value in LLAMA.items() if name != "model_type"}
    (tmp_path / "config.json").write_text(json.dumps(card | {"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ValueError, match="config.json: the field model_type is missing"):
        load_pretrained(tmp_path)
