"""Examination questions.

Each number is calculated here in a second way, broken code fails where the corrected code passes, and no paper reveals
what its key contains.
"""

import itertools
import math
import re
from random import Random

import pytest
import torch

from authoring.lesson import lessons
from companion import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LatentConfig,
    ModelConfig,
    MoEConfig,
    RMSNorm,
    Transformer,
    account,
    rotary_angles,
    rotate,
    sinusoidal,
)
from companion.commands.main import main
from companion.layers.attention import Attention
from companion_school.course.exam import paper
from companion_school.course.exam.paper import exam_questions
from companion_school.exercises.lesson_19 import rounded_bytes

QUESTIONS = exam_questions()
LESSONS = [lesson.number for lesson in lessons()]
SECRETS = [b"a secret of twenty letters", b"another one of some letters"]


def numbers(text):
    """Return the numbers of a question in order, as a student reads them."""
    return [float(found.replace(",", "")) for found in re.findall(r"(?<![\w^.])-?\d[\d,]*(?:\.\d+)?", text)]


def parameters(layer):
    return sum(weight.numel() for weight in layer.parameters())


def attention_parameters(width, heads, kv, head):
    assert width == heads * head
    with torch.device("meta"):
        return parameters(Attention(int(width), AttentionConfig(heads=int(heads), kv_heads=int(kv))))


def whole(layers, width, vocab):
    with torch.device("meta"):
        config = ModelConfig(
            vocab=int(vocab),
            d_model=int(width),
            layers=int(layers),
            context=16,
            attention=AttentionConfig(heads=4),
            feed_forward=FeedForwardConfig(d_ff=3 * int(width), activation="swiglu"),
            embedding=EmbeddingConfig(tied=False),
        )
        return parameters(Transformer(config))


