"""Helpers for the tests of every family: compare with `transformers`, remove a field, or change one."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the import, so that nothing here tries to use a network
import transformers

from companion import KVCache, Transformer
from companion.families.pretrained import load_pretrained
from companion.generation.generate import complete
from companion.generation.sampling import Sampling
from companion.layers import attention, latent
from companion.layers.attention import attend

PUBLISHED = sorted((Path(__file__).parents[1] / "published").glob("*.json"))
"""The fields of releases, as they were published: see `test_releases`."""
VOCAB, TOKENS = 41, 24
SIZES = {
    "vocab_size": VOCAB, "decoder_vocab_size": VOCAB, "n_embd": 20, "n_head": 4, "n_layer": 3, "n_positions": 32,
    "n_ctx": 32, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 20, "max_position_embeddings": 32, "query_pre_attn_scalar": 7,
    "moe_intermediate_size": 12, "num_experts": 5, "num_local_experts": 5, "num_experts_per_tok": 2, "d_model": 20,
    "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 36, "decoder_ffn_dim": 36, "kv_lora_rank": 10, "q_lora_rank": 9, "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4, "v_head_dim": 5, "n_routed_experts": 12, "first_k_dense_replace": 1,
    "intermediate_size_mlp": 28, "experts_per_token": 2, "shared_intermediate_size": 20, "mamba_n_heads": 6,
    "mamba_d_head": 8, "original_max_position_embeddings": 24,
    "num_layers": 4, "num_heads": 6, "ffn_dim": 20,
    "word_embed_proj_dim": 24, "dim": 24,
    "d_kv": 8, "d_ff": 20, "num_decoder_layers": 4, "n_layers": 3, "n_heads": 6, "hidden_dim": 20, "window_size": 5,
    "rotary_dim": 4, "local_attention": 6,
    "linear_num_value_heads": 6, "linear_num_key_heads": 3, "linear_key_head_dim": 4, "linear_value_head_dim": 5,
    "shared_expert_intermediate_size": 14, "num_experts_per_token": 2, "model_max_length": 32,
}  # fmt: skip
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": VOCAB - 1, "decoder_start_token_id": VOCAB - 1}
IDS |= {"forced_eos_token_id": 2, "unk_token_id": 3}


def class_of(fields):
    """Return the class in `transformers` for a release; ERNIE's own code has another name for it."""
    return getattr(transformers, fields["architectures"][0].replace("4_5_ForCausalLM", "4_5ForCausalLM"))


def tiny(fields):
    """Return the fields of a release with small sizes, ids that fit them, and lists with one entry per layer."""
    sizes = SIZES | IDS
    if "num_key_value_heads" in fields and fields["num_key_value_heads"] == fields["num_attention_heads"]:
        sizes = sizes | {"num_key_value_heads": 6}
    if "no_rope_layers" in fields or fields["model_type"] in ("olmo3", "exaone4"):
        sizes = sizes | {"num_hidden_layers": 5}  # each kind of layer, and the start of a second period
    elif "sliding_window_pattern" in fields and "layer_switch" in fields:
        sizes = sizes | {"num_hidden_layers": 5, "sliding_window_pattern": 4, "head_dim": 4}
    elif "sliding_window_pattern" in fields or "_sliding_window_pattern" in fields:
        sizes = sizes | {"num_hidden_layers": 8}
    if "global_attn_every_n_layers" in fields:
        sizes = sizes | {"num_hidden_layers": 4}
    if fields.get("n_group", 1) > 1:
        sizes = sizes | {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 3}  # more experts than groups
    sizes = sizes | {name: 0 for name in ("num_local_experts", "shared_intermediate_size") if fields.get(name) == 0}
    if {"partial_rotary_factor", "rotary_pct"} & set(fields) and "head_dim" not in fields:
        sizes = sizes | {"hidden_size": 48}  # heads of 8 components, some of which are rotated
    if {"full_attention_interval", "linear_attn_config"} & set(fields) or "qwen3_5" in fields["model_type"]:
        # Each kind of layer, and the start of a second period. A query that has seen only one key may be orthogonal to
        # it. Then its result is as small as rounding errors, which a norm with the published epsilon would amplify.
        sizes = sizes | {"num_hidden_layers": 5, "rms_norm_eps": 0.01}
    small = fields | {name: value for name, value in sizes.items() if fields.get(name) is not None}
    for name in ("rope_scaling", "rope_parameters"):
        small[name] = _short_lists(fields[name]) if fields.get(name) else fields.get(name)
        small = {key: value for key, value in small.items() if key in fields}
    for name in ("layer_types", "no_rope_layers"):
        if name in fields:
            small[name] = fields[name][: small["num_hidden_layers"]]
    if "attention_types" in fields:
        small |= {"attention_types": [[["global", "local"], 2]], "attention_layers": ["global", "local"] * 2}
    if fields.get("sliding_window") is not None:
        small["sliding_window"] = 7
    if "linear_attn_config" in fields:
        small["linear_attn_config"] = fields["linear_attn_config"] | {
            "full_attn_layers": [4], "kda_layers": [1, 2, 3, 5], "head_dim": 4, "num_heads": 3,
        }  # fmt: skip
    if "roberta" in fields["model_type"]:  # positions begin after this id
        small["pad_token_id"] = 1
    if "attn_type_list" in fields:
        small["attn_type_list"] = [1] * small["num_hidden_layers"]
    if "use_mtp" in fields:  # otherwise `transformers` looks for layers that it does not read
        small["use_mtp"] = False
    if "bad_words_ids" in fields:
        small["bad_words_ids"] = [[VOCAB - 1]]
    return small


