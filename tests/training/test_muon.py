"""Muon for the hidden matrices and AdamW for the rest: compared with PyTorch and with the formula."""

import pytest
import torch
from torch import nn

from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LinearConfig,
    ModelConfig,
    MoEConfig,
    PositionConfig,
)
from companion.training.optimizer import MuonWithAdamW, adamw, hidden_matrices
from companion.training.settings import TextSettings
from companion.training.trainer import Trainer, TrainingConfig
from companion.transformer import Transformer

PLAIN = ModelConfig(
    23, 12, 2, 9, AttentionConfig(3, 1, bias=True), FeedForwardConfig(20), embedding=EmbeddingConfig(tied=False)
)
MIXED = PLAIN.with_(moe=MoEConfig(4, 2, shared=1, shared_gate=True, pattern=(False, True)))


def evened(matrix: torch.Tensor) -> torch.Tensor:
    """Apply the Newton-Schulz polynomial five times, written as in the paper."""
    x = matrix.bfloat16()
    x = x.T if x.shape[0] > x.shape[1] else x
    x = x / x.norm()
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.float().T if matrix.shape[0] > matrix.shape[1] else x.float()


def batches(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(number)
    tokens = torch.randint(23, (3, 10), generator=drawn)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def trainer_of(config: ModelConfig, **settings: object) -> Trainer:
    torch.manual_seed(1)
    options = {"updates": 20, "learning_rate": 0.01, "warmup": 0, "optimizer": "muon", **settings}
    return Trainer(Transformer(config), batches, TrainingConfig(**options))


def test_hidden_matrices_are_those_between_vectors() -> None:
    names = hidden_matrices(Transformer(MIXED.with_(positions=PositionConfig("learned"))))
    inside = {name.removeprefix("decoder.blocks.1.") for name in names if name.startswith("decoder.blocks.1.")}
    attention = {f"attention.{part}.weight" for part in ("query", "key", "value", "output")}
    experts = {f"feed_forward.{part}" for part in ("inner", "gate", "outer")}
    shared = {f"feed_forward.shared.{part}.weight" for part in ("inner", "gate", "outer")}
    router = {"feed_forward.router.weight", "feed_forward.shared_gate.weight"}
    assert inside == attention | experts | shared | router
    assert not any("embedding" in name or "norm" in name or "bias" in name or "position" in name for name in names)
    linear = PLAIN.with_(attention=AttentionConfig(3, linear=LinearConfig((True, False))))
    assert not any("convolution" in name for name in hidden_matrices(Transformer(linear)))


def test_each_parameter_steps_as_pytorchs_muon_or_adamw_would_step_it() -> None:
    """Two updates of the trainer, with clipping, are compared bit for bit with torch.optim.Muon and torch.optim.AdamW.

    Muon updates the matrices, and each slice of a stack of matrices; AdamW updates the rest.
    """
    trainer = trainer_of(MIXED, clip=0.5)
    model = Transformer(MIXED)
    model.load_state_dict(trainer.model.state_dict())
    model.train()
    names = hidden_matrices(model)
    matrices, rest, stacks = [], {True: [], False: []}, []
    for name, p in model.named_parameters():
        if name in names and min(p.shape[-2:]) > 1:
            parts = [p] if p.ndim == 2 else [nn.Parameter(part.detach().clone()) for part in p]
            matrices += parts
            stacks += [(p, parts)] if p.ndim == 3 else []
        else:
            rest[p.ndim > 1 and name != "embedding.weight"].append(p)
    muon = torch.optim.Muon(matrices, lr=0.0, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(
        [{"params": rest[True], "weight_decay": 0.1}, {"params": rest[False], "weight_decay": 0.0}], betas=(0.9, 0.95)
    )
    for number in range(2):
        update = trainer.update()
        torch.manual_seed(0)
        ids, targets = batches(number)
        model.zero_grad()
        nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), targets.flatten(), reduction="sum").div(
            27
        ).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for p, parts in stacks:
            for part, gradient in zip(parts, p.grad, strict=True):
                part.grad = gradient
        for group in (*muon.param_groups, *adam.param_groups):
            group["lr"] = update.learning_rate
        muon.step()
        adam.step()
        with torch.no_grad():
            for p, parts in stacks:
                p.copy_(torch.stack([part.detach() for part in parts]))
    for (name, ours), theirs in zip(trainer.model.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=name)


