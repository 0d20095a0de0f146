"""Stage 7, generation: the cache, the sampling probabilities, and the loop that generates text."""

import torch

from companion_school.build.checks import USUAL
from companion_school.build.isolated_modules import default_dtype
from companion_school.build.parts import part, references
from companion_school.build.simulated_device import on_simulated_device
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case


@part(7, points=2, excused=USUAL)
def Cache(code, keys, values):
    """The cache returns the stored keys and values, followed by the new ones."""
    cache = code.Cache()
    found = {"the length of a new cache": len(cache)}
    for n, (k, v) in enumerate(zip(keys, values, strict=True), 1):
        all_keys, all_values = cache.extend(k, v)
        found |= {f"the keys after part {n}": all_keys.clone(), f"the values after part {n}": all_values.clone(),
                  f"the length after part {n}": len(cache)}  # fmt: skip
    return found


@Cache.cases
def _(draw):
    for lengths in ((3,), (4, 1), (2, 3, 1)):
        parts = [(draw.normal(2, 3, length, 4), draw.normal(2, 3, length, 5)) for length in lengths]
        yield Case("keys and values, in the order in which they came", ([k for k, _ in parts], [v for _, v in parts]))
    parts = [(draw.normal(1, 1, length, 2), draw.normal(1, 1, length, 2)) for length in (draw.whole(120, 140), 1, 1)]
    yield Case(LARGE, ([k for k, _ in parts], [v for _, v in parts]))


_KEEP = "self.keys = k if self.keys is None else torch.cat([self.keys, k], dim=2)"
Cache.mistake("old keys are overwritten; append the new ones", _KEEP, "self.keys = k")
Cache.mistake("old values are overwritten; append the new ones", "torch.cat([self.values, v], dim=2)", "v")
Cache.mistake("the new ones are joined to the old along the heads; tokens are the axis before the last, `dim=2`",
              _KEEP, _KEEP.replace("dim=2", "dim=1"), "torch.cat([self.values, v], dim=2)", "torch.cat([self.values, v], dim=1)")  # fmt: skip
Cache.mistake("the new keys come before the old ones", _KEEP, _KEEP.replace("[self.keys, k]", "[k, self.keys]"))
Cache.mistake("only the values are stored: old keys are lost", "return self.keys, self.values", "return k, self.values")
Cache.mistake("only the new ones are returned; return all", "return self.keys, self.values", "return k, v")
Cache.mistake(
    "the length is the number of heads; tokens are the axis before the last", "self.keys.shape[2]", "self.keys.shape[1]"
)
Cache.mistake(
    "the length stays 0, so the position never changes",
    "return 0 if self.keys is None else self.keys.shape[2]",
    "return 0",
)
Cache.mistake("keys and values are swapped", "return self.keys, self.values", "return self.values, self.keys")
Cache.mistake("the length is always 1; it is the number of stored tokens", "self.keys.shape[2]", "1")
Cache.mistake("the length counts the calls of `extend`; count tokens",
              "self.keys.shape[2]", "getattr(self, 'times', 0)", "return self.keys, self.values",
              "self.times = getattr(self, 'times', 0) + 1\n        return self.keys, self.values")  # fmt: skip
Cache.variant(
    """
    class Cache:
        def __init__(self):
            self.parts = []

        def __len__(self):
            return sum(k.shape[2] for k, _ in self.parts)

        def extend(self, k, v):
            self.parts.append((k, v))
            return tuple(torch.cat(some, dim=2) for some in zip(*self.parts))
    """
)


@part(
    7,
    points=4,
    excused={k: v for k, v in USUAL.items() if k not in ("dtype", "nan")}
    | {"nan": "no score is NaN", "dtype": "one dtype"},
)
def probabilities(code, logits, temperature, top_k, top_p, min_p):
    """Temperature, top-k, top-p and min-p are applied in this order."""
    return code.probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


