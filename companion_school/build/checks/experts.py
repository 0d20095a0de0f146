"""Stage 9, experts: routing, capacity, the balancing loss, and the layer."""

import torch

from companion_school.build.checks import USUAL
from companion_school.build.isolated_modules import default_dtype
from companion_school.build.parts import part
from companion_school.build.simulated_device import on_simulated_device
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case


@part(9, points=2, excused={"tie": "with tied scores, any may win", "one": "a token visits fewer experts than there are",
                            "nan": "a NaN score may win or lose", "edge": "likewise", "other": "one choice",
                            "memory": "a view is allowed", "levels": "weights of exactly one"})  # fmt: skip
def route(code, logits, top_k):
    """Each token is sent to its best experts, weighted by a softmax over the scores of only these experts."""
    weights, chosen = code.route(logits, top_k)
    return weights, chosen


@route.cases
def _(draw):
    yield Case("the best expert has all the weight", (torch.tensor([[1.0, 3.0, 2.0]]).double(), 1))
    yield Case("the weights of two add up to one", (torch.tensor([[1.0, 3.0, 2.0]]).double(), 2))
    tokens, experts = draw.sizes(2, 5, 9)
    yield Case("each token by itself", (draw.normal(tokens, experts), 2), gradients=True)
    yield Case("any number of visits", (draw.normal(tokens, experts), draw.whole(3, 4)), gradients=True)
    yield Case(LARGE, (draw.normal(3, draw.whole(33, 40)), 5))


route.mistake("the gates are not renormalised: take the softmax over only the chosen experts",
              "best.softmax(-1), chosen", "logits.softmax(-1).gather(-1, chosen), chosen")  # fmt: skip
route.mistake("the weights are scores; expected a softmax of them", "best.softmax(-1)", "best")
route.mistake("the softmax runs over the tokens; take it over a token's choices", "best.softmax(-1)", "best.softmax(0)")
route.mistake("the worst experts are chosen", "logits.topk(top_k, dim=-1)", "logits.topk(top_k, dim=-1, largest=False)")
route.mistake(
    "experts choose tokens; here each token must choose experts",
    "logits.topk(top_k, dim=-1)",
    "logits.topk(top_k, dim=0)",
)
route.mistake("every choice has the same weight", "best.softmax(-1)", "torch.full_like(best, 1 / top_k)")
route.variant(
    """
    def route(logits, top_k):
        chosen = logits.argsort(dim=-1, descending=True)[:, :top_k]
        p = logits.softmax(-1).gather(-1, chosen)
        return p / p.sum(-1, keepdim=True), chosen
    """
)


@part(9, points=2, excused=USUAL)
def within(code, chosen, experts, capacity):
    """Visits are accepted in order, as long as the expert has capacity left."""
    return code.within(chosen, experts, capacity)


@within.cases
def _(draw):
    yield Case("the first visits get the slots", (torch.tensor([[0], [0], [0], [1]]), 2, 0.5))
    yield Case("there are slots for all", (torch.tensor([[0], [1], [1], [0]]), 2, 1.0))
    yield Case("the number of slots is rounded up", (torch.tensor([[0], [0], [0], [1], [1]]), 3, 1.0))
    yield Case(
        "both choices of a token come before those of the next token",
        (torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0]]), 2, 0.5),
    )
    for capacity in (0.4, 0.9, 1.3):
        chosen = torch.stack([draw.shuffled(5)[:2] for _ in range(13)])
        yield Case(f"any choices, capacity {capacity}", (chosen, 5, capacity))
    chosen = torch.stack([draw.shuffled(5)[:2] for _ in range(draw.whole(33, 40))])
    yield Case(LARGE, (chosen, 5, 0.9))


within.mistake(
    "the number of slots is rounded down",
    "math.ceil(capacity * len(visits) / experts)",
    "math.floor(capacity * len(visits) / experts)",
)
within.mistake(
    "the capacity counts tokens; count choices, because a token makes several",
    "capacity * len(visits) / experts",
    "capacity * len(chosen) / experts",
)
within.mistake(
    "a choice counts itself among the earlier ones: one slot too few",
    "(visits.cumsum(0) - visits)",
    "visits.cumsum(0)",
)
within.mistake(
    "the last visits get the slots instead of the first",
    "(visits.cumsum(0) - visits)",
    "(visits.flip(0).cumsum(0).flip(0) - visits)",
)
within.mistake("one slot too many", "(before < math.ceil", "(before <= math.ceil")
within.mistake("you give this many slots to all experts together; each expert has this many", "before = (visits.cumsum(0) - visits)[torch.arange(len(visits)), chosen.flatten()]",
               "before = torch.arange(len(visits))")  # fmt: skip
