"""A config.json without any tensors, read by `read_card` and by `companion inspect`."""

import json
import re
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
    assert found.refused == ["there/config.json: strange_multiplier=0.5: unsupported field; it may change the model"]


OTHERS = {
    "1_Pooling/config.json": ({"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True}, "sentence-transf"),
    "sentence_bert_config.json": ({"max_seq_length": 256, "do_lower_case": False}, "settings of sentence-transformers"),
    "tokenizer_config.json": (
        {"tokenizer_class": "BertTokenizer", "do_lower_case": True},
        "the settings of a tokenizer",
    ),
    "tokenizer.json": ({"version": "1.0", "added_tokens": [], "model": {}}, "a tokenizer; the model's config.json"),
    "generation_config.json": (
        {"do_sample": True, "transformers_version": "4.40.0"},
        "the generation settings of a model",
    ),
    "adapter_config.json": ({"peft_type": "LORA", "r": 8}, "the configuration of an adapter"),
    "model.safetensors.index.json": ({"metadata": {}, "weight_map": {}}, "the index of a model's files"),
    "quantize_config.json": ({"bits": 4, "group_size": 128}, "a quantization configuration"),
    "preprocessor_config.json": ({"do_resize": True, "image_mean": [0.5]}, "the settings of an image processor"),
    "params.json": ({"dim": 4096, "n_layers": 32, "norm_eps": 1e-5}, "in the format of Meta or Mistral"),
    "package.json": ({"name": "x", "scripts": {}}, r"got the fields \['name', 'scripts'\]"),
    "modules.json": ([{"idx": 0}], r"expected a JSON object, got \[\{'idx': 0\}\]"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_json_of_another_kind_is_called_what_it_is(name, tmp_path, capsys):
    fields, said = OTHERS[name]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(json.dumps(fields))
    assert main(["inspect", str(tmp_path / name)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert re.search(said, error) and Path(name).name in error and "None" not in error


def test_a_configuration_of_our_own_is_a_card_too(tmp_path, capsys):
    (tmp_path / "config.json").write_text(preset("llama-3.2-1b").to_json())
    assert main(["inspect", str(tmp_path / "config.json")]) in (0, None)
    assert "1,235,814,400 parameters" in " ".join(capsys.readouterr().out.split())


QUANTIZED = [
    ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "FP8"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}, "GPTQ, 4 bits"),
    ({"quantization_config": {"quant_method": "awq", "bits": 4, "version": "gemm"}}, "AWQ, 4 bits"),
    ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "bitsandbytes, 4 bits"),
    ({"quantization_config": {"_load_in_8bit": True, "llm_int8_threshold": 6.0}}, "bitsandbytes, 8 bits"),
    ({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack"}}, "compressed-tensors"),
    ({"quantization_config": {"quant_method": "hqq"}}, "HQQ"),
    ({"quantization_config": {"quant_method": "modelopt"}}, "ModelOpt"),
    ({"quantization_config": [4]}, "by an unknown method"),
    ({"quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"group_size": 64, "bits": 4}}, None),
    ({"quantization": {"group_size": 64, "bits": 8}}, "MLX, 8 bits"),
    ({"compression_config": {"format": "int-quantized"}}, "int-quantized"),
]


@pytest.mark.parametrize(("fields", "how"), QUANTIZED)
def test_a_quantized_folder_is_refused_by_how_it_was_quantized(fields, how):
    for name in ("llama-3.1-8b", "deepseek-v3", "glm-4.5"):
        refused = read_card(fields | published(name)).refused[0]
        assert "the weights are quantized (" in refused and (how is None or f"({how})" in refused)
        assert refused.endswith("expected a release in bf16, fp16 or fp32, or a GGUF file")


CHANGE_NOTHING = [
    ("smollm2-135m", {"transformers.js_config": {"dtype": "q4", "kv_cache_dtype": {"q4f16": "float16"}}}),
    ("smollm2-135m", {"unsloth_version": "2024.9", "peft_version": "0.11.1", "use_flash_attn": True}),
    ("llama-2-7b", {"max_sequence_length": 2048, "auto_map": {"AutoConfig": "a.B"}, "model_parallel": False}),
    ("llama-2-7b", {"attention_dropout": 0.1, "quantization_config": {}, "_flash_attn_2_enabled": True}),
    ("llama-2-7b", {"rope_scaling": {"rope_type": "default", "factor": 1.0}, "compression_ratio": 1.0}),
    ("gpt2", {"attn_pdrop": 0.3, "embd_pdrop": 0.0}),
    ("opus-mt-en-de", {"decoder_layerdrop": 0.1, "activation_dropout": 0.1}),
    ("qwen3-30b-a3b", {"qkv_bias": False, "use_qk_norm": True, "shared_expert_intermediate_size": 0}),
]
"""Fields that cannot change a text: Qwen3-Coder has the last three, tools and people leave the others behind."""


@pytest.mark.parametrize(("name", "fields"), CHANGE_NOTHING)
def test_fields_that_cannot_change_a_text_are_told_and_change_nothing(name, fields):
    found = read_card(published(name) | fields)
    assert found.refused == [] and found.config == read_card(published(name)).config
    assert fields.keys() <= {end.name for end in found.fields}


CHANGE_SOMETHING = [
    ("llama-2-7b", {"attention_version": 2}, "attention_version=2: unsupported field"),
    ("llama-2-7b", {"attention_dropout": 2}, "attention_dropout=2: unsupported field"),
    ("llama-2-7b", {"rope_scaling": {"rope_type": "default", "factor": 2.0}}, "rope_scaling.factor=2.0: expected 1"),
    ("llama-2-7b", {"compression_ratio": 0.5}, "compression_ratio=0.5: expected null or 1.0"),
    ("qwen3-30b-a3b", {"qkv_bias": True}, "qkv_bias=true: expected null or false"),
    ("qwen3-30b-a3b", {"use_qk_norm": False}, "use_qk_norm=false: expected null or true"),
    (
        "qwen3-30b-a3b",
        {"shared_expert_intermediate_size": 64},
        "intermediate_size=64: expected null or 0",
    ),
]


@pytest.mark.parametrize(("name", "fields", "said"), CHANGE_SOMETHING)
def test_the_same_fields_with_values_that_could_change_a_text_are_refused(name, fields, said):
    (refused,) = read_card(published(name) | fields).refused
    assert said.lower() in refused.lower()


def test_a_card_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"config.json: model_type='mamba': expected one of bart, bert, "):
        read_card(published("olmo-3-7b") | {"model_type": "mamba"})
    with pytest.raises(ValueError, match=r"expected a model's configuration with a model_type; got no field"):
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
    assert "30,532,122,624 parameters, of which" in said
    assert "used: moe.experts; null: 128" in said and "The tensors were not read." in said


def test_the_command_says_what_of_a_card_is_refused(tmp_path, capsys):
    card = tmp_path / "config.json"
    card.write_text(json.dumps(published("smollm3-3b") | {"residual_multiplier": 0.22}))
    with pytest.raises(SystemExit) as left:
        raise SystemExit(main(["inspect", str(card)]))
    assert left.value.code == 2
    assert "residual_multiplier=0.22: unsupported field" in capsys.readouterr().err
