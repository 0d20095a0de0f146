"""The account: the numbers computed from a configuration equal the model's parameters, operations and memory."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
    Transformer,
    WindowConfig,
)
from companion.costs.account import (
    cache_bytes,
    counted_flops,
    decode_bytes,
    forward_bytes,
    forward_flops,
    intensity,
    parameters,
    serve_bytes,
    train_bytes,
    train_flops,
    weights_bytes,
)
from companion.costs.chips import Chip, measure_chip, peak_share, published_peak
from companion.costs.tables import account_data, account_table


@st.composite
def ends(draw, stack):
    pooled = stack == "encoder" and draw(st.booleans())
    return EmbeddingConfig(
        tied=draw(st.booleans()),
        norm=draw(st.booleans()),
        segments=draw(st.integers(0, 3)) if stack == "encoder" else 0,
        head=draw(st.sampled_from(["linear", "biased", "masked"])),
        pooled=pooled,
        classes=draw(st.integers(0, 4)) if pooled else 0,
    )


@st.composite
def configs(draw, stacks=("decoder", "encoder", "encoder_decoder")):
    kv_heads, stack = draw(st.integers(1, 3)), draw(st.sampled_from(stacks))
    mixtures = st.builds(
        lambda k, extra, shared, plain, width, biased: MoEConfig(
            k + extra, k, shared=shared, balanced=extra > 1, router_bias=biased, pattern=(False, True, True)[plain:],
            plain_d_ff=None if plain else width, shared_d_ff=width if shared else None,
            shared_gate=shared > 0 and biased,
        ),
        *(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2), st.integers(0, 1), st.none() | st.integers(1, 9)),
        st.booleans(),
    )  # fmt: skip
    moe = draw(st.none() | mixtures)
    windows = st.builds(WindowConfig, st.integers(1, 6), st.sampled_from([(True,), (True, False)]))
    vectors = st.builds(
        LatentConfig, st.integers(1, 9), st.sampled_from([2, 4]), q_lora_rank=st.none() | st.integers(1, 9)
    )
    latent = draw(st.none() | vectors) if stack == "decoder" else None
    memories = st.builds(
        lambda keys, share, d_head, d_v, decay, rank, gate, pattern: LinearConfig(
            pattern, keys * share, keys, d_head, d_v, decay=decay, rank=rank, gate=gate, convolution=1 + d_v % 4,
            rule="sum" if d_head % 3 == 0 else "delta",
        ),
        *(st.integers(1, 2), st.integers(1, 3), st.integers(1, 7), st.integers(1, 7)),
        st.sampled_from(["head", "channel", "fixed", None]), st.none() | st.integers(1, 9),
        st.sampled_from(["silu", "sigmoid"]), st.sampled_from([(True,), (True, False), (False, True)]),
    )  # fmt: skip
    return ModelConfig(
        vocab=draw(st.integers(2, 30)),
        d_model=2 * draw(st.integers(1, 12)),
        layers=draw(st.integers(1, 3)),
        context=draw(st.integers(8, 20)),
        attention=AttentionConfig(
            heads=kv_heads * draw(st.integers(1, 3)),
            kv_heads=kv_heads if latent is None else None,
            d_head=2 * draw(st.integers(1, 4)),
            d_v=draw(st.none() | st.integers(1, 7)),
            bias=latent is None and draw(st.booleans()),
            output_bias=draw(st.none() | st.booleans()),
            qk_norm=draw(st.none() | st.sampled_from(["head", "width"])) if latent is None else None,
            latent=latent,
            softcap=draw(st.none() | st.just(5.0)),
            gate=draw(st.none() | st.sampled_from(["head", "width"])),
            window=draw(st.none() | windows) if stack == "decoder" else None,
            linear=draw(st.none() | memories) if stack == "decoder" else None,
        ),
        feed_forward=FeedForwardConfig(
            d_ff=draw(st.integers(1, 20)),
            activation=draw(st.sampled_from(["relu", "gelu", "swiglu", "geglu"])),
            bias=draw(st.booleans()),
        ),
        positions=PositionConfig(draw(st.sampled_from(["rotary", "sinusoidal", "learned", "none"]))),
        norm=NormConfig(
            draw(st.sampled_from(["layer", "rms"])), draw(st.sampled_from(["pre", "post", "both", "after"]))
        ),
        embedding=draw(ends(stack)),
        moe=moe,
        stack=stack,
    )


def part_of(name):
    """Return the part of the account to which a parameter belongs."""
    for key, part in (
        ("transform", "head"),
        ("unembedding", "head"),
        ("head_bias", "head"),
        ("pooler", "pooler"),
        ("classifier", "pooler"),
        ("norm", "norms"),
        ("router", "router"),
        ("feed_forward", "feed_forward"),
        ("embedding.weight", "embedding"),
        ("segments", "embedding"),
        ("positions", "positions"),
    ):
        if key in name:
            return part
    return "attention"


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(configs())
def test_parameters_are_those_of_the_model_part_by_part(config):
    config = config.with_(
        attention=replace(config.attention, sinks=config.attention.latent is None and config.vocab % 2 == 0)
    )
    with torch.device("meta"):
        model = Transformer(config)
    counted = dict.fromkeys(parameters(config).parts, 0)
    for name, parameter in model.named_parameters():
        counted[part_of(name)] += parameter.numel()
    assert parameters(config).parts == counted
    assert parameters(config).total == sum(p.numel() for p in model.parameters())


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(configs(), st.integers(1, 5), st.integers(1, 3), st.integers(0, 3), st.integers(1, 4))
@torch.no_grad()
def test_flops_are_what_pytorch_counts(config, tokens, batch, cached, source):
    model = Transformer(config).eval()
    both = config.stack == "encoder_decoder"
    extra = {"source": torch.zeros(batch, source, dtype=torch.long)} if both else {}
    length = {"source": source} if both else {}
    x = torch.zeros(batch, tokens, dtype=torch.long)
    assert counted_flops(lambda: model(x, **extra)) == forward_flops(config, tokens, batch=batch, **length).total
    assert (
        counted_flops(lambda: model.features(x, **extra))
        == forward_flops(config, tokens, batch=batch, logits="none", **length).total
    )
    if config.stack != "encoder" and cached:
        if both:
            extra = {"source": model.encode(extra["source"])}
        seen = torch.zeros(batch, cached, dtype=torch.long)
        cache = model(seen, cache=KVCache.create(config, batch, 8), **extra).cache
        assert (
            counted_flops(lambda: model(x, cache=cache, **extra))
            == forward_flops(config, tokens, batch=batch, cached=cached, **length).total
        )


PLAIN = ModelConfig(
    vocab=11,
    d_model=12,
    layers=3,
    context=64,
    attention=AttentionConfig(heads=3),
    feed_forward=FeedForwardConfig(d_ff=20, activation="relu"),
)
GROUPED = PLAIN.with_(attention=AttentionConfig(heads=6, kv_heads=2, d_head=4, d_v=5))
EXPERTS = GROUPED.with_(
    moe=MoEConfig(experts=5, top_k=2), feed_forward=FeedForwardConfig(d_ff=7), embedding=EmbeddingConfig(tied=False)
)


@pytest.mark.parametrize("t", [1, 2, 17, 64])
def test_a_layers_step_costs_8dd_4td_4dff(t):
    d, d_ff = 12, 20
    assert forward_flops(PLAIN, 1, cached=t - 1, logits="none").total == 3 * (8 * d**2 + 4 * t * d + 4 * d * d_ff)


def test_the_gradient_costs_twice_the_forward_pass():
    model = Transformer(PLAIN)
    tokens = torch.zeros(2, 9, dtype=torch.long)
    counted = counted_flops(lambda: model(tokens).logits.sum().backward())
    # Neither PyTorch nor this counter counts the backward pass of the CPU's fused attention, so the formula adds it.
    scores = forward_flops(PLAIN, 9, batch=2).scores
    assert counted + 2 * scores == train_flops(PLAIN, 9, batch=2)


def test_causal_credit_counts_the_pairs_under_the_mask():
    whole, used = forward_flops(GROUPED, 9), forward_flops(GROUPED, 9, causal=True)
    assert used.scores * 81 == whole.scores * 45  # 9 * 10 / 2 of 9 * 9 pairs
    assert used.total - used.scores == whole.total - whole.scores
    steps = [forward_flops(GROUPED, 1, cached=t).scores for t in range(9)]
    assert sum(steps) == used.scores  # step by step, no pair is computed in vain


@pytest.mark.parametrize("config", [PLAIN, GROUPED, EXPERTS], ids=["plain", "grouped", "experts"])
@torch.no_grad()
def test_the_cost_of_a_generation_with_and_without_a_cache(config):
    model, prompt, new = Transformer(config).eval(), torch.zeros(2, 5, dtype=torch.long), 6

    def recomputed():
        tokens = prompt
        for _ in range(new):
            model.head(model.features(tokens).stream[:, -1:])
            tokens = torch.cat([tokens, tokens[:, -1:]], dim=1)

    def with_cache():
        stream, _, cache = model.features(prompt, cache=KVCache.create(config, 2, 16))
        model.head(stream[:, -1:])
        for _ in range(new - 1):
            cache = model(prompt[:, -1:], cache=cache).cache

    last = {"batch": 2, "logits": "last"}
    assert counted_flops(recomputed) == sum(forward_flops(config, n, **last).total for n in range(5, 5 + new))
    steps = [forward_flops(config, 1, cached=n, **last) for n in range(5, 4 + new)]
    assert counted_flops(with_cache) == sum(step.total for step in [forward_flops(config, 5, **last), *steps])


def test_writing_1024_tokens_costs_530_times_more_without_a_cache():
    layer = PLAIN.with_(
        d_model=768,
        layers=1,
        attention=AttentionConfig(heads=12),
        feed_forward=FeedForwardConfig(d_ff=3072, activation="relu"),
    )
    head = 1024 * 2 * 768 * PLAIN.vocab
    n, d = 1024, 768
    cached = sum(forward_flops(layer, 1, cached=i, logits="last").total for i in range(n)) - head
    recomputed = sum(forward_flops(layer, i + 1, logits="last").total for i in range(n)) - head
    assert cached == 24 * d**2 * n + 4 * d * n * (n + 1) // 2
    assert recomputed == 24 * d**2 * n * (n + 1) // 2 + 4 * d * n * (n + 1) * (2 * n + 1) // 6
    assert round(recomputed / cached) == 530


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(configs(stacks=("decoder",)), st.integers(1, 9), st.integers(1, 3), st.booleans())
def test_cache_bytes_are_those_of_the_tensors(config, tokens, batch, wide):
    dtype = torch.float64 if wide else torch.bfloat16
    tokens += 150 * (tokens % 2)  # enough tokens for the local layers' caches to roll
    cache = KVCache.create(config, batch, tokens, dtype=dtype, device="meta")
    states = cache.states
    kept = () if states is None else (*states.matrices, *states.tails, *states.logs)
    numbers = sum(store.nbytes for store in (*cache.keys, *cache.values, *kept))
    assert cache_bytes(config, tokens, batch=batch, dtype=dtype) == numbers


@pytest.mark.parametrize("cached", [0, 3, 4, 5, 40])
def test_local_layers_are_credited_with_what_the_window_shows(cached):
    """Counted by hand: for each new token the keys that it sees, and the keys that any new token sees."""
    config = PLAIN.with_(attention=AttentionConfig(heads=3, window=WindowConfig(5, (True, False, True))))
    pair = 2 * 3 * (4 + 4)
    for tokens in (1, 2, 7):
        used = sum(2 * min(t + 1, 5) + t + 1 for t in range(cached, cached + tokens))
        assert forward_flops(config, tokens, cached=cached, causal=True).scores == pair * used
        near = cached + tokens - max(0, cached - 4)
        assert forward_flops(config, tokens, cached=cached).scores == pair * tokens * (2 * near + cached + tokens)
    numbers = 2 * min(cached + 1, 5) + cached + 1  # keys and values of one step, summed over the layers
    assert decode_bytes(config, cached) - decode_bytes(config, 0) == (numbers - 3) * 3 * (4 + 4) * 4


def test_fewer_key_heads_keep_less():
    many, grouped, one = (
        cache_bytes(PLAIN.with_(attention=AttentionConfig(heads=6, kv_heads=kv, d_head=4)), 10) for kv in (6, 2, 1)
    )
    assert many == 3 * grouped == 6 * one == 3 * 10 * 6 * (4 + 4) * 4  # layers tokens heads (d_k + d_v) bytes


@torch.no_grad()
def test_a_sources_keys_and_values_count_too():
    config = GROUPED.with_(stack="encoder_decoder")
    memory = Transformer(config).encode(torch.zeros(2, 7, dtype=torch.long))
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in memory.layers)
    assert cache_bytes(config, 9, batch=2, source=7) == kept + cache_bytes(config, 9, batch=2)


def test_published_models_have_their_published_sizes():
    gpt2 = ModelConfig(
        vocab=50257,
        d_model=768,
        layers=12,
        context=1024,
        attention=AttentionConfig(heads=12, bias=True),
        feed_forward=FeedForwardConfig(d_ff=3072, activation="gelu_tanh", bias=True),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer"),
    )
    mixtral = ModelConfig(
        vocab=32000,
        d_model=4096,
        layers=32,
        context=32768,
        attention=AttentionConfig(heads=32, kv_heads=8),
        feed_forward=FeedForwardConfig(d_ff=14336),
        moe=MoEConfig(experts=8, top_k=2),
        embedding=EmbeddingConfig(tied=False),
    )
    assert parameters(gpt2).total == parameters(gpt2).active == 124_439_808
    assert parameters(mixtral).total == 46_702_792_704
    assert parameters(mixtral).active == 12_879_925_248  # attention, the embeddings and two experts of eight


def test_bytes_of_weights_and_training():
    model = Transformer(EXPERTS)
    assert weights_bytes(EXPERTS) == sum(p.nbytes for p in model.parameters())
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moments = [t for state in optimizer.state.values() for name, t in state.items() if name != "step"]
    held = sum(2 * p.nbytes for p in model.parameters()) + sum(t.nbytes for t in moments)
    assert train_bytes(EXPERTS) == held == 16 * parameters(EXPERTS).total
    assert train_bytes(EXPERTS, torch.bfloat16) == 16 * parameters(EXPERTS).total  # 2 + 2 + 8, and 4 for the fp32 copy


def test_a_decode_step_reads_the_weights_that_take_part_and_the_cache():
    half = torch.bfloat16
    assert decode_bytes(GROUPED, 9, dtype=half) == weights_bytes(GROUPED, half) + cache_bytes(GROUPED, 10, dtype=half)
    # Untied: one row of the embedding table per token. Experts: the chosen two of five for one row, more for more rows.
    rest = parameters(EXPERTS).active - parameters(EXPERTS).embedding
    assert decode_bytes(EXPERTS, 9) == 4 * (rest + 12) + cache_bytes(EXPERTS, 10)
    three = decode_bytes(EXPERTS, 9, batch=3) - cache_bytes(EXPERTS, 10, batch=3)
    expert = 3 * 3 * 12 * 7  # three layers, three matrices each
    visited = 5 * (1 - (3 / 5) ** 3)
    assert three == round(4 * (rest + 3 * 12 + (visited - 2) * expert))


def test_experts_visited_are_what_random_choices_visit():
    torch.manual_seed(0)
    rows, expert = 4, 3 * 3 * 12 * 7 * 4
    choices = torch.rand(20000, rows, 5).topk(2, dim=-1).indices.flatten(1)
    visited = torch.stack([(choices == e).any(1) for e in range(5)], dim=1).sum(1).double().mean()
    fewer, more = (forward_bytes(EXPERTS.with_(moe=MoEConfig(5, k)), rows) for k in (2, 5))
    assert (more - fewer) / expert == pytest.approx(5 - visited.item(), abs=0.02)


def test_int8_weights_with_a_wider_cache():
    weights, cache = weights_bytes(GROUPED, torch.int8), cache_bytes(GROUPED, 64, dtype=torch.bfloat16)
    assert weights == parameters(GROUPED).total
    assert serve_bytes(GROUPED, dtype=torch.int8, cache_dtype=torch.bfloat16) == weights + cache
    assert serve_bytes(GROUPED, batch=3) == 4 * weights + 6 * cache
    assert decode_bytes(GROUPED, 63, dtype=torch.int8, cache_dtype=torch.bfloat16) == weights + cache
    both = GROUPED.with_(stack="encoder_decoder")
    assert serve_bytes(both) == weights_bytes(both) + cache_bytes(both, 64, source=64)
    assert serve_bytes(GROUPED.with_(stack="encoder")) == weights_bytes(GROUPED.with_(stack="encoder"))


@pytest.mark.parametrize("tied", [True, False])
def test_a_decode_step_reads_every_weight_of_its_head(tied):
    plain, masked = (
        PLAIN.with_(embedding=EmbeddingConfig(tied=tied, norm=True, head=head)) for head in ("linear", "masked")
    )
    more = parameters(masked).total - parameters(plain).total
    assert more == 11 + 12 * 12 + 12 + 12  # a bias for each token id, a dense layer with its bias, and an RMS norm
    assert decode_bytes(masked, 5) - decode_bytes(plain, 5) == 4 * more


def test_prefill_is_bound_by_arithmetic_and_decode_by_memory():
    model = PLAIN.with_(
        d_model=1024,
        layers=12,
        context=4096,
        attention=AttentionConfig(heads=16),
        feed_forward=FeedForwardConfig(d_ff=4096),
    )
    chip, half = Chip(flops=1e15, bandwidth=3e12), torch.bfloat16
    prefill, decode = intensity(model, 4000, dtype=half), intensity(model, 1, cached=4000, dtype=half)
    assert chip.bound(prefill) == "compute" and chip.bound(decode) == "memory"
    # About one FLOP per byte: each 2-byte weight is used for one multiplication and one addition
    assert 0.5 < decode < 2
    assert intensity(model, 1, cached=1, batch=64, dtype=half) > 40 * decode  # the batch shares the weights


def test_the_roofline():
    chip = Chip(flops=100.0, bandwidth=10.0)
    assert chip.balance == 10
    assert [chip.attainable(i) for i in (1, 10, 50)] == [10, 100, 100]
    assert [chip.bound(i) for i in (9.9, 10, 50)] == ["memory", "compute", "compute"]
    assert chip.seconds(flops=200, bytes=10) == 2 and chip.seconds(flops=200, bytes=100) == 10


def test_this_machine_can_be_measured():
    chip = measure_chip()
    assert 1e8 < chip.flops < 1e16 and 1e7 < chip.bandwidth < 1e15
    side = 256
    a = torch.randn(side, side)
    assert chip.seconds(2 * side**3, 3 * a.nbytes) > 0


def test_a_share_of_the_peak_needs_the_peak_of_this_very_chip():
    assert published_peak("NVIDIA H100 80GB HBM3", torch.bfloat16) == 989.4e12
    assert published_peak("NVIDIA H100 80GB HBM3", torch.float32) is None
    assert published_peak("NVIDIA H100 80GB HBM3 MIG 1g.10gb", torch.bfloat16) is None
    assert peak_share(flops=3e12, seconds=2, peak=6e12) == 0.25
    with pytest.raises(ValueError, match=r"seconds=0: expected a number > 0"):
        peak_share(1, 0, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: forward_flops(PLAIN, 0), "tokens=0: expected a whole number >= 1"),
        (lambda: forward_flops(PLAIN, 1, cached=-1), "cached=-1: expected a whole number >= 0"),
        (lambda: forward_flops(PLAIN, 1, source=3), "source=3: expected"),
        (lambda: forward_flops(PLAIN.with_(stack="encoder_decoder"), 1), "source=0: expected a length >= 1"),
        (lambda: forward_flops(PLAIN.with_(stack="encoder"), 1, cached=2), "cached=2: expected 0 for stack='encoder'"),
        (lambda: cache_bytes(PLAIN.with_(stack="encoder"), 1), "stack='encoder': expected a decoder"),
        (lambda: cache_bytes(PLAIN, 1, source=2), "source=2: expected 0"),
        (lambda: decode_bytes(PLAIN.with_(stack="encoder"), 1), "stack='encoder': expected 'decoder'"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value)


def test_the_table_names_every_part_and_figure():
    text = account_table(EXPERTS)
    count = parameters(EXPERTS)
    for value in (*count.parts.values(), count.total, count.active):
        assert not value or f"{value:,}" in text
    assert f"{forward_flops(EXPERTS, 1, cached=63).total:,}" in text
    assert f"{train_flops(EXPERTS, 64) // 64:,}" in text
    assert "positions" not in text  # rotary positions have no parameters
    assert "active" not in account_table(PLAIN) and "cache" not in account_table(PLAIN.with_(stack="encoder"))
    assert max(map(len, account_table(EXPERTS.with_(stack="encoder_decoder")).splitlines())) < 80


def test_the_table_says_what_a_token_adds_to_a_cache_and_what_a_text_has_of_any_length():
    mixed = PLAIN.with_(layers=3, context=500, attention=AttentionConfig(3, linear=LinearConfig((True, True, False))))
    sizes = account_data(mixed)["bytes"]
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        grown = cache_bytes(mixed, 500, dtype=dtype) - cache_bytes(mixed, 400, dtype=dtype)
        assert sizes["cache_token"][name] == grown / 100
        assert sizes["cache_full"][name] == sizes["cache_text"][name] + 500 * sizes["cache_token"][name]
    assert "cache, a text of any length" in account_table(mixed) and "cache_text" not in account_data(PLAIN)["bytes"]
    alone = account_data(mixed.with_(attention=AttentionConfig(3, linear=LinearConfig())))["bytes"]
    assert alone["cache_token"]["fp32"] == 0 and alone["cache_full"] == alone["cache_text"]
