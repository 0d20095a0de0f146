"""An update is a function of the state before it, and its gradient is that of all its tokens."""

import math

import pytest
import torch

from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
)
from companion.data.batches import EvaluationBatches
from companion.training.evaluation import evaluate
from companion.training.losses import Scored, next_token_loss
from companion.training.optimizer import decayed
from companion.training.seeds import derived_seed
from companion.training.trainer import IGNORE, Diverged, Trainer, TrainingConfig
from companion.transformer import Transformer

PLAIN = ModelConfig(13, 8, 2, 6, AttentionConfig(2), FeedForwardConfig(16))


def unequal_micro_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    made = []
    for rows, scored in ((3, 2), (1, 6), (2, 1)):
        tokens, targets = torch.randint(13, (rows, 6)), torch.randint(13, (rows, 6))
        targets[:, : 6 - scored] = IGNORE
        made.append((tokens, targets))
    return made


def test_accumulated_micro_batches_with_unequal_tokens_have_the_gradient_of_one_batch() -> None:
    micro = unequal_micro_batches()
    whole = tuple(torch.cat(parts) for parts in zip(*micro, strict=True))
    gradients, losses = [], []
    for accumulate, batches in ((3, micro), (1, [whole])):
        torch.manual_seed(2)
        model = Transformer(PLAIN).double()
        trainer = Trainer(model, batches.__getitem__, TrainingConfig(updates=1, accumulate=accumulate, clip=1e9))
        losses.append(trainer.update())
        gradients.append([p.grad for p in model.parameters()])
    assert losses[0].tokens == losses[1].tokens == 3 * 2 + 6 + 2
    assert losses[0].loss == pytest.approx(losses[1].loss, rel=1e-6)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    # The mean of the micro-batches' means is a different number, so the test above can tell them apart.
    torch.manual_seed(2)
    model = Transformer(PLAIN).double()
    means = [next_token_loss(model, *batch) for batch in micro]
    assert abs(sum(float((s / n).detach()) for s, n, *_ in means) / 3 - losses[1].loss) > 1e-3


def test_the_quicker_optimizer_of_a_large_model_goes_on_bit_for_bit_too(make_trainer, monkeypatch) -> None:
    monkeypatch.setattr("companion.training.trainer.LARGE", 1)
    whole, first, second = make_trainer(), make_trainer(), make_trainer()
    updates = [whole.update() for _ in range(8)]
    found = [first.update() for _ in range(3)]
    second.load(*({k: v.clone() for k, v in kept.items()} for kept in (first.weights(), first.state())), first.done)
    found += [second.update() for _ in range(5)]
    assert second.optimizer.defaults["fused"] and found == updates
    assert all(torch.equal(ours, second.weights()[name]) for name, ours in whole.weights().items())


def test_the_gradient_is_clipped_to_its_norm_over_all_parameters(make_trainer) -> None:
    trainer = make_trainer(clip=0.01)
    update = trainer.update()
    norm = math.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in trainer.model.parameters()))
    assert update.gradient_norm > 0.01 and norm == pytest.approx(0.01, rel=1e-3)


def test_the_learning_rate_ends_with_the_last_update_however_many_micro_batches(make_trainer) -> None:
    trainer = make_trainer(updates=11, accumulate=4, min_lr_ratio=0.05)
    updates = [trainer.update() for _ in range(11)]
    assert [u.number for u in updates] == list(range(1, 12))
    assert updates[-1].learning_rate == pytest.approx(0.02 * 0.05)
    assert max(u.learning_rate for u in updates) == updates[1].learning_rate == 0.02
    with pytest.raises(ValueError, match="update=12"):
        trainer.update()


def test_training_learns_and_evaluation_has_no_dropout_and_leaves_the_mode_alone(make_trainer) -> None:
    trainer = make_trainer(updates=60, accumulate=1)
    documents = [trainer.batches.tokens]
    batches = EvaluationBatches(documents, context=9)
    before = trainer.evaluate(batches, 199)
    for _ in range(60):
        trainer.update()
    after = trainer.evaluate(batches, 199)
    assert trainer.model.training
    assert after == trainer.evaluate(batches, 199)  # with dropout, two evaluations would differ
    assert after.nats < 0.9 * before.nats
    assert after.tokens == 199 and after.bits_per_byte == pytest.approx(after.nats / math.log(2) / 199)
    assert after.perplexity == pytest.approx(math.exp(after.nats / 199))
    with pytest.raises(ValueError, match="at least one target"):
        evaluate(trainer.model, [], 1)


