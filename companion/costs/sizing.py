"""Sizing: which machines a model fits on, how to distribute it, and what it costs to train.

Counts are taken from `companion.costs.account`. The tensors that autograd saves for the backward pass are measured with
fake tensors, which have a shape but no memory. No figure is a prediction: each is a lower bound or a rough allowance.
See `companion.costs.tables` for what is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from companion.config.model import ModelConfig
from companion.config.parameter_count import plain_d_ff, routed
from companion.costs.account import parameters, train_flops
from companion.costs.chips import CHIPS, Chip
from companion.ground.fields import require_whole
from companion.layers.moe import MoE
from companion.transformer import Transformer

Strategy = Literal["data", "shard", "experts", "experts+shard"]
"""How `companion train` distributes a model over devices: each device holds the whole model; `--shard`;
`--expert-parallel`, where a device holds one expert of each layer and everything else; the same with everything else
sharded.
"""

LONGEST_ROW = 4096
"""Maximum length of a training row if the context is longer: pretraining does not start with rows of 32,768 tokens.
"""
USABLE = 0.9
"""Fraction of a device's memory that a model may fill. The rest is an allowance for what is not counted."""
MOST_DEVICES = 4_096
"""Maximum number of devices to consider."""
TOKENS_PER_PARAMETER = 20
"""Training tokens per parameter that make about the best use of a given number of FLOPs (Hoffmann et al. 2022, table
3)."""
SECONDS_A_DAY = 86_400


def row_tokens(config: ModelConfig) -> int:
    """Return the default length of a training row: the model's context, but at most `LONGEST_ROW`."""
    return min(config.context, LONGEST_ROW)


@dataclass(frozen=True)
class Kept:
    """Bytes saved from a forward pass for its backward pass, in bf16 under autocast, as in `companion train`.

    Attributes:
        layers: number of layers.
        layer: activations of one layer, for one row. In an encoder-decoder, this is one layer of each stack together.
        rest: activations of the embeddings, the last norm, the head and the loss, for one row.
        entry: the stream that enters a layer, for one row; activation checkpointing stores it instead of `layer`.
        layer_copies: the half-precision copies that autocast makes of one layer's weights; their size does not depend
            on the batch.
        rest_copies: the copies of the other weights.
    """

    layers: int
    layer: int
    rest: int
    entry: int
    layer_copies: int
    rest_copies: int

    def activations(self, rows: int = 1, *, activation_checkpointing: bool = False) -> int:
        """Return the size of the activations of `rows` rows in bytes.

        With `activation_checkpointing`, the activations of one layer at a time are computed again from the layer's
        input (Chen et al. 2016), which takes a third more arithmetic.
        """
        layers = self.layers * self.entry + self.layer if activation_checkpointing else self.layers * self.layer
        return rows * (layers + self.rest)

    def copies(self, *, activation_checkpointing: bool = False) -> int:
        """Return the size of the copies of all weights in bytes.

        With `activation_checkpointing`, only one layer and the weights outside the layers have copies at a time.
        """
        return (1 if activation_checkpointing else self.layers) * self.layer_copies + self.rest_copies


@lru_cache
def kept(config: ModelConfig, tokens: int) -> Kept:
    """Measure how many bytes training on rows of `tokens` tokens saves for the backward pass.

    The measurement uses fake tensors, models of one and two layers, and batches of one and two rows. The size is linear
    in the numbers of layers and rows, so these four cases are enough. If windows or positions follow a repeating
    pattern, the models have one and two repetitions, and a layer's share is the mean. Layers with and without experts
    are measured separately, and so are linear layers and those with softmax attention. Dropout, whose masks would add
    a byte per element, is switched off. Attention uses the fused kernel, which saves no scores, unless the scores have
    a softcap. In an encoder-decoder, the source and the target both have `tokens` tokens.

    Raises:
        ValueError: if `tokens` is not a whole number of at least 1.
    """
    require_whole("tokens", tokens, 1)
    for count, split in ((config.mixtures, _kinds), (config.linears, _with_and_without_linear_layers)):
        if 0 < count < config.layers:  # each kind of layer saves the same amount, whatever the other kinds are
            with_, without = (kept(kind, tokens) for kind in split(config))
            share = Fraction(count, config.layers)
            sizes = {
                name: round(share * getattr(with_, name) + (1 - share) * getattr(without, name))
                for name in ("layer", "layer_copies")
            }
            return replace(with_, **sizes)
    plain, window = config.with_(dropout=0.0), config.attention.window
    kinds = math.lcm(len(config.positions.pattern), 1 if window is None else len(window.pattern))
    found = {(n, b): _saved(plain.with_(layers=n * kinds), tokens, b) for n in (1, 2) for b in (1, 2)}
    layers = found[2, 2] - found[2, 1] - found[1, 2] + found[1, 1]
    rest = found[1, 2] - found[1, 1] - layers
    copies = found[2, 1] - found[1, 1] - layers
    layer, layer_copies = layers // kinds, copies // kinds
    stacks = 2 if config.stack == "encoder_decoder" else 1
    return Kept(
        layers=config.layers,
        layer=layer,
        rest=rest,
        entry=stacks * tokens * config.d_model * 4,  # under autocast the stream stays in fp32
        layer_copies=layer_copies,
        rest_copies=found[1, 1] - layers - rest - copies,
    )


