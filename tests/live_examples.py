"""One call of every moving figure, for the tests and for the browser."""

import math

import torch

from companion import AttentionConfig, FeedForwardConfig, ModelConfig, PositionConfig, chips
from companion.costs.chips import published_chip
from companion.data.tokenizer import BytePairTokenizer
from companion.families.registry import preset
from companion_school.study import live, micro_example

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
    "bounded": lambda: live.bounded(
        [1.5, 0.5],
        [[2, 1], [1, -1], [-1, 2]],
        words=["cat", "sat", "mat"],
        cap=20,
        caption="Figure 16.1. A row that grows.",
    ),
    "rewritten": lambda: live.rewritten(
        {"Ann": (1, 0, 0), "Ben": (0.6, 0.8, 0), "Cem": (0, 0, 1)},
        ["red", "blue"],
        [("Ann", "red"), ("Cem", "blue"), ("Ann", "blue"), ("Ben", "red")],
        decay=0.9,
        caption="Figure 17.1. A table that is written and read.",
    ),
    "mending": lambda: live.mending(
        [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], words=["cat", "dog", "owl"], caption="Figure 18.1. Guesses, resampled."
    ),
    "seats": lambda: live.seats([(0, 4, 6), (0, 30, 9), (2, 5, 3)], caption="Figure 18.3. Who sits when."),
    "travels": lambda: live.travels(
        {"denoising": [[0, 1, 0.02, 0], [0, 0.96, 0, 0], [0, 0.4, 0, 0.6]], "noising": [[0, 0.9, 0, 0]] * 3},
        words=["The", " frog", " said", " the"],
        start=(2, 1),
        caption="Figure 21.2. How far one vector moves the answer.",
    ),
    "pull": lambda: live.pull(
        [0.5, 0.3, 0.2],
        {"the checker": [0, 1, 0], "a hole": [0, 1, 2]},
        words=["a", "b", "c"],
        caption="Figure 20.2. P.",
    ),
    "group": lambda: live.group(size=6, count=2, right=5, wrong=(3, 8), caption="Figure 20.4. A group."),
    "sampling": lambda: live.sampling(
        [2.0, 1.4, 1.1, 0.3, -0.4, -1.2],
        words=["cat", "dog", "child", "moon", "clock", "idea"],
        caption="Figure 10.1. The small ... slept: six nouns, and three handles.",
    ),
    "triangle": lambda: live.triangle(
        ["the", "cat", "sat", "on", "the", "mat"], caption="Figure 10.2. The triangle grows."
    ),
    "roofline": lambda: live.roofline(
        chips.Chip(flops=1e15, bandwidth=3.4e12),
        ModelConfig(
            vocab=32000,
            d_model=4096,
            layers=32,
            context=8192,
            attention=AttentionConfig(32),
            feed_forward=FeedForwardConfig(4 * 4096, activation="relu"),
        ),
        kv_heads=(32, 8, 1),
        caption="Figure 10.3. A step on the roofline.",
    ),
    "edits": lambda: live.edits(
        {
            "small": [("GPT-2", preset("gpt2")), ("", preset("gpt2").with_(positions=PositionConfig("rotary")))],
            "large": [("LLaMA-7B", preset("llama-7b")), ("Mixtral", preset("mixtral-8x7b"))],
        },
        caption="Figure 13.2. One edit at two sizes.",
    ),
    "memory": lambda: live.memory(
        {"LLaMA-7B": preset("llama-7b"), "GPT-3": preset("gpt3-175b")},
        cards={"RTX 4090": 24, "H100": 80},
        start="LLaMA-7B",
        caption="Figure 13.4. Gigabytes.",
    ),
    "home": lambda: live.home(caption="Figure 6.2. Two ways home."),
    "film": lambda: live.film(
        {"two layers": [0.02, 0.2, 0.6, 0.98], "one layer": [0.02, 0.1, 0.2, 0.2]},
        [[torch.eye(5) * (at / 3) + (1 - at / 3) / 5, torch.eye(5)] for at in range(4)],
        updates=[0, 100, 140, 260],
        heads=["layer 0: previous token", "layer 1: induction"],
        tokens="abcab",
        caption="Figure 3.4. Two heads while they learn.",
    ),
    "hearing": lambda: live.hearing(
        words=["the", "bank", "by", "the", "old", "river"], who=1, caption="Figure 7.2. Who has heard of whom."
    ),
    "filler": lambda: live.filler(
        [[0, 1, 0.5, 0.3], [1, 0, 0, 0.3], [0, 1, 0, 0.3], [0, 0, 0, 0]],
        [[1, 5], [4, 4], [2, 1], [6, 0.5]],
        words=["he", "slept", "well"],
        caption="Figure 7.3. Filler.",
    ),
    "writing": lambda: live.writing(
        [[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]],
        [[0.1, 0.1, 0.75, 0.05], [0.8, 0, 0.1, 0.1], [0.1, 0, 0.1, 0.8]],
        [[0, 0, 0.2, 0.8], [0.1, 0, 0.8, 0.1], [0.9, 0, 0.1, 0]],
        source=["ein", "und", "zwanzig", "<end>"],
        vocabulary=["<end>", "and", "one", "twenty"],
        caption="Figure 8.1. A decoder writes.",
    ),
    "mask_and_shift": lambda: live.mask_and_shift(caption="Figure 8.4. What each slot has seen."),
    "sweep": lambda: live.sweep(
        [[1, 2, 4, 1], [4, 1, 1, 2], [2, 2, 1, 8], [1, 1, 2, 2]],
        [8, 4, 2, 16],
        caption="Figure 12.2. A tile sweeps over the scores.",
    ),
    "climb": lambda: live.climb(published_chip("a100-80gb"), 192, caption="Figure 12.3. Larger tiles."),
    "queues": lambda: live.queues(
        "THE ROUTER SENDS",
        {
            "left alone": [[t % 4 for t in range(16)], [t % 3 for t in range(16)], [3 * (t > 13) for t in range(16)]],
            "with a bias": [[t % 4 for t in range(16)], [t % 3 for t in range(16)], [t // 4 for t in range(16)]],
        },
        steps=[0, 10, 20],
        experts=4,
        caption="Figure 11.1. Letters queue at experts.",
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
    "lanes": lambda: live.lanes(
        ["twenty", "-", "one"],
        says={"<bos>": "twenty", "twenty": "-", "-": "twenty", "one": "<eos>"},
        caption="Figure 9.1. One decoder in two lanes.",
    ),
    "growing": lambda: live.growing(
        {0: (4.1, "ofof zx 7qu"), 100: (2.6, " the the mordel is"), 500: (1.6, " mean of a row is zero.")},
        prompt="The",
        known={"the", "mean", "of", "a", "row", "is", "zero"},
        marks={"compressor": 2.0, "counting": 1.9},
        caption="Figure 14.1. A model grows up.",
    ),
    "leaves": lambda: live.leaves(
        layers=61,
        heads=128,
        d_head=192,
        d_v=128,
        groups=8,
        latent=(512, 64),
        caption="Figure 15.1. What a layer keeps.",
    ),
    "budget": lambda: live.budget(
        [(1.0, 0.5, 0.5, 30.0, 300.0), (1.75, 0.6, 0.6, 60.0, 900.0)],
        compute=7.9e10,
        runs=[(1, 22_776, 2.6), (1, 106_816, 2.7), (0.5, 22_776, 2.8)],
        caption="Figure 23.3. One night, and models of every size.",
    ),
    "comparing": lambda: live.comparing(caption="Figure 25.3. Two models on the same questions."),
    "bands": lambda: live.bands([0, 0, 0, 2, 18, 40, 48, 63, 39, 9], caption="Figure 24.3. Links by similarity."),
    "plan": lambda: live.plan(
        {"laptop": (5e10, 1.0, 40), "8 H100s": (7.9e15, 0.4, 5600)},
        known={"this page": (127_296, 131_072), "SmolLM2-135M": (134.5e6, 2e12)},
        machine="8 H100s",
        caption="Figure 27.3. What hours buy.",
    ),
    "valley": lambda: live.valley(caption="Figure 14.3. A narrow valley."),
    "cut": lambda: live.cut(
        BytePairTokenizer.train(["the cat sat on the mat, the cat sat"] * 3, 300),
        "the naïve cat",
        caption="Figure 1.1. A text, cut into tokens.",
    ),
    "number_lines": lambda: live.number_lines(
        [0.3, -0.6, 0.1, 0.9, -0.2, 0.5], group=3, sizes=(1, 4, 16), caption="Figure 19.1. Weights between levels."
    ),
    "newton_schulz": lambda: live.newton_schulz(
        [0.8, 0.3, 0.05],
        {"Muon's": (3.4445, -4.775, 2.0315), "slow": (1.875, -1.25, 0.375)},
        start=2,
        caption="Figure 19.2. Singular values that go to 1.",
    ),
    "pipeline": lambda: live.pipeline(stages=3, micro_batches=5, caption="Figure 26.3. A pipeline over time."),
    "walk": lambda: live.walk(
        {"made up": micro_example.one_network()._asdict(), "trained": micro_example.trained()._asdict()},
        vocabulary=micro_example.VOCABULARY,
        start=("the", "boss", "is"),
        caption="Figure 0.1. A whole model.",
    ),
}
