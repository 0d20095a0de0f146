"""Weight formats for decoding (lesson 10): a step of one row reads every weight once, so fewer bytes take less time.

A weight format replaces linear layers with modules that have the interface of `nn.Linear` but compute the product
differently (`companion.quantization.matmul_kernels`). `prepared` replaces each linear layer of a decoder and leaves
everything else unchanged: the same attention, feed-forward networks and blocks run, including any wrappers and hooks of
a layer.

    fp32    the same elements, laid out for one row, summed in a different order
    fp16    half the bytes
    bf16    half the bytes, and an eighth of fp16's precision
    int8    a quarter: each row of a matrix divided by its largest element / 127 (Dettmers et al. 2022, section 2.1)
    int4    an eighth: groups of 32 elements in 16 levels from the minimum to the maximum; the head in int8.
            `calibrate`, in `companion.quantization.calibration`, chooses levels that preserve the outputs on a
            calibration text, with the same number of bytes
    auto    whichever of these, except int4, takes the least time per step on this machine, measured once
    fast    the format of the weights' own dtype where that pays off (see `fast_form`); otherwise unchanged

Prompts are read with the original weights, which stay in memory together with the copy, because the kernels here are
made for a few rows and because prompts should be read exactly. So the first new token, and the keys and values of the
prompt, are exactly those of the original model. `companion evaluate --weights` measures texts whose tokens were all
read in the given format.

The cache, and the stream between the products, keep their precision. Experts are not converted, because a step reads
only the experts that it visits. The matrix that expands latents is not converted either, because steps use the absorbed
form.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.ground.memory import memory
from companion.ground.waiting import counted, waiting
from companion.layers.attention import Attention
from companion.layers.block import Block
from companion.layers.cache import KVCache
from companion.layers.feedforward import FeedForward
from companion.layers.gated_delta_net import LinearAttention
from companion.layers.latent import LatentAttention
from companion.layers.moe import MoE
from companion.quantization.matmul_kernels import FEW, Product, mark_of, packs, possible, quicker
from companion.quantization.rounding import GROUP, FourBits
from companion.transformer import Transformer

Weights = Literal["fast", "fp32", "fp16", "bf16", "int8", "int4", "auto"]
"""The weight formats (see above)."""
FORMS = tuple(form for form in get_args(Weights) if form not in ("auto", "fast"))
AUTO: tuple[Weights, ...] = ("fp32", "fp16", "bf16", "int8")
"""Candidates for `"auto"`: formats that change the bits per byte of a text by less than 0.2 %."""
OWN = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
"""For each dtype, the weight format that gives the same results up to rounding."""
PAYS_FROM_STEPS = 16
"""Minimum number of steps for which a copy pays off; making the copy takes as long as two to four steps."""
PAYS_FROM_WEIGHTS = 2**20
"""Minimum number of weights for a copy to pay off; in smaller models, products take less time than all other work."""


class PackedLinear(nn.Module):
    """Quantized or repacked replacement for a linear layer. It shares the weight, the bias and the hooks of that layer.

    Attributes:
        product: the product of this layer, or of several layers that read the same x.
        place: the index of this layer among the layers of the product.
    """

    bias: Tensor | None

    def __init__(self, weight: Tensor, product: Product | FusedProduct, place: int = 0, layer: nn.Linear | None = None):
        super().__init__()
        if layer is not None:
            _share_hooks(layer, self)
        self.out_features, self.in_features = weight.shape
        self.of = (
            weight,
        )  # in a tuple it is not a parameter of this module; otherwise it would be an unused input of compiled programs
        self.bias = None if layer is None else layer.bias
        self.product, self.place = product, place

    @property
    def weight(self) -> Float[Tensor, "out d_in"]:
        """The original layer's weight."""
        return self.of[0]

    def forward(self, x: Float[Tensor, "*axes d_in"]) -> Float[Tensor, "*axes out"]:
        """Compute what `nn.Linear.forward` computes."""
        out = self.product.part(x, self.place)
        return out if self.bias is None else out + self.bias


