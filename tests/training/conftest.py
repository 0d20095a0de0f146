import pytest
import torch

from companion.config.model import AttentionConfig, FeedForwardConfig, ModelConfig
from companion.data.batches import TrainingBatches
from companion.training.trainer import Trainer, TrainingConfig
from companion.transformer import Transformer

MODEL = ModelConfig(
    23, 12, 2, context=9, attention=AttentionConfig(3, 1), feed_forward=FeedForwardConfig(20), dropout=0.2
)


@pytest.fixture
def make_trainer():
    """Return a function that makes a small trainer with dropout and accumulation, always the same one."""

    def make(*, updates: int = 9, accumulate: int = 3, **settings) -> Trainer:
        torch.manual_seed(4)
        model = Transformer(MODEL)
        ids = torch.arange(200) * 5 % 22 + 1
        batches = TrainingBatches([ids[:70], ids[70:]], context=MODEL.context, batch=2, seed=8)
        settings = {"warmup": 2, "learning_rate": 0.02, "seed": 6} | settings
        config = TrainingConfig(updates=updates, accumulate=accumulate, **settings)
        return Trainer(model, batches, config)

    return make
