"""A config.json read without any tensor beside it: by `read_card`, and by `companion inspect`."""

import json
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from companion import NormConfig
from companion.commands.inspect import described
from companion.commands.main import main
from companion.costs.account import parameters
from companion.families.inspected import read_card
from companion.families.registry import preset

PUBLISHED = Path(__file__).parents[1] / "published"


def published(name):
    return json.loads((PUBLISHED / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "olmo-3-7b", "deepseek-v3", "gpt-oss-120b", "granite-3.3-8b"])
def test_a_card_alone_has_the_parameters_of_its_release(name):
    found = read_card(published(name))
    assert found.refused == [] and not found.tensors
    assert parameters(found.config).total == parameters(preset(name)).total


@pytest.mark.parametrize("placement", get_args(get_type_hints(NormConfig)["placement"]))
def test_every_placement_of_norms_has_words(placement):
    config = preset("gpt2")
    said = described(config.with_(norm=NormConfig("layer", placement)))
    assert (said == described(config)) == (placement == "pre") and "layer norms" in said


def test_a_field_that_is_not_known_is_refused_by_name():
    found = read_card(published("olmo-3-7b") | {"strange_multiplier": 0.5}, "there/config.json")
    assert found.config is None
    assert found.refused == [
        "there/config.json: strange_multiplier=0.5: expected a field this reader knows; it may change the model"
    ]


def test_a_card_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"config.json: model_type='mamba': expected one of bert, "):
        read_card(published("olmo-3-7b") | {"model_type": "mamba"})
    with pytest.raises(ValueError, match=r"model_type=None: expected one of"):
        read_card({})


def test_sizes_that_make_no_model_are_refused():
    found = read_card(published("olmo-3-7b") | {"num_attention_heads": 31, "num_key_value_heads": 31})
    assert found.config is None
    assert found.refused == [
        "config.json: num_attention_heads=31: expected a divisor of hidden_size=4096, or an explicit head_dim"
    ]


def test_the_command_looks_into_a_card(tmp_path, capsys):
    card = tmp_path / "card.json"
    card.write_text(json.dumps(published("qwen3-30b-a3b")))
    assert main(["inspect", str(card)]) in (0, None)
    said = " ".join(capsys.readouterr().out.split())
    assert "30,532,122,624 parameters, of which a token meets" in said
    assert "taken: moe.experts; null: 128" in said and "No tensor was looked at." in said


def test_the_command_says_what_of_a_card_is_refused(tmp_path, capsys):
    card = tmp_path / "config.json"
    card.write_text(json.dumps(published("smollm3-3b") | {"residual_multiplier": 0.22}))
    with pytest.raises(SystemExit) as left:
        raise SystemExit(main(["inspect", str(card)]))
    assert left.value.code == 2
    assert "residual_multiplier=0.22: expected a field this reader knows" in capsys.readouterr().err
