"""The corpora and their held-out documents: the same on every machine, and no text on both sides."""

import fnmatch
import hashlib
import lzma
import os
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from companion.data import corpora
from companion.data.corpora import (
    Corpus,
    Document,
    deduplicate,
    fingerprint,
    first_edition,
    python_reference,
    read_corpus,
    split,
)

TEXTS = Path(corpora.__file__).parent / "texts"
ROOT = Path(__file__).parents[2]
LESSONS = ROOT / "authoring" / "lessons"


def numbered(count: int, size: int = 300) -> tuple[Document, ...]:
    return tuple(Document(f"d{i}", f"document {i} " * (size // 12 + i % 7)) for i in range(count))


def test_the_default_text_is_frozen() -> None:
    text = lzma.decompress((TEXTS / "first_edition.json.xz").read_bytes())
    assert hashlib.sha256(text).hexdigest() == corpora.FIRST_EDITION_SHA256
    corpus = first_edition()
    assert fingerprint(corpus.documents) == "7d3e5ae194b95fb6"  # all results so far were measured on this text
    assert (len(corpus.documents), corpus.bytes) == (288, 552_204)
    assert first_edition() == corpus == read_corpus(["course"])


def test_the_default_text_is_the_prose_of_fifteen_lessons_without_their_code() -> None:
    corpus = first_edition()
    names = [document.name for document in corpus.documents]
    assert len(set(names)) == len(names)
    assert sum(": " not in name for name in names) == 15  # one opening per lesson
    assert (
        sum(name.endswith(": Exercises") for name in names) == sum(name.endswith(": Summary") for name in names) == 15
    )
    assert max(document.bytes for document in corpus.documents) < corpus.bytes / 50
    assert min(document.bytes for document in corpus.documents) > 200
    for document in corpus.documents:
        heading = document.text.partition("\n")[0]
        assert heading.startswith("#") and document.name.endswith(heading.lstrip("# ")), document.name
        for left_over in (
            "{code-cell}",
            "jupytext",
            "{{ exercises }}",
            "\n+++\n",
            "\n\n\n",
            "\nassert ",
            "import torch",
        ):
            assert left_over not in document.text, (document.name, left_over)
    text = "\n".join(document.text for document in corpus.documents)
    assert text.count("$$") > 400 and text.count("\n|") > 100  # it contains formulas and tables


def test_the_licence_of_the_default_text_lies_beside_it() -> None:
    licence = (TEXTS / "LICENSE.md").read_text("utf-8")
    assert "first_edition.json.xz" in licence and "creativecommons.org/licenses/by/4.0" in licence


def test_the_default_text_and_its_licence_are_installed_with_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    installed = settings["tool"]["setuptools"]["package-data"]["companion.data"]
    for file in (corpora.FIRST_EDITION, "texts/LICENSE.md"):
        assert any(fnmatch.fnmatch(file, pattern) for pattern in installed), file


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda file: file.unlink(), "is missing;"),
        (lambda file: file.write_bytes(file.read_bytes()[:-100]), "is damaged (Compressed data ended before"),
        (lambda file: file.write_bytes(b"version https://git-lfs"), "is damaged (Input format not supported"),
        (lambda file: file.write_bytes(b""), "is damaged"),
        (lambda file: file.write_bytes(lzma.compress(b'{"a": "b"}')), "is damaged (it contains another text);"),
        (lambda file: (file.unlink(), file.mkdir()), "is not readable (Is a directory);"),
    ],
    ids=["missing", "cut short", "another format", "empty", "another text", "a folder"],
)
def test_a_default_text_that_is_missing_or_damaged_is_one_sentence_that_says_what_to_do(
    tmp_path: Path, monkeypatch, damage, says: str
) -> None:
    file = tmp_path / corpora.FIRST_EDITION
    file.parent.mkdir()
    file.write_bytes((TEXTS / file.name).read_bytes())
    monkeypatch.setattr(corpora.resources, "files", lambda package: tmp_path)
    assert first_edition().bytes == 552_204
    damage(file)
    with pytest.raises(ValueError) as error:
        first_edition()
    message = str(error.value)
    assert message.startswith(f"{file}: the text that comes with companion {says}") and "\n" not in message
    assert message.endswith(
        "install companion again (in a clone of the course: git checkout -- companion/data/texts), or name a text file "
        "or folder to use"
    )


