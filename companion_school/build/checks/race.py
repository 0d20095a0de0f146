"""Stage 11, the race: it must return a valid language model in time that predicts better than uniform guessing."""

import math

import torch

from companion_school.build.checks import LAWS
from companion_school.build.isolated_modules import default_dtype, watched_training
from companion_school.build.parts import part
from companion_school.checking.exercise import Case

_FREE = dict.fromkeys(LAWS, "a race may use random numbers and time")


@part(11, points=10, excused=_FREE, seconds=240.0)
def race(code, text, unseen, seconds):
    """A race of a few seconds ends on time, with lossless tokens, causal logits, and a model that has learned."""
    import time

    facts = (
        "it returns in time", "it leaves PyTorch's dtype and gradients as they were",
        "the gradients are cleared between updates", "it trains on more than one batch",
        "it returns a Runner with model, merges and context", "the context is at least one token",
        "the model is on the CPU", "decoding the tokens gives the text", "the model gives a tensor", "logits have three axes",
        "each token has a row of logits", "there is a row for more than the last token",
        "each id of the vocabulary has a logit", "no logit is NaN", "all logits are finite",
        "they are logits, not probabilities", "the same tokens give the same logits",
        "no logit depends on later tokens", "it does not guess the token that it has just read",
        "it does not guess the token before that", "it does not guess the token after the next",
        "it predicts better than equal probabilities", "it is not far worse than equal probabilities",
        "it predicts better than the frequencies of the tokens",
        "it uses its time, or has learned already",
    )  # fmt: skip
    holds = dict.fromkeys(facts, False)

    def note(fact, is_so):
        holds[fact] = bool(is_so)
        return holds[fact]

    for given in (seconds, 3 * seconds):  # a busy machine may need more time to learn anything
        dtype, start = torch.get_default_dtype(), time.monotonic()
        # The first two context managers restore settings that a race must not change.
        with default_dtype(dtype), torch.enable_grad(), watched_training() as loop:
            runner = code.race(text, given)
            took = time.monotonic() - start
            note("it returns in time", took < 3 * given + 10)
            note("it leaves PyTorch's dtype and gradients as they were",
                 torch.get_default_dtype() == dtype and torch.is_grad_enabled())  # fmt: skip
        cleared = note("the gradients are cleared between updates", loop.cleared or loop.kept < 2)
        few = loop.passes >= 4 and len(loop.batches) == 1 and loop.ids < 0.1 * len(text)
        if not (note("it trains on more than one batch", not few) and cleared):
            return dict.fromkeys(facts, True) | {fact: so for fact, so in holds.items() if fact in facts[:4]}
        has_all = all(hasattr(runner, name) for name in ("model", "merges", "context"))
        if not note("it returns a Runner with model, merges and context", has_all):
            return holds
        tokenizer, model, context = code["tokenizer"], runner.model, int(runner.context)
        if not note("the context is at least one token", context >= 1):
            return holds
        weights = [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []
        if not note("the model is on the CPU", all(weight.device.type == "cpu" for weight in weights)):
            return holds
        ids = list(tokenizer.encode(unseen, runner.merges))
        note("decoding the tokens gives the text", tokenizer.decode(ids, runner.merges) == unseen)
        vocab, nats, copied, again, ahead = 256 + len(runner.merges), 0.0, 0, True, True
        other_nats, others = [0.0, 0.0], 0
        with torch.no_grad():
            for at in range(0, len(ids) - 1, context):
                window = torch.tensor([ids[at : at + context + 1]])
                read, tokens = window[:, :-1], window.shape[1] - 1
                logits = model(read)
                if not note("the model gives a tensor", isinstance(logits, torch.Tensor)):
                    return holds
                shape = (*logits.shape, 0, 0, 0)
                shaped = (
                    note("logits have three axes", logits.ndim == 3),
                    note("each token has a row of logits", shape[1] == tokens),
                    note("there is a row for more than the last token", shape[1] >= tokens - 1),
                    note("each id of the vocabulary has a logit", shape[2] == vocab),
                )
                finite = (
                    note("no logit is NaN", not logits.isnan().any()),
                    note("all logits are finite", logits.isfinite().all()),
                )
                if not all((*shaped, *finite)):
                    return holds
                sums = logits.double().sum(-1)
                is_free = (logits < 0).any() or not torch.allclose(sums, torch.ones_like(sums), atol=1e-3)
                if not note("they are logits, not probabilities", is_free):
                    return holds
                logs = logits.double().log_softmax(-1)
                nats -= logs.gather(-1, window[:, 1:, None]).sum().item()
                copied += int((logits.argmax(-1) == read).sum())
                other_nats[0] -= logs[:, 1:].gather(-1, window[:, : tokens - 1, None]).sum().item()
                other_nats[1] -= logs[:, :-1].gather(-1, window[:, 2:, None]).sum().item()
                others += tokens - 1
                again = again and torch.allclose(logits, model(read), rtol=1e-3, atol=1e-3)
                other = window.clone()
                other[0, -2] = (other[0, -2] + 1) % vocab
                before, after = logits[:, : tokens - 1], model(other[:, :-1])[:, : tokens - 1]
                ahead = ahead and torch.allclose(before, after, rtol=1e-2, atol=1e-2)
        note("the same tokens give the same logits", again)
        note("no logit depends on later tokens", ahead or not again)  # random logits are different in every call
        even = math.log(vocab) * (len(ids) - 1)
        sees = note("it does not guess the token that it has just read", copied < 0.8 * (len(ids) - 1))
        best = 0.9 * min(math.log(vocab), nats / (len(ids) - 1)) * others  # a shifted model has a much lower loss here
        behind = not note("it does not guess the token before that", not sees or other_nats[0] >= best)
        beyond = not note("it does not guess the token after the next", not sees or other_nats[1] >= best)
        shifted = behind or beyond
        note("it predicts better than equal probabilities", nats < 0.98 * even or shifted or not again)
        counts = torch.tensor(ids[1:]).bincount().double()
        frequent = -torch.special.xlogy(counts, counts / counts.sum()).sum().item()
        learned = nats < frequent or shifted or not (again and ahead)  # each of these three faults is noted separately
        note("it predicts better than the frequencies of the tokens", learned)
        note("it is not far worse than equal probabilities", nats < 2 * even or not sees or shifted or not again)
        note("it uses its time, or has learned already", learned or took > 0.2 * given)
        if learned:
            break
    return holds


@race.cases
def _(draw):
    words = ["".join("etaoinshrdlu"[at] for at in draw.wholes(0, 11, draw.whole(2, 6))) for _ in range(60)]

    def chain(length):  # each word has three possible successors, so even a model that memorizes predicts new text well
        at = 0
        return " ".join(words[at := (7 * at + step) % 60] for step in draw.wholes(1, 3, length))

    text, unseen = chain(3000), chain(150)
    yield Case("a race of six seconds", (text, unseen, 6.0))


_TABLE = """
def race(text, seconds):
    ids = torch.tensor(list(text.encode()))
    table = torch.full((256, 256), 0.01)
    table.index_put_((ids[:-1], ids[1:]), torch.ones(()), accumulate=True)
    table = table / table.sum(1, keepdim=True)

    class Pairs(nn.Module):
        def forward(self, ids):
            return table[ids].log()

    return Runner(Pairs(), [], 64)
"""


def _counting(old, new):
    """Return the code of a fast race that counts pairs of bytes, with `old` replaced by `new`."""
    assert _TABLE.count(old) == 1
    return _TABLE.replace(old, new)


def _trained(batch, clear="            toy.weight.grad = None\n"):
    """Return the fast race, preceded by nine updates of another model on `batch`, with `clear` after each of them."""
    loop = (
        f"    toy = nn.Embedding(256, 4)\n    for n in range(9):\n        toy({batch}).square().sum().backward()\n"
        f"        with torch.no_grad():\n            toy.weight -= 0.01 * toy.weight.grad\n{clear}"
    )
    return _counting("    table = torch.full", f"{loop}    table = torch.full")


_LOGITS = "table[ids].log()"
race.mistake("only the model is returned; return a Runner", _counting("Runner(Pairs(), [], 64)", "Pairs()"))
race.mistake("the context is 0 tokens: how many tokens does your model read at once?", _counting("[], 64", "[], 0"))
race.mistake(
    "the gradients are never cleared, so each update follows the sum of all gradients so far: set them to None after each step",
    _trained("ids[n : n + 16]", clear=""),
)
race.mistake(
    "every update reads the same batch: draw another one each time, and create the random generator before the loop, "
    "because the same seed gives the same positions",
    _trained("ids[:16]"),
)
race.mistake("every update reads the same batch, and the gradients are never cleared", _trained("ids[:16]", clear=""))
race.mistake(
    "only the logits of the last token are returned; every token is scored", _counting(_LOGITS, f"{_LOGITS}[:, -1:]")
)
race.mistake("the axis of the batch is missing: (1, token, vocab)", _counting(_LOGITS, f"{_LOGITS}[0]"))
race.mistake("the model accepts only whole windows; the last window of a text is shorter",
             _counting(_LOGITS, "table[ids.view(1, 64)].log()"))  # fmt: skip
race.mistake("the merges are missing: if there are none, return an empty list", _counting("[], 64", "None, 64"))
race.mistake("the context is missing: how many tokens does your model read at once?", _counting("[], 64", "[], None"))
race.mistake("a token that never occurred has probability 0, so its logarithm is infinite", _counting("0.01", "0.0"))
race.mistake(
    "the weights have become NaN: the rate is too high, or they move uphill",
    _counting(_LOGITS, f"{_LOGITS} * math.nan"),
)
race.mistake("the model returns several things; it must return only the logits", _counting(_LOGITS, f"{_LOGITS}, None"))
race.mistake("the axes are swapped: logits are (1, token, vocab)", _counting(_LOGITS, f"{_LOGITS}.mT"))
race.mistake("the last token has no row of logits; every token needs one", _counting(_LOGITS, f"{_LOGITS}[:, :-1]"))
race.mistake("the merges and the context are swapped: Runner(model, merges, context)", _counting("[], 64", "64, []"))
race.mistake("the model is on another device: return it with `cpu()`",
             _counting("Pairs(), [], 64", 'nn.Linear(2, 2, device="meta"), [], 64'))  # fmt: skip
race.mistake(
    "it predicts the token that it has just read. An untrained model with a tied head does so, too. Do the weights move, "
    "is the model that comes back the one that was trained, and are the targets shifted by one position?",
    _counting("table = table / table.sum(1, keepdim=True)",
              "time.sleep(seconds / 2)\n    table = (9 * torch.eye(256)).exp()"),
)  # fmt: skip
race.mistake(
    "it returns at once with an untrained model: look at the condition that ends the loop",
    _counting("table = table / table.sum(1, keepdim=True)", "table = (9 * torch.eye(256)).exp()"),
)
race.mistake(
    "it predicts the token after the next: are the targets shifted twice? Row i of the logits predicts token i + 1",
    _counting("(ids[:-1], ids[1:])", "(ids[:-2], ids[2:])"),
)
race.mistake(
    "it predicts the token before the one that it has just read; row i of the logits must predict token i + 1",
    _counting("(ids[:-1], ids[1:])", "(ids[1:], ids[:-1])"),
)
race.mistake("it is far worse than equal probabilities: do the weights move uphill, is the rate much too high, or was the "
             "model trained on tokens other than those of encode(text, merges)?",
             _counting("table = table / table.sum(1, keepdim=True)", "time.sleep(seconds / 2)\n    table = (table / table.sum(1, keepdim=True)) ** -3"))  # fmt: skip
race.mistake("it returns at once, without having learned anything: look at the condition that ends the loop",
             _counting("table = table / table.sum(1, keepdim=True)", "table = torch.randn(256, 256).exp()"))  # fmt: skip
race.mistake("probabilities are returned; return logits, from before the softmax", _counting(_LOGITS, "table[ids]"))
race.mistake(
    "dropout is still on: call `eval()` on the model before you return it",
    _counting(_LOGITS, f"F.dropout({_LOGITS}, 0.3)"),
)
race.mistake("PyTorch's default dtype or gradient setting is not restored",
             _counting("    ids = torch.tensor(list", "    torch.set_default_dtype(torch.float64)\n    ids = torch.tensor(list"))  # fmt: skip
race.mistake("nothing is learned: do the weights move, does the loss get logits and not probabilities, are the tokens those "
             "of encode(text, merges) in their order, and do you return the model that was trained?",
             _counting("table = table / table.sum(1, keepdim=True)",
                       "time.sleep(seconds / 2)\n    table = torch.randn(256, 256).exp()"))  # fmt: skip
race.mistake("it returns long before its time is over, with little learned: look at the condition that ends the loop",
             _counting("table = table / table.sum(1, keepdim=True)",
                       "table = table.sum(0, keepdim=True).expand(256, 256) / table.sum()"))  # fmt: skip
race.mistake("it has learned little more than how often each token occurs: does the model see the tokens in their order, and "
             "do logits and targets belong to the same tokens?",
             _counting("table = table / table.sum(1, keepdim=True)",
                       "time.sleep(seconds / 2)\n    table = table.sum(0, keepdim=True).expand(256, 256) / table.sum()"))  # fmt: skip
race.mistake("the model looks ahead: its attention is not causal",
             _counting(_LOGITS, f"{_LOGITS} + {_LOGITS}.mean(1, keepdim=True)"))  # fmt: skip
race.mistake(
    "the merges are not those that the model was trained with: it needs an id for each byte and each merge",
    _counting("(256, 256)", "(276, 276)").replace("[], 64", "learn(text, 20)[:5], 64"),
)
race.mistake("it returns too late: check the time in each update",
             _counting("    ids = torch.tensor(list", "    time.sleep(3 * seconds + 11)\n    ids = torch.tensor(list"))  # fmt: skip
race.variant(_TABLE)
race.variant(_trained("ids[n : n + 16]"))
race.variant(_trained("ids[len(ids) // 2 :]"))
race.variant(
    """
    def race(text, seconds):
        ids, counts = list(text.encode()), {}
        for a, b, c in zip(ids, ids[1:], ids[2:]):
            counts.setdefault((a, b), torch.full((256,), 0.02))[c] += 1

        class Triples(nn.Module):
            def forward(self, ids):
                rows, known = ids[0].tolist(), torch.ones(256)
                pairs = zip([-1, *rows], rows)
                return torch.stack([counts.get(pair, known).log() for pair in pairs])[None]

        return Runner(model=Triples(), merges=[], context=32)
    """
)
race.variant(
    """
    def race(text, seconds):
        merges = learn(text, 20)
        ids = torch.tensor(encode(text, merges))
        model = nn.Embedding(276, 276)
        counts = torch.zeros(276 * 276).index_add(0, 276 * ids[:-1] + ids[1:], torch.ones(len(ids) - 1))
        model.weight.data = (counts.view(276, 276) + 0.02).log()
        return Runner(model, merges, 100)
    """
)
