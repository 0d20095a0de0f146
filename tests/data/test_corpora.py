"""Which text, and what is held out of it: by document, the same on every machine, nothing on both sides."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from companion.data import corpora
from companion.data.corpora import Corpus, Document, deduplicate, fingerprint, python_reference, read_corpus, split


def numbered(count: int, size: int = 300) -> tuple[Document, ...]:
    return tuple(Document(f"d{i}", f"document {i} " * (size // 12 + i % 7)) for i in range(count))


def test_the_default_text_is_there_and_large_enough() -> None:
    corpus = python_reference()
    assert 300_000 < corpus.bytes < 1_000_000
    assert len(corpus.documents) > 100
    assert max(document.bytes for document in corpus.documents) < corpus.bytes / 10
    assert "removed repeated paragraphs" in corpus.notes[0]
    assert python_reference() == corpus


def test_no_document_and_no_long_stretch_of_text_is_on_both_sides_of_the_default_split() -> None:
    parts = split(python_reference())
    assert not set(parts.train) & set(parts.held_out)
    assert set(parts.train) | set(parts.held_out) == set(python_reference().documents)
    length = 250
    text = "\0".join(document.text for document in parts.train)
    for document in parts.held_out:
        for i in range(0, len(document.text) - length + 1, 5):  # a shared stretch of 255 holds one of these
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
    everything = python_reference()
    parts = split(everything)
    assert parts.notes == ()
    assert 0.05 < sum(document.bytes for document in parts.held_out) / everything.bytes < 0.15
    side = {document.name: False for document in parts.train} | {document.name: True for document in parts.held_out}
    for step, keep in ((7, 6), (3, 1), (2, 1)):  # six of seven documents, a third, a half
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
    assert "may change when others are added or removed" in parts.notes[0]
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
    assert f"not needed to measure with: {unused:,} bytes" in parts.notes[0]


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
    assert f"cut once at a {unit} break" in parts.notes[0]
    if len(text) > 10:
        assert 0.1 <= len(parts.held_out[0].text) / len(text) <= 0.4


def test_a_text_that_cannot_be_divided_and_a_share_that_is_none_are_refused() -> None:
    with pytest.raises(ValueError, match="two parts, got 1 character"):
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
    with pytest.raises(ValueError, match=r"nul\.txt: expected a text file in UTF-8.*NUL byte at byte 4"):
        read_corpus([tmp_path / "nul.txt"])
    with pytest.raises(ValueError, match=r"latin\.txt: expected a text file in UTF-8"):
        read_corpus([str(tmp_path / "l*.txt")])
    with pytest.raises(ValueError, match="expected text in .*found none"):
        read_corpus([tmp_path / "blank.txt"])
    with pytest.raises(ValueError, match=r"found none \(not UTF-8 text: 2 files\)"):
        read_corpus([tmp_path])
    with pytest.raises(ValueError, match=r"missing\.txt' does not exist"):
        read_corpus([tmp_path / "missing.txt"])
    with pytest.raises(ValueError, match=r"expected files for .*\*\.rst', found none"):
        read_corpus([str(tmp_path / "*.rst")])
    with pytest.raises(ValueError, match="at least one file"):
        read_corpus([])


def test_a_fingerprint_tells_texts_names_and_orders_apart() -> None:
    a, b = Document("a", "text"), Document("b", "other")
    prints = [fingerprint(x) for x in ([a, b], [b, a], [a], [Document("a", "text."), b], [Document("at", "ext"), b])]
    assert len(set(prints)) == len(prints)
    assert fingerprint([a, b]) == fingerprint([Document("a", "text"), b])


def test_the_share_of_a_text_that_was_trained_on_is_found() -> None:
    long = "This paragraph has sixty characters and more, so that it is compared."
    other = "That paragraph has sixty characters and more, and is found nowhere else."
    train = [Document("t", f"Intro\n\n{long}")]
    text = Document("x", f"{other}\n\n{long}")
    assert corpora.repeated_share(train, [text]) == pytest.approx(len(long) / len(text.text))
    assert corpora.repeated_share(train, [Document("y", other)]) == 0
