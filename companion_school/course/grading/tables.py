"""Tables of marks as files: CSV that spreadsheets of any language write, and cells that none takes for a formula."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from companion.ground.fields import shown, why
from companion.ground.reading import read_text

Row = dict[str, str]
_FORMULA = r"([\s\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff']*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r])"
"""What a formula begins with, full-width signs and what cannot be seen in front of them included."""
_BEGINNING = re.compile(rf"(\A|[;\t\r\n]){_FORMULA}")
_QUOTED = re.compile(rf"(\A|[;\t\r\n])'{_FORMULA}")


def number(value: float) -> str:
    """A number of points as every person sees it, in tables and on pages alike: at most four decimals, no zeros."""
    text = f"{value:.4f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def read_number(text: str, where: str) -> float | None:
    """The number in a cell, with a point or a comma; None for an empty cell.

    Raises:
        ValueError: it is not a number; the message begins with `where`.
    """
    written = text.strip().replace("\u202f", "").replace("\xa0", "")
    if not written:
        return None
    if re.fullmatch(r"[+-]?\d+,\d+", written):
        written = written.replace(",", ".")
    try:
        return float(written)
    except ValueError:
        raise ValueError(f"{where} must be a number, got {shown(text)}") from None


def read_table(path: Path) -> list[Row]:
    """The rows of a CSV file, by the names of their columns; cells are separated by commas, semicolons or tabs.

    Raises:
        ValueError: it is not such a file.
    """
    try:
        text = read_text(path)
        table = csv.DictReader(io.StringIO(text), strict=True, delimiter=separator(text))
        names = [name.strip() for name in table.fieldnames or ()]
        if len(names) != len(set(names)):
            raise csv.Error("two columns have one name")
        table.fieldnames = names
        rows = []
        for at, row in enumerate(table, 2):
            if None in row:
                raise csv.Error(f"line {at} has more cells than there are columns")
            rows.append({key: value or "" for key, value in row.items() if key})
        return rows
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeError, csv.Error) as error:
        raise ValueError(f"{path}: expected a CSV file in UTF-8 ({why(error)})") from None


def separator(text: str) -> str:
    """What separates the cells of a table: the one of comma, semicolon and tab that its headings have most of."""
    head = re.sub(r'"[^"]*"', "", text.lstrip("\r\n").partition("\n")[0])
    return max(",;\t", key=head.count)


def as_csv(columns: Iterable[str], rows: Iterable[Mapping[str, str]], separated: str = ",") -> str:
    """A table as CSV: a line of headings, then a line for each row; what a row lacks is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [*columns], lineterminator="\n", delimiter=separated)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_it_was(file: Path, columns: Iterable[str], rows: Iterable[Mapping[str, str]]) -> str:
    """A table in the form that a file has: its separator, its byte order mark and the ends of its lines."""
    before = file.read_bytes()
    text = as_csv(columns, rows, separator(read_text(file)))
    if b"\r\n" in before:
        text = text.replace("\n", "\r\n")
    return "\ufeff" * before.startswith(codecs.BOM_UTF8) + text


def quoted(text: str) -> str:
    """A cell that no spreadsheet takes for a formula; `unquoted` gives the text back.

    Spreadsheets of some languages end cells at semicolons, so what follows a separator counts as a beginning too.
    """
    return _BEGINNING.sub(r"\1'\2", text)


def unquoted(cell: str) -> str:
    """The text that `quoted` made this cell of."""
    return _QUOTED.sub(r"\1\2", cell)
