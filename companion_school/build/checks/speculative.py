"""Stage 15, speculative: probabilities row by row, judging guesses, guessing from the text itself, and generation."""

import torch

from companion_school.build.checks import USUAL
from companion_school.build.isolated_modules import default_dtype
from companion_school.build.parts import part
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case


@part(15, points=1, excused=USUAL)
def rows(code, logits, temperature, choice):
    """Each row of logits becomes the distribution of one token."""
    return code.rows(logits, temperature, **choice)


@rows.cases
def _(draw):
    logits = 2 * draw.normal(3, 5)
    yield Case("temperature 1", (logits, 1.0, {}))
    yield Case("another temperature", (logits, 0.5, {}))
    yield Case("temperature 0: the most probable token has probability 1", (logits, 0, {}))
    yield Case("other sampling settings are passed on", (logits, 1.3, {"top_k": 2}))
    yield Case(LARGE, (2 * draw.normal(draw.whole(33, 40), 41), 0.8, {}))


rows.mistake(
    "at temperature 0 every row equals that of temperature 1",
    "if temperature == 0:",
    "temperature = temperature or 1.0\n    if False:",
)
rows.mistake(
    "`choice` is not passed on", "probabilities(row, temperature, **choice)", "probabilities(row, temperature)"
)
rows.mistake(
    "the temperature is not passed on", "probabilities(row, temperature, **choice)", "probabilities(row, **choice)"
)
rows.mistake(
    "the maximum runs along the positions; take it in each row, along the last axis",
    "F.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)",
    "F.one_hot(logits.argmax(0), len(logits)).T.to(logits.dtype)",
)
rows.mistake(
    "`one_hot` returns integers; convert them to the dtype of the logits",
    "logits.shape[-1]).to(logits.dtype)",
    "logits.shape[-1])",
)
rows.variant(
    """
    def rows(logits, temperature=1.0, **choice):
        made = torch.zeros_like(logits)
        for at in range(len(logits)):
            if temperature:
                made[at] = probabilities(logits[at], temperature=temperature, **choice)
            else:
                made[at, logits[at].argmax()] = 1
        return made
    """
)


@part(15, points=1, excused=USUAL)
def correction(code, p, q):
    """The token that replaces a rejected guess has the right distribution."""
    return code.correction(p, q)


@correction.cases
def _(draw):
    yield Case(
        "with a pencil",
        (torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.2, 0.1, 0.7], dtype=torch.float64)),
    )
    p, q = draw.normal(6).softmax(-1), draw.normal(6).softmax(-1)
    yield Case("six tokens", (p, q))
    yield Case(
        "a guess that the model would never make",
        (torch.tensor([0.25, 0.75, 0], dtype=torch.float64), torch.tensor([0, 0, 1.0], dtype=torch.float64)),
    )
    vocab = draw.whole(33, 60)
    yield Case(LARGE, (draw.normal(vocab).softmax(-1), draw.normal(vocab).softmax(-1)))


correction.mistake("that is p itself, so probable guesses come too often", "rest = (p - q).clamp(min=0)", "rest = p")
correction.mistake(
    "that is what p lacks; use what q lacks", "rest = (p - q).clamp(min=0)", "rest = (q - p).clamp(min=0)"
)
correction.mistake("the difference is not divided by its sum", "return rest / rest.sum()", "return rest")
correction.mistake("negative differences count, too: clamp them at 0", "(p - q).clamp(min=0)", "(p - q).abs()")
correction.mistake(
    "a softmax makes zeros positive and changes all ratios; divide by the sum instead",
    "return rest / rest.sum()",
    "return rest.softmax(-1)",
)
correction.variant(
    """
    def correction(p, q):
        more = torch.where(p > q, p - q, torch.zeros_like(p))
        return more / (1 - torch.minimum(p, q).sum())
    """
)