@probabilities.cases
def _(draw):
    few = torch.tensor([0.5, 0.25, 0.15, 0.1]).double().log()
    yield Case("default settings: a softmax", (few, 1.0, None, 1.0, 0.0))
    yield Case("the temperature divides the scores", (few, 0.5, None, 1.0, 0.0))
    yield Case("top-k keeps the most probable tokens, and they add up to one", (few, 1.0, 2, 1.0, 0.0))
    yield Case(
        "top-p keeps the fewest tokens that reach it, including the one that crosses it", (few, 1.0, None, 0.6, 0.0)
    )
    halves = torch.tensor([0.5, 0.25, 0.25]).double().log()  # probabilities with sums that are exact in floating point
    yield Case("top-p keeps no more tokens than needed: one half is enough for a half", (halves, 1.0, None, 0.5, 0.0))
    yield Case("top-p keeps at least the first", (few, 1.0, None, 0.01, 0.0))
    yield Case("min-p is a fraction of the largest probability", (few, 1.0, None, 1.0, 0.4))
    yield Case("min-p of one: only the most probable token", (few, 1.0, None, 1.0, 1.0))
    yield Case("top-p applies to what top-k leaves", (few, 1.0, 3, 0.8, 0.0))
    logits = 2 * draw.normal(draw.whole(11, 17))
    for case in (
        (0.7, 9, 0.9, 0.0),
        (1.3, None, 0.6, 0.0),
        (1.0, None, 1.0, 0.3),
        (0.8, 11, 0.7, 0.2),
        (2.0, 4, 1.0, 0.1),
    ):
        yield Case("all settings together, in any order of the scores", (logits, *case))
    yield Case(LARGE, (2 * draw.normal(draw.whole(40, 60)), 1.1, 35, 0.95, 0.0))


probabilities.mistake(
    "top-p drops the token that crosses it; keep the fewest tokens whose sum reaches it",
    "p.cumsum(-1) - p < top_p",
    "p.cumsum(-1) <= top_p",
)
probabilities.mistake(
    "top-p drops the token that crosses it, except the first; keep the fewest tokens whose sum reaches it",
    "(p.cumsum(-1) - p < top_p)", "((p.cumsum(-1) <= top_p) | (torch.arange(len(p)) == 0))",
)  # fmt: skip
probabilities.mistake(
    "top-p drops the token that makes the sum reach it; compare the sum of the tokens before that one",
    "p.cumsum(-1) - p < top_p", "p.cumsum(-1) < top_p",
)  # fmt: skip
probabilities.mistake(
    "top-p keeps one token too many if the others reach it exactly; keep the fewest tokens whose sum reaches it",
    "p.cumsum(-1) - p < top_p",
    "p.cumsum(-1) - p <= top_p",
)
probabilities.mistake(
    "the temperature multiplies the scores; divide by it", "logits / temperature", "logits * temperature"
)
probabilities.mistake(
    "the temperature has no effect, because the probabilities are divided by it: divide the scores, before the softmax",
    "(logits / temperature)",
    "logits",
)
probabilities.mistake(
    "the temperature divides probabilities: divide the scores by it, before the one softmax",
    "(logits / temperature).softmax(-1)",
    "(logits.softmax(-1) / temperature).softmax(-1)",
)
probabilities.mistake(
    "the temperature divides probabilities, whose sum is then not 1: divide the scores by it, before the softmax",
    "(logits / temperature).softmax(-1)",
    "logits.softmax(-1) / temperature",
    "(top_k or len(p)))\n    p = p / p.sum()\n",
    "(top_k or len(p)))\n    p = p / p.sum() if top_k else p\n",
)
probabilities.mistake(
    "the result is sorted a second time: `order` says where each probability belongs, so write `out[order] = p` and not `p[order]`",
    "return torch.zeros_like(p).scatter(-1, order, p / p.sum())", "return (p / p.sum())[order]",
)  # fmt: skip
probabilities.mistake(
    "the remaining probabilities do not add up to one: divide by their sum", "order, p / p.sum())", "order, p)"
)
probabilities.mistake("the result is in the order of the probabilities; put each back at its id",
                      "return torch.zeros_like(p).scatter(-1, order, p / p.sum())", "return p / p.sum()")  # fmt: skip
