"""Predicates as masks: of `attend`, of a layer, and of the kernels that are compiled for a GPU."""

import math
import subprocess
import sys
import warnings
from functools import partial

import pytest
import torch
from heads import assert_same, heads, some_mask

from companion import Attention, AttentionConfig, KVCache, ModelConfig, PositionConfig, attend
from companion.config.model import FeedForwardConfig
from companion.layers.kernels.flex import flex_attention
from companion.layers.masks import both, causal, padding, per_head, strided, window

# PyTorch traces a predicate for flex, and the tests' shape checks cannot be traced: `unchecked`.

PREDICATES = {
    "window": window(3),
    "rows differ": both(causal, padding(torch.tensor([7, 2, 0]))),  # the last row sees nothing at all
    "heads differ": per_head(window(2), strided(3), causal),
}
WAYS = {
    "reference": partial(attend, backend="reference"),
    "sdpa": partial(attend, backend="sdpa"),
    "flex": flex_attention,
}


@pytest.mark.parametrize("name", PREDICATES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_attention_takes_a_predicate_for_a_mask(name, is_causal, way, unchecked):
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
        out = WAYS[way](q, k, v, mask=PREDICATES[name], causal=is_causal)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("masking", ["none", "bool", "one row", "float"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_takes_what_attend_takes(masking, is_causal, unchecked):
    q, k, v = heads(9, 7)
    mask = None if masking == "none" else some_mask(9, 7)
    if masking == "one row":
        mask = mask[:1, :, -1:]
    if masking == "float":
        noise = torch.randn(3, 1, 9, 7, dtype=q.dtype, generator=torch.Generator().manual_seed(2))
        mask = noise.masked_fill(~mask, -math.inf)
    expected = attend(q, k, v, mask=mask, causal=is_causal, backend="reference")
    out = flex_attention(q, k, v, mask=mask, causal=is_causal)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


def test_flex_attention_says_what_it_cannot_do():
    q, k, v = heads(grad=True)
    with pytest.raises(ValueError, match="flex_attention has no backward pass on the CPU: expected tensors on a GPU"):
        flex_attention(q, k, v)
    with torch.no_grad(), pytest.raises(ValueError, match=r"mask has shape \(5, 7\): expected four axes"):
        flex_attention(q, k, v, mask=torch.ones(5, 7, dtype=torch.bool))
    with torch.no_grad(), pytest.raises(ValueError, match="kv_head=3: expected a divisor of head=4"):
        flex_attention(q, *heads(kv_head=3)[1:])


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


@pytest.mark.gpu
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths", [(70, 70), (33, 129), (1, 50), (129, 33)])
@pytest.mark.parametrize("kv_head", [1, 2, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_the_triton_kernel_equals_sdpa(lengths, kv_head, is_causal, dtype, tolerance):
    from companion.layers.kernels.triton import triton_attention

    q, k, v = (x.cuda().to(dtype) for x in heads(*lengths, kv_head))
    expected = attend(*(x.float() for x in (q, k, v)), causal=is_causal, backend="sdpa")
    out = triton_attention(q, k, v, causal=is_causal, tile=(32, 16))
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)  # as a layer hands it over: heads and tokens interleaved
    torch.testing.assert_close(triton_attention(turned, k, v, causal=is_causal, tile=(32, 16)), out)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PREDICATES)
def test_flex_attention_equals_sdpa_forward_and_backward(name, unchecked):
    g = torch.Generator().manual_seed(0)
    shapes = [(3, 4, 150, 32), (3, 2, 200, 32), (3, 2, 200, 64)]
    q, k, v = (torch.randn(s, generator=g).cuda().requires_grad_() for s in shapes)
    predicate = PREDICATES[name]
    if name == "rows differ":
        predicate = both(causal, padding(torch.tensor([200, 2, 0]).cuda()))
    ours = flex_attention(q, k, v, mask=predicate)
    assert_same(ours, attend(q, k, v, mask=predicate, backend="sdpa"), (q, k, v), atol=5e-3)


def test_the_package_does_not_need_triton():
    """Every module but one imports where there is no Triton, and that one says what it wants."""
    script = """
import sys
sys.modules["triton"] = None
import companion, companion.layers.kernels.flex
try:
    import companion.layers.kernels.triton
except ImportError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "needs Triton, which comes with PyTorch's CUDA builds" in told
