"""Speculative decoding: whatever the draft proposes, the text or its distribution is the model's own."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from models import drawn

from companion import (
    AttentionConfig,
    Draft,
    EmbeddingConfig,
    FeedForwardConfig,
    LatentConfig,
    LinearConfig,
    ModelConfig,
    PositionConfig,
    RotaryScaling,
    WindowConfig,
)
from companion.generation import speculative
from companion.generation.draft import Lookup
from companion.generation.generate import Rules, complete, generate, generate_long
from companion.generation.next_token import pick
from companion.generation.prefill_decode import NotFinite
from companion.generation.sampling import Sampling
from companion.generation.speculative import verdict
from companion.quantization.weights import prepared

CONFIG = ModelConfig(7, 8, 2, 24, AttentionConfig(2, 1, d_head=4), FeedForwardConfig(10))
LONG = RotaryScaling("longrope", 2.0, 12, short=(1.0, 1.5), long=(2.0, 4.0))
LAYOUTS = [
    CONFIG,
    CONFIG.with_(positions=PositionConfig("learned")),
    CONFIG.with_(attention=replace(CONFIG.attention, window=WindowConfig(5, (True, False)))),
    CONFIG.with_(stack="encoder_decoder"),
    CONFIG.with_(attention=AttentionConfig(2, d_head=4, latent=LatentConfig(3, 2))),
    CONFIG.with_(attention=AttentionConfig(2, d_head=4, linear=LinearConfig((True, False)))),
    CONFIG.with_(positions=PositionConfig("rotary", scaling=LONG)),
    CONFIG.with_(
        attention=replace(CONFIG.attention, window=WindowConfig(5, (True, False)), linear=LinearConfig((True, False))),
        layers=3,
        positions=PositionConfig("rotary", scaling=LONG),
    ),
    CONFIG.with_(positions=PositionConfig("rotary", scaling=RotaryScaling("dynamic", 2.0, 8))),
]
GREEDY = Sampling(0.0)


@pytest.fixture(scope="module")
def models():
    """Make the models in float64, where no two logits are so close that the number of tokens per pass matters."""
    return [(drawn(c, seed=i).double(), drawn(c.with_(layers=1), seed=9 + i).double()) for i, c in enumerate(LAYOUTS)]


def request(random, config):
    """Return prompts of unequal lengths, their sources, and the number of tokens to generate."""
    rows = int(random.integers(1, 4))
    prompts = [random.integers(config.vocab, size=random.integers(1, 8)).tolist() for _ in range(rows)]
    new = int(random.integers(1, config.context - max(map(len, prompts)) + 1))
    source = [random.integers(config.vocab, size=random.integers(1, 6)).tolist() for _ in range(rows)]
    return prompts, {"max_new_tokens": new} | ({"source": source} if config.stack == "encoder_decoder" else {})


def proposers(random, model, small):
    """Return the drafts: n-gram lookup, a small model, the model itself, which is always right, and random tokens."""
    vocab = model.config.vocab
    at_random = np.random.default_rng(int(random.integers(99)))
    return [
        "ngram",
        small,
        model,
        lambda ids, count: at_random.integers(vocab, size=at_random.integers(0, count + 1)).tolist(),
    ]


CASES = 72  # each draft twice with each layout; larger numbers work too, such as 1,000


def test_the_text_is_the_models_own(models):
    random = np.random.default_rng(0)
    accepted = proposed = 0
    for case in range(CASES):
        model, small = models[case % len(LAYOUTS)]
        prompts, asked = request(random, model.config)
        draft = Draft(proposers(random, model, small)[case // len(LAYOUTS) % 4], int(random.integers(1, 9)))
        # Lookup and functions propose tokens with certainty, as in greedy decoding, so every seed gives the same text.
        drawing = random.random() < 0.5 and not isinstance(draft.proposer, torch.nn.Module)
        asked |= {"sampling": Sampling(1.3, top_k=5, top_p=0.9) if drawing else GREEDY, "seed": case}
        asked |= {"stop": {2}} if random.random() < 0.5 else {}
        if random.random() < 0.25:
            asked["rules"] = Rules(never=[3], min_new_tokens=2, last=4, repetition_penalty=1.4, no_repeat=3)
        alone = list(generate(model, prompts, **asked))
        assert list(generate(model, prompts, draft=draft, **asked)) == alone, (case, draft)
        accepted, proposed = accepted + draft.accepted, proposed + draft.proposed
    assert 0.2 * proposed < accepted < 0.8 * proposed, "of what is proposed too little or too much is right to prove it"


@pytest.mark.parametrize("layout", range(2))
def test_a_long_text_goes_on_past_the_context(models, layout):
    model, small = models[layout]
    prompts = [[1, 2, 3], [4]]
    for sampling, drafts in ((GREEDY, ("ngram", small)), (Sampling(0.8), ("ngram",))):
        asked = {"max_new_tokens": 40, "sampling": sampling, "seed": 3}
        alone = list(generate_long(model, prompts, **asked))
        for draft in drafts:
            assert list(generate_long(model, prompts, draft=draft, **asked)) == alone


def expected_counts(model, prompt, sampling, length, texts):
    """Return the expected number of times that each text occurs: from the product of its conditional probabilities."""
    vocab, counts = model.config.vocab, {}
    for text in itertools.product(range(vocab), repeat=length):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *text]])).logits[0, len(prompt) - 1 : -1]
        counts[text] = texts * float(sampling.probabilities(logits)[range(length), text].prod())
    return counts


def chi_squared(expected, texts):
    """Return by how many standard deviations Pearson's statistic exceeds its mean; impossible texts must not occur."""
    seen = {text: 0 for text in expected}
    for text in texts:
        seen[tuple(text)] += 1
    assert not [text for text, count in seen.items() if count and expected[text] == 0]
    kept = [text for text, count in expected.items() if count >= 5]
    statistic = sum((seen[text] - expected[text]) ** 2 / expected[text] for text in kept)
    return (statistic - len(kept)) / (2 * len(kept)) ** 0.5