def test_a_step_is_that_of_the_formula() -> None:
    """The formula is written out for tall, wide and stacked matrices, with momentum, Nesterov, scale and decay."""
    torch.manual_seed(2)
    model = Transformer(MIXED)
    optimizer = MuonWithAdamW(model, weight_decay=0.3)
    names = [
        "decoder.blocks.0.feed_forward.inner.weight",
        "decoder.blocks.0.feed_forward.outer.weight",
        "decoder.blocks.1.feed_forward.outer",
    ]
    chosen = [dict(model.named_parameters())[name] for name in names]
    assert {p.shape[-2] > p.shape[-1] for p in chosen} == {True, False}
    expected = [p.detach().clone() for p in chosen]
    momenta = [torch.zeros_like(p) for p in chosen]
    for rate in (0.05, 0.02):
        for group in optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        for place, p in enumerate(chosen):
            momenta[place] = 0.95 * momenta[place] + 0.05 * p.grad
            ahead = 0.05 * p.grad + 0.95 * momenta[place]
            step = evened(ahead) if p.ndim == 2 else torch.stack([evened(part) for part in ahead])
            expected[place] = (1 - rate * 0.3) * expected[place] - rate * 0.2 * max(p.shape[-2:]) ** 0.5 * step
            # All singular values of a step are near 1, whatever those of the gradient are.
            values = torch.linalg.svdvals(step)
            assert float(values.min()) > 0.5 and float(values.max()) < 1.3
        optimizer.step()
    for p, wanted in zip(chosen, expected, strict=True):
        torch.testing.assert_close(p.detach(), wanted, rtol=1e-2, atol=2e-3)  # products are rounded to bfloat16


@pytest.mark.parametrize("config", [PLAIN, MIXED], ids=["plain", "experts"])
def test_a_run_that_is_continued_has_the_weights_of_one_that_was_not(config) -> None:
    whole, first, second = (trainer_of(config, schedule="wsd", decay_share=0.5) for _ in range(3))
    updates = [whole.update() for _ in range(7)]
    found = [first.update() for _ in range(3)]
    second.load(*({k: v.clone() for k, v in kept.items()} for kept in (first.weights(), first.state())), first.done)
    found += [second.update() for _ in range(4)]
    assert found == updates
    assert all(torch.equal(ours, second.weights()[name]) for name, ours in whole.weights().items())
    names = {name.partition(".")[0] for name in whole.state()}
    assert names == {"momentum_buffer", "exp_avg", "exp_avg_sq", "step"}


def test_what_cannot_be_is_named(unchecked) -> None:
    muon, plain = trainer_of(PLAIN), trainer_of(PLAIN, optimizer="adamw")
    muon.update()
    plain.update()
    with pytest.raises(ValueError, match=r"expected the momentum of decoder.*query.weight, got \['exp_avg'"):
        muon.load(plain.weights(), plain.state(), 1)
    with pytest.raises(ValueError, match=r"both moments and the count of decoder.*, got \['momentum_buffer'\]"):
        plain.load(muon.weights(), muon.state(), 1)
    with pytest.raises(ValueError, match="optimizer='lion': expected one of 'adamw', 'muon'"):
        TrainingConfig(3, optimizer="lion")
    with pytest.raises(ValueError, match="decay_share=0.1 needs the schedule wsd"):
        TrainingConfig(3, decay_share=0.1)
    with pytest.raises(ValueError, match="--decay-shape 1-sqrt needs the schedule wsd"):
        TextSettings(decay_shape="1-sqrt")
    with pytest.raises(ValueError, match="--optimizer muon cannot be used together with --shard"):
        TextSettings(optimizer="muon", shard=True)
    model = Transformer(PLAIN)
    pieces = type("Piece", (nn.Parameter,), {})
    layer = model.decoder.blocks[1].feed_forward.inner
    layer.weight = pieces(layer.weight.detach())
    with pytest.raises(ValueError, match=r"blocks.1.feed_forward.inner.weight is sharded across processes"):
        MuonWithAdamW(model, weight_decay=0.1)
    with pytest.raises(ValueError, match="expected a model with hidden matrices"):
        MuonWithAdamW(nn.Linear(3, 4), weight_decay=0.1)


def test_learning_is_quicker_than_by_doing_nothing_and_all_parameters_move() -> None:
    trainer = trainer_of(MIXED)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.batches = lambda number: batches(0)
    losses = [trainer.update().loss for _ in range(12)]
    assert losses[-1] < 0.7 * losses[0]
    assert all(not torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())
    assert isinstance(adamw(trainer.model, weight_decay=0.1), torch.optim.AdamW)
