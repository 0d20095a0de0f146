"""A progress bar is shown on a terminal, and nothing in a pipe or for a program."""

import importlib
import io
import os
import pty
import shutil
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_tokenizers import LINES, with_spaces_marked
from theirs import llama

from companion.commands.main import main
from companion.data.large_corpora import read_large
from companion.families.pretrained import load_pretrained
from companion.ground import waiting
from companion.training.tasks import tune
from companion_school.build import workspace
from companion_school.build.stages import Stage
from companion_school.course import slides

COURSE = Path(__file__).parents[2] / "notebooks"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Make a folder with a run, a tuned run, a published checkpoint, and the first stages of the build track."""
    home = tmp_path_factory.mktemp("made")
    (home / "book.txt").write_text("\n".join(LINES * 9), "utf-8")
    small = [
        "--d-model",
        "16",
        "--layers",
        "1",
        "--heads",
        "2",
        "--context",
        "128",
        "--vocab",
        "280",
        "--device",
        "cpu",
    ]
    run = ["--data", str(home / "book.txt"), "--out", str(home / "run"), "--batch", "2", "--steps", "2"]
    assert main(["train", *small, *run]) == 0
    tuned = [
        "--tokens",
        "2",
        "--start",
        str(home / "run"),
        "--task",
        "names",
        "--steps",
        "1",
        "--batch",
        "2",
        "--device",
        "cpu",
    ]
    assert main(["tune", *tuned, "--out", str(home / "tuned")]) == 0
    (home / "llama").mkdir()
    size = with_spaces_marked(home / "llama")
    llama(vocab_size=size, max_position_embeddings=64, bos_token_id=1, eos_token_id=2).save_pretrained(home / "llama")
    workspace.lay_stubs(home / "my")
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path, monkeypatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(waiting, "DELAY", 0)
    return tmp_path


WAITS = {
    "inspect llama": ["reading model.safetensors", "loading"],
    "generate --checkpoint llama --prompt The --tokens 3": ["loading", "reading the prompt"],
    "generate --checkpoint llama --prompt The --tokens 3 --weights int8": ["weights in int8"],
    "generate --checkpoint llama --prompt The --prompt A --tokens 3": ["token"],
    "generate --run run --prompt The --tokens 3 --beams 2": ["prompt"],
    "export out --checkpoint llama": ["loading", "writing out"],
    "explore llama --text fox --out page.html": ["loading", "reading the text"],
    "evaluate --run run": ["reading the text", "measuring", "compressing it"],
    "evaluate --run run --weights int4 --calibrate book.txt": ["rounding"],
    "evaluate --run tuned": ["answering 4 prompts"],
    "sizing gpt2": ["counting"],
    "build check 1 --folder my": ["trying tokenizer.py"],
    "course slides 05 --out slides": ["slides of lesson 05"],
}
"""Commands that may take seconds with models, texts and lessons as large as people have, and what each then says."""


@pytest.mark.parametrize("command", WAITS)
def test_a_command_shows_on_a_terminal_what_it_is_at_and_nothing_in_a_pipe(
    command: str, home: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("companion_school.build.check.examine_stage", examined)
    monkeypatch.setattr(slides, "lessons_folder", lambda named: COURSE)
    monkeypatch.setattr(slides, "write", lambda *_: "slides.html")
    monkeypatch.setattr(tune, "MEASURED", 4)
    monkeypatch.setattr(tune, "MEASURED_BRIEFLY", 4)
    with monkeypatch.context() as seen:
        seen.setattr("sys.stderr", terminal := Terminal())
        assert main(command.split()) == 0
    shown, printed = terminal.getvalue(), capsys.readouterr().out
    for what in WAITS[command]:
        assert f"\r{what}" in shown or f"{what}/s" in shown or f"?{what}" in shown, shown
    assert "\r" not in printed
    shutil.rmtree("out", ignore_errors=True)
    assert main(command.split()) == 0
    again = capsys.readouterr()
    assert again.out == printed and "\r" not in again.err and not any(what in again.err for what in WAITS[command])
    assert not waiting._asked.get()


def examined(stage: Stage, folder: Path) -> SimpleNamespace:
    return SimpleNamespace(stage=stage, is_right=True)


def test_a_program_that_imports_the_package_sees_no_bar(home: Path, monkeypatch) -> None:
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    load_pretrained("llama")
    read_large(["book.txt"])
    assert terminal.getvalue() == ""


def test_what_is_over_at_once_is_not_shown(monkeypatch) -> None:
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with waiting.bars():
        with waiting.waiting("a wait"), waiting.counting(3, unit="part") as done:
            done(1)
        assert list(waiting.counted(range(3), unit="thing")) == [0, 1, 2]
    assert terminal.getvalue() == ""


def test_a_wait_without_parts_says_how_long_it_is_by_now_and_goes_when_it_is_over(monkeypatch) -> None:
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    monkeypatch.setattr(waiting, "DELAY", 0.0)
    monkeypatch.setattr(waiting, "EVERY", 0.01)
    with waiting.bars(), pytest.raises(KeyError), waiting.waiting("the long way"):
        until = time.monotonic() + 30
        while terminal.getvalue().count("the long way: 00:0") < 2 and time.monotonic() < until:
            time.sleep(0.01)
        raise KeyError  # an error ends the bar as well
    shown = terminal.getvalue()
    assert shown.count("the long way: 00:0") >= 2 and shown.endswith("\r") and shown.split("\r")[-2].isspace()


def test_a_command_says_that_it_is_loading_a_package(tmp_path, monkeypatch) -> None:
    (tmp_path / "slow_package.py").write_text("import time\n\ntime.sleep(0.2)\nvalue = 7\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    monkeypatch.setattr(waiting, "DELAY", 0.0)
    finders = list(sys.meta_path)
    with waiting.bars(), waiting.loading("slow_package"):
        assert importlib.import_module("slow_package").value == 7
    assert "\rloading slow_package: 00:0" in terminal.getvalue() and sys.meta_path == finders
    with waiting.loading("no_such_package"), pytest.raises(ModuleNotFoundError, match="no_such_package"):
        importlib.import_module("no_such_package")
    assert sys.meta_path == finders


def test_the_first_thing_that_a_command_shows_is_that_it_is_loading_pytorch() -> None:
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))  # a terminal without a size shows no bar
    lines = ("from companion.commands.main import main", "from companion.ground import waiting")
    code = "\n".join([*lines, "waiting.DELAY = 0", "main(['account', 'no-such-model'])"])
    subprocess.run([sys.executable, "-c", code], stderr=terminal, check=True)
    os.close(terminal)
    shown = os.read(controller, 10_000).decode()
    assert shown.lstrip("\r").startswith("loading torch: 00:0") and "error: name='no-such-model'" in shown, shown
