"""Input that a command rejects before it creates anything: exit code 2, one sentence, and an unchanged folder."""

import os
import socket
from pathlib import Path

import pytest

from companion.commands.main import main
from companion.commands.preflight import try_to_write
from companion.training.distributed import launch

LONG, MANY = "x" * 300, "1" + "0" * 12
DEEP = "[" * 100_000
TRAIN = [
    "train",
    "--data",
    "t.txt",
    "--heads",
    "2",
    "--d-model",
    "8",
    "--layers",
    "1",
    "--context",
    "16",
    "--steps",
    "1",
]


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("the cat sat on the mat. " * 40)
    os.mkfifo("fifo")
    return tmp_path


def refused(arguments: list[str], capsys) -> str:
    before = sorted(path for path in Path().rglob("*"))
    assert main(arguments) == 2
    assert sorted(path for path in Path().rglob("*")) == before
    said = capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if ": error: " in line]
    assert "Traceback" not in said
    return line.partition(": error: ")[2]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--d-ff", "0"], "--d-ff 0: expected a whole number >= 1"),
        (["--vocab", MANY * 3], "--vocab 1000000000000"),
        (["--d-model", MANY], f"--d-model {MANY}: this model in training needs 1e26 B, this machine has"),
        (["--layers", MANY], f"--layers {MANY}: this model in training needs"),
        (["--batch", MANY], f"--batch {MANY}: an update needs"),
        (["--accumulate", MANY], f"--accumulate {MANY}: an update needs"),
        (["--d-model", "1" + "0" * 400], "this model in training needs 1e80"),
        (["--out", LONG], "--out xxx"),
        (["--out", "t.txt/run"], "--out t.txt/run: expected a folder or the path of a new one"),
        (["--out", ""], "--out '': expected a value, got an empty string"),
        (["--data", ""], "--data '': expected a value, got an empty string"),
        (["--data", "fifo"], "'fifo' is none of them"),
        (["--experts", "2", "--capacity", ".inf"], "--capacity .inf: expected a finite number"),
        (["--experts", "2", "--router-noise", ".inf"], "--router-noise .inf: expected a finite number"),
        (["--experts", "2", "--router-noise", "1" + "0" * 400], "...: expected a finite number"),
        (["--learning-rate", "1" + "0" * 400], "...: expected a number"),
        (["--learning-rate", "1e300"], "--learning-rate 1e+300: expected at most 3.4e+37"),
    ],
)
def test_absurd_sizes_and_places_are_refused_before_anything_is_made(home, capsys, flags, sentence):
    assert sentence in refused([*TRAIN, *flags], capsys)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("layers: 2\nlayers: 3\n", "the setting 'layers' occurs twice"),
        ("- 1\n", "expected flag names with values, got [1]"),
        ("", "expected flag names with values, got None"),
        ("d_ff: 0\n", "--d-ff 0: expected a whole number >= 1"),
        ("layers: true\n", "--layers True: expected a whole number >= 1"),
        ("data: null\n", "--data: expected at least one file"),
        ("d_model: null\n", "--d-model: expected a whole number >= 1, got nothing"),
        ("a b: 3\n", '--config: "a b": no such flag'),
        ("dropout: 1" + "0" * 400, "...: expected a finite number"),
        ("train: {layers: 3}\n", "train.layers: no such flag"),
        ("layers: " + "9" * 5000, "expected a file in YAML or JSON"),
        (DEEP, "expected a file in YAML or JSON"),
        ('{"layers": 2, "layers": 3}', "the setting 'layers' occurs twice"),
    ],
)
def test_a_file_of_settings_that_cannot_be_meant_is_refused(unchecked, home, capsys, text, sentence):
    Path("settings").write_text(text)
    assert sentence in refused(["train", "--data", "t.txt", "--config", "settings"], capsys)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--config", "fifo"], "expected a file, found something else"),
        (["train", "--config", "nowhere"], "--config 'nowhere': expected a file, found none"),
        (["train", "--model", LONG], "cannot be read (File name too long)"),
        (["train", "--model", "fifo"], "--model fifo: cannot be read (not a regular file)"),
        (["train", "--model", "deep"], "it is nested too deeply"),
        (["account", "--config", "deep"], "it is nested too deeply"),
        (["sizing", "--config", "deep"], "it is nested too deeply"),
        (["account", "--config", "fifo"], "expected a file, found something else"),
        (["sizing", "--context", "1" + "0" * 400], "--context 1000000000"),
        (["grade", ""], "FOLDER '': expected a value"),
        (["course", "export", ""], "FOLDER '': expected a value"),
        (
            ["course", "release", LONG, "--exercises", "2.3", "--out", "course"],
            "expected at most 100 characters, got 300",
        ),
        (["course", "export", ".", "--to", LONG], "--to xxx"),
        (["course", "export", LONG], "FOLDER xxx"),
        (["course", "notebooks", LONG], "FOLDER xxx"),
        (["course", "release", "week", "--exercises", "2.3", "--out", LONG], "--out xxx"),
        (["generate", "--prompt", "a", "--run", LONG], "--run xxx"),
        (["generate", "--prompt", "a", "--checkpoint", LONG], "--checkpoint xxx"),
        (["translate", "--run", LONG, "eins"], "--run xxx"),
        (["account", "--run", LONG], "--run xxx"),
        (["account", "--config", LONG], "--config xxx"),
        (["evaluate", "--data", LONG], "file name too long"),
        (["evaluate", "--run", f"./{LONG}/../{LONG}"], "--run xxx"),
        (["inspect", LONG], "FOLDER xxx"),
        (
            ["grade", ".", "--exercises", "2.1", "--seed-file", "fifo"],
            "--seed-file fifo: cannot be read (not a regular file)",
        ),
        (["course", "export", "marks", "--roster", "fifo"], "fifo: cannot be read (not a regular file)"),
        (["course", "export", "pipes"], "pipes/marks.csv: cannot be read (not a regular file)"),
        (
            ["train", "--data", "pipes", "--steps", "1"],
            "data: found no text in pipes (not UTF-8 text: 1 file)",
        ),
        (["account", "--run", "null"], "null: expected the folder of a run, but it has no run.json"),
        (["account", "--config", "~"], "--config ~: cannot be read"),
        (["review", "9" * 5000], "LESSON 999"),
        (["course", "verify", "9" * 5000], "exercise '999"),
        (["generate", "--run", ".", "--prompt-ids", "9" * 5000], "--prompt-ids '999"),
    ],
)
def test_other_commands_refuse_alike(home, capsys, arguments, sentence):
    Path("deep").write_text(DEEP)
    for folder in ("marks", "pipes"):
        Path(folder).mkdir()
    Path("marks", "marks.csv").write_text("assignment,student_id,score,max_score\nw,ada,3,10\n")
    os.mkfifo("pipes/marks.csv")
    assert sentence in refused(arguments, capsys)


