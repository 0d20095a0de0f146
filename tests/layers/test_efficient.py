"""Tiled attention and the sliding window equal `attend`; linear attention equals itself, and not `attend`."""

import math
import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from companion import Attention, AttentionConfig, KVCache, ModelConfig, PositionConfig, attend
from companion.account import counted_flops
from companion.config import FeedForwardConfig
from companion.layers.efficient import (
    linear_attention,
    linear_attention_step,
    positive_features,
    sliding_window_attention,
    tiled_attention,
)
from companion.layers.masks import both, causal, padding, per_head, strided, window


def heads(query=5, key=7, kv_head=2, dtype=torch.float64, grad=False):
    """q, k, v with every size different: batch 3, head 4, d_head 6, d_v 8."""
    g = torch.Generator().manual_seed(query * 100 + key)
    shapes = [(3, 4, query, 6), (3, kv_head, key, 6), (3, kv_head, key, 8)]
    return [torch.randn(s, generator=g, dtype=dtype).requires_grad_(grad) for s in shapes]


def some_mask(query, key):
    """True = may look; one row of one example sees nothing."""
    mask = torch.rand(3, 1, query, key, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[1, :, query // 2] = False
    return mask


def assert_same(ours, theirs, inputs, atol=1e-12):
    """Outputs and gradients agree."""
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)
    upstream = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(3))
    for a, b in zip(
        torch.autograd.grad((ours * upstream).sum(), inputs),
        torch.autograd.grad((theirs * upstream).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=atol, rtol=0)


# --- tiled ---


@settings(max_examples=60, deadline=None)
@given(
    query=st.integers(1, 9),
    key=st.integers(1, 9),
    kv_head=st.sampled_from([1, 2, 4]),
    tile=st.tuples(st.integers(1, 10), st.integers(1, 10)),
    is_causal=st.booleans(),
    masking=st.sampled_from(["none", "bool", "padding", "predicate"]),
)
def test_tiled_attention_is_exact_for_any_tile(query, key, kv_head, tile, is_causal, masking):
    q, k, v = heads(query, key, kv_head, grad=True)
    mask = {
        "none": None,
        "bool": some_mask(query, key),
        "padding": (torch.arange(key) < torch.tensor([key, 1, 0])[:, None])[:, None, None],
        "predicate": both(window(3), padding(torch.tensor([key, 2, 4]))),
    }[masking]
    expected = attend(q, k, v, mask=mask, causal=is_causal, backend="reference")
    assert_same(tiled_attention(q, k, v, mask=mask, causal=is_causal, tile=tile), expected, (q, k, v))


def test_tiled_attention_is_exact_in_single_and_half_precision():
    q, k, v = heads(33, 41, dtype=torch.float32, grad=True)
    assert_same(tiled_attention(q, k, v, causal=True, tile=(8, 5)), attend(q, k, v, causal=True), (q, k, v), atol=2e-6)
    q, k, v = (x.detach().bfloat16() for x in (q, k, v))
    expected = attend(*(x.float() for x in (q, k, v)))
    out = tiled_attention(q, k, v, tile=(8, 5))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, atol=1e-6, rtol=2**-8)  # rounded once, at the end


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_of_tiled_attention_are_right(is_causal):
    q, k, v = (x[1:2].detach().requires_grad_() for x in heads(3, 4))
    mask = some_mask(3, 4)[1:2]  # its middle query sees nothing
    assert torch.autograd.gradcheck(lambda *x: tiled_attention(*x, mask=mask, causal=is_causal, tile=(2, 3)), (q, k, v))


