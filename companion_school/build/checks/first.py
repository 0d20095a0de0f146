"""Stage 20, the first model that learns: an embedding, sinusoidal positions, attention, and gradient descent."""

import torch

from companion_school.build.checks import LAWS
from companion_school.build.isolated_modules import run_with
from companion_school.build.parts import part
from companion_school.build.simulated_device import on_simulated_device
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case

_USUAL = dict.fromkeys(LAWS, "only ordinary inputs, because a small model has ordinary weights")


def _weights(draw, vocab, d_model):
    names = ("attention.query", "attention.key", "attention.value", "attention.output")
    weights = {f"{name}.weight": draw.normal(d_model, d_model).float() for name in names}
    ends = {name: draw.normal(vocab, d_model).float() for name in ("embedding.weight", "head.weight")}
    return ends | weights


@part(20, points=3, excused=_USUAL)
def FirstModel(code, ids, heads, weights):
    """The model adds waves to the embedding, applies attention, and computes scores with a head."""
    vocab, d_model = weights["embedding.weight"].shape
    return run_with(lambda: code.FirstModel(vocab, d_model, heads), weights, ids)


@FirstModel.cases
def _(draw):
    yield Case("one symbol", (torch.tensor([[3]]), 1, _weights(draw, 5, 6)), tolerance=1e-4)
    yield Case("a word", (draw.wholes(0, 4, 1, 7), 1, _weights(draw, 5, 6)), tolerance=1e-4)
    yield Case("several words, several heads", (draw.wholes(0, 6, 3, 5), 2, _weights(draw, 7, 8)), tolerance=1e-4)
    yield Case(LARGE, (draw.wholes(0, 8, 2, draw.whole(33, 60)), 2, _weights(draw, 9, 8)), tolerance=1e-4)


_SUM = "self.embedding(ids) + waves(positions, self.embedding.embedding_dim)"
FirstModel.mistake("the positions are missing: without the waves the model cannot tell where a symbol is", _SUM,
                   "self.embedding(ids)")  # fmt: skip
FirstModel.mistake("a mask hides later symbols; here each symbol may look at all", f"self.attention({_SUM})",
                   f"self.attention({_SUM}, mask=torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril())")  # fmt: skip
FirstModel.mistake("the input is added to the output of attention; there is no residual connection here yet", f"self.attention({_SUM})",
                   f"(lambda x: x + self.attention(x))({_SUM})")  # fmt: skip
FirstModel.mistake("these are probabilities; return scores, because the loss applies the softmax", "return self.head(",
                   "return torch.nn.functional.softmax(self.head(", "self.embedding.embedding_dim)))",
                   "self.embedding.embedding_dim))), -1)")  # fmt: skip
FirstModel.mistake("the positions begin at 1", "positions = torch.arange(ids.shape[1], device=ids.device)",
                   "positions = 1 + torch.arange(ids.shape[1], device=ids.device)")  # fmt: skip
FirstModel.mistake(
    "the head has a bias", "self.head = nn.Linear(d_model, vocab, bias=False)", "self.head = nn.Linear(d_model, vocab)"
)
FirstModel.mistake(
    "there is always one head, whatever `heads` is", "Attention(d_model, heads, heads)", "Attention(d_model, 1, 1)"
)
FirstModel.mistake("attention has a single key head; give it as many key heads as heads: `Attention(d_model, heads, heads)`",
                   "Attention(d_model, heads, heads)", "Attention(d_model, heads, 1)")  # fmt: skip
FirstModel.mistake("the waves are added after attention; add them to the embedding, before it", f"self.attention({_SUM})",
                   "self.attention(self.embedding(ids)) + waves(positions, self.embedding.embedding_dim)")  # fmt: skip
FirstModel.mistake("the embedding is multiplied by the waves; add them", "self.embedding(ids) + waves(",
                   "self.embedding(ids) * waves(")  # fmt: skip
FirstModel.mistake("only the last symbol gets scores; every symbol needs them", f"self.attention({_SUM})",
                   f"self.attention({_SUM})[:, -1]")  # fmt: skip
FirstModel.variant(
    """
    class FirstModel(nn.Module):
        def __init__(self, vocab, d_model, heads=1):
            super().__init__()
            self.head = nn.Linear(d_model, vocab, False)
            self.attention = Attention(d_model, heads, kv_heads=heads)
            self.embedding = nn.Embedding(vocab, d_model)

        def forward(self, ids):
            x = self.embedding.weight[ids]
            x = x + waves(torch.arange(x.shape[1]).to(ids.device), x.shape[2])
            return self.attention(x) @ self.head.weight.T
    """
)


