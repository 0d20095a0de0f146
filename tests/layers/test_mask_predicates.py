"""Predicates as masks, of `attend` and of a layer; and attention as one GPU kernel."""

import subprocess
import sys

import pytest
import torch
from heads import heads

from companion import Attention, AttentionConfig, KVCache, ModelConfig, PositionConfig, attend
from companion.config.model import FeedForwardConfig
from companion.layers.masks import both, causal, padding, per_head, strided, window

PREDICATES = {
    "window": window(3),
    "rows differ": both(causal, padding(torch.tensor([7, 2, 0]))),  # the last row sees nothing at all
    "heads differ": per_head(window(2), strided(3), causal),
}


@pytest.mark.parametrize("name", PREDICATES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_attention_takes_a_predicate_for_a_mask(name, is_causal, backend):
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
    out = attend(q, k, v, mask=PREDICATES[name], causal=is_causal, backend=backend)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


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


def test_the_package_does_not_need_triton():
    """Every module but one imports where there is no Triton, and that one says what it wants."""
    script = """
import sys
sys.modules["triton"] = None
import companion
try:
    import companion.layers.kernels.triton
except ImportError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "needs Triton, which comes with PyTorch's CUDA builds" in told
