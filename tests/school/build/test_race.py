"""The race measures bits per byte on held-out text, rejects invalid predictors, and stores every run."""

import math
import time

import pytest
import torch

from companion.data.baselines import Baseline
from companion.data.corpora import Document
from companion.families.pretrained import load_pretrained
from companion_school.build import race
from companion_school.build.isolated_modules import World
from companion_school.build.parts import parts, patched, references
from companion_school.build.simulated_device import SimulatedDevice
from companion_school.build.stages import STAGES
from companion_school.build.stubs import plain_race, reference
from companion_school.build.workspace import lay_stubs, take

TOKENIZER = (
    "def encode(text, merges): return list(text.encode())\ndef decode(ids, merges): return bytes(ids).decode()\n"
)
RACE = """
import torch
from types import SimpleNamespace
class Bigram(torch.nn.Module):
    def __init__(self, text):
        super().__init__()
        counts = torch.full((256, 256), 0.01)
        for a, b in zip(text.encode(), text.encode()[1:]):
            counts[a, b] += 1
        self.register_buffer("logs", (counts / counts.sum(1, keepdim=True)).log())
    def forward(self, ids):
        return self.logs[ids]
def race(text, seconds):
    return SimpleNamespace(model=Bigram(text), merges=[], context=7)
"""


@pytest.fixture(autouse=True)
def small_texts(monkeypatch):
    known = (Document("a", "the cat sat on the mat. " * 40),), (Document("b", "the mat sat on the cat. " * 3),)
    monkeypatch.setattr(race, "texts", lambda: known)


def code(text=RACE):
    return World({"tokenizer": TOKENIZER, "race": text}, "race")


def test_every_byte_is_scored_once():
    bits = race.run(code(), 0.01).bits
    train, [document] = race.texts()
    runner = code().race(train[0].text, 0)
    ids = torch.tensor(list(document.text.encode()))
    logs = runner.model.logs[ids[:-1], ids[1:]].sum().item() / math.log(2)
    assert bits == pytest.approx((8 - logs) / document.bytes, rel=1e-6) and 0.5 < bits < 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("self.logs[ids]", "self.logs[ids.roll(-1)]", "change with the tokens that come after"),
        ("self.logs[ids]", "self.logs[ids] * float('nan')", "a probability of zero or NaN"),
        ("self.logs[ids]", "self.logs[ids][..., :9]", r"expected logits of shape \(1, token, 256\)"),
        ("context=7", "size=7", "context is missing"),
        ("context=7", "context=-7", "expected a context of at least one token, got -7"),
    ],
)
def test_what_is_no_prediction_is_refused(old, new, said):
    with pytest.raises(ValueError, match=said):
        race.run(code(RACE.replace(old, new)), 0.01)


def test_tokens_that_lose_text_are_refused():
    lossy = World(
        {"tokenizer": TOKENIZER.replace("list(text.encode())", "list(text.encode()[1:])"), "race": RACE}, "race"
    )
    with pytest.raises(ValueError, match="do not decode to the same text"):
        race.run(lossy, 0.01)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make a folder with a race of a bigram model, which also replaces the course's race."""
    monkeypatch.setattr(race, "baselines", lambda *_: [Baseline("byte 5-gram model", 2.0)])
    monkeypatch.setattr(race, "references", lambda stage: {"tokenizer": TOKENIZER, "race": RACE})
    (tmp_path / "race.py").write_text(RACE, "utf-8")
    (tmp_path / "tokenizer.py").write_text(TOKENIZER, "utf-8")
    return tmp_path


def test_runs_are_kept_and_stand_beside_the_courses_of_today(folder):
    said = []
    race.race(folder, 0.01, "first", say=said.append)
    told = race.race(folder, 0.01, "second", say=said.append)
    assert "The model was not saved" in told
    assert "byte 5-gram model" in told and "second" in told and "<- now" in told and race.COURSES in told
    assert [one.name for one in race.read_board(folder / race.BOARD)] == [race.COURSES, "first", "second"]
    assert [line.split(" for ")[0] for line in said] == ["first", race.COURSES, "second"]
    race.race(folder, 0.02, "third", alone=True, say=said.append)
    race.race(folder, 0.02, "fourth", say=said.append)
    assert [one.name for one in race.read_board(folder / race.BOARD)][3:] == ["third", race.COURSES, "fourth"]
    assert (folder / "race.png").read_bytes().startswith(b"\x89PNG")


ON_A_GPU = RACE.replace(
    "    return SimpleNamespace",
    "    if torch.cuda.is_available():\n        torch.cuda.memory_stats.count += 1\n    return SimpleNamespace",
)


@pytest.fixture
def gpu(monkeypatch):
    """Let PyTorch name a GPU, and count what is allocated there."""

    def allocated():
        return {"allocated_bytes.all.allocated": allocated.count}

    allocated.count = 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "memory_stats", allocated)
    monkeypatch.setattr(race, "processor", lambda: "a processor")


