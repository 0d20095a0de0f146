"""Files that come from elsewhere, or from a run: edited, cut, swapped."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

from companion import AttentionConfig, FeedForwardConfig, ModelConfig, Transformer
from companion.data.batches import TrainingBatches
from companion.data.tokenizer import BytePairTokenizer
from companion.files.models import load_model, load_tensors, save_model
from companion.training.run_folder import MACHINE_FIELDS, RunFolder
from companion.training.settings import TextSettings
from companion.training.trainer import Trainer, TrainingConfig
from companion_school.course.grading.answers import cells_of
from companion_school.course.grading.gradebook import collect, to_csv
from fuzz.odd import changed, damaged, text
from fuzz.oracle import REFUSED, WORKS, Fault, Kind, is_refused, refused, state_of

CONFIG = ModelConfig(23, 8, 1, context=9, attention=AttentionConfig(2), feed_forward=FeedForwardConfig(8))


@cache
def _room() -> Path:
    """A folder of this process's own; the system clears it away."""
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


# A model's folder


@cache
def _model() -> dict[str, bytes]:
    torch.manual_seed(0)
    folder = _room() / "good"
    save_model(folder, Transformer(CONFIG))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


@st.composite
def _headers(draw: st.DrawFn) -> bytes:
    """A safetensors file whose header says something else."""
    good = _model()["model.safetensors"]
    if draw(st.booleans()):
        return draw(damaged(good))
    header, body = _parts(good)
    odd_header = text(draw(changed(header))[0])
    length = draw(st.sampled_from([len(odd_header)] * 6 + [0, 8, len(odd_header) - 1, 2**40, 2**63]))
    return struct.pack("<Q", length) + odd_header + body


def _by_hand(data: bytes) -> dict[str, list[float]]:
    header, body = _parts(data)
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        if entry["dtype"] == "F32":
            found[name] = list(struct.unpack(f"<{(end - start) // 4}f", body[start:end]))
    return found


def _header(data: bytes) -> str:
    path = _room() / "model.safetensors"
    path.write_bytes(data)
    tensors = refused(lambda: load_tensors(path), [str(path)])
    if path.read_bytes() != data:
        raise Fault("reading it changed the file")
    if is_refused(tensors):
        return REFUSED
    for name, values in _by_hand(data).items():
        if text(tensors[name].flatten().tolist()) != text(values):
            raise Fault(f"{name} is not what the file holds")
    return WORKS


@st.composite
def _model_folders(draw: st.DrawFn) -> dict[str, bytes]:
    files = dict(_model())
    if draw(st.integers(0, 2)):
        files["config.json"] = text(draw(changed(json.loads(files["config.json"])))[0])
    else:
        name = draw(st.sampled_from(sorted(files)))
        files[name] = draw(damaged(files[name]))
    return files


def _folder(files: dict[str, bytes]) -> str:
    home = _room() / "model"
    home.mkdir(exist_ok=True)
    for name, data in files.items():
        (home / name).write_bytes(data)
    before = state_of(home)
    model = refused(lambda: load_model(home), [str(home)])
    if state_of(home) != before:
        raise Fault("loading it changed the folder")
    if is_refused(model):
        return REFUSED
    if model.config != ModelConfig.from_json(files["config.json"].decode()):
        raise Fault("the model has another configuration than the file")
    return WORKS


# A tokenizer


@cache
def _tokenizer() -> dict[str, Any]:
    return json.loads(BytePairTokenizer.train(["the cat and the other cat sat on the mat " * 5], 270).to_json())


def _small(value: dict[str, Any]) -> st.SearchStrategy[bytes]:
    return st.one_of(changed(value, most=3).map(lambda made: text(made[0])), damaged(text(value)))


