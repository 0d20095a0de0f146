"""Command lines, and files of settings: each in this process, as `companion` itself runs them."""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from hypothesis import strategies as st

from companion.commands import train
from companion.commands.main import main
from companion.training.distributed import launch
from companion.training.settings import TextSettings, flag
from fuzz.odd import changed, damaged, odd
from fuzz.oracle import REFUSED, WORKS, Fault, Kind, state_of

FLAGS = sorted(flag(f) for f in fields(TextSettings))
SWITCHES = ("compile", "tensorboard", "shard")
HARMLESS = {
    "layers": 2,
    "d_model": 8,
    "heads": 2,
    "context": 16,
    "steps": 3,
    "dropout": 0.1,
    "norm": "rms",
    "tied": True,
}


@cache
def _home() -> Path:
    """A folder of this process's own, with a text, and things that are no text."""
    home = Path(tempfile.mkdtemp(prefix="fuzz-"))
    (home / "text.txt").write_text("the cat sat on the mat. " * 50, "utf-8")
    (home / "deep.json").write_text("[" * 100_000, "utf-8")
    (home / "folder").mkdir()
    return home


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def called(home: Path, arguments: list[str], environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """What becomes of a command in the folder `home`: its exit code, what it printed, and what it said of errors."""
    printed, said = io.StringIO(), io.StringIO()
    here = os.getcwd()
    os.chdir(home)
    try:
        with (
            mock.patch.object(launch, "PATIENCE", timedelta(seconds=1)),
            mock.patch.dict(os.environ, environment or {}),
            mock.patch.object(sys, "stdin", io.StringIO("")),
            redirect_stdout(printed),
            redirect_stderr(said),
        ):
            code = main(arguments)
    finally:
        os.chdir(here)
    return code, printed.getvalue(), said.getvalue()


def _run(arguments: list[str], environment: dict[str, str] | None = None) -> tuple[int, str, Any]:
    """The exit code of a command, what it said, and the settings of the training that it was about to begin."""
    begun: list[Any] = []

    def begin(folder: Any, settings: Any, *_: Any) -> int:
        begun.append(settings)
        return 0

    before = state_of(_home())
    with mock.patch.object(train, "_train_into", begin):
        code, printed, said = called(_home(), arguments, environment)
    if state_of(_home()) != before:
        raise Fault("something was written")
    return code, printed + said, begun[0] if begun else None


def refusal_of(code: int, said: str, names: list[str]) -> str:
    """`REFUSED`, if a command refused as promised: with exit code 2, in a sentence that has one of the `names`."""
    errors = [line for line in said.splitlines() if ": error: " in line]
    if code != 2 or len(errors) != 1:
        raise Fault(f"exit code {code}, and it says: {said[-500:]}")
    if not any(name in errors[0] for name in names):
        raise Fault(f"refused without a name of {names}: {errors[0]}")
    return REFUSED


WRITTEN = [
    ".inf",
    "1e999",
    "0x10",
    "1_000",
    "[]",
    "null",
    "folder",
    "text.txt",
    "a\nb",
    "\x1b[31m",
    "\udce9",
    "１２",
    "9" * 5000,
]
texts = st.one_of(odd.map(_said), st.sampled_from(WRITTEN)).filter(lambda value: "\0" not in value)
"""What may stand on a command line: of a name that is not UTF-8 Python makes surrogates."""


def _flag(case: tuple[str, str]) -> str:
    name, value = case
    given = [f"--{name}"] if name in SWITCHES else [f"--{name}={value}"]
    if name == "data":
        given = ["--data", value]
    data = [] if name == "data" else ["--data", "text.txt"]
    if value.startswith("-") and name == "data":
        return WORKS
    code, said, settings = _run(["train", *data, *given])
    near = {
        "capacity": ["experts"],
        "router-noise": ["noise", "experts"],
        "d-model": ["heads", "d_head"],
        "heads": ["d_"],
    }
    if code:
        return refusal_of(code, said, [f"--{name}", name.replace("-", "_"), *near.get(name, [])])
    if settings is None:
        raise Fault("neither refused nor begun")
    return WORKS


def _settings(case: tuple[dict[str, Any], list[str]]) -> str:
    """The same settings as flags, in YAML and in JSON: all are refused, or all mean the same."""
    values, names = case
    path = _home().parent / f"{_home().name}.yaml"
    found = []
    for written in (yaml.safe_dump(values, allow_unicode=False), json.dumps(values)):
        path.write_text(written, "utf-8")
        code, said, settings = _run(["train", "--data", "text.txt", "--config", str(path)])
        named = [name for name in names] + [name.replace("_", "-") for name in names]
        found.append(refusal_of(code, said, [*named, "heads", "d_head", "--config"]) if code else settings)
    if found[0] != found[1]:
        raise Fault(f"in YAML {found[0]}, in JSON {found[1]}")
    return REFUSED if found[0] == REFUSED else WORKS


def _file(data: bytes) -> str:
    path = _home().parent / f"{_home().name}.yaml"
    path.write_bytes(data)
    code, said, _ = _run(["train", "--data", "text.txt", "--config", str(path)])
    return refusal_of(code, said, ["--"]) if code else WORKS


COMMANDS = {
    ("account",): ["--config", "--chip", "--run"],
    ("sizing", "gpt2"): ["--config", "--devices", "--chip", "--share", "--tokens", "--context", "--batch"],
    ("generate", "--prompt", "a"): [
        "--run",
        "--checkpoint",
        "--tokens",
        "--temperature",
        "--top-k",
        "--top-p",
        "--seed",
    ],
    ("evaluate",): ["--run", "--data", "--numbers", "--beams", "--device"],
    ("translate", "eins"): ["--run", "--beams", "--device"],
    ("grade", "folder"): ["--seed-file", "--pset", "--jobs", "--out", "--time", "--memory", "--exercises"],
    ("course", "export"): ["", "--to", "--roster"],
    ("course", "release", "week1", "--exercises", "9.99"): ["--out", "--seed-file", "--questions"],
    ("course", "release"): [""],
    ("bench", "--only", "nothing"): ["--out", "--sizes", "--rounds", "--json"],
    ("train", "--data", "text.txt"): ["--config", "--model", "--task", "--nope", "-x", ""],
}


def _command(case: tuple[tuple[str, ...], str, str]) -> str:
    command, name, value = case
    given = [value] if not name else [f"{name}={value}"] if name.startswith("--") else [name, value]
    if value in ("-h", "--help"):
        return WORKS
    code, said, _ = _run([*command, *given])
    return refusal_of(code, said, [""]) if code else WORKS


def _launch(case: dict[str, str]) -> str:
    good = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    if len(case) == 0:
        return WORKS
    code, said, _ = _run(["train", "--data", "text.txt"], good | case)
    return refusal_of(code, said, list(case)) if code else WORKS


environments = st.dictionaries(
    st.sampled_from(["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]),
    st.sampled_from(["x", "", "-1", "0.5", "70000", "1e3", "no.such.invalid", "9" * 30, " "]),
    min_size=1,
).filter(lambda made: made.get("MASTER_ADDR", "x") in ("x", "no.such.invalid"))


def _means_the_same_in_both(value: Any) -> bool:
    """YAML reads JSON, but for a few numbers; and a text that looks like a number is one for a flag."""
    return value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and 1e-4 < abs(value) < 1e9)


_settings_made = changed(HARMLESS).filter(
    lambda made: all(_means_the_same_in_both(value) or value == "rms" for value in made[0].values())
)
FILES = [
    b"layers: 2\nheads: 2\n",
    b'{"layers": 2, "dropout": 0.1}',
    b"a: &a [1]\nlayers: *a\n",
    b"heads: 2\nheads: 3\n",
]
_commands = st.sampled_from(sorted(COMMANDS)).flatmap(
    lambda command: st.tuples(st.just(command), st.sampled_from(COMMANDS[command]), texts)
)
KINDS = [
    Kind("flags of train", st.tuples(st.sampled_from(FLAGS), texts), _flag, 30),
    Kind("settings as YAML and as JSON", _settings_made, _settings, 10),
    Kind("files of settings", st.sampled_from(FILES).flatmap(damaged), _file, 20),
    Kind("other commands", _commands, _command, 20),
    Kind("what a launcher says", environments, _launch, 8),
]
