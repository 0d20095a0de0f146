"""The tensors of an attention layer, a block and a whole model, and functions that find them in a recorded run."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from companion_school.build.compared_runs import Find, Node, operation, same_numbers
from companion_school.build.trace import Call, Log, Operation, Recorder, Value

Where = Callable[[Log], Call | None]
VOCAB, D_MODEL, HEADS, KV_HEADS, D_HEAD, D_FF = 11, 24, 4, 2, 6, 20
BATCH, TOKENS = 2, 7
RANK, D_ROPE = 5, 4


# Finding a value in a record


def module(path: str, within: Where | None = None, turn: int = 0) -> Where:
    return lambda log: log.module(path, *_inside(log, within), turn=turn) if _there(log, within) else None


def function(name: str, within: Where | None = None, turn: int = 0) -> Where:
    return lambda log: log.function(name, *_inside(log, within), turn=turn) if _there(log, within) else None


def given(where: Where, index: int = 0) -> Find:
    def find(log: Log) -> Value | None:
        call = where(log)
        value = call.argument(index) if call else None
        return replace(value, used=call.stack) if call and value else None

    return find


def gave(where: Where) -> Find:
    return lambda log: call.gave if (call := where(log)) and call.gave else None


def part(where: Where, index: int) -> Find:
    return lambda log: call.part(index) if (call := where(log)) else None


def mark(name: str) -> Find:
    return lambda log: log.marks.get(name)


def marked(name: str, says: str, *home: str, parents: tuple[str, ...] = ()) -> Node:
    """Return the node for a value that the scene marks under this name."""
    return Node(name, says, mark(name), parents, home)


def first(*finds: Find) -> Find:
    return lambda log: next((value for find in finds if (value := find(log)) is not None), None)


def _there(log: Log, within: Where | None) -> bool:
    return within is None or within(log) is not None


def _inside(log: Log, within: Where | None) -> tuple[Call | None]:
    return (within(log) if within else None,)


def function_of(name: str, argument: Find, within: Where) -> Find:
    """Within another call, find the call in which a function received exactly this tensor, and return its result."""

    def find(log: Log) -> Value | None:
        wanted = argument(log)
        for call in log.functions(name, within(log)) if wanted else ():
            if wanted and any(value.object == wanted.object != 0 for value in call.given):
                return call.gave
        return None

    return find


def back_to(find: Find, numbers: int) -> Find:
    """Trace a value back through the first inputs of operations to the nearest tensor with `numbers` elements."""

    def search(log: Log) -> Value | None:
        value = find(log)
        while value is not None and isinstance(value.content, Tensor) and value.content.numel() != numbers:
            step = operation(log, value)
            value = step.inputs[0] if step and step.inputs else None
        return value

    return search


def made_of(kind: str, within: Where, numbers: int, turn: int = 0, result: bool = True) -> Find:
    """Find an operation by its kind and the size of its result.

    Args:
        kind: Name of the operation, such as "softmax".
        within: Finds the call in which the operation runs.
        numbers: Number of elements in the operation's result.
        turn: Index among the matching operations.
        result: If true, return the operation's result, otherwise its first input.
    """

    def find(log: Log) -> Value | None:
        call = within(log)
        steps = [step for step in log.made_in(call) if step.kind == kind and step.value.numel() == numbers]
        if call is None or turn >= len(steps):
            return None
        return value_of(steps[turn]) if result else steps[turn].inputs[0]

    return find


def behind(find: Find, width: int, within: Where) -> Find:
    """Find the tensor that holds all components along the last axis except the first `width`."""

    def search(log: Log) -> Value | None:
        value, call = find(log), within(log)
        if value is None or call is None or not isinstance(value.content, Tensor):
            return None
        rest = value.content[..., width:]
        steps = (step for step in log.made_in(call) if step.value.numel() == rest.numel())
        return next((value_of(step) for step in steps if same_numbers(step.value, rest)), None)

    return search


def shaped(find: Find, shape: tuple[int, ...]) -> Find:
    """Reshape the found tensor, because its axes may be split further, for example heads into groups."""

    def search(log: Log) -> Value | None:
        value = find(log)
        return replace(value, content=value.content.reshape(shape)) if value else None

    return search


def value_of(step: Operation) -> Value:
    return Value(step.value, 0, step.number)


def sums_to_one(within: Where, numbers: int) -> Find:
    """Find a hand-written softmax: the first tensor with `numbers` elements whose rows are probabilities."""

    def find(log: Log) -> Value | None:
        call = within(log)
        for step in log.made_in(call) if call else ():
            rows = step.value
            if rows.numel() == numbers and rows.is_floating_point() and rows.ndim > 1 and bool((rows >= 0).all()):
                sums = rows.sum(-1)
                if torch.allclose(sums, torch.ones_like(sums)):
                    return value_of(step)
        return None

    return find


# Inputs and weights


def draw(name: str, *shape: int, scale: float = 1.0) -> Tensor:
    """Return random numbers that depend only on the name and the shape."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


