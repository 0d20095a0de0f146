"""Published checkpoints: every field honoured or refused, every tensor in its place, nothing fetched unasked."""

import json

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from theirs import bert, gpt2, llama, marian, mixtral

from companion import ModelConfig, Transformer
from companion.config.model import AttentionConfig, FeedForwardConfig
from companion.files.models import save_model
from companion.files.published.pretrained import load_pretrained
from companion.files.published.writing import SpecialTokens, special_tokens


def same_function(ours, theirs):
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens)[0], rtol=1e-5, atol=1e-5)


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


def test_the_first_release_of_gpt2_is_read_too(tmp_path):
    """Its tensors have no prefix, and each layer carries its causal mask."""
    theirs = gpt2()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): t for name, t in load_file(path).items() if name != "lm_head.weight"}
    for layer in range(3):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(24, 24).tril()[None, None]
    save_file(tensors, path)
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(load_pretrained(tmp_path)(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)


REFUSED = [
    (
        llama,
        {"rope_parameters": {"rope_type": "longrope", "factor": 2.0, "rope_theta": 1e4}},
        "rope_parameters.rope_type='longrope'",
    ),
    (llama, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling={'type': 'linear'"),
    (llama, {"hidden_act": "relu"}, "hidden_act='relu'"),
    (llama, {"sliding_window": 8}, "sliding_window=8"),
    (llama, {"quantization_config": {"bits": 4}}, "quantization_config="),
    (llama, {"attention_dropout": 0.1}, "attention_dropout=0.1"),
    (llama, {"pretraining_tp": 2}, "pretraining_tp=2"),
    (llama, {"num_key_value_heads": 4}, "kv_heads=4"),
    (llama, {"model_type": "phi3"}, "model_type='phi3'"),
    (gpt2, {"scale_attn_weights": False}, "scale_attn_weights=False"),
    (gpt2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    (gpt2, {"add_cross_attention": True}, "add_cross_attention=True"),
    (gpt2, {"activation_function": "tanh"}, "activation_function='tanh'"),
    (gpt2, {"attn_pdrop": 0.3}, "attn_pdrop=0.3"),
    (gpt2, {"n_ctx": 12}, "n_ctx=12"),
    (gpt2, {"alibi": True}, "alibi=True"),
    (gpt2, {"n_embd": 21}, "d_model=21"),
    (bert, {"is_decoder": True}, "is_decoder=True"),
    (bert, {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
    (bert, {"attention_probs_dropout_prob": 0.2}, "attention_probs_dropout_prob=0.2"),
    (bert, {"hidden_act": "mish"}, "hidden_act='mish'"),
    (bert, {"type_vocab_size": -1}, "segments=-1"),
    (mixtral, {"sliding_window": -8}, "width=-8"),
    (mixtral, {"router_jitter_noise": 0.1}, "router_jitter_noise=0.1"),
    (mixtral, {"num_experts_per_tok": 6}, "top_k=6"),
    (mixtral, {"rope_theta": -1.0, "rope_parameters": None}, "rope_theta=-1.0"),
    (marian, {"normalize_before": True}, "normalize_before=True"),
    (marian, {"normalize_embedding": True}, "normalize_embedding=True"),
    (marian, {"static_position_embeddings": False}, "static_position_embeddings=False"),
    (marian, {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings=False"),
    (marian, {"decoder_vocab_size": 50}, "decoder_vocab_size=50"),
    (marian, {"decoder_layers": 2}, "decoder_layers=2"),
    (marian, {"decoder_ffn_dim": 44}, "decoder_ffn_dim=44"),
    (marian, {"is_encoder_decoder": False}, "is_encoder_decoder=False"),
]


@pytest.mark.parametrize(
    ("make", "change", "named"), REFUSED, ids=[f"{make.__name__} {named}" for make, _, named in REFUSED]
)
def test_a_field_that_would_change_the_function_is_refused_by_name(make, change, named, tmp_path):
    make().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"config\.json: ") as caught:
        load_pretrained(tmp_path)
    assert named in str(caught.value)


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


def test_mixtrals_experts_are_read_one_by_one_and_fused(tmp_path):
    theirs = mixtral()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    released = load_file(path)
    assert "model.layers.0.block_sparse_moe.experts.4.w2.weight" in released
    fused = {name: tensor for name, tensor in released.items() if ".block_sparse_moe." not in name}
    held = theirs.state_dict()
    fused |= {name: held[name].clone() for name in held if ".mlp." in name}
    assert "model.layers.0.mlp.experts.gate_up_proj" in fused
    save_file(fused, path)
    same_function(load_pretrained(tmp_path), theirs)
    fused["model.layers.2.mlp.experts.gate_up_proj"] = torch.zeros(5, 41, 24)
    save_file(fused, path)
    with pytest.raises(
        ValueError, match=r"layers.2.mlp.experts.gate_up_proj is \(5, 41, 24\): expected a multiple of 2"
    ):
        load_pretrained(tmp_path)
    released["model.layers.1.block_sparse_moe.experts.3.w1.weight"] = torch.zeros(20, 23)
    save_file(released, path)
    with pytest.raises(ValueError, match=r"layers.1.mlp.experts.3.w1.weight is \(20, 23\): expected \(20, 24\)"):
        load_pretrained(tmp_path)
    del released["model.layers.1.block_sparse_moe.experts.3.w1.weight"]
    save_file(released, path)
    with pytest.raises(ValueError, match=r"missing model.layers.1.mlp.experts.3.w1.weight"):
        load_pretrained(tmp_path)


def test_the_first_releases_of_bert_are_read_too(tmp_path):
    """They say gamma and beta, store the head's table again, and number the positions."""
    theirs = bert()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(path).items()
    }
    table = tensors["bert.embeddings.word_embeddings.weight"]
    tensors |= {"cls.predictions.decoder.weight": table.clone(), "bert.embeddings.position_ids": torch.arange(24)[None]}
    save_file(tensors, path)
    same_function(load_pretrained(tmp_path), theirs)
    save_file(tensors | {"cls.predictions.decoder.weight": table + 1}, path)
    with pytest.raises(
        ValueError, match=r"cls.predictions.decoder.weight differs from embeddings.word_embeddings.weight"
    ):
        load_pretrained(tmp_path)
    save_file({name: tensor for name, tensor in tensors.items() if "pooler" not in name}, path)
    with pytest.raises(ValueError, match=r"unexpected cls.seq_relationship.bias \(2,\)"):
        load_pretrained(tmp_path)


def test_marians_table_may_be_stored_four_times_and_its_sinusoids_too(tmp_path):
    theirs = marian()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    table = next(tensor for tensor in tensors.values() if tensor.shape == (47, 20))
    for name in ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = table.clone()
    waves = theirs.model.encoder.embed_positions.weight.detach().clone()
    tensors |= {"model.encoder.embed_positions.weight": waves, "model.decoder.embed_positions.weight": waves.clone()}
    save_file(tensors, path)
    source, target = torch.arange(9)[None], torch.arange(20, 27)[None]
    expected = theirs(source, decoder_input_ids=target).logits
    torch.testing.assert_close(load_pretrained(tmp_path)(target, source=source).logits, expected, rtol=1e-5, atol=1e-5)
    mixed = waves.view(40, 2, 10).transpose(1, 2).flatten(1).contiguous()  # sine beside cosine, as the paper has them
    save_file(tensors | {"model.decoder.embed_positions.weight": mixed}, path)
    with pytest.raises(ValueError, match=r"decoder.embed_positions.weight \(40, 20\): expected sines, then cosines"):
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
    again = special_tokens(tmp_path / "marian")
    assert again.never == {46} and again.stop == {0, 7}
    path.write_text(json.dumps(said | {"bad_words_ids": [[46, 3]]}))
    with pytest.raises(ValueError, match=r"bad_words_ids=\[\[46, 3\]\]: expected single tokens"):
        special_tokens(tmp_path / "marian")


def test_load_pretrained_takes_companions_own_layout_and_refuses_what_it_does_not_know(tmp_path):
    sizes = {"attention": AttentionConfig(2), "feed_forward": FeedForwardConfig(5)}
    model = Transformer(ModelConfig(vocab=7, d_model=8, layers=1, context=9, **sizes))
    save_model(tmp_path, model)
    assert torch.equal(load_pretrained(tmp_path).embedding.weight, model.embedding.weight)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(
        ValueError,
        match=r"model_type='t5': expected one of gpt2, bert, marian, llama, mistral, mixtral, qwen2, .*, or none",
    ):
        load_pretrained(tmp_path)


def test_nothing_is_fetched_unasked(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **more: calls.append(args))
    with pytest.raises(ValueError, match=r"openai-community/gpt2: expected a folder .* only with download=True"):
        load_pretrained("openai-community/gpt2")
    llama().save_pretrained(tmp_path)
    load_pretrained(tmp_path, download=True)  # a folder that is there is never asked for
    assert calls == []


def test_a_model_is_fetched_by_name_without_its_pickles(tmp_path, monkeypatch):
    theirs = llama()
    theirs.save_pretrained(tmp_path / "fetched")
    asked = {}

    def snapshot(name, *, allow_patterns):
        asked[name] = allow_patterns
        return str(tmp_path / "fetched")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    same_function(load_pretrained("some/llama", download=True), theirs)
    assert {"config.json", "model.safetensors", "model-*.safetensors", "tokenizer.json", "source.spm"} <= {
        *asked["some/llama"]
    }
    assert all(pattern.endswith((".json", ".safetensors", ".txt", ".spm")) for pattern in asked["some/llama"])


def test_a_hub_that_cannot_be_reached_or_a_missing_library_is_a_clear_word(monkeypatch):
    def offline(name, **_):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ValueError, match=r"some/model: expected a model that the hub has .* \(no route to host\)"):
        load_pretrained("some/model", download=True)
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"needs huggingface_hub; pip install 'executable-transformer\[published\]'"):
        load_pretrained("some/model", download=True)


LEFT_OUT = {
    gpt2: ("layer_norm_epsilon", "activation_function", "resid_pdrop", "tie_word_embeddings"),
    bert: ("layer_norm_eps", "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    llama: ("rope_parameters", "rms_norm_eps", "tie_word_embeddings", "attention_bias", "mlp_bias"),
    mixtral: ("rope_parameters", "rms_norm_eps", "num_experts_per_tok", "tie_word_embeddings"),
    marian: ("dropout", "tie_word_embeddings", "decoder_vocab_size", "share_encoder_decoder_embeddings"),
}


@pytest.mark.parametrize("make", LEFT_OUT, ids=lambda make: make.__name__)
def test_a_field_left_out_has_its_published_default(make, tmp_path):
    make().save_pretrained(tmp_path)
    said = load_pretrained(tmp_path).config
    path = tmp_path / "config.json"
    kept = {name: value for name, value in json.loads(path.read_text()).items() if name not in LEFT_OUT[make]}
    path.write_text(json.dumps(kept))
    assert load_pretrained(tmp_path).config == said