def _saved(config: ModelConfig, tokens: int, rows: int) -> int:
    """Return the bytes that autograd saves in one forward pass and its loss, not counting the parameters."""
    with FakeTensorMode():
        model = Transformer(config)
        for layer in model.modules():
            if isinstance(layer, MoE):
                layer.way = "grouped"  # other implementations need token counts, and a fake tensor has no values
        own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        saved: dict[int, torch.UntypedStorage] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                saved[storage._cdata] = storage
            return tensor

        ids = torch.zeros(rows, tokens, dtype=torch.long)
        source = ids if config.stack == "encoder_decoder" else None
        hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        with hooks, torch.autocast("cpu", torch.bfloat16):
            stream = model.features(ids, source=source).stream
            states = [stream, *(() if model.medusa is None else model.medusa(stream))]
            logits = [model.head(state).float().flatten(0, 1) for state in states]
            loss = sum(F.cross_entropy(each, ids.flatten(), reduction="sum") for each in logits)
        size = sum(storage.nbytes() for storage in saved.values())
        del loss
        return size


@dataclass(frozen=True)
class DeviceBytes:
    """Memory of one device in training, in bytes.

    Attributes:
        state: the device's share of the weights, the gradients and the two moments, which together take 16 bytes per
            parameter.
        copies: half-precision copies of weights (see `Kept`).
        gathered: whole weights and gradients that `--shard` gathers temporarily.
        activations: activations of the micro-batch (see `Kept`).
    """

    state: int
    copies: int
    gathered: int
    activations: int

    @property
    def total(self) -> int:
        """Sum of all parts, in bytes."""
        return self.state + self.copies + self.gathered + self.activations


