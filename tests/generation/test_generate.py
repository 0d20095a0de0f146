"""Generation: the cache changes the cost but never the text, and tokens are drawn from the right distribution."""

import itertools
import math
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import drawn

from companion import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    KVCache,
    LatentConfig,
    LinearConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    WindowConfig,
)
from companion.generation import prefill_decode
from companion.generation.generate import Rules, complete, generate, generate_long
from companion.generation.sampling import Sampling

INF = math.inf


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
def linears(draw):
    """Draw layers with any update rule and decay that have a matrix-valued state, alone or among others."""
    keys, rule = draw(st.integers(1, 2)), draw(st.sampled_from(["delta", "delta", "sum"]))
    decay, gate = draw(st.sampled_from(["head", "channel", "fixed", None])), draw(st.sampled_from(["silu", "sigmoid"]))
    return LinearConfig(
        pattern=draw(st.sampled_from([(True,), (True, False), (False, True), (True, True, False)])),
        heads=keys * draw(st.integers(1, 2)),
        key_heads=keys,
        d_head=draw(st.integers(1, 5)),
        d_v=draw(st.integers(1, 5)),
        rule=rule,
        negative=rule == "delta" and draw(st.booleans()),
        decay=decay,
        convolution=draw(st.integers(1, 4)),
        gate=gate,
        rank=draw(st.none() | st.integers(1, 3)),
    )


@st.composite
def attentions(draw, backwards):
    """Draw attention settings.

    backwards: True for the layers of a decoder-only model, which may have windows, latents and linear attention.
    """
    kv_heads, latents = draw(st.integers(1, 2)), backwards and draw(st.booleans())
    windows = st.builds(WindowConfig, st.integers(1, 6), st.sampled_from([(True,), (True, False)]))
    shared = {
        "heads": kv_heads * draw(st.integers(1, 3)),
        "d_head": 2 * draw(st.integers(1, 3)),
        "d_v": draw(st.integers(1, 7)),
        "softcap": draw(st.sampled_from([None, None, 2.0])),
        "gate": draw(st.none() | st.sampled_from(["head", "width"])),
        "window": draw(st.none() | windows) if backwards else None,
        "linear": draw(st.none() | linears()) if backwards else None,
    }
    if latents:
        ranks = st.integers(1, 9)
        vectors = st.builds(LatentConfig, ranks, st.sampled_from([2, 4]), q_lora_rank=st.none() | ranks)
        return AttentionConfig(**shared, latent=draw(vectors))
    return AttentionConfig(
        **shared,
        kv_heads=kv_heads,
        bias=draw(st.booleans()),
        sinks=draw(st.booleans()),
        qk_norm=draw(st.sampled_from([None, None, "head", "width"])),
    )


@st.composite
def mixtures(draw):
    top_k, groups, each = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(2, 3))
    shared = draw(st.integers(0, 1))
    return MoEConfig(
        groups * each,
        top_k,
        draw(st.sampled_from(["topk_softmax", "softmax_topk", "sigmoid", "sigmoid_topk"])),
        shared=shared,
        shared_gate=shared > 0 and draw(st.booleans()),
        groups=groups,
        top_groups=draw(st.integers(1, groups)),
        group_best=draw(st.integers(1, 2)),
        scale=draw(st.sampled_from([1.0, 2.5])),
        balanced=draw(st.booleans()),
        router_bias=draw(st.booleans()),
        weighted=draw(st.sampled_from(["output", "input"])),
        pattern=draw(st.sampled_from([(True,), (False, True)])),
    )


CASES = int(os.environ.get("CASES", "120"))
"""How many configurations; `CASES=1000 pytest tests/generation/test_generate.py -k cached_equals` tries more."""


