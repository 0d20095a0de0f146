"""An update or a decode step never waits for a value from the GPU, except for reading the loss once per update.

On PyTorch's meta device tensors have no values, so everything that needs one raises: `item`, `tolist`, `nonzero`, `if`.
"""

import pytest
import torch

from companion.config.model import AttentionConfig, FeedForwardConfig, ModelConfig, MoEConfig
from companion.generation.prefill_decode import decode
from companion.layers.cache import KVCache
from companion.training import losses
from companion.training.trainer import Trainer, TrainingConfig
from companion.transformer import Transformer

DENSE = ModelConfig(
    vocab=97, d_model=32, layers=2, context=16, attention=AttentionConfig(4, 2), feed_forward=FeedForwardConfig(64)
)
CONFIGS = {"dense": DENSE, "experts": DENSE.with_(moe=MoEConfig(4, 2)), "later": DENSE.with_(medusa_heads=2)}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_an_update_looks_at_its_values_once(config, optimizer, accumulate, monkeypatch):
    looks = []
    monkeypatch.setattr(torch.Tensor, "tolist", lambda values: looks.append(values) or [1.0] * len(values))
    # The loss is computed through the head in chunks
    monkeypatch.setattr(losses, "ELSEWHERE", losses.Limits(0, 100, 200))
    tokens = torch.randint(97, (3, 17))
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    model = Transformer(config).to("meta")
    settings = TrainingConfig(10, optimizer=optimizer, accumulate=accumulate)
    trainer = Trainer(model, lambda number: batch, settings)
    for _ in range(2):
        trainer.update()
    assert [values.device.type for values in looks] == ["meta"] * 2


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_decode_step_looks_at_none(config):
    model = Transformer(config).to("meta").eval()
    cache = KVCache.create(config, 2, 16, dtype=torch.float32, device="meta")
    with torch.inference_mode():
        tokens = torch.zeros(2, dtype=torch.long, device="meta")
        for _ in range(3):
            logits, cache = decode(model, tokens, cache, None)
            tokens = logits.argmax(-1)
    assert tokens.device.type == "meta" and cache.filled == 3


def test_what_waits_is_noticed():
    x = torch.zeros(3, device="meta")
    for look in (lambda: x.sum().item(), lambda: bool(x.any()), x.nonzero, lambda: x.cpu(), lambda: x[x > 0]):
        with pytest.raises((RuntimeError, NotImplementedError)):
            look()


@pytest.mark.gpu
def test_on_a_gpu_an_update_waits_once_and_a_decode_step_never():
    model = Transformer(DENSE).cuda()
    tokens = torch.randint(97, (3, 17))
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    trainer = Trainer(model, lambda number: batch, TrainingConfig(10))
    trainer.update()
    cache = KVCache.create(DENSE, 3, 16, dtype=torch.float32, device="cuda")
    told = torch.Tensor.tolist

    def look(values):
        torch.cuda.set_sync_debug_mode("default")
        found = told(values)
        torch.cuda.set_sync_debug_mode("error")
        return found

    torch.Tensor.tolist = look
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.update()
        with torch.inference_mode():
            for column in tokens.cuda(non_blocking=True).T[:3]:
                _, cache = decode(model, column, cache, None)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.Tensor.tolist = told
