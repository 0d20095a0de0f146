"""Sinusoids, learned positions and both rotary layouts: formulas, invariances, and published implementations."""

import math

import pytest
import torch
from models import drawn
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as apply_gptj
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as apply_llama
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from companion import (
    AttentionConfig,
    FeedForwardConfig,
    KVCache,
    Learned,
    ModelConfig,
    PositionConfig,
    Sampling,
    WindowConfig,
    complete,
    half_from_interleaved,
    rotary_angles,
    rotate,
    sinusoidal,
)
from companion.layers.positions import relative_buckets


def test_sinusoidal_is_the_papers_formula():
    table = sinusoidal(torch.tensor([0, 1, 50]), 6, dtype=torch.float64)
    for row, pos in enumerate((0, 1, 50)):
        for i in range(3):
            angle = pos / 10000 ** (2 * i / 6)
            assert table[row, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[row, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_sines_first_is_the_same_table_in_marians_order_and_precise_at_its_longest():
    positions = torch.arange(512)
    beside, first = (sinusoidal(positions, 16, layout=layout) for layout in ("interleaved", "half"))
    torch.testing.assert_close(first[:, :8], beside[:, 0::2])
    torch.testing.assert_close(first[:, 8:], beside[:, 1::2])
    theirs = MarianSinusoidalPositionalEmbedding(512, 16).create_weight()
    torch.testing.assert_close(first, theirs, atol=5e-5, rtol=0)


def test_learned_positions_are_rows_of_a_table():
    learned = Learned(context=9, d_model=4)
    positions = torch.tensor([[3, 4], [0, 8]])
    assert torch.equal(learned(positions), learned.weight[positions])


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "reach"), [(32, 128), (4, 3), (10, 57), (64, 4000)])
def test_buckets_are_those_of_t5(buckets, reach, both_ways):
    distance = torch.cat([torch.arange(-600, 601), torch.tensor([-(10**6), 10**6])])
    wanted = T5Attention._relative_position_bucket(distance, both_ways, buckets, reach)
    found = relative_buckets(distance, buckets, reach, both_ways=both_ways)
    assert torch.equal(found, wanted) and found.max() == buckets - 1
    exact = buckets // (4 if both_ways else 2)
    assert found[600].item() == 0 and found[600 - exact + 1 : 600].flip(0).tolist() == [*range(1, exact)]


def relative(stack="decoder", **changes):
    return ModelConfig(
        31, 12, 2, 64, AttentionConfig(4, 2, d_head=5, score_width=1.0), FeedForwardConfig(10, "relu"),
        positions=PositionConfig("relative", buckets=8, reach=6), stack=stack, **changes,
    )  # fmt: skip


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_relative_positions_are_numbers_added_to_scores_with_their_gradient(stack):
    """The first layer is computed by the formula, from the heads on."""
    model = drawn(relative(stack), std=0.5).double().eval()
    side = model.encoder or model.decoder
    text, layer = torch.randint(0, 31, (2, 9)), side.blocks[0].attention
    x = side.blocks[0].attention_norm(model.embedding(text))
    q, k, v = (heads.view(2, 9, -1, 5).transpose(1, 2) for heads in (layer.query(x), layer.key(x), layer.value(x)))
    at = torch.arange(9)
    found = relative_buckets(at - at[:, None], 8, 6, both_ways=stack == "encoder")
    scores = q @ k.repeat_interleave(2, 1).mT + side.relative.weight[found].permute(2, 0, 1)
    if stack == "decoder":
        scores = scores.masked_fill(at > at[:, None], -torch.inf)
    wanted = layer.output((scores.softmax(-1) @ v.repeat_interleave(2, 1)).transpose(1, 2).flatten(2))
    seen = []
    layer.register_forward_hook(lambda *call: seen.append(call[-1]))
    model(text)
    torch.testing.assert_close(seen[0], wanted, atol=1e-12, rtol=0)
    direction = torch.randn_like(wanted)
    ours, theirs = (torch.autograd.grad((out * direction).sum(), side.relative.weight)[0] for out in (seen[0], wanted))
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    assert ours.abs().max() > 0


@torch.no_grad()
def test_relative_positions_are_the_same_from_every_cache_in_packed_rows_and_in_half_precision():
    model = drawn(relative(), std=0.4).eval()
    text = torch.randint(0, 31, (2, 11))
    wanted, cache, steps = model(text).logits, KVCache.create(model.config, 2, 13, bucket=4), []
    for piece in text.split([5, 1, 4, 1], 1):
        out = model(piece, cache=cache)
        cache = out.cache
        steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, 1), wanted, atol=1e-5, rtol=1e-5)
    document_ids = torch.tensor([[0] * 4 + [1] * 7])
    packed = model(torch.cat([text[:1, :4], text[1:, :7]], 1), document_ids=document_ids).logits
    torch.testing.assert_close(packed[0, 4:], wanted[1, :7], atol=1e-5, rtol=1e-5)
    prompts = [text[0, :7].tolist(), [5], text[1, :3].tolist()]
    greedy = {"max_new_tokens": 6, "sampling": Sampling(temperature=0)}
    together = complete(model, prompts, **greedy)
    assert (
        together
        == complete(model, prompts, batch_size=2, **greedy)
        == [complete(model, [p], **greedy)[0] for p in prompts]
    )
    half = model.bfloat16()(text).logits
    assert half.dtype == torch.bfloat16 and (half.float() - wanted).abs().max() < 0.1 * wanted.abs().max()