@st.composite
def models(draw, stack="decoder"):
    """Draw models with any attention and any network.

    Attention may have grouped keys, latents, windows, query and key norms, softcapping, sinks, gates, and some or only
    linear layers. The network may have experts in some or all layers, with or without groups, gates, scaling and shared
    experts.
    """
    moe = draw(st.none() | mixtures())
    positions = draw(
        st.builds(PositionConfig, st.just("rotary"), st.just(100.0), st.sampled_from(["half", "interleaved"]))
        | st.builds(PositionConfig, st.sampled_from(["sinusoidal", "learned", "none"]))
    )
    attention = draw(attentions(stack == "decoder"))
    # The norm after a linear layer divides by what a query reads, which is tiny if few keys are similar to it.
    eps = 1e-5 if attention.linear is None else 1e-2
    return ModelConfig(
        vocab=11,
        d_model=2 * draw(st.integers(2, 5)),
        layers=draw(st.integers(1, 3)),
        context=24,
        attention=attention,
        feed_forward=FeedForwardConfig(
            d_ff=draw(st.integers(3, 9)),
            activation=draw(st.sampled_from(["relu", "gelu", "gelu_tanh", "swiglu", "swiglu_clamped"])),
            bias=draw(st.booleans()),
        ),
        positions=positions,
        norm=NormConfig(draw(st.sampled_from(["layer", "rms"])), draw(st.sampled_from(["pre", "post"])), eps=eps),
        embedding=EmbeddingConfig(tied=draw(st.booleans()), scaled=draw(st.booleans())),
        moe=moe,
        stack=stack,
    )


def splits(total):
    """Draw a way to cut `total` tokens into calls, as the set of positions at which a new call begins."""
    return st.sets(st.integers(1, max(total - 1, 1))).map(
        lambda cuts: [b - a for a, b in itertools.pairwise([0, *sorted(c for c in cuts if c < total), total])]
    )


@settings(max_examples=CASES, deadline=None, derandomize=True, database=None)
@given(st.data(), models(), st.sampled_from([torch.float32, torch.float64]), st.integers(0, 2**16))
@torch.no_grad()
def test_cached_equals_uncached_for_any_split_of_any_ragged_batch(data, config, dtype, seed):
    model = drawn(config, seed).to(dtype).eval()
    lengths = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=4), label="prompt lengths")
    new = data.draw(st.integers(1, 7), label="new tokens")
    bucket = data.draw(st.sampled_from([1, 1, 4]), label="bucket")
    tokens = [torch.randint(0, config.vocab, (length + new,)) for length in lengths]
    expected = [model(row[None]).logits[0] for row in tokens]  # each row by itself, without a cache or padding
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
    if data.draw(st.booleans(), label="with a detour"):  # tokens that were rewound must leave no trace
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
    """A random generator that always gives the same number."""

    def __init__(self, value):
        super().__init__(np.random.PCG64(0))
        self.value = value

    def random(self):
        return self.value


@pytest.mark.parametrize(
    ("u", "token"), [(0.0, 1), (0.24, 1), (0.26, 3), (0.74, 3), (0.76, 4), (1 - 2**-53, 4)], ids=str
)
def test_the_ends_of_the_random_numbers_fall_on_possible_tokens(u, token, monkeypatch):
    """0 must not give the impossible token 0, nor the largest number below 1 the impossible token 5, or none."""
    model = drawn(CONFIG.with_(vocab=6))
    logits = torch.tensor([0, 0.25, 0, 0.5, 0.25, 0]).log()
    monkeypatch.setattr(model, "head", lambda stream: logits.expand(len(stream), 6))
    monkeypatch.setattr(np.random, "default_rng", lambda seed: Fixed(u))
    assert complete(model, [[2], [3, 1]], max_new_tokens=1) == [[token], [token]]


# ---- generate -------------------------------------------------------------------------------------------------------


def by_hand(model, prompt, steps):
    """Decode greedily without a cache, reading the whole text again at every step."""
    text = list(prompt)
    with torch.no_grad():
        for _ in range(steps):
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return text[len(prompt) :]