within.mistake(
    "you mark the choices without a slot; mark those that get one",
    "(before < math.ceil(capacity * len(visits) / experts))",
    "(before >= math.ceil(capacity * len(visits) / experts))",
)
within.mistake("the second choices are served after all first ones; serve each token's choices together", "F.one_hot(chosen.flatten(), experts)",
               "F.one_hot(chosen.T.flatten(), experts)", "chosen.flatten()]", "chosen.T.flatten()]", ".view_as(chosen)", ".view_as(chosen.T).T")  # fmt: skip
within.variant(
    """
    def within(chosen, experts, capacity):
        most = math.ceil(capacity * chosen.numel() / experts)
        taken, found = [0] * experts, []
        for expert in chosen.flatten().tolist():
            found.append(taken[expert] < most)
            taken[expert] += 1
        return torch.tensor(found).reshape(chosen.shape)
    """
)


@part(9, points=2, excused=USUAL)
def balance(code, logits, top_k):
    """The balancing loss is that of the Switch Transformer, and is 1 for an even load."""
    return code.balance(logits, top_k)


@balance.cases
def _(draw):
    yield Case("even: 1", (torch.eye(4).double(), 1))
    yield Case("all tokens visit one expert", (torch.tensor([[9.0, 0, 0]] * 5).double(), 1))
    # The shares are computed from counts in float32, so the tolerance is that of float32.
    yield Case("any scores", (draw.normal(9, 5), 2), gradients=True, tolerance=1e-6)
    yield Case("three choices per token", (draw.normal(11, 6), 3), gradients=True, tolerance=1e-6)
    yield Case(LARGE, (draw.normal(draw.whole(33, 40), 6), 2), tolerance=1e-6)


balance.mistake("the factor is missing: the number of experts", "return logits.shape[-1] * (", "return 1 * (")
balance.mistake(
    "the factor must be the number of experts, not top_k", "return logits.shape[-1] * (", "return top_k * ("
)
balance.mistake("the weights of the chosen experts are averaged; take the mean of the whole softmax",
                "(share * logits.softmax(-1).mean(0)).sum()",
                "(share * torch.zeros_like(logits).scatter(-1, route(logits, top_k)[1], route(logits, top_k)[0]).mean(0)).sum()")  # fmt: skip
balance.mistake("only the first choice is counted, but divided by top_k; count all of a token's choices",
                "F.one_hot(route(logits, top_k)[1], logits.shape[-1]).sum(1)", "F.one_hot(logits.argmax(-1), logits.shape[-1])")  # fmt: skip
balance.mistake("the shares add up to top_k; divide by it", ".mean(0) / top_k", ".mean(0)")
balance.mistake(
    "the mean runs over the experts; average each expert's probability over the tokens",
    "logits.softmax(-1).mean(0)",
    "logits.softmax(-1).mean(-1).mean()",
)
balance.mistake("shares are squared; multiply them by the probabilities, through which gradients flow",
                "(share * logits.softmax(-1).mean(0)).sum()", "(share * share).sum() + 0 * logits.sum()")  # fmt: skip
balance.mistake(
    "the probabilities are summed over the tokens, not averaged",
    "logits.softmax(-1).mean(0)",
    "logits.softmax(-1).sum(0)",
)
balance.mistake("the softmax runs over the tokens", "logits.softmax(-1)", "logits.softmax(0)")
balance.mistake(
    "only the first choice is counted; a token makes several",
    "route(logits, top_k)[1], logits",
    "route(logits, top_k)[1][:, :1], logits",
    ".mean(0) / top_k",
    ".mean(0)",
)
balance.variant(
    """
    def balance(logits, top_k):
        tokens, experts = logits.shape
        visits = torch.bincount(logits.topk(top_k).indices.flatten(), minlength=experts)
        mean = logits.softmax(dim=-1).sum(dim=0) / tokens
        return experts * torch.dot(visits.to(mean.dtype) / visits.sum(), mean)
    """
)


@part(9, points=3, excused=USUAL)
def Experts(code, x, router, gate, inner, outer, top_k, capacity):
    """The layer returns a weighted sum of the outputs of each token's experts."""
    layer = code.Experts(x.shape[-1], inner.shape[2], len(gate), top_k, capacity)
    weights = {"router.weight": router, "gate": gate, "inner": inner, "outer": outer}
    return torch.func.functional_call(layer, weights, (x,)), layer.logits