probabilities.mistake("top-k keeps one token too many", "< (top_k or len(p))", "< (top_k + 1 if top_k else len(p))")
probabilities.mistake("top-k is not used", "p = p * (torch.arange(len(p)) < (top_k or len(p)))", "p = p * 1.0")
probabilities.mistake(
    "top-p is applied to all tokens; apply it to what top-k leaves: divide by the sum first",
    "    p = p / p.sum()\n",
    "",
)
probabilities.mistake("min-p is used as a probability; it is a fraction of the largest", "min_p * p[0]", "min_p")
probabilities.mistake(
    "min-p is a fraction of the mean; use a fraction of the largest", "min_p * p[0]", "min_p * p.mean()"
)
probabilities.mistake("min-p drops tokens exactly at the bound; keep them", "p >= min_p", "p > min_p")
probabilities.mistake("min-p is not used", " * (p >= min_p * p[0])", "")
probabilities.mistake("top-p is not used", "(p.cumsum(-1) - p < top_p) * ", "")
probabilities.mistake("top-k keeps the least probable tokens", "sort(descending=True)", "sort()")
probabilities.mistake("the temperature comes last, so top-p sees other probabilities: divide the scores first", "(logits / temperature).softmax(-1)", "logits.softmax(-1)",
                      "order, p / p.sum())", "order, p ** (1 / temperature) / (p ** (1 / temperature)).sum())")  # fmt: skip
probabilities.variant(
    """
    def probabilities(logits, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0):
        p = (logits / temperature).softmax(-1)
        order = sorted(range(len(p)), key=lambda id: -p[id].item())[:top_k]
        kept, whole, so_far = [], sum(p[id].item() for id in order), 0.0
        for id in order:
            if so_far < top_p * whole and p[id] >= min_p * p[order[0]]:
                kept.append(id)
            so_far += p[id].item()
        out = torch.zeros_like(p)
        out[kept] = p[kept] / p[kept].sum()
        return out
    """
)
probabilities.variant(
    """
    def probabilities(logits, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0):
        scores = logits / temperature
        if top_k is not None and top_k < len(scores):
            scores = scores.masked_fill(scores < scores.topk(top_k).values[-1], -math.inf)
        p = scores.softmax(-1)
        largest = p.max()
        ranked, order = p.sort(descending=True)
        before = torch.cat([torch.zeros(1, dtype=p.dtype), ranked.cumsum(-1)[:-1]])
        keep = torch.zeros(len(p), dtype=torch.bool)
        keep[order[before < top_p]] = True
        p = p.masked_fill(~keep | (p < min_p * largest), 0.0)
        return p / p.sum()

    import math
    """
)


@part(7, points=4, excused=USUAL, seconds=120.0)
def generate(code, weights, ids, new, stop, temperature, top_k, seed):
    """The text is the same with and without the cache, and each pass reads the right number of tokens."""
    model = code["model"]
    with default_dtype(torch.float64):
        own = model.Transformer(model.Config(11, 8, 2, 4, 2, 12))
    own.load_state_dict(weights)
    passes, forward = [], own.forward
    own.forward = lambda ids, caches=None: passes.append(ids.shape[1]) or forward(ids, caches)
    choice = {"temperature": temperature, "top_k": top_k, "stop": stop, "seed": seed}
    cached = list(code.generate(own, list(ids), new, **choice))
    read = list(passes)
    passes.clear()
    plain = list(code.generate(own, list(ids), new, cached=False, **choice))
    return {"the text": cached, "the number of tokens that each pass reads": read, "the text without a cache": plain,
            "the number of tokens that each pass reads without a cache": passes,
            "the ids are numbers": all(isinstance(id, int) for id in cached)}  # fmt: skip


