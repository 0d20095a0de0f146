"""Stage 18, inside: streams, the logit lens, ranks, a silenced head and a patched stream, with all hooks removed."""

import torch

from companion_school.build.checks import USUAL
from companion_school.build.isolated_modules import default_dtype
from companion_school.build.parts import part
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case


@part(18, points=3, excused=USUAL)
def streams(code, layers, ids, others):
    """The streams before and after every block; a second pass; and no hook is left behind."""
    model = code["model"]
    torch.manual_seed(7)
    with default_dtype(torch.float64):
        own = model.Transformer(model.Config(13, 16, layers, 4, 2, 24))
    with code.streams(own) as seen:
        own(ids)
        first = [stream.detach().clone() for stream in seen]
        own(others)
        second = [tuple(stream.shape) for stream in seen]
    before = len(seen)
    own(ids)
    try:
        with code.streams(own):
            raise RuntimeError("something fails inside")
    except RuntimeError:
        pass
    left = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in own.modules())
    return {"how many": len(first), "the streams": first, "of a further pass": second, "they need gradients": any(stream.requires_grad for stream in seen),
            "afterwards the list grows": len(seen) != before, "hooks that are left": left}  # fmt: skip


@streams.cases
def _(draw):
    yield Case("one block", (1, draw.wholes(0, 12, 1, 3), draw.wholes(0, 12, 1, 4)))
    yield Case("three blocks", (3, draw.wholes(0, 12, 2, 5), draw.wholes(0, 12, 1, 2)))
    yield Case(LARGE, (2, draw.wholes(0, 12, 1, draw.whole(33, 60)), draw.wholes(0, 12, 1, 3)))


streams.mistake(
    "the stream that enters the first block is missing",
    "        seen[:] = [inputs[0].detach()]",
    "        seen[:] = []",
)
streams.mistake(
    "a further pass is put behind the first: it begins the list anew",
    "seen[:] = [inputs[0].detach()]",
    "seen.append(inputs[0].detach())",
)
streams.mistake(
    "each block shows what goes in, not what comes out",
    "seen.append(output.detach())",
    "seen.append(inputs[0].detach())",
)
streams.mistake(
    "the hooks stay when the `with` is over",
    "    finally:\n        for hook in hooks:\n            hook.remove()\n\n\n@torch.no_grad()",
    "    finally:\n        pass\n\n\n@torch.no_grad()",
)
streams.mistake("the hooks stay if something fails inside: remove them in a `finally`", "    try:\n        yield seen\n    finally:\n        for hook in hooks:\n            hook.remove()",
                "    yield seen\n    for hook in hooks:\n        hook.remove()")  # fmt: skip
streams.mistake(
    "the streams hold on to the whole pass: detach them",
    "seen[:] = [inputs[0].detach()]",
    "seen[:] = [inputs[0]]",
    "seen.append(output.detach())",
    "seen.append(output)",
)
streams.variant(
    """
    @contextmanager
    def streams(model):
        seen, hooks = [], []
        for number, block in enumerate(model.decoder.blocks):
            def hook(block, inputs, output, number=number):
                if number == 0:
                    seen.clear()
                    seen.append(inputs[0].detach().clone())
                seen.append(output.detach().clone())
            hooks.append(block.register_forward_hook(hook))
        try:
            yield seen
        finally:
            [hook.remove() for hook in hooks]
    """
)


@part(18, points=2, excused=USUAL)
def lens(code, stream, weight, embedding, head):
    """The model's prediction if a stream were the final one."""
    model = code["model"]
    with default_dtype(torch.float64):
        own = model.Transformer(model.Config(len(embedding), embedding.shape[1], 1, 2, 1, 8))
        own.decoder.norm.weight.data.copy_(weight)
        own.embedding.weight.data.copy_(embedding)
        if head is not None:
            own.head = torch.nn.Linear(embedding.shape[1], len(embedding), bias=False)
            own.head.weight.data.copy_(head)
    said = code.lens(own, stream)
    return said.detach(), said.requires_grad


