"""Stage 18, inside: streams, the logit lens, ranks, a silenced head, a patched stream, and the removal of all hooks."""

import torch

from companion_school.build.checks import USUAL
from companion_school.build.isolated_modules import default_dtype
from companion_school.build.parts import part
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case


@part(18, points=3, excused=USUAL)
def streams(code, layers, ids, others):
    """Each pass records the streams before and after every block, and no hook is left behind."""
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
    return {"how many": len(first), "the streams": first, "of another pass": second, "the streams require gradients": any(stream.requires_grad for stream in seen),
            "the list grows afterwards": len(seen) != before, "remaining hooks": left}  # fmt: skip


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
    "another pass is appended to the first: it must start the list again",
    "seen[:] = [inputs[0].detach()]",
    "seen.append(inputs[0].detach())",
)
streams.mistake(
    "you record what enters each block; record what comes out",
    "seen.append(output.detach())",
    "seen.append(inputs[0].detach())",
)
streams.mistake(
    "the hooks remain after the `with`",
    "    finally:\n        for hook in hooks:\n            hook.remove()\n\n\n@torch.no_grad()",
    "    finally:\n        pass\n\n\n@torch.no_grad()",
)
streams.mistake("the hooks remain if something fails inside: remove them in a `finally`", "    try:\n        yield seen\n    finally:\n        for hook in hooks:\n            hook.remove()",
                "    yield seen\n    for hook in hooks:\n        hook.remove()")  # fmt: skip
streams.mistake(
    "the streams hold on to the whole pass: detach them",
    "seen[:] = [inputs[0].detach()]",
    "seen[:] = [inputs[0]]",
    "seen.append(output.detach())",
    "seen.append(output)",
)
streams.mistake("the streams come in reverse order", "seen.append(output.detach())", "seen.insert(0, output.detach())")
streams.mistake(
    "only the last token's stream is stored; store that of every token",
    "seen.append(output.detach())",
    "seen.append(output[:, -1].detach())",
)
streams.mistake(
    "the hooks are on the attention; put them on the blocks, which return the stream",
    "*(block.register_forward_hook(leaves) for block in blocks)",
    "*(block.attention.register_forward_hook(leaves) for block in blocks)",
)
streams.mistake(
    "only the first hook is removed",
    "        yield seen\n    finally:\n        for hook in hooks:\n            hook.remove()",
    "        yield seen\n    finally:\n        hooks[0].remove()",
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
    """The logit lens gives the prediction that the model would make if a stream were the final one."""
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
        "a model with a separate head",
        (draw.normal(3, width), draw.normal(width), draw.normal(vocab, width), draw.normal(vocab, width)),
    )
    yield Case(LARGE, (draw.normal(draw.whole(33, 60), width), draw.normal(width), draw.normal(vocab, width), None))


lens.mistake("the last norm is missing", "model.decoder.norm(stream) @", "stream @")
lens.mistake(
    "the embedding is used although the model has a head",
    "(model.embedding if head is None else head).weight.T",
    "model.embedding.weight.T",
)
lens.mistake("that is the softmax: return logits", "(model.embedding if head is None else head).weight.T", "(model.embedding if head is None else head).weight.T.clone()",
             "    return model.decoder.norm(stream)", "    return torch.softmax(model.decoder.norm(stream)", ".weight.T.clone()", ".weight.T, -1)")  # fmt: skip
lens.mistake(
    "a norm inside the last block is used; use the last one, `decoder.norm`",
    "model.decoder.norm(stream)",
    "model.decoder.blocks[-1].feed_forward_norm(stream)",
)
lens.mistake(
    "those are log-probabilities: return logits",
    "    return model.decoder.norm(stream) @ (model.embedding if head is None else head).weight.T",
    "    return (model.decoder.norm(stream) @ (model.embedding if head is None else head).weight.T).log_softmax(-1)",
)
lens.mistake("the logits need gradients: the stub's `no_grad` is missing", "@torch.no_grad()\ndef lens", "def lens")
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
    """The rank of a token is the number of more probable tokens."""
    rank = code.rank_of(logits, token)
    return {"rank": rank, "it is an int": isinstance(rank, int)}


