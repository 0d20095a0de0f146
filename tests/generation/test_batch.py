"""Continuous batching: whoever comes and goes beside it, a sequence's text is what it would be alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models import drawn

from companion import (
    AttentionConfig,
    Batch,
    EmbeddingConfig,
    FeedForwardConfig,
    LatentConfig,
    ModelConfig,
    PositionConfig,
    WindowConfig,
)
from companion.generation.generate import Rules, complete
from companion.generation.passes import NotFinite
from companion.generation.sampling import Sampling

CONFIG = ModelConfig(7, 8, 2, 24, AttentionConfig(2, 1, d_head=4), FeedForwardConfig(10))
LAYOUTS = [
    CONFIG,
    CONFIG.with_(positions=PositionConfig("learned")),
    CONFIG.with_(attention=replace(CONFIG.attention, window=WindowConfig(5, (True, False)))),
    CONFIG.with_(attention=AttentionConfig(2, d_head=4, latent=LatentConfig(3, 2))),
]


@pytest.fixture(scope="module")
def models():
    return [drawn(config, seed=i).double() for i, config in enumerate(LAYOUTS)]


def asked_at_random(random, config, slots):
    prompt = random.integers(config.vocab, size=random.integers(1, 9)).tolist()
    asked = {
        "max_new_tokens": int(random.integers(1, slots - len(prompt) + 1)),
        "sampling": [Sampling(0.0), Sampling(1.2), Sampling(0.9, top_k=4)][random.integers(3)],
        "seed": int(random.integers(9)),
        "stop": [(), {2}][random.integers(2)],
    }
    if random.integers(3) == 0:
        asked["rules"] = Rules(never=[3], min_new_tokens=2, repetition_penalty=1.3)
    return prompt, asked


@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
def test_a_sequence_that_comes_and_goes_writes_what_it_would_alone(models, layout):
    model, random, slots = models[layout], np.random.default_rng(layout), 20
    batch = Batch(model, rows=4, slots=slots)
    texts, alone, removed, busiest = {}, {}, 0, 0
    for _ in range(40):
        while batch.free and random.integers(2):
            prompt, asked = asked_at_random(random, model.config, slots)
            stream = int(random.integers(50))
            number = batch.add(prompt, stream=stream, **asked)
            (alone[number],) = complete(model, [prompt], streams=[stream], **asked)
            texts[number] = []
        busiest = max(busiest, len(batch.running))
        there = batch.running
        written = batch.step()
        assert [one.number for one in written] == there
        for one in written:
            texts[one.number].append(one.token)
            assert one.last == (texts[one.number] == alone[one.number]) == (one.number not in batch.running)
        if batch.running and random.integers(6) == 0:
            number = batch.running[random.integers(len(batch.running))]
            assert batch.remove(number) == texts[number]
            alone[number], removed = alone[number][: len(texts[number])], removed + 1
    while batch.running:
        for one in batch.step():
            texts[one.number].append(one.token)
    assert texts == alone
    assert len(texts) > 12 and removed > 0 and busiest == 4
    assert batch.free == 4 and batch.step() == []


def test_steps_read_the_weights_in_the_form_asked_for():
    model = drawn(CONFIG.with_(d_model=32, vocab=32), std=0.2)
    batch = Batch(model, rows=2, slots=20, weights="bf16")
    for prompt in ([1, 2], [3]):
        batch.add(prompt, max_new_tokens=12, sampling=Sampling(0.0))
    texts = [[], []]
    while batch.running:
        for one in batch.step():
            texts[one.number].append(one.token)
    alone = [complete(model, [p], max_new_tokens=12, sampling=Sampling(0.0), weights="bf16")[0] for p in ([1, 2], [3])]
    assert texts == alone


def test_what_does_not_fit_is_refused_and_nothing_changes(models):
    batch = Batch(models[0], rows=2, slots=10)
    for prompt, asked, message in (
        (
            [1, 2, 3],
            {"max_new_tokens": 8},
            "a prompt of 3 tokens and max_new_tokens=8 make 11: expected at most slots=10",
        ),
        ([1] * 10, {}, "a prompt of 10 tokens and max_new_tokens=1 make 11: expected at most slots=10"),
        ([], {}, "is empty: expected at least one token"),
        ([7], {}, "token id 7: expected a whole number from 0 to 6"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens=0"),
        ([1], {"stream": -1}, "streams"),
        ([1], {"stop": [9]}, "stop: token id 9"),
    ):
        with pytest.raises(ValueError, match=message):
            batch.add(prompt, **asked)
    assert batch.free == 2
    assert [batch.add([1]), batch.add([2, 3])] == [0, 1]
    with pytest.raises(ValueError, match="rows=2: expected one to be free, but all are running"):
        batch.add([1])
    assert batch.remove(0) == []
    assert batch.add([1]) == 2
    with pytest.raises(ValueError, match=r"number=0: expected one of those that are running, \[1, 2\]"):
        batch.remove(0)


@pytest.mark.parametrize(
    ("config", "asked", "message"),
    [
        (CONFIG.with_(stack="encoder_decoder"), {"rows": 2}, "stack='encoder_decoder': expected 'decoder'"),
        (CONFIG, {"rows": 0}, "rows=0"),
        (CONFIG, {"rows": 2, "slots": 25}, "slots=25: expected at most context=24"),
        (CONFIG, {"rows": 2, "slots": 0}, "slots=0"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(config, asked, message):
    with pytest.raises(ValueError, match=message):
        Batch(drawn(config), **asked)


def test_a_sequence_without_a_next_token_leaves_and_the_others_go_on(models):
    model = drawn(CONFIG.with_(embedding=EmbeddingConfig(tied=False))).double()
    with torch.no_grad():
        model.embedding.weight[6] = float("nan")  # whoever reads token 6 has no numbers left
    batch = Batch(model, rows=3, slots=20)
    asked = {"max_new_tokens": 12, "sampling": Sampling(0.8), "rules": Rules(never=[6])}
    (alone,) = complete(model, [[1, 2]], streams=[5], **asked)
    good = batch.add([1, 2], stream=5, **asked)
    text = [one.token for _ in range(4) for one in batch.step()]
    bad = batch.add([3, 6, 6, 6, 6], **asked)
    with pytest.raises(NotFinite, match=f"logits of sequence {bad}: expected finite numbers"):
        batch.step()
    assert batch.running == [good] and batch.free == 2
    late = batch.add([1, 2], stream=5, **asked)  # it gets the row that the bad one has left
    texts = {good: text, late: []}
    while batch.running:
        for one in batch.step():
            texts[one.number].append(one.token)
    assert texts == {good: alone, late: alone}
