"""Stage 11, the race: it must return in time, with a valid predictor of text that beats uniform guessing."""

import math

import torch

from companion_school.build.isolated_modules import default_dtype
from companion_school.build.parts import part
from companion_school.checking.exercise import Case

_FREE = {
    law: "a race goes as it likes"
    for law in ("levels", "offset", "nan", "scale", "edge", "one", "dtype", "layout", "memory", "other", "tie")
}


@part(11, points=10, excused=_FREE, seconds=240.0)
def race(code, text, unseen, seconds):
    """A race of a few seconds: on time, with lossless tokens, causal logits, and something learned. If nothing was
    learned, it races again with three times as many seconds, because the machine may have been busy."""
    import time

    facts = (
        "it is back in time", "it leaves PyTorch's dtype and gradients as they were",
        "it gives a Runner with model, merges and context", "the context is a token at least",
        "the tokens give the text back", "logits have three axes", "there is a row of logits for each token",
        "there is a logit for each id of the vocabulary", "all logits are numbers", "they are logits, not probabilities",
        "the same tokens give the same logits", "no logit depends on what comes after",
        "it does better than even chances",
    )  # fmt: skip
    holds = dict.fromkeys(facts, False)

    def note(number, fact):
        holds[facts[number]] = bool(fact)
        return bool(fact)

    for given in (seconds, 3 * seconds):
        dtype, start = torch.get_default_dtype(), time.monotonic()
        with default_dtype(dtype), torch.enable_grad():  # these restore settings that a race must not change
            runner = code.race(text, given)
            note(0, time.monotonic() - start < 3 * given + 10)
            note(1, torch.get_default_dtype() == dtype and torch.is_grad_enabled())
        if not note(2, all(hasattr(runner, name) for name in ("model", "merges", "context"))):
            return holds
        tokenizer, model, context = code["tokenizer"], runner.model, int(runner.context)
        if not note(3, context >= 1):
            return holds
        ids = list(tokenizer.encode(unseen, runner.merges))
        note(4, tokenizer.decode(ids, runner.merges) == unseen)
        vocab, nats, again, ahead = 256 + len(runner.merges), 0.0, True, True
        with torch.no_grad():
            for at in range(0, len(ids) - 1, context):
                window = torch.tensor([ids[at : at + context + 1]])
                logits = model(window[:, :-1])
                shape = (*logits.shape, 0, 0)
                shaped = note(5, logits.ndim == 3), note(6, shape[1] == window.shape[1] - 1), note(7, shape[2] == vocab)
                if not all(shaped) or not note(8, logits.isfinite().all()):
                    return holds
                sums = logits.double().sum(-1)
                if not note(9, (logits < 0).any() or not torch.allclose(sums, torch.ones_like(sums), atol=1e-3)):
                    return holds
                logs = logits.double().log_softmax(-1)
                nats -= logs.gather(-1, window[:, 1:, None]).sum().item()
                again = again and torch.allclose(logits, model(window[:, :-1]), rtol=1e-3, atol=1e-3)
                other = window.clone()
                other[0, -2] = (other[0, -2] + 1) % 256
                before, after = logits[:, : window.shape[1] - 2], model(other[:, :-1])[:, : window.shape[1] - 2]
                ahead = ahead and torch.allclose(before, after, rtol=1e-2, atol=1e-2)
        note(10, again)
        note(11, ahead or not again)  # random logits change at every call, as if they looked ahead
        if note(12, nats < math.log(vocab) * len(ids)):
            break
    return holds


@race.cases
def _(draw):
    words = ["".join("etaoinshrdlu"[at] for at in draw.wholes(0, 11, draw.whole(2, 6))) for _ in range(60)]
    text = " ".join(words[at] for at in draw.wholes(0, 59, 1500))
    unseen = " ".join(words[at] for at in draw.wholes(0, 59, 150))
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
    """Return a fast race that counts pairs of bytes, with `old` in its text replaced by `new`."""
    assert _TABLE.count(old) == 1
    return _TABLE.replace(old, new)


_LOGITS = "table[ids].log()"
race.mistake("the model alone comes back; expected a Runner", _counting("Runner(Pairs(), [], 64)", "Pairs()"))
race.mistake("the context is no token: how many does your model want at once?", _counting("[], 64", "[], 0"))
race.mistake(
    "the logits of the last token alone come back; every token is scored", _counting(_LOGITS, f"{_LOGITS}[:, -1:]")
)
race.mistake("the axis of the batch is missing: (1, token, vocab)", _counting(_LOGITS, f"{_LOGITS}[0]"))
race.mistake("the model takes whole windows alone; the last one of a text is shorter",
             _counting(_LOGITS, "table[ids.view(1, 64)].log()"))  # fmt: skip
race.mistake("no merges are an empty list", _counting("[], 64", "None, 64"))
race.mistake("the context is missing: how many tokens does your model want at once?", _counting("[], 64", "[], None"))
race.mistake("a token that never occurred has probability 0, whose logarithm is infinite", _counting("0.01", "0.0"))
race.mistake("probabilities come back; expected logits, as before a softmax", _counting(_LOGITS, "table[ids]"))
race.mistake("dropout is still on: give the model back with `eval()`", _counting(_LOGITS, f"F.dropout({_LOGITS}, 0.3)"))
race.mistake("PyTorch's default dtype or its gradients are not put back",
             _counting("    ids = torch.tensor(list", "    torch.set_default_dtype(torch.float64)\n    ids = torch.tensor(list"))  # fmt: skip
race.mistake("nothing is learned: the weights never move",
             _counting("table = table / table.sum(1, keepdim=True)", "table = torch.randn(256, 256).exp()"))  # fmt: skip
race.mistake("the model looks ahead: its attention is not causal",
             _counting(_LOGITS, f"{_LOGITS} + {_LOGITS}.mean(1, keepdim=True)"))  # fmt: skip
race.mistake(
    "the merges are not those that the model was trained with: it has an id for each byte and each merge",
    _counting("(256, 256)", "(276, 276)").replace("[], 64", "learn(text, 20)[:5], 64"),
)
race.mistake("it comes back too late: look at the clock in each update",
             _counting("    ids = torch.tensor(list", "    time.sleep(3 * seconds + 11)\n    ids = torch.tensor(list"))  # fmt: skip
race.variant(_TABLE)
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
