"""Stage 6, training: windows, loss, AdamW, clipping, learning rate, the loop, bits per byte, and checkpoints."""

import torch

from companion_school.build.checks import LAWS
from companion_school.build.parts import part
from companion_school.build.simulated_device import on_simulated_device
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case

_STEPS = dict.fromkeys(LAWS, "a step is tested with weights and gradients of ordinary size")


@part(6, points=2, excused=_STEPS, seconds=60.0)
def windows(code, ids, context, batch):
    """Inputs and targets are windows that start at random positions in a text."""
    generator, place, starts = torch.Generator().manual_seed(5), {int(id): n for n, id in enumerate(ids)}, set()
    differ, follows, shifted, shapes, wrong = False, True, True, ((batch, context), (batch, context)), []
    for _ in range(150):
        inputs, targets = code.windows(ids, context, batch, generator)
        shapes = tuple(inputs.shape), tuple(targets.shape)
        if shapes != ((batch, context), (batch, context)):
            break
        follows = all(
            place[int(b)] == place[int(a)] + 1
            for row in inputs
            for a, b in zip(row[:-1], row[1:], strict=True)  # noqa: RUF007  (a probe imports nothing)
        )
        shifted = all(
            int(b) in place and place[int(b)] == place[int(a)] + 1
            for row in zip(inputs, targets, strict=True)
            for a, b in zip(*row, strict=True)
        )
        if not (follows and shifted):
            wrong = [inputs[:2], targets[:2]]
            break
        starts |= {place[int(row[0])] for row in inputs}
        differ = differ or bool((inputs[0] != inputs[-1]).any())
    first, again = (code.windows(ids, context, batch, torch.Generator().manual_seed(7))[0] for _ in range(2))
    return {"the shapes of inputs and targets": shapes, "the inputs are a piece of the text": follows,
            "each target is the token after its input": shifted, "the starts of the windows": sorted(starts),
            "the windows of a batch differ": differ, "the same seed gives the same windows": torch.equal(first, again), "wrong inputs and targets": wrong}  # fmt: skip


@windows.cases
def _(draw):
    yield Case("windows start at every position", (10 * draw.shuffled(6) + 3, 2, 1))
    yield Case("targets are shifted by one position", (10 * draw.shuffled(draw.whole(9, 13)) + 3, draw.whole(3, 5), 3))
    context = draw.whole(6, 20)
    yield Case("a text that is slightly longer than a window", (10 * draw.shuffled(context + 1) + 3, context, 2))
    context = draw.whole(33, 40)
    yield Case(LARGE, (10 * draw.shuffled(context + 3) + 3, context, 2))


windows.mistake(
    "the targets are the inputs; each token's target must be the next one",
    "return window[:, :-1], window[:, 1:]",
    "return window[:, :-1], window[:, :-1]",
)
windows.mistake("the shift is doubled: targets are two positions later",
                "torch.arange(context + 1)]\n    return window[:, :-1], window[:, 1:]",
                "torch.arange(context + 2) % len(ids)]\n    return window[:, :-2], window[:, 2:]")  # fmt: skip
windows.mistake("the targets are shifted backwards; shift them forwards by one position",
                "return window[:, :-1], window[:, 1:]", "return window[:, 1:], window[:, :-1]")  # fmt: skip
windows.mistake(
    "no window starts at the last possible position", "len(ids) - context,", "max(1, len(ids) - context - 1),"
)
windows.mistake("all windows of a batch start at the same position", "(batch, 1), generator=generator)",
                "(1, 1), generator=generator).expand(batch, 1)")  # fmt: skip
windows.mistake("the generator is not used: the same seed must give the same windows", ", generator=generator)", ")")
windows.mistake("each token of a window is drawn by itself; a window must be a piece of the text",
                "(batch, 1), generator", "(batch, context + 1), generator")  # fmt: skip
windows.mistake("the last window reaches one id beyond the text: a start must be less than len(ids) - context",
                "len(ids) - context,", "len(ids) - context + 1,")  # fmt: skip
windows.mistake(
    "the window at the end of the text is one id too short: a start must be less than len(ids) - context",
    """
    def windows(ids, context, batch, generator):
        starts = torch.randint(len(ids) - context + 1, (batch,), generator=generator).tolist()
        window = torch.stack([ids[start : start + context + 1] for start in starts])
        return window[:, :-1], window[:, 1:]
    """,
)
windows.mistake("inputs and targets are one id too short: cut context + 1 ids from the text, then shift",
                "torch.arange(context + 1)", "torch.arange(context)")  # fmt: skip
windows.mistake("the targets are rolled, so the last one comes from the beginning of the window; take it from the text",
                "return window[:, :-1], window[:, 1:]", "return window[:, :-1], window[:, :-1].roll(-1, 1)")  # fmt: skip