@part(15, points=3, excused=USUAL, seconds=60.0)
def judge(code, p, q, guesses, tries):
    """The right guesses are accepted, and each text comes up as often as it should in many tries."""
    told = [[], []]
    for texts, times in zip(told, (tries, 20), strict=True):
        generator = torch.Generator().manual_seed(1)
        for _ in range(times):
            texts.append(tuple(int(token) for token in code.judge(p, q, list(guesses), generator)))
    count = {}
    for tokens in told[0]:
        count[tokens] = count.get(tokens, 0) + 1
    return {"the same seed gives the same texts": told[1][:tries] == told[0][:20], "the likeliest": list(max(count, key=count.get)), "its share": count[max(count, key=count.get)] / tries,
            "the mean number of tokens": sum(len(tokens) * n for tokens, n in count.items()) / tries,
            "first tokens": [sum(n for tokens, n in count.items() if tokens[0] == first) / tries for first in range(p.shape[-1])]}  # fmt: skip


@judge.cases
def _(draw):
    sure = torch.eye(4).double()
    yield Case("certain guesses that are right are all accepted", (sure[[2, 0, 1]], sure[[2, 0]], [2, 0], 3))
    yield Case("the first wrong guess ends the pass with the model's token", (sure[[2, 3, 1]], sure[[2, 0]], [2, 0], 3))
    yield Case("without a guess there is one token", (sure[[3]], sure[:0], [], 3))
    p, q = (
        torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64),
        torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64),
    )
    yield Case(
        "a guess that is five times as probable in the draft is accepted one time in five",
        (p, q, [2], 1000),
        tolerance=0.05,
    )
    yield Case("a guess that is equally probable in the model is always accepted", (p, q, [1], 200), tolerance=0.05)
    yield Case("a guess that is more probable in the model is always accepted", (p, q, [0], 200), tolerance=0.05)
    right = [draw.whole(0, 3) for _ in range(draw.whole(6, 11))]
    yield Case("other certain guesses", (sure[[*right, 2]], sure[right], right, 3))
    right = [draw.whole(0, 3) for _ in range(draw.whole(33, 40))]
    yield Case(LARGE, (sure[[*right, 1]], sure[right], right, 3))


_TEST = "if torch.rand((), generator=generator) * q[at, guess] >= p[at, guess]:"
judge.mistake(
    "a guess is accepted if it is the model's most probable token: accept it with probability min(1, p / q)",
    _TEST,
    "if guess != p[at].argmax():",
)
judge.mistake(
    "a guess is accepted with probability p: accept it with min(1, p / q)",
    _TEST,
    "if torch.rand((), generator=generator) >= p[at, guess]:",
)
judge.mistake(
    "p and q are swapped in the test", _TEST, "if torch.rand((), generator=generator) * p[at, guess] >= q[at, guess]:"
)
judge.mistake("the replacement of a rejected guess is drawn from p: draw it from the correction",
              "torch.multinomial(correction(p[at], q[at]), 1, generator=generator)", "torch.multinomial(p[at], 1, generator=generator)")  # fmt: skip
judge.mistake("if all guesses are accepted, one more token is missing", "    return [*guesses, int(torch.multinomial(p[-1], 1, generator=generator))]",
              "    return list(guesses) or [int(torch.multinomial(p[-1], 1, generator=generator))]")  # fmt: skip
judge.mistake("the rejected guess stays in the text", "return [*guesses[:at], int(", "return [*guesses[: at + 1], int(")
judge.mistake(
    "the last token is drawn from the first row of p", "torch.multinomial(p[-1], 1", "torch.multinomial(p[0], 1"
)
judge.mistake("you continue after a rejected guess; stop there, because later guesses followed a token that is not in the text", "            return [*guesses[:at], int(torch.multinomial(correction(p[at], q[at]), 1, generator=generator))]",
              "            guesses = [*guesses[:at], int(torch.multinomial(correction(p[at], q[at]), 1, generator=generator)), *guesses[at + 1 :]]")  # fmt: skip
