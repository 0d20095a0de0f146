"""Text too large for memory: documents stay on disk, and batches come from parts that are tokenized as needed.

A corpus in memory takes several times the size of its files, and tokenizing it takes minutes. Files of `LARGE` bytes or
more are cut into documents of at most `PIECE` bytes. For each document, only its position in the file and a checksum
are stored. Documents are shuffled once and divided into parts of about `PART` bytes. Training begins with the first
part, while another thread prepares the next one. The ids of a part are stored in a file, so that it is tokenized only
once.
"""

from __future__ import annotations

import hashlib
import mmap
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from companion.data.batches import Encoder, TrainingBatches
from companion.data.corpora import NAMED_TEXTS, Corpus, Document, files_of, left_out, read_files, title_of
from companion.data.deduplication import SHORTEST_REPEAT
from companion.data.packing import PackedBatches
from companion.ground.atomic import write_atomic
from companion.ground.waiting import counting

LARGE = 64 * 2**20
"""Text stays on disk if its files have at least this many bytes in total."""
PIECE = 2**16
"""Maximum size in bytes of a document that is part of a file."""
PART = 4 * 2**20
"""Bytes of text that are tokenized together, which takes seconds."""
SAMPLE = 8 * 2**20
"""Bytes of text that a tokenizer is trained on."""
_BREAKS = (b"\n\n", b"\n", b" ")
_BOM = b"\xef\xbb\xbf"


class Piece(Document):
    """A document that is part of a file: bytes `start` to `end`, which are read whenever the text is requested.

    Attributes:
        digest: Hash of the document's name and text, which was computed when the text was first read.
    """

    file: Path
    start: int
    end: int
    _digest: str

    def __init__(self, name: str, file: Path, start: int, end: int, digest: str) -> None:
        for field, value in (("name", name), ("file", file), ("start", start), ("end", end), ("_digest", digest)):
            object.__setattr__(self, field, value)

    @property
    def text(self) -> str:
        """The text. Raises `ValueError` if the file has changed in the meantime."""
        try:
            with open(self.file, "rb") as file:
                file.seek(self.start)
                data = file.read(self.end - self.start)
        except OSError as error:
            raise ValueError(f"{self.file}: can no longer be read ({error.strerror})") from None
        if _digest(self.name, hashlib.sha256(data).digest()) != self._digest:
            raise ValueError(f"{self.file}: the text has changed since training started")
        return data.decode()

    @property
    def bytes(self) -> int:
        return self.end - self.start

    @property
    def digest(self) -> str:
        return self._digest


def is_large(paths: Sequence[str | Path]) -> bool:
    """Return whether the files of `paths` have at least `LARGE` bytes in total, not counting the `NAMED_TEXTS`.

    Raises:
        ValueError: if a path does not exist.
    """
    size = 0
    for path in paths:
        if path not in NAMED_TEXTS:
            for file, _, _ in files_of(str(path)):
                with suppress(OSError):
                    size += file.stat().st_size
    return size >= LARGE


def read_large(paths: Sequence[str | Path]) -> Corpus:
    """Read files of at least `LARGE` bytes in total, like `companion.data.corpora.read_corpus`, but leave them on disk.

    Documents that occur twice are removed; paragraphs are not compared with each other. `Parts` also removes paragraphs
    that occur in held-out documents.

    Raises:
        ValueError: in the same cases as `read_corpus`.
    """
    documents: list[Document] = []
    not_text: list[str] = []
    notes: list[str] = []
    seen: set[object] = set()
    removed = 0
    with counting(None, unit="B", what="reading", scale=True) as done:
        for path in paths:
            if path in NAMED_TEXTS:
                documents.extend(NAMED_TEXTS[str(path)]().documents)
                continue
            for _, found in read_files(str(path), lambda file, name: _pieces(file, name, done), seen, not_text):
                for document, same in found:
                    if same in seen:
                        removed += document.bytes
                    else:
                        documents.append(document)
                        seen.add(same)
    size = sum(document.bytes for document in documents)
    if not_text:
        notes.append(left_out(not_text))
    if removed:
        notes.append(f"removed repeated documents: {removed:,} bytes")
    notes.append(f"read from disk as it is needed, in {len(documents):,} pieces; repeated paragraphs are not removed")
    if not size:
        raise ValueError(f"data: found no text in {', '.join(map(str, paths))}")
    return Corpus(tuple(documents), title_of(paths), tuple(notes))


def _pieces(file: Path, name: str, count: Callable[[int], object]) -> list[tuple[Piece, bytes]]:
    """Return the pieces of a file, each with a hash of its text. Raises `UnicodeError` if the file is not text."""
    pieces: list[tuple[Piece, bytes]] = []
    size = file.stat().st_size
    if not size:
        return pieces
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = len(_BOM) if data[:3] == _BOM else 0
        while start < size:
            end = _end(data, start, size)
            text = data[start:end]
            if (nul := text.find(b"\0")) >= 0:
                raise UnicodeError(f"a NUL byte at offset {start + nul}")
            text.decode()
            own = f"{name} ({len(pieces) + 1})" if pieces or end < size else name
            same = hashlib.sha256(text).digest()
            pieces.append((Piece(own, file, start, end, _digest(own, same)), same))
            count(end - start)
            start = end
    return pieces