SMALL = CONFIG.with_(vocab=4, context=8)
TEXTS = 1800


def unusual(sampling, ahead, own=False):
    model, small = drawn(SMALL.with_(medusa_heads=2 * own), seed=1), drawn(SMALL.with_(layers=1), seed=5)
    draft = Draft("medusa" if own else small, ahead)
    texts = complete(model, [[1, 2]] * TEXTS, max_new_tokens=3, sampling=sampling, draft=draft, seed=11)
    return chi_squared(expected_counts(model, [1, 2], sampling, 3, TEXTS), texts), draft.rate


@pytest.mark.parametrize(
    ("sampling", "ahead", "own"),
    [(Sampling(1.5), 2, False), (Sampling(1.9, top_k=3, top_p=0.95), 4, False), (Sampling(1.5), 2, True)],
)
def test_a_draft_that_draws_leaves_the_distribution_as_it_is(sampling, ahead, own):
    deviations, rate = unusual(sampling, ahead, own)
    assert deviations < 4
    assert 0.2 < rate < 0.9, "the draft is right too often, or too rarely, for a mistake to show"


def test_the_expected_length_follows_from_the_acceptance_rate(ahead=4):
    """Leviathan et al. 2023, eq. 1: (1 - a^(n+1)) / (1 - a) tokens per pass.

    Each of n proposed tokens is accepted with probability a = sum min(p, q). To make a the same at every position, all
    tokens of each model have the same vector, so that all contexts have the same distribution.
    """
    pair = [drawn(CONFIG.with_(embedding=EmbeddingConfig(tied=False), context=400), seed=seed) for seed in (1, 2)]
    with torch.no_grad():
        for one in pair:
            one.embedding.weight[:] = one.embedding.weight[0]
        sampling = Sampling(3.0)
        p, q = (sampling.probabilities(one(torch.tensor([[1]])).logits[0, 0]) for one in pair)
    a, draft = float(torch.minimum(p, q).sum()), Draft(pair[1], ahead)
    assert 0.3 < a < 0.9
    complete(pair[0], [[1]] * 16, max_new_tokens=50, sampling=sampling, draft=draft, seed=2)
    expected = (1 - a ** (ahead + 1)) / (1 - a)
    # The mean square of the number of accepted tokens
    square = sum((2 * kept - 1) * a**kept for kept in range(1, ahead + 1))
    deviation = ((square - (expected - 1) ** 2) / draft.passes) ** 0.5
    assert abs(draft.per_pass - expected) < 3 * deviation + 16 / draft.passes  # the last pass of a text is truncated
    assert deviation < 0.15


def from_p_again(p, q, proposed, uniform):
    """Replace rejected tokens by draws from p instead of max(0, p - q)."""
    kept, token = verdict(p, q, proposed, uniform)
    return kept, token if kept == len(proposed) else int(pick(p[kept : kept + 1], uniform[-1:]))


@pytest.mark.parametrize(
    "broken", [lambda p, q, proposed, uniform: (len(proposed), int(pick(p[-1:], uniform[-1:]))), from_p_again]
)
def test_a_broken_rule_shows(broken, monkeypatch):
    """Either everything is accepted, or the rest of the distribution is ignored."""
    monkeypatch.setattr(speculative, "verdict", broken)
    assert unusual(Sampling(1.5), 2)[0] > 6


