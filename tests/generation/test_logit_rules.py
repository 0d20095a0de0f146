"""Logits processors and sampling, compared with those of `transformers`, and stopping criteria."""

import math
import os

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the import, so that nothing here tries to use a network
from models import drawn
from theirs import gpt2, marian
from transformers import LogitsProcessorList
from transformers.generation import (
    LogitNormalization,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from companion import AttentionConfig, FeedForwardConfig, ModelConfig
from companion.families.pretrained import load_pretrained
from companion.generation.beam import beam_search
from companion.generation.generate import complete, generate_long
from companion.generation.logit_rules import Rules
from companion.generation.prefill_decode import NotFinite
from companion.generation.sampling import Sampling

VOCAB, STOP = 17, (3, 5)
TEXTS = [[4, 4, 9, 1, 4, 9], [2], [7, 8, 7, 8, 7], [0, 16, 5, 3, 3, 3, 3, 2]]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.9])
@pytest.mark.parametrize("no_repeat", [0, 1, 2, 3])
def test_rules_are_the_processors_of_transformers(penalty, no_repeat, seed):
    torch.manual_seed(seed)
    rules = Rules(never=[11, 2], min_new_tokens=3, repetition_penalty=penalty, no_repeat=no_repeat, renormalised=True)
    for step in (1, 3):
        for text in TEXTS:
            scores = torch.randn(1, VOCAB)
            theirs = LogitsProcessorList(
                [
                    RepetitionPenaltyLogitsProcessor(penalty),
                    *([NoRepeatNGramLogitsProcessor(no_repeat)] if no_repeat else []),
                    NoBadWordsLogitsProcessor([[11], [2]]),
                    MinNewTokensLengthLogitsProcessor(max(len(text) - step, 0), 3, torch.tensor(STOP)),
                    LogitNormalization(),
                ]
            )
            expected = theirs(torch.tensor([text]), scores.clone())
            found = rules.apply(scores, min(step, len(text)), 9, STOP, [text])
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "settings", [(1.0, 20, None, 0.1), (0.6, None, 0.9, 0.2), (1.5, 5, 0.7, 0.05), (1, None, None, 1)]
)
def test_drawing_is_that_of_transformers_warpers_in_their_order(settings, seed):
    torch.manual_seed(seed)
    t, k, p, least = settings
    logits = 3 * torch.randn(5, 40)
    theirs = LogitsProcessorList([TemperatureLogitsWarper(float(t))])
    theirs += [TopKLogitsWarper(k)] if k else []
    theirs += [TopPLogitsWarper(p)] if p else []
    theirs += [MinPLogitsWarper(float(least))]
    expected = theirs(torch.zeros(5, 1, dtype=torch.long), logits.clone()).softmax(-1)
    found = Sampling(t, k, p, least).probabilities(logits)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    assert (found == 0).any()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Make models of `transformers`, and load ours from their files."""
    made = {}
    for name, theirs in (("gpt2", gpt2(eos_token_id=3)), ("marian", marian())):
        folder = tmp_path_factory.mktemp(name)
        theirs.save_pretrained(folder)
        made[name] = theirs, load_pretrained(folder)
    return made


SETTINGS = [
    ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
    ({"no_repeat_ngram_size": 2}, {"no_repeat": 2}),
    ({"min_new_tokens": 9}, {"min_new_tokens": 9}),
    (
        {"repetition_penalty": 0.8, "no_repeat_ngram_size": 3, "min_new_tokens": 4, "renormalize_logits": True},
        {"repetition_penalty": 0.8, "no_repeat": 3, "min_new_tokens": 4, "renormalised": True},
    ),
]


@pytest.mark.parametrize(("said", "rules"), SETTINGS, ids=lambda value: "+".join(value))
@pytest.mark.parametrize("name", ["gpt2", "marian"])
@pytest.mark.parametrize("beams", [1, 3])
def test_texts_are_those_of_transformers(name, beams, said, rules, pairs):
    theirs, ours = pairs[name]
    prompt = [7, 30, 7, 12, 9]
    more = {"do_sample": False, "num_beams": beams, "max_new_tokens": 12, "eos_token_id": 3, "pad_token_id": 0}
    found = theirs.generate(torch.tensor([prompt]), **more, **said)[0].tolist()
    found = found[1 if name == "marian" else len(prompt) :]
    found = found[: found.index(3) + 1] if 3 in found else found
    where = {"source": [prompt], "start": 46} if name == "marian" else {"prompts": [prompt]}
    settings = {**where, "max_new_tokens": 12, "stop": [3], "rules": Rules(**rules)}
    if beams == 1:
        assert complete(ours, **settings, sampling=Sampling(0)) == [found]
    else:
        (ours_found,) = beam_search(ours, width=beams, length_penalty=1.0, **settings)
        assert list(ours_found[0].tokens) == found


def small(context=8):
    sizes = {"attention": AttentionConfig(2), "feed_forward": FeedForwardConfig(12)}
    return drawn(ModelConfig(vocab=VOCAB, d_model=16, layers=2, context=context, **sizes))


def test_rules_look_back_past_what_has_fallen_out_of_the_context():
    """Without repetition, a text is at most as long as the vocabulary, although the context holds only eight tokens."""
    rows = zip(
        *generate_long(small(), [[5], [6, 9]], max_new_tokens=14, sampling=Sampling(0), rules=Rules(no_repeat=1)),
        strict=True,
    )
    for prompt, row in zip(([5], [6, 9]), rows, strict=True):
        assert len({*prompt, *row}) == len(prompt) + 14
    late = Rules(no_repeat=1, never=[0])
    with pytest.raises(ValueError, match="rules: every token is excluded at step 0 of row 0"):
        list(generate_long(small(), [[5]], max_new_tokens=30, sampling=Sampling(0), rules=late))


def test_until_ends_a_row_and_no_other():
    model = small(40)
    free = complete(model, [[5], [6]], max_new_tokens=12, seed=3)
    seen = []

    def until(row, new):
        seen.append((row, len(new)))
        return row == 1 and len(new) == 4

    bound = complete(model, [[5], [6]], max_new_tokens=12, seed=3, until=until)
    assert bound == [free[0], free[1][:4]]
    assert (1, 4) in seen and (1, 5) not in seen and (0, 12) in seen
    (long,) = zip(*generate_long(small(), [[6]], max_new_tokens=20, until=lambda _, new: len(new) == 13), strict=True)
    assert len(long) == 13
    (found,) = beam_search(model, [[5]], width=3, max_new_tokens=12, until=lambda _, new: len(new) == 5)
    assert {len(beam.tokens) for beam in found} == {5}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"repetition_penalty": 0}, "repetition_penalty=0: expected a number from 0.001 to 1000"),
        ({"repetition_penalty": True}, "repetition_penalty=True: expected a number from 0.001"),
        ({"no_repeat": -1}, "no_repeat=-1: expected a whole number >= 0"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        Rules(**rules)


def broken(where, value):
    """Return a model with a weight that is not finite, which cannot happen to a loaded model."""
    model = small(40)
    with torch.no_grad():
        model.get_parameter(where).view(-1)[3] = value
    return model


WAYS = {
    "greedy": lambda model: complete(model, [[5, 9]], sampling=Sampling(0), max_new_tokens=3),
    "drawn": lambda model: complete(model, [[5, 9]], max_new_tokens=3),
    "few": lambda model: complete(model, [[5, 9]], sampling=Sampling(0.5, 3, 0.9, 0.1), max_new_tokens=3),
    "penalised": lambda model: complete(model, [[5, 9]], rules=Rules(repetition_penalty=1.3), max_new_tokens=3),
    "long": lambda model: list(generate_long(model, [[5, 9]], max_new_tokens=3)),
    "searched": lambda model: beam_search(model, [[5, 9]], width=2, max_new_tokens=3),
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["decoder.blocks.1.feed_forward.outer.weight", "decoder.norm.weight"])
@pytest.mark.parametrize("way", WAYS)
def test_the_first_logit_that_is_no_number_ends_it_with_a_sentence(way, where, value):
    with pytest.raises(NotFinite, match=r"logits (of row 0 )?at step 0: expected finite values"):
        WAYS[way](broken(where, value))