def ids(name: str, *shape: int, vocab: int = VOCAB) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randint(0, vocab, shape, generator=generator)


def same_weights(model: nn.Module, log: Recorder, name: str = "") -> None:
    """Set every weight to values that depend only on its name and shape, and start recording the model's module calls.

    Row 0 of the embedding is so small that a misplaced eps in a norm changes the result.
    """
    with log.unseen(), torch.no_grad():
        for path, weight in model.named_parameters():
            width = weight.shape[-1] if weight.ndim == 2 else weight.shape[-2] if weight.ndim > 2 else 1
            values = draw(f"{path} {tuple(weight.shape)}", *weight.shape, scale=1.6 / width**0.5)
            weight.copy_(1 + 0.2 * values if weight.ndim == 1 else values)
            if "embedding" in path and weight.ndim == 2:
                weight[0] *= 1e-3
        log.watch(model, name)
        log.forget(model)


def attention_sizes() -> tuple[int, int, int]:
    return D_MODEL, HEADS, KV_HEADS


# The tensors


def attention_nodes(
    path: str,
    place: str,
    before: str,
    *,
    turn: int = 0,
    batch: int = BATCH,
    queries: int = TOKENS,
    new_keys: int = TOKENS,
    keys: int = TOKENS,
    turned: str = "",
    cached: bool = False,
    masked: bool = True,
    source: str | None = None,
    mask_home: tuple[str, ...] = ("causal", "Transformer.forward"),
    within: Where | None = None,
    tag: str = "",
) -> list[Node]:
    """Return the nodes of one call of an attention layer, from its input `before` to `{place}: attention`.

    Args:
        path: Name of the layer in the model.
        place: Location of the layer, for messages.
        before: Key of the node for the input.
        turn: Index of the call among all calls of this layer.
        batch: Number of texts.
        queries: Number of queries.
        new_keys: Number of keys that this call computes.
        keys: Number of keys that are attended to, including cached ones.
        turned: "rotate" if stage 3's `rotate` rotates queries and keys, "given" if a function of the scene rotates
            them; otherwise "".
        cached: True if the layer is called with a cache.
        masked: True if the layer is called with a mask.
        source: Key of the node from which keys and values are computed (default: `before`).
        mask_home: Names of the functions that may compute the mask, most likely first.
        within: Finds the call within which the layer's calls are counted.
        tag: Prefix of all keys.
    """
    whole = module(path, within, turn)
    linear = {name: module(f"{path}.{name}", whole) for name in ("query", "key", "value", "output")}
    attends = function("attend", whole)
    forward, at = "Attention.forward", f"{tag}{place}: "
    key_numbers = batch * KV_HEADS * new_keys * D_HEAD
    pairs = batch * HEADS * queries * keys
    window: Where = lambda log: attends(log) or whole(log)  # noqa: E731
    nodes: list[Node] = []

    def add(key: str, says: str, find: Find, parents: list[str], *home: str, **more: Any) -> None:
        mine = tuple(name if name.startswith("=") else at + name for name in parents)
        nodes.append(Node(at + key, says, find, tuple(n.removeprefix("=") for n in mine), home, place, **more))

    add("queries", "the queries", gave(linear["query"]), ["=" + before], forward)
    from_where = "=" + (source or before)
    add("keys", "the keys", gave(linear["key"]), [from_where], forward)
    add("values", "the values", gave(linear["value"]), [from_where], forward)
    heads = {}
    for one, name in (("queries", "query"), ("keys", "key"), ("values", "value")):
        heads[one] = function_of("split", gave(linear[name]), whole)
        says = f"the {one} in heads" + (" before rotation" if turned and one != "values" else "")
        add(f"{one} in heads", says, heads[one], [one], "split", forward)
    extended = function("Cache.extend", whole)
    last_q, last_k, last_v = "queries in heads", "keys in heads", "values in heads"
    if turned == "given":
        home: tuple[str, ...] = (forward,)
        turned_q, turned_k = given(attends, 0), back_to(given(attends, 1), key_numbers)
        add("queries turned", "the queries after rotation", turned_q, ["queries in heads"], *home)
        add("keys turned", "the keys after rotation", turned_k, ["keys in heads"], *home)
        last_q, last_k = "queries turned", "keys turned"
    if turned == "rotate":
        rotates = function("rotate", whole)
        add("positions", "the positions of the tokens", given(rotates, 1), [], "Transformer.forward")
        add("base", "the base of the positions", given(rotates, 2), [], "Transformer.forward")
        frequencies = function("frequencies", whole)
        add("width", "the width passed to frequencies", given(frequencies, 0), [], "rotate")
        add("frequencies", "the frequencies", gave(frequencies), ["base", "width"], "frequencies", "rotate")
        turned_q = first(function_of("rotate", heads["queries"], whole), given(attends, 0))
        turned_k = first(function_of("rotate", heads["keys"], whole), back_to(given(extended, 0), key_numbers),
                         back_to(given(attends, 1), key_numbers))  # fmt: skip
        home = ("rotate", forward)
        by = ["positions", "frequencies"]
        add("queries turned", "the queries after rotation", turned_q, ["queries in heads", *by], *home)
        add("keys turned", "the keys after rotation", turned_k, ["keys in heads", *by], *home)
        last_q, last_k = "queries turned", "keys turned"
    if cached:
        add("keys put", "the keys passed to the cache", given(extended, 0), [last_k], forward)
        add("values put", "the values passed to the cache", given(extended, 1), [last_v], forward)
        add("keys kept", "the keys returned by the cache", part(extended, 0), ["keys put"], "Cache.extend")
        add("values kept", "the values returned by the cache", part(extended, 1), ["values put"], "Cache.extend")
        last_k, last_v = "keys kept", "values kept"
    whole_keys = batch * HEADS * keys * D_HEAD

    def sized(find: Find, numbers: int) -> Find:
        def search(log: Log) -> Value | None:
            value = find(log)
            good = value is not None and isinstance(value.content, Tensor) and value.content.numel() == numbers
            return value if good or log.error is not None else None  # code that groups heads may repeat the keys later

        return search

    add("queries asked", "the queries passed to attend", sized(given(attends, 0), batch * HEADS * queries * D_HEAD),
        [last_q], forward)  # fmt: skip
    add("keys shared", "the keys for each query head", sized(given(attends, 1), whole_keys), [last_k], forward)
    add("values shared", "the values for each query head", sized(given(attends, 2), whole_keys), [last_v],
        forward)  # fmt: skip
    shape = (batch, HEADS, queries, keys)
    handed, mask = _as_allowed(given(function(forward, whole), 2), shape), _as_allowed(given(attends, 3), shape)
    if masked:
        add("mask handed", "the mask passed to attention", handed, [], *mask_home)
        add("mask", "the mask passed to attend", mask, ["mask handed"], forward)
    scores = made_of("softmax", window, pairs, result=False)
    add("scores", "the scores", scores, ["queries asked", "keys shared"], "attend", scores=True)
    weights = shaped(first(made_of("softmax", window, pairs), sums_to_one(window, pairs)), shape)
    add("weights", "the weights (rows after the softmax)", weights, ["scores", *["mask"] * masked], "attend")
    add("heads", "the heads' outputs", gave(attends), ["weights", "values shared"], "attend")
    add("merged", "the merged outputs of the heads", given(linear["output"]), ["heads"], "merge", forward)
    add("attention", "the output of attention", gave(whole), ["merged"], forward)
    return nodes


