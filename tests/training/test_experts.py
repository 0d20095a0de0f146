"""Training a mixture of experts: balance over the whole batch, the bias, and resumed runs."""

import json

import pytest
import torch

from companion.config.model import AttentionConfig, FeedForwardConfig, ModelConfig, MoEConfig
from companion.data.batches import TrainingBatches
from companion.layers.balance import switch_loss, z_loss
from companion.training.evaluation import Evaluation
from companion.training.losses import Scored, cross_entropy_sum
from companion.training.run_folder import RunFolder
from companion.training.run_loop import fit
from companion.training.settings import TextSettings
from companion.training.trainer import IGNORE, Trainer, TrainingConfig
from companion.transformer import Transformer

MODEL = ModelConfig(13, 8, 2, 6, AttentionConfig(2), FeedForwardConfig(12), moe=MoEConfig(5, 2))


def padded_loss(model, tokens, targets):
    out = model(tokens, attention_mask=tokens > 0)
    return Scored(*cross_entropy_sum(out.logits, targets), out.routing)


def padded_batches():
    """Return micro-batches of unequal sizes with unequal padding, and one batch of all rows."""
    torch.manual_seed(1)
    micro = []
    for rows, length in ((3, 2), (1, 6), (2, 4)):
        tokens, targets = torch.randint(1, 13, (rows, 6)), torch.randint(13, (rows, 6))
        tokens[:, length:], targets[:, length:] = 0, IGNORE
        micro.append((tokens, targets))
    return micro, [tuple(torch.cat(parts) for parts in zip(*micro, strict=True))]


def updated(batches, config=MODEL, **settings):
    torch.manual_seed(2)
    model = Transformer(config).double()
    settings = TrainingConfig(updates=1, accumulate=len(batches), clip=1e9, **settings)
    trainer = Trainer(model, batches.__getitem__, settings, loss=padded_loss)
    return trainer, trainer.update()


def test_accumulated_micro_batches_have_the_balancing_gradient_of_one_batch():
    weights = {"balance_loss": 0.7, "z_loss": 0.2}
    (parts, one), (whole, other) = (updated(batches, **weights) for batches in padded_batches())
    assert one.loss == pytest.approx(other.loss, rel=1e-6) and one.effective_experts == other.effective_experts
    for a, b in zip(parts.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12)
    # It is the gradient of the objective as defined: the mean over all tokens plus each layer's losses.
    torch.manual_seed(2)
    model = Transformer(MODEL).double()
    nats, tokens, routing, *_ = padded_loss(model, *padded_batches()[1][0])
    (nats / tokens + sum(0.7 * switch_loss(layer) + 0.2 * z_loss(layer) for layer in routing)).backward()
    for a, b in zip(model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12)
    # Without these losses the routers' gradients differ, so the losses really contribute.
    plain = updated(padded_batches()[0])[0]
    router = "decoder.blocks.0.feed_forward.router.weight"
    with_losses, without = (dict(t.model.named_parameters())[router].grad for t in (parts, plain))
    assert (with_losses - without).abs().max() > 1e-3


def test_the_bias_moves_once_an_update_by_the_counts_of_all_micro_batches():
    config = MODEL.with_(moe=MoEConfig(5, 2, balanced=True))
    (trainer, _), (whole, _) = (updated(batches, config, bias_rate=0.25) for batches in padded_batches())
    torch.manual_seed(2)
    counts = [layer.counts for layer in padded_loss(Transformer(config).double(), *padded_batches()[1][0]).routing]
    for block, twin, count in zip(trainer.model.decoder.blocks, whole.model.decoder.blocks, counts, strict=True):
        expected = 0.25 * (count.double().mean() - count).sign()
        assert torch.equal(block.feed_forward.bias, expected) and expected.abs().sum() > 0
        assert torch.equal(twin.feed_forward.bias, expected)