def test_the_help_topics_of_python_are_read_on_request_only(monkeypatch) -> None:
    from pydoc_data.topics import topics

    assert topics == {}, "tests/conftest.py empties them, for every test and every notebook"
    with pytest.raises(ValueError, match=r"has no help topics .*, or course, the text that comes with companion"):
        read_corpus(["python"])
    some = {"if": "The if statement\n****************\n\nIt is used.\n\nAgain\n=====\n\nAnd again.\n", "empty": " \n"}
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", types.SimpleNamespace(topics=some))
    names = [document.name for document in python_reference().documents]
    assert names == ["if: The if statement", "if: Again"]
    both = read_corpus(["python", "course"])
    assert both.documents == (*python_reference().documents, *first_edition().documents)
    assert both.title == f"{python_reference().title}, {first_edition().title}"
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match="this Python has no help topics"):
        python_reference()


def test_every_cell_of_every_notebook_runs_with_the_help_topics_of_python_emptied() -> None:
    """The outputs stored in the lessons therefore do not depend on the help topics."""
    program = "import runpy, subprocess, sys; runpy.run_path(sys.argv[1]); subprocess.run(sys.argv[2:], check=True)"
    kernel = [sys.executable, "-c", "from pydoc_data.topics import topics; assert topics == {}, len(topics)"]
    conftest = ROOT / "authoring" / "nbval_run.py"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", program, str(conftest), *kernel], env=clean, check=True)


def test_no_lesson_reads_a_text_that_differs_between_pythons() -> None:
    sources = sorted(LESSONS.glob("*.md"))
    assert len(sources) >= 22
    for source in sources:
        found = re.findall(r"python_reference|pydoc|[\"']python[\"']\]", source.read_text("utf-8"))
        assert not found, (source.name, found)


def test_a_file_whose_name_is_that_of_a_text_is_reached_by_its_path(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert all("./course" not in note for note in read_corpus(["course"]).notes)
    Path("course").mkdir()
    Path("course", "a.txt").write_text("mine")
    assert [document.text for document in read_corpus(["./course"]).documents] == ["mine"]
    named = read_corpus(["course"])
    assert named.documents == first_edition().documents
    assert "for the file or folder of this name, write ./course" in named.notes[-1]


def test_no_document_and_no_long_stretch_of_text_is_on_both_sides_of_the_default_split() -> None:
    parts = split(first_edition())
    assert not set(parts.train) & set(parts.held_out)
    assert set(parts.train) | set(parts.held_out) == set(first_edition().documents)
    length = 250
    text = "\0".join(document.text for document in parts.train)
    for document in parts.held_out:
        # Any shared stretch of 255 characters contains one of these
        for i in range(0, len(document.text) - length + 1, 5):
            stretch = document.text[i : i + length]
            assert stretch not in text, (document.name, stretch)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.floats(0.02, 0.6), st.randoms())
def test_a_split_divides_the_documents_and_does_not_depend_on_their_order(count, share, random) -> None:
    documents = numbered(count)
    parts = split(Corpus(documents, "t"), share)
    assert parts.train and parts.held_out
    assert sorted(d.name for d in (*parts.train, *parts.held_out)) == sorted(d.name for d in documents)
    size, total = sum(d.bytes for d in parts.held_out), sum(d.bytes for d in documents)
    assert size <= 3 * share * total or len(parts.held_out) == 1
    shuffled = random.sample(documents, count)
    again = split(Corpus(tuple(shuffled), "t"), share)
    assert set(again.held_out) == set(parts.held_out)