windows.variant(
    """
    def windows(ids, context, batch, generator):
        starts = torch.randint(0, ids.numel() - context, (batch,), generator=generator).tolist()
        inputs = torch.stack([ids[start : start + context] for start in starts])
        return inputs, torch.stack([ids[start + 1 : start + context + 1] for start in starts])
    """
)


@part(6, points=3, excused={"levels": "logits in the thousands leave no right digit", "offset": "likewise"})
def loss_of(code, logits, targets, ignore):
    """The loss is the mean of -ln p over all targets that are not ignored."""
    return code.loss_of(logits, targets, ignore)


@loss_of.cases
def _(draw):
    batch, tokens, vocab = draw.sizes(3, 3, 8)
    yield Case("one token: minus the log of its probability", (draw.normal(1, 1, 3), torch.tensor([[1]]), -100))
    logits, targets = draw.normal(batch, tokens, vocab), draw.wholes(0, vocab - 1, batch, tokens)
    yield Case("the mean over all tokens of all rows", (logits, targets, -100), gradients=True)
    some = targets.masked_fill(torch.arange(tokens) >= draw.wholes(1, 2, batch, 1), -100)
    yield Case(
        "ignored targets are not counted, not even in the number of tokens", (logits, some, -100), gradients=True
    )
    other = targets.clone()
    other[:, 1] = 0
    yield Case("another number may be ignored", (logits, other, 0), gradients=True)
    yield Case("scores in the hundreds do not overflow", (500 * logits, targets, -100))


_LOSS = "return -logs.where(scored, 0).sum() / scored.sum()"
loss_of.mistake(
    "padding is counted in the number of tokens: divide by the number of scored ones",
    "/ scored.sum()",
    "/ scored.numel()",
)
loss_of.mistake("-100 is always ignored: use `ignore`", "scored = targets != ignore", "scored = targets != -100")
loss_of.mistake("the logarithms are averaged over the vocabulary; `gather` only the target's",
                "logits.log_softmax(-1).gather(-1, targets.where(scored, 0)[..., None]).squeeze(-1)",
                "logits.log_softmax(-1).mean(-1)")  # fmt: skip
loss_of.mistake("the logarithm of a probability that underflowed to 0 is infinite: use `log_softmax`",
                "logits.log_softmax(-1)", "logits.softmax(-1).log()")  # fmt: skip
loss_of.mistake("padding is scored: `ignore` is not used", "scored = targets != ignore",
                "scored = targets == targets")  # fmt: skip
loss_of.mistake("the sum is not divided: return the mean over the scored targets", " / scored.sum()", "")
loss_of.mistake("the sign is wrong: -ln p is positive", "return -logs", "return logs")
loss_of.mistake("the softmax is taken twice: `log_softmax` and `cross_entropy` take the logits themselves, not probabilities",
                "logits.log_softmax(-1)", "logits.softmax(-1).log_softmax(-1)")  # fmt: skip
loss_of.mistake("that is the mean of -p; take the logarithm", "logits.log_softmax(-1)", "logits.softmax(-1)")
loss_of.mistake(
    "the softmax runs over the tokens; take it over the vocabulary, the last axis", "log_softmax(-1)", "log_softmax(1)"
)
loss_of.mistake("the result is in bits; use the natural logarithm", _LOSS, _LOSS + " / math.log(2)")
loss_of.mistake("you average the rows' means, so a token of a short row counts more; divide once, by the number of all tokens",
                _LOSS, "return -(logs.where(scored, 0).sum(1) / scored.sum(1)).mean()")  # fmt: skip
loss_of.mistake("the exponentials overflow if scores are large: use `log_softmax`",
                "logits.log_softmax(-1)", "logits.exp().div(logits.exp().sum(-1, True)).log()")  # fmt: skip
loss_of.mistake(
    "minus the logit of the target is not a loss: the other logits must count, too", "logits.log_softmax(-1)", "logits"
)
loss_of.variant(
    """
    def loss_of(logits, targets, ignore=-100):
        keep = (targets != ignore).flatten()
        logits, targets = logits.flatten(0, 1)[keep], targets.flatten()[keep]
        return (logits.logsumexp(-1) - logits[torch.arange(len(targets)), targets]).mean()
    """
)
loss_of.variant(
    """
    def loss_of(logits, targets, ignore=-100):
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=ignore)
    """
)