@lens.cases
def _(draw):
    vocab, width = 7, 4
    yield Case("one vector", (draw.normal(width), draw.normal(width), draw.normal(vocab, width), None))
    yield Case(
        "every position of a text", (draw.normal(2, 3, width), draw.normal(width), draw.normal(vocab, width), None)
    )
    yield Case(
        "a model with a head of its own",
        (draw.normal(3, width), draw.normal(width), draw.normal(vocab, width), draw.normal(vocab, width)),
    )
    yield Case(LARGE, (draw.normal(draw.whole(33, 60), width), draw.normal(width), draw.normal(vocab, width), None))


lens.mistake("the last norm is left out", "model.decoder.norm(stream) @", "stream @")
lens.mistake(
    "the embedding is used where the model has a head",
    "(model.embedding if head is None else head).weight.T",
    "model.embedding.weight.T",
)
lens.mistake("that is the softmax: logits are asked for", "(model.embedding if head is None else head).weight.T", "(model.embedding if head is None else head).weight.T.clone()",
             "    return model.decoder.norm(stream)", "    return torch.softmax(model.decoder.norm(stream)", ".weight.T.clone()", ".weight.T, -1)")  # fmt: skip
lens.variant(
    """
    def lens(model, stream):
        with torch.no_grad():
            x = model.decoder.norm(stream)
            if getattr(model, "head", None) is not None:
                return model.head(x)
            return x @ model.embedding.weight.mT
    """
)


@part(18, points=1, excused=USUAL)
def rank_of(code, logits, token):
    """The number of more probable tokens."""
    return code.rank_of(logits, token)


@rank_of.cases
def _(draw):
    yield Case("the likeliest", (torch.tensor([0.5, 3.0, 1.0]), 1))
    yield Case("the least likely", (torch.tensor([0.5, 3.0, 1.0]), 0))
    yield Case("of equal ones none is likelier than the other", (torch.tensor([2.0, 2.0, 3.0]), 0))
    logits = draw.normal(20)
    yield Case("twenty tokens", (logits, draw.whole(0, 19)))
    yield Case(LARGE, (draw.normal(draw.whole(33, 60)), draw.whole(0, 32)))


rank_of.mistake(
    "the likeliest has rank 0, not 1", "int((logits > logits[token]).sum())", "int((logits > logits[token]).sum()) + 1"
)
rank_of.mistake("the token itself is counted", "logits > logits[token]", "logits >= logits[token]")
rank_of.mistake("how many are less likely is counted", "logits > logits[token]", "logits < logits[token]")
rank_of.variant(
    """
    def rank_of(logits, token):
        return sum(1 for x in logits.tolist() if x > logits[token].item())
    """
)


@part(18, points=2, excused=USUAL)
def without_head(code, layer, head, ids):
    """Logits without one head, and with it again afterwards."""
    model = code["model"]
    torch.manual_seed(8)
    with default_dtype(torch.float64), torch.no_grad():
        own = model.Transformer(model.Config(13, 16, 3, 4, 2, 24))
        for block in own.decoder.blocks:
            block.attention.output.weight *= 20
        before = own(ids)
        with code.without_head(own, layer, head):
            without = own(ids)
        after = own(ids)
    return {"without it": without, "afterwards it is as before": bool(torch.equal(before, after))}


@without_head.cases
def _(draw):
    ids = draw.wholes(0, 12, 2, 5)
    for layer, head in ((0, 0), (1, 2), (2, 3)):
        yield Case(f"head {head} of layer {layer}", (layer, head, ids))
    yield Case(LARGE, (1, 2, draw.wholes(0, 12, 1, draw.whole(33, 60))))


without_head.mistake("the whole attention is silent, not one head", "heads[..., head, :] = 0", "heads[..., :, :] = 0")
without_head.mistake("another axis is zero: the heads stand side by side in the last one", "heads = inputs[0].unflatten(-1, (attention.heads, -1)).clone()\n        heads[..., head, :] = 0",
                     "heads = inputs[0].unflatten(-1, (-1, attention.heads)).clone()\n        heads[..., head] = 0")  # fmt: skip
without_head.mistake(
    "the layer is not used: it is always the first",
    "    attention = model.decoder.blocks[layer].attention\n",
    "    attention = model.decoder.blocks[0].attention\n",
)
without_head.mistake("it stays silent when the `with` is over", "    hook = attention.output.register_forward_pre_hook(silence)\n    try:\n        yield\n    finally:\n        hook.remove()",
                     "    hook = attention.output.register_forward_pre_hook(silence)\n    try:\n        yield\n    finally:\n        pass")  # fmt: skip
