"""Stages 14 to 18: the delta rule, speculative decoding, quantized weights, adapters, and hooks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from companion_school.build.compared_runs import Node
from companion_school.build.isolated_modules import World
from companion_school.build.scenes.layers import goes_in
from companion_school.build.scenes.model import LAYERS, config, decoder, some_ids
from companion_school.build.scenes.parts import (
    BATCH,
    D_MODEL,
    HEADS,
    TOKENS,
    VOCAB,
    draw,
    function,
    gave,
    given,
    marked,
    module,
    part,
    same_weights,
)
from companion_school.build.scenes.scene import scene
from companion_school.build.trace import Recorder


def _mark_unseen(log: Recorder, name: str, model: Any) -> None:
    """Mark logits without recording the model's operations, so that no line of the model is blamed for a difference."""
    with log.unseen(), torch.no_grad():
        logits = model(some_ids())
    log.mark(name, logits)


# Stage 14


@scene(
    "for delta_rule",
    [
        marked("read", "the values that the tokens read", "delta_rule"),
        marked("state", "the final state", "delta_rule"),
    ],
)
def rule(world: World, log: Recorder) -> None:
    shape = (BATCH, HEADS, TOKENS, 5)
    q, v, keys = (
        draw("q of a state", *shape),
        draw("v of a state", BATCH, HEADS, TOKENS, 3),
        draw("k of a state", *shape),
    )
    beta, state = draw("strengths", BATCH, HEADS, TOKENS).sigmoid(), draw("a state", BATCH, HEADS, 5, 3)
    read, left = world["delta"].delta_rule(q, F.normalize(keys, dim=-1), v, beta, state)
    log.mark("read", read)
    log.mark("state", left)


_RULE, _FORWARD = function("delta_rule"), "DeltaLayer.forward"
_GIVEN = {name: f"the {name}" for name in ("queries", "keys", "values", "write strengths")}


@scene(
    "for the layer",
    [goes_in("attention")],
    [Node(name, f"{says} passed to delta_rule", given(_RULE, at), ("input",), (_FORWARD,))
     for at, (name, says) in enumerate(_GIVEN.items())],
    [Node("read", "the values that the tokens read", part(_RULE, 0), tuple(_GIVEN), ("delta_rule",)),
     Node("output", "the output of the layer", gave(module("attention")), ("read",), (_FORWARD,)),
     Node("state", "the state before the second piece", given(function("delta_rule", turn=1), 4), (), (_FORWARD,)),
     marked("tokens", "the number of tokens that the state has read", _FORWARD)],
)  # fmt: skip
def layer(world: World, log: Recorder) -> None:
    made, state = world["delta"].DeltaLayer(D_MODEL, HEADS), world["delta"].State()
    same_weights(made, log, "attention")
    x = draw("x of a layer", BATCH, TOKENS, D_MODEL)
    made(x[:, :4], turn=lambda y: -y, cache=state)
    made(x[:, 4:], turn=lambda y: -y, cache=state)
    log.mark("tokens", len(state))


@scene(
    "for a model with states",
    [
        marked("blocks", "the kinds of attention in the blocks", "put_states"),
        marked("caches", "the caches of the blocks", "new_caches"),
    ],
)
def mixed(world: World, log: Recorder) -> None:
    model = world["delta"].put_states(world["model"].Transformer(config(world)), (1,))
    log.mark("blocks", tuple(type(block.attention).__name__ for block in model.decoder.blocks))
    log.mark("caches", tuple(type(cache).__name__ for cache in world["delta"].new_caches(model)))


# Stage 15


@scene(
    "for the distributions",
    [marked("rows", "the probabilities of the rows", "rows"), marked("greedy", "the rows at temperature 0", "rows"),
     marked("correction", "the corrected probabilities", "correction")],
)  # fmt: skip
def chances(world: World, log: Recorder) -> None:
    code, logits = world["speculative"], draw("rows", 3, VOCAB)
    log.mark("rows", code.rows(logits, 0.7, top_k=4))
    log.mark("greedy", code.rows(logits, 0))
    log.mark("correction", code.correction(logits[0].softmax(-1), logits[1].softmax(-1)))


@scene(
    "for judge",
    [marked(f"tokens {n}", f"the tokens that judge returns for {n} guesses", "judge") for n in range(4)],
)
def judge(world: World, log: Recorder) -> None:
    sure = torch.eye(VOCAB)
    for n in range(4):  # the guess at index 2 is wrong
        told = world["speculative"].judge(
            sure[[1, 2, 3, 4][: n + 1]], sure[[1, 2, 7][:n]], [1, 2, 7][:n], torch.Generator()
        )
        log.mark(f"tokens {n}", tuple(int(token) for token in told))


@scene(
    "for lookup",
    [marked("guesses", "the guesses", "lookup"), marked("q", "the probabilities of the guesses", "lookup")],
)
def lookup(world: World, log: Recorder) -> None:
    guesses, q = world["speculative"].lookup([1, 2, 3, 1, 2, 4, 5, 1, 2], 3, VOCAB)
    log.mark("guesses", tuple(guesses))
    log.mark("q", q)


@scene(
    "for speculate",
    [Node(f"read {n}", f"the ids that the model reads in pass {n}", given(module("", turn=n)), (), ("speculate",))
     for n in range(4)],
    [marked("text", "the tokens of the text", "speculate")],
)  # fmt: skip
def text(world: World, log: Recorder) -> None:
    model = decoder(world, log)

    def draft(ids: list[int], ahead: int) -> tuple[list[int], Tensor]:
        return [5, 4][:ahead], F.one_hot(torch.tensor([5, 4][:ahead], dtype=torch.long), VOCAB).double()

    told = world["speculative"].speculate(model, draft, [5, 9, 4], 6, 2, temperature=0)
    log.mark("text", tuple(int(token) for token in told))