def _end(data: mmap.mmap, start: int, size: int) -> int:
    """Return the end of a piece, which lies between paragraphs or, failing that, lines, words or characters."""
    if size - start <= PIECE:
        return size
    for gap in _BREAKS:
        if (place := data.rfind(gap, start + PIECE // 2, start + PIECE)) >= 0:
            return place + len(gap)
    end = start + PIECE
    while end > start + PIECE - 4 and data[end] & 0xC0 == 0x80:  # step back out of a multi-byte character
        end -= 1
    return end


def _digest(name: str, of_text: bytes) -> str:
    return hashlib.sha256(name.encode() + b"\0" + of_text).hexdigest()


def sample(documents: Sequence[Document], most: int) -> list[Document]:
    """Return every n-th document, or all, with a total of about `most` bytes; cut any document that is longer than
    this."""
    total = sum(document.bytes for document in documents)
    if total <= most:
        return list(documents)
    few = documents[:: min(len(documents), -(-total // most))]
    return [document if document.bytes <= most else Document(document.name, document.text[:most]) for document in few]


class Parts:
    """Tokenized documents in parts: `parts(i)` returns the documents of part i, and `len(parts)` is their number.

    Documents are shuffled by `seed`. The ids of a part are written to `folder`, as two or four bytes each, and
    memory-mapped; if they cannot be written, they are computed again each time.

    Args:
        documents: the documents to tokenize.
        tokenizer: encodes them.
        vocab: vocabulary size.
        held_out: documents whose paragraphs are removed from all others.
        seed: seed of the order.
        folder: folder for the ids.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        tokenizer: Encoder,
        *,
        vocab: int,
        held_out: Sequence[Document],
        seed: int,
        folder: Path,
    ) -> None:
        order = np.random.default_rng(seed).permutation(len(documents))
        ends = np.cumsum([documents[i].bytes for i in order])
        of_part = ends // PART
        self._parts = [[documents[i] for i in order[of_part == part]] for part in np.unique(of_part)]
        paragraphs = (p for document in held_out for p in document.text.split("\n\n"))
        self._known = {known for paragraph in paragraphs if len(known := paragraph.strip()) >= SHORTEST_REPEAT}
        self._tokenizer, self.folder = tokenizer, folder
        self._kind = np.dtype(np.uint16 if vocab <= 2**16 else np.uint32)

    def __len__(self) -> int:
        return len(self._parts)

    def bytes(self, part: int) -> int:
        return sum(document.bytes for document in self._parts[part])

    def __call__(self, part: int) -> list[Int[Tensor, " _token"]]:
        """Return the ids of each document of a part, with the separator first."""
        file = self.folder / f"{part:06d}.ids"
        try:
            ids: npt.NDArray[np.integer] = np.memmap(file, self._kind, "r")
        except (OSError, ValueError):
            ids = np.array([i for document in self._parts[part] for i in self._encoded(document)], self._kind)
            with suppress(OSError):  # the disk may be full, but the file is not essential
                write_atomic(file, ids.tobytes())
        places = np.flatnonzero(ids == self._tokenizer.separator)
        return [torch.from_numpy(piece.astype(np.int64)) for piece in np.split(ids, places[1:])]

    def _encoded(self, document: Document) -> list[int]:
        text = document.text
        kept = [paragraph for paragraph in text.split("\n\n") if paragraph.strip() not in self._known]
        return [self._tokenizer.separator, *self._tokenizer.encode("\n\n".join(kept))]


Windows = TrainingBatches | PackedBatches
"""The windows of one part, with one window per batch."""


class StreamedBatches:
    """Batches of windows, taken from one part after another.

    An epoch passes through each part once, in windows made by `make`; the next epoch uses the parts in a different
    order. A batch depends only on its number, and may contain the end of one part and the beginning of the next.

    Args:
        parts: the documents as ids.
        make: makes the windows of a part from its documents.
        batch: windows per batch.
        seed: seed of the order.

    Attributes:
        total: number of windows in an epoch, estimated from the first part, in proportion to the bytes of all parts.
    """

    def __init__(self, parts: Parts, make: Callable[[Sequence[Tensor]], Windows], *, batch: int, seed: int) -> None:
        self._parts, self._make, self.batch, self._seed = parts, make, batch, seed
        self._sizes: dict[int, int] = {}
        self._ends = [0]  # number of windows up to the end of each visit to a part
        self._ready = lru_cache(maxsize=3)(lambda part: self._pool.submit(self._made, part))
        self._pool = ThreadPoolExecutor(1, "ids")
        self._order = lru_cache(maxsize=2)(
            lambda epoch: np.random.default_rng((seed, epoch)).permutation(len(parts)).tolist()
        )
        share = parts.bytes(self._part(0)) / sum(map(parts.bytes, range(len(parts))))
        self.total = self._windows(self._part(0)) / share

    def __call__(self, step: int) -> tuple[Tensor, ...]:
        """Return batch number `step`, in the format of the batches that `make` returns."""
        rows = [self._row(step * self.batch + i) for i in range(self.batch)]
        return tuple(torch.cat(column) for column in zip(*rows, strict=True))

    def epochs(self, steps: int) -> float:
        """Return approximately how many times `steps` batches pass through the text."""
        return steps * self.batch / self.total

    def _row(self, number: int) -> tuple[Tensor, ...]:
        while number >= self._ends[-1]:
            self._ends.append(self._ends[-1] + self._windows(self._part(len(self._ends) - 1)))
        visit = bisect_right(self._ends, number) - 1
        made: Windows = self._ready(self._part(visit)).result()
        self._ready(self._part(visit + 1))  # prepare the next part in the background
        epoch = visit // len(self._parts)
        return made(epoch * made.windows + number - self._ends[visit])

    def _part(self, visit: int) -> int:
        epoch, place = divmod(visit, len(self._parts))
        return int(self._order(epoch)[place])

    def _windows(self, part: int) -> int:
        if part not in self._sizes:
            self._sizes[part] = self._ready(part).result().windows
        return self._sizes[part]

    def _made(self, part: int) -> Windows:
        return self._make(self._parts(part))
