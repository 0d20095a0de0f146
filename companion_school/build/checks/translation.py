"""Stage 8, translation: a block with cross-attention, encoder and decoder, teacher forcing, and greedy translation."""

import torch

from companion_school.build.checks import LAWS
from companion_school.build.isolated_modules import PlainCache, default_dtype, run_with
from companion_school.build.parts import part
from companion_school.build.simulated_device import on_simulated_device
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case

_USUAL = dict.fromkeys(LAWS, "only ordinary inputs, because a model has ordinary weights")
_D, _FF = 8, 12


def _block(draw, cross):
    shapes = {
        "attention_norm.weight": (_D,),
        "attention.query.weight": (_D, _D),
        "attention.key.weight": (_D // 2, _D),
        "attention.value.weight": (_D // 2, _D),
        "attention.output.weight": (_D, _D),
        "feed_forward_norm.weight": (_D,),
        "feed_forward.gate.weight": (_FF, _D),
        "feed_forward.inner.weight": (_FF, _D),
        "feed_forward.outer.weight": (_D, _FF),
    }
    if cross:
        shapes |= {
            name.replace("attention", "cross", 1): shape for name, shape in shapes.items() if name.startswith("attent")
        }
    return {name: draw.normal(*shape) / 2 for name, shape in shapes.items()}


def _model(draw):
    weights = {"embedding.weight": draw.normal(11, _D)}
    for stack in ("encoder", "decoder"):
        for number in range(2):
            block = _block(draw, stack == "decoder")
            far = {name: 9 if "cross." in name else 1 for name in block}  # makes translations depend on the source
            weights |= {f"{stack}.blocks.{number}.{name}": far[name] * weight for name, weight in block.items()}
        weights[f"{stack}.norm.weight"] = draw.normal(_D)
    return weights


@part(8, points=3, excused=_USUAL)
def CrossBlock(code, x, source, mask, seen, weights):
    """The block applies self-attention, then cross-attention, then the network."""

    def turn(y):
        return y * torch.arange(1, y.shape[2] + 1, dtype=y.dtype)[:, None] + y.roll(1, -1)

    cache = PlainCache()
    made = run_with(
        lambda: code.CrossBlock(x.shape[-1], 4, 2, 12), weights, x, mask=mask, turn=turn, cache=cache, source=source,
        seen=seen,
    )  # fmt: skip
    return made, len(cache)


@CrossBlock.cases
def _(draw):
    x, source, weights = draw.normal(2, 3, _D), draw.normal(2, 5, _D), _block(draw, True)
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    all_real = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    yield Case("the target attends to itself and to the source", (x, source, causal, all_real, weights), gradients=True)
    seen = (torch.arange(5) < torch.tensor([[3], [5]]))[:, None, None]
    yield Case("the source's padding is hidden", (x, source, causal, seen, weights))
    length = draw.whole(33, 40)
    source, seen = draw.normal(2, length, _D), torch.arange(length) < torch.tensor([[length - 3], [length]])
    yield Case(LARGE, (x, source, causal, seen[:, None, None], weights))


_CROSS = "x = x + self.cross(self.cross_norm(x), source, seen)"
CrossBlock.mistake("the source is never used", f"        {_CROSS}\n", "")
CrossBlock.mistake(
    "the output of cross-attention replaces the stream; add it", _CROSS, _CROSS.replace("x = x + ", "x = ")
)
CrossBlock.mistake("the stream is not normed before cross-attention", _CROSS, _CROSS.replace("self.cross_norm(x)", "x"))
CrossBlock.mistake("the source's padding is visible: pass `seen` on", _CROSS, _CROSS.replace(", seen", ""))
CrossBlock.mistake(
    "the source is normed again; its encoder has already done that", _CROSS,
    _CROSS.replace("source, seen", "self.cross_norm(source), seen"),
)  # fmt: skip
CrossBlock.mistake(
    "the second attention uses the target again, not the source", _CROSS, _CROSS.replace("source, seen", "None, mask")
)
CrossBlock.mistake(
    "cross-attention has the target's mask: use `seen`, the mask of the source", _CROSS,
    _CROSS.replace("seen", "mask"),
)  # fmt: skip
CrossBlock.mistake(
    "source and target are swapped: queries come from the target, keys and values from the source", _CROSS,
    _CROSS.replace("self.cross_norm(x), source, seen", "source, self.cross_norm(x)"),
)  # fmt: skip
CrossBlock.mistake(
    "source and target are swapped, but the mask is the source's: the stream comes first, `cross(stream, source, seen)`",
    _CROSS,
    _CROSS.replace("self.cross_norm(x), source, seen", "source, self.cross_norm(x), seen"),
)  # fmt: skip
CrossBlock.mistake(
    "queries and keys of cross-attention are rotated, too: do not compare positions of two texts", _CROSS,
    _CROSS.replace("source, seen", "source, seen, turn"),
)  # fmt: skip
CrossBlock.mistake(
    "`seen` already has the shape for `attend`, (batch, 1, 1, key): pass it on unchanged", _CROSS,
    _CROSS.replace("seen", "seen[:, None, None]"),
)  # fmt: skip
CrossBlock.mistake(
    "the cache does not reach self-attention", "mask=mask, turn=turn, cache=cache)\n        x = x + self.cross",
    "mask=mask, turn=turn)\n        x = x + self.cross",
)  # fmt: skip
CrossBlock.mistake(
    "the source is put into the cache: use the cache only for self-attention", _CROSS,
    _CROSS.replace("seen)", "seen, cache=cache)"),
)  # fmt: skip
CrossBlock.mistake(
    "one norm serves both attentions; each has its own",
    _CROSS,
    _CROSS.replace("self.cross_norm", "self.attention_norm"),
)
CrossBlock.mistake(
    "cross-attention comes first; self-attention must come before it",
    "        x = x + self.attention(self.attention_norm(x), mask=mask, turn=turn, cache=cache)\n        " + _CROSS,
    f"        {_CROSS}\n        x = x + self.attention(self.attention_norm(x), mask=mask, turn=turn, cache=cache)",
)  # fmt: skip
CrossBlock.variant(
    """
    class CrossBlock(Block):
        def __init__(self, d_model, heads, kv_heads, d_ff):
            super().__init__(d_model, heads, kv_heads, d_ff)
            self.cross = Attention(d_model, heads, kv_heads)
            self.cross_norm = RMSNorm(d_model)

        def forward(self, x, mask=None, turn=None, cache=None, source=None, seen=None):
            heard = self.attention(self.attention_norm(x), mask=mask, turn=turn, cache=cache)
            found = self.cross(self.cross_norm(x + heard), source=source, mask=seen)
            stream = x + heard + found
            return stream + self.feed_forward(self.feed_forward_norm(stream))
    """
)


@part(8, points=3, excused=_USUAL, seconds=60.0)
def Translator(code, source, real, target, weights, base):
    """The whole model computes the encoder's output and the logits of the target."""
    config = code["model"].Config(11, 8, 2, 2, 1, 12, base)  # wide enough heads for the base to have an effect
    logits = run_with(lambda: code.Translator(config), weights, source, real, target)
    with default_dtype(torch.float64):
        model = code.Translator(config)
    model.load_state_dict(weights)
    with torch.no_grad():
        memory = model.encode(source, real)
        again = model(source, real, target, memory)
    return {"the logits": logits, "the encoder's output": memory.masked_fill(~real[..., None], 0.0),
            "the logits for a given memory": again}  # fmt: skip


@Translator.cases
def _(draw):
    weights, source, target = _model(draw), draw.wholes(0, 10, 2, 5), draw.wholes(0, 10, 2, 4)
    everywhere = torch.ones(2, 5, dtype=torch.bool)
    yield Case("one source, one target", (source[:1], everywhere[:1], target[:1], weights, 1e4))
    yield Case("two sources of equal length", (source, everywhere, target, weights, 1e4))
    real = torch.arange(5) < torch.tensor([[3], [5]])
    yield Case("a source with padding", (source, real, target, weights, 1e4))
    yield Case("the base of the configuration", (source, real, target, weights, 100.0))
    length = draw.whole(33, 40)
    everywhere = torch.ones(1, length, dtype=torch.bool)
    yield Case(LARGE, (draw.wholes(0, 10, 1, length), everywhere, target[:1], weights, 1e4))


Translator.mistake(
    "the encoder's mask is causal; every token of a source must see all real ones", "mask=real[:, None, None]",
    "mask=real[:, None, None] & causal(source.shape[1], source.shape[1])",
)  # fmt: skip
Translator.mistake("the mask hides queries; hide keys, the last axis: real[:, None, None]",
                   "seen, mask = real[:, None, None],", "seen, mask = real[:, None, :, None],")  # fmt: skip
Translator.mistake("the encoder's mask is inverted: `real` is True where a token may be seen",
                   "mask=real[:, None, None]", "mask=~real[:, None, None]")  # fmt: skip
Translator.mistake("the decoder's blocks have no cross-attention: give its stack the class `CrossBlock`",
                   "Stack(config, CrossBlock)", "Stack(config)")  # fmt: skip
Translator.mistake("the encoder looks at padding", "mask=real[:, None, None]", "mask=None")
Translator.mistake(
    "the decoder looks ahead: its own attention needs a causal mask",
    "self.embedding(target), mask=mask",
    "self.embedding(target), mask=None",
)
Translator.mistake(
    "the decoder looks at padding of the source", "source=memory, seen=seen)", "source=memory, seen=None)"
)
Translator.mistake("the decoder has no positions", ", turn=self.turn(target), source", ", source")
Translator.mistake("the encoder has no positions", ", turn=self.turn(source))", ")")
Translator.mistake("the base of the configuration does not reach `rotate`", ", base=self.config.base)", ")")
Translator.mistake(
    "the decoder sees the embedded source instead of the encoder's output",
    "memory = self.encode(source, real) if memory is None else memory", "memory = self.embedding(source)",
)  # fmt: skip
Translator.mistake(
    "the argument `memory` is not used: the source is encoded again",
    "memory = self.encode(source, real) if memory is None else memory",
    "memory = self.encode(source, real) * (1 if memory is None else 2)",
)  # fmt: skip
Translator.mistake(
    "the head's logits are scaled; the embedding is the head, without a factor",
    "return x @ self.embedding.weight.T",
    "return x @ self.embedding.weight.T / math.sqrt(x.shape[-1])\n\n\nimport math\n\n\ndef _nothing():\n    pass",
)
Translator.variant(
    """
    class Translator(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config
            self.decoder = Stack(config, CrossBlock)
            self.encoder = Stack(config, Block)
            self.embedding = nn.Embedding(config.vocab, config.d_model)
            initialise(self, config.d_model, 3 * config.layers)

        def turn(self, ids):
            places = torch.arange(ids.shape[1])
            return lambda x: rotate(x, places, self.config.base)

        def encode(self, source, real):
            return self.encoder(self.embedding(source), mask=real[:, None, None, :], turn=self.turn(source))

        def forward(self, source, real, target, memory=None):
            if memory is None:
                memory = self.encode(source, real)
            tokens = target.shape[1]
            x = self.decoder(
                self.embedding(target), mask=causal(tokens, tokens), turn=self.turn(target), source=memory,
                seen=real[:, None, None, :],
            )
            return nn.functional.linear(x, self.embedding.weight)
    """
)


@part(8, points=1, excused=_USUAL)
def Translator_begins(code, sizes, seed):
    """A new translator draws its weights with `initialise`."""
    with default_dtype(torch.float64):
        torch.manual_seed(seed)
        model = code.Translator(code["model"].Config(**sizes))
    return {name: 100 * weight.std().item() for name, weight in model.named_parameters() if weight.ndim > 1}


@Translator_begins.cases
def _(draw):
    sizes = {"vocab": 300, "d_model": 64, "layers": 2, "heads": 4, "kv_heads": 2, "d_ff": 96}
    yield Case("a hundred times the standard deviations, to a tenth", (sizes, draw.whole(1, 99)), tolerance=0.07)


_INIT = "initialise(self, config.d_model, writes=3 * config.layers)"
Translator_begins.mistake("the weights are PyTorch's: call `initialise`", _INIT, "pass")
Translator_begins.mistake(
    "a layer of the decoder writes to its stream three times: `writes` is 3 * layers, for both stacks", _INIT,
    _INIT.replace("3 *", "2 *"),
)  # fmt: skip


@part(8, points=1, excused=_USUAL)
def forced(code, target, start):
    """With teacher forcing, the inputs are the start token and all target tokens but the last."""
    return code.forced(target, start)


@forced.cases
def _(draw):
    yield Case("one row", (torch.tensor([[5, 6, 7]]), 1))
    yield Case("several rows", (draw.wholes(2, 9, 3, 5), 0))
    yield Case("targets of one token", (draw.wholes(2, 9, 4, 1), 1))
    yield Case(LARGE, (draw.wholes(2, 9, 2, draw.whole(33, 50)), 1))


forced.mistake(
    "the decoder reads the target itself, so it copies and learns nothing",
    "target[:, :-1]], dim=1)",
    "target[:, :-1]], dim=1) * 0 + target",
)
forced.mistake("the last token is not dropped: one token too many", "target[:, :-1]]", "target]")
forced.mistake("the shift is doubled", "target[:, :-1]], dim=1)", "target[:, :-1]], dim=1).roll(1, 1)")
forced.mistake("there are two start tokens at the front; one is enough", "torch.full_like(target[:, :1], start), target[:, :-1]",
               "torch.full_like(target[:, :2], start), target[:, :-2]")  # fmt: skip
forced.mistake("the first token is lost, not the last", "target[:, :-1]]", "target[:, 1:]]")
forced.mistake(
    "the start token is at the end",
    "[torch.full_like(target[:, :1], start), target[:, :-1]]",
    "[target[:, :-1], torch.full_like(target[:, :1], start)]",
)
forced.variant(
    """
    def forced(target, start):
        inputs = target.roll(1, dims=1).clone()
        inputs[:, 0] = start
        return inputs
    """
)


@part(8, points=2, excused=_USUAL, seconds=60.0)
def translate(code, source, real, start, stop, most, weights):
    """Translation is greedy, and each row ends at its own length."""
    with default_dtype(torch.float64):
        model = code.Translator(code["model"].Config(11, 8, 2, 4, 2, 12))
    model.load_state_dict(weights)
    encoded, encode = [], model.encode
    model.encode = lambda *inputs: encoded.append(1) or encode(*inputs)
    written = code.translate(model, source, real, start, stop, most)
    return {"the text": written, "the number of times the source is encoded": len(encoded)}


@translate.cases
def _(draw):
    weights, source = _model(draw), draw.wholes(0, 10, 7, 5)
    real = torch.arange(5) < torch.tensor([[3], [5], [4], [2], [5], [1], [4]])
    yield Case("one token each", (source, real, 1, 99, 1, weights))
    yield Case("several tokens", (source, real, 1, 99, 7, weights))
    for stop in range(11):
        yield Case(
            f"a row that has written the stop token, {stop}, is filled with it", (source, real, 1, stop, 7, weights)
        )
    source = draw.wholes(0, 10, draw.whole(33, 60), 5)
    yield Case(LARGE, (source, torch.ones_like(source).bool(), 1, 3, 4, weights))


translate.mistake(
    "a row that has ended continues to write", "following.where(target[:, 1:].ne(stop).all(1, True), stop)", "following"
)
translate.mistake(
    "a row that has ended is filled with 0; fill it with `stop`",
    "all(1, True), stop)], dim=1)",
    "all(1, True), 0)], dim=1)",
)
translate.mistake("the start token is part of the result", "return target[:, 1:]", "return target")
translate.mistake("one token too few", "for _ in range(most)", "for _ in range(most - 1)")
translate.mistake(
    "you use the prediction at the first position; the last one predicts the next token",
    "[:, -1:].argmax(-1)",
    "[:, :1].argmax(-1)",
)
translate.mistake(
    "the source is encoded again for every token; once is enough",
    "model(source, real, target, memory)",
    "model(source, real, target)",
)
translate.mistake(
    "all rows end when one does: each row must end by itself", "target[:, 1:].ne(stop).all(1, True), stop)",
    "target[:, 1:].ne(stop).all(), stop)",
)  # fmt: skip
translate.mistake(
    "the padding of the sources is visible",
    "model.encode(source, real), torch",
    "model.encode(source, real | True), torch",
)
translate.variant(
    """
    @torch.no_grad()
    def translate(model, source, real, start, stop, most):
        memory = model.encode(source, real)
        written = torch.full((len(source), most + 1), stop)
        written[:, 0] = start
        going = torch.ones(len(source), dtype=torch.bool)
        for at in range(most):
            logits = model(source, real, written[:, : at + 1], memory)
            following = logits[:, -1].argmax(-1)
            written[going, at + 1] = following[going]
            going = going & (following != stop)
        return written[:, 1:]
    """
)


@part(8, points=1, excused=_USUAL, seconds=60.0)
def translate_on_a_GPU(code, source, real, weights):
    """A translator on another device, such as a GPU, gives the same logits and translations."""

    def written(device):
        with default_dtype(torch.float64):
            model = code.Translator(code["model"].Config(11, 8, 2, 4, 2, 12))
        model.load_state_dict(weights)
        model.to(device)
        there = source.to(device), real.to(device)
        text = code.translate(model, *there, 1, 2, 4)
        return text.tolist(), model(*there, code.forced(text, 1)).detach().cpu()

    return on_simulated_device(written)


@translate_on_a_GPU.cases
def _(draw):
    real = torch.arange(5) < torch.tensor([[3], [5], [4]])
    yield Case("sources on a GPU", (draw.wholes(0, 10, 3, 5), real, _model(draw)))
    source = draw.wholes(0, 10, draw.whole(33, 60), 5)
    yield Case(LARGE, (source, torch.ones_like(source).bool(), _model(draw)))


translate_on_a_GPU.mistake(
    "the decoder's mask is on the CPU: move it to the device of the target, `causal(...).to(target.device)`",
    "causal(target.shape[1], target.shape[1]).to(target.device)",
    "causal(target.shape[1], target.shape[1])",
)
translate_on_a_GPU.mistake(
    "the positions are created on the CPU: create them where the ids are, `torch.arange(..., device=ids.device)`",
    "torch.arange(ids.shape[1], device=ids.device)",
    "torch.arange(ids.shape[1])",
)
