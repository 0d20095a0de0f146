"""All settings of a run: one validated, frozen dataclass per task.

The fields and the flags have the same types, so both reject a number outside its limits with the same message.
"""

# ruff: noqa: RUF009  (each default is a dataclasses.field, made by setting)

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_type_hints

from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LatentConfig,
    LinearConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
)
from companion.ground.fields import plain, shown, why
from companion.ground.number_limits import (
    Count,
    CountFromTwo,
    CountFromZero,
    Decay,
    InnerShare,
    NonNegative,
    Number,
    Positive,
    Probability,
    check,
)
from companion.ground.reading import read_text
from companion.training.hyperparameters import (
    LATER,
    TRAINING,
    Learning,
    TrainingConfig,
    at_most,
    largest_rate,
    setting,
    training_setting,
)
from companion.training.schedule import Schedule

if TYPE_CHECKING:
    import torch

_OF_EXPERTS = ("experts_per_token", "gating", "shared_experts", "capacity", "router_noise", "balanced")
_SIZES = ("vocab", "d_model", "layers", "heads", "kv_heads", "d_ff", "context", "experts", "shared_experts")
_OF_THE_MACHINE = (
    *("out", "device", "compile", "activation_checkpointing", "keep", "save_seconds", "tensorboard"),
    *("shard", "expert_parallel", "baselines", "start"),
)
"""Settings that may change when a run is resumed. A starting point may be moved, but not replaced."""
TASK, MODEL, MACHINE = "what is learned", "the model", "the machine and the run"
PROCESSES = "several processes, started with torchrun"
GROUPS = (TASK, MODEL, TRAINING, MACHINE, PROCESSES)
task_setting, model_setting, machine_setting, process_setting = (
    partial(setting, group) for group in (TASK, MODEL, MACHINE, PROCESSES)
)
LONGEST_NAME = 100
"""Maximum length in bytes of the name of a run's folder that is derived from its task."""


def flag(f: Field[Any]) -> str:
    """Return the flag of a setting without its dashes.

    The flag has the same name as the field, unless Python does not allow that name for a field.
    """
    return f.metadata["flag"] or f.name.replace("_", "-")


def _typed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_LANGUAGES = "de (German), en (English), fr (French), pt (Portuguese)"