def test_a_place_is_tried_and_left_as_it_was(tmp_path, monkeypatch):
    try_to_write(tmp_path / "new" / "marks", "--out")
    assert list(tmp_path.iterdir()) == []

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(ValueError, match=r"--out .*marks: cannot be written to \(no space left on device\)"):
        try_to_write(tmp_path / "new" / "marks", "--out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"RANK": "x"}, "RANK='x' in the environment: expected a whole number >= 0, as torchrun sets it"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK='x' in the environment: expected a whole number >= 0"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE='0' in the environment: expected a whole number >= 1"),
        ({"RANK": "2"}, "RANK=2 in the environment: expected a rank below WORLD_SIZE=2"),
        ({"WORLD_SIZE": "9" * 30}, "in the environment: expected at most 999999"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0' in the environment: expected a whole number >= 1"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT=99999 in the environment: expected at most 65535"),
        ({"MASTER_ADDR": "no.such.invalid"}, "MASTER_ADDR='no.such.invalid' in the environment: expected the address"),
        ({"RANK": "1"}, "could not reach the first process within 1 seconds (connection refused)"),
        ({}, "WORLD_SIZE=2 in the environment: expected this many processes within 1 seconds; some are missing"),
    ],
)
def test_a_process_that_cannot_meet_the_others_says_so_in_time(home, monkeypatch, capsys, changes, sentence):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    good = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    for name, value in (good | changes).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "PATIENCE", launch.timedelta(seconds=0.51))  # the messages round this to 1 second
    assert sentence in refused(TRAIN, capsys)
