"""Transfer of a learning rate to a wider model: the sizes of changes do not depend on the width."""

import pytest
import torch

from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LatentConfig,
    ModelConfig,
    MoEConfig,
    PositionConfig,
)
from companion.training.mup import lr_scales, wide_config, wide_model
from companion.training.settings import NumberWordsSettings, TextSettings
from companion.training.trainer import Trainer, TrainingConfig
from companion.transformer import Transformer


def config_of(d_model: int, **changes: object) -> ModelConfig:
    config = ModelConfig(
        29, d_model, 2, 8, AttentionConfig(4), FeedForwardConfig(3 * d_model), embedding=EmbeddingConfig(tied=False)
    )
    return config.with_(**changes)


def batches(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(29, (4, 9), generator=torch.Generator().manual_seed(number))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def looked_at(model: Transformer) -> dict[str, torch.Tensor]:
    """Return the outputs of each block and of the head for the same tokens."""
    kept: dict[str, torch.Tensor] = {}
    for place, block in enumerate(model.decoder.blocks):
        block.register_forward_hook(lambda _, __, out, place=place: kept.__setitem__(f"block {place}", out[0]))
    with torch.no_grad():
        return {"logits": model(batches(99)[0]).logits} | kept


def changes(d_model: int, base: int | None, optimizer: str, rate: float) -> dict[str, float]:
    """Return the root mean square of the changes by three updates in each block's output and in the logits.

    For AdamW this is the root sum of squares over two starts.
    """
    found: dict[str, float] = {}
    for seed in range(2 if optimizer == "adamw" else 1):
        torch.manual_seed(seed)
        config = config_of(d_model)
        model = Transformer(config) if base is None else wide_model(config, base)
        before = looked_at(model)
        settings = {"learning_rate": rate, "warmup": 0, "optimizer": optimizer, "width_base": base, "weight_decay": 0.0}
        trainer = Trainer(model, batches, TrainingConfig(3, **settings))
        for _ in range(3):
            trainer.update()
        after = looked_at(model)
        for name, out in after.items():
            size = float((out - before[name]).square().mean())
            found[name] = found.get(name, 0.0) + size
    return {name: size**0.5 for name, size in found.items()}


@pytest.mark.parametrize(("optimizer", "rate", "wider"), [("adamw", 0.01, 192), ("muon", 0.02, 96)])
def test_what_updates_change_does_not_grow_with_the_width(optimizer, rate, wider) -> None:
    """Coordinate check (Yang et al. 2022, appendix D.1): wider models change a little less, ordinary ones more."""
    narrow, wide = (changes(width, 24, optimizer, rate) for width in (24, wider))
    ordinary = changes(wider, None, optimizer, rate)
    assert len(narrow) == 3
    for name, size in narrow.items():
        assert 0.4 < wide[name] / size < 1.4, name
    grown = {name: ordinary[name] / size for name, size in narrow.items()}
    assert max(grown.values()) > 2, grown
    assert all(grown[name] > 1.5 * wide[name] / size for name, size in narrow.items())


def test_at_the_base_it_is_the_ordinary_model_and_training() -> None:
    config = config_of(16, moe=MoEConfig(4, 2, shared=1, shared_gate=True))
    assert wide_config(config, 16) == config
    torch.manual_seed(5)
    plain = Transformer(config)
    torch.manual_seed(5)
    wide = wide_model(config, 16)
    trainers = [
        Trainer(model, batches, TrainingConfig(9, learning_rate=0.01, warmup=2, width_base=base))
        for model, base in ((plain, None), (wide, 16))
    ]
    for _ in range(4):
        assert trainers[0].update() == trainers[1].update()
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), wide.parameters(), strict=True))


def test_the_forward_pass_is_that_of_the_table() -> None:
    """Another width of heads, an untied head, scaled embeddings and experts are tested, each number by hand."""
    config = config_of(48, moe=MoEConfig(4, 2))
    wide = wide_config(config, 16)
    assert wide.attention.score_width == 12 * 12 / 4  # scores over sqrt(36) = d_head / sqrt(d_0), d_0 = 16 / 4
    assert wide.embedding.logit_divisor == 3
    kept = wide_config(config.with_(attention=AttentionConfig(12, d_head=4)), 16)
    assert kept.attention.score_width is None  # heads as wide as those of the narrow model
    scaled = wide_config(config.with_(embedding=EmbeddingConfig(scaled=True)), 16).embedding
    assert (scaled.scaled, scaled.multiplier, scaled.logit_divisor) == (False, 4.0, 3)
    torch.manual_seed(3)
    model = wide_model(config, 16)
    assert float(model.embedding.weight.detach().std()) == pytest.approx(16**-0.5, rel=0.05)
    assert float(model.unembedding.weight.detach().std()) == pytest.approx((2 / (5 * 16)) ** 0.5, rel=0.05)
    moe = model.decoder.blocks[0].feed_forward
    assert float(moe.router.weight.detach().std()) == pytest.approx((2 / (5 * 48) / 3) ** 0.5, rel=0.1)
    assert float(moe.inner.detach().std()) == pytest.approx((2 / (5 * 48)) ** 0.5, rel=0.05)
    for optimizer, share in (("adamw", 1 / 3), ("muon", 3**-0.5)):
        settings = TrainingConfig(3, width_base=16, optimizer=optimizer)
        shares = lr_scales(model, settings)
        assert set(shares.values()) == {share} and len(shares) == 2 * (4 + 1 + 2 + model.config.feed_forward.gated)
        trainer = Trainer(model, batches, settings)
        rate = trainer.update().learning_rate
        # The base rate is logged, and each group uses its share of it for steps and decay.
        found = sorted((g["lr"] / rate, g["lr"] * g["weight_decay"] / rate) for g in trainer.optimizer.param_groups)
        wanted = [(share, 0.1), (1.0, 0.0), (1.0, 0.1)]
        assert [x for pair in found for x in pair] == pytest.approx([x for pair in wanted for x in pair])


def test_what_is_not_said_in_the_table_is_refused() -> None:
    for changed, message in (
        ({"attention": AttentionConfig(4, latent=LatentConfig(8, 4))}, "latent=.*: expected None with width_base"),
        ({"attention": AttentionConfig(4, gate="head")}, "gate='head': expected 'width' or None"),
        ({"stack": "encoder"}, "stack='encoder': expected a model that generates text"),
    ):
        with pytest.raises(ValueError, match=message):
            wide_config(config_of(32, **changed), 16)
    with pytest.raises(ValueError, match="width_base=0: expected a whole number >= 1"):
        wide_config(config_of(32), 0)
    with pytest.raises(ValueError, match="width_base=0: expected a whole number >= 1"):
        TrainingConfig(3, width_base=0)


def test_the_flag_makes_the_model_of_the_run() -> None:
    settings = TextSettings(d_model=64, width_base=32)
    assert settings.model_config(300) == wide_config(TextSettings(d_model=64).model_config(300), 32)
    words = NumberWordsSettings(width_base=32)
    assert words.model_config(50).embedding.multiplier == 32**0.5
    assert words.model_config(50).positions == PositionConfig("sinusoidal")