def _short_lists(scaling):
    """Return divisors of longrope for the 3 rotated pairs: the fastest, the slowest and one in between."""
    lists = {
        name: value[:: len(value) // 2 - 1][:3]
        for name, value in scaling.items()
        if name.endswith("_factor") and isinstance(value, list)
    }
    lists |= {"original_max_position_embeddings": 24} if lists else {}
    return scaling | {name: value for name, value in lists.items() if name in scaling}


@torch.no_grad()
def release(path, seed, folder, **changes):
    """Return our model and that of `transformers`, loaded from the folder of a release with tiny sizes.

    changes: fields that replace those of the release.
    """
    fields = tiny(json.loads(path.read_text())) | changes
    config = transformers.CONFIG_MAPPING[fields["model_type"]].from_dict(fields, attn_implementation="eager")
    theirs = class_of(fields)(config).float().eval()
    if fields["model_type"] == "t5" and not fields.get("tie_word_embeddings", True):
        theirs.lm_head.weight = torch.nn.Parameter(torch.empty_like(theirs.lm_head.weight))  # it is tied even so
    torch.manual_seed(seed)
    for name, parameter in theirs.named_parameters():
        parameter.normal_(std=0.2)
        kind = fields["model_type"]
        centred = "gemma" in kind or (kind.startswith(("qwen3_next", "qwen3_5")) and "linear" not in name)
        if "norm" in name.lower() and name.endswith("weight") and not centred:  # gains but not biases
            parameter += 1
    if fields["model_type"] in ("marian", "bart"):
        theirs.final_logits_bias.normal_()
    if fields["model_type"] == "marian":
        for stack in (theirs.model.encoder, theirs.model.decoder):
            stack.embed_positions.weight.copy_(stack.embed_positions.create_weight())
    for name, buffer in theirs.named_buffers():
        if "correction_bias" in name:
            buffer.normal_(std=0.2)
    theirs.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(fields, indent=2))
    return load_pretrained(folder), theirs


QUERIES_AND_KEYS = re.compile(
    r"\b([qk]_proj|[qk]_b_proj|kv_b_proj|[qk]_norm|[qk]_layernorm|query|key|[qk]_lin|c_attn|qkv_proj|query_key_value"
    r"|Wqkv|(SelfAttention|EncDecAttention)\.[qk])\."
)


def sharpen(theirs, factor):
    """Multiply the attention scores of a model of `transformers` by a factor."""
    for name, parameter in theirs.named_parameters():
        if QUERIES_AND_KEYS.search(name):
            parameter *= factor**0.5


def watched(monkeypatch):
    """Return a list to which every call of `attend` appends its largest score."""
    scores = []

    def watching(q, k, v, **options):
        keys = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        width = options.get("score_width") or q.shape[-1]
        scores.append(float((q @ keys.mT).abs().max()) / width**0.5)
        return attend(q, k, v, **options)

    for module in (attention, latent):
        monkeypatch.setattr(module, "attend", watching)
    return scores


def ids(rows, count, seed):
    return torch.randint(3, VOCAB - 1, (rows, count), generator=torch.Generator().manual_seed(seed))


