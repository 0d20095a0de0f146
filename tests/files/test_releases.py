"""Releases as they lie on the hub: their configurations, over random weights, give the logits of `transformers`.

`tests/published` holds the fields of each release as they were published. A test puts small numbers where a size is,
and leaves every other field alone. Where the fields are from:

    every field compared with a public copy of the file: gemma-2-2b, llama-3.1-8b, llama-3.2-1b, mistral-7b-v0.1,
    mixtral-8x7b, qwen2.5-0.5b, qwen3-30b-a3b, smollm2-135m, tinyllama-1.1b
    so compared the sizes and most of the rest: distilgpt2, gemma-3-270m, gemma-3-1b, llama-2-7b, olmo-2-1b,
    opus-mt-en-de, opus-mt-fr-en, smollm3-3b
    from knowledge, beside their kin above: bert-base-uncased, bert-large-cased, gpt2, gpt2-xl, mistral-7b-v0.3,
    opus-mt-de-en, opus-mt-tc-big-en-fi (its number of parameters is the published one), qwen3-0.6b

What stands there by-5.1 and by-5.7 is how those versions of `transformers` write such a file.
"""

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the import: nothing here may look for a network
import transformers

from companion import KVCache, Transformer
from companion.config.presets import PRESETS, RELEASES
from companion.costs.account import parameters
from companion.files.published.folder import Fields
from companion.files.published.pretrained import READERS, load_pretrained
from companion.layers import cache as caches

PUBLISHED = sorted((Path(__file__).parents[1] / "published").glob("*.json"))
SEEDS = range(4)
VOCAB, TOKENS = 41, 24
SIZES = {
    "vocab_size": VOCAB, "decoder_vocab_size": VOCAB, "n_embd": 20, "n_head": 4, "n_layer": 3, "n_positions": 32,
    "n_ctx": 32, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 20, "max_position_embeddings": 32, "query_pre_attn_scalar": 7,
    "moe_intermediate_size": 12, "num_experts": 5, "num_local_experts": 5, "num_experts_per_tok": 2, "d_model": 20,
    "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 36, "decoder_ffn_dim": 36,
}  # fmt: skip
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": VOCAB - 1, "decoder_start_token_id": VOCAB - 1}
IDS |= {"forced_eos_token_id": 2, "unk_token_id": 3}


def tiny(fields):
    """The fields of a release with small sizes, ids that fit them, and lists as long as there are layers."""
    sizes = SIZES | IDS
    if "num_key_value_heads" in fields and fields["num_key_value_heads"] == fields["num_attention_heads"]:
        sizes = sizes | {"num_key_value_heads": 6}
    if "sliding_window_pattern" in fields or "_sliding_window_pattern" in fields:
        sizes = sizes | {"num_hidden_layers": 8}  # each kind of layer, and the pattern begun anew
    elif "no_rope_layers" in fields:
        sizes = sizes | {"num_hidden_layers": 5}
    small = fields | {name: value for name, value in sizes.items() if fields.get(name) is not None}
    for name in ("layer_types", "no_rope_layers"):
        if name in fields:
            small[name] = fields[name][: small["num_hidden_layers"]]
    if fields.get("sliding_window") is not None:
        small["sliding_window"] = 7
    if "bad_words_ids" in fields:
        small["bad_words_ids"] = [[VOCAB - 1]]
    return small


@torch.no_grad()
def release(path, seed, folder):
    """What `transformers` makes of a release with tiny sizes, and what we load of the same folder."""
    fields = tiny(json.loads(path.read_text()))
    config = transformers.CONFIG_MAPPING[fields["model_type"]].from_dict(fields, attn_implementation="eager")
    theirs = getattr(transformers, fields["architectures"][0])(config).float().eval()
    torch.manual_seed(seed)
    for name, parameter in theirs.named_parameters():
        parameter.normal_(std=0.2)
        if parameter.ndim == 1 and "norm" in name.lower() and "gemma" not in fields["model_type"]:
            parameter += 1
    if fields["model_type"] == "marian":
        theirs.final_logits_bias.normal_()
        for stack in (theirs.model.encoder, theirs.model.decoder):
            stack.embed_positions.weight.copy_(stack.embed_positions.create_weight())
    theirs.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(fields, indent=2))
    return load_pretrained(folder), theirs


def ids(rows, count, seed):
    return torch.randint(3, VOCAB - 1, (rows, count), generator=torch.Generator().manual_seed(seed))


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def in_pieces(model, tokens, cache, draw, **extra):
    """The logits of the tokens, given to the cache in pieces of random lengths."""
    steps, at = [], 0
    while at < tokens.shape[1]:
        count = draw.choice([1, 1, 2, 5, 9])
        out = model(tokens[:, at : at + count], cache=cache, **extra)
        cache, at = out.cache, at + count
        steps.append(out.logits)
    return torch.cat(steps, 1)


