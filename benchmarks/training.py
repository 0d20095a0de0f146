"""A training step: forward and backward pass, clipping and optimizer. It is usually limited by arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.compare import OURS, Comparison, Setting, differs
from benchmarks.peers import PEERS, Peer, built, drawn
from benchmarks.sizes import Size
from companion.costs import account
from companion.ground.display import many
from companion.training.precision import autocast
from companion.training.trainer import Trainer, TrainingConfig

TRIAL_UPDATES = 3
"""Updates that every contender makes before it is timed. Their losses and gradient norms must agree."""
SETTINGS = TrainingConfig(updates=10**9, learning_rate=1e-3, min_lr_ratio=1.0, warmup=0, weight_decay=0.0)


def compare(
    size: Size,
    setting: Setting,
    beside: Collection[str] = PEERS,
    optimizer: Literal["adamw", "muon"] = "adamw",
) -> Comparison:
    """Compare updates: forward pass, loss, backward pass, clipping and the optimizer.

    Our row runs all of `Trainer.update`. The peers run the shortest loop that makes the same update, always with AdamW.
    """
    config, device = size.config, setting.device
    comparison = Comparison(
        part="training",
        title=f"training step, {size.batch} x {config.context:,} tokens "
        f"({many(account.parameters(config).total)} parameters)" + ", Muon" * (optimizer == "muon"),
        size=size.name,
        items=size.batch * config.context,
        least=account.train_flops(config, config.context, batch=size.batch) / setting.chip.flops,
    )
    ours = drawn(config).to(device)
    tokens = torch.randint(config.vocab, (size.batch, config.context + 1), device=device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    peers = dict(built(ours, beside, comparison))
    with torch.no_grad():
        expected = ours(inputs).logits if peers else inputs
    settings = replace(SETTINGS, optimizer=optimizer)
    trainer = Trainer(ours, lambda _: (inputs, targets), settings, precision=setting.precision, compile=setting.compile)
    fused = bool(trainer.optimizer.defaults["fused"])

    def update() -> tuple[float, float]:
        done = trainer.update()
        return done.loss, done.gradient_norm

    course = torch.tensor([update() for _ in range(TRIAL_UPDATES)])
    runs: dict[str, Callable[[], Any]] = {OURS: update}

    def check(name: str, peer: Peer) -> str | None:
        peer.model.to(device).eval()
        with torch.no_grad():
            if why := differs(expected, peer.logits(inputs), "logits", torch.float32):
                return why
        step = _plain_step(peer, inputs, targets, settings, setting, fused=fused)
        theirs = torch.tensor([step() for _ in range(TRIAL_UPDATES)])
        # In fp32, the loss must agree to four digits. Rounding affects the gradient norm more, so two digits suffice.
        parts = ((0, "loss", 1e-4 if setting.precision == "fp32" else 1e-2), (1, "gradient", 1e-2))
        far = [what for i, what, most in parts if not torch.allclose(course[:, i], theirs[:, i], rtol=most, atol=0)]
        if far:
            return f"its {' and '.join(far)} differ from ours in the first {TRIAL_UPDATES} updates"
        runs[name] = step
        return None

    for name, peer in peers.items():
        comparison.admits(name, check, name, peer)
    return comparison.time(runs, setting)


def _plain_step(
    peer: Peer, inputs: Tensor, targets: Tensor, settings: TrainingConfig, setting: Setting, *, fused: bool
) -> Callable[[], tuple[float, float]]:
    """Return a function that makes the same update in the simplest way, and returns the loss and the gradient norm."""
    model = peer.model
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, settings.learning_rate, settings.betas, weight_decay=settings.weight_decay, fused=fused
    )
    logits = torch.compile(peer.logits) if setting.compile else peer.logits
    model.train()

    def step() -> tuple[float, float]:
        optimizer.zero_grad(set_to_none=True)
        with autocast(setting.device, setting.precision):
            scores = logits(inputs)
            loss = F.cross_entropy(scores.float().flatten(0, 1), targets.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, settings.clip)
        value, length = torch.stack((loss.detach(), norm)).tolist()
        optimizer.step()
        return value, length

    return step