@torch.no_grad()
def test_relative_positions_beside_masks_and_a_cache():
    model = drawn(relative(), std=0.4).eval()
    text = torch.randint(0, 31, (2, 6))
    near = torch.ones(6, 6, dtype=torch.bool).tril().triu(-1)[None, None]
    added = torch.zeros(1, 1, 6, 6).masked_fill(~near, -torch.inf)
    torch.testing.assert_close(model(text, mask=near).logits, model(text, mask=added).logits)
    assert not torch.allclose(model(text, mask=near).logits, model(text).logits, atol=1e-3)
    assert torch.equal(model(text, positions=7 + torch.arange(6)).logits, model(text).logits)  # only distances matter
    with pytest.raises(ValueError, match="positions=.*expected None with a cache, whose slots give the distances"):
        model(text, positions=torch.arange(6), cache=KVCache.create(model.config, 2, 9))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PositionConfig("relative", buckets=2), "buckets=2: expected a whole number >= 4"),
        (lambda: PositionConfig("relative", buckets=9), "buckets=9: expected an even number"),
        (lambda: PositionConfig("relative", buckets=8, reach=4), "reach=4: expected a whole number >= 5"),
        (lambda: PositionConfig("learned", buckets=8), "buckets=8: expected 32 for kind='learned'"),
        (lambda: PositionConfig(reach=64), "reach=64: expected 128 for kind='rotary'"),
        (
            lambda: relative().with_(attention=AttentionConfig(4, d_head=5, window=WindowConfig(3))),
            "window=.*: expected None with relative positions",
        ),
    ],
)
def test_relative_positions_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_rotated_score_depends_on_distance_alone_and_norms_are_kept(layout):
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 5, 8, dtype=torch.float64), torch.randn(2, 3, 5, 8, dtype=torch.float64)

    def scores(shift):
        angles = rotary_angles(torch.arange(5) + shift, 8, dtype=torch.float64)
        return rotate(q, angles, layout) @ rotate(k, angles, layout).transpose(-2, -1)

    torch.testing.assert_close(scores(0), scores(137), atol=1e-10, rtol=0)
    angles = rotary_angles(torch.arange(5), 8, dtype=torch.float64)
    torch.testing.assert_close(rotate(q, angles, layout).norm(dim=-1), q.norm(dim=-1))
    assert torch.equal(rotate(q, angles, layout)[:, :, 0], q[:, :, 0])  # position 0 is not rotated


def test_one_pair_turns_by_position_times_frequency():
    x = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64).view(1, 1, 1, 4)
    out = rotate(x, rotary_angles(torch.tensor([3]), 4, dtype=torch.float64), "interleaved").flatten()
    slow = 3 * 10000**-0.5
    assert out.tolist() == pytest.approx([math.cos(3), math.sin(3), math.cos(slow), math.sin(slow)], abs=1e-12)


def test_each_row_of_a_batch_has_positions_of_its_own():
    x = torch.randn(2, 3, 4, 6)
    positions = torch.tensor([[0, 1, 2, 3], [7, 8, 9, 10]])
    both = rotate(x, rotary_angles(positions, 6))
    for row in range(2):
        alone = rotate(x[row : row + 1], rotary_angles(positions[row], 6))
        torch.testing.assert_close(both[row : row + 1], alone)


def test_half_layout_equals_llama():
    x, y = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 5, 6)
    angles = rotary_angles(torch.arange(5), 6)
    cos, sin = (torch.cat((f(angles), f(angles)), dim=-1)[None] for f in (torch.cos, torch.sin))
    q, k = apply_llama(x, y, cos, sin)
    torch.testing.assert_close(rotate(x, angles, "half"), q, atol=1e-6, rtol=0)
    torch.testing.assert_close(rotate(y, angles, "half"), k, atol=1e-6, rtol=0)


def test_interleaved_layout_equals_gptj():
    x = torch.randn(2, 4, 5, 6)
    sin, cos = create_sinusoidal_positions(5, 6)[None].chunk(2, dim=-1)
    theirs = apply_gptj(x.transpose(1, 2), sin, cos).transpose(1, 2)
    torch.testing.assert_close(rotate(x, rotary_angles(torch.arange(5), 6), "interleaved"), theirs, atol=1e-6, rtol=0)


def test_the_layouts_are_one_up_to_a_permutation_and_differ_without_it():
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    angles = rotary_angles(torch.arange(5), 8, dtype=torch.float64)
    p = half_from_interleaved(8)
    torch.testing.assert_close(rotate(x, angles, "interleaved")[..., p], rotate(x[..., p], angles, "half"))
    assert not torch.allclose(rotate(x, angles, "interleaved"), rotate(x, angles, "half"))


def test_half_precision_keeps_neighbouring_positions_apart():
    far = torch.tensor([4000, 4001])
    low = sinusoidal(far, 8, dtype=torch.bfloat16).double()
    exact = sinusoidal(far, 8, dtype=torch.float64)
    assert (low - exact).abs().max() < 0.01
    assert not torch.equal(low[0], low[1])


@pytest.mark.parametrize("call", [lambda: rotary_angles(torch.arange(2), 5), lambda: half_from_interleaved(5)])
def test_odd_head_width_is_refused(call):
    with pytest.raises(ValueError, match="d_head=5: expected an even width"):
        call()


def test_odd_model_width_and_unknown_layout_are_refused(unchecked):
    with pytest.raises(ValueError, match="d_model=7: expected an even width"):
        sinusoidal(torch.arange(2), 7)
    with pytest.raises(ValueError, match="layout='quarter'"):
        rotate(torch.zeros(1, 1, 2, 4), rotary_angles(torch.arange(2), 4), "quarter")
    with pytest.raises(ValueError, match="layout='quarter'"):
        sinusoidal(torch.arange(2), 4, layout="quarter")
