"""The whole model: causality, padding, equality with PyTorch's stacks, tying, initialisation."""

import itertools
import math

import pytest
import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

from companion import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    KVCache,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    RotaryScaling,
    Transformer,
    WindowConfig,
)
from companion.layers.positions import Rotary


def config(**changes):
    fields = {
        "vocab": 13,
        "d_model": 12,
        "layers": 2,
        "context": 16,
        "attention": AttentionConfig(6, 3, d_head=4, d_v=5),
        "feed_forward": FeedForwardConfig(14),
    }
    return ModelConfig(**fields | changes)


def model(**changes):
    torch.manual_seed(0)
    built = Transformer(config(**changes)).double()
    for parameter in built.parameters():  # norms with random gains and biases, so that a forgotten one is noticed
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=1.0, std=0.2)
    return built


def tokens(batch=3, length=7, seed=0):
    return torch.randint(0, 13, (batch, length), generator=torch.Generator().manual_seed(seed))


VARIANTS = [
    dict(positions=PositionConfig(p), norm=NormConfig(n, place), moe=moe, feed_forward=FeedForwardConfig(14, f))
    for (p, n, place, f, moe) in [
        *itertools.product(("rotary", "sinusoidal", "learned"), ("rms",), ("pre", "post"), ("swiglu",), (None,)),
        ("none", "layer", "pre", "relu", None),
        ("rotary", "layer", "post", "gelu_tanh", None),
        ("rotary", "rms", "pre", "swiglu", MoEConfig(4, 2)),
        ("rotary", "rms", "both", "geglu_tanh", None),
        ("learned", "layer", "after", "geglu", None),
    ]
]
GELU = FeedForwardConfig(14, "gelu", bias=True)
LONG = dict(
    layers=4,
    attention=AttentionConfig(
        6, 3, d_head=4, d_v=5, bias=True, output_bias=False, qk_norm="width", softcap=3.0,
        window=WindowConfig(3, (True, True, False), base=50.0), sinks=True, gate="head",
    ),
    positions=PositionConfig(partial_rotary_factor=0.5, scaling=RotaryScaling("yarn", 2.0, 16), pattern=(True, False)),
    norm=NormConfig("rms", "both", unit_offset=True),
    embedding=EmbeddingConfig(scaled=True, rounded=True, logit_softcap=5.0),
)  # fmt: skip
VARIANTS.append(
    dict(
        layers=4,
        attention=AttentionConfig(
            6, 3, d_head=4, d_v=5, window=WindowConfig(3, (True, False)), sinks=True, gate="width"
        ),
        moe=MoEConfig(6, 2, "sigmoid", groups=3, top_groups=2, scale=2.5, balanced=True, pattern=(False, True)),
        feed_forward=FeedForwardConfig(14, "swiglu_clamped", bias=True),
    )
)
MULTIPLIED = dict(
    attention=AttentionConfig(6, 3, d_head=4, score_width=9.0),
    positions=PositionConfig(
        partial_rotary_factor=0.5, scaling=RotaryScaling("longrope", 3.0, 64, short=(1.25,), long=(4.0,))
    ),
    norm=NormConfig("rms", "after"),
    embedding=EmbeddingConfig(multiplier=3.0, logit_divisor=0.5),
    residual=0.3,
)
PARALLEL = dict(norm=NormConfig("layer", "parallel_shared", bias=False), moe=MoEConfig(4, 2), feed_forward=GELU)
VARIANTS += [
    LONG,
    MULTIPLIED,
    PARALLEL,
    dict(norm=NormConfig("layer", "parallel"), positions=PositionConfig(partial_rotary_factor=0.5)),
]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_no_logit_depends_on_a_later_token(variant, training):
    # Dropout is on but drops almost nothing, because only the code path of training mode is tested.
    net = model(**variant, dropout=1e-9).train(training)
    text = tokens()
    before = net(text).logits
    for place in range(7):
        changed = text.clone()
        changed[:, place:] = (changed[:, place:] + 1 + torch.arange(7 - place)) % 13
        torch.manual_seed(0)
        after = net(changed).logits
        torch.testing.assert_close(after[:, :place], before[:, :place], atol=1e-12, rtol=0)
        assert (after[:, place:] - before[:, place:]).abs().max() > 1e-6


def test_an_encoder_sees_both_ways():
    net = model(stack="encoder")
    changed = tokens()
    changed[:, -1] = (changed[:, -1] + 1) % 13
    assert (net(changed).logits - net(tokens()).logits)[:, 0].abs().max() > 1e-6