def _model(draw):
    block = {"attention_norm.weight": (8,), "attention.query.weight": (8, 8), "attention.key.weight": (4, 8),
             "attention.value.weight": (4, 8), "attention.output.weight": (8, 8), "feed_forward_norm.weight": (8,),
             "feed_forward.gate.weight": (12, 8), "feed_forward.inner.weight": (12, 8), "feed_forward.outer.weight": (8, 12)}  # fmt: skip
    shapes = {"embedding.weight": (11, 8), "decoder.norm.weight": (8,)}
    shapes |= {f"decoder.blocks.{n}.{name}": shape for n in range(2) for name, shape in block.items()}
    weights = {name: draw.normal(*shape) for name, shape in shapes.items()}
    return weights | {"embedding.weight": 0.5 * weights["embedding.weight"]}  # avoids probabilities close to 0 and 1


@generate.cases
def _(draw):
    weights = _model(draw)
    yield Case("one token, the most probable", (weights, [3, 5], 1, None, 0.0, None, 0))
    yield Case("the most probable token, again and again", (weights, [3, 5, 1], 9, None, 0.0, None, 0))
    yield Case("drawn with a seed", (weights, [2], 12, None, 2.0, None, 4))
    yield Case("the sampling settings are passed on", (weights, [2, 7], 8, None, 1.5, 2, 7))
    yield Case(LARGE, (weights, draw.wholes(0, 10, draw.whole(33, 40)).tolist(), 3, None, 0.0, None, 0))
    text = generate.answer(references(generate.stage))(weights, [3, 5, 1], 9, None, 0.0, None, 0)["the text"]
    # Stop at each token of the text in turn, and at a token that does not occur in it.
    for stop in (*dict.fromkeys(text), min({*range(11)}.difference(text))):
        yield Case("it ends before the stop token", (weights, [3, 5, 1], 9, stop, 0.0, None, 0))


generate.mistake("the stop token is returned, too; end before it",
                 "        if token.item() == stop:\n            return\n        yield token.item()",
                 "        yield token.item()\n        if token.item() == stop:\n            return")  # fmt: skip
generate.mistake("the stop token is left out, but the loop continues after it: end with `return`",
                 "            return\n        yield token.item()", "            continue\n        yield token.item()")  # fmt: skip