def test_an_update_depends_on_weights_optimizer_and_number_alone(make_trainer) -> None:
    one, other = make_trainer(), make_trainer()
    for _ in range(4):
        one.update()
    torch.manual_seed(99)  # whatever the random state is
    other.load(one.weights(), {name: t.clone() for name, t in one.state().items()}, 4)
    torch.rand(3)
    a, b = one.update(), other.update()
    assert a == b
    for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_dropout_differs_between_micro_batches_and_updates(make_trainer) -> None:
    seeds = {derived_seed(6, number) for number in range(1000)} | {derived_seed(7, number) for number in range(1000)}
    assert len(seeds) == 2000
    same = (torch.ones(2, 9, dtype=torch.long), torch.ones(2, 9, dtype=torch.long))
    trainer = make_trainer(accumulate=1)
    trainer.batches = lambda number: same
    trainer.learning_rate = lambda number: 0.0  # only the dropout changes
    assert len({trainer.update().loss for _ in range(4)}) == 4


def test_a_loss_that_is_not_a_number_stops_before_it_reaches_the_weights(make_trainer) -> None:
    trainer = make_trainer()
    trainer.update()
    weights = [p.detach().clone() for p in trainer.model.parameters()]
    state = {name: t.clone() for name, t in trainer.state().items()}
    loss = trainer.loss
    trainer.loss = lambda model, *batch: Scored(loss(model, *batch).nats * float("nan"), loss(model, *batch).tokens)
    with pytest.raises(Diverged, match="the loss is nan at update 2; a lower learning rate"):
        trainer.update()
    assert trainer.done == 1
    assert all(torch.equal(p, q) for p, q in zip(trainer.model.parameters(), weights, strict=True))
    assert all(torch.equal(t, state[name]) for name, t in trainer.state().items())
    trainer.loss = loss
    assert trainer.update().number == 2


def test_matrices_decay_and_gains_biases_and_tables_do_not() -> None:
    config = ModelConfig(
        13,
        8,
        1,
        6,
        AttentionConfig(2, bias=True),
        FeedForwardConfig(16, "gelu", bias=True),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer"),
        embedding=EmbeddingConfig(tied=False),
    )
    model = Transformer(config)
    names = decayed(model)
    matrices = {name for name, p in model.named_parameters() if p.ndim >= 2}
    assert matrices - names == {"embedding.weight", "positions.weight"}
    assert "unembedding.weight" in names and not any("bias" in name or "norm" in name for name in names)
    assert "embedding.weight" not in decayed(Transformer(PLAIN))  # tied, so that the head is an embedding too
    experts = Transformer(PLAIN.with_(moe=MoEConfig(4, 2)))
    assert any("feed_forward" in name and dict(experts.named_parameters())[name].ndim == 3 for name in decayed(experts))


def test_weight_decay_shrinks_exactly_the_decayed(make_trainer) -> None:
    trainer = make_trainer(weight_decay=0.5, accumulate=1)
    # No gradient, only weight decay
    trainer.loss = lambda model, x, y: Scored(model(x).logits.sum() * 0.0, (y >= 0).sum())
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    rate = trainer.update().learning_rate
    for name, p in trainer.model.named_parameters():
        factor = 1 - rate * 0.5 if name in decayed(trainer.model) else 1.0
        torch.testing.assert_close(p.detach(), before[name] * factor)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"updates": 0}, "updates=0: expected a whole number >= 1"),
        ({"updates": 3, "accumulate": 0}, "accumulate=0"),
        ({"updates": 3, "learning_rate": float("inf")}, "learning_rate=inf"),
        ({"updates": 3, "clip": 0.0}, "clip=0.0"),
        ({"updates": 3, "weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"updates": 3, "seed": -1}, "seed=-1"),
        ({"updates": 3, "min_lr_ratio": 1.5}, "min_lr_ratio=1.5"),
    ],
)
def test_a_setting_that_cannot_be_is_named(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**settings)


def test_a_batch_without_targets_and_another_models_state_are_refused(make_trainer) -> None:
    trainer = make_trainer(accumulate=1)
    trainer.batches = lambda number: (torch.ones(1, 4, dtype=torch.long), torch.full((1, 4), IGNORE))
    with pytest.raises(ValueError, match="at least one target in update 1"):
        trainer.update()
    other = make_trainer()
    other.update()
    state = other.state()
    fresh = make_trainer()
    with pytest.raises(ValueError, match="expected both moments and the count of"):
        fresh.load(other.weights(), {name: t for name, t in state.items() if "embedding" not in name}, 1)
    with pytest.raises(ValueError, match="belongs to another model"):
        fresh.load(other.weights(), {**state, "exp_avg.more": torch.ones(1)}, 1)


@pytest.mark.gpu
def test_bf16_on_a_gpu_trains_and_keeps_fp32_weights(make_trainer) -> None:
    cpu = make_trainer(updates=40, accumulate=1)
    trainer = Trainer(cpu.model.cuda(), cpu.batches, cpu.config, precision="bf16")
    losses = [trainer.update().loss for _ in range(40)]
    assert losses[-1] < losses[0]
    assert all(p.dtype == torch.float32 for p in trainer.model.parameters())