judge.mistake(
    "the correction is computed from the last rows; use those of the rejected guess",
    "correction(p[at], q[at])",
    "correction(p[-1], q[-1])",
)
judge.mistake(
    "a guess is always rejected if p is less than q; reject it only with probability 1 - p / q",
    _TEST,
    "if q[at, guess] > p[at, guess]:",
)
judge.mistake(
    "accepting and rejecting are swapped: accept a guess with probability min(1, p / q)",
    ">= p[at, guess]:",
    "< p[at, guess]:",
)
judge.mistake(
    "the test uses the row of p after the guess; row `at` belongs to guess `at`",
    ">= p[at, guess]:",
    ">= p[at + 1, guess]:",
)
judge.mistake(
    "the last token is always the most probable one; draw it from the last row of p",
    "int(torch.multinomial(p[-1], 1, generator=generator))]",
    "int(p[-1].argmax())]",
)
judge.mistake(
    "the generator is not used: draw every random number from it, so that a seed gives the same text",
    "torch.rand((), generator=generator)",
    "torch.rand(())",
)
judge.variant(
    """
    def judge(p, q, guesses, generator):
        kept = []
        for row, other, guess in zip(p, q, guesses):
            chance = min(1.0, float(row[guess] / other[guess]))
            if float(torch.rand(1, generator=generator)) < chance:
                kept.append(guess)
                continue
            return kept + torch.multinomial(correction(row, other), 1, generator=generator).tolist()
        return kept + torch.multinomial(p[len(guesses)], 1, generator=generator).tolist()
    """
)


@part(15, points=2, excused=USUAL)
def lookup(code, ids, ahead, vocab):
    """The guesses are copied from an earlier occurrence in the text, each with probability 1."""
    guesses, q = code.lookup(list(ids), ahead, vocab)
    return list(guesses), q


@lookup.cases
def _(draw):
    yield Case("the last two occurred together before", ([1, 2, 3, 4, 1, 2], 2, 6))
    yield Case("of two such occurrences the later one counts", ([1, 2, 3, 1, 2, 4, 0, 1, 2], 3, 6))
    yield Case("they never occurred together: no guess", ([1, 2, 3, 4, 2], 3, 6))
    yield Case("the occurrence may be at the very end", ([5, 5, 5, 5], 4, 6))
    yield Case("a text of one token", ([3], 4, 6))
    yield Case("no guesses requested", ([1, 2, 3, 1, 2], 0, 6))
    told = [draw.whole(6, 40) for _ in range(draw.whole(5, 9))]
    yield Case("a longer text", ([3, 4, *told, 5, 3, 4], 3, 41))
    told = [draw.whole(6, 40) for _ in range(draw.whole(33, 60))]
    yield Case(LARGE, ([3, 4, *told, 5, 3, 4], 3, 41))


lookup.mistake(
    "the first such occurrence is used, not the last",
    "places[-1] : places[-1] + ahead",
    "places[0] : places[0] + ahead",
)
lookup.mistake(
    "you look for only the last token; look for the last two",
    "ids[at - 2 : at] == ids[-2:]",
    "ids[at - 1 : at] == ids[-1:]",
)
lookup.mistake("the guesses start at the two tokens themselves: start after them", "ids[places[-1] : places[-1] + ahead]",
               "ids[places[-1] - 2 : places[-1] - 2 + ahead]")  # fmt: skip
lookup.mistake(
    "the end of the text matches itself, with nothing after it",
    "range(2, len(ids))",
    "range(2, len(ids) + 1)",
)
lookup.mistake(
    "there is one guess too many: return at most `ahead`",
    "ids[places[-1] : places[-1] + ahead]",
    "ids[places[-1] : places[-1] + ahead + 1]",
)
lookup.mistake(
    "the guesses have equal small probabilities; the draft is certain, so each guess has probability 1",
    "F.one_hot(torch.tensor(guesses, dtype=torch.long), vocab).float()",
    "torch.full((len(guesses), vocab), 1 / vocab)",
)
lookup.mistake(
    "you look for the last three ids; look for the last two",
    "ids[at - 2 : at] == ids[-2:]",
    "ids[at - 3 : at] == ids[-3:]",
)
lookup.variant(
    """
    def lookup(ids, ahead, vocab):
        guesses = []
        for start in range(len(ids) - 3, -1, -1):
            if ids[start] == ids[-2] and ids[start + 1] == ids[-1]:
                guesses = ids[start + 2 :][:ahead]
                break
        q = torch.zeros(len(guesses), vocab)
        for at, guess in enumerate(guesses):
            q[at, guess] = 1.0
        return guesses, q
    """
)