@part(20, points=2, excused=_USUAL, forbidden=("optim",))
def descend(code, start, idle, data, updates, rate):
    """Each update of gradient descent moves every weight downhill and clears its gradient."""
    model = torch.nn.ParameterList([torch.nn.Parameter(start.clone()), torch.nn.Parameter(idle.clone())])
    asked = []

    def loss_at(n):
        asked.append(n)
        return ((data[n % len(data)] @ model[0] - 1) ** 2).mean()

    losses, at = [], []
    for loss in code.descend(model, loss_at, updates, rate):
        losses.append(loss)
        at.append(len(asked))
    left = [weight.grad is not None and bool(weight.grad.any()) for weight in model]
    hang = any(isinstance(loss, torch.Tensor) and loss.requires_grad for loss in losses)
    return {"the requested updates": asked, "the updates after which a loss came": at, "the losses": [float(loss) for loss in losses], "losses that hold on to their graph": hang,
            "the weights": [weight.detach().clone() for weight in model], "remaining gradients": left}  # fmt: skip


@descend.cases
def _(draw):
    start, idle, data = draw.normal(3, 2), draw.normal(4), draw.normal(6, 5, 3)
    yield Case("one update", (start, idle, data, 1, 0.1))
    yield Case("several updates, each with its own loss", (start, idle, data, 4, 0.05))
    yield Case("no updates", (start, idle, data, 0, 0.1))
    wide = draw.whole(33, 60)
    yield Case(LARGE, (draw.normal(wide, 2), draw.normal(4), draw.normal(3, 5, wide), 3, 0.01))


_STEP = "weight -= rate * weight.grad"
descend.mistake("it goes uphill: subtract the gradient", _STEP, "weight += rate * weight.grad")
descend.mistake(
    "the gradients are not cleared, so each is added to the earlier ones",
    "                    weight.grad = None\n",
    "",
)
descend.mistake("the rate is not used", _STEP, "weight -= weight.grad")
descend.mistake("every update uses the first loss: call loss_at(n)", "loss = loss_at(n)", "loss = loss_at(0)")
descend.mistake("the updates are counted from 1; count from 0", "loss = loss_at(n)", "loss = loss_at(n + 1)")
descend.mistake("the losses are tensors that hold on to their graph: yield numbers, `loss.item()`",
                "yield loss.item()", "yield loss")  # fmt: skip
descend.mistake("no weight ever changes: call `loss.backward()`, use the gradients, and clear them only after that",
                "        loss.backward()\n", "")  # fmt: skip
descend.mistake("`weight = weight - ...` only names a new tensor, and the model still has the old one: write `weight -= ...`",
                "weight -= rate * weight.grad", "weight = weight - rate * weight.grad")  # fmt: skip
descend.mistake("autograd records the step: change the weights under `torch.no_grad()`",
                "with torch.no_grad():", "if True:")  # fmt: skip
descend.mistake("all losses come after the last update, so nobody can watch: `yield` each loss in the loop instead of collecting "
                "them in a list", "    for n in range(updates):\n", "    losses = []\n    for n in range(updates):\n",
                "        yield loss.item()", "        losses.append(loss.item())\n    return losses")  # fmt: skip
descend.mistake("each loss is computed a second time, after the update: yield the one that you called `backward` on",
                "yield loss.item()", "yield loss_at(n).item()")  # fmt: skip
descend.mistake("one update too many", "for n in range(updates):", "for n in range(updates + 1):")
descend.mistake("one update too few", "for n in range(updates):", "for n in range(updates - 1):")
descend.mistake("the step has the size of the rate for every gradient: multiply the gradient by the rate", _STEP,
                "weight -= rate * weight.grad.sign()")  # fmt: skip
descend.variant(
    """
    def descend(model, loss_at, updates, rate):
        n = 0
        while n < updates:
            loss = loss_at(n)
            weights = [weight for weight in model.parameters()]
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
            for weight, gradient in zip(weights, gradients):
                if gradient is not None:
                    weight.data = weight.data - rate * gradient
            n += 1
            yield float(loss.detach())
    """
)
descend.variant(
    """
    def descend(model, loss_at, updates, rate):
        for n in range(updates):
            model.zero_grad()
            loss = loss_at(n)
            loss.backward()
            for weight in model.parameters():
                if weight.grad is not None:
                    weight.data.add_(weight.grad, alpha=-rate)
            model.zero_grad()
            yield loss.item()
    """
)


@part(20, points=1, excused=_USUAL)
def FirstModel_on_a_GPU(code, ids, seed):
    """The model can be trained on another device, such as a GPU."""

    def trained(device):
        torch.manual_seed(seed)
        model, there = code.FirstModel(7, 8).to(device), ids.to(device)

        def loss_at(n):
            return torch.nn.functional.cross_entropy(model(there).flatten(0, 1), there.flip(1).flatten())

        return list(code.descend(model, loss_at, 3, 0.1))

    return on_simulated_device(trained)


@FirstModel_on_a_GPU.cases
def _(draw):
    yield Case("words on a GPU", (draw.wholes(0, 6, 3, 5), draw.whole(1, 99)), tolerance=1e-4)
    yield Case(LARGE, (draw.wholes(0, 6, 2, draw.whole(33, 60)), draw.whole(1, 99)), tolerance=1e-4)


FirstModel_on_a_GPU.mistake(
    "the positions are created on the CPU: create them where the ids are, `torch.arange(..., device=ids.device)`",
    ", device=ids.device)",
    ")",
)