def _as_allowed(find: Find, shape: tuple[int, ...]) -> Find:
    """Convert the found mask to a boolean tensor with this shape that is True at allowed positions."""

    def search(log: Log) -> Value | None:
        value = find(log)
        if value is None:
            return None
        if value.content is None:
            return replace(value, content=torch.ones(shape, dtype=torch.bool))
        if not isinstance(value.content, Tensor):
            return value
        allowed = value.content if value.content.dtype == torch.bool else value.content > -1e4
        try:
            return replace(value, content=allowed.expand(shape).clone())
        except RuntimeError:
            return value

    return search


def asked_nodes(way: str, whole: Where, at: str, before: tuple[str, ...] = (), *, queries: int = TOKENS,
                keys: int = TOKENS) -> list[Node]:  # fmt: skip
    """Return the nodes of one call of `expanded` or `absorbed`, the two ways of computing latent attention.

    Args:
        way: "expanded" or "absorbed", or "" if the layer chooses, which returns only the nodes that both ways share.
        whole: Finds the call.
        at: Prefix of all keys.
        before: Keys of the nodes for the arguments.
        queries: Number of queries.
        keys: Number of latents.
    """
    attends, pairs = function("attend", whole), BATCH * HEADS * queries * keys
    homes, nodes = (way,) if way else ("expanded", "absorbed"), []
    asks, weighs, shape = before, before, (BATCH, HEADS, queries, keys)

    def add(key: str, says: str, find: Find, parents: tuple[str, ...], *home: str, **more: Any) -> tuple[str, ...]:
        nodes.append(Node(at + key, says, find, parents, home, at.removesuffix(": "), **more))
        return (at + key,)

    if way:
        before = add("mask", "the mask passed to attend", _as_allowed(given(attends, 3), shape), (), *homes)
    if way == "expanded":
        asks = add("every head's keys", "every head's keys", given(attends, 1), (), *homes)
        weighs = add("every head's values", "every head's values", given(attends, 2), (), *homes)
    if way == "absorbed":
        down = made_of("einsum", whole, BATCH * HEADS * queries * RANK)
        asks = add("queries that went down", "the queries multiplied by U_k", down, (), *homes, inner=True)
    scores = made_of("softmax", whole, pairs, result=False)
    asked = add("scores", "the scores", scores, asks, *homes, "attend", scores=True)
    weights = shaped(first(made_of("softmax", whole, pairs), sums_to_one(whole, pairs)), shape)
    weighed = add("weights", "the weights (rows after the softmax)", weights, (*asked, *before), "attend", *homes)
    if way == "absorbed":
        average = made_of("matmul", whole, BATCH * HEADS * queries * RANK)
        weighs = add("average", "the averages of the latents", average, (*weighed, *before), "attend", inner=True)
    add("heads", "the heads' outputs", gave(whole), (*weighed, *weighs), *homes)
    return nodes


