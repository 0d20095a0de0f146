"""Published models: exact numbers of parameters by formula, from meta modules, and from `transformers`."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from theirs import transformers

from companion import ModelConfig, Transformer
from companion.costs.account import cache_bytes, parameters
from companion.families import registry
from companion.families.registry import preset, presets, systems
from companion.files.published.family import Preset


def with_ends(name, **changes):
    return preset(name).with_(embedding=replace(preset(name).embedding, **changes))


def untied(name):
    return with_ends(name, tied=False)


@pytest.mark.parametrize("name", presets())
def test_parameters_are_exactly_those_of_the_published_system(name):
    """For releases, these are the numbers that the hub counts in their files."""
    counted = presets()[name].parameters
    assert parameters(preset(name)).total == counted
    with torch.device("meta"):
        model = Transformer(preset(name))
    assert sum(p.numel() for p in model.parameters()) == counted


OTHERS = {
    "gpt2, untied": (untied("gpt2"), 163_037_184),
    "gpt3-175b, untied": (untied("gpt3-175b"), 175_221_817_344),
    "llama-2-70b, every head its own keys": (
        preset("llama-2-70b").with_(attention=replace(preset("llama-2-70b").attention, kv_heads=None)),
        78_371_889_152,
    ),
    "bert-base, encoder and pooler": (with_ends("bert-base", head="linear", classes=0), 109_482_240),
    "bert-base, masked tokens": (with_ends("bert-base", pooled=False, classes=0), 109_514_298),
    "bert-base, cased": (with_ends("bert-base", head="linear", classes=0).with_(vocab=28996), 108_310_272),
    "bert-large, encoder and pooler": (with_ends("bert-large", head="linear", classes=0), 335_141_888),
    "bert-large, cased": (with_ends("bert-large", head="linear", classes=0).with_(vocab=28996), 333_579_264),
}


@pytest.mark.parametrize(("config", "expected"), OTHERS.values(), ids=OTHERS)
def test_what_texts_count_of_them_is_another_part_or_another_end(config, expected):
    assert parameters(config).total == expected


def test_every_file_of_the_folder_is_a_family_and_systems_are_the_oldest_first():
    files = {path.stem for path in Path(registry.__file__).parent.glob("[!_]*.py")}
    found = {file.__name__.split(".")[-1]: file for file in registry._files()}
    assert files > registry.ABOUT_ALL and set(found) == files - registry.ABOUT_ALL
    assert all(hasattr(file, "FAMILIES") or hasattr(file, "PRESETS") for file in found.values())
    years = [presets()[name].year for name in systems()]
    assert years == sorted(years) and list(systems())[:2] == ["transformer-base", "transformer-big"]


def test_a_file_in_the_folder_is_found(monkeypatch, tmp_path):
    """No further setting is needed."""
    new = ModuleType("companion.families.new")
    new.PRESETS = {"new-1b": Preset(2030, 1, preset("gpt2"))}
    monkeypatch.setattr(registry, "_files", lambda: (new,))
    assert registry.presets.__wrapped__() == new.PRESETS and registry.families.__wrapped__() == {}


def test_what_one_token_meets_of_a_mixture():
    assert parameters(preset("mixtral-8x7b")).active == 12_879_925_248
    assert parameters(preset("qwen3-30b-a3b")).active == 3_353_032_704  # the "A3B" of its name


ATTENTION = {
    "bert-base": 28_348_416,
    "gpt2": 28_348_416,
    "bert-large": 100_761_600,
    "gpt3-175b": 57_986_777_088,
    "llama-7b": 2_147_483_648,
    "llama-2-70b": 12_079_595_520,
}


@pytest.mark.parametrize(("name", "expected"), ATTENTION.items())
def test_attention_alone_has_far_fewer_parameters(name, expected):
    assert parameters(preset(name)).attention == expected


@pytest.mark.parametrize(("name", "label"), [("transformer-base", 65e6), ("transformer-big", 213e6)])
def test_the_2017_models_are_pytorchs_and_near_the_papers_count(name, label):
    config = preset(name)
    with torch.device("meta"):
        sizes = {"nhead": config.sizes.heads, "dim_feedforward": config.feed_forward.d_ff}
        theirs = torch.nn.Transformer(config.d_model, **sizes, batch_first=True)  # six layers per stack
    # Theirs has biases in attention and a norm after each stack; ours, as in 2017, shares the table.
    biases = sum(p.numel() for name, p in theirs.named_parameters() if "attn" in name and name.endswith("bias"))
    last = sum(p.numel() for part in (theirs.encoder.norm, theirs.decoder.norm) for p in part.parameters())
    expected = sum(p.numel() for p in theirs.parameters()) - biases - last + 37000 * config.d_model
    assert parameters(config).total == expected
    assert parameters(config).total == pytest.approx(label, rel=0.04)


THEIRS = {
    "bert-base": lambda: transformers.BertForPreTraining(transformers.BertConfig()),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config()),
    "llama-7b": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig()),
    "mixtral-8x7b": lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig()),
}


@pytest.mark.parametrize(("name", "make"), THEIRS.items())
def test_the_defaults_of_transformers_have_as_many(name, make):
    with torch.device("meta"):
        theirs = make()
    assert sum(p.numel() for p in theirs.parameters()) == parameters(preset(name)).total


def test_grouped_queries_keep_an_eighth_of_the_cache():
    config = preset("llama-2-70b")
    every = config.with_(attention=replace(config.attention, kv_heads=None))
    assert cache_bytes(config, 1, dtype=torch.bfloat16) == 80 * 2 * 8 * 128 * 2
    assert cache_bytes(every, 1) == 8 * cache_bytes(config, 1)


@pytest.mark.parametrize("name", presets())
def test_presets_travel_as_json(name):
    assert ModelConfig.from_json(preset(name).to_json()) == presets()[name].config


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(
        ValueError, match=r"name='gpt-2-xl': expected one of transformer-base, .*; did you mean gpt2-xl\?"
    ):
        preset("gpt-2-xl")
