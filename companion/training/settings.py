"""Everything a run of `companion train` can be told, in one validated, frozen dataclass. No torch here: it is read
by the command line before anything heavy is imported."""

# ruff: noqa: RUF009  (each default is a dataclasses.field, made by _setting)

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from companion.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
)

_OF_EXPERTS = ("experts_per_token", "gating", "shared_experts", "capacity", "router_noise", "balanced")
TEXT, MODEL, TRAINING, MACHINE = "the text", "the model", "the training", "the machine and the run"


def _setting(group: str, default: Any, help: str) -> Any:
    made = {"default_factory": lambda: list(default)} if isinstance(default, list) else {"default": default}
    return field(**made, metadata={"group": group, "help": help})


@dataclass(frozen=True)
class TrainSettings:
    """Settings of one run; each field is a flag of `companion train`, whose help is in the field's metadata.

    Raises `ValueError` naming the flag, what it was and what it must be.
    """

    data: list[str] = _setting(
        TEXT,
        [],
        "files, folders or globs of UTF-8 text to learn from. Default: the Python language reference, which every "
        "Python brings along",
    )
    held_out: float = _setting(TEXT, 0.1, "share of the text, by whole documents, that is only measured on")
    vocab: int = _setting(TEXT, 1024, "most tokens the tokenizer may learn: 257 (bytes and a separator) or more")

    model: str | None = _setting(
        MODEL, None, "a JSON file with a ModelConfig (as config.json in a run), instead of the other model flags"
    )
    d_model: int = _setting(MODEL, 96, "width of the residual stream")
    layers: int = _setting(MODEL, 3, "number of blocks")
    heads: int = _setting(MODEL, 4, "query heads")
    kv_heads: int | None = _setting(MODEL, None, "key and value heads, for grouped queries. Default: as many as heads")
    d_ff: int | None = _setting(
        MODEL, None, "hidden width of the feed-forward network. Default: 8/3 d-model for swiglu, else 4 d-model"
    )
    activation: Literal["swiglu", "gelu", "gelu_tanh", "relu", "silu"] = _setting(
        MODEL, "swiglu", "of the feed-forward network"
    )
    context: int = _setting(MODEL, 128, "tokens the model sees at once")
    positions: Literal["rotary", "sinusoidal", "learned", "none"] = _setting(
        MODEL, "rotary", "how it is told the order of the tokens"
    )
    norm: Literal["rms", "layer"] = _setting(MODEL, "rms", "which normalisation")
    norm_placement: Literal["pre", "post"] = _setting(MODEL, "pre", "where it stands: before a sub-layer, or after")
    experts: int | None = _setting(
        MODEL, None, "experts in each feed-forward layer. Default: none, a plain feed-forward network"
    )
    experts_per_token: int = _setting(MODEL, 2, "experts that each token visits, with --experts")
    gating: Literal["topk_softmax", "softmax_topk", "softmax_topk_renormalised", "sigmoid"] = _setting(
        MODEL, "topk_softmax", "how the router's scores become the experts' weights"
    )
    shared_experts: int = _setting(MODEL, 0, "further experts that every token visits")
    capacity: float | None = _setting(
        MODEL,
        None,
        "most tokens an expert takes in training, as a multiple of the even share; the rest is dropped. Default: all",
    )
    router_noise: float = _setting(MODEL, 0.0, "standard deviation of noise on the router's scores in training")
    balanced: bool = _setting(MODEL, False, "balance experts by a bias that enters their choice alone")
    tied: bool = _setting(MODEL, True, "the output head is the embedding table (true), or has its own weights (false)")
    dropout: float = _setting(MODEL, 0.15, "probability of dropout in training")

    steps: int | None = _setting(
        TRAINING, None, "updates of the weights. Default: enough for the default text, and no more"
    )
    minutes: float | None = _setting(
        TRAINING,
        None,
        "instead of --steps: measure this machine's speed, then fix the steps that take this long (fewer where the "
        "text is too short to learn from for so long)",
    )
    batch: int = _setting(TRAINING, 16, "windows of --context tokens in a micro-batch")
    accumulate: int = _setting(TRAINING, 1, "micro-batches per update: a larger batch in the same memory")
    learning_rate: float = _setting(TRAINING, 3e-3, "peak learning rate of AdamW; it falls along a cosine")
    warmup: int = _setting(TRAINING, 50, "updates until the peak learning rate")
    weight_decay: float = _setting(TRAINING, 0.1, "of the matrices")
    clip: float = _setting(TRAINING, 1.0, "largest norm of the gradient")
    balance_loss: float | None = _setting(
        TRAINING, None, "weight of the loss that asks for evenly loaded experts. Default: 0.01, or 0 with --balanced"
    )
    z_loss: float = _setting(TRAINING, 0.0, "weight of the loss that keeps the router's scores small; 0.001 is usual")
    bias_rate: float = _setting(TRAINING, 0.001, "step of the bias of --balanced after each update")
    seed: int = _setting(TRAINING, 0, "of the initial weights, the batches and the dropout")

    out: str | None = _setting(MACHINE, None, "folder of the run. Default: runs/ and the name of the text")
    device: str = _setting(MACHINE, "auto", "cpu, cuda, cuda:1, mps, or auto: cuda where there is one, else cpu")
    precision: Literal["auto", "fp32", "bf16"] = _setting(
        MACHINE, "auto", "of matrix products; auto: bf16 on a GPU that has it, else fp32"
    )
    compile: bool = _setting(MACHINE, False, "torch.compile: worth its minute on a GPU")

    def __post_init__(self) -> None:
        if self.steps is not None and self.minutes is not None:
            raise ValueError(f"--minutes {self.minutes:g}: expected either --steps or --minutes, got both")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"--steps {self.steps}: expected a whole number >= 1")
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise ValueError(f"--minutes {self.minutes:g}: expected a number > 0")
        if not 0 < self.held_out < 1:
            raise ValueError(f"--held-out {self.held_out:g}: expected a share between 0 and 1, both excluded")
        if self.vocab < 257:
            raise ValueError(f"--vocab {self.vocab}: expected at least 257 (256 bytes and a separator)")
        for name in ("batch", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} {getattr(self, name)}: expected a whole number >= 1")
        for name in ("warmup", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"--{name} {getattr(self, name)}: expected a whole number >= 0")
        for name in ("balance_loss", "z_loss", "bias_rate"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"--{name.replace('_', '-')} {value:g}: expected a number >= 0")
        if self.experts is None and self.model is None:
            for name in (*_OF_EXPERTS, "balance_loss", "z_loss", "bias_rate"):
                if getattr(self, name) != _default(name):
                    flag, value = name.replace("_", "-"), getattr(self, name)
                    raise ValueError(f"--{flag} {value}: expected --experts beside it; there are no experts")
        if self.model is not None:
            given = [f.name for f in fields(self) if f.metadata["group"] == MODEL and f.name != "model"]
            given = [name for name in given if getattr(self, name) != _default(name)]
            if given:
                flag = given[0].replace("_", "-")
                raise ValueError(f"--model {self.model} says all about the model: expected no --{flag} beside it")

    def model_config(self) -> ModelConfig:
        """The model these settings ask for; its `vocab` is the largest the tokenizer may have."""
        if self.model is not None:
            try:
                config = ModelConfig.from_json(Path(self.model).read_text("utf-8"))
            except (OSError, UnicodeError) as error:
                raise ValueError(f"--model {self.model}: cannot be read ({error})") from None
            except ValueError as error:
                raise ValueError(f"--model {self.model}: {error}") from None
            if config.stack != "decoder":
                raise ValueError(f"--model {self.model}: expected stack='decoder', got {config.stack!r}")
            return config
        gated = self.activation == "swiglu"
        # A gated network has three matrices: two thirds of the width give it the same size. A multiple of 32 is fast.
        d_ff = self.d_ff or (round(self.d_model * 8 / 3 / 32) * 32 or 32 if gated else 4 * self.d_model)
        return ModelConfig(
            vocab=self.vocab,
            d_model=self.d_model,
            layers=self.layers,
            context=self.context,
            attention=AttentionConfig(self.heads, self.kv_heads),
            feed_forward=FeedForwardConfig(d_ff, self.activation),
            positions=PositionConfig(self.positions),
            norm=NormConfig(self.norm, self.norm_placement),
            embedding=EmbeddingConfig(tied=self.tied),
            moe=self._mixture(),
            dropout=self.dropout,
        )

    def _mixture(self) -> MoEConfig | None:
        if self.experts is None:
            return None
        return MoEConfig(
            self.experts,
            self.experts_per_token,
            gating=self.gating,
            shared=self.shared_experts,
            capacity=self.capacity,
            noise=self.router_noise,
            balanced=self.balanced,
        )

    def folder(self) -> Path:
        """Where the run lives: the same text gives the same folder."""
        if self.out is not None:
            return Path(self.out)
        if not self.data:
            return Path("runs", "python-reference")
        name = re.sub(r"[^\w.-]+", "-", Path(self.data[0]).expanduser().resolve().name).strip("-.")
        return Path("runs", name or "text")

    def what_matters(self) -> dict[str, Any]:
        """The settings that decide the result, as JSON has them: all but where it runs and where it is kept."""
        return {name: value for name, value in asdict(self).items() if name not in ("out", "device", "compile")}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What `new` settings change, one line for each flag: `--layers: 3 in the run, 4 now`."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [f"--{name.replace('_', '-')}: {old.get(name)} in the run, {new.get(name)} now" for name in names]


def _default(name: str) -> Any:
    (found,) = [f for f in fields(TrainSettings) if f.name == name]
    return found.default if found.default_factory is MISSING else found.default_factory()