@dataclass(frozen=True)
class RunSettings(Learning, ABC):
    """Settings that every run has, for any task and model. Each field is a flag, whose help is in the field's metadata.

    The class for a task adds the flags and defaults of that task.

    Raises:
        ValueError: if a setting is invalid; the message names the flag, its value and what was expected.
    """

    task: ClassVar[str]

    steps: Count | None = training_setting(None, "number of updates (default: enough for the task)")
    minutes: Positive | None = training_setting(
        None,
        "training time instead of --steps: measures this machine's speed, then fixes the number of steps (fewer if the "
        "text is too short for that many)",
    )
    batch: Count = training_setting(16, "examples per micro-batch: windows of text, or pairs of names")
    out: str | None = machine_setting(None, "folder of the run (default: in runs/, named after what is learned)")
    device: str = machine_setting("auto", "cpu, cuda, cuda:1, mps, or auto: cuda if available, otherwise cpu")
    precision: Literal["auto", "fp32", "tf32", "bf16"] = machine_setting(
        "auto",
        "precision of matrix products; auto: bf16 on a GPU that supports it, otherwise fp32; tf32 (GPU only): fp32 "
        "with 10-bit mantissas",
    )
    compile: bool = machine_setting(False, "use torch.compile, which takes about a minute and is worthwhile on a GPU")
    activation_checkpointing: bool = machine_setting(
        False,
        "activation checkpointing: compute each block again in the backward pass instead of storing its activations; "
        "gives the same gradients, uses much less memory, and takes a third longer",
    )
    keep: Count = machine_setting(2, "number of recent checkpoints to keep, besides the best one")
    save_seconds: NonNegative = machine_setting(
        30.0,
        "seconds between checkpoints, more if writing takes long; 0: after every update. Each evaluation also writes "
        "a checkpoint",
    )
    tensorboard: bool = machine_setting(
        False, "write the log for TensorBoard too, if it is installed (tensorboard --logdir runs)"
    )

    shard: bool = process_setting(
        False, "shard weights, gradients and optimizer states across processes (FSDP; default: replicate them, DDP)"
    )
    expert_parallel: CountFromTwo | None = process_setting(
        None, "number of processes that share the experts of a layer (default: each process has all experts)"
    )

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        values = {flag(f): getattr(self, f.name) for f in fields(self)}
        check(values, {flag(f): hints[f.name] for f in fields(self)})
        if self.learning_rate is not None and self.learning_rate > (most := largest_rate(TrainingConfig.beta1)):
            raise ValueError(f"--learning-rate {self.learning_rate:g}: expected {at_most(most)}")
        if found := self.unused():
            name, wanted = found
            raise ValueError(f"{_typed(name)} {getattr(self, name)} needs {wanted}")
        if self.optimizer == "muon" and self.shard:
            raise ValueError(
                "--optimizer muon cannot be used together with --shard; an update needs whole matrices, but every "
                "process would have only a part of each"
            )
        if self.steps is not None and self.minutes is not None:
            raise ValueError(f"--minutes {self.minutes:g}: expected either --steps or --minutes, got both")

    def folder(self) -> Path:
        """Return the folder of the run: `out`, or else a folder in `runs` that is named after what is learned."""
        return Path(self.out) if self.out is not None else Path("runs", self._folder_name())

    @abstractmethod
    def _folder_name(self) -> str:
        """Return the default name of the folder in `runs`."""

    @classmethod
    def of_flags(cls, flags: Mapping[str, Any]) -> Self:
        """Return the settings that these flags specify; flags are given by name, with underscores.

        Raises:
            ValueError: in the same cases as the class itself.
        """
        return cls(**{f.name: flags[flag(f).replace("-", "_")] for f in fields(cls)})

    def what_matters(self) -> dict[str, Any]:
        """Return the settings that determine the result, in a form that JSON can store.

        The result contains all settings except those that say where the run is computed and stored.
        """
        chosen = {name: value for name, value in asdict(self).items() if name not in _OF_THE_MACHINE}
        return {"task": self.task, **chosen}

    @classmethod
    def _default(cls, name: str) -> Any:
        (found,) = [f for f in fields(cls) if f.name == name]
        return found.default if found.default_factory is MISSING else found.default_factory()

    def _changed(self, *names: str) -> list[str]:
        """Return which of these settings differ from their defaults."""
        return [name for name in names if getattr(self, name) != self._default(name)]

    def _model_names(self) -> list[str]:
        return [f.name for f in fields(self) if f.metadata["group"] == MODEL]