@torch.no_grad()
def test_two_entrances_are_one_where_they_hold_the_same_numbers():
    ends = {"positions": PositionConfig("learned"), "stack": "encoder_decoder"}
    shared, apart = (model(embedding=EmbeddingConfig(norm=True, apart=two), **ends) for two in (False, True))
    assert shared.source_positions is None and shared.source_norm is None
    apart.load_state_dict(shared.state_dict(), strict=False)
    apart.source_positions.load_state_dict(shared.positions.state_dict())
    apart.source_norm.load_state_dict(shared.embedding_norm.state_dict())
    source, text = tokens(seed=1), tokens()
    usual = shared(text, source=source).logits
    assert torch.equal(apart(text, source=source).logits, usual)
    apart.source_positions.weight.neg_()
    assert not torch.allclose(apart.encode(source).layers[0].keys, shared.encode(source).layers[0].keys)
    apart.source_positions.weight.neg_()
    apart.positions.weight.neg_()  # the encoder does not read it
    assert torch.equal(apart.encode(source).layers[0].keys, shared.encode(source).layers[0].keys)


@pytest.mark.parametrize("stack", ["decoder", "encoder"])
def test_padding_changes_no_real_token(stack):
    net = model(stack=stack)
    text = tokens(batch=2)
    alone = net(text[1:, :4]).logits
    attention_mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    torch.testing.assert_close(net(text, attention_mask=attention_mask).logits[1:, :4], alone, atol=1e-12, rtol=0)


def test_packed_documents_are_as_if_alone():
    from companion.layers.masks import documents, materialize

    net, text = model(), tokens(batch=1)
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    packed = net(text, positions=positions, mask=materialize(documents(ids), 1, 7, 7)).logits
    torch.testing.assert_close(packed[:, :3], net(text[:, :3]).logits, atol=1e-12, rtol=0)
    torch.testing.assert_close(packed[:, 3:], net(text[:, 3:]).logits, atol=1e-12, rtol=0)


def load_attention(ours, theirs):
    for name, weight, bias in zip(
        ("query", "key", "value"), theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
    ):
        getattr(ours, name).weight.copy_(weight)
        getattr(ours, name).bias.copy_(bias)
    ours.output.load_state_dict(theirs.out_proj.state_dict())


@torch.no_grad()
def load_stack(ours, theirs, pre):
    for block, layer in zip(ours.blocks, theirs.layers, strict=True):
        load_attention(block.attention, layer.self_attn)
        norms = [block.attention_norm, block.feed_forward_norm]
        if block.cross is not None:
            load_attention(block.cross, layer.multihead_attn)
            norms.insert(1, block.cross_norm)
        for i, norm in enumerate(norms, 1):
            norm.load_state_dict(getattr(layer, f"norm{i}").state_dict())
        block.feed_forward.inner.load_state_dict(layer.linear1.state_dict())
        block.feed_forward.outer.load_state_dict(layer.linear2.state_dict())
    if pre:
        ours.norm.load_state_dict(theirs.norm.state_dict())


