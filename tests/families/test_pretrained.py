"""Published checkpoints: every field is used or rejected, every tensor is loaded, and nothing is downloaded unasked."""

import json

import huggingface_hub
import pytest
import torch
from families.compared import same_function
from safetensors.torch import load_file, save_file
from theirs import bert, llama, marian, transformers

from companion import ModelConfig, Transformer
from companion.config.model import AttentionConfig, FeedForwardConfig
from companion.families.pretrained import load_pretrained
from companion.families.registry import UNBUILT, families
from companion.files.models import save_model
from companion.files.published.generation_config import SpecialTokens, read_writing, special_tokens


def test_shards_are_put_together(tmp_path):
    theirs = llama()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(load_pretrained(tmp_path)(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)
    shards[-1].unlink()
    with pytest.raises(ValueError, match=f"{shards[-1].name}: expected a safetensors file, found none"):
        load_pretrained(tmp_path)


def test_every_tensor_must_find_its_place(tmp_path):
    llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    table = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": table.clone()}, path)
    assert torch.equal(load_pretrained(tmp_path).embedding.weight, table)
    save_file(tensors | {"lm_head.weight": table + 1}, path)
    with pytest.raises(ValueError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
        load_pretrained(tmp_path)
    extra = tensors | {"model.layers.0.self_attn.q_norm.weight": torch.ones(4)}
    del extra["model.norm.weight"]
    save_file(extra, path)
    with pytest.raises(ValueError, match=r"missing model.norm.weight; unexpected model\.layers\.0\.self_attn\.q_norm"):
        load_pretrained(tmp_path)


def test_a_folder_of_another_kind_of_thing_is_called_by_its_name(tmp_path):
    """The message does not list a hundred missing tensors."""
    theirs = llama()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    headless = {name.removeprefix("model."): tensor for name, tensor in whole.items() if name != "lm_head.weight"}
    save_file(headless, path)
    with pytest.raises(ValueError, match=r"found embed_tokens.weight in place of model.embed_tokens.weight: the te"):
        load_pretrained(tmp_path)
    save_file({f"language_model.{name}": tensor for name, tensor in whole.items()}, path)
    with pytest.raises(ValueError, match="expected no 'language_model.' before it; the tensors are a part"):
        load_pretrained(tmp_path)
    path.unlink()
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"adapter_config.json says that this is an adapter for another mod"):
        load_pretrained(tmp_path)
    save_file(whole, path)  # an adapter that was merged into the model may be beside it
    same_function(load_pretrained(tmp_path), theirs)
    (tmp_path / "config.json").write_text('{"model_type": "llava", "text_config": {"model_type": "llama"}}')
    with pytest.raises(ValueError, match="; its text_config is a llama, which can be read from a folder of its own"):
        load_pretrained(tmp_path)


def test_special_tokens_are_those_of_the_folder(tmp_path):
    for name, make in (("marian", marian), ("llama", llama), ("bert", bert)):
        make().save_pretrained(tmp_path / name)
    assert special_tokens(tmp_path / "marian") == SpecialTokens(start=46, stop=frozenset({0}), pad=46)
    assert special_tokens(tmp_path / "llama") == SpecialTokens(start=1, stop=frozenset({2}))
    assert special_tokens(tmp_path / "bert") == SpecialTokens(pad=0)
    path = tmp_path / "marian" / "generation_config.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"bad_words_ids": [[46]], "eos_token_id": [0, 7]}))
    again = read_writing(tmp_path / "marian")
    assert again.rules.never == (46,) and again.special.stop == {0, 7}
    path.write_text(json.dumps(said | {"bad_words_ids": [[46, 3]]}))
    with pytest.raises(ValueError, match=r"bad_words_ids=\[\[46, 3\]\]: expected single tokens"):
        special_tokens(tmp_path / "marian")


def test_load_pretrained_takes_companions_own_layout_and_refuses_what_it_does_not_know(tmp_path):
    sizes = {"attention": AttentionConfig(2), "feed_forward": FeedForwardConfig(5)}
    model = Transformer(ModelConfig(vocab=7, d_model=8, layers=1, context=9, **sizes))
    save_model(tmp_path, model)
    assert torch.equal(load_pretrained(tmp_path).embedding.weight, model.embedding.weight)
    (tmp_path / "config.json").write_text('{"model_type": "t6"}')
    with pytest.raises(
        ValueError,
        match=r"model_type='t6': expected one of bart, bert, .*, gemma2, .*, gpt2, .*, llama, .*, or none$",
    ):
        load_pretrained(tmp_path)


def test_a_kind_that_has_a_part_which_is_not_built_is_refused_by_that_part(tmp_path):
    assert not set(UNBUILT) & set(families()) and set(UNBUILT) <= set(transformers.CONFIG_MAPPING)
    (tmp_path / "config.json").write_text('{"model_type": "gptj"}')
    with pytest.raises(ValueError, match="; gptj models have attention and feed-forward networks in parallel; this"):
        load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gemma4", "text_config": {"model_type": "gemma4_text"}}')
    with pytest.raises(ValueError, match="; gemma4_text models have global layers whose heads have another width"):
        load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mistral3", "text_config": {"model_type": "ministral3"}}')
    with pytest.raises(
        ValueError, match="; ministral3 models have queries that grow with their position; this is not supported"
    ):
        load_pretrained(tmp_path)


def test_nothing_is_fetched_unasked(tmp_path, monkeypatch):
    calls = []

    def download(name, *, local_files_only=False, **_):
        if local_files_only:
            raise FileNotFoundError(name)
        calls.append(name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ValueError, match=r"openai-community/gpt2: expected a folder .*`companion get openai-community"):
        load_pretrained("openai-community/gpt2")
    llama().save_pretrained(tmp_path)
    load_pretrained(tmp_path, download=True)  # an existing folder is never requested
    assert calls == []


def test_a_model_is_fetched_by_name_without_its_pickles(tmp_path, monkeypatch):
    theirs = llama()
    theirs.save_pretrained(tmp_path / "fetched")
    asked = {}

    def snapshot(name, *, allow_patterns, local_files_only=False):
        if local_files_only:
            raise FileNotFoundError(name)
        asked[name] = allow_patterns
        return str(tmp_path / "fetched")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    same_function(load_pretrained("some/llama", download=True), theirs)
    assert {"config.json", "model.safetensors", "model-*.safetensors", "tokenizer.json", "source.spm"} <= {
        *asked["some/llama"]
    }
    assert all(pattern.endswith((".json", ".safetensors", ".txt", ".spm", ".jinja")) for pattern in asked["some/llama"])


def test_a_hub_that_cannot_be_reached_or_a_missing_library_is_a_clear_word(monkeypatch):
    def offline(name, **_):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ValueError, match=r"some/model: the hub does not have this model.* \(no route to host\)"):
        load_pretrained("some/model", download=True)
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"needs huggingface_hub; pip install 'executable-transformer\[published\]'"):
        load_pretrained("some/model", download=True)
