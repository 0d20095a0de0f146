"""Text to train on: texts that come with this package, or any file, folder or glob that the user names.

A corpus is a list of documents. Some documents are held out for evaluation, and no document is on both sides of the
split. If windows were instead cut from one text at random, they would overlap, and a model that has seen 511 of a
window's 512 tokens in training would not really be tested. For the same reason, repeated paragraphs are removed before
the split.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import lzma
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from companion.data.deduplication import PARAGRAPH_BREAK, without_repeats
from companion.ground.display import count
from companion.ground.fields import why
from companion.ground.reading import read_text

Read = TypeVar("Read")
SECTION = re.compile(r"^(?=\S.*\n([*=~^-])\1{2,}$)", re.MULTILINE)
"""Beginning of a section in the Python reference: an underlined line."""
MOST_HELD_OUT = 1_000_000
"""Maximum size of held-out text in bytes; this is enough to determine bits per byte to about a hundredth."""
FIRST_EDITION = "texts/first_edition.json.xz"
FIRST_EDITION_SHA256 = "ba2b8c03f7b0f3e5f1b31689557114aa545a329a5d6bcae9f5ac1f911e56637e"
"""Hash of the text in the file; `texts/make.py` documents its origin."""


@dataclass(frozen=True)
class Document:
    """A text and its name."""

    name: str
    text: str

    @property
    def bytes(self) -> int:
        """Length in bytes, encoded as UTF-8."""
        return len(self.text.encode())

    @property
    def digest(self) -> str:
        """Hexadecimal hash of the name and the text."""
        return hashlib.sha256(self.name.encode() + b"\0" + self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order, with a title and with notes on what was left out."""

    documents: tuple[Document, ...]
    title: str
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Total size of all documents in bytes, encoded as UTF-8."""
        return sum(document.bytes for document in self.documents)


@dataclass(frozen=True)
class Split:
    """Training and held-out documents. `notes` describes any exception to the usual way of splitting."""

    train: tuple[Document, ...]
    held_out: tuple[Document, ...]
    notes: tuple[str, ...] = ()


def first_edition() -> Corpus:
    """Return the prose of this course's first edition.

    The corpus contains 550 kB of English and LaTeX, with one document per section of a lesson.

    The text never changes and comes with the package, so measurements on it can be repeated on any machine, with any
    Python version and after any change to the lessons.

    Raises:
        ValueError: if the file is missing from the installation, or damaged.
    """
    file = resources.files("companion.data").joinpath(FIRST_EDITION)
    try:
        text = lzma.decompress(file.read_bytes())
        fault = "" if hashlib.sha256(text).hexdigest() == FIRST_EDITION_SHA256 else "damaged (it contains another text)"
    except FileNotFoundError:
        fault = "missing"
    except OSError as error:
        fault = f"not readable ({error.strerror})"
    except (lzma.LZMAError, EOFError) as error:
        fault = f"damaged ({str(error).rstrip('.')})"
    if fault:
        raise ValueError(
            f"{file}: the text that comes with companion is {fault}; install companion again (in a clone of the "
            "course: git checkout -- companion/data/texts), or name a text file or folder to use"
        )
    documents = tuple(Document(name, section) for name, section in json.loads(text).items())
    return deduplicate(Corpus(documents, "the prose of this course, first edition"))


def python_reference() -> Corpus:
    """Return the language reference, about 200 documents, that most Python installations contain for `help()`.

    Each document is a section. Topics range from two lines to sixty thousand characters, so a few large ones would
    dominate the held-out text. The reference differs between Python versions, so measurements on it are valid for one
    version only.

    Raises:
        ValueError: if a reduced Python installation does not contain the reference.
    """
    topics: Mapping[str, str] = {}
    with contextlib.suppress(ImportError):
        from pydoc_data.topics import topics
    if not topics:
        raise ValueError(
            "this Python has no help topics (the module pydoc_data): name a text file or folder to use, or "
            "course, the text that comes with companion"
        )
    documents = []
    for topic in sorted(topics):
        text = topics[topic]
        places = [match.start() for match in SECTION.finditer(text) if match.start() > 0]
        for start, end in zip([0, *places], [*places, len(text)], strict=True):
            if section := text[start:end].strip():
                documents.append(Document(f"{topic}: {section.splitlines()[0]}", text[start:end]))
    title = f"the language reference of Python {platform.python_version()}"
    return deduplicate(Corpus(tuple(documents), title))


NAMED_TEXTS: Mapping[str, Callable[[], Corpus]] = {"course": first_edition, "python": python_reference}
"""Texts that are requested by name instead of by path. For a file that has the same name, write `./course`.
`TextSettings` in `companion.training.settings` has the default."""


def read_corpus(paths: Sequence[str | Path], *, keep_repeats: bool = False) -> Corpus:
    """Read the text of files, folders, globs and names of `NAMED_TEXTS`.

    Folders are read recursively, skipping hidden entries; globs may contain `**`.

    Files must be UTF-8. Files are read in the order of `paths`, sorted by name within a folder or glob. No file is read
    twice. A file that is named or matched by a glob must be text. Files in a folder that are not text (invalid UTF-8 or
    a NUL byte) are left out and counted in `notes`. Empty files are skipped.

    Repeated paragraphs are removed (see `deduplicate`) unless `keep_repeats` is true. The texts in `NAMED_TEXTS` come
    without their repeated paragraphs in any case.

    Raises:
        ValueError: if `paths` is empty, a path does not exist, a glob matches nothing, a file that is named or matched
            by a glob is not text, a file cannot be read, a text in `NAMED_TEXTS` is missing or damaged, or there is
            no text at all.
    """
    if not paths:
        raise ValueError("data: expected at least one file, folder or glob, got none")
    documents: list[Document] = []
    not_text: list[str] = []
    notes: list[str] = []
    seen: set[Path] = set()
    titles = [str(path) for path in paths]
    for i, path in enumerate(paths):
        if path in NAMED_TEXTS:
            named = NAMED_TEXTS[str(path)]()
            documents.extend(named.documents)
            titles[i] = named.title
            notes.extend(named.notes)
            if Path(path).exists():
                notes.append(f"{path!r} is {named.title}; for the file or folder of this name, write ./{path}")
            continue
        for name, text in read_files(str(path), lambda file, _: read_text(file), seen, not_text):
            if text:
                documents.append(Document(name, text))
    if not any(document.text.strip() for document in documents):
        detail = f" (not UTF-8 text: {count(len(not_text), 'file')})" if not_text else ""
        raise ValueError(f"data: found no text in {', '.join(map(str, paths))}{detail}")
    if not_text:
        notes.append(left_out(not_text))
    corpus = Corpus(tuple(documents), title_of(titles), tuple(notes))
    return corpus if keep_repeats else deduplicate(corpus)


def read_files(
    path: str, read: Callable[[Path, str], Read], seen: set[Any], not_text: list[str]
) -> Iterator[tuple[str, Read]]:
    """Yield the name of each file of a path, and the result of calling `read` with the file and this name.

    Args:
        path: a file, folder or glob.
        read: reads one file.
        seen: files that have already been read and are skipped; newly read files are added.
        not_text: collects the names of a folder's files when `read` raises `UnicodeError` for them.

    Raises:
        ValueError: if the path matches nothing, a file cannot be read, or a file that was named explicitly is not text.
    """
    for file, name, from_folder in files_of(path):
        if (real := file.resolve()) in seen:
            continue
        seen.add(real)
        try:
            found = read(file, name)
        except (OSError, UnicodeError) as error:
            if isinstance(error, OSError) and (file.is_file() or not file.exists()):
                raise ValueError(f"{file}: cannot be read ({error.strerror})") from None
            if not from_folder:
                reason = why(error) if isinstance(error, UnicodeError) else "not a regular file"
                raise ValueError(f"{file}: expected a text file in UTF-8, got something else ({reason})") from None
            not_text.append(name)
            continue
        yield name, found


def left_out(not_text: Sequence[str]) -> str:
    """Return the note on a folder's files that are not text."""
    shown = ", ".join(not_text[:3]) + (", ..." if len(not_text) > 3 else "")
    return f"left out, not UTF-8 text: {count(len(not_text), 'file')} ({shown})"