def test_a_document_stays_on_its_side_when_others_come_and_go() -> None:
    everything = first_edition()
    parts = split(everything)
    assert parts.notes == ()
    assert 0.05 < sum(document.bytes for document in parts.held_out) / everything.bytes < 0.15
    side = {document.name: False for document in parts.train} | {document.name: True for document in parts.held_out}
    for step, keep in ((7, 6), (3, 1), (2, 1)):  # six of seven documents, a third, and a half
        some = tuple(document for i, document in enumerate(everything.documents) if i % step < keep)
        more = (*some, *numbered(30))
        for documents in (some, some[::-1], more):
            again = split(Corpus(documents, "t"))
            assert again.notes == ()
            assert all(not side.get(document.name, False) for document in again.train)
            assert all(side.get(document.name, True) for document in again.held_out)
    edited = tuple(Document(document.name, document.text + "\n\nA new last line.") for document in everything.documents)
    assert [d.name for d in split(Corpus(edited, "t")).held_out] == [d.name for d in parts.held_out]


def test_a_share_is_met_roughly() -> None:
    documents = numbered(3_000)
    for share in (0.03, 0.1, 0.5):
        parts = split(Corpus(documents, "t"), share)
        size = sum(document.bytes for document in parts.held_out) / sum(document.bytes for document in documents)
        assert size == pytest.approx(share, rel=0.15)


def test_python_hashes_strings_anew_in_each_process_and_the_split_does_not_follow() -> None:
    program = (
        "from companion.data.corpora import *; "
        "print([d.name for d in split(Corpus(tuple(Document(f'd{i}', f'text {i}') for i in range(99)), 't')).held_out])"
    )
    elsewhere = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    done = subprocess.run([sys.executable, "-c", program], env=elsewhere, capture_output=True, text=True, check=True)
    here = split(Corpus(tuple(Document(f"d{i}", f"text {i}") for i in range(99)), "t")).held_out
    assert done.stdout.strip() == str([document.name for document in here])


def test_where_names_would_divide_badly_sizes_decide_and_a_note_says_so() -> None:
    book, letter = Document("book", "word " * 9_000), Document("letter", "other " * 200)
    parts = split(Corpus((book, letter), "t"), 0.1)
    assert parts.train == (book,) and parts.held_out == (letter,)
    assert "adding or removing documents may change which of them are held out" in parts.notes[0]
    same_name = tuple(Document("x.txt", document.text) for document in numbered(20))
    assert 1 <= len(split(Corpus(same_name, "t"), 0.1).held_out) <= 2


def test_a_large_corpus_does_not_measure_with_more_than_is_needed_nor_train_on_what_is_held_out(monkeypatch) -> None:
    documents = numbered(200)
    whole = split(Corpus(documents, "t"), 0.5)
    monkeypatch.setattr(corpora, "MOST_HELD_OUT", 2_000)
    parts = split(Corpus(documents, "t"), 0.5)
    assert 1_000 < sum(d.bytes for d in parts.held_out) <= 2_000
    assert parts.train == whole.train and set(parts.held_out) < set(whole.held_out)
    unused = sum(d.bytes for d in whole.held_out) - sum(d.bytes for d in parts.held_out)
    assert f"not used for evaluation: {unused:,} bytes" in parts.notes[0]


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("\n\n".join(f"paragraph {i} of many" for i in range(40)), "paragraph"),
        ("\n".join(f"line {i} of many" for i in range(40)), "line"),
        (" ".join(f"word{i}" for i in range(40)), "word"),
        ("日本語" * 40, "character"),
        ("ab", "character"),
    ],
)
def test_a_single_document_is_cut_once_and_nothing_is_lost_or_doubled(text: str, unit: str) -> None:
    parts = split(Corpus((Document("only", text),), "t"), 0.2)
    assert parts.train[0].text + parts.held_out[0].text == text
    assert parts.train[0].text and parts.held_out[0].text
    assert f"from a {unit} break on" in parts.notes[0]
    if len(text) > 10:
        assert 0.1 <= len(parts.held_out[0].text) / len(text) <= 0.4