def latent_nodes(path: str, place: str, before: str, *, turn: int = 0, queries: int = TOKENS, keys: int = TOKENS,
                 cached: bool = False, mask_home: tuple[str, ...] = ("causal", "Transformer.forward"),
                 within: Where | None = None, tag: str = "", **_: Any) -> list[Node]:  # fmt: skip
    """Return the nodes of one call of a latent attention layer, from its input `before` to `{place}: attention`."""
    whole, at, forward = module(path, within, turn), f"{tag}{place}: " if place else tag, "LatentAttention.forward"
    linear = {name: module(f"{path}.{name}", whole) for name in ("query", "down", "latent_norm", "output")}
    ways, extended, shape = ("expanded", "absorbed"), function("Cache.extend", whole), (BATCH, HEADS, queries, keys)
    asks: Where = lambda log: next((call for way in ways if (call := function(way, whole)(log))), None)  # noqa: E731
    nodes: list[Node] = []

    def add(key: str, says: str, find: Find, parents: tuple[str, ...], *home: str, **more: Any) -> None:
        mine = tuple(before if parent == "=" else at + parent for parent in parents)
        nodes.append(Node(at + key, says, find, mine, home or (forward,), place, **more))

    normed, key = linear["latent_norm"], behind(gave(linear["down"]), RANK, whole)
    add("queries", "the queries", gave(linear["query"]), ("=",))
    add("down", "the output of `down`", gave(linear["down"]), ("=",))
    add("into latent_norm", "the latents passed to latent_norm", given(normed), ("down",))
    add("latents", "the normed latents", gave(normed), ("into latent_norm",), "RMSNorm.forward")
    add("key", "the key before rotation", key, ("down",), inner=True)
    latents, turned = "latents", "key"
    if cached:
        add("latents put", "the latents passed to the cache", given(extended, 0), (latents,))
        add("keys put", "the rotated keys passed to the cache", given(extended, 1), (turned,))
        latents, turned, back = "latents kept", "keys kept", "returned by the cache"
        add(latents, f"the latents {back}", part(extended, 0), ("latents put",), "Cache.extend")
        add(turned, f"the rotated keys {back}", part(extended, 1), ("keys put",), "Cache.extend")
    asked = {"queries turned": ("the queries with their last part rotated", ("queries",)),
             "latents asked": ("the latents that are compared with the queries", (latents,)),
             "keys turned": ("the rotated keys that are compared with the queries", (turned,)),
             "U_k": ("the matrices U_k", ()), "U_v": ("the matrices U_v", ())}  # fmt: skip
    for number, (name, (says, parents)) in enumerate(asked.items()):
        add(name, says, given(asks, number), parents)
    handed = _as_allowed(given(function(forward, whole), 1), shape)
    add("mask handed", "the mask passed to attention", handed, (), *mask_home)
    add("mask", "the mask passed on", _as_allowed(given(asks, 5), shape), ("mask handed",))
    nodes += asked_nodes("", asks, at, tuple(at + name for name in (*asked, "mask")), queries=queries, keys=keys)
    add("merged", "the merged outputs of the heads", given(linear["output"]), ("heads",), "merge", forward)
    add("attention", "the output of attention", gave(whole), ("merged",))
    return nodes


