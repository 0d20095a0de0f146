"""Commands on runs: odd flags, and runs whose files were edited, cut, swapped or removed before the command."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from companion.generation.sampling import Sampling
from fuzz.commands import called, refusal_of, texts
from fuzz.files import meaning
from fuzz.odd import changed, damaged, text
from fuzz.oracle import REFUSED, WORKS, Fault, Kind, state_of

SMALL = ["--layers", "1", "--d-model", "8", "--heads", "2", "--batch", "2", "--steps", "2", "--save-seconds", "0"]
TRAIN = {
    "text": ["--data", "text.txt", *SMALL, "--context", "16", "--vocab", "260"],
    "words": ["--task", "number-words", *SMALL],
}
"""A run of each task, as flags of `companion train`."""
OTHER = "other "
"""Before a run's name: the same with another seed."""


@cache
def _home() -> Path:
    """A folder of this process's own, with finished runs in it."""
    home = Path(tempfile.mkdtemp(prefix="fuzz-"))
    (home / "text.txt").write_text("the cat sat on the mat, and the other cat sat there. " * 30, "utf-8")
    for name, flags in TRAIN.items():
        for run, seed in ((name, "0"), (OTHER + name, "1")):
            code, _, said = called(home, ["train", *flags, "--seed", seed, "--out", run])
            assert code == 0, said
            (home / run / "loss.png").unlink(missing_ok=True)
    return home


@cache
def _files(run: str) -> dict[str, bytes]:
    """The files of a run, by their place in it."""
    folder = _home() / run
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


# Flags

FLAGS = {
    ("generate", "--run", "text", "--tokens", "3", "--prompt", "a"): [
        *("--prompt", "--stop", "--repetition-penalty", "--seed"),
        *(f"--{rule.name.replace('_', '-')}" for rule in fields(Sampling)),
        *("--beams", "--length-penalty", "--device", "--weights", "--dtype", "--checkpoint", "--run"),
    ],
    ("generate", "--run", "text", "--tokens", "3"): ["--prompt-ids"],
    ("generate", "--run", "text", "--tokens", "2", "--prompt", "a", "--beams", "2"): ["--length-penalty", "--beams"],
    ("evaluate", "--run", "text"): ["--data", "--numbers", "--beams", "--weights", "--device"],
    ("evaluate", "--run", "words", "--numbers", "3"): ["--numbers", "--beams", "--data", "--weights", "--device"],
    ("translate", "--run", "words", "eins"): ["--beams", "--device", "--run", ""],
    ("account", "--chip", "h100"): ["--run", "--chip", "--config", ""],
    ("inspect",): [""],
}


def _flag(case: tuple[tuple[str, ...], str, str]) -> str:
    command, name, value = case
    home = _home()
    before = state_of(home)
    if not name:
        ways = [[value], ["--", value]] if not value.startswith("-") else [["--", value]]
    else:
        ways = [[f"{name}={value}"], *([] if value.startswith("-") else [[name, value]])]
    found = []
    for given in ways:
        code, printed, said = called(home, [*command, *given])
        if "Traceback" in said:
            raise Fault(said)
        near = {"--length-penalty": ["beams"], "--weights": ["--"], "--data": ["--"], "--numbers": ["--"], "": [""]}
        named = [name, name.strip("-").replace("-", "_"), *near.get(name, [])]
        found.append(refusal_of(code, said, named) if code else printed)
    if state_of(home) != before:
        raise Fault("something was written")
    if any(other != found[0] for other in found):
        raise Fault(f"{ways[0]} and {ways[-1]} are answered differently: {found}")
    return REFUSED if found[0] == REFUSED else WORKS


def _ends(case: tuple[tuple[str, ...], str, str]) -> bool:
    """Whether nothing is asked for that takes long: so many held-out numbers would be translated."""
    _, name, value = case
    return name != "--numbers" or not value.isdigit() or int(value) < 50


_VALUES = st.one_of(texts, st.sampled_from(["text", "words", "text.txt", "nowhere", "cpu", "int8", "auto", "0.9", "4"]))
_flags = (
    st.sampled_from(sorted(FLAGS))
    .flatmap(lambda command: st.tuples(st.just(command), st.sampled_from(FLAGS[command]), _VALUES))
    .filter(_ends)
)


# Files

COMMANDS = {
    "text": [
        ["generate", "--run", "used", "--prompt", "the", "--tokens", "3"],
        ["generate", "--run", "used", "--prompt", "the", "--tokens", "3", "--best"],
        ["evaluate", "--run", "used"],
        ["account", "--run", "used", "--chip", "h100"],
        ["inspect", "used/checkpoints/step-00000002"],
        *[["train", *TRAIN["text"], "--out", "used"]] * 2,
    ],
    "words": [
        ["translate", "--run", "used", "eins", "zwei"],
        ["evaluate", "--run", "used", "--numbers", "3"],
    ],
}
LAST = "checkpoints/step-00000002/"