def test_a_text_that_cannot_be_divided_and_a_share_that_is_none_are_refused() -> None:
    with pytest.raises(ValueError, match="expected at least two characters, so that the text can be split, got 1"):
        split(Corpus((Document("only", "a"),), "t"))
    for share in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="held_out=.*between 0 and 1"):
            split(Corpus(numbered(3), "t"), share)


def test_repeated_paragraphs_and_documents_go_and_short_lines_stay() -> None:
    long = "A paragraph that is long enough to be recognised when it comes a second time."
    first = Document("first", f"Heading\n\n{long}\n\nEnd.")
    second = Document("second", f"Heading\n\n{long.replace(' long', chr(10) + '   long')}\n\nAnother end.")
    third = Document("third", first.text)
    cleaned = deduplicate(Corpus((first, second, third), "t"))
    assert cleaned.documents == (first, Document("second", "Heading\n\nAnother end."))
    assert cleaned.notes[0].startswith("removed repeated paragraphs: ")
    alone = Corpus((first,), "t")
    assert deduplicate(alone) is alone


def test_files_folders_and_globs_are_read_once_each_in_a_fixed_order(tmp_path: Path) -> None:
    (tmp_path / "sub" / ".hidden").mkdir(parents=True)
    files = {"b.txt": "bee\r\n", "a.md": "\ufeffay", "sub/c.txt": "sea", "sub/.hidden/d.txt": "no", ".e.txt": "no"}
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "empty.txt").touch()
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    read = read_corpus([tmp_path])
    assert [(d.name, d.text) for d in read.documents] == [("a.md", "ay"), ("b.txt", "bee\r\n"), ("sub/c.txt", "sea")]
    assert read.notes == ("left out, not UTF-8 text: 1 file (picture.png)",)
    globbed = read_corpus([str(tmp_path / "**" / "*.txt"), tmp_path / "b.txt", tmp_path])
    assert [d.name for d in globbed.documents] == ["b.txt", "sub/c.txt", "a.md"]


def test_a_file_that_is_not_text_is_named_and_so_is_what_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "nul.txt").write_bytes(b"text\0text")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "blank.txt").write_text(" \n\n")
    with pytest.raises(ValueError, match=r"nul\.txt: expected a text file in UTF-8.*NUL byte at offset 4"):
        read_corpus([tmp_path / "nul.txt"])
    with pytest.raises(ValueError, match=r"latin\.txt: expected a text file in UTF-8"):
        read_corpus([str(tmp_path / "l*.txt")])
    with pytest.raises(ValueError, match="found no text in "):
        read_corpus([tmp_path / "blank.txt"])
    with pytest.raises(ValueError, match=r"found no text.*\(not UTF-8 text: 2 files\)"):
        read_corpus([tmp_path])
    with pytest.raises(ValueError, match=r"missing\.txt' does not exist"):
        read_corpus([tmp_path / "missing.txt"])
    with pytest.raises(ValueError, match=r"\*\.rst' matches no file"):
        read_corpus([str(tmp_path / "*.rst")])
    with pytest.raises(ValueError, match="at least one file"):
        read_corpus([])


def test_a_fingerprint_tells_texts_names_and_orders_apart() -> None:
    a, b = Document("a", "text"), Document("b", "other")
    prints = [fingerprint(x) for x in ([a, b], [b, a], [a], [Document("a", "text."), b], [Document("at", "ext"), b])]
    assert len(set(prints)) == len(prints)
    assert fingerprint([a, b]) == fingerprint([Document("a", "text"), b])


def test_a_file_name_in_another_encoding_becomes_text_that_can_be_written() -> None:
    assert corpora._plain(b"caf\xe9.txt".decode("utf-8", "surrogateescape")) == "caf\\xe9.txt"
    assert corpora._plain("café.txt") == "café.txt"