@rank_of.cases
def _(draw):
    yield Case("the likeliest", (torch.tensor([0.5, 3.0, 1.0]), 1))
    yield Case("the least probable token", (torch.tensor([0.5, 3.0, 1.0]), 0))
    yield Case("of two tied tokens, neither is more probable than the other", (torch.tensor([2.0, 2.0, 3.0]), 0))
    logits = draw.normal(20)
    yield Case("twenty tokens", (logits, draw.whole(0, 19)))
    yield Case(LARGE, (draw.normal(draw.whole(33, 60)), draw.whole(0, 32)))


rank_of.mistake(
    "the most probable token has rank 0, not 1",
    "int((logits > logits[token]).sum())",
    "int((logits > logits[token]).sum()) + 1",
)
rank_of.mistake("the token itself is counted, too", "logits > logits[token]", "logits >= logits[token]")
rank_of.mistake(
    "you count the less probable tokens; count the more probable ones",
    "logits > logits[token]",
    "logits < logits[token]",
)
rank_of.mistake(
    "the result is a tensor; return an int", "int((logits > logits[token]).sum())", "(logits > logits[token]).sum()"
)
rank_of.variant(
    """
    def rank_of(logits, token):
        return sum(1 for x in logits.tolist() if x > logits[token].item())
    """
)


@part(18, points=2, excused=USUAL)
def without_head(code, layer, head, ids):
    """The head is silenced within the context, and works again afterwards."""
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
        try:
            with code.without_head(own, layer, head):
                raise RuntimeError("something fails inside")
        except RuntimeError:
            pass
        failed = own(ids)
    return {"without it": without, "afterwards the model is as before": bool(torch.equal(before, after)),
            "after an error the model is as before": bool(torch.equal(before, failed))}  # fmt: skip


@without_head.cases
def _(draw):
    ids = draw.wholes(0, 12, 2, 5)
    for layer, head in ((0, 0), (1, 2), (2, 3)):
        yield Case(f"head {head} of layer {layer}", (layer, head, ids))
    yield Case(LARGE, (1, 2, draw.wholes(0, 12, 1, draw.whole(33, 60))))


without_head.mistake("the whole attention is zero, not one head", "heads[..., head, :] = 0", "heads[..., :, :] = 0")
without_head.mistake("another axis is zero: the heads are one after the other in the last axis", "heads = inputs[0].unflatten(-1, (attention.heads, -1)).clone()\n        heads[..., head, :] = 0",
                     "heads = inputs[0].unflatten(-1, (-1, attention.heads)).clone()\n        heads[..., head] = 0")  # fmt: skip
without_head.mistake(
    "`layer` is not used: you always change the first one",
    "    attention = model.decoder.blocks[layer].attention\n",
    "    attention = model.decoder.blocks[0].attention\n",
)
without_head.mistake("the head stays zero after the `with`", "    hook = attention.output.register_forward_pre_hook(silence)\n    try:\n        yield\n    finally:\n        hook.remove()",
                     "    hook = attention.output.register_forward_pre_hook(silence)\n    try:\n        yield\n    finally:\n        pass")  # fmt: skip
without_head.mistake(
    "nothing becomes zero: a pre-hook must return the new input",
    "        return (heads.flatten(-2),)",
    "        return None",
)
without_head.mistake("what attention returns becomes zero; set the head to zero before `output` mixes the heads", "register_forward_pre_hook(silence)",
                     "register_forward_hook(lambda layer, inputs, output: silence(layer, (output,))[0])")  # fmt: skip
