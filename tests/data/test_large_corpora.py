"""Text that stays on disk is cut, mixed and tokenized in parts, and each token comes once per epoch."""

import os
import time
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

from companion.data import corpora, large_corpora
from companion.data.batches import IGNORE, TrainingBatches
from companion.data.corpora import Document, fingerprint
from companion.data.large_corpora import Parts, StreamedBatches, is_large, read_large, sample
from companion.data.packing import PackedBatches
from companion.data.tokenizer import BytePairTokenizer
from companion.training.settings import TextSettings
from companion.training.tasks import large_text
from companion.training.tasks.large_text import LargeTextTask, open_text
from companion.training.tasks.text import TextTask, text_of

SHARED = "This paragraph stands in every part of the text, word for word, and is long enough to be one."


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write about 40 kB of text, which counts as large here."""
    for name, size in (("LARGE", 30_000), ("PIECE", 900), ("PART", 6_000), ("SAMPLE", 9_000)):
        monkeypatch.setattr(large_corpora, name, size)
    monkeypatch.setenv("COMPANION_HOME", str(tmp_path / "home"))
    random = np.random.default_rng(5)
    words = ["ape ", "bear ", "cäsium ", "東京 ", "elk.", "fig\n\n", "\U0001f40d ", "gnu, "]
    texts = tmp_path / "texts"
    texts.mkdir()
    for name, count in (("a.txt", 5000), ("b.txt", 900), ("c.txt", 40)):
        (texts / name).write_text("".join(random.choice(words, count)) + f"\n\n{SHARED}\n\nend of {name}", "utf-8")
    (texts / "d.txt").write_text("".join(f"{i}ß" for i in range(1000)), "utf-8-sig")
    (texts / "e.bin").write_bytes(b"\xff\xfe")
    return texts


def test_pieces_are_the_text_and_end_where_something_ends(folder):
    corpus = read_large([folder])
    assert any("not UTF-8 text: 1 file (e.bin)" in note for note in corpus.notes)
    for name in "abcd":
        whole = (folder / f"{name}.txt").read_text("utf-8-sig")
        pieces = [d for d in corpus.documents if d.name.startswith(name)]
        assert "".join(d.text for d in pieces) == whole
        assert all(d.bytes == len(d.text.encode()) <= 900 for d in pieces)
        if name == "a":
            assert len(pieces) > 20 and all(d.text.endswith(("\n", " ")) for d in pieces[:-1])
    (folder / "copy.txt").write_bytes((folder / "a.txt").read_bytes())
    again = read_large([folder])
    assert [d.name for d in again.documents] == [d.name for d in corpus.documents]
    assert any("removed repeated documents" in note for note in again.notes)


def test_what_is_large_and_what_is_refused(folder):
    assert is_large([folder]) and not is_large([folder / "b.txt"]) and not is_large(["course"])
    with pytest.raises(ValueError, match="expected a text file in UTF-8, got something else"):
        read_large([folder / "e.bin", folder / "a.txt"])
    document = read_large([folder]).documents[3]
    before = fingerprint([document])
    text = (folder / "a.txt").read_text("utf-8")
    (folder / "a.txt").write_text(text[::-1], "utf-8")
    with pytest.raises(ValueError, match=r"a.txt: the text has changed since training started"):
        _ = document.text
    assert fingerprint([read_large([folder]).documents[3]]) != before


def parts_of(folder, home):
    corpus = read_large([folder])
    tokenizer = BytePairTokenizer.train((d.text for d in corpus.documents), 300)
    held_out = [Document("held out", f"what is measured\n\n{SHARED}")]
    made = Parts(corpus.documents, tokenizer, vocab=tokenizer.vocab, held_out=held_out, seed=3, folder=home)
    return made, corpus, tokenizer


@pytest.mark.parametrize("kind", [TrainingBatches, PackedBatches])
def test_a_batch_depends_on_its_number_alone_and_an_epoch_holds_every_token(folder, tmp_path, kind):
    parts, corpus, tokenizer = parts_of(folder, tmp_path / "ids")
    assert len(parts) > 4
    make = partial(kind, context=32, batch=1, seed=1)
    batches = StreamedBatches(parts, make, batch=3, seed=2)
    windows = sum(make(parts(i)).windows for i in range(len(parts)))
    steps = -(-2 * windows // 3)
    batch = [batches(step) for step in range(steps)]
    assert batches.epochs(windows) == pytest.approx(3, rel=0.4)
    for step in (steps - 1, 0, windows // 3):  # for these steps no file exists yet; afterwards all do
        for home in (tmp_path / f"new-{step}", tmp_path / "ids"):
            alone = StreamedBatches(parts_of(folder, home)[0], make, batch=3, seed=2)(step)
            assert all(torch.equal(a, b) for a, b in zip(alone, batch[step], strict=True))
    targets = torch.cat([b[-1] for b in batch])
    ids = [i for document in corpus.documents for i in tokenizer.encode(document.text.replace(SHARED + "\n\n", ""))]
    ids += [tokenizer.separator] * len(corpus.documents)
    for epoch in range(2):
        found = targets[epoch * windows : (epoch + 1) * windows].flatten()
        missing = Counter(ids)
        missing.subtract(found[found != IGNORE].tolist())
        # Windows of equal length leave out one token and less than one window of each part.
        most = 33 * len(parts) if kind is TrainingBatches else 0
        assert min(missing.values()) >= 0 and missing.total() <= most


def test_ids_are_mapped_from_files_of_two_bytes_each(folder, tmp_path):
    parts, corpus, tokenizer = parts_of(folder, tmp_path / "ids")
    first = parts(0)
    assert (tmp_path / "ids" / "000000.ids").stat().st_size == 2 * sum(len(ids) for ids in first)
    assert all(ids[0] == tokenizer.separator for ids in first)
    text = "".join(tokenizer.decode(ids.tolist()) for i in range(len(parts)) for ids in parts(i))
    assert SHARED in "".join(d.text for d in corpus.documents) and SHARED not in text
    parts._tokenizer = None  # parts that are already in the file are not computed again
    parts._tokenizer = type("Nothing", (), {"separator": tokenizer.separator})()
    assert all(torch.equal(a, b) for a, b in zip(parts(0), first, strict=True))


def test_a_sample_is_from_everywhere_and_bounded():
    documents = [Document(str(i), "ab" * 50) for i in range(100)]
    some = sample(documents, 2000)
    assert 1000 < sum(d.bytes for d in some) <= 2000 and some[-1].name > "90"
    assert sample(documents[:5], 500) == documents[:5]
    assert [d.bytes for d in sample([Document("long", "x" * 999)], 100)] == [100]


def test_a_run_on_large_text_trains_and_its_text_is_found_again(folder):
    settings = TextSettings(
        data=[str(folder)], d_model=16, layers=1, heads=2, context=24, batch=3, vocab=300, dropout=0.0, held_out=0.1
    )
    task = open_text(settings)
    assert type(task) is LargeTextTask and type(open_text(TextSettings(data=[str(folder / "b.txt")]))) is TextTask
    assert corpora.read_corpus([folder]).bytes < 45_000
    trainer = task.trainer(30, torch.device("cpu"), "fp32")
    losses = [trainer.update().loss for _ in range(30)]
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    assert task.measure(trainer.model).bits_per_byte < 8
    record = task.record() | {"settings": settings.what_matters()}
    assert text_of(record).fingerprint == task.fingerprint
    assert task.amount(30) and dict(task.facts())["tokens"].endswith("to learn from")


def test_ids_of_texts_not_read_for_long_are_removed_and_a_run_says_so(folder, monkeypatch):
    settings = TextSettings(data=[str(folder)], d_model=16, layers=1, heads=2, context=24, vocab=300, held_out=0.1)
    task = open_text(settings)
    _ = task.train
    ids = folder.parent / "home" / "ids"
    (own,) = ids.iterdir()
    now = time.time()
    os.utime(own, (now - 99 * 86400,) * 2)
    for name, days, size in (("old", 31, 10), ("first", 20, 600), ("second", 10, 700), ("third", 1, 300)):
        (ids / name).mkdir()
        (ids / name / "000000.ids").write_bytes(bytes(size))
        os.utime(ids / name, (now - days * 86400,) * 2)
    (ids / "a file").write_bytes(bytes(5))
    monkeypatch.setattr(large_text, "KEPT_BYTES", 1000)
    assert task.facts()[-1][1].endswith("kept 30 days, at most 1.0 kB; 610 B removed now")
    assert {path.name for path in ids.iterdir()} == {own.name, "second", "third", "a file"}
    assert own.stat().st_mtime >= now - 1
    assert task.facts()[-1][1].endswith("at most 1.0 kB")