@dataclass(frozen=True)
class Settings(RunSettings, ABC):
    """Settings of `companion train` for any task, which describe a new model.

    Raises:
        ValueError: if a setting is invalid; the message names the flag, its value and what was expected.
    """

    stack: ClassVar[Literal["decoder", "encoder_decoder"]]
    scaled: ClassVar[bool]
    """True if the model multiplies its embeddings by sqrt(d_model)."""

    model: str | None = model_setting(
        None,
        "JSON file with a ModelConfig (such as config.json in a run's checkpoints), instead of the other model flags",
    )
    d_model: Count = model_setting(96, "width of the residual stream")
    layers: Count = model_setting(3, "number of blocks")
    heads: Count = model_setting(4, "number of query heads")
    kv_heads: Count | None = model_setting(
        None, "number of key and value heads, for grouped-query attention (default: as many as --heads)"
    )
    d_ff: Count | None = model_setting(
        None, "hidden width of the feed-forward network (default: 8/3 d-model for swiglu, otherwise 4 d-model)"
    )
    activation: Literal["swiglu", "gelu", "gelu_tanh", "relu", "silu"] = model_setting(
        "swiglu", "activation of the feed-forward network"
    )
    context: Count = model_setting(128, "context length in tokens")
    positions: Literal["rotary", "sinusoidal", "learned", "none"] = model_setting("rotary", "position encoding")
    norm: Literal["rms", "layer"] = model_setting("rms", "normalization")
    norm_placement: Literal["pre", "post"] = model_setting("pre", "normalize before or after each sub-layer")
    experts: Count | None = model_setting(
        None, "number of experts in each feed-forward layer (default: none, a dense network)"
    )
    experts_per_token: Count = model_setting(2, "experts per token, with --experts")
    gating: Literal["topk_softmax", "softmax_topk", "softmax_topk_renormalised", "sigmoid"] = model_setting(
        "topk_softmax", "how router scores become expert weights"
    )
    shared_experts: CountFromZero = model_setting(0, "number of shared experts, which process every token")
    capacity: Number | None = model_setting(
        None,
        "maximum number of tokens per expert in training, as a multiple of an even share; excess tokens are dropped "
        "(default: no limit)",
    )
    router_noise: Number = model_setting(0.0, "standard deviation of the noise added to router scores in training")
    balanced: bool = model_setting(False, "balance the experts by a bias that only affects which of them are chosen")
    tied: bool = model_setting(True, "use the embedding table as the output head (false: separate weights)")
    dropout: Number = model_setting(0.15, "dropout probability in training")

    label_smoothing: Decay = training_setting(
        0.0, "fraction of each target's probability that is spread over all tokens (0.1 in the 2017 paper)"
    )
    balance_loss: NonNegative | None = training_setting(
        None, "weight of the load-balancing loss (default: 0.01, or 0 with --balanced)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        shared = self.expert_parallel if self.model is None else None
        if shared is not None and (self.experts is None or self.experts % shared):
            got = "there are none" if self.experts is None else f"there are {self.experts}"
            raise ValueError(f"--expert-parallel {shared}: expected a divisor of the number of --experts; {got}")
        dense = self.experts is None and self.model is None
        if dense and (given := self._changed(*_OF_EXPERTS, "balance_loss", "z_loss", "bias_rate")):
            value = getattr(self, given[0])
            raise ValueError(f"{_typed(given[0])} {value} needs --experts, because the model has no experts")
        if self.model is not None and (
            given := [name for name in self._changed(*self._model_names()) if name != "model"]
        ):
            raise ValueError(
                f"--model {self.model} cannot be used together with {_typed(given[0])}, because it already defines the "
                "model"
            )

    def check_memory(self, device: torch.device, world: int = 1) -> None:
        """Check that this machine has at least the minimum memory for training, before anything is read or written.

        The estimate counts weights, gradients and both moments (16 bytes per parameter), the batches of an update, and
        the residual stream and logits of one micro-batch.

        Args:
            device: the device to train on.
            world: number of processes that share the rows and, with `shard` or `expert_parallel`, the weights.

        Raises:
            ValueError: if this machine has less memory. The message names the flag that is furthest from its default.
        """
        from companion.costs.account import train_bytes  # imported here, because this loads torch
        from companion.ground.memory import check_room

        config = self.model_config(getattr(self, "vocab", 257))
        training = train_bytes(config) // (world if self.shard or self.expert_parallel else 1)
        ids = self.batch * self.accumulate * config.context * 16
        rows = -(-self.batch // world)
        stream = rows * config.context * (config.layers * config.d_model + config.vocab) * 4

        def ratio(name: str) -> float:
            value, default = getattr(self, name), self._default(name) or 4
            return 0.0 if value is None else min(value, 10**300) / default

        def culprit(*names: str) -> str:
            name = max((name for name in names if hasattr(self, name)), key=ratio)
            return f"{_typed(name)} {shown(getattr(self, name))}"

        sizes = () if self.model else _SIZES
        model = f"--model {self.model}" if self.model is not None else culprit(*sizes)
        check_room(model, "this model in training", training, device)
        check_room(culprit("batch", "accumulate", *sizes), "an update", training + ids + stream, device)

    def model_config(self, vocab: int) -> ModelConfig:
        """Return the configuration of the model.

        Args:
            vocab: vocabulary size, unless the model is read from a file.

        Raises:
            ValueError: if the model is invalid, or the file cannot be read, is not the JSON of a `ModelConfig` or has a
                different `stack` than the task, and in the same cases as `wide_config`.
        """
        stated = self._stated(vocab)
        if self.width_base is None:
            return stated
        from companion.training.mup import wide_config  # imported here, because this loads torch

        try:
            return wide_config(stated, self.width_base)
        except ValueError as error:
            raise ValueError(f"--width-base {self.width_base}: {error}") from None

    def _stated(self, vocab: int) -> ModelConfig:
        """Return the configuration given by the other flags or by the file."""
        if self.model is not None:
            try:
                config = ModelConfig.from_json(read_text(self.model))
            except (OSError, UnicodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else why(error)
                raise ValueError(f"--model {plain(self.model)}: cannot be read ({reason})") from None
            except ValueError as error:
                raise ValueError(f"--model {self.model}: {error}") from None
            if config.stack != self.stack:
                raise ValueError(f"--model {self.model}: expected stack={self.stack!r}, got {config.stack!r}")
            return config
        gated = self.activation == "swiglu"
        # A gated network has three matrices, so at two thirds of the width it has the same size. A multiple of 32 is
        # fast.
        d_ff = self.d_ff or (round(Fraction(self.d_model, 12)) * 32 or 32 if gated else 4 * self.d_model)
        moe = None
        if self.experts is not None:
            moe = MoEConfig(
                self.experts,
                self.experts_per_token,
                gating=self.gating,
                shared=self.shared_experts,
                capacity=self.capacity,
                noise=self.router_noise,
                balanced=self.balanced,
            )
        return ModelConfig(
            vocab=vocab,
            d_model=self.d_model,
            layers=self.layers,
            context=self.context,
            attention=self._attention(),
            feed_forward=FeedForwardConfig(d_ff, self.activation),
            positions=PositionConfig(self.positions),
            norm=NormConfig(self.norm, self.norm_placement),
            embedding=EmbeddingConfig(tied=self.tied, scaled=self.scaled),
            moe=moe,
            stack=self.stack,
            dropout=self.dropout,
        )

    def _attention(self) -> AttentionConfig:
        return AttentionConfig(self.heads, self.kv_heads)


def _help(name: str) -> str:
    (found,) = [f for f in fields(Settings) if f.name == name]
    return str(found.metadata["help"])


@dataclass(frozen=True)
class TextSettings(Settings):
    """Settings of a decoder that learns to continue text.

    Raises:
        ValueError: in the same cases as `Settings`, and if `vocab` is below 257.
    """

    task: ClassVar[str] = "text"
    stack: ClassVar[Literal["decoder", "encoder_decoder"]] = "decoder"
    scaled: ClassVar[bool] = False

    data: list[str] = task_setting(
        ["course"],
        "files, folders or globs of UTF-8 text to learn from; or course: the prose of the first edition of this "
        "course, which is installed with companion; or python: the language reference of this Python, which differs "
        "between versions",
    )
    held_out: InnerShare = task_setting(
        0.1, "fraction of the text, in whole documents, that is held out for evaluation"
    )
    keep_repeats: bool = task_setting(
        False,
        "keep paragraphs that repeat earlier ones, for text that is written from templates, such as tables or "
        "generated stories; by default, only the first occurrence is used",
    )
    vocab: int = task_setting(
        1024, "maximum vocabulary size of the tokenizer, at least 257 (256 bytes and a separator)"
    )
    packing: Literal["documents", "apart", "ring"] = task_setting(
        "documents",
        "how documents fill the windows; documents: only documents longer than a window are cut, the others are packed "
        "whole; apart: the same, and tokens see only their own document; ring: documents are joined end to end and cut "
        "anywhere",
    )

    linear: CountFromZero = model_setting(
        0,
        "number of linear-attention layers (gated delta rule) before each layer of full attention, such as 3 in "
        "Qwen3-Next; with as many as --layers, there is no full attention",
    )
    latent: Count | None = model_setting(
        None, "width of the latent vector that all keys and values are computed from (MLA; default: none)"
    )
    sinks: bool = model_setting(
        False, "add a learned sink logit to each head, which takes attention weight and has no value"
    )
    medusa_heads: CountFromZero = model_setting(
        0, "number of multi-token-prediction heads; companion generate --draft medusa uses them"
    )
    gate: Literal["head", "width"] | None = model_setting(
        None, "multiply the output of attention by sigmoids: one per head, or one per component (default: no gate)"
    )

    later_loss: NonNegative = training_setting(LATER, "weight of the loss of each multi-token-prediction head")
    init_from: str | None = task_setting(
        None,
        "folder of a run or of a published model whose configuration, tokenizer and weights the new run starts from "
        "(default: random weights)",
    )
    baselines: bool = task_setting(
        True,
        "measure the baselines, a compressor and n-gram models, on the held-out text (they read at most 4 MB of the "
        "training text); with false, training starts sooner",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data:
            raise ValueError("--data: expected at least one file, folder, glob or name, got none")
        if self.vocab < 257:
            raise ValueError(f"--vocab {self.vocab}: expected at least 257 (256 bytes and a separator)")
        given = [name for name in self._changed("vocab", *self._model_names()) if name != "dropout"]
        if self.init_from is not None and given:
            raise ValueError(
                f"--init-from {self.init_from} cannot be used together with {_typed(given[0])}, because it already "
                "defines the model"
            )

    def _attention(self) -> AttentionConfig:
        latent, linear = None, None
        if self.latent is not None:
            # Half of a head's components are rotated, as in DeepSeek-V2. Their number must be even, because they form
            # pairs.
            turned = max(2, self.d_model // self.heads // 4 * 2) if self.positions == "rotary" else 0
            latent = LatentConfig(self.latent, turned)
        if self.linear:
            linear = LinearConfig((True,) * self.linear + (False,))
        parts: dict[str, Any] = {"sinks": self.sinks, "gate": self.gate, "latent": latent, "linear": linear}
        return AttentionConfig(self.heads, self.kv_heads, **parts)

    def model_config(self, vocab: int) -> ModelConfig:
        """Return the configuration that the base class returns, with the multi-token-prediction heads added.

        With `init_from`, the result is the configuration of the model that this setting names.
        """
        if self.init_from is not None:
            return self._begun(Path(self.init_from).expanduser()).with_(dropout=float(self.dropout))
        config = super().model_config(vocab)
        return config.with_(medusa_heads=self.medusa_heads) if self.medusa_heads else config

    @staticmethod
    def _begun(folder: Path) -> ModelConfig:
        from companion.families.pretrained import family_of, load_pretrained  # imported here, because this loads torch
        from companion.training.checksummed_records import read_checksummed

        if not folder.is_dir():
            raise ValueError(
                f"--init-from {plain(str(folder))}: expected the folder of a run or of a published model, found none"
            )
        if (record := folder / "run.json").is_file():
            config = ModelConfig.from_json(json.dumps(read_checksummed(record, "restore it from a backup")["model"]))
        else:
            family = family_of(folder)
            config = (load_pretrained(folder) if family is None else family.read(folder, headers=True)).config
        if config.stack != "decoder":
            raise ValueError(f"--init-from {folder}: expected a decoder, got stack={config.stack!r}")
        return config

    def _folder_name(self) -> str:
        name = re.sub(r"[^\w.-]+", "-", Path(self.data[0]).expanduser().resolve().name).strip("-.")
        return name.encode()[:LONGEST_NAME].decode("utf-8", "ignore") or "text"


@dataclass(frozen=True)
class NumberWordsSettings(Settings):
    """Settings of an encoder-decoder that learns to translate number names.

    By default, the model is a small version of the 2017 Transformer with pre-norm, which trains in about ten seconds.
    """

    task: ClassVar[str] = "number-words"
    stack: ClassVar[Literal["decoder", "encoder_decoder"]] = "encoder_decoder"
    scaled: ClassVar[bool] = True

    source: str = task_setting("de", f"language to translate from: {_LANGUAGES}", flag="from")
    target: str = task_setting("en", "language to translate into; --from lists the languages", flag="to")
    source_pieces: Literal["parts", "characters"] = task_setting(
        "parts", "tokens of the source: words (in German, their parts), or letters"
    )
    target_pieces: Literal["parts", "characters"] = task_setting(
        "parts", "tokens of the target: words, or letters, which take more than twice as many steps"
    )

    d_model: Count = model_setting(64, _help("d_model"))
    layers: Count = model_setting(2, "number of blocks in the encoder and in the decoder")
    activation: Literal["swiglu", "gelu", "gelu_tanh", "relu", "silu"] = model_setting("relu", _help("activation"))
    context: Count = model_setting(
        96, "maximum length of a name in tokens; 96 is enough for all names, even letter by letter"
    )
    positions: Literal["rotary", "sinusoidal", "learned", "none"] = model_setting("sinusoidal", _help("positions"))
    norm: Literal["rms", "layer"] = model_setting("layer", _help("norm"))
    dropout: Number = model_setting(0.0, _help("dropout"))
    batch: Count = training_setting(64, _help("batch"))
    schedule: Schedule = training_setting("linear", _help("schedule"))
    beta2: Decay = training_setting(0.98, _help("beta2"))

    def _folder_name(self) -> str:
        kinds = (self.source_pieces, self.target_pieces)
        letters = "" if kinds == ("parts", "parts") else f"-{kinds[0]}-{kinds[1]}"
        return f"number-words-{self.source}-{self.target}{letters}"


@dataclass(frozen=True)
class TuneSettings(RunSettings):
    """Settings of a fine-tuning run, which teaches an existing model to answer.

    Raises:
        ValueError: in the same cases as `RunSettings`, and if neither or both of `data` and `problems` are set, if the
            method cannot learn from the data, or if a setting belongs to another method.
    """

    task: ClassVar[str] = "tune"

    method: Literal["sft", "dpo", "grpo"] = task_setting(
        "sft",
        "sft: imitate the answers in the file; dpo: prefer the better of two answers; grpo: reinforce the model's own "
        "answers that a function finds right",
    )
    data: list[str] = task_setting(
        [], 'files with one JSON object per line: "messages", or for dpo "prompt", "chosen" and "rejected"'
    )
    problems: Literal["sums", "names"] | None = task_setting(
        None,
        "problems whose answers can be checked, instead of --data: sums of two numbers with their steps, or English "
        "number names to convert to numbers",
        flag="task",
    )
    worked: Probability = task_setting(
        1.0,
        "sft on sums: fraction of the answers that show their steps; the others contain only the number. With a "
        "mixture, grpo has something to choose between",
    )
    start: str | None = task_setting(
        None, "folder of the run or published model to start from (default: the newest run on text in runs/)"
    )
    held_out: InnerShare = task_setting(0.1, "fraction of the conversations that is held out for evaluation")

    rank: Count | None = model_setting(
        None,
        "rank of the LoRA adapters to train; only these are saved, in peft's format (default: none, all weights are "
        "trained)",
    )
    alpha: Positive | None = model_setting(
        None, "adapters: their output is scaled by alpha / rank (default: twice the rank)"
    )
    targets: Literal["attention", "all"] = model_setting(
        "all", "adapters: adapt the linear layers of attention only, or those of feed-forward networks too"
    )
    dropout: Number = model_setting(0.0, "dropout probability in training")

    batch: Count = training_setting(16, "conversations, pairs or problems per micro-batch")
    learning_rate: Positive | None = training_setting(  # type: ignore[assignment]
        None,
        "peak learning rate (default: 0.001 for sft, 0.00005 for grpo, 0.0001 for dpo; a tenth of that for a "
        "published model, ten times as much with --rank)",
    )
    warmup: CountFromZero = training_setting(10, "updates until the peak learning rate is reached")
    weight_decay: NonNegative = training_setting(0.0, "weight decay of the matrices")
    beta: NonNegative | None = training_setting(
        None,
        "dpo, grpo: strength of the pull toward the initial model (default: 0.1 for dpo, 0.04 for grpo, where it "
        "weighs the KL divergence)",
    )
    group: CountFromTwo = training_setting(8, "grpo: answers per problem")
    tokens: Count = training_setting(48, "maximum tokens per answer, in grpo and in evaluations")
    temperature: Positive = training_setting(1.0, "grpo: sampling temperature of the answers")
    epochs: Count = training_setting(1, "grpo: optimizer steps on the same answers in one update")
    clip_ratio: Positive = training_setting(
        0.2, "grpo: how far the probability ratio of a token may move before it is clipped"
    )
    lengths: Literal["answer", "constant"] = training_setting(
        "answer", "grpo: divide the loss of an answer by its own length, or by --tokens (Dr. GRPO)"
    )
    deviation: bool = training_setting(
        True, "grpo: divide advantages by the standard deviation of their group (false: Dr. GRPO)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.data) == (self.problems is not None):
            got = "both" if self.data else "neither"
            raise ValueError(f"--data: expected either --data or --task, got {got}")
        if self.method == "grpo" and self.data:
            raise ValueError("--data: --method grpo needs --task instead, because a function must check the answers")
        if self.method == "dpo" and self.beta == 0:
            raise ValueError("--beta 0: expected a number > 0 with --method dpo")
        of_grpo = ("group", "temperature", "epochs", "clip_ratio", "lengths", "deviation")
        for names, fits, beside in (
            (of_grpo, self.method == "grpo", "--method grpo"),
            (("beta",), self.method != "sft", "--method dpo or grpo"),
            (("worked",), self.method == "sft" and self.problems == "sums", "--task sums, without another --method"),
            (("alpha", "targets"), self.rank is not None, "--rank"),
        ):
            if not fits and (given := self._changed(*names)):
                raise ValueError(f"{_typed(given[0])} {getattr(self, given[0])} needs {beside}")
        if self.width_base is not None:
            raise ValueError(f"--width-base {self.width_base}: not allowed, because the model has already been trained")
        if self.optimizer == "muon" and self.rank is not None:
            raise ValueError("--optimizer muon cannot be used together with --rank; Muon needs whole matrices")
        if self.shard or self.expert_parallel:
            name = "shard" if self.shard else "expert-parallel"
            raise ValueError(f"--{name}: not allowed, because tuning uses one process (trl and peft support several)")

    @property
    def strength(self) -> float:
        """The value of `beta`, or the default value."""
        return {"sft": 0.0, "dpo": 0.1, "grpo": 0.04}[self.method] if self.beta is None else float(self.beta)

    def _folder_name(self) -> str:
        what = self.problems or re.sub(r"[^\w.-]+", "-", Path(self.data[0]).stem).strip("-.") or "data"
        name = f"{what}-{self.method}{'' if self.rank is None else '-lora'}"
        return name.encode()[-LONGEST_NAME:].decode("utf-8", "ignore")


TASKS: dict[str, type[Settings]] = {kind.task: kind for kind in (TextSettings, NumberWordsSettings)}
"""Settings class of every task of `companion train`, by name."""
_KINDS: dict[str, type[RunSettings]] = {**TASKS, TuneSettings.task: TuneSettings}


def recorded(record: Mapping[str, Any]) -> RunSettings:
    """Return the settings stored in a `run.json`. Raises `ValueError` if they do not belong to a known task."""
    try:
        given = dict(record["settings"])
        return _KINDS[given.pop("task")](**given)
    except (KeyError, TypeError) as error:
        raise ValueError(f"run.json: expected a run's settings, got something else ({why(error)})") from None


def differences(old: RunSettings, new: RunSettings) -> list[str]:
    """Describe the changes that `new` settings make, one line per flag: `--layers: 3 in the run, 4 now`."""
    if old.task != new.task:
        return [f"--task: {old.task} in the run, {new.task} now"]
    before, now = old.what_matters(), new.what_matters()
    flags = {f.name: flag(f) for f in fields(new)}
    changed = [name for name in flags if name in now and before[name] != now[name]]
    return [f"--{flags[name]}: {_said(before[name])} in the run, {_said(now[name])} now" for name in changed]


def lengthens(record: Mapping[str, Any], settings: RunSettings) -> bool:
    """Return whether the settings describe the same run as a `run.json`, but with more updates."""
    old = recorded(record)
    if old.task != settings.task or settings.steps is None or settings.steps <= record["updates"]:
        return False
    length = {"steps", "minutes"}
    before, now = old.what_matters(), settings.what_matters()
    return all(before[name] == now[name] for name in now if name not in length)


def _said(value: Any) -> str:
    """Format a value as it would appear on a command line."""
    if isinstance(value, list):
        return " ".join(value)
    return "not given" if value is None else str(value)