@part(6, points=4, excused=_STEPS, forbidden=("optim",))
def AdamW(code, embedding, matrix, gain, idle, gradients, rates, decay):
    """Several updates with known gradients use both means, their corrections, and the decay."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Module()
            self.embedding.weight = torch.nn.Parameter(embedding.clone())
            self.matrix, self.gain = torch.nn.Parameter(matrix.clone()), torch.nn.Parameter(gain.clone())
            self.idle = torch.nn.Parameter(idle.clone())

    model = Model()
    adam, forgot = code.AdamW(model, betas=(0.8, 0.9), eps=1e-3, decay=decay), []
    for parts, rate in zip(gradients, rates, strict=True):
        moved = model.embedding.weight, model.matrix, model.gain
        for weight, gradient in zip(moved, parts, strict=True):
            weight.grad = gradient.clone()
        adam.step(rate)
        forgot.append(all(weight.grad is None or not weight.grad.any() for weight in moved))
    weights = {f"{name} afterwards": weight.detach().clone() for name, weight in model.named_parameters()}
    return weights | {"the gradients are cleared": forgot}


@AdamW.cases
def _(draw):
    weights = draw.normal(3, 2), draw.normal(2, 4), draw.normal(5), draw.normal(2, 2)

    def drawn(count):
        return [[draw.normal(*weight.shape) for weight in weights[:3]] for _ in range(count)]

    yield Case("the first step has the size of the rate for every gradient", (*weights, drawn(1), [0.1], 0.0))
    yield Case("later steps use both running means", (*weights, drawn(4), [0.1, 0.1, 0.05, 0.2], 0.0))
    yield Case(
        "the decay applies only to matrices, and is independent of the step", (*weights, drawn(3), [0.1, 0.2, 0.1], 0.3)
    )
    weights = draw.normal(draw.whole(33, 40), 2), draw.normal(2, 4), draw.normal(5), draw.normal(2, 2)
    yield Case(LARGE, (*weights, drawn(36), [0.1] * 36, 0.3))


AdamW.mistake("the first mean is not corrected: divide it by 1 - b1^t", "m / (1 - b1**t)", "m")
AdamW.mistake("the second mean is not corrected: divide it by 1 - b2^t", "v / (1 - b2**t)", "v")
AdamW.mistake("neither mean is corrected for its start at zero", "(m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt()",
              "m / (v.sqrt()")  # fmt: skip
AdamW.mistake("the corrections start at t = 0: count the update first", "self.updates += 1\n        (b1, b2), t = self.betas, self.updates",
              "(b1, b2), t = self.betas, self.updates + 2\n        self.updates += 1")  # fmt: skip
AdamW.mistake("gains decay, but parameters with one axis must not", "if weight.ndim > 1 and \"embedding\" not in name:",
              "if \"embedding\" not in name:")  # fmt: skip
AdamW.mistake(
    "the embedding decays, but its rows are rarely updated: exclude it",
    'weight.ndim > 1 and "embedding" not in name',
    "weight.ndim > 1",
)
AdamW.mistake("everything decays: exclude gains and the embedding", 'if weight.ndim > 1 and "embedding" not in name:',
              "if True:")  # fmt: skip
_DECAY = """                if weight.ndim > 1 and "embedding" not in name:
                    weight.sub_(rate * self.decay * weight)
