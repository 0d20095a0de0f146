"""Stage 17, adapters: the low-rank change to a layer, a model with adapters, and the targets that count in the loss."""

import torch

from companion_school.build.checks import USUAL
from companion_school.build.isolated_modules import default_dtype, run_with
from companion_school.build.parts import part
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case


@part(17, points=4, excused=USUAL)
def LoRA(code, x, weights, rank, alpha):
    """The layer adds a low-rank change, which is zero at first and can be merged into the frozen weight."""
    with default_dtype(x.dtype):
        linear = torch.nn.Linear(x.shape[-1], len(weights["linear.weight"]), bias=False)
        layer = code.LoRA(linear, rank, alpha)
        fresh, still = layer.up.weight.detach().clone(), not layer.down.weight.any()
    gives = run_with(lambda: layer, weights, x)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            weight.copy_(weights[name])
        merged = layer.merged()
    return {
        "its output": gives,
        "the initial up": fresh,
        "down is zero at first": still,
        "merged": merged.weight.detach(),
        "the merged weight": type(merged).__name__,
    }


def _weights(draw, wide, out, rank):
    return {
        "linear.weight": draw.normal(out, wide),
        "down.weight": draw.normal(rank, wide),
        "up.weight": draw.normal(out, rank),
    }


@LoRA.cases
def _(draw):
    yield Case("rank 1, alpha 1", (draw.normal(1, 3), _weights(draw, 3, 2, 1), 1, 1.0))
    yield Case("rank 2, alpha 6: the change is tripled", (draw.normal(2, 3, 5), _weights(draw, 5, 4, 2), 2, 6.0))
    wide = draw.whole(33, 40)
    yield Case(LARGE, (draw.normal(2, wide), _weights(draw, wide, 3, 2), 2, 4.0))


LoRA.mistake(
    "the change is multiplied by alpha; multiply it by alpha / rank",
    "self.linear, self.scale = linear, alpha / rank",
    "self.linear, self.scale = linear, alpha",
)
LoRA.mistake(
    "the change is not scaled",
    "return self.linear(x) + self.scale * self.up(self.down(x))",
    "return self.linear(x) + self.up(self.down(x))",
)
LoRA.mistake(
    "`up` does not start at zero, so the model changes before it has learned anything",
    "        nn.init.zeros_(self.up.weight)\n",
    "",
)
LoRA.mistake("`down` starts at zero instead of `up`", "nn.init.zeros_(self.up.weight)",
             "nn.init.zeros_(self.up.weight)\n        self.forward = lambda x: self.linear(x)")  # fmt: skip
LoRA.mistake(
    "the frozen layer's own output is lost: add the change to it",
    "return self.linear(x) + self.scale",
    "return self.scale",
)
LoRA.mistake(
    "merging forgets the scale",
    "self.linear.weight += self.scale * self.up.weight",
    "self.linear.weight += self.up.weight",
)
LoRA.mistake("merging replaces the weight: add the change to it", "self.linear.weight += self.scale * self.up.weight @ self.down.weight",
             "self.linear.weight.copy_(self.scale * self.up.weight @ self.down.weight)")  # fmt: skip
LoRA.mistake("`down` and `up` both start at zero, so neither ever gets a gradient", "nn.init.zeros_(self.up.weight)",
             "nn.init.zeros_(self.up.weight)\n        nn.init.zeros_(self.down.weight)")  # fmt: skip
LoRA.mistake(
    "`up` comes before `down`: x goes down to the rank first, then up", "self.up(self.down(x))", "self.down(self.up(x))"
)
LoRA.mistake("merging multiplies in the wrong order; the change is up @ down, (out, in)", "self.up.weight @ self.down.weight",
             "self.down.weight.T @ self.up.weight.T")  # fmt: skip
LoRA.mistake("merging computes a new weight and does not store it in the layer", "self.linear.weight += self.scale * self.up.weight @ self.down.weight",
             "weight = self.linear.weight + self.scale * self.up.weight @ self.down.weight")  # fmt: skip
