"""Releases on the hub: with random weights, their configurations give the logits of `transformers`.

`tests/published` holds the fields of each release as they were published. A test replaces the sizes by small numbers
and leaves every other field unchanged. The sources of the fields are:

    all fields were compared with a public copy of the file: ernie-4.5-0.3b, gemma-2-2b, glm-4.5-air, gpt-oss-120b
        (without the field of its quantization), granite-3.3-8b, llama-3.1-8b, llama-3.2-1b, mistral-7b-v0.1,
        mixtral-8x7b, phi-3-mini-4k, phi-4-mini, qwen2.5-0.5b, qwen3-30b-a3b, smollm2-135m, tinyllama-1.1b
    the sizes and most other fields were compared: distilgpt2, exaone-4.0-32b, gemma-3-270m, gemma-3-1b, glm-4-9b-0414,
        glm-4-9b-chat, granite-4.0-micro, granite-4.1-8b, llama-2-7b, olmo-2-1b, olmo-3-7b, opus-mt-en-de,
        opus-mt-fr-en, olmoe-1b-7b, seed-oss-36b, smollm3-3b
    written from memory, like the related files above: bert-base-uncased, bert-large-cased, exaone-4.0-1.2b, gpt2,
        gpt2-xl, mistral-7b-v0.3, opus-mt-de-en, opus-mt-tc-big-en-fi and phi-4 (their numbers of parameters are the
        published ones), qwen3-0.6b, glm-4.5, gpt-oss-20b, qwen3-next-80b-a3b (its number of parameters is the published
        one) and kimi-linear-48b-a3b (so is its number, without the biases that balance experts, which are buffers); the
        text models of Llama 4, with the max_position_embeddings of one chunk, because texts may not be longer here;
        bart-base (with the class that has a head, and without forced_bos_token_id), command-r, command-r7b,
        distilbert-base, flan-t5-small, gemma-2b, glm-4.7-flash, gpt-neo-125m, minimax-m2 (without the field of its
        quantization), modernbert-base, opt-125m, pythia-70m, roberta-base, starcoder2-3b, t5-small, tinystories-33m and
        xlm-roberta-base
    the defaults of transformers 5.24 were used: qwen3.5-9b and qwen3.5-35b-a3b, with the sections of a picture's
        positions

Entries named by-5.1, by-5.7 and by-5.24 are files as those versions of `transformers` write them.
"""

import json
import random

import pytest
import torch
import transformers
from families.compared import PUBLISHED, TOKENS, class_of, ids, in_pieces, release, sharpen, texts, watched

from companion import KVCache
from companion.costs.account import parameters
from companion.families.pretrained import load_pretrained
from companion.families.registry import families, presets
from companion.files.published.checkpoint_folder import Fields
from companion.layers import rolling_cache as caches

OF_EACH = {json.loads(path.read_text())["model_type"]: path for path in reversed(PUBLISHED)}
"""One release of every family."""
UNREAD = {"opt": 2, "roberta": 2, "xlm-roberta": 2, "bart": 4}
"""Rows of tables of positions that no token reads."""
WRITERS = [path for path in PUBLISHED if families()[json.loads(path.read_text())["model_type"]].writes]


def close(ours, theirs, config):
    """Check that logits are equal, with a larger tolerance after norms that amplify rounding errors.

    A norm after a sub-layer divides by the size of its output, however small it is. Where it is small, the logits of
    both are 6e-5 from those of double precision, and as far from each other. The norm of what a linear-attention layer
    reads from its state does the same (2e-5).
    """
    bound = 1e-4 if config.norm.placement == "after" or config.linear_config is not None else 1e-5
    torch.testing.assert_close(ours, theirs, atol=bound, rtol=1e-5)


def go_on_ragged(model, texts, wanted, lengths, **extra):
    """Continue prompts of unequal lengths in a padded batch, one token per step, and check the logits of each row."""
    prompts = torch.zeros(len(texts), max(lengths), dtype=torch.long)
    for row, (text, n) in enumerate(zip(texts, lengths, strict=True)):
        prompts[row, :n] = text[:n]
    out = model(prompts, cache=KVCache.create(model.config, len(texts), TOKENS), **extra)
    for row, n in enumerate(lengths):
        close(out.logits[row, :n], wanted[row, :n], model.config)
    cache = out.cache.rewind(torch.tensor(lengths))
    for step in range(TOKENS - max(lengths)):
        new = torch.stack([text[n + step] for text, n in zip(texts, lengths, strict=True)])
        out = model(new[:, None], cache=cache, **extra)
        cache = out.cache
        for row, n in enumerate(lengths):
            close(out.logits[row, 0], wanted[row, n + step], model.config)


