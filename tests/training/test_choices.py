"""Log-likelihoods of choices, compared with a plain forward pass over each prompt with each choice."""

from __future__ import annotations

import pytest
import torch

from companion import AttentionConfig, FeedForwardConfig, KVCache, ModelConfig, Transformer, WindowConfig
from companion.config.model import PositionConfig, RotaryScaling
from companion.training.choices import log_likelihoods

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6], [7]]
CHOICES = [[[5], [3, 5, 8], [9, 7]], [[2, 2], [2, 2, 2, 2, 1]], [[10], [4]]]


def small(**more) -> Transformer:
    torch.manual_seed(0)
    shape = {"attention": AttentionConfig(4, 2), "feed_forward": FeedForwardConfig(24)} | more
    return Transformer(ModelConfig(vocab=13, d_model=16, layers=2, context=32, **shape)).eval()


@torch.no_grad()
def plain(model: Transformer, prompt: list[int], choice: list[int]) -> float:
    logs = model(torch.tensor([prompt + choice])).logits[0].log_softmax(-1)
    return sum(logs[len(prompt) - 1 + at, token].item() for at, token in enumerate(choice))


@pytest.mark.parametrize("batch", (1, 2, 16))
@pytest.mark.parametrize("attention", (AttentionConfig(4, 2), AttentionConfig(4, 2, window=WindowConfig(4))))
def test_scores_are_those_of_a_forward_pass_over_prompt_and_choice(batch, attention) -> None:
    model = small(attention=attention)
    found = log_likelihoods(model, PROMPTS, CHOICES, batch=batch)
    for prompt, several, scores in zip(PROMPTS, CHOICES, found, strict=True):
        assert scores == pytest.approx([plain(model, prompt, choice) for choice in several], abs=1e-5)


def test_text_before_the_prompts_is_read_from_a_cache_and_stays_in_it() -> None:
    model, before = small(), [11, 12, 10, 8]
    with torch.no_grad():
        read = model(torch.tensor([before]), cache=KVCache.create(model.config, 1, 20)).cache
    for _ in range(2):
        found = log_likelihoods(model, PROMPTS, CHOICES, read=read)
        for prompt, several, scores in zip(PROMPTS, CHOICES, found, strict=True):
            assert scores == pytest.approx([plain(model, before + prompt, one) for one in several], abs=1e-5)


def test_rotations_that_depend_on_the_length_of_a_text_do_not_depend_on_its_padding() -> None:
    model = small(positions=PositionConfig("rotary", scaling=RotaryScaling("dynamic", 2.0, 3)))
    together = log_likelihoods(model, PROMPTS, CHOICES)
    for prompt, several, scores in zip(PROMPTS, CHOICES, together, strict=True):
        alone = [log_likelihoods(model, [prompt], [[choice]])[0][0] for choice in several]
        assert scores == pytest.approx(alone, abs=1e-5)


def test_a_choice_is_never_more_likely_than_one_with_which_it_begins() -> None:
    short, long = log_likelihoods(small(), [[3, 1]], [[[4, 1], [4, 1, 5]]])[0]
    assert long < short


@pytest.mark.parametrize(
    ("given", "says"),
    (
        ({"prompts": [[]]}, r"prompts\[0\]: expected at least one token"),
        ({"choices": [[]]}, r"choices\[0\]: expected at least one choice"),
        ({"choices": [[[2], []]]}, r"choices\[0\]: expected at least one choice, each of at least one token"),
        ({"choices": []}, "choices: expected a list for each of 1 prompts, got 0"),
        ({"batch": 0}, "batch: expected at least 1, got 0"),
    ),
)
def test_bad_input_is_named(given, says) -> None:
    with pytest.raises(ValueError, match=says):
        log_likelihoods(small(), **{"prompts": [[1]], "choices": [[[2]]], **given})


def test_caches_and_models_that_do_not_fit_are_named() -> None:
    model = small()
    with pytest.raises(ValueError, match="read: expected one row with room for 4 tokens, got 1 with room for 3"):
        log_likelihoods(model, [[1]], [[[2, 3, 4]]], read=KVCache.create(model.config, 1, 3))
    with pytest.raises(ValueError, match="read: expected one row .* got 2"):
        log_likelihoods(model, [[1]], [[[2]]], read=KVCache.create(model.config, 2, 9))
    with pytest.raises(ValueError, match="model: expected a decoder, got one with stack='encoder'"):
        log_likelihoods(small(stack="encoder"), [[1]], [[[2]]])
