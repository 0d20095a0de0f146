"""Phi-3 and 4: lists of divisors, within the first context and beyond it; `test_releases` tests the rest."""

import json

import pytest
import torch
from families.compared import PUBLISHED, TOKENS, ids, release, seen_in_the_logits

from companion.families.pretrained import load_pretrained
from companion.generation.generate import complete
from companion.generation.sampling import Sampling

FIRST = 10
"""Tokens of the first context in these tests."""


def with_lists(folder, seed=0, **changes):
    """Return a small Phi-4-mini with a first context of ten tokens and with lists that matter within it too."""
    (path,) = [path for path in PUBLISHED if path.stem == "phi-4-mini"]
    _, theirs = release(path, seed, folder)
    fields = json.loads((folder / "config.json").read_text())
    scaling = {"type": "longrope", "short_factor": [1.0, 1.5, 4.0], "long_factor": [1.1, 3.0, 20.0]}
    fields |= {"original_max_position_embeddings": FIRST, "rope_scaling": scaling} | changes
    (folder / "config.json").write_text(json.dumps(fields))
    theirs = type(theirs).from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    return load_pretrained(folder), theirs


@pytest.mark.parametrize(
    ("name", "group", "fields"),
    [
        ("phi-4-mini", "positions", {"partial_rotary_factor": 1.0, "scaling": None}),
        ("phi-4-mini", "positions", {"scaling": None}),  # the scaling factor of attention, for short texts
        ("phi-3-mini-4k", "attention", {"window": None}),
    ],
)
def test_what_it_adds_is_seen_in_the_logits(name, group, fields, tmp_path):
    seen_in_the_logits(name, group, fields, tmp_path)


@pytest.mark.parametrize("count", [FIRST, FIRST + 1, TOKENS])
@torch.no_grad()
def test_texts_within_the_first_context_and_beyond_it_turn_by_other_lists(count, tmp_path):
    ours, theirs = with_lists(tmp_path)
    tokens = ids(2, count, 3)
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)


def test_a_text_that_grows_beyond_the_first_context_is_read_anew(tmp_path):
    ours, theirs = with_lists(tmp_path, seed=1, sliding_window=None)
    prompts = [
        [3, 1, 4, 1, 5, 9, 2],
        [9],
        [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8],
    ]  # the last one is longer than the first context from the start
    found = complete(ours, prompts, max_new_tokens=14, sampling=Sampling(temperature=0))
    for prompt, text in zip(prompts, found, strict=True):
        how = {"max_new_tokens": 14, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        whole = theirs.generate(torch.tensor([prompt]), **how)
        assert text == whole[0, len(prompt) :].tolist()


def test_the_first_names_of_the_kind_mean_the_same(tmp_path):
    ours, _ = with_lists(tmp_path)
    config = tmp_path / "config.json"
    fields = json.loads(config.read_text())
    for name in ("su", "yarn"):
        config.write_text(json.dumps(fields | {"rope_scaling": fields["rope_scaling"] | {"type": name}}))
        assert load_pretrained(tmp_path).config == ours.config


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"long_factor": None}, "rope_scaling.long_factor is missing"),
        ({"long_factor": [1.0, "x", 2.0]}, "long_factor=[1.0, 'x', 2.0]: expected a list of finite numbers"),
        ({"long_factor": [1.0, 2.0]}, "expected the same number of entries as short, 3"),
        ({"short_factor": [1.0], "long_factor": [1.0]}, "expected a number for each of the 3 rotated pairs"),
        ({"short_factor": [1.0, 0.0, 2.0]}, "expected a number > 0 for each rotated pair"),
        (
            {"original_max_position_embeddings": 12},
            "=12: expected 10, as original_max_position_embeddings outside of it",
        ),
        ({"type": "llama3"}, "rope_scaling.rope_type='llama3': expected one of 'default', 'longrope'"),
    ],
)
def test_lists_that_cannot_be_are_refused_by_name(change, named, tmp_path):
    with_lists(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"rope_scaling": fields["rope_scaling"] | change}))
    with pytest.raises(ValueError, match=r"config\.json: ") as caught:
        load_pretrained(tmp_path)
    assert named in str(caught.value)
