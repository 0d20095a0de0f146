"""Folders that learners have: wrapped models, another head, quantized weights, or a Git LFS pointer."""

import json
import warnings

import pytest
import torch
from models import drawn
from safetensors.torch import load_file, save_file
from theirs import llama, transformers

from companion import AttentionConfig, FeedForwardConfig, ModelConfig
from companion.commands.main import main
from companion.data.published_tokenizers import load_tokenizer
from companion.families.pretrained import load_pretrained
from companion.files.models import load_model, save_model

IDS = torch.tensor([[1, 5, 9, 2, 17], [3, 3, 8, 21, 30]])


def named(folder, rename):
    path = folder / "model.safetensors"
    save_file({rename(name): tensor for name, tensor in load_file(path).items()}, path)


PREFIXES = {
    "torch.compile": lambda name: f"_orig_mod.{name}",
    "DistributedDataParallel": lambda name: f"module.{name}",
    "both": lambda name: f"module._orig_mod.{name}",
    "both, the other way": lambda name: f"_orig_mod.module.{name}",
    "two processes' wrappers": lambda name: f"module.module.{name}",
    "only the blocks compiled": lambda name: name.replace("layers.1.", "layers.1._orig_mod."),
}


@pytest.mark.parametrize("name", PREFIXES)
@torch.no_grad()
def test_names_of_wrapped_models_are_those_below(name, tmp_path):
    theirs = llama()
    theirs.save_pretrained(tmp_path)
    named(tmp_path, PREFIXES[name])
    torch.testing.assert_close(load_pretrained(tmp_path)(IDS).logits, theirs(IDS).logits, rtol=1e-5, atol=1e-5)
    own = drawn(ModelConfig(31, 24, 2, 20, AttentionConfig(4, 2), FeedForwardConfig(20)))
    save_model(tmp_path / "own", own)
    named(tmp_path / "own", PREFIXES[name])
    assert torch.equal(load_model(tmp_path / "own")(IDS).logits, own.eval()(IDS).logits)


SIZES = {"vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20}
SIZES |= {"max_position_embeddings": 20, "pad_token_id": 0, "num_labels": 3}
KIN = SIZES | {"num_key_value_heads": 2, "tie_word_embeddings": True}
GPT2 = {"vocab_size": 31, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 20, "pad_token_id": 0}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
HEADS = [
    ("BertForSequenceClassification", SIZES, "classifier.bias, classifier.weight"),
    ("BertForTokenClassification", SIZES, "classifier.bias, classifier.weight"),
    ("BertForQuestionAnswering", SIZES, "qa_outputs.bias, qa_outputs.weight"),
    ("BertForMultipleChoice", SIZES, "classifier.bias, classifier.weight"),
    ("RobertaForSequenceClassification", SIZES | {"pad_token_id": 1}, "classifier.dense.bias"),
    ("DistilBertForSequenceClassification", {"vocab_size": 31, "dim": 24, "n_layers": 2, "n_heads": 4,
     "hidden_dim": 20, "max_position_embeddings": 20, "pad_token_id": 0}, "classifier.bias, classifier.weight, p"),
    ("GPT2ForSequenceClassification", GPT2, "score.weight"),
    ("GPT2ForTokenClassification", GPT2, "classifier.bias, classifier.weight"),
    ("LlamaForSequenceClassification", KIN, "score.weight"),
    ("Qwen2ForTokenClassification", KIN | {"use_sliding_window": False}, "score.bias, score.weight"),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "sizes", "head"), HEADS, ids=[cls for cls, *_ in HEADS])
@torch.no_grad()
def test_the_trunk_below_another_head_is_read_and_the_head_is_named(cls, sizes, head, tmp_path, capsys):
    made = getattr(transformers, cls)
    torch.manual_seed(0)
    theirs = made(made.config_class(**sizes)).eval()
    for parameter in theirs.parameters():
        parameter.normal_(std=0.3)
    theirs.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=rf"the head of a classifier is ignored \({head}"):
        ours = load_pretrained(tmp_path)
    ids = IDS.clamp(min=2)
    wanted = theirs.base_model(ids).last_hidden_state
    torch.testing.assert_close(ours.features(ids).stream, wanted, rtol=1e-4, atol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["inspect", str(tmp_path)]) in (0, None)
    said = " ".join(capsys.readouterr().out.split())
    assert "The head of a classifier is ignored (" in said and head.partition(",")[0] in said


def test_a_classifier_without_scores_of_tokens_is_called_one(tmp_path):
    config = transformers.LlamaConfig(**KIN | {"tie_word_embeddings": False})
    transformers.LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"score\.weight is the head of a classifier instead of lm_head\.weight"):
        load_pretrained(tmp_path)


QUANTIZED = [
    ("self_attn.q_proj.qweight", torch.int32, "GPTQ or AWQ"),
    ("self_attn.q_proj.weight_scale_inv", torch.float32, "FP8"),
    ("self_attn.q_proj.weight_packed", torch.int32, "compressed-tensors"),
    ("self_attn.q_proj.weight.absmax", torch.uint8, "bitsandbytes, 4 bits"),
    ("self_attn.q_proj.SCB", torch.float32, "bitsandbytes, 8 bits"),
    ("self_attn.q_proj.scales", torch.float32, "MLX"),
]


@pytest.mark.parametrize(("name", "dtype", "how"), QUANTIZED)
def test_quantized_tensors_without_a_word_in_the_configuration_are_told(name, dtype, how, tmp_path):
    llama().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {f"model.layers.0.{name}": torch.ones(3, dtype=dtype)}, path)
    with pytest.raises(ValueError, match=rf"{name}: the weights are quantized \({how}\).*or a GGUF file"):
        load_pretrained(tmp_path)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f3\n"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "vocab.json", "adapter_model.safetensors"]
)
def test_a_pointer_of_git_lfs_is_called_one(name, tmp_path):
    llama().save_pretrained(tmp_path)
    (tmp_path / name).write_text(f"{POINTER}size 548105171\n")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    read = load_tokenizer if name in ("tokenizer.json", "vocab.json") else load_pretrained
    if name == "adapter_model.safetensors":
        from companion.files.models import load_tensors

        read = lambda folder: load_tensors(folder / name)  # noqa: E731
    with pytest.raises(ValueError, match=rf"{name}: this is only a Git LFS pointer to the file.*lfs pull"):
        read(tmp_path)


def test_a_kind_whose_architecture_is_another_s_names_that(tmp_path):
    said = {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(ValueError, match=r"architecture, DeepseekV3ForCausalLM, is that of model_type='deepseek_v3'$"):
        load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "olmo_hybrid"}')
    with pytest.raises(ValueError, match=r"olmo_hybrid models have norms in different positions in linear layers"):
        load_pretrained(tmp_path)