without_head.mistake(
    "the components are cut into `kv_heads` parts; cut them into `heads`",
    "(attention.heads, -1)",
    "(attention.kv_heads, -1)",
)
without_head.mistake(
    "another head is zero: `head` counts from 0", "heads[..., head, :] = 0", "heads[..., head - 1, :] = 0"
)
without_head.mistake(
    "the head is zero only at the last token; set it to zero at every token",
    "heads[..., head, :] = 0",
    "heads[:, -1, head, :] = 0",
)
without_head.mistake(
    "you change the input of `query`; change that of `output`, which gets the heads' outputs",
    "attention.output.register_forward_pre_hook(silence)",
    "attention.query.register_forward_pre_hook(silence)",
)
without_head.mistake(
    "the head's output is the mean of all heads; set it to zero",
    "heads[..., head, :] = 0",
    "heads[..., head, :] = heads.mean(-2)",
)
without_head.mistake(
    "the head stays zero if something fails inside: remove the hook in a `finally`",
    "    hook = attention.output.register_forward_pre_hook(silence)\n    try:\n        yield\n    finally:\n        hook.remove()",
    "    hook = attention.output.register_forward_pre_hook(silence)\n    yield\n    hook.remove()",
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
    """The stream at one position is replaced within the context, and is the original one afterwards."""
    model = code["model"]
    torch.manual_seed(9)
    with default_dtype(torch.float64), torch.no_grad():
        own = model.Transformer(model.Config(13, 16, 3, 4, 2, 24))
        before = own(ids)
        with code.patched(own, layer, position, vector):
            lent = own(ids)
        after = own(ids)
        try:
            with code.patched(own, layer, position, vector):
                raise RuntimeError("something fails inside")
        except RuntimeError:
            pass
        failed = own(ids)
    return {"with it": lent, "afterwards the model is as before": bool(torch.equal(before, after)),
            "after an error the model is as before": bool(torch.equal(before, failed))}  # fmt: skip


@patched.cases
def _(draw):
    ids = draw.wholes(0, 12, 2, 5)
    for layer, position in ((0, 1), (1, 3), (2, -1)):
        yield Case(f"layer {layer}, position {position}", (layer, position, draw.normal(16), ids))
    yield Case(LARGE, (1, 30, draw.normal(16), draw.wholes(0, 12, 1, draw.whole(33, 60))))


patched.mistake(
    "the vector is added: it must replace the stream", "output[:, position] = vector", "output[:, position] += vector"
)
patched.mistake("the vector replaces the block's input: replace its output", "    hook = model.decoder.blocks[layer].register_forward_hook(patch)",
                "    hook = model.decoder.blocks[layer].register_forward_pre_hook(lambda block, inputs: (patch(block, inputs, inputs[0]),))")  # fmt: skip
patched.mistake("every position is replaced: replace only one", "output[:, position] = vector", "output[:, :] = vector")
patched.mistake(
    "only the first text of a batch is patched", "output[:, position] = vector", "output[0, position] = vector"
)
patched.mistake(
    "`layer` is not used: you always change the first one",
    "    hook = model.decoder.blocks[layer].register_forward_hook(patch)",
    "    hook = model.decoder.blocks[0].register_forward_hook(patch)",
)
patched.mistake("the patch remains after the `with`", "    hook = model.decoder.blocks[layer].register_forward_hook(patch)\n    try:\n        yield\n    finally:\n        hook.remove()",
                "    hook = model.decoder.blocks[layer].register_forward_hook(patch)\n    try:\n        yield\n    finally:\n        pass")  # fmt: skip
patched.mistake("the previous block is patched: the stream after block `layer` is what that block returns",
                "model.decoder.blocks[layer].register_forward_hook(patch)", "model.decoder.blocks[layer - 1].register_forward_hook(patch)")  # fmt: skip
patched.mistake(
    "the position is used as an index of the texts: streams are (batch, token, d_model)",
    "output[:, position] = vector",
    "output[position] = vector",
)
patched.mistake("nothing is patched: a hook must return the new output", "        output[:, position] = vector\n        return output\n",
                "        output[:, position] = vector\n")  # fmt: skip
patched.mistake(
    "the next position is patched",
    "output[:, position] = vector",
    "output[:, (position + 1) % output.shape[1]] = vector",
)
patched.mistake(
    "what attention returns is replaced; the stream is what the block returns",
    "model.decoder.blocks[layer].register_forward_hook(patch)",
    "model.decoder.blocks[layer].attention.register_forward_hook(patch)",
)
patched.mistake(
    "the next block is patched: the stream after block `layer` is what that block returns",
    "model.decoder.blocks[layer].register_forward_hook(patch)",
    "model.decoder.blocks[layer + 1 - len(model.decoder.blocks)].register_forward_hook(patch)",
)
patched.mistake(
    "the stream stays patched if something fails inside: remove the hook in a `finally`",
    "    hook = model.decoder.blocks[layer].register_forward_hook(patch)\n    try:\n        yield\n    finally:\n        hook.remove()",
    "    hook = model.decoder.blocks[layer].register_forward_hook(patch)\n    yield\n    hook.remove()",
)
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