def in_pieces(model, tokens, cache, draw, **extra):
    """Return the logits of the tokens, which are read in pieces of random lengths with a cache."""
    steps, at = [], 0
    while at < tokens.shape[1]:
        count = draw.choice([1, 1, 2, 5, 9])
        out = model(tokens[:, at : at + count], cache=cache, **extra)
        cache, at = out.cache, at + count
        steps.append(out.logits)
    return torch.cat(steps, 1)


def texts(ours, theirs, steps=12):
    """Return both models' greedy continuations: ours for a batch of unequal lengths, theirs one by one."""
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5]]
    how = {"max_new_tokens": steps, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    if ours.config.stack == "encoder_decoder":
        start = theirs.config.decoder_start_token_id
        found = complete(ours, source=prompts, start=start, max_new_tokens=steps, sampling=Sampling(temperature=0))
        how |= {
            "num_beams": 1,
            "no_repeat_ngram_size": 0,
            "decoder_start_token_id": start,
            "bad_words_ids": None,
            "forced_eos_token_id": None,
        }
        return found, [theirs.generate(torch.tensor([source]), **how)[0, 1:].tolist() for source in prompts]
    found = complete(ours, prompts, max_new_tokens=steps, sampling=Sampling(temperature=0))
    wanted = [theirs.generate(torch.tensor([prompt]), **how)[0, len(prompt) :].tolist() for prompt in prompts]
    return found, wanted


def same_function(ours, theirs):
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens)[0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def same_logits_whole_cached_and_padded(theirs, folder):
    """Check that a decoder of `transformers`, saved and loaded by us, computes the same logits."""
    theirs.save_pretrained(folder)
    ours = load_pretrained(folder)
    assert not ours.training
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    tokens = torch.randint(0, theirs.config.vocab_size, (3, 17))
    expected = theirs(tokens).logits
    assert expected.std() > 0.5  # so large that 1e-5 is a tight bound
    torch.testing.assert_close(ours(tokens).logits, expected, rtol=1e-5, atol=1e-5)

    cache = KVCache.create(ours.config, 3, 17)
    for chunk in tokens.split([6, 1, 7, 3], dim=1):
        out = ours(chunk, cache=cache)
        cache = out.cache
        there = slice(cache.filled - chunk.shape[1], cache.filled)
        torch.testing.assert_close(out.logits, expected[:, there], rtol=1e-5, atol=1e-5)

    lengths = torch.tensor([5, 17, 9])
    padded = tokens.masked_fill(torch.arange(17) >= lengths[:, None], 0)
    logits = ours(padded, attention_mask=torch.arange(17) < lengths[:, None]).logits
    for row, length in enumerate(lengths.tolist()):
        alone = theirs(tokens[row : row + 1, :length]).logits[0]
        torch.testing.assert_close(logits[row, :length], alone, rtol=1e-5, atol=1e-5)


def same_texts_from_a_ragged_batch(theirs, folder):
    """Check that a batch of several prompts gives the same texts as `transformers` gives for each one separately."""
    theirs.save_pretrained(folder)
    ours, wanted = texts(load_pretrained(folder), theirs)
    assert ours == wanted


def refused_by_name(theirs, change, named, folder):
    """Check that a field that would change the function is rejected with a message that contains these words."""
    theirs.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"config\.json: ") as caught:
        load_pretrained(folder)
    assert named in str(caught.value), str(caught.value)


def refused(name, change, named, folder):
    """Check that a release with a field that would change the function is rejected with these words."""
    (path,) = [path for path in PUBLISHED if path.stem == name]
    release(path, 0, folder)
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | change))
    with pytest.raises(ValueError, match=r"config\.json: ") as caught:
        load_pretrained(folder)
    assert named in str(caught.value), str(caught.value)


def as_without(theirs, names, folder):
    """Check that a file without these fields means the same, because each has its published default."""
    theirs.save_pretrained(folder)
    said = load_pretrained(folder).config
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({name: fields[name] for name in fields if name not in names}))
    assert load_pretrained(folder).config == said


@torch.no_grad()
def seen_in_the_logits(name, group, fields, folder, more_than=1e-3):
    """Check that the logits change if a feature that the release adds is removed.

    Otherwise the equality with `transformers` would not prove anything about this feature.
    """
    (path,) = [path for path in PUBLISHED if path.stem == name]
    ours, _ = release(path, 0, folder)
    other = Transformer(ours.config.with_(**{group: replace(getattr(ours.config, group), **fields)})).eval()
    other.load_state_dict(ours.state_dict(), strict=False)
    tokens = ids(1, TOKENS, 0)
    assert (other(tokens).logits - ours(tokens).logits).abs().max() > more_than