class FusedProduct:
    """Fused linear: one product for several layers that read the same x.

    The product is computed when the first of these layers needs its part.

    Each part can be returned only once; if a part is requested again, the whole product is recomputed.
    """

    def __init__(self, product: Product, widths: Sequence[int]) -> None:
        self.product, self.widths = product, list(widths)
        self.kept: tuple[Tensor | None, list[Tensor | None]] = None, []

    def part(self, x: Float[Tensor, "*axes d_in"], place: int) -> Float[Tensor, "*axes out"]:
        """Return the output of the layer with index `place` for x."""
        of, parts = self.kept
        if of is not x or parts[place] is None:
            parts = [*self.product.part(x).split_with_sizes(self.widths, -1)]
            self.kept = x, parts
        part, parts[place] = parts[place], None
        assert part is not None
        return part


def prepared(model: Transformer, weights: Weights, *, together: bool = True) -> Transformer:
    """Return the model for inference, with its linear layers converted to a weight format.

    The result uses the model's current weights and modules. Products are stored for the model and computed only once,
    until the elements of a weight change. Everything else is shared with the model.

    Args:
        model: the model, which is not changed.
        weights: the weight format.
        together: whether layers that read the same x may be fused into one product.

    Raises:
        ValueError: if the format is unknown or not supported by this processor, or if the model cannot generate text.
    """
    check_weights(model, weights)
    if weights == "auto":
        weights = _fastest(model)
    if weights == "fast":
        weights = OWN[model.embedding.weight.dtype]  # type: ignore[assignment]
    forms = _forms(model, weights, together)
    table = forms.pop(model.embedding, None)
    made: Transformer = _with(model, forms, quick=together)  # type: ignore[assignment]
    if table is not None:
        made.unembedding = table  # type: ignore[assignment]
    return made


def check_weights(model: Transformer, weights: str | None) -> None:
    """Raise the same `ValueError` as `prepared`, without converting any weights; `None` is always accepted.

    One small product shows whether this processor supports the format.

    Raises:
        ValueError: if the format is unknown or not supported by this processor, or if the model is an encoder.
    """
    if weights is None:
        return
    if weights not in get_args(Weights):
        raise ValueError(f"weights={weights!r}: expected one of {', '.join(get_args(Weights))}, or None")
    if model.config.stack == "encoder":
        raise ValueError(f"weights={weights!r}: expected a model that generates text, got stack='encoder'")
    device = model.embedding.weight.device.type
    if weights in FORMS and not possible(weights, device):
        others = ", ".join(form for form in FORMS if possible(form, device))
        raise ValueError(
            f"weights={weights!r}: PyTorch has no matrix product in this format for this processor ({device}); the "
            f"available formats are {others}"
        )


def fast_form(model: Transformer, steps: int, tokens: int = 1, *, compile: bool = False) -> Weights | None:
    """Return the format that `"fast"` selects for this many steps with this many tokens each; `None` means no change.

    The selected format is that of the weights' own dtype, which gives the same results up to rounding. A copy in this
    format pays off for at least `PAYS_FROM_WEIGHTS` weights, at least `PAYS_FROM_STEPS` steps and only a few tokens at
    a time, on a processor whose kernel for one row is faster (measured once), and if the copy takes at most a quarter
    of the machine's memory. For compiled steps, this was measured only in fp32 with PyTorch's kernel, which the
    compiler can optimize.
    """
    weight = model.embedding.weight
    form, there = OWN.get(weight.dtype), memory()
    if form is None or weight.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return None
    if compile and (form != "fp32" or packs(form)):
        return None
    if model.decoder is None or steps < PAYS_FROM_STEPS or tokens > FEW:
        return None
    size = form_bytes(model)
    if size < PAYS_FROM_WEIGHTS * weight.element_size() or (there is not None and size > there / 4):
        return None
    return form if quicker(form) else None  # type: ignore[return-value]


def form_bytes(model: Transformer) -> int:
    """Return the size in bytes, in the model's own dtype, of the weights that `prepared` converts."""
    return sum(layer.weight.nbytes for layers in _alike(model) for layer in layers)