def pairs(ours, theirs, pre):
    """Return the parameters of both stacks in pairs; PyTorch stores query, key and value in one."""
    for block, layer in zip(ours.blocks, theirs.layers, strict=True):
        norms = [block.attention_norm, block.feed_forward_norm]
        attentions = [(block.attention, layer.self_attn)]
        if block.cross is not None:
            attentions.append((block.cross, layer.multihead_attn))
            norms.insert(1, block.cross_norm)
        for a, b in attentions:
            for kind in ("weight", "bias"):
                three = [getattr(getattr(a, name), kind) for name in ("query", "key", "value")]
                yield three, getattr(b, f"in_proj_{kind}")
                yield [getattr(a.output, kind)], getattr(b.out_proj, kind)
        modules = [(norm, getattr(layer, f"norm{i}")) for i, norm in enumerate(norms, 1)]
        modules += [(block.feed_forward.inner, layer.linear1), (block.feed_forward.outer, layer.linear2)]
        for a, b in modules:
            yield [a.weight], b.weight
            yield [a.bias], b.bias
    if pre:
        yield [ours.norm.weight], theirs.norm.weight
        yield [ours.norm.bias], theirs.norm.bias


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("stack", ["encoder", "decoder", "encoder_decoder"])
def test_stacks_equal_pytorchs_with_copied_weights_forward_and_backward(stack, placement, padded):
    torch.manual_seed(0)
    pre = placement == "pre"
    net = model(
        stack=stack,
        attention=AttentionConfig(3, bias=True),
        feed_forward=FeedForwardConfig(14, "relu", bias=True),
        positions=PositionConfig("sinusoidal"),
        norm=NormConfig("layer", placement, 1e-5),
        embedding=EmbeddingConfig(scaled=True),
    )
    options = dict(dropout=0.0, batch_first=True, norm_first=pre, dtype=torch.float64)
    layer = nn.TransformerEncoderLayer(12, 3, 14, **options)
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(12, dtype=torch.float64), enable_nested_tensor=False)
    theirs = nn.Transformer(12, 3, 2, 2, 14, custom_encoder=encoder, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    if not pre:
        theirs.encoder.norm = theirs.decoder.norm = None
    target, source = tokens(), tokens(length=5, seed=1)
    # Targets are padded inside too, where attention without the mask would see the padding; the first token is real.
    target_real, source_real = torch.ones(3, 7, dtype=torch.bool), torch.ones(3, 5, dtype=torch.bool)
    if padded:
        target_real[1, 4:] = target_real[2, 2] = source_real[0, 3:] = source_real[2, 1:] = False
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)  # in PyTorch's masks, True means hidden
    hidden = dict(src_key_padding_mask=~source_real, memory_key_padding_mask=~source_real)
    y, x = net._embed(target, torch.arange(7)), net._embed(source, torch.arange(5))
    stacks = []
    if net.encoder is not None:
        load_stack(net.encoder, theirs.encoder, pre)
        stacks.append((net.encoder, theirs.encoder))
    if stack == "decoder":  # PyTorch's stack without cross-attention is its encoder with a mask
        load_stack(net.decoder, theirs.encoder, pre)
        stacks.append((net.decoder, theirs.encoder))
        out = net(target, attention_mask=target_real).logits
        expected = theirs.encoder(y, mask=later, src_key_padding_mask=~target_real)
    elif stack == "encoder":
        out = net(source, attention_mask=source_real).logits
        expected = theirs.encoder(x, src_key_padding_mask=~source_real)
    else:
        load_stack(net.decoder, theirs.decoder, pre)
        stacks.append((net.decoder, theirs.decoder))
        out = net(target, source=net.encode(source, attention_mask=source_real), attention_mask=target_real).logits
        expected = theirs(x, y, tgt_mask=later, tgt_key_padding_mask=~target_real, **hidden)
    expected = net.head(expected)
    attention_mask = source_real if stack == "encoder" else target_real
    torch.testing.assert_close(out[attention_mask], expected[attention_mask], atol=1e-10, rtol=0)
    # Compare the gradients of the same weighted sum with respect to all parameters of the stacks and the embeddings.
    weights = torch.randn(out[attention_mask].shape, dtype=torch.float64)
    (out[attention_mask] * weights).sum().backward()
    embedded = net.embedding.weight.grad.clone()
    net.embedding.weight.grad = None
    (expected[attention_mask] * weights).sum().backward()
    torch.testing.assert_close(embedded, net.embedding.weight.grad, atol=1e-9, rtol=0)
    for a, b in stacks:
        for parts, whole in pairs(a, b, pre):
            assert whole.grad.abs().max() > 0
            torch.testing.assert_close(torch.cat([p.grad for p in parts]), whole.grad, atol=1e-9, rtol=0)


@torch.no_grad()
def test_keys_and_values_of_a_source_are_projected_once_and_then_read():
    net = model(stack="encoder_decoder").eval()
    target, source = tokens(), tokens(length=5, seed=1)
    calls = []
    for name, module in net.named_modules():
        if name.endswith(("cross.key", "cross.value", "cross.query", "encoder")):
            module.register_forward_hook(lambda module, args, out, name=name: calls.append(name))
    memory, cache = net.encode(source), KVCache.create(net.config, 3, 7, dtype=torch.float64)
    assert len(calls) == 1 + 2 * 2  # the encoder, and the keys and values of two layers
    calls.clear()
    for t in range(7):
        cache = net(target[:, t : t + 1], source=memory, cache=cache).cache
    assert sorted(calls) == sorted([f"decoder.blocks.{layer}.cross.query" for layer in range(2)] * 7)


@torch.no_grad()
def test_rows_of_a_memory_can_be_chosen_and_repeated():
    net = model(stack="encoder_decoder").eval()
    target, source = tokens(), tokens(length=5, seed=1)
    attention_mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] * 4 + [False]])
    rows = torch.tensor([2, 0, 2, 1])
    for some in (None, attention_mask, attention_mask[:1]):  # none, one for each row, or one for all
        memory = net.encode(source, attention_mask=some)
        expected = net(target, source=memory).logits[rows]
        torch.testing.assert_close(net(target[rows], source=memory.select(rows)).logits, expected, atol=1e-12, rtol=0)