def network_nodes(path: str, place: str, before: str, within: Where | None, turn: int, tag: str) -> list[Node]:
    """Return the nodes of a gated feed-forward network, from its input `before` to `{place}: network`."""
    whole = module(path, within, turn)
    at, forward = f"{tag}{place}: ", "FeedForward.forward"
    gate, inner, outer = (module(f"{path}.{name}", whole) for name in ("gate", "inner", "outer"))
    return [
        Node(at + "gate", "the gate", gave(gate), (before,), (forward,), place),
        Node(at + "inner", "the inner layer", gave(inner), (before,), (forward,), place),
        Node(at + "hidden", "silu(gate) times inner", given(outer), (at + "gate", at + "inner"), (forward,), place),
        Node(at + "network", "the output of the network", gave(whole), (at + "hidden",), (forward,), place),
    ]


def block_nodes(
    path: str,
    place: str,
    before: str,
    *,
    turn: int = 0,
    within: Where | None = None,
    tag: str = "",
    kind: str = "Block.forward",
    cross: dict[str, Any] | None = None,
    experts: bool = False,
    latent: bool = False,
    **sizes: Any,
) -> list[Node]:
    """Return the nodes of a block, from its input `before` to its output `{place}: stream`."""
    at = f"{tag}{place}: "
    whole = module(path, within, turn)
    kinds, nodes = (kind, "Block.forward"), []

    def norm(name: str, says: str, stream: str) -> str:
        call = module(f"{path}.{name}", whole)
        into, out = f"{at}into {name}", f"{at}{name}"
        nodes.append(Node(into, f"the stream passed to {name}", given(call), (stream,), kinds, place))
        nodes.append(Node(out, f"the output of {name}", gave(call), (into,), ("RMSNorm.forward",), place))
        return out

    def into(name: str, before: str) -> str:
        key = f"{at}into {name}"
        call = module(f"{path}.{name}", whole)
        nodes.append(Node(key, f"the input of {name}", given(call), (before,), kinds, place))
        return key

    normed = into("attention", norm("attention_norm", "", before))
    inside: dict[str, Any] = {"tag": tag, "within": whole}
    nodes += (latent_nodes if latent else attention_nodes)(f"{path}.attention", place, normed, **inside, **sizes)
    after, added = before, (f"{at}attention",)
    if cross is not None:
        stream = f"{at}stream after attention"
        find = given(module(f"{path}.cross_norm", whole))
        nodes.append(Node(stream, "the stream after attention", find, (before, *added), kinds, place))
        normed = into("cross", norm("cross_norm", "", stream))
        crossed = f"{place}, cross-attention"
        nodes += attention_nodes(f"{path}.cross", crossed, normed, **inside, **cross)
        after, added = stream, (f"{tag}{crossed}: attention",)
    stream = f"{at}stream before the network"
    find = given(module(f"{path}.feed_forward_norm", whole))
    nodes.append(Node(stream, "the stream before the network", find, (after, *added), kinds, place))
    normed = into("feed_forward", norm("feed_forward_norm", "", stream))
    if experts:
        nodes += experts_nodes(f"{path}.feed_forward", place, normed, whole, tag)
    else:
        nodes += network_nodes(f"{path}.feed_forward", place, normed, whole, 0, tag)
    nodes.append(Node(f"{at}stream", "the stream after the block", gave(whole), (stream, f"{at}network"), kinds, place))
    return nodes