@part(15, points=3, excused=USUAL, seconds=60.0)
def speculate(code, prompt, new, ahead, stop, guessing, vocab, choice):
    """The text is right, each pass reads the right number of tokens, and no random number is reused."""
    model = code["model"]
    torch.manual_seed(4)
    with default_dtype(torch.float64):
        own = model.Transformer(model.Config(vocab, 16, 2, 2, 1, 12))
        for block in own.decoder.blocks:  # otherwise the text repeats a single token
            block.feed_forward.outer.weight.data *= 40
    passes = []
    own.register_forward_hook(lambda module, given, gave: passes.append(given[0].shape[1]))

    def one_hot(guesses):
        return torch.nn.functional.one_hot(torch.tensor(guesses, dtype=torch.long), vocab).double()

    def right(ids, n):
        guesses = []
        for _ in range(n):
            guesses.append(int(own(torch.tensor([[*ids, *guesses]]))[0, -1].argmax()))
            passes.pop()
        return guesses, one_hot(guesses)

    def wrong(ids, n):
        return [0] * n, one_hot([0] * n)

    draft = {"lookup": lambda ids, n: code.lookup(ids, n, vocab), "wrong": wrong, "right": right}[guessing]
    told = list(code.speculate(own, draft, list(prompt), new, ahead, stop, seed=3, **choice))
    made = list(passes)
    own.embedding.weight.data.zero_()  # all tokens are equally likely, so reusing a random number repeats the token
    drawn = list(code.speculate(own, lambda ids, n: ([], one_hot([])), [1], 9, ahead, seed=3))
    return {"the text": [int(token) for token in told], "tokens in each pass": made,
            "each pass draws new random numbers": len({int(token) for token in drawn}) > 1}  # fmt: skip


@speculate.cases
def _(draw):
    prompt, greedy = [1, 2, 3, 1, 2], {"temperature": 0}
    yield Case(
        "a draft that is always right gives one more token per guess in each pass",
        (prompt, 10, 4, None, "right", 11, greedy),
    )
    yield Case("a draft that is always wrong does not change the text", (prompt, 6, 3, None, "wrong", 11, greedy))
    yield Case("guesses from the text itself", (prompt, 12, 4, None, "lookup", 11, greedy))
    yield Case("it does not write more than requested", (prompt, 3, 8, None, "right", 11, greedy))
    yield Case("it ends before the stop token, wherever that is in a pass", (prompt, 12, 4, 4, "right", 11, greedy))
    choice = {"temperature": 0.7, "top_k": 1}
    yield Case("other sampling settings are passed on", (prompt, 8, 4, None, "lookup", 11, choice))
    yield Case("one token", (prompt, 1, 4, None, "lookup", 11, greedy))
    yield Case("another length", (prompt, draw.whole(7, 14), draw.whole(2, 5), None, "right", 11, greedy))
    prompt = [draw.whole(0, 10) for _ in range(draw.whole(33, 40))]
    yield Case(LARGE, (prompt, 5, 3, None, "right", 11, greedy))


_SHORT = "            shorten(cache, len(text) - 1)  # the last token has not been read\n"
speculate.mistake(
    "the caches still contain the rejected guesses: shorten them along the tokens, the third axis",
    _SHORT,
    "            pass\n",
)
speculate.mistake(
    "the caches are one token too long: the last token of the text has not been read",
    "shorten(cache, len(text) - 1)",
    "shorten(cache, len(text))",
)
speculate.mistake(
    "the caches are one token too short: a token is read twice",
    "shorten(cache, len(text) - 1)",
    "shorten(cache, len(text) - 2)",
)
speculate.mistake("the stop token is returned: end before it", "            if token == stop:\n                return\n            yield token",
                  "            yield token\n            if token == stop:\n                return")  # fmt: skip
