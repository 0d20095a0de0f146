"""Training hyperparameters, with defaults and limits, for the trainer and for the flags of `companion train`."""

# ruff: noqa: RUF009  (each default is a dataclasses.field, made by setting)

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial
from typing import Any, Literal

from companion.ground.fields import require_types
from companion.ground.number_limits import (
    Count,
    CountFromZero,
    Decay,
    NonNegative,
    PartOfOne,
    Positive,
    Probability,
    require_fields,
)
from companion.training.schedule import DecayShape, Schedule

TRAINING = "the training"
"""Title of this group of flags."""
LATER = 0.3
"""Weight of the loss of each multi-token-prediction head."""
LARGEST = 3.4028234663852886e38
"""Largest number in fp32."""


def setting(group: str, default: Any, help: str, *, flag: str | None = None) -> Any:
    """Define a field that becomes a flag of `companion train`.

    The field has a default and a help text. `flag` is the name of the flag, if Python does not allow that name for a
    field.
    """
    made = {"default_factory": lambda: list(default)} if isinstance(default, list) else {"default": default}
    return field(**made, metadata={"group": group, "help": help, "flag": flag})


training_setting = partial(setting, TRAINING)


@dataclass(frozen=True, kw_only=True)
class Learning:
    """Hyperparameters shared by the trainer and `companion train`. Each field is described by its help text."""

    accumulate: Count = training_setting(
        1, "micro-batches per update; more of them give a larger batch without using more memory"
    )
    optimizer: Literal["adamw", "muon"] = training_setting(
        "adamw",
        "optimizer; muon updates the matrices of the blocks with Muon and everything else with AdamW, at the same "
        "learning rate",
    )
    learning_rate: Positive = training_setting(3e-3, "peak learning rate")
    warmup: CountFromZero = training_setting(50, "updates until the peak learning rate is reached")
    schedule: Schedule = training_setting(
        "cosine",
        "how the learning rate falls after its peak; inverse_sqrt is the schedule of 2017, wsd stays at the peak and "
        "falls only at the end",
    )
    decay_share: PartOfOne = training_setting(0.2, "wsd: length of the decay at the end, as a fraction of the updates")
    decay_shape: DecayShape = training_setting("linear", "wsd: shape of the decay; 1-sqrt falls fast at first")
    width_base: Count | None = training_setting(
        None,
        "muP: d-model of the narrower model that the learning rate was tuned for; the weights of the model to train "
        "are initialized and updated so that the same rate suits it too (default: no scaling)",
    )
    beta2: Decay = training_setting(0.95, "decay per update of AdamW's average of squared gradients")
    weight_decay: NonNegative = training_setting(0.1, "weight decay of the matrices")
    clip: Positive = training_setting(1.0, "maximum norm of the gradient")
    z_loss: NonNegative = training_setting(
        0.0, "weight of the loss that keeps the router's logits small; a common value is 0.001"
    )
    bias_rate: NonNegative = training_setting(0.001, "step size of the expert bias (--balanced) after each update")
    seed: CountFromZero = training_setting(0, "seed of the initial weights, the batches and dropout")

    def learning(self) -> dict[str, Any]:
        """Return the fields of this class, keyed by name."""
        return {f.name: getattr(self, f.name) for f in fields(Learning)}

    def unused(self) -> tuple[str, str] | None:
        """Return the name of a field that would have no effect, and what this field requires.

        The result is `None` if all fields have an effect.
        """
        for name in ("decay_share", "decay_shape"):
            (default,) = [f.default for f in fields(Learning) if f.name == name]
            if self.schedule != "wsd" and getattr(self, name) != default:
                return name, "the schedule wsd, because no other schedule has these settings"
        return None


@dataclass(frozen=True)
class TrainingConfig(Learning):
    """Hyperparameters of a training run.

    Args:
        updates: number of optimizer steps in the whole run; the schedule ends exactly there.
        accumulate: number of micro-batches per update. More micro-batches give a larger batch without using more
            memory.
        optimizer: `"adamw"`, or `"muon"` for the hidden matrices (see `optimizer.MuonWithAdamW`).
        learning_rate: the peak learning rate, reached after `warmup` updates.
        warmup: number of updates until the peak.
        schedule: how the rate falls after the peak. `"cosine"` (half a cosine) and `"linear"` fall to `min_lr_ratio` of
            the peak at the last update; `"inverse_sqrt"` falls with the inverse square root of the update; `"wsd"`
            stays at the peak, and falls to `min_lr_ratio` of it only in the last updates.
        decay_share: for `"wsd"`, fraction of the updates during which the rate falls.
        decay_shape: for `"wsd"`, how the rate falls: `"linear"` or `"1-sqrt"`.
        width_base: d_model of a narrower model for which the rate was tuned; the rate of hidden matrices is then scaled
            (see `mup`, whose `wide_model` makes the model). By default, all parameters have the same rate.
        weight_decay: decay of the matrices (see `optimizer.decayed`).
        beta1, beta2: decay per update of AdamW's two moving averages.
        clip: maximum norm of the whole gradient.
        seed: seed of dropout and of a router's noise.
        min_lr_ratio: final learning rate as a fraction of the peak.
        balance_loss: weight of the Switch loss of each mixture of experts, which encourages an even load.
        z_loss: weight of each router's z-loss, which keeps its logits small.
        bias_rate: step size of the selection bias of `balanced` experts, which changes after each update.

    Raises:
        ValueError: if a field is invalid. The message names the field, its value and what was expected.
    """

    updates: Count
    _: KW_ONLY
    min_lr_ratio: Probability = 0.05
    beta1: Decay = 0.9
    balance_loss: NonNegative = 0.0

    def __post_init__(self) -> None:
        require_types(self)
        require_fields(self)
        if self.learning_rate > (most := largest_rate(self.beta1)):
            raise ValueError(f"learning_rate={self.learning_rate!r}: expected {at_most(most)}")
        if found := self.unused():
            name, wanted = found
            raise ValueError(f"{name}={getattr(self, name)!r} needs {wanted}")

    @property
    def betas(self) -> tuple[float, float]:
        """Both decay rates, in the form that optimizers expect."""
        return float(self.beta1), float(self.beta2)  # optimizers reject integers


def largest_rate(beta1: float) -> float:
    """Return the largest learning rate whose first AdamW step can be represented in fp32."""
    return LARGEST * (1 - beta1)


def at_most(most: float) -> str:
    """Describe the limit of the learning rate in words."""
    return f"at most {most:.2g}, so that an update can be represented in fp32"
