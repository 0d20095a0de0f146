"""The command line answers quickly, within 80 columns, and names a mistake in one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from companion.commands.main import COMMANDS, SCHOOL_COMMANDS, commands, main

ACTIONS = ("release", "export", "verify", "notebooks")
HELP = [[], *([name] for name in COMMANDS), *(["course", action] for action in ACTIONS)]
HELP += [["train", "--task", "number-words"]]


def said(arguments, capsys):
    assert main(arguments) == 0
    return capsys.readouterr().out


def refusal(arguments, capsys):
    """Return the lines that a wrong command line prints."""
    assert main(arguments) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    return caught.err.splitlines()


def test_all_flags_are_known_without_torch():
    code = (
        "import sys, companion\nfrom companion.commands.main import command_parser\ncommand_parser()\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy\nassert companion.ModelConfig and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("command", HELP, ids=" ".join)
def test_help_fits_into_80_columns_and_speaks_no_python(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for flag in ("--help", "--help-all") if command[0:1] in (["train"], ["tune"]) else ("--help",):
        text = said([*command, flag], capsys)
        assert text.startswith(f"usage: {' '.join(['companion', *command[: 2 if 'course' in command else 1]])}")
        assert max(map(len, text.splitlines())) <= 80
        for word in ("null", "type:", "Union", "Literal", "[options]", "subcommand", "%("):
            assert word not in text, word


@pytest.mark.parametrize("command", HELP, ids=" ".join)
def test_help_fits_a_narrow_terminal(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = said([*command, "--help"], capsys).splitlines()
    long = [line for line in lines if len(line) > 40 and len(line.split()) > 1]
    assert not long, long  # except for single longer words, such as paths


def test_help_of_train_is_short_first_and_says_how_to_see_the_rest(capsys):
    short, all_ = said(["train", "--help"], capsys), said(["train", "--help-all"], capsys)
    assert len(short.splitlines()) < 80 < len(all_.splitlines())
    assert "more flags, with sensible defaults: companion train --help-all" in short
    assert "--label-smoothing" in all_ and "--label-smoothing" not in short and "torchrun" in all_


def test_help_may_be_asked_for_in_other_words(capsys):
    assert said(["help", "generate"], capsys) == said(["generate", "--help"], capsys)
    assert said(["--version"], capsys).startswith("companion 0.")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["trian"], "companion: error: trian: no such command; did you mean train?"),
        (["--vresion"], "companion: error: --vresion: no such flag; did you mean --version?"),
        (
            ["check", "2.1"],
            "companion: error: check: no such command; check is for notebooks: from companion_school.exercises",
        ),
        (["train", "--minuts", "3"], "companion train: error: --minuts: no such flag; did you mean --minutes?"),
        (["train", "--minutes", "five"], "companion train: error: --minutes five: expected a number > 0"),
        (["train", "--minutes=nan"], "companion train: error: --minutes nan: expected a number > 0"),
        (["train", "--layers", "0"], "companion train: error: --layers 0: expected a whole number >= 1"),
        (["train", "--layers"], "companion train: error: --layers: expected a whole number >= 1, got nothing"),
        (
            ["train", "--activation", "swish"],
            "companion train: error: --activation swish: expected one of swiglu, gelu",
        ),
        (["train", "--task", "number-word"], "expected one of text, number-words; did you mean number-words?"),
        (["train", "--tied", "maybe"], "companion train: error: --tied maybe: expected true or false"),
        (["train", "--compile=yes"], "companion train: error: --compile: expected no value, got yes"),
        (["train", "books"], "companion train: error: books: not expected here"),
        (["generate", "--top-k", "-1"], "companion generate: error: --top-k -1: expected a whole number >= 0"),
        (["grade"], "companion grade: error: FOLDER is required: folder of submissions"),
        (
            ["course"],
            "expected an action: list, release, export, collect, mark, alike, oral, clone, verify, notebooks, "
            "slides or exam",
        ),
        (["course", "relaese"], "companion course: error: relaese: no such command; did you mean release?"),
        (["course", "verify", "--jobs", "0"], "companion course verify: error: --jobs 0: expected a whole number >= 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_refused_flag_is_one_sentence_in_the_words_of_who_typed_it(arguments, sentence, capsys):
    first, *rest = refusal(arguments, capsys)
    assert sentence in first
    assert len(rest) == 1 and rest[0].startswith("Flags and examples: companion") and rest[0].endswith("--help")


def test_a_file_of_flags_that_is_not_there_is_named(capsys):
    first, *_ = refusal(["train", "--config", "no.yaml"], capsys)
    assert first == "companion train: error: --config 'no.yaml': expected a file, found none"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("batch: 0\n", "--batch 0: expected a whole number >= 1"),
        ("laiers: 3\n", "laiers: no such flag (in the file given by --config); did you mean layers?"),
        ("[a\n", "expected a file in YAML or JSON"),
    ],
)
def test_a_mistake_in_a_file_of_flags_is_named_like_one_on_the_command_line(text, sentence, tmp_path, capsys):
    (tmp_path / "flags.yaml").write_text(text)
    assert sentence in refusal(["train", "--config", str(tmp_path / "flags.yaml")], capsys)[0]


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["train", "--out", "file/run"], "--out file/run"),
        (["course", "release", "week1", "--exercises", "2.1", "--out", "file/course"], "--out file/course"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_place_that_cannot_be_written_to_is_found_before_any_work(arguments, flag, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for work in ("companion.training.run.open_task",):
        monkeypatch.setattr(work, lambda *_, **__: pytest.fail("work was begun"))
    assert main(arguments) == 2
    assert (
        f"{flag}: expected a folder or the path of a new one, but {Path('file').absolute()} is not"
        in capsys.readouterr().err
    )
    assert os.listdir() == ["file"]


def test_without_what_it_needs_the_package_says_so_in_a_sentence():
    without_packages = [sys.executable, "-S", "-c", "import companion"]
    done = subprocess.run(without_packages, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith(
        "ModuleNotFoundError: companion was found, but its dependencies are not"
    )
    assert "`make lab` in the course's folder" in last and "Kernel > Change Kernel" in last
    assert "During handling" not in done.stderr


def test_without_the_school_its_commands_say_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr("companion.commands.main.entry_points", lambda group: [])
    commands.cache_clear()
    try:
        for name in SCHOOL_COMMANDS:
            assert main([name, "--help"]) == 2
            said = capsys.readouterr().err
            assert said.startswith(
                f"companion {name}: error: this command belongs to the school, which is not installed: pip"
            )
            assert said.endswith("[school]'\n")
        assert main(["account", "--help"]) == 0 and "course" not in commands()
    finally:
        commands.cache_clear()