def device_bytes(
    config: ModelConfig,
    way: Strategy,
    devices: int,
    *,
    rows: int = 1,
    tokens: int | None = None,
    activation_checkpointing: bool = False,
) -> DeviceBytes:
    """Return the memory of each of `devices` devices that train a model with AdamW in bf16.

    With N parameters, K devices, and e experts that have E of these parameters, the state takes

        data           16 N                          shard            16 N / K
        experts        16 (N - E) + 16 E / e         experts+shard    16 (N - E) / K + 16 E / e

    (Rajbhandari et al. 2020, sections 3 and 5; their 2 + 2 + 12 bytes are 4 + 4 + 8 here, because the weights
    themselves are in fp32.) `--shard` gathers the fp32 weights of the current and the next layer, and a layer's
    gradient before it is divided among the devices; the weights outside the layers, and their gradient, stay gathered
    all the time.

    Args:
        config: configuration of the model.
        way: how the model is distributed.
        devices: number of devices.
        rows, tokens: number of rows in one device's micro-batch, and their length; if `tokens` is `None`, it is
            `row_tokens`.
        activation_checkpointing: whether activation checkpointing is used.

    Raises:
        ValueError: if `way` is unknown, or if expert parallelism is used without experts or with a number of devices
            that is not a multiple of the number of experts.
    """
    require_whole("devices", devices, 1)
    require_whole("rows", rows, 1)
    count, moe = parameters(config), config.moe
    if way not in get_args(Strategy):
        raise ValueError(f"way={way!r}: expected one of {', '.join(map(repr, get_args(Strategy)))}")
    by_expert = way in ("experts", "experts+shard")
    if by_expert and (moe is None or devices % moe.experts):
        expected = "a mixture of experts" if moe is None else f"a multiple of the {moe.experts} experts"
        raise ValueError(f"devices={devices}, way={way!r}: expected {expected}")
    groups = moe.experts if moe is not None and by_expert else 1
    here = kept(config, row_tokens(config) if tokens is None else tokens)
    experts = routed(config) if by_expert else 0
    others = count.total - experts
    sharded = way in ("shard", "experts+shard")
    state = 16 * (-(-others // devices) if sharded else others) + 16 * experts // groups
    # A copy takes two bytes per element of a matrix; the copy of an expert is on the expert's device.
    away = 2 * (experts - experts // groups)
    copies = here.copies(activation_checkpointing=activation_checkpointing) - (
        away // config.layers if activation_checkpointing else away
    )
    block, outside = _by_place(config)
    block -= experts // max(config.mixtures, 1)
    gathered = 4 * (3 * block + 2 * outside) if sharded and devices > 1 else 0
    return DeviceBytes(
        state, copies, gathered, here.activations(rows, activation_checkpointing=activation_checkpointing)
    )


def fewest_devices(
    config: ModelConfig,
    way: Strategy,
    memory: float,
    *,
    usable: float = USABLE,
    rows: int = 1,
    tokens: int | None = None,
    activation_checkpointing: bool = False,
) -> int | None:
    """Return the fewest devices with `memory` bytes each that can hold `device_bytes`; `None` if no number is enough.

    Args:
        config: configuration of the model.
        way: how the model is distributed.
        memory: bytes per device.
        usable: fraction of the memory that may be filled.
        rows, tokens, activation_checkpointing: as in `device_bytes`.

    Raises:
        ValueError: if the fraction is not in (0, 1].
    """
    if not 0 < usable <= 1:
        raise ValueError(f"usable={usable!r}: expected a fraction above 0 and at most 1")
    step = config.moe.experts if config.moe is not None and way.startswith("experts") else 1

    def fits(groups: int) -> bool:
        needed = device_bytes(
            config, way, groups * step, rows=rows, tokens=tokens, activation_checkpointing=activation_checkpointing
        )
        return needed.total <= usable * memory

    if fits(1):
        return step
    low, high = 1, 2
    # Adding devices never raises the memory needed per device, with one exception: with `--shard`, a single device
    # gathers nothing and so can need less.
    while not fits(high):
        low, high = high, 2 * high
        if high * step > MOST_DEVICES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high * step


@dataclass(frozen=True)
class Cost:
    """Arithmetic cost of training.

    Attributes:
        tokens: total number of tokens read; in an encoder-decoder, sources and targets together.
        rule: FLOPs according to the rule 6 N tokens, where N is the number of parameters that are active for a token.
        flops: FLOPs as counted: all matrix products, including attention, with rows of `row_tokens` tokens.
    """

    tokens: float
    rule: float
    flops: float

    def days(self, devices: int, share: float, peak: float) -> float:
        """Return the training time in days.

        Each of `devices` devices reaches the fraction `share` of `peak` FLOPs per second.

        Raises:
            ValueError: if the fraction is not in (0, 1], or if the number of devices is below 1.
        """
        require_whole("devices", devices, 1)
        if not 0 < share <= 1:
            raise ValueError(f"share={share!r}: expected a fraction of the peak, above 0 and at most 1")
        return self.flops / devices / (share * peak) / SECONDS_A_DAY


def train_cost(config: ModelConfig, tokens: float | None = None, *, row: int | None = None) -> Cost:
    """Return the cost of training on `tokens` tokens (default: `TOKENS_PER_PARAMETER` for each active parameter).

    Args:
        config: configuration of the model.
        tokens: number of tokens.
        row: length of a row (default: `row_tokens`). In an encoder-decoder, the source and the target both have this
            length.

    Raises:
        ValueError: if the number of tokens is not positive.
    """
    active = parameters(config).active
    tokens = TOKENS_PER_PARAMETER * active if tokens is None else tokens
    if not 0 < tokens < float("inf"):
        raise ValueError(f"tokens={tokens!r}: expected a number > 0")
    row = row_tokens(config) if row is None else row
    source = row if config.stack == "encoder_decoder" else 0
    return Cost(tokens, 6 * active * tokens, train_flops(config, row, source=source) * (tokens / (row + source)))


def memories() -> dict[float, list[Chip]]:
    """Return the chips grouped by the size of their memory in bytes, with the smallest size first."""
    found: dict[float, list[Chip]] = {}
    for chip in sorted(CHIPS.values(), key=lambda chip: chip.memory):
        found.setdefault(chip.memory, []).append(chip)
    return found


def _by_place(config: ModelConfig) -> tuple[int, int]:
    """Return the number of parameters of the largest layer, and of everything outside the layers.

    In an encoder-decoder, a layer means one layer of each stack together.
    """
    kinds = [config]
    if config.moe is not None and config.mixtures < config.layers:
        kinds = _kinds(config)
    found = []
    for kind in kinds:
        one, two = (parameters(kind.with_(layers=n)).total for n in (1, 2))
        found.append((two - one, 2 * one - two))
    return max(found)


def _kinds(config: ModelConfig) -> list[ModelConfig]:
    """Split a model with experts in some of its layers into two: one with experts in all layers, and one without."""
    assert config.moe is not None
    everywhere = replace(config.moe, pattern=(True,), plain_d_ff=None)
    plain = replace(config.feed_forward, d_ff=plain_d_ff(config))
    return [config.with_(moe=everywhere), config.with_(moe=None, feed_forward=plain)]


def _with_and_without_linear_layers(config: ModelConfig) -> list[ModelConfig]:
    """Split a model with linear attention in some of its layers into two: one in which all are linear, and one in which
    none are."""
    linear = config.attention.linear
    assert linear is not None
    kinds = (replace(linear, pattern=(True,)), None)
    return [config.with_(attention=replace(config.attention, linear=kind)) for kind in kinds]
