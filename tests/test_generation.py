"""Generation: the cache changes the cost, never the text; a token is drawn from a distribution that can be checked."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import companion.generation as generation
from companion import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    KVCache,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    Transformer,
)
from companion.generation import Beam, Sampling, beam_search, complete, generate, temperature, top_k, top_p

INF = math.inf


def drawn(config, seed=0, std=0.4):
    """A model whose predictions are far from uniform, and differ from token to token and place to place."""
    torch.manual_seed(seed)
    model = Transformer(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=std)
            if "norm" in name and name.endswith("weight"):
                parameter += 1
    return model


CONFIG = ModelConfig(
    vocab=17,
    d_model=12,
    layers=2,
    context=40,
    attention=AttentionConfig(heads=6, kv_heads=2, d_head=4, d_v=5),
    feed_forward=FeedForwardConfig(d_ff=14),
)
PROMPTS = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3, 5]]
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def model():
    return drawn(CONFIG)


# ---- cached = uncached ----------------------------------------------------------------------------------------------


@st.composite
def decoders(draw):
    kv_heads = draw(st.integers(1, 2))
    moe = draw(st.none() | st.builds(lambda k, more: MoEConfig(k + more, k), st.integers(1, 2), st.integers(0, 2)))
    positions = draw(
        st.builds(PositionConfig, st.just("rotary"), st.just(100.0), st.sampled_from(["half", "interleaved"]))
        | st.builds(PositionConfig, st.sampled_from(["sinusoidal", "learned", "none"]))
    )
    return ModelConfig(
        vocab=11,
        d_model=2 * draw(st.integers(2, 5)),
        layers=draw(st.integers(1, 3)),
        context=24,
        attention=AttentionConfig(
            heads=kv_heads * draw(st.integers(1, 3)),
            kv_heads=kv_heads,
            d_head=2 * draw(st.integers(1, 3)),
            d_v=draw(st.integers(1, 7)),
            bias=draw(st.booleans()),
        ),
        feed_forward=FeedForwardConfig(
            d_ff=draw(st.integers(3, 9)),
            activation=draw(st.sampled_from(["relu", "gelu", "gelu_tanh", "swiglu"])),
            bias=moe is None and draw(st.booleans()),
        ),
        positions=positions,
        norm=NormConfig(draw(st.sampled_from(["layer", "rms"])), draw(st.sampled_from(["pre", "post"]))),
        embedding=EmbeddingConfig(tied=draw(st.booleans()), scaled=draw(st.booleans())),
        moe=moe,
    )


def splits(total):
    """Every way to cut `total` tokens into calls, as the set of places where a new call begins."""
    return st.sets(st.integers(1, max(total - 1, 1))).map(
        lambda cuts: [b - a for a, b in itertools.pairwise([0, *sorted(c for c in cuts if c < total), total])]
    )


@settings(max_examples=220, deadline=None, derandomize=True, database=None)
@given(st.data(), decoders(), st.sampled_from([torch.float32, torch.float64]), st.integers(0, 2**16))
@torch.no_grad()
def test_cached_equals_uncached_for_any_split_of_any_ragged_batch(data, config, dtype, seed):
    model = drawn(config, seed).to(dtype).eval()
    lengths = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=4), label="prompt lengths")
    new = data.draw(st.integers(1, 7), label="new tokens")
    bucket = data.draw(st.sampled_from([1, 1, 4]), label="bucket")
    tokens = [torch.randint(0, config.vocab, (length + new,)) for length in lengths]
    expected = [model(row[None]).logits[0] for row in tokens]  # each row alone, whole, without a cache or padding
    bound = {torch.float32: 1e-5, torch.float64: 1e-10}[dtype]

    def agree(logits, row, start):
        reference = expected[row][start : start + len(logits)]
        scale = max(1.0, float(reference.abs().max()))
        assert float((logits - reference).abs().max()) <= bound * scale

    longest = max(lengths)
    padded = torch.zeros(len(lengths), longest, dtype=torch.long)
    for row, length in enumerate(lengths):
        padded[row, :length] = tokens[row][:length]
    cache = KVCache.create(config, len(lengths), longest + new, dtype=dtype, bucket=bucket)
    start = 0
    for size in data.draw(splits(longest), label="split of the prompts"):
        logits, _, cache = model(padded[:, start : start + size], cache=cache)
        for row, length in enumerate(lengths):
            if length > start:
                agree(logits[row, : min(size, length - start)], row, start)
        start += size
    cache = cache.rewind(torch.tensor(lengths))
    if data.draw(st.booleans(), label="with a detour"):  # what is taken back has never been seen
        detour = torch.randint(0, config.vocab, (len(lengths), new))
        cache = model(detour, cache=cache).cache.rewind(torch.tensor(lengths))
    start = 0
    for size in data.draw(splits(new), label="split of the new tokens"):
        step = torch.stack([row[n + start : n + start + size] for row, n in zip(tokens, lengths, strict=True)])
        logits, _, cache = model(step, cache=cache)
        for row, length in enumerate(lengths):
            agree(logits[row], row, length + start)
        start += size
    assert cache.lengths.tolist() == [length + new for length in lengths]


# ---- one distribution, transformed ----------------------------------------------------------------------------------

LOGITS = torch.tensor([[2.0, -1.0, 0.5, 2.5, 0.0], [0.0, 3.0, 3.0, -2.0, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), GREEDY, Sampling(0.7, top_k=3), Sampling(1.5, top_p=0.8), Sampling(2.0, top_k=4, top_p=0.5)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_probabilities_sum_to_one(sampling, dtype):
    p = sampling.probabilities(LOGITS.to(dtype))
    assert p.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (p >= 0).all()
    torch.testing.assert_close(p.sum(-1), torch.ones(2, dtype=p.dtype))


def test_temperature_raises_probabilities_to_a_power():
    p = LOGITS.softmax(-1)
    for t in (0.5, 2.0):
        powered = p ** (1 / t)
        torch.testing.assert_close(temperature(LOGITS, t).softmax(-1), powered / powered.sum(-1, keepdim=True))
    assert torch.equal(temperature(LOGITS, 1.0), LOGITS)


def test_temperature_goes_from_greedy_to_uniform():
    greedy = temperature(LOGITS[:1], 0.0).softmax(-1)
    assert greedy.tolist() == [[0, 0, 0, 1, 0]]
    torch.testing.assert_close(temperature(LOGITS[:1], 1e-2).softmax(-1), greedy)
    torch.testing.assert_close(temperature(LOGITS, 1e9).softmax(-1), torch.full_like(LOGITS, 0.2))
    assert temperature(LOGITS[1:], 0.0).softmax(-1).tolist() == [[0, 1, 0, 0, 0]]  # of equal ones the first


def test_top_k_keeps_the_k_largest_as_they_are():
    assert top_k(LOGITS[:1], 2).tolist() == [[2.0, -INF, -INF, 2.5, -INF]]
    assert [int((top_k(LOGITS, k) > -INF).sum(-1)[1]) for k in range(1, 7)] == [1, 2, 3, 4, 5, 5]  # ties or not
    assert torch.equal(top_k(LOGITS, 99), LOGITS)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8), st.floats(0.01, 1.0))
def test_top_p_keeps_the_smallest_set_that_reaches_p(values, p):
    logits = torch.tensor([values], dtype=torch.float64)
    probabilities = logits.softmax(-1)[0]
    kept = (top_p(logits, p) > -INF)[0]
    assert torch.equal(top_p(logits, p)[0][kept], logits[0][kept])
    mass = float(probabilities[kept].sum())
    assert mass >= p - 1e-12  # reached ...
    assert mass - float(probabilities[kept].min()) < p or p == 1  # ... and not without its last member
    assert bool((probabilities[~kept] <= probabilities[kept].min()).all())  # none left out is more probable


def test_top_p_keeps_the_token_that_crosses():
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    for p, kept in ((0.1, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (1.0, 3)):
        assert int((top_p(logits, p) > -INF).sum()) == kept


def test_the_order_is_temperature_top_k_top_p():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64).log()
    by_hand = top_p(top_k(temperature(logits, 0.5), 3), 0.6).softmax(-1)
    torch.testing.assert_close(Sampling(0.5, top_k=3, top_p=0.6).probabilities(logits), by_hand)
    # 0.16, 0.09, 0.04 of 0.29: the first two make 0.86 and the first alone 0.55, short of 0.6.
    torch.testing.assert_close(by_hand, torch.tensor([[0.64, 0.36, 0, 0]], dtype=torch.float64))
    # Without top_k first, 0.4 would have had to share with all four; without the temperature, two would not reach 0.8.
    assert int((Sampling(1.0, top_k=2, top_p=0.6).probabilities(logits) > 0).sum()) == 2
    assert int((Sampling(1.0, top_k=2, top_p=0.55).probabilities(logits) > 0).sum()) == 1  # 4/7 of the two
    assert int((Sampling(1.0, top_p=0.55).probabilities(logits) > 0).sum()) == 2  # 0.4 of all four


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampling(temperature=-0.1), "temperature=-0.1: expected a finite number >= 0"),
        (lambda: Sampling(temperature=INF), "temperature=inf: expected a finite number >= 0"),
        (lambda: Sampling(temperature=math.nan), "temperature=nan: expected"),
        (lambda: Sampling(top_k=0), "top_k=0: expected a whole number >= 1"),
        (lambda: Sampling(top_p=0.0), "top_p=0.0: expected a probability in (0, 1]"),
        (lambda: Sampling(top_p=1.1), "top_p=1.1: expected a probability in (0, 1]"),
        (lambda: Sampling(temperature=0, top_p=2.0), "top_p=2.0: expected"),
    ],
)
def test_bad_sampling_is_refused_at_once(make, message):
    with pytest.raises(ValueError) as caught:
        make()
    assert message in str(caught.value)


def test_tokens_are_drawn_as_often_as_they_are_probable(model):
    prompt, draws = [3, 1], 4000
    sampling = Sampling(temperature=1.3, top_k=6)
    with torch.no_grad():
        p = sampling.probabilities(model.eval()(torch.tensor([prompt])).logits[:, -1])[0].double()
    counts = Counter(row[0] for row in complete(model, [prompt] * draws, max_new_tokens=1, sampling=sampling))
    assert {token for token in range(17) if p[token] == 0}.isdisjoint(counts)
    for token in range(17):  # four standard deviations of a binomial count
        assert abs(counts[token] - draws * p[token]) <= 4 * math.sqrt(draws * p[token] * (1 - p[token]))


class Fixed(np.random.Generator):
    """A random stream that always gives the same number."""

    def __init__(self, value):
        super().__init__(np.random.PCG64(0))
        self.value = value

    def random(self):
        return self.value


@pytest.mark.parametrize(
    ("u", "token"), [(0.0, 1), (0.24, 1), (0.26, 3), (0.74, 3), (0.76, 4), (1 - 2**-53, 4)], ids=str
)
def test_the_ends_of_the_random_numbers_fall_on_possible_tokens(u, token, monkeypatch):
    """0 must not give the impossible token 0, nor the largest number below 1 the impossible token 5 or none at all."""
    model = drawn(CONFIG.with_(vocab=6))
    logits = torch.tensor([0, 0.25, 0, 0.5, 0.25, 0]).log()
    monkeypatch.setattr(model, "head", lambda stream: logits.expand(len(stream), 6))
    monkeypatch.setattr(np.random, "default_rng", lambda seed: Fixed(u))
    assert complete(model, [[2], [3, 1]], max_new_tokens=1) == [[token], [token]]


# ---- generate -------------------------------------------------------------------------------------------------------


def by_hand(model, prompt, steps):
    """Greedy decoding that keeps nothing: the whole text again at every step."""
    text = list(prompt)
    with torch.no_grad():
        for _ in range(steps):
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return text[len(prompt) :]


def test_greedy_is_the_argmax_of_everything_recomputed(model):
    expected = [by_hand(model.eval(), prompt, 12) for prompt in PROMPTS]
    assert complete(model, PROMPTS, max_new_tokens=12, sampling=GREEDY) == expected
    assert len({token for row in expected for token in row}) > 5  # and not one token for ever


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(1.2, top_k=9, top_p=0.9)], ids=str)
def test_a_row_does_not_depend_on_its_company(model, sampling):
    together = complete(model, PROMPTS, max_new_tokens=10, sampling=sampling, seed=4)
    for row, prompt in enumerate(PROMPTS):
        others = [[7, 7, 7, 7, 7] for _ in PROMPTS]
        others[row] = prompt
        assert complete(model, others, max_new_tokens=10, sampling=sampling, seed=4)[row] == together[row]
    assert complete(model, PROMPTS[:1], max_new_tokens=10, sampling=sampling, seed=4) == together[:1]
    assert complete(model, PROMPTS, max_new_tokens=4, sampling=sampling, seed=4) == [row[:4] for row in together]


def test_the_seed_decides_and_rows_draw_apart(model):
    prompts = [[3, 1, 4]] * 3
    first = complete(model, prompts, max_new_tokens=20, seed=1)
    torch.manual_seed(99)
    torch.rand(5)  # PyTorch's own stream is neither read nor moved
    state = torch.get_rng_state()
    assert complete(model, prompts, max_new_tokens=20, seed=1) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert complete(model, prompts, max_new_tokens=20, seed=2) != first
    assert len(set(map(tuple, first))) == 3


def test_tokens_stream_one_forward_pass_each(model):
    shapes = []
    hook = model.embedding.register_forward_hook(lambda module, args, out: shapes.append(tuple(args[0].shape)))
    try:
        stream = generate(model, PROMPTS, max_new_tokens=4)
        assert shapes == []  # nothing runs before it is asked for
        steps = []
        for wanted in ([(3, 7)], [(3, 7), (3, 1)], [(3, 7), (3, 1), (3, 1)], [(3, 7), (3, 1), (3, 1), (3, 1)]):
            steps.append(next(stream))
            assert shapes == wanted
        with pytest.raises(StopIteration):
            next(stream)
        assert len(shapes) == 4  # the last token is not read back
    finally:
        hook.remove()
    assert [list(row) for row in zip(*steps, strict=True)] == complete(model, PROMPTS, max_new_tokens=4)


def test_a_row_stops_at_its_stop_token_and_the_rest_goes_on(model):
    free = complete(model, PROMPTS, max_new_tokens=12, sampling=GREEDY)
    stop = {free[0][3], free[2][5]}
    steps = list(generate(model, PROMPTS, max_new_tokens=12, sampling=GREEDY, stop=stop))
    for row, tokens in enumerate(free):
        ends = next((i + 1 for i, token in enumerate(tokens) if token in stop), 12)
        assert [step[row] for step in steps] == (tokens[:ends] + [None] * 12)[: len(steps)]
        assert complete(model, PROMPTS, max_new_tokens=12, sampling=GREEDY, stop=stop)[row] == tokens[:ends]
    assert any(None in step for step in steps)
    assert len(list(generate(model, PROMPTS, max_new_tokens=12, stop=range(17)))) == 1  # all stopped: no step more


def test_the_caller_finds_gradients_and_modes_as_they_were():
    model = drawn(CONFIG.with_(dropout=0.5))
    model.train()
    model.decoder.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    stream = generate(model, PROMPTS, max_new_tokens=6, sampling=GREEDY)
    tokens = []
    for step in stream:
        assert torch.is_grad_enabled()
        assert [module.training for module in model.modules()] == modes
        tokens.append(step[0])
    model.eval()
    assert tokens == by_hand(model, PROMPTS[0], 6)  # so there was no dropout inside
    model.train()
    with pytest.raises(RuntimeError, match="broken"):
        model.decoder.register_forward_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("broken")))
        next(generate(model, PROMPTS, max_new_tokens=2))
    assert torch.is_grad_enabled() and all(module.training for module in model.modules())


def test_two_generations_on_one_model_do_not_meet(model):
    expected = [complete(model, [prompt], max_new_tokens=8) for prompt in PROMPTS[:2]]
    streams = [generate(model, [prompt], max_new_tokens=8) for prompt in PROMPTS[:2]]
    turns = [(next(streams[0])[0], next(streams[1])[0]) for _ in range(8)]
    assert [[list(row)] for row in zip(*turns, strict=True)] == expected


def test_a_half_precision_model_generates(model):
    half = drawn(CONFIG).bfloat16()
    rows = complete(half, PROMPTS, max_new_tokens=5)
    assert [len(row) for row in rows] == [5, 5, 5]


def test_without_a_limit_the_context_is_filled(model):
    assert [len(row) for row in complete(model, PROMPTS)] == [33, 33, 33]  # 40 - 7
    learned = drawn(CONFIG.with_(positions=PositionConfig("learned")))
    assert [len(row) for row in complete(learned, PROMPTS)] == [33, 33, 33]


def test_the_compiled_step_reads_whole_buckets_and_writes_the_same_text(monkeypatch):
    model = drawn(CONFIG.with_(context=150, positions=PositionConfig("learned")))
    expected = complete(model, PROMPTS, max_new_tokens=143)
    seen = []

    def recorded(model, tokens, cache):
        seen.append((cache.filled, cache.uniform, cache.slots))
        return generation._decode(model, tokens, cache)

    monkeypatch.setattr(generation, "_compiled", lambda: recorded)
    assert complete(model, PROMPTS, max_new_tokens=143, compile=True) == expected
    assert len(seen) == 142
    # What a compiler specialises on changes twice in 142 steps; in the end the context is the limit.
    assert set(seen) == {(63, False, 192), (127, False, 192), (149, False, 192)}


BAD_CALLS = [
    ({"prompts": []}, "prompts is empty: expected at least one prompt"),
    ({"prompts": [[1], []]}, "prompts[1] is empty: expected at least one token"),
    ({"prompts": [[1], [2, 17]]}, "prompts[1]: token id 17: expected a whole number from 0 to 16"),
    ({"prompts": [[-1]]}, "prompts[0]: token id -1: expected"),
    ({"prompts": [[1] * 35]}, "a prompt of 35 tokens and max_new_tokens=6 make 41: expected at most context=40"),
    ({"prompts": [[1] * 40]}, "a prompt of 40 tokens leaves no room: expected at most 39, because context=40"),
    ({"max_new_tokens": 0}, "max_new_tokens=0: expected a whole number >= 1"),
    ({"stop": [17]}, "stop: token id 17: expected a whole number from 0 to 16"),
    ({"seed": -1}, "seed=-1: expected a whole number >= 0"),
]


@pytest.mark.parametrize(("change", "message"), BAD_CALLS, ids=[message for _, message in BAD_CALLS])
def test_bad_input_is_named_before_anything_runs(model, change, message):
    with pytest.raises(ValueError) as caught:
        generate(model, **{"prompts": [[1, 2]], "max_new_tokens": 6, **change})  # not even iterated
    assert message in str(caught.value)


@pytest.mark.parametrize("stack", ["encoder", "encoder_decoder"])
def test_only_a_decoder_continues_a_text(stack):
    with pytest.raises(ValueError, match=f"stack='{stack}': expected 'decoder'"):
        generate(Transformer(CONFIG.with_(stack=stack)), [[1]], max_new_tokens=2)


# ---- beam search ----------------------------------------------------------------------------------------------------

SMALL = CONFIG.with_(vocab=4, context=12)


def every_continuation(model, prompt, steps, stop):
    """All texts that `steps` tokens can make, a stop token ending them, each with its ln p, without a cache."""
    found = []
    for tokens in itertools.product(range(4), repeat=steps):
        ends = next((i + 1 for i, token in enumerate(tokens) if token in stop), steps)
        if tokens[ends:] == (0,) * (steps - ends):  # each stopped text once
            with torch.no_grad():
                logp = model(torch.tensor([[*prompt, *tokens[:ends]]])).logits[0].double().log_softmax(-1)
            places = range(len(prompt) - 1, len(prompt) - 1 + ends)
            found.append(Beam(tokens[:ends], sum(float(logp[i, t]) for i, t in zip(places, tokens, strict=False))))
    return found


@pytest.mark.parametrize("stop", [(), (2,), (0, 3)])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_wide_enough_beam_finds_what_enumeration_finds(stop, length_penalty):
    model = drawn(SMALL, seed=8)
    expected = every_continuation(model.eval(), [1, 3], 4, stop)
    expected.sort(key=lambda b: b.log_probability / len(b.tokens) ** length_penalty, reverse=True)
    found = beam_search(model, [1, 3], width=300, max_new_tokens=4, stop=stop, length_penalty=length_penalty)
    assert [beam.tokens for beam in found] == [beam.tokens for beam in expected]
    assert [b.log_probability for b in found] == pytest.approx([b.log_probability for b in expected], abs=1e-5)
    assert sum(math.exp(beam.log_probability) for beam in found) == pytest.approx(1)


@pytest.mark.parametrize("stop", [(), (2,)])
def test_a_beam_of_one_is_greedy(stop):
    for seed in range(5):
        model = drawn(SMALL, seed=seed)
        (beam,) = beam_search(model, [1, 3], width=1, max_new_tokens=6, stop=stop)
        assert list(beam.tokens) == complete(model, [[1, 3]], max_new_tokens=6, sampling=GREEDY, stop=stop)[0]


def test_a_beam_finds_a_more_probable_text_than_greedy():
    better = 0
    for seed in range(10):
        model = drawn(SMALL, seed=seed, std=0.2)
        (greedy,) = beam_search(model, [2], width=1, max_new_tokens=5)
        found = beam_search(model, [2], width=16, max_new_tokens=5)
        assert len(found) == 16 and found == sorted(found, key=lambda beam: -beam.log_probability)
        better += found[0].log_probability > greedy.log_probability + 1e-5
    assert better >= 3


def test_a_length_penalty_favours_longer_texts():
    model = drawn(SMALL, seed=3)
    lengths = [
        len(beam_search(model, [1], width=300, max_new_tokens=4, stop=(2,), length_penalty=penalty)[0].tokens)
        for penalty in (-3.0, 0.0, 3.0)
    ]
    assert lengths == sorted(lengths) and lengths[0] == 1 and lengths[2] == 4


def test_beam_search_leaves_the_model_as_it_was_and_refuses_bad_input():
    model = drawn(SMALL)
    model.train()
    beam_search(model, [1], width=2, max_new_tokens=3)
    assert torch.is_grad_enabled() and all(module.training for module in model.modules())
    for change, message in (
        ({"width": 0}, "width=0: expected a whole number >= 1"),
        ({"length_penalty": math.nan}, "length_penalty=nan: expected a finite number"),
        ({"prompt": []}, "is empty: expected at least one token"),
        ({"prompt": [4]}, "token id 4: expected a whole number from 0 to 3"),
        ({"max_new_tokens": 12}, "a prompt of 1 tokens and max_new_tokens=12 make 13: expected at most context=12"),
        ({"stop": [9]}, "stop: token id 9"),
    ):
        with pytest.raises(ValueError) as caught:
            beam_search(model, **{"prompt": [1], "width": 2, "max_new_tokens": 3, **change})
        assert message in str(caught.value)