@torch.no_grad()
def test_an_encoder_decoder_reads_its_source_once_and_its_target_step_by_step():
    net = model(stack="encoder_decoder").eval()
    target, source = tokens(), tokens(length=5, seed=1)
    attention_mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] * 4 + [False]])
    memory = net.encode(source, attention_mask=attention_mask)
    full = net(target, source=memory).logits
    torch.testing.assert_close(full[1:2], net(target[1:2], source=source[1:2, :3]).logits, atol=1e-12, rtol=0)
    cache, steps = KVCache.create(net.config, 3, 7, dtype=torch.float64), []
    for t in range(7):
        out = net(target[:, t : t + 1], source=memory, cache=cache)
        cache = out.cache
        steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, 1), full, atol=1e-12, rtol=0)


def test_a_tied_head_is_one_parameter_whose_gradient_is_the_sum_of_both_uses():
    tied = model()
    assert tied.unembedding is None
    twin = model(embedding=EmbeddingConfig(tied=False))
    with torch.no_grad():
        missing = twin.load_state_dict(tied.state_dict(), strict=False).missing_keys
        twin.unembedding.weight.copy_(tied.embedding.weight)
    assert missing == ["unembedding.weight"]
    for net in (tied, twin):
        net(tokens()).logits.square().sum().backward()
    torch.testing.assert_close(tied.embedding.weight.grad, twin.embedding.weight.grad + twin.unembedding.weight.grad)


@pytest.mark.parametrize("changes", [dict(moe=MoEConfig(2, 2), positions=PositionConfig("learned"), context=7), LONG])
def test_every_parameter_learns(changes):
    net = model(**changes)
    net(tokens()).logits.square().sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None or p.grad.abs().max() == 0] == []


def test_the_stream_keeps_its_size_with_depth_and_logits_start_with_variance_one():
    for layers in (1, 4, 16):
        torch.manual_seed(0)
        net = Transformer(
            config(layers=layers, d_model=48, attention=AttentionConfig(6), feed_forward=FeedForwardConfig(128))
        )
        stream = start = net.embedding(tokens(8, 16))
        for block in net.decoder.blocks:
            stream, _ = block(stream)
        assert 1.5 < stream.std() / start.std() < 3  # without scaling down the residual writes: 2, 6 and 11
        assert 0.6 < net(tokens(8, 16)).logits.std() < 1.6  # with a fixed standard deviation of 0.02: 0.2


def test_routing_comes_back_with_the_output_one_per_layer():
    out = model(moe=MoEConfig(4, 2))(tokens())
    assert [r.counts.sum().item() for r in out.routing] == [3 * 7 * 2] * 2
    assert model()(tokens()).routing == ()
    both = model(moe=MoEConfig(4, 2), stack="encoder_decoder")(tokens(), source=tokens(length=5))
    assert [r.counts.sum().item() for r in both.routing] == [3 * 5 * 2] * 2 + [3 * 7 * 2] * 2


def test_dropout_acts_in_training_and_never_in_evaluation():
    net, plain = model(dropout=0.5), model()
    for mode in (True, False):
        same = torch.allclose(net.train(mode)(tokens()).logits, plain.train(mode)(tokens()).logits)
        assert same is not mode
    attention = net.train().decoder.blocks[0].attention
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    assert not torch.equal(attention(x), attention(x))  # the attention weights are dropped too


def test_scaled_embeddings_enter_the_stream_times_the_root_of_their_width():
    net = model(embedding=EmbeddingConfig(scaled=True), positions=PositionConfig("none"))
    torch.testing.assert_close(net._embed(tokens(), torch.arange(7)), net.embedding(tokens()) * math.sqrt(12))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rounded_factor_is_that_of_gemma(dtype):
    ends = EmbeddingConfig(scaled=True, rounded=True)
    net = model(embedding=ends, positions=PositionConfig("none"), d_model=10).to(dtype)
    theirs = Gemma3TextScaledWordEmbedding(13, 10, 0, embed_scale=10**0.5).to(dtype)
    theirs.weight = net.embedding.weight
    entered = net._embed(tokens(), torch.arange(7))
    assert torch.equal(entered, theirs(tokens()))
    plain = model(embedding=EmbeddingConfig(scaled=True), positions=PositionConfig("none"), d_model=10).to(dtype)
    assert torch.equal(entered, plain._embed(tokens(), torch.arange(7))) == (dtype == torch.float32)