def writer_of(
    model: Transformer, weights: Weights | None, steps: int, tokens: int = 1, *, compile: bool = False
) -> Transformer:
    """Return the model for `steps` steps of `tokens` tokens each: `model` itself, or `prepared` in a weight format."""
    if weights == "fast":
        weights = fast_form(model, steps, tokens, compile=compile)
    return model if weights is None else prepared(model, weights, together=not compile)


_kept: WeakKeyDictionary[Transformer, dict[tuple[str, bool], dict[tuple[int, ...], Product]]] = WeakKeyDictionary()
"""Products of each model, keyed by format and by whether they are fused, then by the ids of the layers whose weights
they hold."""
_chosen: WeakKeyDictionary[Transformer, Weights] = WeakKeyDictionary()


_rounded: WeakKeyDictionary[nn.Module, tuple[list[Any], FourBits]] = WeakKeyDictionary()
"""Calibrated int4 levels of layers, with the fingerprints of the weights that they were computed from."""


def keep_rounded(model: Transformer, found: Mapping[nn.Linear, FourBits]) -> None:
    """Store the levels that int4 uses for these layers from now on, as long as their weights do not change."""
    _rounded.update((layer, (mark_of([layer.weight]), levels)) for layer, levels in found.items())
    for together in (True, False):
        _kept.get(model, {}).pop(("int4", together), None)


def rounded_of(layers: Sequence[nn.Linear | nn.Embedding]) -> list[FourBits] | None:
    """Return the stored levels of these layers, or `None` unless all of them have levels for their current weights."""
    found = []
    for layer in layers:
        mark, levels = _rounded.get(layer, (None, None))
        if levels is None or mark != mark_of([layer.weight]):
            return None
        found.append(levels)
    return found


def four_bit_layers(model: Transformer) -> list[list[nn.Linear]]:
    """Return the layers that int4 quantizes, grouped by the x that they read.

    The result contains the layers that a weight format replaces, except for the head and for layers whose width is not
    a multiple of the group size.
    """
    ends = (model.embedding, model.unembedding)
    groups = [
        [layer for layer in group if isinstance(layer, nn.Linear) and layer not in ends] for group in _alike(model)
    ]
    return [group for group in groups if group and group[0].in_features % GROUP == 0]


def _forms(model: Transformer, form: str, together: bool) -> dict[nn.Module, PackedLinear]:
    """Return the replacement of each linear layer, and of the table of a tied head."""
    kept = _kept.setdefault(model, {})
    before, now = kept.get((form, together), {}), {}
    found: dict[nn.Module, PackedLinear] = {}
    with torch.no_grad(), torch.inference_mode(False):
        for group in counted(list(_alike(model)), unit="matrix", what=f"weights in {form}"):
            for layers in [group] if together else [[layer] for layer in group]:
                key = tuple(map(id, layers))
                weights = [layer.weight for layer in layers]
                product = before.get(key)
                if product is None or not product.is_of(weights):
                    head = form == "int4" and layers[0] in (model.embedding, model.unembedding)
                    product = Product(weights, "int8" if head else form, rounded=rounded_of(layers))
                now[key] = product
                parts = product if len(layers) == 1 else FusedProduct(product, [len(weight) for weight in weights])
                for place, (layer, weight) in enumerate(zip(layers, weights, strict=True)):
                    found[layer] = PackedLinear(weight, parts, place, layer if isinstance(layer, nn.Linear) else None)
    kept[form, together] = now
    return found


def _alike(model: Transformer) -> Iterator[list[nn.Linear | nn.Embedding]]:
    """Yield the layers that a weight format replaces, grouped by the x that they read."""
    assert model.decoder is not None
    parts = [*model.decoder.modules(), *(() if model.unembedding is None else model.unembedding.modules())]
    there = {part for part in parts if _is_plain(part, nn.Linear)}
    for part in parts:
        if isinstance(part, MoE):
            there -= {part.router, part.shared_gate}
        if isinstance(part, LatentAttention):
            there.discard(part.up)
        if isinstance(part, Block) and isinstance(part.cross, Attention):
            there -= {part.cross.key, part.cross.value}  # applied only to the source, which is read once
    for part in parts:
        names = ["query", "key", "value"] if isinstance(part, Attention) else []
        names = ["gate", "inner"] if isinstance(part, FeedForward) else names
        if isinstance(part, LatentAttention):
            names = ["query" if part.query_down is None else "query_down", "down"]
        if isinstance(part, LinearAttention):
            names = ["query", "key", "value"]
        group = [getattr(part, name) for name in names]
        if group and all(layer in there and not layer._forward_hooks for layer in group):
            there.difference_update(group)
            yield group
    yield from ([part] for part in parts if part in there)
    if model.unembedding is None and _is_plain(model.embedding, nn.Embedding):
        yield [model.embedding]


