"""The published systems: the exact counts of the ledger, by formula, by meta modules, and by `transformers`."""

from dataclasses import replace

import pytest
import torch
from theirs import transformers

from companion import ModelConfig, Transformer
from companion.config.presets import PRESETS, RELEASES, preset
from companion.costs.account import cache_bytes, parameters


def with_ends(name, **changes):
    return PRESETS[name].with_(embedding=replace(PRESETS[name].embedding, **changes))


def untied(name):
    return with_ends(name, tied=False)


COUNTS = {
    "gpt2": (PRESETS["gpt2"], 124_439_808),
    "gpt2, untied": (untied("gpt2"), 163_037_184),
    "gpt2-medium": (PRESETS["gpt2-medium"], 354_823_168),
    "gpt2-large": (PRESETS["gpt2-large"], 774_030_080),
    "gpt2-xl": (PRESETS["gpt2-xl"], 1_557_611_200),
    "gpt3-175b": (PRESETS["gpt3-175b"], 174_604_259_328),
    "gpt3-175b, untied": (untied("gpt3-175b"), 175_221_817_344),
    "llama-7b": (PRESETS["llama-7b"], 6_738_415_616),
    "llama-2-70b": (PRESETS["llama-2-70b"], 68_976_648_192),
    "llama-2-70b, every head its own keys": (
        PRESETS["llama-2-70b"].with_(attention=replace(PRESETS["llama-2-70b"].attention, kv_heads=None)),
        78_371_889_152,
    ),
    "mixtral-8x7b": (PRESETS["mixtral-8x7b"], 46_702_792_704),
    "bert-base, both heads": (PRESETS["bert-base"], 110_106_428),
    "bert-base, encoder and pooler": (with_ends("bert-base", head="linear", classes=0), 109_482_240),
    "bert-base, masked tokens": (with_ends("bert-base", pooled=False, classes=0), 109_514_298),
    "bert-base, cased": (with_ends("bert-base", head="linear", classes=0).with_(vocab=28996), 108_310_272),
    "bert-large, both heads": (PRESETS["bert-large"], 336_226_108),
    "bert-large, encoder and pooler": (with_ends("bert-large", head="linear", classes=0), 335_141_888),
    "bert-large, cased": (with_ends("bert-large", head="linear", classes=0).with_(vocab=28996), 333_579_264),
} | {  # as the hub counts what lies in their files
    name: (RELEASES[name], count)
    for name, count in {
        "distilgpt2": 81_912_576,
        "llama-2-7b": 6_738_415_616,
        "llama-3.1-8b": 8_030_261_248,
        "llama-3.2-1b": 1_235_814_400,
        "tinyllama-1.1b": 1_100_048_384,
        "smollm2-135m": 134_515_008,
        "smollm3-3b": 3_075_098_624,
        "mistral-7b-v0.1": 7_241_732_096,
        "mistral-7b-v0.3": 7_248_023_552,
        "qwen2.5-0.5b": 494_032_768,
        "qwen3-0.6b": 596_049_920,
        "qwen3-30b-a3b": 30_532_122_624,
        "gemma-2-2b": 2_614_341_888,
        "gemma-3-270m": 268_098_176,
        "gemma-3-1b": 999_885_952,
        "olmo-2-1b": 1_484_916_736,
    }.items()
}


@pytest.mark.parametrize(("config", "expected"), COUNTS.values(), ids=COUNTS)
def test_parameters_are_exactly_those_of_the_published_system(config, expected):
    assert parameters(config).total == expected
    with torch.device("meta"):
        model = Transformer(config)
    assert sum(p.numel() for p in model.parameters()) == expected


def test_every_release_is_counted():
    assert set(RELEASES) <= set(COUNTS) and not set(RELEASES) & set(PRESETS)


def test_what_one_token_meets_of_a_mixture():
    assert parameters(PRESETS["mixtral-8x7b"]).active == 12_879_925_248
    assert parameters(RELEASES["qwen3-30b-a3b"]).active == 3_353_032_704  # the "A3B" of its name


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
    assert parameters(PRESETS[name]).attention == expected


@pytest.mark.parametrize(("name", "label"), [("transformer-base", 65e6), ("transformer-big", 213e6)])
def test_the_2017_models_are_pytorchs_and_near_the_papers_count(name, label):
    config = PRESETS[name]
    with torch.device("meta"):
        sizes = {"nhead": config.sizes.heads, "dim_feedforward": config.feed_forward.d_ff}
        theirs = torch.nn.Transformer(config.d_model, **sizes, batch_first=True)  # six layers in each stack
    # Theirs has biases in attention and a norm after each stack; ours, as in 2017, has the shared table.
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
    assert sum(p.numel() for p in theirs.parameters()) == parameters(PRESETS[name]).total


def test_grouped_queries_keep_an_eighth_of_the_cache():
    config = PRESETS["llama-2-70b"]
    every = config.with_(attention=replace(config.attention, kv_heads=None))
    assert cache_bytes(config, 1, dtype=torch.bfloat16) == 80 * 2 * 8 * 128 * 2
    assert cache_bytes(every, 1) == 8 * cache_bytes(config, 1)


@pytest.mark.parametrize("name", PRESETS | RELEASES)
def test_presets_travel_as_json(name):
    assert ModelConfig.from_json(preset(name).to_json()) == (PRESETS | RELEASES)[name]


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(
        ValueError, match=r"name='gpt-2-xl': expected one of transformer-base, .*; did you mean gpt2-xl\?"
    ):
        preset("gpt-2-xl")