@Experts.cases
def _(draw):
    experts, d_model, d_ff = 4, 6, 5

    def layer():
        return (draw.normal(experts, d_model), draw.normal(experts, d_model, d_ff),
                draw.normal(experts, d_model, d_ff), draw.normal(experts, d_ff, d_model))  # fmt: skip

    yield Case("one token, one expert", (draw.normal(1, 1, d_model), *layer(), 1, None))
    yield Case(
        "tokens of several rows, two experts each", (draw.normal(2, 7, d_model), *layer(), 2, None), gradients=True
    )
    yield Case("an expert without visits", (draw.normal(1, 2, d_model), *layer(), 1, None))
    yield Case("a visit without a slot gives nothing", (draw.normal(2, 7, d_model), *layer(), 1, 0.5), gradients=True)
    yield Case("slots with two choices", (draw.normal(3, 5, d_model), *layer(), 2, 0.8))
    yield Case(LARGE, (draw.normal(1, draw.whole(33, 40), d_model), *layer(), 2, None))


_SUM = "out.index_add(0, token, weights[token, place, None] * ((F.silu(gate) * inner) @ self.outer[expert]))"
Experts.mistake("the router's scores are not stored: save them as `logits` (token, expert), for `balance` and for monitoring the load",
                "self.logits = self.router(tokens)", "logits = self.router(tokens)", "route(self.logits, self.top_k)\n        if", "route(logits, self.top_k)\n        if")  # fmt: skip
Experts.mistake("`logits` is detached, but `balance` trains the router through it", "self.logits = self.router(tokens)",
                "scores = self.router(tokens)\n        self.logits = scores.detach()",
                "route(self.logits, self.top_k)\n        if", "route(scores, self.top_k)\n        if")  # fmt: skip
Experts.mistake(
    "the router has a bias; it must not have one",
    "nn.Linear(d_model, experts, bias=False)",
    "nn.Linear(d_model, experts)",
)
Experts.mistake("the router's scores are detached: it learns nothing", "self.logits = self.router(tokens)",
                "self.logits = self.router(tokens).detach()")  # fmt: skip
Experts.mistake(
    "the choices that fit lose their weights, and the others keep them", "weights * within(", "weights * ~within("
)
Experts.mistake("the experts' outputs are not multiplied by their weights", "weights[token, place, None] * (", "1 * (")
Experts.mistake("the capacity is not used", "if self.capacity is not None:", "if False:")
Experts.mistake("a token without a slot returns its input; its result must be zero",
                "return out.view_as(x)", "return (out + tokens * (weights.sum(-1, True) == 0)).view_as(x)")  # fmt: skip
Experts.mistake("the remaining weights are renormalised; leave them as they are, so that they may sum to less than one",
                "            weights = weights * within(chosen, len(self.gate), self.capacity)",
                "            weights = weights * within(chosen, len(self.gate), self.capacity)\n            weights = weights / weights.sum(-1, True).clamp(min=1e-9)")  # fmt: skip
Experts.mistake("gate and inner are swapped: apply silu to the gate", "F.silu(gate) * inner", "gate * F.silu(inner)")
Experts.mistake("the gate has no silu", "F.silu(gate) * inner", "gate * inner")
Experts.mistake(
    "every choice has the weight of the first one", "weights[token, place, None]", "weights[token, 0 * place, None]"
)
Experts.mistake("outputs overwrite each other; add those of a token", _SUM,
                "out.index_copy(0, token, weights[token, place, None] * ((F.silu(gate) * inner) @ self.outer[expert]))")  # fmt: skip
Experts.mistake(
    "the last expert is never used", "for expert in range(len(self.gate)):", "for expert in range(len(self.gate) - 1):"
)
Experts.mistake("the input is added; the block does that", "return out.view_as(x)", "return out.view_as(x) + x")
Experts.mistake(
    "every token uses every expert",
    "(chosen == expert)",
    "(chosen == chosen)",
    "weights[token, place, None] * (",
    "weights[token, place, None] / len(self.gate) * (",
)
Experts.variant(
    """
    class Experts(nn.Module):
        def __init__(self, d_model, d_ff, experts, top_k=2, capacity=None):
            super().__init__()
            self.top_k, self.capacity = top_k, capacity
            self.router = nn.Linear(d_model, experts, bias=False)
            self.outer = nn.Parameter(torch.zeros(experts, d_ff, d_model))
            self.gate = nn.Parameter(torch.zeros(experts, d_model, d_ff))
            self.inner = nn.Parameter(torch.zeros(experts, d_model, d_ff))

        def forward(self, x):
            flat = x.reshape(-1, x.shape[-1])
            self.logits = self.router(flat)
            weights, chosen = route(self.logits, self.top_k)
            if self.capacity is not None:
                weights = weights.masked_fill(~within(chosen, len(self.gate), self.capacity), 0.0)
            hidden = F.silu(torch.einsum("td,edf->tef", flat, self.gate)) * torch.einsum("td,edf->tef", flat, self.inner)
            every = torch.einsum("tef,efd->ted", hidden, self.outer)
            mine = every.gather(1, chosen[..., None].expand(-1, -1, every.shape[-1]))
            return (weights[..., None] * mine).sum(1).reshape(x.shape)
    """
)