def title_of(paths: Sequence[str | Path]) -> str:
    """Return the title of a corpus: the first three of its paths."""
    return ", ".join(map(str, paths[:3])) + (", ..." if len(paths) > 3 else "")


def deduplicate(corpus: Corpus) -> Corpus:
    """Keep only the first occurrence of every document and of every paragraph (`without_repeats`).

    Without this, text that an author pasted into two places would be trained on and then "predicted".
    """
    documents: list[Document] = []
    removed = 0
    texts = without_repeats(document.text for document in corpus.documents)
    for document, text in zip(corpus.documents, texts, strict=True):
        if text:
            documents.append(document if text == document.text else Document(document.name, text))
        removed += document.bytes - len(text.encode())
    if not removed:
        return corpus
    note = f"removed repeated paragraphs: {removed:,} of {corpus.bytes:,} bytes ({removed / corpus.bytes:.1%})"
    return Corpus(tuple(documents), corpus.title, (*corpus.notes, note))


def split(corpus: Corpus, held_out: float = 0.1) -> Split:
    """Split a corpus into training and held-out documents.

    A document is held out if a hash of its name, read as a number from 0 to 1, is below `held_out`. A document
    therefore stays on its side of the split on every machine and in any order, even if others are added or removed, or
    if it is edited or loses a repeated paragraph. Text that one model was trained on is therefore never used to
    evaluate another model that was trained on a later version of the text. The price is that the fraction is only
    approximate. At most `MOST_HELD_OUT` bytes are used for evaluation. The rest of the held-out text is unused, and
    `notes` says how much.

    This rule could hold out less than a third of the requested fraction or more than three times as much, if there are
    few documents or one is far larger than the others. In that case, documents are held out in the order of a hash, as
    long as they fit; if not even one fits, only the smallest document is held out. A document may then change sides
    when other documents are added or removed, and `notes` says so. A corpus with only one document is cut once, at the
    paragraph break that comes closest to leaving the requested fraction of the text after it.

    Raises:
        ValueError: if the fraction is outside (0, 1), or if the text is too short to be cut.
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out={held_out!r}: expected a fraction between 0 and 1, both excluded")
    wanted = held_out * corpus.bytes
    documents = corpus.documents
    if len(documents) == 1:
        return _split_one(documents[0], min(wanted, MOST_HELD_OUT))
    by_hash = sorted(documents, key=lambda document: document.digest)
    kept = [document for document in by_hash if _lot(document) < held_out]
    size = sum(document.bytes for document in kept)
    if wanted / 3 <= size <= 3 * wanted and corpus.bytes - size >= (corpus.bytes - wanted) / 3:
        train = _divide(documents, kept)[1]
        measured = _divide(documents, _fitting(kept, MOST_HELD_OUT))[0]
        aside = size - sum(document.bytes for document in measured)
        note = f"held out but not used for evaluation: {aside:,} bytes; a smaller share leaves more text to train on"
        return Split(train, measured, (note,) if aside else ())
    measured, train = _divide(documents, _fitting(by_hash, min(wanted, MOST_HELD_OUT)))
    note = "few documents, or very unequal ones: adding or removing documents may change which of them are held out"
    return Split(train, measured, (note,))


def fingerprint(documents: Iterable[Document]) -> str:
    """Return a short hash of the documents' names and texts, in order."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(bytes.fromhex(document.digest))
    return digest.hexdigest()[:16]


