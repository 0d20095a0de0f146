"""Tests of the layers that need a GPU; they use only PyTorch, numpy, safetensors, jaxtyping and pytest."""

import pytest
import torch

from companion import FeedForwardConfig, KVCache, LinearAttention, ModelConfig, MoE, MoEConfig, Transformer, attend
from companion.config.model import AttentionConfig, LinearConfig
from companion.generation.generate import complete
from companion.generation.sampling import Sampling
from companion.layers.kernels import fla
from companion.training.trainer import Trainer, TrainingConfig

pytestmark = pytest.mark.gpu


def results(layer, x, way):
    """Return the output and the gradients of x and of every parameter."""
    x = x.clone().requires_grad_()
    out, _ = layer(x, experts=way)
    towards = torch.linspace(-1, 2, out.numel(), dtype=out.dtype, device=out.device).view_as(out)
    return [out, *torch.autograd.grad((out * towards).sum(), [x, *layer.parameters()], materialize_grads=True)]


def test_the_ways_of_experts_agree_in_bf16():
    torch.manual_seed(0)
    layer = MoE(64, FeedForwardConfig(96, "swiglu"), MoEConfig(8, 2)).to("cuda", torch.bfloat16)
    x = torch.randn(2, 50, 64, device="cuda", dtype=torch.bfloat16)
    for a, b in zip(results(layer, x, "loop"), results(layer, x, "grouped"), strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_a_linear_layer_in_half_precision_is_what_it_is_in_single(decay):
    """This covers the kernels of flash-linear-attention, if it is installed, and the gradients."""
    torch.manual_seed(0)
    config = AttentionConfig(4, linear=LinearConfig(heads=4, d_head=64, d_v=64, decay=decay))
    layer, x = LinearAttention(64, config).cuda(), torch.randn(2, 150, 64, device="cuda")
    expected = layer(x)
    (slope,) = torch.autograd.grad(expected.square().mean(), layer.value.weight)
    half = layer.bfloat16()
    out = half(x.bfloat16())
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)
    (ours,) = torch.autograd.grad(out.float().square().mean(), half.value.weight)
    assert torch.nn.functional.cosine_similarity(ours.float().flatten(), slope.flatten(), dim=0) > 0.99
    inputs = [torch.randn(1, 2, 70, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    rates = -torch.rand(1, 2, 70, 1 if decay == "head" else 64, device="cuda"), torch.rand(1, 2, 70, device="cuda")
    assert (fla.by_library(*inputs, *rates) is None) == (fla.kernels() is None)


@pytest.mark.parametrize("experts", [None, MoEConfig(4, 2)])
def test_a_model_is_the_same_function_on_both_devices(experts):
    config = ModelConfig(37, 32, 2, 40, AttentionConfig(4, 2), FeedForwardConfig(48, "swiglu"), moe=experts)
    torch.manual_seed(0)
    model = Transformer(config).eval()
    tokens = torch.randint(37, (3, 17))
    expected = model(tokens).logits
    written = complete(model, [[1, 2, 3], [4]], max_new_tokens=20, sampling=Sampling(0.0))
    model.cuda()
    torch.testing.assert_close(model(tokens.cuda()).logits.cpu(), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        cache = KVCache.create(config, 3, 20, device="cuda")
        first = model(tokens[:, :9].cuda(), cache=cache)
        rest = model(tokens[:, 9:].cuda(), cache=first.cache)
    torch.testing.assert_close(torch.cat((first.logits, rest.logits), 1).cpu(), expected, rtol=1e-4, atol=1e-4)
    assert complete(model, [[1, 2, 3], [4]], max_new_tokens=20, sampling=Sampling(0.0)) == written


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_a_second_chunk_is_aligned_with_the_last_key(dtype, kv_heads):
    torch.manual_seed(0)
    q = torch.randn(2, 4, 70, 64, device="cuda", dtype=dtype)
    k, v = (torch.randn(2, kv_heads, 200, 64, device="cuda", dtype=dtype) for _ in range(2))
    near = 1e-4 if dtype == torch.float32 else 0.02
    expected = attend(q, k, v, causal=True, backend="reference")
    torch.testing.assert_close(attend(q, k, v, causal=True), expected, rtol=near, atol=near)
    q.requires_grad_()
    torch.testing.assert_close(attend(q, k, v, causal=True), expected, rtol=near, atol=near)


def test_recomputing_and_tf32_train_and_batches_come_from_pinned_memory():
    config = ModelConfig(37, 32, 2, 40, AttentionConfig(4, 2), FeedForwardConfig(48, "swiglu"), dropout=0.1)
    ids = torch.arange(2 * 20).view(2, 20) % 37
    losses = []
    for options in ({}, {"activation_checkpointing": True}, {"precision": "tf32"}):
        torch.manual_seed(0)
        trainer = Trainer(
            Transformer(config).cuda(), lambda _: (ids, ids), TrainingConfig(updates=5, warmup=0), **options
        )
        losses.append([trainer.update().loss for _ in range(4)])
        assert all(tensor.is_pinned() for tensor in trainer._batches(4))
    torch.manual_seed(0)
    there = ids.cuda()  # batches that are on the GPU already
    trainer = Trainer(Transformer(config).cuda(), lambda _: (there, there), TrainingConfig(updates=5, warmup=0))
    torch.testing.assert_close([trainer.update().loss for _ in range(4)], losses[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(losses[2], losses[0], rtol=2e-2, atol=2e-2)
