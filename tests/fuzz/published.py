"""Folders of published models in which something is odd, and classes: rosters, marks, problem sets, submissions."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import torch
from hypothesis import strategies as st

from companion.data.published_tokenizers import load_tokenizer
from companion.families.inspected import inspect
from companion.families.pretrained import load_pretrained
from companion.files.published.generation_config import read_writing
from fuzz.commands import called, refusal_of, texts
from fuzz.files import MARKS, ROSTER, tables
from fuzz.odd import changed, damaged, text
from fuzz.oracle import REFUSED, WORKS, Fault, Kind, is_refused, refused, state_of

KINDS_OF_MODELS = ("gpt2", "llama", "mixtral", "bert", "marian")
TOKENIZERS = {"gpt2": "byte_level", "llama": "with_spaces_marked", "marian": "two_languages"}


@cache
def _room() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


@cache
def _release(kind: str) -> dict[str, bytes]:
    """The files of a small release, as `transformers` writes them."""
    import small_tokenizers
    import theirs

    folder = _room() / "releases" / kind
    folder.mkdir(parents=True)
    vocab = getattr(small_tokenizers, TOKENIZERS[kind])(folder) if kind in TOKENIZERS else 50
    special = {"pad_token_id": vocab - 1, "decoder_start_token_id": vocab - 1} if kind == "marian" else {}
    model = getattr(theirs, kind)(vocab_size=vocab, **special)
    model.save_pretrained(folder, **({"max_shard_size": 6000} if kind == "llama" else {}))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@st.composite
def _releases(draw: st.DrawFn) -> tuple[str, str, dict[str, bytes]]:
    kind = draw(st.sampled_from(KINDS_OF_MODELS))
    files = dict(_release(kind))
    told = [name for name in ("config.json", "config.json", "generation_config.json", *files) if name in files]
    name = draw(st.sampled_from(told))
    if name.endswith(".json") and len(files[name]) < 20_000 and draw(st.integers(0, 3)):
        files[name] = text(draw(changed(json.loads(files[name])))[0])
        return kind, f"{name}: {files[name][:900]!r}", files
    match draw(st.sampled_from(["damage", "damage", "remove", "other"])):
        case "remove":
            del files[name]
        case "other":
            other = _release(draw(st.sampled_from(KINDS_OF_MODELS)))
            files[name] = other.get(name, b"{}")
        case _:
            files[name] = draw(damaged(files[name]))
    return kind, name, files


def _published(case: tuple[str, str, dict[str, bytes]]) -> str:
    """Reading and looking into a folder come to the same; and what it holds is what another way of reading finds."""
    _, _, files = case
    home = _room() / "release"
    home.mkdir(exist_ok=True)
    for path in home.iterdir():
        path.unlink()
    for name, data in files.items():
        (home / name).write_bytes(data)
    before = state_of(home)
    model = refused(lambda: load_pretrained(home), [str(home)])
    tokens = refused(lambda: load_tokenizer(home), [str(home)])
    if not is_refused(tokens):
        ids = refused(lambda: tokens.encode("she sells sea shells\n"), ["tokenizer", "text", str(home)])
        if not is_refused(ids) and not isinstance(tokens.decode(ids), str):
            raise Fault("no text comes back")
    writes = not is_refused(model) and model.config.stack != "encoder"
    says = refused(lambda: read_writing(home, model.config.vocab), [str(home)]) if writes else None
    seen = refused(lambda: inspect(home), [str(home)])
    if state_of(home) != before:
        raise Fault("something was written")
    could = not is_refused(model) and not is_refused(says)
    sees = not is_refused(seen) and not seen.refused
    if could and not sees and "decoder_start_token_id" not in str(seen.refused):
        raise Fault(f"it is read, and looking into it refuses: {seen.refused if not is_refused(seen) else seen}")
    if sees and not could:
        raise Fault("looking into it finds nothing wrong, and reading it refuses")
    if not could:
        return REFUSED
    if model.config != seen.config:
        raise Fault(f"looked into {seen.config}, read {model.config}")
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        logits = model(ids, **({"source": ids} if model.config.stack == "encoder_decoder" else {})).logits
    if not logits.isfinite().all():
        raise Fault("it gives no numbers")
    return WORKS


# Tokenizers


@st.composite
def _tokenizers(draw: st.DrawFn) -> tuple[str, str, dict[str, bytes]]:
    """Of tokenizer.json alone: its inner fields, too."""
    kind = draw(st.sampled_from(["gpt2", "llama"]))
    value, names = draw(changed(json.loads(_release(kind)["tokenizer.json"]), most=3))
    return kind, str(names), {"tokenizer.json": text(value)}


def _spelled(case: tuple[str, str, dict[str, bytes]]) -> str:
    _, _, files = case
    home = _room() / "tokenizer"
    home.mkdir(exist_ok=True)
    for name, data in files.items():
        (home / name).write_bytes(data)
    tokenizer = refused(lambda: load_tokenizer(home), [str(home)])
    if is_refused(tokenizer):
        return REFUSED
    ids = refused(lambda: tokenizer.encode("she sells sea shells"), ["tokenizer", "text"])
    if is_refused(ids):
        return REFUSED
    if not all(type(i) is int and i >= 0 for i in ids):
        raise Fault(f"ids {ids}")
    said = refused(lambda: tokenizer.decode(ids), ["ids", "tokenizer"])
    return REFUSED if is_refused(said) else WORKS


# A class


@st.composite
def _classes(draw: st.DrawFn) -> tuple[list[str], dict[str, bytes]]:
    """A command of an instructor, and the files that it finds."""
    files = {"marks/marks.csv": draw(tables(MARKS)), "roster.csv": draw(tables(ROSTER)), "s": b"a secret\n"}
    value = draw(texts)
    line = draw(
        st.sampled_from(
            [
                ["course", "export", "marks", "--roster", "roster.csv"],
                ["course", "export", "marks", "--roster", "roster.csv", f"--to={value}"],
                ["course", "export", "marks", f"--roster={value}"],
                ["course", "release", "--exercises", "2.1", "--out=out", "--", value],
                ["course", "release", "week", "--exercises", "2.1", f"--out={value}"],
                ["course", "release", "week", "--exercises", value, "--out=out"],
                ["course", "release", "week", "--questions", value, "--out=out"],
                ["course", "release", "week", "--exercises", "2.1", "--out=out", f"--seed-file={value}"],
                ["grade", "in", "--exercises", "2.1", "--seed-file=s", f"--out={value}"],
                ["grade", "in", "--exercises", value, "--seed-file=s"],
                ["grade", "in", f"--pset={value}", "--seed-file=s"],
                ["grade", "in", "--exercises", "2.1", "--seed-file=s", f"--assignment={value}"],
                ["grade", "in", "--exercises", "2.1", f"--seed-file={value}"],
                ["grade", "in", "--exercises", "2.1", "--seed-file=s", f"--jobs={value}"],
                ["grade", "in", "--exercises", "2.1", "--seed-file=s", f"--memory={value}"],
                ["grade", "--exercises", "2.1", "--seed-file=s", "--", value],
                ["course", "verify", value + "."],
                ["course", "notebooks", value, "--check"],
                ["review", "--list", value],
            ]
        )
    )
    return line, files


def _class(case: tuple[list[str], dict[str, bytes]]) -> str:
    line, files = case
    home = Path(tempfile.mkdtemp(prefix="fuzz-class-", dir=_room()))
    (home / "in").mkdir()
    for name, data in files.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_bytes(data)
    before = state_of(home)
    code, _, said = called(home, line, {"COMPANION_HOME": str(home / "of mine")})
    if code == 0:
        return WORKS
    if state_of(home) != before:
        raise Fault(f"refused, and something was written: {said}")
    return refusal_of(code, said, [""])


KINDS = [
    Kind("folders of published models", st.deferred(_releases), _published, 0),
    Kind("tokenizers of published models", st.deferred(_tokenizers), _spelled, 0),
    Kind("a class: release, grade, export", st.deferred(_classes), _class, 6),
]