def test_tiled_attention_gives_zeros_and_no_gradient_where_nothing_is_seen():
    q, k, v = heads(9, 7, grad=True)  # causal: the first two queries of nine see none of seven keys
    out = tiled_attention(q, k, v, mask=some_mask(9, 7), causal=True, tile=(4, 3))
    assert (out[:, :, :2] == 0).all() and (out[1, :, 4] == 0).all()
    assert (out[0, :, 8] != 0).any()
    out.sum().backward()
    assert (q.grad[:, :, :2] == 0).all() and (q.grad[1, :, 4] == 0).all()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_tiled_attention_survives_scores_that_exp_does_not():
    q, k, v = heads(grad=True)
    assert_same(
        tiled_attention(q * 1e3, k, v, tile=(2, 2)), attend(q * 1e3, k, v, backend="reference"), (q, k, v), atol=1e-9
    )


def saved_numbers(run):
    """How many numbers autograd keeps for the backward pass."""
    storages = {}

    def pack(x):
        storages[x.untyped_storage().data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = run()
    assert out.requires_grad
    return sum(storages.values())


class Largest(TorchDispatchMode):
    """The most numbers in any one tensor that is computed."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor):
                self.numbers = max(self.numbers, x.numel())
        return out


def test_tiled_attention_saves_its_inputs_its_output_and_one_number_a_query():
    for n in (64, 128):
        q, k, v = heads(n, n, grad=True)
        linear = q.numel() + k.numel() + v.numel() + 3 * 4 * n * 8 + 3 * 4 * n
        assert saved_numbers(lambda x=(q, k, v): tiled_attention(*x, causal=True, tile=(16, 16))) == linear
        assert saved_numbers(lambda x=(q, k, v): attend(*x, causal=True, backend="reference")) > 3 * 4 * n * n


def test_nothing_in_tiled_attention_grows_with_the_square_of_the_length():
    found = {}
    for n in (64, 128):
        q, k, v = heads(n, n, grad=True)
        with Largest() as largest:
            tiled_attention(q, k, v, mask=window(20), causal=True, tile=(8, 8)).sum().backward()
        found[n] = largest.numbers
    assert found == {64: 3 * 4 * 64 * 8, 128: 3 * 4 * 128 * 8}  # the output; a tile of scores has 3 * 4 * 8 * 8


def test_operations_of_tiled_attention_are_those_of_its_docstring():
    q, k, v = heads(24, 40, grad=True)
    one_way = 3 * 4 * 2 * 24 * 40
    forward = counted_flops(lambda: tiled_attention(q, k, v, tile=(5, 7)))
    assert forward == one_way * (6 + 8) == counted_flops(lambda: attend(q, k, v, backend="reference"))
    out = tiled_attention(q, k, v, tile=(5, 7))
    assert counted_flops(lambda: out.sum().backward()) == one_way * (3 * 6 + 2 * 8)


def test_tiles_in_which_nobody_may_look_are_skipped():
    q, k, v = heads(32, 32)
    tiles = {"all": 8 * 8, "causal": 8 * 9 // 2, "window": 8 + 7}
    pairs = 3 * 4 * 2 * (6 + 8) * 4 * 4
    assert counted_flops(lambda: tiled_attention(q, k, v, tile=(4, 4))) == tiles["all"] * pairs
    assert counted_flops(lambda: tiled_attention(q, k, v, causal=True, tile=(4, 4))) == tiles["causal"] * pairs
    assert counted_flops(lambda: tiled_attention(q, k, v, mask=window(5), tile=(4, 4))) == tiles["window"] * pairs


def test_tiled_attention_refuses_what_it_cannot_do(unchecked):
    q, k, v = heads()
    with pytest.raises(ValueError, match="mask is torch.float64 .*expected torch.bool"):
        tiled_attention(q, k, v, mask=torch.zeros(3, 1, 5, 7, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"shape \(5, 7\): expected torch.bool with four axes"):
        tiled_attention(q, k, v, mask=torch.ones(5, 7, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"tile=\(0, 4\)"):
        tiled_attention(q, k, v, tile=(0, 4))
    with pytest.raises(ValueError, match="kv_head=3: expected a divisor of the 4"):
        tiled_attention(q, *heads(kv_head=3)[1:])
    q.requires_grad_()
    (slope,) = torch.autograd.grad(tiled_attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


# --- the sliding window ---


@settings(max_examples=60, deadline=None)
@given(
    query=st.integers(1, 12),
    key=st.integers(1, 12),
    width=st.integers(1, 14),
    block=st.sampled_from([None, 1, 2, 5, 20]),
    kv_head=st.sampled_from([1, 2, 4]),
)
def test_the_band_equals_the_mask(query, key, width, block, kv_head):
    q, k, v = heads(query, key, kv_head, grad=True)
    ours = sliding_window_attention(q, k, v, width, block=block)
    assert_same(ours, attend(q, k, v, mask=window(width)), (q, k, v))


def test_the_band_costs_its_width_times_the_length():
    cost = {}
    for n in (128, 256):
        q, k, v = heads(n, n)
        cost[n] = counted_flops(lambda x=(q, k, v): sliding_window_attention(*x, 16, block=16))
        assert cost[n] == 3 * 4 * n * 2 * (16 + 16 - 1) * (6 + 8)
    q, k, v = heads(1, 256)  # decoding: one query reads the last 16 keys
    assert counted_flops(lambda: sliding_window_attention(q, k, v, 16)) == 3 * 4 * 2 * 16 * (6 + 8)


def test_a_window_and_a_block_have_at_least_one_token():
    for name in ("width", "block"):
        with pytest.raises(ValueError, match=f"{name}=0"):
            sliding_window_attention(*heads(), **{"width": 3, name: 0})


# --- linear attention ---


def quadratic(q, k, v, *, is_causal, real=None):
    """The formula, with its query-by-key matrix."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    weights = (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-2, -1)
    if is_causal:
        weights = weights.tril()
    if real is not None:
        weights = weights * real[:, None, None]
    return (weights / weights.sum(-1, keepdim=True)) @ v


@pytest.mark.parametrize("kv_head", [1, 2, 4])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_linear_attention_is_its_quadratic_formula(kv_head, is_causal, padded):
    q, k, v = heads(11, 11 if is_causal else 7, kv_head, grad=True)
    real = torch.arange(k.shape[2]) < torch.tensor([k.shape[2], 5, 1])[:, None] if padded else None
    ours = linear_attention(q, k, v, causal=is_causal, real=real, chunk=4)
    assert_same(ours, quadratic(q, k, v, is_causal=is_causal, real=real), (q, k, v))


@pytest.mark.parametrize("chunk", [1, 3, 11, 64])
def test_causal_linear_attention_does_not_depend_on_the_chunk(chunk):
    q, k, v = heads(11, 11, grad=True)
    assert_same(linear_attention(q, k, v, causal=True, chunk=chunk), quadratic(q, k, v, is_causal=True), (q, k, v))


def test_causal_linear_attention_is_a_recurrent_network():
    q, k, v = heads(9, 9)
    expected = linear_attention(q, k, v, causal=True)
    state, by_hand = None, torch.zeros(3, 2, 6, 9, dtype=q.dtype)
    kept = []
    for t in range(9):
        now = slice(t, t + 1)
        by_hand = by_hand + positive_features(k[:, :, t])[..., None] * F.pad(v[:, :, t], (0, 1), value=1)[..., None, :]
        out, state = linear_attention_step(q[:, :, now], k[:, :, now], v[:, :, now], state)
        kept.append((state, state.clone()))
        torch.testing.assert_close(state, by_hand)
        torch.testing.assert_close(out, expected[:, :, now])
        read = positive_features(q[:, :, t, None]) @ by_hand.repeat_interleave(2, dim=1)
        torch.testing.assert_close(out, read[..., :-1] / read[..., -1:])
    assert all(torch.equal(value, before) for value, before in kept)  # a later step changes no earlier state


def test_the_last_token_of_causal_linear_attention_sees_what_full_attention_sees():
    q, k, v = heads(9, 9)
    torch.testing.assert_close(linear_attention(q, k, v, causal=True)[:, :, -1], linear_attention(q, k, v)[:, :, -1])


def test_linear_attention_is_another_function_than_softmax_attention():
    q, k, v = heads()
    assert (linear_attention(q, k, v) - attend(q, k, v)).abs().max() > 0.1
    # Doubling the queries sharpens a softmax without limit; here no weight can leave phi(q).phi(k) behind.
    assert attend(1e4 * q, k, v).sub(linear_attention(1e4 * q, k, v)).abs().max() > 0.1


def test_linear_attention_costs_what_its_docstring_says():
    for n in (64, 128):
        q, k, v = heads(n, n)
        state = 6 * (8 + 1)
        assert counted_flops(lambda x=(q, k, v): linear_attention(*x)) == 3 * 2 * n * state * (4 + 2)
        counted = counted_flops(lambda x=(q, k, v): linear_attention(*x, causal=True, chunk=16))
        among_themselves = 3 * 4 * 2 * n * 16 * (6 + 8 + 1)
        unread = 3 * 4 * 2 * 16 * state  # the first chunk has no state to read
        assert counted == 3 * 2 * n * state * (4 + 2) - unread + among_themselves


def test_positive_features_are_elu_plus_one_and_stay_positive():
    x = torch.linspace(-8, 8, 33, dtype=torch.float64, requires_grad=True)  # zero is among them
    torch.testing.assert_close(positive_features(x), F.elu(x) + 1)
    ours, theirs = (torch.autograd.grad(f(x).sum(), x)[0] for f in (positive_features, F.elu))
    torch.testing.assert_close(ours, theirs)
    far = torch.tensor([-50.0])
    assert F.elu(far) + 1 == 0 and positive_features(far).item() == pytest.approx(math.exp(-50))


def test_linear_attention_over_padding_alone_is_zero_and_has_no_gradient():
    q, k, v = heads(grad=True)
    real = torch.tensor([True, False, True])[:, None].expand(3, 7)
    out = linear_attention(q, k, v, real=real)
    out.sum().backward()
    assert (out[1] == 0).all() and (out[0] != 0).all()
    assert all((x.grad[1] == 0).all() and x.grad.isfinite().all() for x in (q, k, v))


def test_linear_attention_refuses_bad_input(unchecked):
    q, k, v = heads()
    with pytest.raises(ValueError, match="k has 7 tokens and q has 5"):
        linear_attention(q, k, v, causal=True)
    with pytest.raises(ValueError, match="chunk=0"):
        linear_attention(q, k, v, chunk=0)
    for call in (linear_attention, linear_attention_step):
        with pytest.raises(ValueError, match="kv_head=3: expected a divisor of the 4"):
            call(q, *heads(key=5, kv_head=3)[1:])


# --- predicates in `attend`, and its flex backend ---
# PyTorch traces a predicate for flex, and the tests' shape checks cannot be traced: `unchecked`.

PREDICATES = {
    "window": window(3),
    "rows differ": both(causal, padding(torch.tensor([7, 2, 0]))),  # the last row sees nothing at all
    "heads differ": per_head(window(2), strided(3), causal),
}


@pytest.mark.parametrize("name", PREDICATES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("backend", ["reference", "sdpa", "flex"])
def test_attend_takes_a_predicate_for_a_mask(name, is_causal, backend, unchecked):
    q, k, v = heads()
    allowed = torch.zeros(3, 4, 5, 7, dtype=torch.bool)
    for b in range(3):
        for h in range(4):
            for i in range(5):
                for j in range(7):
                    position = i + 2  # five queries are the last five of seven
                    seen = PREDICATES[name](*(torch.tensor(x) for x in (b, h, position, j)))
                    allowed[b, h, i, j] = seen and (j <= position or not is_causal)
    expected = attend(q, k, v, mask=allowed, backend="reference")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a CPU, flex says that it takes the plain formula
        out = attend(q, k, v, mask=PREDICATES[name], causal=is_causal, backend=backend)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("masking", ["none", "bool", "one row", "float"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_flex_backend_takes_what_the_others_take(masking, is_causal, unchecked):
    q, k, v = heads(9, 7)
    mask = None if masking == "none" else some_mask(9, 7)
    if masking == "one row":
        mask = mask[:1, :, -1:]
    if masking == "float":
        noise = torch.randn(3, 1, 9, 7, dtype=q.dtype, generator=torch.Generator().manual_seed(2))
        mask = noise.masked_fill(~mask, -math.inf)
    expected = attend(q, k, v, mask=mask, causal=is_causal, backend="reference")
    out = attend(q, k, v, mask=mask, causal=is_causal, backend="flex")
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


def test_the_flex_backend_says_what_it_cannot_do():
    q, k, v = heads(grad=True)
    with pytest.raises(ValueError, match="'flex' has no backward pass on the CPU: expected tensors on a GPU"):
        attend(q, k, v, backend="flex")
    with torch.no_grad(), pytest.raises(ValueError, match="dropout=0.1: expected 0 with backend='flex'"):
        attend(q, k, v, dropout=0.1, backend="flex")
    with torch.no_grad(), pytest.raises(ValueError, match=r"mask has shape \(5, 7\): expected four axes"):
        attend(q, k, v, mask=torch.ones(5, 7, dtype=torch.bool), backend="flex")


def test_a_layer_with_a_window_decodes_from_its_cache_as_it_reads_at_once():
    torch.manual_seed(0)
    sizes = AttentionConfig(4, 2, d_head=6, d_v=8)
    layer = Attention(10, sizes, positions=PositionConfig("rotary"))
    config = ModelConfig(11, 10, 1, 16, sizes, FeedForwardConfig(12))
    x = torch.randn(3, 9, 10)
    expected = layer(x, mask=window(3))
    assert not torch.allclose(expected, layer(x))
    cache = KVCache.create(config, batch=3, slots=9)
    with torch.no_grad():
        for start, end in ((0, 4), (4, 5), (5, 9)):
            [opened] = cache.open(end - start)
            out = layer(x[:, start:end], mask=window(3), cache=opened)
            cache = cache.advance(end - start)
            torch.testing.assert_close(out, expected[:, start:end])


# --- on a GPU ---

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@gpu
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths", [(70, 70), (33, 129), (1, 50), (129, 33)])
@pytest.mark.parametrize("kv_head", [1, 2, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_the_triton_kernel_equals_sdpa(lengths, kv_head, is_causal, dtype, tolerance):
    from companion.layers.triton_attention import triton_attention

    q, k, v = (x.cuda().to(dtype) for x in heads(*lengths, kv_head))
    expected = attend(*(x.float() for x in (q, k, v)), causal=is_causal, backend="sdpa")
    out = triton_attention(q, k, v, causal=is_causal, tile=(32, 16))
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)  # as a layer hands it over: heads and tokens interleaved
    torch.testing.assert_close(triton_attention(turned, k, v, causal=is_causal, tile=(32, 16)), out)


@gpu
@pytest.mark.parametrize("name", PREDICATES)
def test_the_flex_backend_equals_sdpa_forward_and_backward(name, unchecked):
    g = torch.Generator().manual_seed(0)
    shapes = [(3, 4, 150, 32), (3, 2, 200, 32), (3, 2, 200, 64)]
    q, k, v = (torch.randn(s, generator=g).cuda().requires_grad_() for s in shapes)
    predicate = PREDICATES[name]
    if name == "rows differ":
        predicate = both(causal, padding(torch.tensor([200, 2, 0]).cuda()))
    ours = attend(q, k, v, mask=predicate, backend="flex")
    assert_same(ours, attend(q, k, v, mask=predicate, backend="sdpa"), (q, k, v), atol=5e-3)


def test_the_package_does_not_need_triton():
    """Every module but one imports where there is no Triton, and that one says what it wants."""
    script = """
import sys
sys.modules["triton"] = None
import companion, companion.layers.efficient
try:
    import companion.layers.triton_attention
except ImportError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "needs Triton, which comes with PyTorch's CUDA builds" in told