def test_an_update_reports_the_load_and_what_was_dropped():
    _, free = updated(padded_batches()[0])
    _, tight = updated(padded_batches()[0], MODEL.with_(moe=MoEConfig(5, 2, capacity=0.5)))
    _, plain = updated(padded_batches()[0], MODEL.with_(moe=None))
    assert 1 < free.effective_experts <= 5 and free.dropped == 0
    assert 0 < tight.dropped < 1
    assert plain.effective_experts is None and plain.dropped is None


def test_the_switch_loss_keeps_experts_in_use_that_a_router_alone_forgets():
    ids = torch.randint(1, 13, (400,), generator=torch.Generator().manual_seed(0))
    found = {}
    for weight in (0.0, 1.0):
        torch.manual_seed(0)
        model = Transformer(MODEL.with_(moe=MoEConfig(5, 1, gating="softmax_topk")))
        with torch.no_grad():
            for block in model.decoder.blocks:
                block.feed_forward.router.weight[0] *= 6  # an advantage for one expert
        batches = TrainingBatches([ids], context=6, batch=16, seed=0)
        trainer = Trainer(model, batches, TrainingConfig(60, learning_rate=0.02, warmup=2, balance_loss=weight))
        found[weight] = [trainer.update().effective_experts for _ in range(60)][-1]
    assert found[1.0] > 4 > 3.5 > found[0.0]


def make(updates=6):
    torch.manual_seed(4)
    mixture = MoEConfig(5, 2, noise=0.5, capacity=1.0, shared=1, balanced=True)
    model = Transformer(MODEL.with_(moe=mixture, dropout=0.2))
    ids = torch.arange(100) * 5 % 12 + 1
    config = TrainingConfig(updates, accumulate=2, warmup=1, balance_loss=0.1, z_loss=0.01, bias_rate=0.01)
    return Trainer(model, TrainingBatches([ids], context=6, batch=3, seed=8), config)


def run(trainer, folder):
    return fit(trainer, lambda model: Evaluation(1.0, 1, 1), folder=folder, evaluate_every=2, progress=False)


def test_a_resumed_run_ends_with_the_same_weights_and_the_same_bias_bit_for_bit(tmp_path):
    whole = make()
    for _ in range(6):
        whole.update()
    folder, first = RunFolder(tmp_path), make()
    for _ in range(3):
        first.update()
    folder.save(first)
    second = make()
    run(second, folder)
    assert second.done == 6
    biases = [name for name in second.model.state_dict() if name.endswith("feed_forward.bias")]
    assert len(biases) == 2 and all(second.model.state_dict()[name].abs().max() > 0 for name in biases)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert all(entry["effective_experts"] > 1 and "dropped" in entry for entry in logged if "loss" in entry)


def test_a_loss_that_keeps_the_routing_to_itself_cannot_balance():
    torch.manual_seed(0)
    (batch,) = padded_batches()[1]
    loss = lambda model, x, y: Scored(*cross_entropy_sum(model(x).logits, y))  # noqa: E731
    Trainer(Transformer(MODEL), lambda number: batch, TrainingConfig(1), loss=loss).update()
    with pytest.raises(ValueError, match="expected the routing of 2 layers .* got that of 0"):
        Trainer(Transformer(MODEL), lambda number: batch, TrainingConfig(1, balance_loss=0.1), loss=loss).update()


def test_flags_become_the_mixture_and_are_refused_without_experts():
    settings = TextSettings(
        experts=6,
        experts_per_token=3,
        gating="sigmoid",
        shared_experts=1,
        capacity=1.5,
        router_noise=0.1,
        balanced=True,
    )
    expected = MoEConfig(6, 3, gating="sigmoid", shared=1, capacity=1.5, noise=0.1, balanced=True)
    assert settings.model_config(settings.vocab).moe == expected
    for name, value in (("shared_experts", 1), ("balanced", True), ("balance_loss", 0.1), ("z_loss", 0.1)):
        with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} {value} needs --experts"):
            TextSettings(**{name: value})
    with pytest.raises(ValueError, match="--z-loss -1: expected a number >= 0"):
        TextSettings(experts=4, z_loss=-1.0)
    with pytest.raises(ValueError, match="balance_loss=nan: expected a finite number"):
        TrainingConfig(1, balance_loss=float("nan"))