def test_a_race_on_a_gpu_has_a_row_for_it_and_one_for_the_processor(folder, gpu, monkeypatch):
    monkeypatch.setattr(race, "references", lambda stage: {"tokenizer": TOKENIZER, "race": ON_A_GPU})
    (folder / "race.py").write_text(ON_A_GPU, "utf-8")
    told = race.race(folder, 0.01)
    assert "This race ran on the processor and on the GPU, NVIDIA H200." in told and told.count("<- now") == 2
    raced = [(one.name, one.machine) for one in race.read_board(folder / race.BOARD)]
    assert raced == [(name, machine) for name in (race.COURSES, "yours") for machine in ("a processor", "NVIDIA H200")]
    race.race(folder, 0.01)
    assert len(race.read_board(folder / race.BOARD)) == 6  # the course's race does not run a second time


def test_a_race_that_leaves_the_gpu_idle_is_told_so(folder, gpu):
    told = race.race(folder, 0.01, alone=True)
    assert "This race did not use the GPU, NVIDIA H200, so it has no GPU row." in told
    assert [one.machine for one in race.read_board(folder / race.BOARD)] == ["a processor"]


def test_without_a_gpu_the_table_says_that_there_is_no_row(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "PyTorch found no GPU on this machine, so this race has no GPU row." in race.race(folder, 0.01, alone=True)


SMALLER = (
    ("(512, 8, 256, 64)", "(64, 2, 32, 4)"),
    ("d_model=128, layers=4, heads=4, kv_heads=2, d_ff=344", "d_model=32, layers=1"),
    ("min(128, ", "min(32, "),
    ("torch.autocast(device, ", 'torch.autocast("cpu", '),  # the simulated device has no autocast
)


@pytest.mark.parametrize("text", [reference(11), plain_race()], ids=["the course's", "stages 1 to 6"])
def test_a_race_trains_on_the_gpu_and_returns_its_model_on_the_processor(text, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "compile", lambda model: model)
    for old, new in SMALLER:
        text = text.replace(old, new)
    sources = references(STAGES[6]) | references(STAGES[11]) | {"race": text.replace('"cuda"', '"meta"')}
    with SimulatedDevice():
        runner = World(sources, "race").race("the cat sat on the mat. the dog sat on the log. " * 40, 1.0)
    assert {weight.device.type for weight in runner.model.parameters()} == {"cpu"}
    assert runner.model(torch.tensor([[1, 2, 3]])).shape == (1, 3, 256 + len(runner.merges))


def test_the_check_tells_the_mistakes_of_a_race_apart(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
    [part] = parts(11)
    text = " ".join(["the cat sat", "on the mat", "a dog ran"][n * n % 7 % 3] for n in range(300))
    told = {}
    for message, patch in part.mistakes:
        sources = references(STAGES[11]) | {"race": patched(11, patch)}
        try:
            told[message] = part.answer(sources)(text, text[:500], 0.2)
        except Exception as error:
            told[message] = repr(error)
    found = list(told.values())
    assert [
        message for message, seen in told.items() if found.count(seen) > 1 or seen == dict.fromkeys(seen, True)
    ] == []


def test_names_in_the_picture_do_not_lie_over_each_other(tmp_path):
    marks = [Baseline(f"byte {n}-gram model", bits) for n, bits in ((3, 2.30), (4, 2.21), (5, 2.20))]
    runs = [race.Result(f"a race with a rather long name {n}", 1 + 4 * (n % 2), 2.2 + n / 1000, 60, "", "")
            for n in range(40)]  # fmt: skip
    figure = race.draw(tmp_path / "race.png", runs, marks)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == race._NAMES
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])
    assert all(box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1 for box in boxes)


def test_a_race_that_comes_back_late_is_kept_and_said_to_be_late(folder, monkeypatch):
    monkeypatch.setattr(race, "_SECONDS", 0.0)
    late = RACE.replace("    return SimpleNamespace", "    import time; time.sleep(0.2)\n    return SimpleNamespace")
    (folder / "race.py").write_text(late, "utf-8")
    assert "0.001 min, but took 0 s" in race.race(folder, 0.001, "slow", alone=True)
    race.race(folder, 1, "in time", alone=True)
    assert [one.is_late for one in race.read_board(folder / race.BOARD)] == [True, False]


def test_without_a_race_of_its_own_a_folder_races_with_the_stages_1_to_6(tmp_path, monkeypatch):
    monkeypatch.setattr(race, "baselines", lambda *_: [])
    lay_stubs(tmp_path)
    with pytest.raises(ValueError, match="expected stages 1 to 6, .*, to be finished$"):
        race.race(tmp_path, 0.01, alone=True)
    take(tmp_path, [STAGES[number] for number in range(1, 7)])
    said = race.race(tmp_path, 0.05, alone=True)
    assert race.PLAIN in said and "everything else" in said
    assert f"The model was saved: companion generate --checkpoint {tmp_path / 'race'}" in said
    assert load_pretrained(tmp_path / "race").config.layers == 4
    [one] = race.read_board(tmp_path / race.BOARD)
    assert 0.1 < one.bits_per_byte < 8 and one.name == race.PLAIN