def test_greedy_is_the_argmax_of_everything_recomputed(model):
    expected = [by_hand(model.eval(), prompt, 12) for prompt in PROMPTS]
    assert complete(model, PROMPTS, max_new_tokens=12, sampling=GREEDY) == expected
    assert len({token for row in expected for token in row}) > 5  # and not the same token for ever


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
    torch.rand(5)  # PyTorch's own generator is neither used nor advanced
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
        assert shapes == []  # nothing runs before the first token is requested
        steps = []
        for wanted in ([(3, 7)], [(3, 7), (3, 1)], [(3, 7), (3, 1), (3, 1)], [(3, 7), (3, 1), (3, 1), (3, 1)]):
            steps.append(next(stream))
            assert shapes == wanted
        with pytest.raises(StopIteration):
            next(stream)
        assert len(shapes) == 4  # the last token is not read
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
    assert len(list(generate(model, PROMPTS, max_new_tokens=12, stop=range(17)))) == 1  # no step after all stopped


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
    assert tokens == by_hand(model, PROMPTS[0], 6)  # so dropout was off inside
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

    def recorded(model, tokens, cache, memory):
        seen.append((cache.filled, cache.uniform, cache.slots))
        return prefill_decode.decode(model, tokens, cache, memory)

    monkeypatch.setattr(prefill_decode, "_compiled", lambda: recorded)
    assert complete(model, PROMPTS, max_new_tokens=143, compile=True) == expected
    assert len(seen) == 142
    # The values for which a compiler specializes change twice in 142 steps; at the end the context is the limit.
    assert set(seen) == {(63, False, 256), (127, False, 256), (149, False, 256)}


BAD_CALLS = [
    ({"prompts": []}, "prompts is empty: expected at least one prompt"),
    ({"prompts": [[1], []]}, "prompts[1] is empty: expected at least one token"),
    ({"prompts": [[1], [2, 17]]}, "prompts[1]: token id 17: expected a whole number from 0 to 16"),
    ({"prompts": [[-1]]}, "prompts[0]: token id -1: expected"),
    ({"prompts": [[1] * 35]}, "a prompt of 35 tokens and max_new_tokens=6 add up to 41; expected at most context=40"),
    ({"prompts": [[1] * 40]}, "leaves no room for a new one: expected at most 39, because context=40"),
    ({"max_new_tokens": 0}, "max_new_tokens=0: expected a whole number >= 1"),
    ({"stop": [17]}, "stop: token id 17: expected a whole number from 0 to 16"),
    ({"seed": -1}, "seed=-1: expected a whole number >= 0"),
]


@pytest.mark.parametrize(("change", "message"), BAD_CALLS, ids=[message for _, message in BAD_CALLS])
def test_bad_input_is_named_before_anything_runs(model, change, message):
    with pytest.raises(ValueError) as caught:
        generate(model, **{"prompts": [[1, 2]], "max_new_tokens": 6, **change})  # the iterator is not even advanced
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("stack", "change", "message"),
    [
        ("encoder", {}, "stack='encoder': expected 'decoder' or 'encoder_decoder'"),
        ("decoder", {"source": [[1]]}, "source: stack='decoder' got one; a source is required for encoder_decoder"),
        ("decoder", {"prompts": None}, "prompts=None: expected texts to continue"),
        ("encoder_decoder", {}, "source: stack='encoder_decoder' got none"),
        ("encoder_decoder", {"source": []}, "source is empty: expected at least one source"),
        ("encoder_decoder", {"source": [[]]}, "source[0] is empty: expected at least one token"),
        ("encoder_decoder", {"source": [[17]]}, "source[0]: token id 17: expected a whole number from 0 to 16"),
        ("encoder_decoder", {"source": [[1], [2]]}, "source has 2 rows: expected 1, one for each prompt"),
        ("encoder_decoder", {"source": [[1] * 41]}, "a source of 41 tokens: expected at most context=40"),
        ("encoder_decoder", {"source": [[1]], "prompts": None}, "start=None without prompts: expected the token id"),
        ("encoder_decoder", {"source": [[1]], "prompts": None, "start": 17}, "start: token id 17: expected"),
        ("encoder_decoder", {"source": [[1]], "start": 1}, "start=1: only allowed without prompts"),
    ],
)
def test_sources_belong_to_encoder_decoders_one_for_each_prompt(stack, change, message):
    with pytest.raises(ValueError) as caught:
        generate(drawn(CONFIG.with_(stack=stack)), **{"prompts": [[1]], "max_new_tokens": 2, **change})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"generators": [0]}, "generators has 1 entries: expected 3, one for each prompt"),
        ({"generators": [0, 1, -1]}, "generators[2]=-1: expected a whole number >= 0"),
        ({"rules": Rules(never=[17])}, "never: token id 17: expected a whole number from 0 to 16"),
        ({"rules": Rules(last=17)}, "last: token id 17: expected a whole number from 0 to 16"),
        ({"rules": Rules(never=range(17))}, "these rules exclude all 17 token ids"),
        ({"rules": Rules(never=range(9), min_new_tokens=1), "stop": range(9, 17)}, "exclude all 17 token ids"),
    ],
)
def test_generators_and_rules_that_cannot_be_are_refused(model, change, message):
    with pytest.raises(ValueError) as caught:
        generate(model, PROMPTS, max_new_tokens=2, **change)
    assert message in str(caught.value)
    with pytest.raises(ValueError, match="min_new_tokens=-1: expected a whole number >= 0"):
        Rules(min_new_tokens=-1)