@st.composite
def _used(draw: st.DrawFn) -> tuple[str, str, list[str], dict[str, bytes]]:
    """A run, what was done to its files, the command that comes next, and the files then."""
    run = draw(st.sampled_from(sorted(TRAIN)))
    files = dict(_files(run))
    command = draw(st.sampled_from(COMMANDS[run]))
    if command[0] == "train" and draw(st.integers(0, 3)):  # before its end
        files = {name: data for name, data in files.items() if name != "result.json" and not name.startswith(LAST)}
    done = []
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 1, 2]))):
        if files:
            done.append(draw(_deed(files, run)))
    return run, "; ".join(done), command, files


@st.composite
def _deed(draw: st.DrawFn, files: dict[str, bytes], run: str) -> str:
    """Something is done to a file."""
    name = draw(st.sampled_from(sorted(files)))
    how = draw(st.sampled_from(["edit"] * 4 + ["damage"] * 2 + ["swap", "swap", "remove", "lines", "lines", "rename"]))
    match how:
        case "edit" if name.endswith(".json"):
            try:
                value = json.loads(files[name])
            except ValueError:
                value = None
            files[name] = text(draw(changed(value))[0]) if isinstance(value, dict) else b"{}"
        case "swap":
            others = _files(OTHER + run)
            ending = name.rpartition("/")[2]
            near = [other for other in sorted(files) if other.endswith(ending) and other != name]
            files[name] = draw(st.sampled_from([others.get(name, b""), *(files[other] for other in near)]))
        case "remove":
            del files[name]
        case "rename":  # a checkpoint
            old, new = draw(st.permutations(["step-00000001", "step-00000002", "step-00000003"]))[:2]
            moved = {place.replace(old, new): data for place, data in files.items()}
            copied = draw(st.booleans())
            files.update(moved) if copied else (files.clear(), files.update(moved))
            return f"{'copied' if copied else 'renamed'} {old} to {new}"
        case "lines" if "log.jsonl" in files:
            lines = files["log.jsonl"].splitlines(keepends=True)
            at = draw(st.integers(0, max(0, len(lines) - 1)))
            some = draw(st.sampled_from(["drop", "twice", "turn", "stranger", "none"]))
            line = lines[at : at + 1]
            match some:
                case "drop":
                    del lines[at : at + 1]
                case "twice":
                    lines[at:at] = line
                case "turn":
                    lines.reverse()
                case "stranger":
                    lines[at:at] = (draw(st.sampled_from([b"\n", b"{}\n", b'{"update": 1}\n', b"\xff\n", b"null\n"])),)
                case "none":
                    lines = []
            files["log.jsonl"] = b"".join(lines)
            return f"log.jsonl: {some} {at}"
        case _:
            files[name] = draw(damaged(files[name]))
    return f"{how} {name}"


def _comparable(files: dict[str, bytes]) -> dict[str, object]:
    """What must be as in a run that nobody touched: not what the machine adds, nor what was set aside."""
    found: dict[str, object] = {}
    for name, data in files.items():
        if name == "log.jsonl":
            found[name] = meaning(name, data)
        elif name == LAST + "state.json":
            found[name] = {k: v for k, v in json.loads(data).items() if k not in ("log", "digest")}
        elif name.startswith(LAST) or name == "tokenizer.json":
            found[name] = data
        elif name in ("run.json", "result.json"):
            found[name] = json.loads(data)
    return found


@cache
def _answer(run: str, command: tuple[str, ...]) -> str:
    """What a command prints about a run that nobody touched."""
    _put(_files(run))
    code, printed, said = called(_home(), list(command))
    assert code == 0, said
    return printed


def _put(files: dict[str, bytes]) -> Path:
    folder = _home() / "used"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def _use(case: tuple[str, str, list[str], dict[str, bytes]]) -> str:
    run, _, command, files = case
    goes_on = command[0] == "train" and "result.json" not in files
    answer = "" if goes_on else _answer(run, tuple(command))
    folder = _put(files)
    before = state_of(folder)
    code, printed, said = called(_home(), command)
    after = {place: digest for place, digest in state_of(folder).items() if place not in (".lock", "loss.png")}
    if code:
        if after != before:
            raise Fault(f"refused, and the folder is not as it was: {_changes(before, after)}; {said[-500:]}")
        return refusal_of(code, said, ["used"])
    if not goes_on:
        if after != before:
            raise Fault("something was written")
        if printed != answer:
            raise Fault(f"other words than of the run that nobody touched, and nothing of it: {printed}")
        return WORKS
    found, wanted = (
        _comparable({name: data for name, data in some if not name.endswith((".png", ".lock"))})
        for some in (_read(folder), _files(run).items())
    )
    if "log.jsonl" not in files or "log.jsonl is gone" in printed + said:
        found.pop("log.jsonl", None), wanted.pop("log.jsonl", None)
    if found != wanted:
        names = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        raise Fault(f"the run ends with another {', '.join(names)}: {printed[-800:]} {said[-300:]}")
    return WORKS


def _read(folder: Path) -> Iterable[tuple[str, bytes]]:
    return [(str(path.relative_to(folder)), path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()]


def _changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(place for place in {*before, *after} if before.get(place) != after.get(place))


KINDS = [
    Kind("flags of commands on a run", _flags, _flag, 12),
    Kind("commands on an edited run", st.deferred(_used), _use, 20),
]