def experts_nodes(path: str, place: str, before: str, within: Where | None, tag: str = "", capacity: bool = False,
                  tokens: int = BATCH * TOKENS, experts: int = 5, top_k: int = 2) -> list[Node]:  # fmt: skip
    """Return the nodes of a mixture of experts, from its input `before` to `{place}: network`."""
    whole = module(path, within)
    at, forward = f"{tag}{place}: ", "Experts.forward"
    routes, router = function("route", whole), module(f"{path}.router", whole)
    logits, chosen, weights, kept = (at + name for name in ("router logits", "chosen", "weights of experts", "kept"))

    def answers(number: int) -> Find:
        def find(log: Log) -> Value | None:
            steps = [s for s in log.made_in(whole(log)) if s.kind == "matmul" and s.value.shape[-1:] == (D_MODEL,)]
            return value_of(steps[number]) if whole(log) and number < len(steps) else None

        return find

    nodes = [
        Node(logits, "the router's logits", gave(router), (before,), (forward,), place),
        Node(chosen, "the chosen experts", part(routes, 1), (logits,), ("route", forward), place),
        Node(
            weights, "the weights of the chosen experts", part(routes, 0), (logits, chosen), ("route", forward), place
        ),
    ]
    if capacity:
        finds = gave(function("within", whole))
        nodes.append(Node(kept, "the choices that fit", finds, (chosen,), ("within", forward), place))
    each = []
    for number in range(experts):
        each.append(f"{at}expert {number}")
        says = f"the output of expert {number}"
        nodes.append(Node(each[-1], says, answers(number), (before, chosen), (forward,), place, inner=True))
    after = (weights, *[kept] * capacity, *each)
    nodes.append(Node(f"{at}network", "the sum of the experts' answers", gave(whole), after, (forward,), place))
    return nodes


def decoder_nodes(layers: int, *, turn: int = 0, tag: str = "", prefix: str = "", **block: Any) -> list[Node]:
    """Return the nodes of a whole decoder, from its embedding to `logits`.

    Args:
        layers: Number of blocks.
        turn: Index of the call of the model.
        tag: Prefix of all keys.
        prefix: Name of the model in the recorded run.
        block: Further arguments of `block_nodes`.
    """
    names = f"{prefix}." if prefix else ""
    whole = module(prefix, None, turn)
    embedded, home = f"{tag}embedding", ("Transformer.forward",)
    nodes = [Node(embedded, "the output of the embedding", gave(module(f"{names}embedding", whole)), (), home)]
    into = f"{tag}stream at first"
    find = given(module(f"{names}decoder.blocks.0", whole))
    nodes.append(Node(into, "the stream that enters block 0", find, (embedded,), home))
    for number in range(layers):
        path = f"{names}decoder.blocks.{number}"
        if number:
            before, into = into, f"{tag}block {number}: stream at first"
            says = f"the stream that enters block {number}"
            nodes.append(Node(into, says, given(module(path, whole)), (before,), ("Stack.forward",)))
        nodes += block_nodes(path, f"block {number}", into, within=whole, tag=tag, turned="rotate", **block)
        into = f"{tag}block {number}: stream"
    norm = module(f"{names}decoder.norm", whole)
    nodes.append(Node(f"{tag}into norm", "the stream passed to the last norm", given(norm), (into,),
                      ("Stack.forward",)))  # fmt: skip
    nodes.append(
        Node(f"{tag}norm", "the output of the last norm", gave(norm), (f"{tag}into norm",), ("RMSNorm.forward",))
    )
    stack = gave(module(f"{names}decoder", whole))
    nodes.append(Node(f"{tag}decoder", "the output of the stack", stack, (f"{tag}norm",), ("Stack.forward",)))
    nodes.append(Node(f"{tag}logits", "the logits", gave(whole), (f"{tag}decoder",), home))
    return nodes