def _is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a layer has exactly this class.

    A layer of a subclass does not count, and neither does one with a parametrized weight or with hooks that may change
    its weight or x.
    """
    return (
        type(layer) is kind
        and type(layer._parameters.get("weight")) is nn.Parameter
        and not layer._forward_pre_hooks
        and "forward" not in vars(layer)
    )


def _share_hooks(part: nn.Module, other: nn.Module) -> None:
    """Make two modules share their hooks, including those registered later."""
    vars(other).update((name, value) for name, value in vars(part).items() if "_hooks" in name)


def _with(module: nn.Module, forms: Mapping[nn.Module, nn.Module], *, quick: bool) -> nn.Module:
    """Return a copy of the module in evaluation mode with some of its parts replaced.

    The copy shares parameters, buffers and hooks, including later ones. A part that is used twice in the module is a
    single object in the copy too.
    """
    made = dict(forms)

    def of(part: nn.Module) -> nn.Module:
        if part not in made:
            other = made[part] = part._replicate_for_data_parallel()  # a shallow copy with its own dictionaries
            other._parameters, other._buffers = part._parameters, part._buffers
            other._modules = {name: None if one is None else of(one) for name, one in part._modules.items()}
            other.training = False
            if quick and type(part) is nn.Dropout:  # dropout does nothing in evaluation mode
                _share_hooks(part, other := nn.Identity())
                made[part] = other
        return made[part]

    of(module)
    for part in made.values() if quick else ():
        # Each step looks up the parts of every module, which is ten times as fast for plain attributes.
        vars(part).update(part._parameters | part._modules)
    return made[module]


def _fastest(model: Transformer) -> Weights:
    """Return the format with the fastest steps; the time of a format is the best of five runs after a warm-up run."""
    if model not in _chosen:
        device = model.embedding.weight.device.type
        seconds: dict[Weights, float] = {}
        for form in AUTO:
            if possible(form, device):
                made = prepared(model, form)
                with waiting(f"measuring {form}"):
                    seconds[form] = min(_step_seconds(made) for _ in range(6))
        _chosen[model] = min(seconds, key=seconds.__getitem__)
        for form in seconds:
            if form != _chosen[model]:
                del _kept[model][form, True]
    return _chosen[model]


def _step_seconds(model: Transformer) -> float:
    """Return the time that the blocks and the head take for one token, without earlier tokens in the cache."""
    weight = model.embedding.weight
    token = torch.zeros(1, 1, dtype=torch.long, device=weight.device)
    with torch.inference_mode():
        memory = model.encode(token) if model.encoder is not None else None
        cache = KVCache.create(model.config, 1, 1, dtype=weight.dtype, device=weight.device)
        start = time.perf_counter()
        model(token, source=memory, cache=cache).logits.argmax().item()
        return time.perf_counter() - start


def step_bytes(model: Transformer) -> int:
    """Return the minimum number of bytes that a step reads for the matrix products of a `prepared` model."""
    return sum(product.bytes for product in products_of(model))


def products_of(model: Transformer) -> dict[Product, int]:
    """Return the matrix products of a `prepared` model, each with the width of the rows that it takes."""
    packed = (module for module in model.modules() if isinstance(module, PackedLinear))
    return {
        layer.product if isinstance(layer.product, Product) else layer.product.product: layer.in_features
        for layer in packed
    }


def largest_change(model: Transformer, weights: Weights, tokens: Int[Tensor, "batch token"]) -> float:
    """Return the largest absolute difference between a model's logits and those of its `prepared` copy for these
    tokens."""
    with torch.inference_mode():
        return float((prepared(model, weights)(tokens).logits - model(tokens).logits).abs().max())