speculate.mistake("it continues after the stop token", "                return\n", "                break\n")
speculate.mistake("it writes more than requested", "min(ahead, new - 1)", "ahead")
speculate.mistake(
    "the guesses are not read: the model produces one token at a time",
    "guesses, q = draft(text, min(ahead, new - 1))",
    "guesses, q = draft(text, 0)",
)
speculate.mistake("`choice` is not passed on", "rows(logits, temperature, **choice)", "rows(logits, temperature)")
speculate.mistake("every pass reads the whole text in spite of the caches", "caches = list(ids), [Cache() for _ in model.decoder.blocks]", "caches = list(ids), [Cache() for _ in model.decoder.blocks]",
                  "        unread = [*text[len(caches[0]) :], *guesses]", "        caches = [Cache() for _ in model.decoder.blocks]\n        unread = [*text, *guesses]")  # fmt: skip
speculate.mistake(
    "the model's row before the first guess is cut off: a pass has one more row than guesses",
    "-len(guesses) - 1 :",
    "-len(guesses) :",
)
speculate.mistake("`shorten` keeps the last tokens; keep the first", "cache.keys[:, :, :tokens], cache.values[:, :, :tokens]",
                  "cache.keys[:, :, -tokens:], cache.values[:, :, -tokens:]")  # fmt: skip
speculate.mistake("only the keys are shortened; shorten the values, too", "cache.keys, cache.values = cache.keys[:, :, :tokens], cache.values[:, :, :tokens]",
                  "cache.keys = cache.keys[:, :, :tokens]")  # fmt: skip
speculate.mistake("each pass creates a new generator, so the same random numbers come again: create it once, before the loop",
                  "        tokens = judge(rows", "        generator = torch.Generator().manual_seed(seed)\n        tokens = judge(rows")  # fmt: skip
speculate.mistake(
    "the text grows by all guesses, accepted or not; append the tokens that `judge` returns",
    "text, new = [*text, *tokens], new - len(tokens)",
    "text, new = [*text, *guesses, tokens[-1]], new - len(tokens)",
)
speculate.mistake(
    "the caches are shortened before the text has grown, so accepted guesses are read twice",
    "        text, new = [*text, *tokens], new - len(tokens)\n        for cache in caches:\n            shorten(cache, len(text) - 1)  # the last token has not been read\n",
    "        for cache in caches:\n            shorten(cache, len(text) - 1)\n        text, new = [*text, *tokens], new - len(tokens)\n",
)
speculate.mistake("`new` counts passes; count tokens", "new - len(tokens)", "new - 1")
speculate.mistake(
    "`stop` is compared only with the first token of a pass; it may be any of them",
    "            if token == stop:",
    "            if tokens[0] == stop:",
)
speculate.mistake(
    "the temperature is not passed on to `rows`", "rows(logits, temperature, **choice)", "rows(logits, **choice)"
)
speculate.mistake(
    "you judge the first rows of the logits; the guesses belong to the last ones",
    "[0, -len(guesses) - 1 :]",
    "[0, : len(guesses) + 1]",
)
speculate.variant(
    """
    @torch.no_grad()
    def speculate(model, draft, ids, new, ahead=4, stop=None, seed=0, temperature=1.0, **choice):
        dice, caches, told = torch.Generator().manual_seed(seed), [Cache() for _ in model.decoder.blocks], []
        read = 0
        while len(told) < new:
            text = ids + told
            guesses, q = draft(text, min(ahead, new - len(told) - 1))
            logits = model(torch.tensor([text[read:] + guesses]), caches)[0][len(text) - read - 1 :]
            fresh = judge(rows(logits, temperature, **choice), q, guesses, dice)
            read = len(text) + len(fresh) - 1
            for cache in caches:
                shorten(cache, read)
            for token in fresh:
                if token == stop:
                    return
                told.append(token)
                yield token
    """
)