def test_the_rule_by_hand():
    """p = (0.1, 0.6, 0.3) and q = (0.4, 0.6, 0): token 0 is accepted with probability 1/4, token 1 always.

    Token 0 is replaced by token 2, the only one to which p gives more probability than q.
    """
    p = torch.tensor([[0.1, 0.6, 0.3], [0.0, 0.0, 1.0]]).double()
    q = [torch.tensor([0.4, 0.6, 0.0]).double()]
    assert verdict(p, q, [0], [0.24, 0.5]) == (1, 2)
    assert verdict(p, q, [0], [0.26, 0.5]) == (0, 2)
    assert verdict(p, q, [1], [0.999, 0.5]) == (1, 2)
    assert verdict(p, [p[0]], [0], [0.999, 0.5]) == (1, 2)


def test_look_up_takes_what_followed_the_longest_run_where_it_was_last():
    assert Lookup()([1, 2, 3, 9, 5, 2, 3, 8, 1, 2, 3], 2) == [9, 5]
    assert Lookup(longest=2)([1, 2, 3, 9, 5, 2, 3, 8, 1, 2, 3], 2) == [8, 1]
    assert Lookup()([4, 5, 6], 3) == [] == Lookup()([4], 3)
    assert Lookup()([1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]
    look, text = Lookup(), []
    for token in np.random.default_rng(0).integers(3, size=60).tolist():
        text.append(token)
        assert look(text, 4) == Lookup()(text, 4), "what it remembers is what it would find"


def test_it_counts_what_is_proposed_and_accepted(models):
    model = models[0][0]
    draft = Draft(model, 3)
    (text,) = complete(model, [[1]], max_new_tokens=13, sampling=GREEDY, draft=draft)
    assert len(text) == 13 and (draft.proposed, draft.accepted, draft.passes) == (9, 9, 3)
    assert draft.rate == 1 and draft.per_pass == 4
    wrong = Draft(lambda ids, count: [(text[len(ids) - 1] + 1) % 7], 1)
    assert complete(model, [[1]], max_new_tokens=13, sampling=GREEDY, draft=wrong) == [text]
    assert (wrong.proposed, wrong.accepted, wrong.rate, wrong.per_pass) == (11, 0, 0.0, 1.0)


def test_a_row_does_not_depend_on_the_others(models):
    model, small = models[1]
    prompts, asked = [[1, 2, 3, 4, 5, 6], [3], [2, 5]], {"max_new_tokens": 17, "sampling": Sampling(1.1), "seed": 4}
    together = complete(model, prompts, draft=Draft(small, 5), **asked)
    for row, prompt in enumerate(prompts):
        assert complete(model, [prompt], draft=Draft(small, 5), generators=[row], **asked) == [together[row]]


def test_a_prepared_copy_may_write_and_propose():
    model = drawn(CONFIG.with_(d_model=32, vocab=32), std=0.2)
    asked = {"max_new_tokens": 15, "sampling": GREEDY, "weights": "bf16"}
    draft = Draft(prepared(model, "bf16"), 4)
    assert complete(model, [[1, 2]], draft=draft, **asked) == complete(model, [[1, 2]], **asked)
    assert draft.rate > 0.5


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"draft": "bigram"}, "draft='bigram': expected 'ngram', 'medusa', a Transformer or a function"),
        ({"draft": 3}, "draft=3: expected 'ngram'"),
        ({"draft": drawn(CONFIG.with_(vocab=8))}, "draft has vocab=8: expected 7, with the same ids"),
        ({"draft": drawn(CONFIG.with_(context=11))}, "draft has context=11: expected at least 12, so that its cache"),
        ({"draft": drawn(CONFIG.with_(stack="encoder_decoder"))}, "draft has stack='encoder_decoder': expected 'dec"),
        ({"draft": "ngram", "compile": True}, "compile=True cannot be used together with draft"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(asked, message):
    with pytest.raises(ValueError, match=message):
        generate(drawn(CONFIG), [[1, 2]], max_new_tokens=10, **asked)


@pytest.mark.parametrize("ahead", [0, 65, 2.0])
def test_so_many_tokens_cannot_be_proposed(ahead):
    with pytest.raises(ValueError, match="num_draft_tokens="):
        Draft("ngram", ahead)


def test_what_is_no_token_or_no_number_is_named(models):
    model, small = models[0]
    with pytest.raises(ValueError, match="draft: token id 7: expected a whole number from 0 to 6"):
        complete(model, [[1]], max_new_tokens=5, draft=lambda ids, count: [7])
    broken = drawn(CONFIG).double()
    with torch.no_grad():
        broken.embedding.weight.fill_(float("nan"))
    with pytest.raises(NotFinite, match="draft: logits of row 0"):
        complete(model, [[1]], max_new_tokens=5, draft=broken)
    with pytest.raises(NotFinite, match="logits of row 0 at step 0"):
        complete(broken, [[1]], max_new_tokens=5, draft=small)