# ---- rules and generators -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.5)], ids=str)
def test_rules_forbid_delay_and_force_tokens(model, sampling):
    options = dict(max_new_tokens=12, sampling=sampling, seed=3)
    free = complete(model, PROMPTS, **options)
    common = Counter(itertools.chain(*free)).most_common(2)[0][0]
    without = complete(model, PROMPTS, rules=Rules(never=[common]), **options)
    assert common in set(itertools.chain(*free)) - set(itertools.chain(*without))
    stop = {row[0] for row in free}
    assert [len(row) for row in complete(model, PROMPTS, stop=stop, **options)] == [1, 1, 1]
    late = complete(model, PROMPTS, stop=stop, rules=Rules(min_new_tokens=5), **options)
    assert all(len(row) > 5 and stop.isdisjoint(row[:5]) for row in late)
    forced = complete(model, PROMPTS, rules=Rules(last=6, never=[6], min_new_tokens=99), stop=[6], **options)
    assert [row[-1] for row in forced] == [6, 6, 6] and all(len(row) == 12 for row in forced)


def test_forbidden_tokens_leave_the_others_their_odds(model):
    """The token is drawn from p, renormalized over the allowed tokens."""
    rules, draws = Rules(never=[0, 2, 5, 8]), 3000
    with torch.no_grad():
        p = model.eval()(torch.tensor([[3, 1]])).logits[0, -1].double().softmax(-1)
    p[[0, 2, 5, 8]] = 0
    p /= p.sum()
    counts = Counter(row[0] for row in complete(model, [[3, 1]] * draws, max_new_tokens=1, rules=rules))
    for token in range(17):
        assert abs(counts[token] - draws * p[token]) <= 4 * math.sqrt(draws * p[token] * (1 - p[token]))


def test_a_row_of_a_batch_can_be_drawn_again_by_the_name_of_its_stream(model):
    together = complete(model, PROMPTS, max_new_tokens=10, seed=6)
    assert complete(model, [PROMPTS[2], PROMPTS[0]], generators=[2, 0], max_new_tokens=10, seed=6) == [
        together[2],
        together[0],
    ]
    stream = np.random.default_rng((6, 1))  # a generator continues from its current state
    first = complete(model, [PROMPTS[1]], generators=[stream], max_new_tokens=4)[0]
    assert first + complete(model, [PROMPTS[1] + first], generators=[stream], max_new_tokens=6)[0] == together[1]


# ---- past the context -----------------------------------------------------------------------------------------------