@pytest.mark.parametrize("path", PUBLISHED, ids=[path.stem for path in PUBLISHED])
@torch.no_grad()
def test_a_release_gives_the_logits_of_transformers(path, tmp_path, monkeypatch):
    """Each release has its own weights, texts and lengths; `python -m families.table --seeds` draws others."""
    monkeypatch.setattr(caches, "BACK", 2)  # so that local layers roll even within a short text
    seed = PUBLISHED.index(path)
    ours, theirs = release(path, seed, tmp_path)
    kind, draw, tokens = ours.config.stack, random.Random(seed), ids(3, TOKENS, seed)
    lengths = [draw.randint(1, TOKENS - 4) for _ in range(3)]
    real = torch.arange(TOKENS) < torch.tensor(lengths)[:, None]
    if kind == "encoder":
        several = ours.config.embedding.segments > 1
        segments = (torch.arange(TOKENS) > 9).long().expand(3, -1) if several else None
        wanted = theirs(tokens, **({"token_type_ids": segments} if several else {})).logits
        close(ours(tokens, segments=segments).logits, wanted, ours.config)
        wanted = theirs(tokens, attention_mask=real.long()).logits
        close(ours(tokens, attention_mask=real).logits[real], wanted[real], ours.config)
        return
    extra, theirs_extra = {}, {}
    if kind == "encoder_decoder":
        source = ids(3, TOKENS, seed + 9)
        extra, theirs_extra = {"source": ours.encode(source, attention_mask=real)}, {"attention_mask": real.long()}
        wanted = theirs(source, decoder_input_ids=tokens, **theirs_extra).logits
    else:
        wanted = theirs(tokens).logits
    close(ours(tokens, **extra).logits, wanted, ours.config)
    close(in_pieces(ours, tokens, KVCache.create(ours.config, 3, TOKENS), draw, **extra), wanted, ours.config)
    go_on_ragged(ours, tokens, wanted, lengths, **extra)


@pytest.mark.parametrize("path", WRITERS, ids=[path.stem for path in WRITERS])
def test_a_release_writes_what_transformers_writes(path, tmp_path, monkeypatch):
    """Several prompts of unequal lengths are continued greedily, ours as a batch and theirs separately."""
    monkeypatch.setattr(caches, "BACK", 2)
    for seed in range(5, 9):  # random weights may generate the same text after every prompt, which would prove little
        ours, theirs = texts(*release(path, seed, tmp_path))
        assert ours == theirs
        if len({tuple(text) for text in ours}) > 1:
            return
    raise AssertionError(f"{path.stem}: the same text after every prompt, from four models")


@pytest.mark.parametrize("kind", sorted(OF_EACH))
@torch.no_grad()
def test_logits_equal_where_attention_scores_reach_the_hundreds(kind, tmp_path, monkeypatch):
    """With the weights as drawn, scores stay below ten, so that an unwanted limit on scores would go unnoticed."""
    _, theirs = release(OF_EACH[kind], 0, tmp_path)
    scores = watched(monkeypatch)

    def compared():
        theirs.save_pretrained(tmp_path / "sharp")
        (tmp_path / "sharp" / "config.json").write_text((tmp_path / "config.json").read_text())
        scores.clear()
        ours, tokens = load_pretrained(tmp_path / "sharp"), ids(3, TOKENS, 0)
        if ours.config.stack == "encoder_decoder":
            wanted = theirs(tokens, decoder_input_ids=tokens).logits
            return ours(tokens, source=tokens).logits, wanted
        wanted = theirs(tokens)
        return ours(tokens).logits, wanted.prediction_logits if "prediction_logits" in wanted else wanted.logits

    ours, wanted = compared()
    for _ in range(5):  # more than once if part of a key is not scaled, or a gain is one plus its weight
        if max(scores) < 200:
            sharpen(theirs, 300 / max(scores))
            ours, wanted = compared()
    assert 200 < max(scores) < 2000
    # T5's two stacks amplify rounding a thousandfold, by an amount that depends on the processor (0.0007 to 0.003).
    limit = 1e-2 if kind == "t5" else 1e-3
    assert (ours - wanted).std() < limit * wanted.std()


@pytest.mark.parametrize("path", PUBLISHED, ids=[path.stem for path in PUBLISHED])
def test_the_number_of_parameters_is_that_of_transformers(path, tmp_path):
    """Count at the published sizes, without allocating the weights.

    Marian's sinusoids are not parameters in our model, and the bias of its head is a buffer in theirs. Rows of
    positions that no token uses are left out.
    """
    said = json.loads(path.read_text())
    with torch.device("meta"):
        config = transformers.CONFIG_MAPPING[said["model_type"]].from_dict(said)
        theirs = class_of(said)(config)
    (tmp_path / "config.json").write_text(path.read_text())
    family = families()[said["model_type"]]
    fields = Fields(tmp_path, family.kind, family.table)
    given = {family.ours(name): tensor for name, tensor in theirs.named_parameters()}
    counted = sum(tensor.numel() for tensor in given.values())
    kind, ours = said["model_type"], fields.finish(lambda: family.config(fields, given))
    if kind == "marian":
        counted += said["vocab_size"] - 2 * ours.context * ours.d_model
    assert parameters(ours).total == counted - UNREAD.get(kind, 0) * ours.d_model


@pytest.mark.parametrize("name", [path.stem for path in PUBLISHED if path.stem in presets()])
def test_the_presets_are_what_the_published_fields_say(name, tmp_path):
    (tmp_path / "config.json").write_text((PUBLISHED[0].parent / f"{name}.json").read_text())
    kind = json.loads((tmp_path / "config.json").read_text())["model_type"]
    family = families()[kind]
    fields = Fields(tmp_path, kind, family.table)
    wanted = presets()[name].config
    assert fields.finish(lambda: family.config(fields, family.ends(wanted))) == wanted