LoRA.mistake(
    "the change is multiplied by rank / alpha; multiply it by alpha / rank",
    "linear, alpha / rank",
    "linear, rank / alpha",
)
LoRA.mistake(
    "the change is added to the layer's input; add it to the layer's output",
    "return self.linear(x) + self.scale * self.up(self.down(x))",
    "return self.linear(x + self.scale * self.up(self.down(x)))",
)
LoRA.mistake(
    "merging subtracts the change: add it", "self.linear.weight += self.scale", "self.linear.weight -= self.scale"
)
LoRA.mistake(
    "`merged` returns the adapter; return the linear layer", "        return self.linear\n", "        return self\n"
)
LoRA.mistake(
    "merging uses the scale twice",
    "self.scale * self.up.weight @ self.down.weight",
    "self.scale**2 * self.up.weight @ self.down.weight",
)
LoRA.mistake(
    "`down` has a bias", "nn.Linear(linear.in_features, rank, bias=False)", "nn.Linear(linear.in_features, rank)"
)
LoRA.variant(
    """
    class LoRA(nn.Module):
        def __init__(self, linear, rank, alpha):
            super().__init__()
            out, wide = linear.weight.shape
            self.down, self.up = nn.Linear(wide, rank, bias=False), nn.Linear(rank, out, bias=False)
            self.up.weight.data.zero_()
            self.linear, self.rank, self.alpha = linear, rank, alpha

        def forward(self, x):
            change = x @ self.down.weight.T @ self.up.weight.T
            return self.linear(x) + change * self.alpha / self.rank

        def merged(self):
            new = nn.Linear(self.linear.in_features, self.linear.out_features, bias=False)
            change = self.up.weight @ self.down.weight * (self.alpha / self.rank)
            new.weight = nn.Parameter((self.linear.weight + change).detach())
            return new
    """
)


@part(17, points=3, excused=USUAL)
def put_adapters(code, rank, alpha, ids, merge):
    """Only the adapters are trainable. Adding them leaves the logits unchanged, and so does merging them."""
    model = code["model"]
    torch.manual_seed(6)
    with default_dtype(torch.float64):
        own = model.Transformer(model.Config(13, 16, 2, 4, 2, 24))
        before = own(ids).detach()
        made = code.put_adapters(own, rank, alpha)
        unchanged = (made(ids) - before).abs().max() < 1e-9
    learns = {name: tuple(weight.shape) for name, weight in made.named_parameters() if weight.requires_grad}
    with torch.no_grad():
        for number, (name, weight) in enumerate(sorted(made.named_parameters())):
            if name in learns:
                weight.copy_(torch.sin(torch.arange(weight.numel()) + number).reshape(weight.shape) / 3)
    logits = made(ids)
    found = {
        "at first nothing has changed": bool(unchanged),
        "what learns": sorted(learns.items()),
        "the logits after a change": logits.detach(),
    }
    if merge:
        plain = code.merge_adapters(made)
        names = sorted(name for name, _ in plain.named_parameters())
        found |= {
            "merging does not change the logits": bool((plain(ids) - logits).abs().max() < 1e-9),
            "its parameter names when merged": names,
        }
    return found


@put_adapters.cases
def _(draw):
    ids = draw.wholes(0, 12, 2, 5)
    yield Case("rank 2", (2, 4.0, ids, False), tolerance=1e-6)
    yield Case("merged", (1, 1.0, ids, True), tolerance=1e-6)
    yield Case(LARGE, (2, 4.0, draw.wholes(0, 12, 1, draw.whole(33, 40)), False), tolerance=1e-6)


put_adapters.mistake(
    "the model is not frozen: its own weights are trained, too", "    model.requires_grad_(False)\n", ""
)
put_adapters.mistake(
    "only the decoder is frozen; the embedding is trained, too",
    "model.requires_grad_(False)",
    "model.decoder.requires_grad_(False)",
)
put_adapters.mistake("everything is frozen, including the adapters: freeze the model before you add them", "    model.requires_grad_(False)\n    for module", "    for module",
                     "                setattr(module, name, LoRA(child, rank, alpha))\n    return model",
                     "                setattr(module, name, LoRA(child, rank, alpha))\n    return model.requires_grad_(False)")  # fmt: skip
put_adapters.mistake("rank and alpha are swapped", "LoRA(child, rank, alpha)", "LoRA(child, int(alpha), rank)")
put_adapters.mistake("only the attention has adapters: give every linear layer one", "    model.requires_grad_(False)\n    for module in list(model.decoder.modules()):",
                     "    model.requires_grad_(False)\n    for module in [block.attention for block in model.decoder.blocks]:")  # fmt: skip
put_adapters.mistake(
    "merging removes the adapters together with their change",
    "setattr(module, name, child.merged())",
    "setattr(module, name, child.linear)",
)
put_adapters.mistake(
    "the adapters get adapters, and so on without end: collect the modules with `list` before you replace any",
    "for module in list(model.decoder.modules()):\n        for name, child in list(module.named_children()):\n            if isinstance(child, nn.Linear):",
    "for module in model.decoder.modules():\n        for name, child in list(module.named_children()):\n            if isinstance(child, nn.Linear):",
)
put_adapters.mistake(
    "the merged layer does not replace the adapter, so the change counts twice",
    "                setattr(module, name, child.merged())",
    "                child.merged()",
)
put_adapters.variant(
    """
    def put_adapters(model, rank, alpha):
        for weight in model.parameters():
            weight.requires_grad = False
        for block in model.decoder.blocks:
            for part in (block.attention, block.feed_forward):
                for name, child in list(part._modules.items()):
                    if isinstance(child, nn.Linear):
                        part._modules[name] = LoRA(child, rank=rank, alpha=alpha)
        return model
    """
)