def long_by_hand(model, prompt, steps, stop, seed, row, sampling):
    """Generate one text by itself, reading the whole window again at every step."""
    context, text, written = model.config.context, list(prompt), []
    stream = np.random.default_rng((seed, row))
    for _ in range(steps):
        if len(text) == context:
            text = text[-(context // 2) :]
        with torch.no_grad():
            p = sampling.probabilities(model(torch.tensor([text])).logits[0, -1]).double()
        cumulative = p.cumsum(-1)
        u = 0.0 if sampling.temperature == 0 else stream.random()
        token = int(torch.searchsorted(cumulative, torch.tensor(u) * cumulative[-1], right=True))
        text.append(token)
        written.append(token)
        if token in stop:
            break
    return written


@pytest.mark.parametrize("context", [8, 9])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.5)], ids=str)
def test_past_the_context_a_row_goes_on_from_its_last_half_whatever_the_others_do(context, sampling):
    model = drawn(CONFIG.with_(context=context, positions=PositionConfig("learned"))).double().eval()
    prompts, stop, seed = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3, 5, 8], [7, 7]], {13, 2}, 11
    steps = list(generate_long(model, prompts, max_new_tokens=40, sampling=sampling, stop=stop, seed=seed))
    rows = [[token for token in row if token is not None] for row in zip(*steps, strict=True)]
    assert rows == [long_by_hand(model, prompt, 40, stop, seed, row, sampling) for row, prompt in enumerate(prompts)]
    assert max(map(len, rows)) > context
    if sampling.temperature:  # some finished early, and the generators of the others continued
        assert min(map(len, rows)) < context // 2
    for row in range(4):  # after its end, a row gives no more tokens
        given = [step[row] is not None for step in steps]
        assert given == sorted(given, reverse=True)


def test_past_the_context_the_rules_count_over_the_whole(model):
    short = drawn(CONFIG.with_(context=6))
    rules = Rules(never=[4], min_new_tokens=17, last=4)
    steps = list(
        generate_long(short, [[1], [2, 3]], max_new_tokens=19, stop=range(5, 17), rules=rules, sampling=Sampling(3.0))
    )
    for row in zip(*steps, strict=True):
        written = [token for token in row if token is not None]
        assert len(written) > 17 and set(written[:17]) <= {0, 1, 2, 3}
        assert 4 not in written[:18] and (written[17] >= 5 or written[18] == 4)
    inside = list(generate_long(model, PROMPTS, max_new_tokens=20, seed=2))  # within the context it equals `generate`
    assert inside == list(generate(model, PROMPTS, max_new_tokens=20, seed=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": [[1], [2] * 41]}, "prompts[1] has 41 tokens: expected at most context=40"),
        ({"prompts": [[1], [17]]}, "prompts[1]: token id 17"),
        ({"prompts": []}, "prompts is empty"),
        ({"max_new_tokens": 0}, "max_new_tokens=0: expected a whole number >= 1"),
        ({"max_new_tokens": None}, "max_new_tokens=None: expected a whole number >= 1"),
        ({"seed": -1}, "seed=-1: expected a whole number >= 0"),
        ({"stop": [17]}, "stop: token id 17"),
        ({"model": drawn(CONFIG.with_(context=1))}, "context=1: expected a decoder with a context of at least 2"),
        ({"model": drawn(CONFIG.with_(stack="encoder_decoder"))}, "stack='encoder_decoder' and context=40: expected"),
    ],
)
def test_what_cannot_go_on_is_refused_before_anything_runs(model, change, message):
    with pytest.raises(ValueError) as caught:
        generate_long(**{"model": model, "prompts": [[1, 2]], "max_new_tokens": 6, **change})
    assert message in str(caught.value)


# ---- encoder-decoders -----------------------------------------------------------------------------------------------

BOTH = CONFIG.with_(stack="encoder_decoder", positions=PositionConfig("sinusoidal"))
SOURCES = [[2, 7, 1, 8, 2, 8], [4], [6, 6, 2]]


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.data(), models("encoder_decoder"), st.sampled_from([torch.float32, torch.float64]), st.integers(0, 2**16))
@torch.no_grad()
def test_an_encoder_decoder_cached_equals_uncached_for_any_split_of_any_ragged_batch(data, config, dtype, seed):
    model = drawn(config, seed).to(dtype).eval()
    lengths = data.draw(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 7)), min_size=1, max_size=4))
    sources = [torch.randint(0, 11, (a,)) for a, _ in lengths]
    targets = [torch.randint(0, 11, (b,)) for _, b in lengths]
    # Each pair separately
    expected = [model(t[None], source=s[None]).logits[0] for s, t in zip(sources, targets, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True, padding_value=3)
    real = torch.arange(ids.shape[1]) < torch.tensor([a for a, _ in lengths])[:, None]
    memory = model.encode(ids, attention_mask=real)
    tokens = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=5)
    cache = KVCache.create(config, len(lengths), tokens.shape[1], dtype=dtype)
    logits = []
    for size in data.draw(splits(tokens.shape[1]), label="split of the targets"):
        start = cache.filled
        out = model(tokens[:, start : start + size], source=memory, cache=cache)
        logits.append(out.logits)
        cache = out.cache
        rows = torch.tensor(data.draw(st.permutations(range(len(lengths)))))  # rows may be permuted at any time
        back = rows.argsort()
        cache, memory = cache.select(rows).select(back), memory.select(rows).select(back)
    bound = {torch.float32: 2e-5, torch.float64: 1e-10}[dtype]
    for row, reference in enumerate(expected):
        there = torch.cat(logits, 1)[row, : len(reference)]
        assert float((there - reference).abs().max()) <= bound * max(1.0, float(reference.abs().max()))


