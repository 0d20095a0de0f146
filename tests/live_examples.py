"""One call of every figure that moves, for the tests and for the browser."""

import math

from companion.data.tokenizer import BytePairTokenizer
from companion.study import live, micro_example

SENTENCE = ["The", "cat", "slept", ".", "It", "snored", "all", "night"]
QUERIES, KEYS = [[0, 2, 1, 0], [2, 0, 0, 0], [1, 0, 2, -1]], [[2, 0, 1, 0], [0, 2, 0, 0], [1, 0, 0, 1]]


def pairs(angles, lengths):
    return [f(angle) * length for angle, length in zip(angles, lengths, strict=True) for f in (math.cos, math.sin)]


EXAMPLES = {
    "collapse": lambda: live.collapse(
        [0.9, -0.4, 1.3, 0.1, -1.1, 0.5, -0.2, 1.0],
        words=SENTENCE,
        caption="Figure 2.1. The same eight scores at every width.",
    ),
    "hover": lambda: live.hover(
        QUERIES, KEYS, words=["cat", "slept", "it"], caption="Figure 2.2. Choose the word that looks."
    ),
    "sampling": lambda: live.sampling(
        [2.0, 1.4, 1.1, 0.3, -0.4, -1.2],
        words=["cat", "dog", "child", "moon", "clock", "idea"],
        caption="Figure 10.1. The small ... slept: six nouns, and three handles.",
    ),
    "together": lambda: live.together(
        [1.0, 0.6], [0.3, 1.1], words=("bites", "dog"), caption="Figure 5.1. Two people on a carousel."
    ),
    "dials": lambda: live.dials(
        pairs((2.4, 1.2, 0.8), (1, 0.8, 0.9)),
        pairs((-0.1, 0.4, 1.9), (0.9, 1, 0.7)),
        caption="Figure 5.2. A head has dials.",
    ),
    "cut": lambda: live.cut(
        BytePairTokenizer.train(["the cat sat on the mat, the cat sat"] * 3, 300),
        "the naïve cat",
        caption="Figure 1.1. A text, cut into tokens.",
    ),
    "walk": lambda: live.walk(
        {"made up": micro_example.one_network()._asdict(), "trained": micro_example.trained()._asdict()},
        vocabulary=micro_example.VOCABULARY,
        start=("the", "boss", "is"),
        caption="Figure 0.1. A whole model.",
    ),
}