def _lot(document: Document) -> float:
    """Return a number from 0 to 1 that depends only on the name."""
    return int.from_bytes(hashlib.blake2b(document.name.encode()).digest()[:8], "big") / 2**64


def _fitting(documents: Sequence[Document], most: float) -> list[Document]:
    """Return the first documents that fit into `most` bytes or, if no document fits, only the smallest one."""
    chosen: list[Document] = []
    size = 0
    for document in documents:
        if size + document.bytes <= most:
            chosen.append(document)
            size += document.bytes
    return chosen or [min(documents, key=lambda document: document.bytes)]


def _divide(
    documents: Sequence[Document], chosen: Sequence[Document]
) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    """Return the chosen documents and the others, both in the order of `documents`."""
    ours = {id(document) for document in chosen}
    return (
        tuple(document for document in documents if id(document) in ours),
        tuple(document for document in documents if id(document) not in ours),
    )


def _split_one(document: Document, wanted: float) -> Split:
    text = document.text
    if len(text) < 2:
        raise ValueError(
            f"{document.name}: expected at least two characters, so that the text can be split, got {len(text)}"
        )
    target = len(text) - min(len(text) - 1, max(1, round(len(text) * wanted / document.bytes)))
    cut, unit = target, "character"
    for pattern, name in ((PARAGRAPH_BREAK, "paragraph"), (re.compile(r"\n"), "line"), (re.compile(r"\s"), "word")):
        breaks = [match.end() for match in pattern.finditer(text)]
        # A cut at a break far from the target would hold out half of the text, or next to nothing.
        near = [place for place in breaks if 0.5 <= (len(text) - place) / (len(text) - target) <= 2]
        if near:
            cut, unit = min(near, key=lambda place: abs(place - target)), name
            break
    note = f"a single document: its last part, from a {unit} break on, is held out"
    return Split(
        (Document(f"{document.name} (first part)", text[:cut]),),
        (Document(f"{document.name} (last part)", text[cut:]),),
        (note,),
    )


def files_of(path: str) -> Iterable[tuple[Path, str, bool]]:
    """Yield (file, name, whether it was found inside a folder) for a path that the user named, in a fixed order.

    Raises:
        ValueError: if the path does not exist, or if the glob matches nothing.
    """
    given = Path(path).expanduser()
    if given.is_file():
        yield given, _plain(given.name), False
    elif given.is_dir():
        for file in _walk(given):
            yield file, _plain(file.relative_to(given).as_posix()), True
    elif glob.has_magic(path):
        matches = sorted(Path(match) for match in glob.glob(str(given), recursive=True))
        files = [match for match in matches if match.is_file()]
        if not files:
            raise ValueError(f"data: {path!r} matches no file")
        # Names are relative to the fixed part of the pattern, so that they are the same on every machine.
        base = Path(os.path.commonpath([file.parent for file in files]))
        for file in files:
            yield file, _plain(file.relative_to(base).as_posix()), False
    else:
        what = "is none of them" if given.exists() else "does not exist"  # a device, a pipe, a socket
        raise ValueError(f"data: expected a file, folder or glob, but {path!r} {what}")


def _plain(name: str) -> str:
    """Return a file's name as valid UTF-8, with bytes of other encodings escaped as \\xe9."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _walk(folder: Path) -> Iterable[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        for name in sorted(files):
            if not name.startswith("."):
                yield Path(here, name)