generate.mistake("the stop token is ignored", "if token.item() == stop:", "if False:")
generate.mistake(
    "with the cache each pass reads the whole text again, after the cached tokens",
    "model(unread if cached else text, caches)",
    "model(text, caches)",
)
generate.mistake(
    "without the cache only the newest token is read; read the whole text", "unread if cached else text", "unread"
)
generate.mistake(
    "you use the prediction at the first position; the last one predicts the next token", "[0, -1]", "[0, 0]"
)
generate.mistake(
    "temperature 0 draws; take the most probable token",
    "if temperature else logits.argmax(-1, keepdim=True)",
    "if True else logits.argmax(-1, keepdim=True)",
)
generate.mistake(
    "you always take the most probable token; with a temperature above 0, draw",
    "torch.multinomial(p, 1, generator=generator) if temperature else logits",
    "logits",
)
generate.mistake(
    "the settings (top-k, top-p, min-p) do not reach `probabilities`", ", **choice)\n        token", ")\n        token"
)
generate.mistake(
    "the temperature does not reach `probabilities`, so you always draw at temperature 1", "temperature or 1.0", "1.0"
)
generate.mistake(
    "with the cache the first pass reads only the last token; it must read the whole text once",
    "    for _ in range(new):", "    unread = text[:, -1:] if cached else text\n    for _ in range(new):",
)  # fmt: skip
generate.mistake("one token too few", "for _ in range(new)", "for _ in range(new - 1)")
generate.mistake(
    "a new generator is made for each token, so that every draw uses the same random numbers: make it once, before the loop",
    "        token = torch.multinomial(p, 1, generator=generator)",
    "        generator = torch.Generator().manual_seed(seed)\n        token = torch.multinomial(p, 1, generator=generator)",
)  # fmt: skip
generate.mistake(
    "the generator never gets the seed: `torch.Generator().manual_seed(seed)`", "torch.Generator().manual_seed(seed)",
    "torch.Generator()",
)  # fmt: skip
generate.mistake(
    "at temperature 0 you divide by 0 and draw; take the most probable id", "temperature or 1.0", "temperature",
    "torch.multinomial(p, 1, generator=generator) if temperature else logits.argmax(-1, keepdim=True)",
    "torch.multinomial(p, 1, generator=generator)",
)  # fmt: skip
generate.mistake(
    "the id is drawn from a softmax of the logits; draw it from what `probabilities` returns",
    "torch.multinomial(p, 1, generator=generator)", "torch.multinomial(logits.softmax(-1), 1, generator=generator)",
)  # fmt: skip
generate.mistake(
    "caches are used although `cached` is false, so each pass reads the whole text again after the cached one",
    "[Cache() for _ in model.decoder.blocks] if cached else None", "[Cache() for _ in model.decoder.blocks]",
)  # fmt: skip
generate.mistake("ids are yielded as tensors; yield numbers, `token.item()`", "yield token.item()", "yield token")
generate.mistake("the seed is not used", "manual_seed(seed)", "manual_seed(0)")
generate.mistake(
    "all layers share one cache; each layer has its own keys and values",
    "[Cache() for _ in model.decoder.blocks]",
    "[Cache()] * len(model.decoder.blocks)",
)
generate.mistake(
    "no cache is created, so each pass reads the whole text",
    "if cached else None\n    for",
    "if False else None\n    cached = False\n    for",
)
generate.mistake(
    "the written tokens are not appended to the text", "torch.cat([text, token[None].to(device)], dim=1)", "text"
)
generate.variant(
    """
    @torch.no_grad()
    def generate(model, ids, new, stop=None, seed=0, cached=True, temperature=1.0, **choice):
        dice = torch.Generator()
        dice.manual_seed(seed)
        caches = None
        if cached:
            caches = [Cache() for block in model.decoder.blocks]
        written, read = list(ids), 0
        while len(written) < len(ids) + new:
            logits = model(torch.tensor([written[read:]]), caches)[0][-1]
            if cached:
                read = len(written)
            if temperature == 0:
                token = int(logits.argmax())
            else:
                token = int(torch.multinomial(probabilities(logits, temperature, **choice), 1, generator=dice))
            if token == stop:
                break
            written.append(token)
            yield token
    """
)


@part(7, points=1, excused=USUAL, seconds=60.0)
def generate_on_a_GPU(code, weights, ids, new, temperature):
    """A model on another device, such as a GPU, generates the same text."""

    def text(device):
        model = code["model"]
        with default_dtype(torch.float64):
            own = model.Transformer(model.Config(11, 8, 2, 4, 2, 12))
        own.load_state_dict(weights)
        own.to(device)
        choice = {"temperature": temperature, "top_p": 0.9, "seed": 3}
        return [list(code.generate(own, list(ids), new, cached=cached, **choice)) for cached in (True, False)]

    return on_simulated_device(text)


@generate_on_a_GPU.cases
def _(draw):
    weights = _model(draw)
    yield Case("the likeliest", (weights, [3, 5], 5, 0.0))
    yield Case("drawn with a seed", (weights, [2, 7, 1], 5, 0.9))
    yield Case(LARGE, (weights, draw.wholes(0, 10, draw.whole(33, 60)).tolist(), 3, 0.0))


generate_on_a_GPU.mistake(
    "the text is created on the CPU: create it where the weights are, `torch.tensor([ids], device=model.embedding.weight.device)`",
    "torch.tensor([ids], device=device)",
    "torch.tensor([ids])",
)  # fmt: skip
generate_on_a_GPU.mistake(
    "the drawn token stays on the CPU, but the text is on the GPU: move it there",
    "unread, text = token[None].to(device), torch.cat([text, token[None].to(device)], dim=1)",
    "unread, text = token[None], torch.cat([text, token[None]], dim=1)",
)
generate_on_a_GPU.mistake(
    "the generator is on the CPU and the logits are on the GPU: use `logits.cpu()` before you draw, so that a seed gives the same text everywhere",
    "[0, -1].cpu()",
    "[0, -1]",
)  # fmt: skip