without_head.mistake(
    "nothing is silent: a hook has to return what goes in instead",
    "        return (heads.flatten(-2),)",
    "        return None",
)
without_head.mistake("what attention returns is silenced; the head is silent before `output` mixes the heads", "register_forward_pre_hook(silence)",
                     "register_forward_hook(lambda layer, inputs, output: silence(layer, (output,))[0])")  # fmt: skip
without_head.mistake(
    "the numbers are cut into `kv_heads` parts; there are `heads` of them",
    "(attention.heads, -1)",
    "(attention.kv_heads, -1)",
)
without_head.variant(
    """
    @contextmanager
    def without_head(model, layer, head):
        attention = model.decoder.blocks[layer].attention
        d_head = attention.output.in_features // attention.heads
        kept = attention.output.weight.data.clone()
        attention.output.weight.data[:, head * d_head : (head + 1) * d_head] = 0
        try:
            yield
        finally:
            attention.output.weight.data.copy_(kept)
    """
)


@part(18, points=2, excused=USUAL)
def patched(code, layer, position, vector, ids):
    """Logits with another stream at one position, and with the original one afterwards."""
    model = code["model"]
    torch.manual_seed(9)
    with default_dtype(torch.float64), torch.no_grad():
        own = model.Transformer(model.Config(13, 16, 3, 4, 2, 24))
        before = own(ids)
        with code.patched(own, layer, position, vector):
            lent = own(ids)
        after = own(ids)
    return {"with it": lent, "afterwards it is as before": bool(torch.equal(before, after))}


@patched.cases
def _(draw):
    ids = draw.wholes(0, 12, 2, 5)
    for layer, position in ((0, 1), (1, 3), (2, -1)):
        yield Case(f"layer {layer}, position {position}", (layer, position, draw.normal(16), ids))
    yield Case(LARGE, (1, 30, draw.normal(16), draw.wholes(0, 12, 1, draw.whole(33, 60))))


patched.mistake(
    "the vector is added: it takes the stream's place", "output[:, position] = vector", "output[:, position] += vector"
)
patched.mistake("it takes the place of what goes into the block: of what comes out", "    hook = model.decoder.blocks[layer].register_forward_hook(patch)",
                "    hook = model.decoder.blocks[layer].register_forward_pre_hook(lambda block, inputs: (patch(block, inputs, inputs[0]),))")  # fmt: skip
patched.mistake("every position is replaced, not one", "output[:, position] = vector", "output[:, :] = vector")
patched.mistake(
    "only the first text of a batch is patched", "output[:, position] = vector", "output[0, position] = vector"
)
patched.mistake(
    "the layer is not used: it is always the first",
    "    hook = model.decoder.blocks[layer].register_forward_hook(patch)",
    "    hook = model.decoder.blocks[0].register_forward_hook(patch)",
)
patched.mistake("it stays when the `with` is over", "    hook = model.decoder.blocks[layer].register_forward_hook(patch)\n    try:\n        yield\n    finally:\n        hook.remove()",
                "    hook = model.decoder.blocks[layer].register_forward_hook(patch)\n    try:\n        yield\n    finally:\n        pass")  # fmt: skip
patched.mistake("the layer before is patched: the stream after block `layer` is what that block returns",
                "model.decoder.blocks[layer].register_forward_hook(patch)", "model.decoder.blocks[layer - 1].register_forward_hook(patch)")  # fmt: skip
patched.mistake(
    "the position is looked up among the texts: streams are (batch, token, d_model)",
    "output[:, position] = vector",
    "output[position] = vector",
)
patched.mistake("nothing is patched: a hook has to return what takes the output's place", "        output[:, position] = vector\n        return output\n",
                "        output[:, position] = vector\n")  # fmt: skip
patched.variant(
    """
    @contextmanager
    def patched(model, layer, position, vector):
        def swap(block, inputs, output):
            mask = torch.zeros(output.shape[1], 1)
            mask[position] = 1
            return output * (1 - mask) + vector * mask
        handle = model.decoder.blocks[layer].register_forward_hook(swap)
        try:
            yield
        finally:
            handle.remove()
    """
)