def test_an_encoder_decoder_writes_greedily_what_recomputing_everything_would():
    model = drawn(BOTH, seed=1).double().eval()
    with torch.no_grad():
        expected = []
        for source in SOURCES:
            text = [1]
            for _ in range(12):
                text.append(int(model(torch.tensor([text]), source=torch.tensor([source])).logits[0, -1].argmax()))
            expected.append(text[1:])
    assert len(set(map(tuple, expected))) == 3  # so the source matters
    assert complete(model, source=SOURCES, start=1, max_new_tokens=12, sampling=GREEDY) == expected
    begun = [[1, *row[:n]] for row, n in zip(expected, (3, 0, 5), strict=True)]  # targets that have already begun
    rest = complete(model, begun, source=SOURCES, max_new_tokens=7, sampling=GREEDY)
    assert rest == [row[n : n + 7] for row, n in zip(expected, (3, 0, 5), strict=True)]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.2, top_k=9)], ids=str)
def test_a_source_is_read_alone_whatever_stands_beside_it(sampling):
    model = drawn(BOTH).double()
    options = dict(start=1, max_new_tokens=10, sampling=sampling, seed=4, stop=[3])
    together = complete(model, source=SOURCES, **options)
    for row, source in enumerate(SOURCES):
        assert complete(model, source=[source], generators=[row], **options) == [together[row]]
    assert complete(model, source=SOURCES, **options) == together  # a seed always gives the same text


def test_a_source_is_encoded_and_its_keys_and_values_projected_once():
    model = drawn(BOTH)
    calls = Counter()
    hooks = [
        module.register_forward_hook(lambda module, args, out, name=name: calls.update([name]))
        for name, module in model.named_modules()
    ]
    stream = generate(model, source=SOURCES, start=1, max_new_tokens=6)
    assert not calls  # nothing runs before the first token is requested
    assert len(list(stream)) == 6
    for hook in hooks:
        hook.remove()
    for layer in range(2):
        assert calls[f"encoder.blocks.{layer}"] == 1
        assert calls[f"decoder.blocks.{layer}.cross.key"] == calls[f"decoder.blocks.{layer}.cross.value"] == 1
        assert calls[f"decoder.blocks.{layer}.cross.query"] == calls[f"decoder.blocks.{layer}.attention.key"] == 6


def test_the_compiled_step_reads_the_source_too(monkeypatch):
    model = drawn(BOTH)
    options = dict(source=SOURCES, start=1, max_new_tokens=39)
    expected = complete(model, **options)
    monkeypatch.setattr(prefill_decode, "_compiled", lambda: prefill_decode.decode)
    assert complete(model, compile=True, **options) == expected


def test_threads_that_generate_from_one_model_in_training_write_what_each_writes_alone():
    """The first thread to finish must not switch dropout on for the others."""
    model = drawn(CONFIG.with_(dropout=0.5)).train()
    wanted = list(zip(PROMPTS, (3, 9, 27), strict=True))
    expected = [complete(model, [prompt], max_new_tokens=count) for prompt, count in wanted]
    with ThreadPoolExecutor(3) as threads:
        for _ in range(5):
            started = [threads.submit(complete, model, [prompt], max_new_tokens=count) for prompt, count in wanted]
            assert [one.result() for one in started] == expected
    assert all(module.training for module in model.modules())
