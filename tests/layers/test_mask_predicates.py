"""Predicates as masks of `attend` and of a layer, and attention as one GPU kernel."""

import subprocess
import sys

import pytest
import torch
from heads import heads
from models import drawn

from companion import Attention, AttentionConfig, KVCache, ModelConfig, PositionConfig, WindowConfig, attend
from companion.config.model import FeedForwardConfig
from companion.layers.masks import both, causal, padding, per_head, strided, window

PREDICATES = {
    "window": window(3),
    "rows differ": both(causal, padding(torch.tensor([7, 2, 0]))),  # the last row sees nothing
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
                    position = i + 2  # the five queries are the last five of seven tokens
                    seen = PREDICATES[name](*(torch.tensor(x) for x in (b, h, position, j)))
                    allowed[b, h, i, j] = seen and (j <= position or not is_causal)
    expected = attend(q, k, v, mask=allowed, backend="reference")
    out = attend(q, k, v, mask=PREDICATES[name], causal=is_causal, backend=backend)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("width", [1, 4, 5, 40])
def test_a_window_of_an_encoder_is_open_to_both_sides(width):
    """This is tested in a layer, with masks of all kinds, and for the gradient of an explicit mask."""
    torch.manual_seed(0)
    layer = Attention(12, AttentionConfig(3, window=WindowConfig(width)), causal=False).double()
    x = torch.randn(2, 9, 12, dtype=torch.float64, requires_grad=True)
    plain = Attention(12, AttentionConfig(3), causal=False).double()
    plain.load_state_dict(layer.state_dict())
    at = torch.arange(9)
    near = ((at - at[:, None]).abs() <= width // 2)[None, None]
    direction = torch.randn(2, 9, 12, dtype=torch.float64)
    ours, theirs = layer(x), plain(x, mask=near)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    gradients = (torch.autograd.grad((out * direction).sum(), x)[0] for out in (ours, theirs))
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)
    attention_mask = (at < torch.tensor([[9], [6]]))[:, None, None]
    torch.testing.assert_close(layer(x, mask=attention_mask), plain(x, mask=near & attention_mask), atol=1e-12, rtol=0)
    added = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    hidden = added.masked_fill(~near, -torch.inf)
    torch.testing.assert_close(layer(x, mask=added), plain(x, mask=hidden), atol=1e-12, rtol=0)
    torch.testing.assert_close(layer(x, mask=causal), plain(x, mask=near & (at <= at[:, None])), atol=1e-12, rtol=0)


@torch.no_grad()
def test_an_encoder_with_local_layers_sees_no_padding_and_only_what_is_near():
    window = WindowConfig(4, (True, False), base=50.0)
    model = drawn(
        ModelConfig(31, 12, 1, 16, AttentionConfig(3, window=window), FeedForwardConfig(10), stack="encoder")
    ).eval()
    text = torch.randint(0, 31, (2, 9))
    attention_mask = torch.arange(9) < torch.tensor([[9], [5]])
    torch.testing.assert_close(
        model(text, attention_mask=attention_mask).logits[1, :5], model(text[1:, :5]).logits[0], atol=1e-5, rtol=1e-5
    )
    usual, text[:, 4] = model(text).logits, (text[:, 4] + 1) % 31
    changed = (model(text).logits - usual).abs().amax((0, 2)) > 0
    assert changed.tolist() == [2 <= place <= 6 for place in range(9)]
    half = model.bfloat16()(text).logits.float()
    assert (half - model.float()(text).logits).abs().max() < 0.1


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
    # In the layout that a layer uses: heads and tokens interleaved
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(triton_attention(turned, k, v, causal=is_causal, tile=(32, 16)), out)


def test_the_package_does_not_need_triton():
    """Without Triton, every module but one can be imported, and that one says what it needs."""
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