"""
_ADAM = "                weight.sub_(rate * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + self.eps))\n"
AdamW.mistake(
    "the decay comes after the step, so it shrinks the step, too: decay first", _DECAY + _ADAM, _ADAM + _DECAY
)
AdamW.mistake("`m = m + ...` only names new tensors, and the means stay at zero: write `m += ...` or store them again",
              "m += (1 - b1) * (g - m)", "m = m + (1 - b1) * (g - m)",
              "v += (1 - b2) * (g * g - v)", "v = v + (1 - b2) * (g * g - v)")  # fmt: skip
AdamW.mistake("the update is counted after the step, so the first corrections divide by 1 - b^0 = 0: count it first",
              "        self.updates += 1\n        (b1, b2), t = self.betas, self.updates\n",
              "        (b1, b2), t = self.betas, self.updates\n        self.updates += 1\n")  # fmt: skip
AdamW.mistake("the updates are counted once for each weight, so later weights get different corrections: count each call of `step` once",
              "        self.updates += 1\n        (b1, b2), t = self.betas, self.updates\n        for name, weight, m, v in self.state:\n"
              "            if (g := weight.grad) is not None:\n",
              "        b1, b2 = self.betas\n        for name, weight, m, v in self.state:\n"
              "            if (g := weight.grad) is not None:\n                self.updates += 1\n                t = self.updates\n")  # fmt: skip
AdamW.mistake("nothing decays", 'if weight.ndim > 1 and "embedding" not in name:', "if False:")
AdamW.mistake("the decay is not multiplied by the rate", "rate * self.decay * weight", "self.decay * weight")
AdamW.mistake("the decay is added to the gradient, and so to both means: that is Adam with L2, not AdamW",
              "m += (1 - b1) * (g - m)",
              "g = g + self.decay * weight * (weight.ndim > 1 and \"embedding\" not in name)\n                m += (1 - b1) * (g - m)",
              "weight.sub_(rate * self.decay * weight)", "pass")  # fmt: skip
AdamW.mistake(
    "eps is added under the square root; add it after the root",
    "((v / (1 - b2**t)).sqrt() + self.eps)",
    "(v / (1 - b2**t) + self.eps).sqrt()",
)
AdamW.mistake("the second mean averages absolute gradients; average their squares", "(g * g - v)", "(g.abs() - v)")
AdamW.mistake(
    "the square root of the second mean is missing",
    "((v / (1 - b2**t)).sqrt() + self.eps)",
    "(v / (1 - b2**t) + self.eps)",
)
AdamW.mistake("the two betas are swapped", "(b1, b2), t", "(b2, b1), t")
AdamW.mistake("the step goes uphill", "weight.sub_(rate * (m /", "weight.add_(rate * (m /")
AdamW.mistake("the means are overwritten: each is beta times the old mean plus 1 - beta times the new value",
              "m += (1 - b1) * (g - m)", "m.copy_(g)")  # fmt: skip
AdamW.mistake(
    "the gradients are not cleared, so the next ones are added to them", "                weight.grad = None\n", ""
)
AdamW.variant(
    """
    class AdamW:
        def __init__(self, model, betas=(0.9, 0.95), eps=1e-8, decay=0.1):
            self.model, self.betas, self.eps, self.decay = model, betas, eps, decay
            self.first, self.second, self.t = {}, {}, 0

        def step(self, rate):
            self.t += 1
            b1, b2 = self.betas
            for name, weight in self.model.named_parameters():
                if weight.grad is None:
                    continue
                g = weight.grad
                self.first[name] = b1 * self.first.get(name, 0) + (1 - b1) * g
                self.second[name] = b2 * self.second.get(name, 0) + (1 - b2) * g**2
                mean, square = self.first[name] / (1 - b1**self.t), self.second[name] / (1 - b2**self.t)
                decay = self.decay if weight.dim() >= 2 and "embedding" not in name else 0.0
                weight.data = weight.data * (1 - rate * decay) - rate * mean / (square**0.5 + self.eps)
                weight.grad = None
    """
)


@part(6, points=2, excused=_STEPS)
def clip(code, gradients, most):
    """Clipping limits the norm of all gradients together."""
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros_like(g)) for g in gradients] + [torch.zeros(2)])
    for weight, gradient in zip(model, gradients, strict=False):
        weight.grad = gradient.clone()
    length = code.clip(model, most)
    clipped = [weight.grad for weight in list(model)[: len(gradients)]]
    return {"the norm that it returns": length, "the gradients afterwards": clipped}


@clip.cases
def _(draw):
    yield Case(
        "gradients of 3 and 4 have the norm 5",
        ([torch.tensor([3.0]).double(), torch.tensor([[4.0]]).double()], 1.0),
        tolerance=1e-5,
    )
    gradients = [draw.normal(3, 4), draw.normal(5), 0.01 * draw.normal(2, 2)]
    yield Case("long gradients are scaled by one factor", (gradients, 0.5), tolerance=1e-5)
    yield Case("short gradients do not change", ([g / 100 for g in gradients], 1.0), tolerance=1e-5)
    yield Case(LARGE, ([draw.normal(3) for _ in range(draw.whole(33, 40))], 0.5), tolerance=1e-5)


clip.mistake("each gradient is scaled by itself; all of them share one norm and one factor",
             "g *= min(1.0, most / (length + 1e-6))", "g *= min(1.0, most / (g.norm().item() + 1e-6))")  # fmt: skip
clip.mistake(
    "short gradients are made longer: the factor must be at most 1",
    "min(1.0, most / (length + 1e-6))",
    "most / (length + 1e-6)",
)
clip.mistake("you add up the norms; add up the squares and take the square root", "torch.stack([g.norm() for g in gradients]).norm().item()",
             "torch.stack([g.norm() for g in gradients]).sum().item()")  # fmt: skip
clip.mistake(
    "each entry is clipped by itself, which changes the direction",
    "g *= min(1.0, most / (length + 1e-6))",
    "g.clamp_(-most, most)",
)
clip.mistake(
    "you return the norm after clipping; return the one before",
    "    return length",
    "    return min(length, most)",
)
clip.mistake("nothing is clipped", "g *= min(1.0, most / (length + 1e-6))", "g *= 1.0")
clip.variant(
    """
    def clip(model, most):
        return nn.utils.clip_grad_norm_(model.parameters(), most).item()
    """
)


@part(6, points=2, excused=_STEPS)
def rate_at(code, updates, peak, warmup):
    """The learning rate has a linear warm-up, then a cosine decay."""
    return [float(code.rate_at(update, updates, peak, warmup)) for update in range(1, updates + 1)]


@rate_at.cases
def _(draw):
    yield Case("up to the peak, then down to a twentieth", (20, 1.0, 4))
    yield Case("any plan", (draw.whole(30, 50), 0.003, draw.whole(3, 6)))
    yield Case("the warm-up is at most a fifth of a short run", (10, 2.0, 50))
    yield Case("a fifth of eight updates is one update", (8, 2.0, 50))
    yield Case("no warm-up", (7, 1.0, 0))


rate_at.mistake(
    "the first update has a rate of 0: count updates from 1", "update / max(1, warmup)", "(update - 1) / max(1, warmup)"
)
rate_at.mistake(
    "the decay counts from update 0; start it after the warm-up",
    "(update - warmup) / (updates - warmup)",
    "update / updates",
)
rate_at.mistake("round a fifth of the updates down: updates // 5", "updates // 5", "updates / 5")
rate_at.mistake(
    "the warm-up is never shortened: it may be at most a fifth of all updates",
    "    warmup = min(warmup, updates // 5)\n",
    "",
)
rate_at.mistake("the cosine already falls during the warm-up: start it at the end of the warm-up", "max(0.0, (update - warmup) / (updates - warmup))",
                "(update - warmup) / (updates - warmup)")  # fmt: skip
rate_at.mistake("the cosine falls to 0 and is cut off at a twentieth; let it fall from 1 to a twentieth",
                "(0.525 + 0.475 * math.cos(math.pi * fall))", "max(0.05, 0.5 + 0.5 * math.cos(math.pi * fall))")  # fmt: skip
rate_at.mistake(
    "the run ends within its warm-up: shorten the warm-up to a fifth of the updates first",
    """
    def rate_at(update, updates, peak, warmup):
        if update <= warmup:
            return peak * update / warmup
        return peak * (0.525 + 0.475 * math.cos(math.pi * (update - warmup) / (updates - warmup)))
    """,
)
rate_at.mistake("the rate falls to 0; it must end at a twentieth of the peak", "0.525 + 0.475", "0.5 + 0.5")
rate_at.mistake(
    "you use a whole cosine, so the rate rises again; use half of one", "math.pi * fall", "2 * math.pi * fall"
)
rate_at.mistake("the warm-up is missing", "min(1, update / max(1, warmup))", "1")
rate_at.mistake("the warm-up is not shortened in a short run: it may be at most a fifth of it", "warmup = min(warmup, updates // 5)",
                "warmup = min(warmup, updates - 1)")  # fmt: skip
rate_at.mistake(
    "the rate falls linearly; use half a cosine",
    "(0.525 + 0.475 * math.cos(math.pi * fall))",
    "(1 - 0.95 * fall)",
)
rate_at.mistake("the rate never falls", "math.cos(math.pi * fall)", "1")
rate_at.variant(
    """
    def rate_at(update, updates, peak, warmup):
        warmup = min(warmup, updates // 5)
        if update < warmup:
            return peak * update / warmup
        done = (update - warmup) / (updates - warmup)
        return peak * (0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2)
    """
)


@part(6, points=2, excused=_STEPS)
def train(code, start, data, updates, accumulate, most):
    """The loop sums gradients over micro-batches, clips them, and updates the weights at the right rate."""
    model, asked = torch.nn.Linear(*reversed(start.shape), bias=False, dtype=start.dtype), []
    model.weight.data.copy_(start)

    def loss_at(n):
        asked.append(n)
        return (model(data[n % len(data)]) - 1).square().mean()

    rates, losses, at, own = [], [], [], code.rate_at

    def rate_at(update, *plan, **named):
        rates.append(update)
        return own(update, *plan, **named) if 1 <= update <= updates else 0.0

    code["training"].rate_at = rate_at
    try:
        for loss in code.train(model, loss_at, updates, 0.05, 2, accumulate, most):
            losses.append(loss)
            at.append(len(asked))
    finally:
        code["training"].rate_at = own
    hang = any(isinstance(loss, torch.Tensor) and loss.requires_grad for loss in losses)
    beyond = [update for update in rates if not 1 <= update <= updates]
    return {f"rates requested outside the updates 1 to {updates}": beyond, "the requested micro-batches": asked, "the micro-batches after which a loss came": at, "the losses": [float(loss) for loss in losses],
            "the weights afterwards": model.weight.detach().clone(), "losses that hold on to their graph": hang}  # fmt: skip


@train.cases
def _(draw):
    start, data = draw.normal(2, 3), draw.normal(9, 4, 3)
    yield Case("one update", (start, data, 1, 1, 1.0), tolerance=1e-6)
    yield Case("several updates, each with its rate", (start, data, 8, 1, 1.0), tolerance=1e-6)
    yield Case("micro-batches are averaged in one update", (start, data, 6, 3, 0.3), tolerance=1e-6)
    width = draw.whole(33, 40)
    yield Case(LARGE, (draw.normal(2, width), draw.normal(9, 4, width), 4, 2, 1.0), tolerance=1e-6)


train.mistake("all losses come after the last update, so nobody can watch: `yield` each one in the loop instead of collecting "
              "them in a list", "    adam = AdamW(model)\n", "    adam, losses = AdamW(model), []\n",
              "        yield total", "        losses.append(total)\n    return losses")  # fmt: skip
train.mistake("the gradients are cleared before each micro-batch, so only the last one counts: `step` has cleared them already",
              "            loss.backward()\n", "            model.zero_grad()\n            loss.backward()\n")  # fmt: skip
train.mistake("the losses of micro-batches are added, not averaged", "loss_at(n) / accumulate", "loss_at(n)")
train.mistake("the schedule counts micro-batches; count updates", "rate_at(update, updates, peak, warmup)",
              "rate_at(min(updates, update * accumulate), updates, peak, warmup)")  # fmt: skip
train.mistake("each micro-batch makes an update; collect their gradients first",
              "            total += loss.item()\n        clip(model, most)\n        adam.step(rate_at(update, updates, peak, warmup))\n",
              "            total += loss.item()\n            clip(model, most)\n"
              "            adam.step(rate_at(update, updates, peak, warmup))\n")  # fmt: skip
train.mistake(
    "the gradients are not clipped, or only after the step, which is too late", "        clip(model, most)\n", ""
)
train.mistake("the gradients are clipped after the step, which has cleared them: clip first",
              "        clip(model, most)\n        adam.step(rate_at(update, updates, peak, warmup))",
              "        adam.step(rate_at(update, updates, peak, warmup))\n        clip(model, most)")  # fmt: skip
train.mistake("you return only the last micro-batch's share of the loss; return the sum of all shares",
              "yield total", "yield loss.item()")  # fmt: skip
train.mistake("the first micro-batches are left out: the first update uses 0 to accumulate - 1",
              "range((update - 1) * accumulate, update * accumulate)",
              "range(update * accumulate, (update + 1) * accumulate)")  # fmt: skip
train.mistake("the losses are tensors that hold on to their graph: yield numbers, `loss.item()`", "total += loss.item()",
              "total += loss")  # fmt: skip
train.mistake(
    "the rate is always the peak: ask `rate_at` for the rate of each update",
    "rate_at(update, updates, peak, warmup)",
    "peak",
)
train.mistake("the micro-batches of an update are all the same: n counts micro-batches, 0, 1, 2, ..., and not updates",
              "loss_at(n) / accumulate", "loss_at(update - 1) / accumulate")  # fmt: skip
train.mistake("every update sees the same micro-batch", "loss = loss_at(n)", "loss = loss_at(0)")
train.mistake(
    "the rate is that of the next update: the first one has rate_at(1, ...)",
    "rate_at(update, updates, peak, warmup)",
    "rate_at(update + 1, updates, peak, warmup)",
)
train.mistake(
    "the rate is that of the update before: the first one has rate_at(1, ...)",
    "rate_at(update, updates, peak, warmup)",
    "rate_at(update - 1, updates, peak, warmup)",
)
train.mistake(
    "you return the last micro-batch's loss; return the mean of the update",
    "total += loss.item()",
    "total = loss.item() * accumulate",
)
train.mistake(
    "each update creates a new AdamW, whose means start again: create it once",
    "        total = 0.0",
    "        total, adam = 0.0, AdamW(model)",
)
train.variant(
    """
    def train(model, loss_at, updates, peak=3e-3, warmup=50, accumulate=1, most=1.0):
        optimizer, n = AdamW(model), 0
        for at in range(updates):
            losses = []
            while len(losses) < accumulate:
                losses.append(loss_at(n))
                (losses[-1] / accumulate).backward()
                n = n + 1
            clip(model, most)
            optimizer.step(rate_at(at + 1, updates, peak, warmup))
            yield sum(loss.item() for loss in losses) / accumulate
    """
)


@part(6, points=1, excused=_STEPS)
def bits_per_byte(code, table, ids, context, size):
    """The bits per byte of a text are computed in windows."""

    class Model(torch.nn.Module):
        def forward(self, ids, caches=None):
            return table[ids] + 0.1 * ids.cumsum(1)[..., None] * torch.arange(table.shape[1], dtype=table.dtype)

    return code.bits_per_byte(Model(), ids, context, size)


@bits_per_byte.cases
def _(draw):
    table = draw.normal(5, 5)
    yield Case("one window", (table, draw.wholes(0, 4, 5), 4, 9))
    yield Case("several windows, the last one shorter", (table, draw.wholes(0, 4, 18), 5, 31))
    yield Case("the last window scores a single token", (table, draw.wholes(0, 4, 17), 5, 29))
    yield Case("the whole text fits into one window", (table, draw.wholes(0, 4, 7), 50, 12))
    yield Case(LARGE, (table, draw.wholes(0, 4, draw.whole(80, 120)), 35, 90))


bits_per_byte.mistake("the result is in nats: divide by ln 2", " / math.log(2)", "")
bits_per_byte.mistake(
    "the result is bits per token; divide by the size in bytes", "math.log(2) / size", "math.log(2) / (len(ids) - 1)"
)
bits_per_byte.mistake(
    "the mean of a window is added as if it were its sum: multiply it by the number of its tokens",
    " * (window.shape[1] - 1)",
    "",
)
bits_per_byte.mistake(
    "every window counts as a full one, but the last is shorter", "* (window.shape[1] - 1)", "* context"
)
bits_per_byte.mistake("each window's first token is never scored: start the next window at the last target",
                      "start : start + context + 1]", "start : start + context]")  # fmt: skip
bits_per_byte.mistake(
    "the last, shorter window is left out",
    "range(0, len(ids) - 1, context)",
    "range(0, max(1, len(ids) - context), context)",
)
bits_per_byte.mistake("the windows overlap, so targets are scored twice: start each window `context` ids after the last one",
                      "range(0, len(ids) - 1, context)", "range(0, len(ids) - 1, max(1, context // 2))")  # fmt: skip
bits_per_byte.mistake("the mean over the windows is divided by the size; add up all bits, then divide once",
                      "/ size", "/ size / math.ceil((len(ids) - 1) / context)")  # fmt: skip
bits_per_byte.mistake("the targets are the inputs: shift them by one", "window[:, 1:])", "window[:, :-1])")
bits_per_byte.variant(
    """
    @torch.no_grad()
    def bits_per_byte(model, ids, context, size):
        bits = []
        for at in range(0, len(ids) - 1, context):
            inputs, targets = ids[at : at + context], ids[at + 1 : at + context + 1]
            logs = model(inputs[None, : len(targets)])[0].log_softmax(-1)
            bits.append(-logs[torch.arange(len(targets)), targets].sum() / math.log(2))
        return float(sum(bits)) / size
    """
)


@part(6, points=1, excused=_STEPS, seconds=60.0)
def train_on_a_GPU(code, start, ids, updates):
    """Training on another device, such as a GPU, leads to the same weights."""

    def weights(device):
        model = torch.nn.Embedding.from_pretrained(start.clone(), freeze=False).to(device)
        text = ids.to(device)

        def loss_at(n):
            inputs, targets = code.windows(text, 4, 3, torch.Generator().manual_seed(n))
            return code.loss_of(model(inputs), targets, 2)

        losses = list(code.train(model, loss_at, updates, 0.1, 2))
        bits = code.bits_per_byte(lambda some: model(some), text, 5, 30)
        return losses, model.weight.detach().cpu(), bits

    return on_simulated_device(weights)


@train_on_a_GPU.cases
def _(draw):
    yield Case("a text on a GPU", (draw.normal(5, 5), draw.wholes(0, 4, 21), 4), tolerance=1e-6)
    yield Case(LARGE, (draw.normal(5, 5), draw.wholes(0, 4, draw.whole(33, 60)), 2), tolerance=1e-6)


train_on_a_GPU.mistake(
    "`windows` creates its positions on the GPU and its random starts on the CPU: create both on the CPU, where an index may be",
    "torch.arange(context + 1)]",
    "torch.arange(context + 1, device=ids.device)]",
)  # fmt: skip
train_on_a_GPU.mistake(
    "the means of AdamW are on the CPU: create each like its weight, `torch.zeros_like(p)`",
    "torch.zeros_like(p), torch.zeros_like(p))",
    "torch.zeros(p.shape, dtype=p.dtype), torch.zeros(p.shape, dtype=p.dtype))",
)


@part(6, points=1, excused=_STEPS)
def renamed(code, tensors, pairs):
    """The tensors are the same under their new names."""
    return code.renamed(tensors, pairs)


@renamed.cases
def _(draw):
    one, two = draw.normal(2, 3), draw.normal(4)
    tensors = {"blocks.0.gate.weight": one, "norm.weight": two}
    yield Case("part of a name is replaced", (tensors, [("gate.", "up.")]))
    yield Case("several parts of one name", (tensors, [("blocks.", "layers."), ("gate.", "up."), ("norm.", "ln.")]))
    yield Case("no pairs", (tensors, []))
    many = {f"blocks.{n}.gate.weight": draw.normal(2) for n in range(draw.whole(33, 60))}
    yield Case(LARGE, (many, [(f"blocks.{n}.", f"layers.{n}.") for n in range(len(many))]))


renamed.mistake(
    "only the first of several pairs is applied: apply the others, too",
    "name = name.replace(old, new)\n",
    "if old in name:\n                name = name.replace(old, new)\n                break\n",
)
renamed.mistake(
    "the names are replaced in the wrong direction: `old` becomes `new`",
    "name.replace(old, new)",
    "name.replace(new, old)",
)
renamed.mistake(
    "a name that no pair changes is lost: leave it unchanged",
    "        made[name] = tensor",
    "        if any(new in name for _, new in pairs):\n            made[name] = tensor",
)
renamed.variant(
    """
    def renamed(tensors, pairs):
        def other(name):
            for old, new in pairs:
                name = new.join(name.split(old))
            return name

        return {other(name): tensor for name, tensor in tensors.items()}
    """
)

_SIZES = {"vocab": 7, "d_model": 8, "layers": 2, "heads": 4, "kv_heads": 2, "d_ff": 12, "base": 500.0}
_PARTS = {
    "self_attn.q_proj": (8, 8), "self_attn.k_proj": (4, 8), "self_attn.v_proj": (4, 8), "self_attn.o_proj": (8, 8),
    "mlp.gate_proj": (12, 8), "mlp.up_proj": (12, 8), "mlp.down_proj": (8, 12),
    "input_layernorm": (8,), "post_attention_layernorm": (8,),
}  # fmt: skip
_CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "eos_token_id": 0, "vocab_size": 7, "hidden_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 12, "rope_theta": 500.0,
    "max_position_embeddings": 32,
}  # fmt: skip


def _published(draw):
    shapes = {"model.embed_tokens.weight": (7, 8), "model.norm.weight": (8,)}
    shapes |= {f"model.layers.{n}.{name}.weight": shape for n in range(2) for name, shape in _PARTS.items()}
    return {name: draw.normal(*shape).float() for name, shape in shapes.items()}


@part(6, points=2, excused=_STEPS)
def save(code, sizes, seed, context):
    """A model is saved as two files in the usual published format."""
    import json
    import tempfile
    from pathlib import Path

    from safetensors.torch import load_file

    model = code["model"]
    torch.manual_seed(seed)
    mine = model.Transformer(model.Config(**sizes))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "a" / "new folder"
        code.save(mine, folder, context)
        files = {file.name for file in folder.iterdir()}
        fields = json.loads((folder / "config.json").read_text("utf-8")) if "config.json" in files else {}
        tensors = load_file(folder / "model.safetensors") if "model.safetensors" in files else {}
    there = {name: value for name, value in mine.state_dict().items()}
    return {"the files": sorted(files & {"config.json", "model.safetensors"}), "config.json": fields,
            "the names of the tensors": sorted(tensors), "the number of elements": sum(x.numel() for x in tensors.values()),
            "the weights": sum(x.double().sum() for x in tensors.values()) - sum(x.double().sum() for x in there.values())}  # fmt: skip


@save.cases
def _(draw):
    yield Case("a model of two blocks", (_SIZES, draw.whole(1, 99), 32), tolerance=1e-4)
    yield Case("another context", (_SIZES | {"layers": 1}, draw.whole(1, 99), 48), tolerance=1e-4)


save.mistake(
    "the tensors have your names; use LLaMA's in the file",
    "save_file(renamed(weights, NAMES), folder",
    "save_file(weights, folder",
)
save.mistake("config.json has your names for its fields; use LLaMA's, from `FIELDS`", "{FIELDS[mine]: value for",
             "{mine: value for")  # fmt: skip
save.mistake(
    "config.json lacks the fields that all models here share: add `ALIKE`",
    "told = ALIKE | fields",
    "told = fields",
)
save.mistake("the context is missing: `max_position_embeddings`", ' | {"max_position_embeddings": context}', "")
save.mistake("the sizes of the model are missing in config.json", "told = ALIKE | fields |", "told = ALIKE |")
save.mistake(
    "config.json is not written",
    '    (folder / "config.json").write_text(json.dumps(told, indent=2), "utf-8")\n',
    "",
)
save.variant(
    """
    def save(model, folder, context):
        import os

        os.makedirs(folder, exist_ok=True)
        config = dict(ALIKE, max_position_embeddings=context)
        for mine, value in asdict(model.config).items():
            config[FIELDS[mine]] = value
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(config, file)
        weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        save_file(renamed(weights, NAMES), os.path.join(folder, "model.safetensors"))
    """
)


@part(6, points=1, excused=_STEPS)
def load(code, fields, tensors, ids):
    """Loading the two files restores the model."""
    import json
    import tempfile
    from pathlib import Path

    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(fields), "utf-8")
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, Path(folder) / "model.safetensors")
        model = code.load(folder)
        with torch.no_grad():
            return {"its base": model.config.base, "its logits": model(ids)}


@load.cases
def _(draw):
    yield Case("a model of two blocks", (_CONFIG, _published(draw), draw.wholes(0, 6, 2, 5)), tolerance=1e-4)
    ids = draw.wholes(0, 6, 1, draw.whole(33, 60))
    yield Case(LARGE, (_CONFIG, _published(draw), ids), tolerance=1e-4)


load.mistake(
    "the model keeps its random weights: load the tensors of the file",
    '    model.load_state_dict(renamed(load_file(Path(folder) / "model.safetensors"), back))\n',
    "",
)
load.mistake("the file's names are not converted to yours: swap each pair of `NAMES`",
             "[(theirs, mine) for mine, theirs in NAMES]", "NAMES")  # fmt: skip
load.mistake(
    "the model has the sizes of the file but not its other fields: `base` is missing",
    "for mine, theirs in FIELDS.items()}))",
    'for mine, theirs in FIELDS.items() if mine != "base"}))',
)
load.variant(
    """
    def load(folder):
        with open(Path(folder) / "config.json") as file:
            told = json.load(file)
        model = Transformer(Config(**{name: told[FIELDS[name]] for name in FIELDS}))
        tensors = renamed(load_file(Path(folder, "model.safetensors")), [pair[::-1] for pair in NAMES])
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(tensors[name])
        return model
    """
)
