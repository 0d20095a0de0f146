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
    "home": lambda: live.home(caption="Figure 6.2. Two ways home."),
    "hearing": lambda: live.hearing(
        words=["the", "bank", "by", "the", "old", "river"], who=1, caption="Figure 7.2. Who has heard of whom."
    ),
    "filler": lambda: live.filler(
        [[0, 1, 0.5, 0.3], [1, 0, 0, 0.3], [0, 1, 0, 0.3], [0, 0, 0, 0]],
        [[1, 5], [4, 4], [2, 1], [6, 0.5]],
        words=["he", "slept", "well"],
        caption="Figure 7.3. Filler.",
    ),
    "together": lambda: live.together(
        [1.0, 0.6], [0.3, 1.1], words=("bites", "dog"), caption="Figure 5.1. Two people on a carousel."
    ),
    "dials": lambda: live.dials(
        pairs((2.4, 1.2, 0.8), (1, 0.8, 0.9)),
        pairs((-0.1, 0.4, 1.9), (0.9, 1, 0.7)),
        caption="Figure 5.2. A head has dials.",
    ),
    "clocks": lambda: live.clocks(6, start=44, caption="Figure 4.1. The clocks of place 44."),
    "bricks": lambda: live.bricks(4, 3, caption="Figure 3.4. Four tokens, three heads."),
    "switchboard": lambda: live.switchboard(
        [1 - 0.05 * off.bit_count() ** 2 for off in range(16)],
        [["previous 0.8", "previous 0.4"], ["induction 0.9", "induction 0.8"]],
        marks=[("one layer", 0.16)],
        together=[0b0011, 0b1100, 0b1010],
        caption="Figure 3.3. Four heads, and what is left without some.",
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