def go_on_ragged(model, texts, wanted, lengths, **extra):
    """Prompts of unequal lengths in one padded batch, then a token a step: each row has the logits of its text."""
    prompts = torch.zeros(len(texts), max(lengths), dtype=torch.long)
    for row, (text, n) in enumerate(zip(texts, lengths, strict=True)):
        prompts[row, :n] = text[:n]
    out = model(prompts, cache=KVCache.create(model.config, len(texts), TOKENS), **extra)
    for row, n in enumerate(lengths):
        close(out.logits[row, :n], wanted[row, :n])
    cache = out.cache.rewind(torch.tensor(lengths))
    for step in range(TOKENS - max(lengths)):
        new = torch.stack([text[n + step] for text, n in zip(texts, lengths, strict=True)])
        out = model(new[:, None], cache=cache, **extra)
        cache = out.cache
        for row, n in enumerate(lengths):
            close(out.logits[row, 0], wanted[row, n + step])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("path", PUBLISHED, ids=[path.stem for path in PUBLISHED])
@torch.no_grad()
def test_a_release_gives_the_logits_of_transformers(path, seed, tmp_path, monkeypatch):
    monkeypatch.setattr(caches, "BACK", 2)  # so that local layers roll within a short text
    ours, theirs = release(path, seed, tmp_path)
    kind, draw, tokens = ours.config.stack, random.Random(seed), ids(3, TOKENS, seed)
    lengths = [draw.randint(1, TOKENS - 4) for _ in range(3)]
    real = torch.arange(TOKENS) < torch.tensor(lengths)[:, None]
    if kind == "encoder":
        segments = (torch.arange(TOKENS) > 9).long().expand(3, -1)
        wanted = theirs(tokens, token_type_ids=segments).logits
        close(ours(tokens, segments=segments).logits, wanted)
        wanted = theirs(tokens, attention_mask=real.long()).logits
        close(ours(tokens, real=real).logits[real], wanted[real])
        return
    extra, theirs_extra = {}, {}
    if kind == "encoder_decoder":
        source = ids(3, TOKENS, seed + 9)
        extra, theirs_extra = {"source": ours.encode(source, real=real)}, {"attention_mask": real.long()}
        wanted = theirs(source, decoder_input_ids=tokens, **theirs_extra).logits
    else:
        wanted = theirs(tokens).logits
    close(ours(tokens, **extra).logits, wanted)
    close(in_pieces(ours, tokens, KVCache.create(ours.config, 3, TOKENS), draw, **extra), wanted)
    go_on_ragged(ours, tokens, wanted, lengths, **extra)


@pytest.mark.parametrize("path", PUBLISHED, ids=[path.stem for path in PUBLISHED])
def test_the_number_of_parameters_is_that_of_transformers(path, tmp_path):
    """At the sizes that were published, without making the numbers. Marian's sinusoids are no parameters of ours, and
    the bias of its head is none of theirs, but a buffer."""
    said = json.loads(path.read_text())
    with torch.device("meta"):
        config = transformers.CONFIG_MAPPING[said["model_type"]].from_dict(said)
        theirs = getattr(transformers, said["architectures"][0])(config)
    (tmp_path / "config.json").write_text(path.read_text())
    fields, reader = Fields(tmp_path, said["model_type"]), READERS[said["model_type"]]
    given = {reader.rename(name): tensor for name, tensor in theirs.named_parameters()}
    counted = {name: tensor.numel() for name, tensor in given.items() if "embed_positions" not in name}
    bias = said["vocab_size"] if said["model_type"] == "marian" else 0
    assert parameters(fields.finish(lambda: reader.config(fields, given))).total == sum(counted.values()) + bias


# What a release has that LLaMA has not, each taken away: a group of the configuration, and its fields without it.
TAKEN = {
    "llama-3.2-1b": ("positions", {"scaling": None}),
    "smollm3-3b": ("positions", {"pattern": (True,)}),
    "mistral-7b-v0.1": ("attention", {"window": None}),
    "qwen2.5-0.5b": ("attention", {"bias": False}),
    "qwen3-0.6b": ("attention", {"qk_norm": None}),
    "olmo-2-1b": ("norm", {"placement": "pre"}),
    "gemma-2-2b": ("attention", {"score_cap": None}),
    "gemma-3-270m": ("norm", {"unit_offset": False}),
    "gemma-3-1b": ("positions", {"base": 10000.0}),
}


@pytest.mark.parametrize(("name", "taken"), TAKEN.items(), ids=TAKEN)
@torch.no_grad()
def test_what_a_release_adds_is_seen_in_its_logits(name, taken, tmp_path):
    """The equality above would not hold without it: what is compared is not too small to show a difference."""
    (path,) = [path for path in PUBLISHED if path.stem == name]
    ours, _ = release(path, 0, tmp_path)
    group, fields = taken
    other = Transformer(ours.config.with_(**{group: replace(getattr(ours.config, group), **fields)})).eval()
    other.load_state_dict(ours.state_dict(), strict=False)
    tokens = ids(1, TOKENS, 0)
    assert (other(tokens).logits - ours(tokens).logits).abs().max() > 1e-3


@pytest.mark.parametrize("name", [path.stem for path in PUBLISHED if path.stem in PRESETS | RELEASES])
def test_the_presets_are_what_the_published_fields_say(name, tmp_path):
    (tmp_path / "config.json").write_text((PUBLISHED[0].parent / f"{name}.json").read_text())
    kind = json.loads((tmp_path / "config.json").read_text())["model_type"]
    fields = Fields(tmp_path, kind)
    said = fields.finish(lambda: READERS[kind].config(fields, {}))
    assert said == (PRESETS | RELEASES)[name]


def test_every_release_with_a_preset_has_its_published_fields_here():
    assert set(RELEASES) <= {path.stem for path in PUBLISHED}