def test_capped_logits_keep_their_order_and_stay_below_the_cap():
    plain, capped = model(), model(embedding=EmbeddingConfig(logit_softcap=0.7))
    logits, below = plain(tokens()).logits, capped(tokens()).logits
    torch.testing.assert_close(below, 0.7 * torch.tanh(logits / 0.7))
    assert logits.abs().max() > 1 > 0.7 > below.abs().max()
    assert torch.equal(logits.argsort(-1), below.argsort(-1))


def test_a_layer_without_positions_sees_the_same_tokens_in_any_numbering():
    net = model(layers=4, positions=PositionConfig(pattern=(True, False, True)))
    assert [block.attention.rotary is not None for block in net.decoder.blocks] == [True, False, True, True]
    x, far = torch.randn(2, 7, 12, dtype=torch.float64), 5 * torch.arange(7)
    without, with_ = net.decoder.blocks[1].attention, net.decoder.blocks[0].attention
    assert torch.equal(without(x), without(x, positions=far)) and not torch.allclose(with_(x), with_(x, positions=far))
    every = model(layers=4)
    every.load_state_dict(net.state_dict())
    assert not torch.allclose(net(tokens()).logits, every(tokens()).logits)
    alone = [net.decoder.blocks[i].attention.rotary for i in (0, 2, 3)]
    assert net.decoder.rotaries == alone[:1] and net.decoder.turns == [0, None, 0, 0]  # angles are computed once


def test_local_and_global_layers_turn_by_bases_of_their_own():
    attention = AttentionConfig(6, 3, d_head=4, d_v=5, window=WindowConfig(3, (True, False), base=100.0))
    scaling = RotaryScaling("linear", 8.0)
    net = model(attention=attention, positions=PositionConfig(base=1e6, scaling=scaling))
    local, whole = (block.attention for block in net.decoder.blocks)
    assert (local.rotary, local.window) == (Rotary(4, 100.0), 3)
    assert (whole.rotary, whole.window) == (Rotary(4, 1e6, scaling=scaling), None)
    x, places, cut = torch.randn(2, 7, 12, dtype=torch.float64), torch.arange(7), {}
    for layer, block in zip((local, whole), net.decoder.blocks, strict=True):
        block.register_forward_pre_hook(
            lambda _, args, given, at=layer: cut.update({at: given["positions"]}), with_kwargs=True
        )
    net.decoder(x, positions=places)
    for layer in (local, whole):
        wanted = layer.rotary.at(places, torch.float64)
        assert torch.equal(cut[layer].cos, wanted.cos) and torch.equal(cut[layer].sin, wanted.sin)


def test_weights_start_with_the_variance_the_docstring_says():
    torch.manual_seed(0)
    net = Transformer(config(d_model=60, layers=8, attention=AttentionConfig(6), moe=MoEConfig(2, 1)))
    block, std = net.decoder.blocks[3], math.sqrt(2 / (5 * 60))
    for weight in (block.attention.query.weight, block.feed_forward.inner, block.feed_forward.router.weight):
        assert weight.std().item() == pytest.approx(std, rel=0.1)
    for weight in (block.attention.output.weight, block.feed_forward.outer):
        assert weight.std().item() == pytest.approx(std / math.sqrt(2 * 8), rel=0.1)


@pytest.mark.parametrize(
    ("changes", "call", "message"),
    [
        ({}, lambda net: net(tokens(), source=tokens()), "stack='decoder' got one"),
        ({"stack": "encoder_decoder"}, lambda net: net(tokens()), "stack='encoder_decoder' got none"),
        ({"stack": "encoder"}, lambda net: net(tokens(), source=tokens()), "are only for decoders"),
        ({}, lambda net: net.encode(tokens()), "expected 'encoder_decoder'"),
        ({}, lambda net: net(tokens(), segments=tokens()), "segments are only for encoders"),
        ({"stack": "encoder"}, lambda net: net(tokens(), segments=tokens()), "expected embedding.segments >= 1"),
        (
            {},
            lambda net: net(tokens(), mask=tokens() > 0),
            r"mask has shape \(3, 7\): .* to mark padding, pass attention_mask",
        ),
        (
            {},
            lambda net: net(tokens(), attention_mask=tokens()[:2] > 0),
            r"attention_mask has shape \(2, 7\): expected .* \(3, 7\)",
        ),
        ({"stack": "encoder"}, lambda net: net.pool(torch.zeros(2, 7, 12)), "pooled=False"),
        ({"stack": "encoder"}, lambda net: net.classify(torch.zeros(2, 7, 12)), "classes=0"),
        (
            {"positions": PositionConfig("learned"), "context": 6},
            lambda net: net(tokens()),
            "7 tokens exceed the 6 learned positions",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused(changes, call, message, unchecked):
    with pytest.raises(ValueError, match=message):
        call(model(**changes))
