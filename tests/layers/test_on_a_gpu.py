"""What only a GPU can show of the layers; nothing but PyTorch, numpy, safetensors, jaxtyping and pytest is needed."""

import pytest
import torch

from companion import FeedForwardConfig, KVCache, ModelConfig, MoE, MoEConfig, Transformer
from companion.config import AttentionConfig
from companion.generation.generate import complete
from companion.generation.sampling import Sampling

pytestmark = pytest.mark.gpu


def results(layer, x, way):
    """The output, and the gradients of x and of every parameter."""
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