@part(17, points=3, excused=USUAL)
def example(code, question, answer, stop, length):
    """The inputs contain the question and its answer; only the answer has targets that count in the loss."""
    inputs, targets = code.example(list(question), list(answer), stop, length)
    return inputs, targets


@example.cases
def _(draw):
    yield Case("one token each", ([3], [5], 0, 4))
    yield Case("a longer question", ([3, 4, 6], [5, 7], 0, 8))
    yield Case("an example of exactly this length", ([3, 4], [5, 7], 9, 4))
    asked, told = ([draw.whole(3, 60) for _ in range(draw.whole(2, 5))] for _ in range(2))
    yield Case("other tokens", (asked, told, 0, 12))
    asked = [draw.whole(3, 60) for _ in range(draw.whole(33, 40))]
    yield Case(LARGE, (asked, told, 2, 64))
    yield Case("too long", ([3, 4, 6], [5, 7], 0, 4), refuse=True)


_TARGETS = "targets = [-100] * (len(question) - 1) + [*answer, stop] + [-100] * blank"
example.mistake("the question is scored, too: its targets must be -100", _TARGETS, "targets = ids[1:] + [-100] * blank")
example.mistake(
    "the stop token is not scored, so the model never learns to end an answer",
    _TARGETS,
    "targets = [-100] * (len(question) - 1) + [*answer, -100] + [-100] * blank",
)
example.mistake("the answer's first token is not scored: its target belongs at the question's last token", _TARGETS,
                "targets = [-100] * len(question) + [*answer[1:], stop] + [-100] * blank")  # fmt: skip
example.mistake(
    "the targets are not shifted by one position",
    _TARGETS,
    "targets = [-100] * len(question) + [*answer] + [-100] * blank",
)
example.mistake(
    "positions after the stop token are scored: their targets must be -100",
    _TARGETS,
    "targets = [-100] * (len(question) - 1) + [*answer, stop] + [stop] * blank",
)
example.mistake(
    "an example that is too long is cut off",
    "    if len(ids) - 1 > length:",
    "    ids = ids[: length + 1]\n    answer = answer[: max(0, length - len(question))]\n    if False:",
)
example.mistake(
    "the inputs after `stop` are 0; they must be `stop`", "ids[:-1] + [stop] * blank", "ids[:-1] + [0] * blank"
)
example.mistake(
    "the targets are one position too early: the first target of the answer belongs at the question's last token",
    "[-100] * (len(question) - 1) + [*answer, stop] + [-100] * blank",
    "[-100] * max(0, len(question) - 2) + [*answer, stop] + [-100] * (blank + (len(question) > 1))",
)
example.mistake(
    "an example of exactly `length` inputs is rejected: the last id is not an input",
    "if len(ids) - 1 > length:",
    "if len(ids) > length:",
)
example.mistake(
    "targets that do not count are 0; they must be -100",
    "targets = [-100] * (len(question) - 1) + [*answer, stop] + [-100] * blank",
    "targets = [0] * (len(question) - 1) + [*answer, stop] + [0] * blank",
)
example.mistake(
    "`stop` is missing after the answer, so the model never learns to end",
    "ids = [*question, *answer, stop]",
    "ids = [*question, *answer]",
    "[*answer, stop] + [-100]",
    "[*answer] + [-100]",
)
example.mistake(
    "the padding comes first; put it after `stop`",
    "torch.tensor(ids[:-1] + [stop] * blank)",
    "torch.tensor([stop] * blank + ids[:-1])",
)
example.mistake(
    "the targets are not integers: ids are int64",
    "torch.tensor(targets)",
    "torch.tensor(targets, dtype=torch.float32)",
)
example.mistake(
    "an example that is too long is not rejected: raise a ValueError",
    '    if len(ids) - 1 > length:\n        raise ValueError(f"an example of {len(ids) - 1} tokens: expected at most {length}")\n',
    "",
)
example.mistake(
    "the last id is an input, too; the inputs are all ids except the last",
    "torch.tensor(ids[:-1] + [stop] * blank)",
    "torch.tensor(ids + [stop] * (blank - 1))",
)
example.variant(
    """
    def example(question, answer, stop, length):
        whole = question + answer + [stop]
        if len(whole) > length + 1:
            raise ValueError("too long")
        inputs = torch.full((length,), stop)
        targets = torch.full((length,), -100)
        inputs[: len(whole) - 1] = torch.tensor(whole[:-1])
        targets[len(question) - 1 : len(whole) - 1] = torch.tensor(whole[len(question) :])
        return inputs, targets
    """
)
