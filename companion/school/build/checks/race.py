"""Stage 11, the race: what comes back is a predictor of text, in time, better than none."""

import math

import torch

from companion.school.build.parts import part
from companion.school.checking.exercise import Case

_FREE = {
    law: "a race goes as it likes"
    for law in ("levels", "offset", "nan", "scale", "edge", "one", "dtype", "layout", "memory", "other", "tie")
}


@part(11, points=10, excused=_FREE, seconds=120.0)
def race(code, text, unseen, seconds):
    """A race of a few seconds: in time, tokens that give the text back, logits that look at nothing ahead, and something
    learned."""
    import time

    start = time.monotonic()
    runner = code.race(text, seconds)
    in_time = time.monotonic() - start < 3 * seconds + 10
    tokenizer, model, context = code["tokenizer"], runner.model, int(runner.context)
    ids = list(tokenizer.encode(unseen, runner.merges))
    whole = tokenizer.decode(ids, runner.merges) == unseen
    vocab, nats, ahead = 256 + len(runner.merges), 0.0, True
    with torch.no_grad():
        for at in range(0, len(ids) - 1, context):
            window = torch.tensor([ids[at : at + context + 1]])
            logits = model(window[:, :-1])
            shaped = tuple(logits.shape) == (1, window.shape[1] - 1, vocab)
            if not shaped:
                return in_time, whole, tuple(logits.shape[:2])
            nats -= logits.double().log_softmax(-1).gather(-1, window[:, 1:, None]).sum().item()
            other = window.clone()
            other[0, -2] = (other[0, -2] + 1) % 256
            before, after = logits[:, : window.shape[1] - 2], model(other[:, :-1])[:, : window.shape[1] - 2]
            ahead = ahead and torch.allclose(before, after, rtol=1e-2, atol=1e-2)
    size = len(unseen.encode())
    return in_time, whole, ahead, nats / math.log(2) / size < math.log2(vocab) * len(ids) / size


@race.cases
def _(draw):
    words = ["".join("etaoinshrdlu"[at] for at in draw.wholes(0, 11, draw.whole(2, 6))) for _ in range(60)]
    text = " ".join(words[at] for at in draw.wholes(0, 59, 1500))
    unseen = " ".join(words[at] for at in draw.wholes(0, 59, 150))
    yield Case("a race of six seconds", (text, unseen, 6.0))


race.mistake("nothing is learned: the weights never move", "            optimizer.step()\n", "")
race.mistake("it comes back too late: look at the clock in each update", "if done >= 1:", "if done >= 7:")
race.mistake("the model looks ahead: its attention is not causal", "is_causal=True", "is_causal=False")
race.mistake(
    "the merges are not those that the model was trained with",
    "return Runner(model.eval().cpu(), merges, context)",
    "return Runner(model.eval().cpu(), merges[:5], context)",
)
race.variant(
    '''
    def race(text, seconds):
        """Counts of pairs of bytes, and no training."""
        ids = torch.tensor(list(text.encode()))
        table = torch.full((256, 256), 0.01)
        table.index_put_((ids[:-1], ids[1:]), torch.ones(()), accumulate=True)

        class Pairs(nn.Module):
            def forward(self, ids):
                return table[ids].log()

        return Runner(Pairs(), [], 64)
    '''
)