@part(9, points=1, excused=USUAL, seconds=60.0)
def put_experts(code, experts, top_k, capacity, ids):
    """Every block of a decoder has its own experts, with the right initial weights and stored router logits."""
    model = code["model"]
    torch.manual_seed(3)
    with default_dtype(torch.float64):
        own = code.put_experts(model.Transformer(model.Config(300, 64, 2, 4, 2, 48)), experts, top_k, capacity)
        shape = tuple(own(ids).shape)
    large = {name: weight.detach() for name, weight in own.named_parameters() if weight.numel() >= 2000}
    spread = {name: 100 * float(weight.std()) for name, weight in large.items()}
    seen = [tuple(block.feed_forward.logits.shape) for block in own.decoder.blocks]
    visits = [(block.feed_forward.top_k, block.feed_forward.capacity) for block in own.decoder.blocks]
    return {"the weights": sorted((name, tuple(weight.shape)) for name, weight in own.named_parameters()),
            "a hundred times their standard deviations": spread, "the logits' shape": shape,
            "the shapes of the routers' scores": seen, "top_k and capacity": visits}  # fmt: skip


@put_experts.cases
def _(draw):
    yield Case("a mixture in every block", (6, 2, None, draw.wholes(0, 10, 2, 5)), tolerance=0.08)
    experts, batch, tokens = draw.sizes(3, 3, 7)
    ids = draw.wholes(0, 10, batch, tokens)
    yield Case("experts, top_k and capacity as asked for", (experts, 1, draw.whole(9, 16) / 8, ids), tolerance=0.08)
    yield Case(LARGE, (6, 2, None, draw.wholes(0, 10, 2, draw.whole(33, 60))), tolerance=0.08)


put_experts.mistake(
    "only the first block has experts", "for block in model.decoder.blocks:", "for block in model.decoder.blocks[:1]:"
)
put_experts.mistake("all blocks share one mixture; give each its own", "    for block in model.decoder.blocks:\n        block.feed_forward = Experts(model.config.d_model, model.config.d_ff, experts, top_k, capacity)",
                    "    one = Experts(model.config.d_model, model.config.d_ff, experts, top_k, capacity)\n    for block in model.decoder.blocks:\n        block.feed_forward = one")  # fmt: skip
put_experts.mistake(
    "`top_k` is not passed on",
    "experts, top_k, capacity)\n    initialise",
    "experts, capacity=capacity)\n    initialise",
)
put_experts.mistake(
    "the capacity is not passed on", "experts, top_k, capacity)\n    initialise", "experts, top_k)\n    initialise"
)
put_experts.variant(
    """
    def put_experts(model, experts, top_k=2, capacity=None):
        sizes = model.config
        for at in range(sizes.layers):
            model.decoder.blocks[at].feed_forward = Experts(
                sizes.d_model, sizes.d_ff, experts=experts, top_k=top_k, capacity=capacity
            )
        initialise(model, sizes.d_model, 2 * sizes.layers)
        return model
    """
)


@part(9, points=1, excused=USUAL)
def Experts_on_a_GPU(code, x, router, gate, inner, outer, top_k, capacity):
    """A layer of experts gives the same results on another device, such as a GPU."""

    def answer(device):
        layer = code.Experts(x.shape[-1], inner.shape[2], len(gate), top_k, capacity).double()
        layer.load_state_dict({"router.weight": router, "gate": gate, "inner": inner, "outer": outer})
        return layer.to(device)(x.to(device)).detach().cpu()

    return on_simulated_device(answer)


@Experts_on_a_GPU.cases
def _(draw):
    weights = draw.normal(4, 6), draw.normal(4, 6, 5), draw.normal(4, 6, 5), draw.normal(4, 5, 6)
    yield Case("tokens on a GPU", (draw.normal(2, 7, 6), *weights, 2, 0.8))
    yield Case(LARGE, (draw.normal(2, draw.whole(33, 60), 6), *weights, 2, 1.5))


Experts_on_a_GPU.mistake(
    "the sum is collected on the CPU: create it like the tokens, `torch.zeros_like(tokens)`",
    "torch.zeros_like(tokens)",
    "torch.zeros(tokens.shape, dtype=tokens.dtype)",
)