def _tokenize(data: bytes) -> str:
    path = _room() / "tokenizer.json"
    path.write_bytes(data)
    tokenizer = refused(lambda: BytePairTokenizer.load(path), [str(path)])
    if is_refused(tokenizer):
        return REFUSED
    said = "the mat, naïve 東京\n"
    if tokenizer.decode(tokenizer.encode(said)) != said or max(tokenizer.encode(said)) >= tokenizer.vocab:
        raise Fault("a text does not come back")
    return WORKS


# A run


def _trainer() -> Trainer:
    torch.manual_seed(4)
    ids = torch.arange(60) * 5 % 22 + 1
    batches = TrainingBatches([ids], context=CONFIG.context, batch=2, seed=8)
    return Trainer(Transformer(CONFIG), batches, TrainingConfig(9, warmup=2))


@cache
def _run(seed: int = 0) -> dict[str, bytes]:
    """The files of a run that made two updates and was measured."""
    folder, trainer = RunFolder(_room() / f"run-{seed}"), _trainer()
    tokenizer = BytePairTokenizer.train(["the cat and the other cat"], 260)
    record = {"settings": TextSettings(seed=seed).what_matters(), "updates": 9, "evaluations": 2, "precision": "fp32"}
    record |= {"text": {"title": "a text", "fingerprint": f"{seed}"}, "bytes_per_token": 2.5, "yardsticks": {"xz": 2.0}}
    record |= {"parameters": trainer.parameters, "data": ["course"], "versions": {"torch": "2"}}
    folder.create(record, {"tokenizer.json": tokenizer.to_json()})
    for _ in range(2):
        update = trainer.update()
        folder.log({"update": update.number, "loss": update.loss, "tokens": update.tokens, "seconds": 0.1})
    folder.log({"update": 2, "bits_per_byte": 3.5})
    folder.save(trainer, error=3.5)
    folder.finish({"bits_per_byte": 3.5 + seed, "perplexity": 10.0, "tokens": 40, "bytes": 80})
    return {str(path.relative_to(folder.path)): path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


@st.composite
def _runs(draw: st.DrawFn) -> tuple[str, bytes | None]:
    """Which file of the run is something else, and what."""
    good = _run()
    name = draw(st.sampled_from(sorted(good)))
    how = draw(st.sampled_from(["edit", "edit", "damage", "swap", "remove"]))
    if how == "remove":
        return name, None
    if how == "swap":
        return name, _run(1).get(name, b"")
    if how == "edit" and name.endswith(".json") and name != "tokenizer.json":
        return name, text(draw(changed(json.loads(good[name])))[0])
    if how == "edit" and name.endswith(".jsonl"):
        lines = good[name].splitlines(keepends=True)
        at = draw(st.integers(0, len(lines) - 1))
        lines[at] = text(draw(changed(json.loads(lines[at])))[0]) + b"\n"
        return name, b"".join(lines)
    return name, draw(damaged(good[name]))


def meaning(name: str, data: bytes | None) -> Any:
    """What a file says: of JSON its values, of the log those that are not the machine's, of lines that are some."""
    if data is None:
        return None
    if name.endswith(".jsonl"):
        entries = []
        for line in data.splitlines(keepends=True):
            with suppress(ValueError, AttributeError):
                entry = json.loads(line)
                if line.endswith(b"\n") and type(entry.get("update")) is int:
                    entries.append({key: value for key, value in entry.items() if key not in MACHINE_FIELDS})
        return text(entries)
    try:
        return text(json.loads(data)) if name.endswith(".json") and "tokenizer" not in name else data
    except (ValueError, AttributeError):
        return data


def _use(case: tuple[str, bytes | None]) -> str:
    name, data = case
    folder = RunFolder(_room() / "used")
    for other, good in _run().items():
        path = folder.path / other
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(good)
    path = folder.path / name
    path.unlink() if data is None else path.write_bytes(data)
    before, said = state_of(folder.path), []

    def use() -> Any:
        folder.record()["updates"]
        folder.result()
        folder.tokenizer()
        trainer = _trainer()
        folder.restore(trainer, said.append)
        return folder.record(), folder.result(), trainer

    used = refused(use, [str(folder.path)])
    after = state_of(folder.path)
    if is_refused(used):
        if after != before:
            raise Fault("refused, and the folder is not as it was")
        return REFUSED
    if meaning(name, data) != meaning(name, _run()[name]) and not said:
        raise Fault(f"{name} says something else, and nobody noticed")
    return WORKS


# Marks, rosters and notebooks

MARKS = b"assignment,student_id,score,max_score,email\nweek1,ada,3,10,\nweek1,bo,4.5,10,\nweek2,ada,1,5,\n"
ROSTER = b"id,last_name,first_name,email\nada,L,Ada,a@x\nbo,M,Bo,b@x\nzoe,N,Zoe,z@x\n"
CELLS = [b"nan", b"inf", b"-1", b"1e400", b"", b'"', b'""', b"ada", b"\0", b"\xe9", b"=1+1", b"week1", b"999999999999"]


@st.composite
def tables(draw: st.DrawFn, good: bytes) -> bytes:
    if draw(st.integers(0, 2)) == 0:
        return draw(damaged(good))
    lines = [line.split(b",") for line in good.splitlines()]
    for _ in range(draw(st.integers(0, 3))):
        line = draw(st.sampled_from(lines))
        line[draw(st.integers(0, len(line) - 1))] = draw(st.sampled_from(CELLS))
    if draw(st.integers(0, 4)) == 0:
        lines.append(list(draw(st.sampled_from(lines))))
    return b"\n".join(b",".join(line) for line in lines) + b"\n"


def _collect(case: tuple[bytes, bytes]) -> str:
    home = _room() / "marks"
    home.mkdir(exist_ok=True)
    (home / "marks.csv").write_bytes(case[0])
    roster = _room() / "roster.csv"
    roster.write_bytes(case[1])
    rows = refused(lambda: collect(home, roster), [str(home), str(roster)])
    if is_refused(rows):
        return REFUSED
    again = _room() / "again"
    again.mkdir(exist_ok=True)
    (again / "marks.csv").write_text(to_csv(rows), "utf-8", newline="")
    if collect(again, roster) != rows:
        raise Fault("the table that it gives is read as another one")
    return WORKS


NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "metadata": {}, "source": ["Text"]},
        {"cell_type": "code", "metadata": {}, "source": ["x = 1\n", "y = 2"], "outputs": []},
        {"cell_type": "code", "metadata": {}, "source": "def f(x):\n    return x", "outputs": []},
    ],
    "nbformat": 4,
}


@st.composite
def _notebooks(draw: st.DrawFn) -> bytes:
    book = json.loads(json.dumps(NOTEBOOK))
    if draw(st.booleans()):
        return draw(damaged(text(book)))
    cell = draw(st.integers(0, 2))
    book["cells"][cell] = draw(changed(book["cells"][cell]))[0]
    return text(draw(changed(book, most=1))[0])


def _read(data: bytes) -> str:
    cells = refused(lambda: cells_of("ada.ipynb", data), ["ada.ipynb"])
    if is_refused(cells):
        return REFUSED
    if cells != cells_of("ada.ipynb", text(json.loads(data.decode("utf-8-sig")))):
        raise Fault("the same notebook, written again, has other cells")
    return WORKS


os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
KINDS = [
    Kind("headers of safetensors files", st.deferred(_headers), _header, 120),
    Kind("folders of models", st.deferred(_model_folders), _folder, 60),
    Kind("tokenizers", st.deferred(lambda: _small(_tokenizer())), _tokenize, 50),
    Kind("files of a run", st.deferred(_runs), _use, 70),
    Kind("marks and rosters", st.tuples(tables(MARKS), tables(ROSTER)), _collect, 70),
    Kind("notebooks", st.deferred(_notebooks), _read, 100),
]