def largest_score(width, of_q, of_k):
    """Return the score of a query and a key with the same direction, after the package's norms."""
    norms = [RMSNorm(width, eps=0.0).double() for _ in range(2)]
    with torch.no_grad():
        for norm, gain in zip(norms, (of_q, of_k), strict=True):
            norm.weight.fill_(gain)
    row = torch.randn(width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return norms[0](row) @ norms[1](row) / math.sqrt(width)


def met(width, experts, shared, hidden, visited):
    """Return the number of parameters in a layer, without those of experts that are not used."""
    config = ModelConfig(
        vocab=9,
        d_model=width,
        layers=1,
        context=8,
        attention=AttentionConfig(1),
        feed_forward=FeedForwardConfig(hidden),
        moe=MoEConfig(experts, visited, shared=shared),
    )
    counted = account.parameters(config)
    return counted.active - counted.total + counted.feed_forward + counted.router


def in_full_and_latent(layers, rank, turned, heads):
    """Return the ratio of the bytes that two models of the package cache per token."""
    latent = LatentConfig(kv_lora_rank=int(rank), d_rope=int(turned))
    sizes = AttentionConfig(int(heads), d_head=128, d_v=128, latent=latent)
    full = AttentionConfig(int(heads), d_head=128 + int(turned), d_v=128)
    kept = [
        account.cache_bytes(
            ModelConfig(
                vocab=9, d_model=64, layers=int(layers), context=16, attention=one, feed_forward=FeedForwardConfig(8)
            ),
            tokens=1,
        )
        for one in (full, sizes)
    ]
    return kept[0] / kept[1]


def turned(degrees, a, b, at, there):
    def turn(x, place):
        angle = torch.full((1, 1), place * math.radians(degrees), dtype=torch.float64)
        return rotate(torch.tensor(x, dtype=torch.float64).view(1, 1, 1, 2), angle, "half")

    return (turn([a, 0.0], at) * turn([0.0, b], there)).sum().item()


def running_days(billions, tokens, devices, peak, share):
    return 6 * billions * tokens * 1e18 / (peak * 1e12 * share / 100) / devices / 3600 / 24


def blocks_of(slots, texts, prefix, more):
    """Count the blocks of `texts` texts with a common prefix, each identified by all tokens up to its end.

    prefix: number of tokens that all texts share. more: number of tokens that each has in addition.
    """
    rows = [[0] * prefix + [1 + text] * more for text in range(texts)]
    full = {tuple(row[:end]) for row in rows for end in range(slots, len(row) + 1, slots)}
    return len(full) + sum(len(row) % slots > 0 for row in rows)


def any_right(drawn, right, tries):
    """Return the share of all choices of `tries` answers that contain a right one."""
    ways = [*itertools.combinations([True] * right + [False] * (drawn - right), tries)]
    return sum(map(any, ways)) / len(ways)


def tosses(wins, losses):
    """Return twice the share of all outcomes of wins + losses tosses with at least `wins` heads."""
    outcomes = [sum(one) for one in itertools.product((0, 1), repeat=wins + losses)]
    return 2 * sum(heads >= wins for heads in outcomes) / len(outcomes)


def shared_runs(words, edits):
    """Return the similarity of two sets of five-word runs if every tenth word differs, up to `edits` words."""
    texts = [[at if at % 10 or at > 10 * edits or not at else (at, copy) for at in range(words)] for copy in (0, 1)]
    runs = [{tuple(text[at : at + 5]) for at in range(words - 4)} for text in texts]
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


def shrinks(stages, micro, percent):
    """Return by how many percent the time of a batch shrinks if it is cut finer, so that the bubble takes `percent`."""
    finer = (stages - 1) * (100 / percent - 1)
    before, after = ((number + stages - 1) / number for number in (micro, finer))
    return 100 * (before - after) / before


AGAIN = {
    "0.chance": lambda n: torch.softmax(torch.tensor([1.0, n[1], n[2]], dtype=torch.float64).log(), 0)[2],
    "0.loss": lambda n: torch.nn.functional.cross_entropy(torch.zeros(1, int(n[1])), torch.tensor([0])),
    "1.tied": lambda n: torch.nn.Embedding(int(n[0]), int(n[1]), device="meta").weight.numel(),
    "1.vocabulary": lambda n: 2**8 + sum(n),
    "2.variance": lambda n: torch.full((int(n[0]),), n[2] * n[4]).sum() / n[0],
    "2.average": lambda n: torch.softmax(torch.tensor([1.0, n[1], 0.0]).log(), 0) @ torch.tensor(n[3:6]),
    "3.parameters": lambda n: attention_parameters(n[0], n[1], n[2], n[3]),
    "3.sorted": lambda n: torch.arange(int(n[0])).view(int(n[1]), int(n[2])).eq(int(n[-1])).nonzero()[0, 0],
    "4.wavelength": lambda n: 2 * math.pi / (n[1] ** (-2 * n[2] / n[0])),
    "4.product": lambda n: torch.dot(*sinusoidal(torch.tensor(n[2:4]).long(), 4, base=100.0).double()),
    "5.turn": lambda n: turned(n[0], n[1], n[4], n[5], n[6]),
    "5.slow": lambda n: (rotary_angles(torch.tensor([int(n[3])]), int(n[0]), base=n[1]) < 2 * math.pi).sum(),
    "6.gated": lambda n: 2 * n[0] / 3,
    "6.rms": lambda n: torch.nn.functional.rms_norm(torch.tensor(n[2:4]).double(), (2,), eps=0.0)[0] * n[0],
    "7.filler": lambda n: sum(x * x for x in n[:4]) / max(n[:4]) ** 2 / 4,
    "7.reach": lambda n: next(layers for layers in range(1, 99) if layers * n[0] >= n[1]),
    "8.seen": lambda n: torch.ones(int(n[1]), int(n[1])).tril().sum() + n[0] * n[1],
    "8.layer": lambda n: 2 * attention_parameters(n[0], 4, 4, n[0] / 4) + 2 * n[0] * 4 * n[0],
    "9.unbroken": lambda n: math.exp(n[1] * math.log(n[0] / 100)),
    "9.mean": lambda n: torch.tensor([n[1]] * int(n[0]) + [n[3]] * int(n[2])).mean(),
    "10.cache": lambda n: 2 * n[0] * n[4] * n[2] * n[3] * 16 / 8,
    "10.temperature": lambda n: math.exp(math.log(n[1]) / n[2]),
    "11.active": lambda n: n[3] * (n[1] * n[2] * 3) + n[0] * n[1],
    "11.capacity": lambda n: -(-n[0] * n[1] * n[3] // n[2]),
    "12.days": lambda n: running_days(n[0], n[1], n[2], n[3], n[4]),
    "12.even": lambda n: (2 * 4 * n[0] ** 2 + 2 * 2 * n[1] * n[0] ** 2) / (2 * 2 * n[0]),
    "13.count": lambda n: whole(n[0], n[1], n[3]),
    "13.bits": lambda n: n[0] * (n[3] * n[1] + n[2]) / n[3] / 8,
    "14.rate": lambda n: n[0] * math.cos(math.pi / 2 * (n[4] - n[1]) / (n[3] - n[1])) ** 2,
    "14.clip": lambda n: torch.tensor(n[:2])[0] * n[2] / torch.tensor(n[:2]).norm(),
    "15.latent": lambda n: in_full_and_latent(n[0], n[1], n[2], n[3]),
    "15.local": lambda n: sum(n[3] if at % n[1] == n[1] - 1 else min(n[2], n[3]) for at in range(int(n[0]))),
    "16.bound": lambda n: largest_score(int(n[0]), n[1], n[2]),
    "16.met": lambda n: met(*map(int, n)),
    "17.table": lambda n: torch.zeros(int(n[0]), int(n[1]), int(n[2])).numel() / (2 * n[3] * n[4]),
    "17.written": lambda n: n[3] * n[1] + n[4] * (n[2] - n[3] * n[1]),
    "18.tokens": lambda n: sum(n[0] ** i for i in range(int(n[1]) + 1)) / (1 + n[1] * n[2]),
    "18.blocks": lambda n: blocks_of(*map(int, n)),
    "19.bytes": lambda n: rounded_bytes(*map(int, n[:4]), 16, int(n[5])),
    "19.makes_up": lambda n: n[3] - torch.linalg.solve(torch.ones(1, 1), torch.full((1, 1), n[1] * -n[2])).item(),
    "20.adapter": lambda n: n[0] * n[1] / (torch.zeros(int(n[0]), int(n[2])).numel() + n[2] * n[1]),
    "20.pass": lambda n: any_right(*map(int, n)),
    "21.credit": lambda n: torch.tensor(n[0:2]) * torch.tensor(n[5:7]) @ torch.tensor(n[7:9]) / n[4],
    "21.share": lambda n: 1 - (n[1] - n[2]) / (n[1] - n[0]),
    "22.wide": lambda n: n[1] / (n[2] / n[0]),
    "22.clip": lambda n: 10 ** (0.5 * (math.log10(n[1]) - math.log10(n[0]))),
    "23.night": lambda n: running_days(n[0], n[0] * n[1], n[2], n[3], 100),
    "23.crossing": lambda n: 3 * (n[2] * n[3] - n[0] * n[1]) / (n[0] - n[2]),
    "24.link": lambda n: 1 - math.prod([1 - math.prod([n[2]] * int(n[1]))] * int(n[0])),
    "24.jaccard": lambda n: shared_runs(int(n[0]), int(n[1])),
    "25.questions": lambda n: (torch.arange(100) < n[0]).double().var(correction=0) / (n[1] / 100) ** 2,
    "25.paired": lambda n: tosses(int(n[1]), int(n[2])),
    "26.ring": lambda n: sum(n[1] * n[2] / n[0] / n[3] for _ in range(2 * int(n[0]) - 2)),
    "26.bubble": lambda n: shrinks(*n[:3]),
    "27.dollars": lambda n: math.sqrt(n[-2] / n[-3] * 3.6 * n[-4] / 6 / n[-1] * 1e6),
    "27.energy": lambda n: n[-1] * sum(n[-3] / 1000 for _ in range(int(n[-2]))),
}


def test_there_are_four_for_each_lesson_of_all_three_kinds():
    for lesson in LESSONS:
        kinds = sorted(one.kind for one in QUESTIONS.values() if one.lesson == lesson)
        assert kinds == ["code", "number", "number", "reason"], lesson
    assert set(AGAIN) == {id for id, one in QUESTIONS.items() if one.kind == "number"}


@pytest.mark.parametrize("id", AGAIN)
def test_a_number_is_what_another_way_gives(id):
    answers = set()
    for seed in range(6):
        asked = QUESTIONS[id].make(Random(seed))
        assert float(AGAIN[id](numbers(asked.text))) == pytest.approx(asked.answer, rel=2e-5, abs=1e-6), asked.text
        answers.add(asked.answer)
    assert len(answers) > 1, "every seed has one answer"


@pytest.mark.parametrize("id", [id for id, one in QUESTIONS.items() if one.kind == "code"])
def test_what_is_broken_fails_and_one_line_mends_it(id):
    asked = QUESTIONS[id].make(Random(0))
    torch.manual_seed(0)
    exec(f"{asked.mended}\n{asked.proof}", {"torch": torch})
    with pytest.raises((AssertionError, RuntimeError)):
        exec(f"{asked.code}\n{asked.proof}", {"torch": torch})
    before, after = asked.code.splitlines(), asked.mended.splitlines()
    assert sum(line not in after for line in before) <= 1 and len(after) - len(before) in (0, 1)


def test_a_paper_has_no_word_of_its_key():
    for id, question in QUESTIONS.items():
        text = paper.paper("final", [question], SECRETS[0], "A")
        asked = paper.asked(question, SECRETS[0], "A")
        assert asked.text in text and asked.key not in text, id
        assert not asked.mended or asked.mended not in text
        assert asked.key in paper.key("final", [question], SECRETS[0], "A")


def test_numbers_follow_from_the_secret_and_from_the_version():
    def of(secret, version):
        return paper.paper("final", paper.chosen([2, 12], 4, secret), secret, version)

    assert of(SECRETS[0], "A") == of(SECRETS[0], "A")
    for id, question in QUESTIONS.items():  # another student's numbers differ in every question
        texts = {paper.asked(question, SECRETS[0], version).text for version in "ABC"}
        assert len(texts) == (3 if question.kind == "number" else 1), id
    orders = [paper.ordered(paper.chosen([2, 12], 4, SECRETS[0]), SECRETS[0], version) for version in "AB"]
    assert orders[0] != orders[1] and {*orders[0]} == {*orders[1]}
    assert of(SECRETS[0], "A") != of(SECRETS[1], "A")
    picks = {tuple(one.id for one in paper.chosen(LESSONS, 1, secret)) for secret in SECRETS}
    assert len(picks) == 2


def test_the_key_is_not_in_what_students_get_and_not_made_without_the_seed(tmp_path, capsys):
    seed = tmp_path / "secret.seed"
    seed.write_bytes(SECRETS[0])
    out = ["--lessons", "0-4", "--each", "2", "--versions", "2", "--out", str(tmp_path / "course")]
    assert main(["course", "exam", "midterm", *out]) == 2
    assert "--seed-file" in capsys.readouterr().err and not (tmp_path / "course").exists()
    assert main(["course", "exam", "midterm", *out, "--each", "5", "--seed-file", str(seed)]) == 2
    assert "--each 5: expected at most 4" in capsys.readouterr().err and not (tmp_path / "course").exists()
    assert main(["course", "exam", "midterm", *out, "--seed-file", str(seed)]) == 0
    given = sorted((tmp_path / "course" / "release").rglob("*.*"))
    assert [file.name for file in given] == ["midterm_A.html", "midterm_A.md", "midterm_B.html", "midterm_B.md"]
    assert all("10 questions" in file.read_text("utf-8") for file in given)
    page = given[0].read_text("utf-8")
    assert "Name:" in page and page.count("<section>") == 10 and "$" not in page
    assert "Only for the marker" in (tmp_path / "course" / "midterm_key.md").read_text("utf-8")
    assert main(["course", "exam", "midterm", *out, "--seed-file", str(seed)]) == 2
    assert main(["course", "exam", "other", "--lessons", f"{LESSONS[-1] + 1}", *out[2:], "--seed-file", str(seed)]) == 2
    assert f"expected lessons from 0 to {LESSONS[-1]}" in capsys.readouterr().err