# Stage 16


@scene(
    "for quantized weights",
    [marked("levels", "the levels", "quantize"), marked("scales", "the scales", "quantize"),
     marked("weights", "the weights that levels and scales represent", "dequantize"),
     marked("packed", "the packed bytes", "pack"),
     marked("unpacked", "the unpacked levels", "unpack")],
)  # fmt: skip
def rounded(world: World, log: Recorder) -> None:
    code = world["quantized"]
    levels, scales = code.quantize(draw("rounded", 3, 8), 4, 4)
    log.mark("levels", levels)
    log.mark("scales", scales)
    right = torch.tensor([[1, -2, 7, -7], [0, 3, -5, 6]], dtype=torch.int8)
    log.mark("weights", code.dequantize(right, torch.tensor([[0.5, 2.0], [1.0, 0.25]]).half()))
    log.mark("packed", code.pack(right))
    log.mark("unpacked", code.unpack(torch.tensor([[105, 31], [184, 227]], dtype=torch.uint8)))


@scene(
    "for a quantized model",
    [marked("four bits", "the output of a layer of four bits", "QuantizedLinear.forward", "QuantizedLinear.__init__"),
     marked("bytes", "the bytes of the model", "quantize_model", "bytes_of"),
     marked("logits", "the logits", "quantize_model")],
)  # fmt: skip
def rounded_model(world: World, log: Recorder) -> None:
    code, linear = world["quantized"], nn.Linear(8, 5, bias=False)
    linear.weight.data.copy_(draw("a layer", 5, 8))
    log.mark("four bits", code.QuantizedLinear(linear, 4, 4)(draw("x of a layer", 2, 8)))
    model = code.quantize_model(decoder(world, log), 8, 4)
    log.mark("bytes", code.bytes_of(model))
    _mark_unseen(log, "logits", model)


# Stage 17


@scene(
    "for an adapter",
    [goes_in("lora"), Node("down", "the output of `down`", gave(module("lora.down")), ("input",), ("LoRA.forward",)),
     Node("up", "the output of `up`", gave(module("lora.up")), ("down",), ("LoRA.forward",)),
     Node("sum", "the output of the adapted layer", gave(module("lora")), ("up",), ("LoRA.forward",)),
     marked("merged", "the merged weights", "LoRA.merged")],
)  # fmt: skip
def adapter(world: World, log: Recorder) -> None:
    lora = world["adapters"].LoRA(nn.Linear(D_MODEL, 9, bias=False), 3, 6.0)
    same_weights(lora, log, "lora")
    lora(draw("x of an adapter", BATCH, TOKENS, D_MODEL))
    log.mark("merged", lora.merged().weight)


@scene("for a question", [marked("inputs", "the inputs", "example"), marked("targets", "the targets", "example")])
def question(world: World, log: Recorder) -> None:
    inputs, targets = world["adapters"].example([3, 4, 6], [5, 7], 0, 8)
    log.mark("inputs", inputs)
    log.mark("targets", targets)


@scene(
    "for an adapted model",
    [
        marked("learns", "the names of the trainable weights", "put_adapters"),
        marked("merged", "the logits after merging", "merge_adapters"),
    ],
)
def adapted(world: World, log: Recorder) -> None:
    code = world["adapters"]
    model = code.put_adapters(world["model"].Transformer(config(world)), 2, 4.0)
    log.mark("learns", tuple(sorted(name for name, weight in model.named_parameters() if weight.requires_grad)))
    same_weights(model, log)
    _mark_unseen(log, "merged", code.merge_adapters(model))


# Stage 18


def _stream(n: int) -> Node:
    return marked(f"stream {n}", f"the numbers of stream {n}", "streams")


@scene(
    "for the streams",
    [marked("how many", "the number of streams", "streams"), *(_stream(n) for n in range(LAYERS + 1)),
     marked("lens", "the output of lens", "lens"), marked("rank", "the output of rank_of", "rank_of")],
)  # fmt: skip
def looked(world: World, log: Recorder) -> None:
    code, model = world["inside"], decoder(world, log)
    with code.streams(model) as seen:
        model(some_ids())
    log.mark("how many", len(seen))
    for n, stream in enumerate(seen):
        with log.unseen():  # copying is not recorded, so that no line of the model is blamed for a difference
            found = stream.clone()
        log.mark(f"stream {n}", found)
    log.mark("lens", code.lens(model, draw("a stream", BATCH, D_MODEL)))
    log.mark("rank", code.rank_of(draw("ranks", VOCAB), 5))


@scene(
    "for changed activations",
    [
        marked("silent", "the logits without a head", "without_head"),
        marked("lent", "the logits with another stream", "patched"),
    ],
)
def changed(world: World, log: Recorder) -> None:
    code, model = world["inside"], decoder(world, log)
    with code.without_head(model, 1, 2):
        _mark_unseen(log, "silent", model)
    with code.patched(model, 0, 2, draw("lent", D_MODEL)):
        _mark_unseen(log, "lent", model)


DELTA, SPECULATIVE, QUANTIZED = (rule, layer, mixed), (chances, judge, lookup, text), (rounded, rounded_model)
ADAPTERS, INSIDE = (adapter, question, adapted), (looked, changed)
