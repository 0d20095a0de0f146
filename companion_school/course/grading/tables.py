"""Read and write CSV tables of marks for spreadsheets in any language, escaping cells that look like formulas."""

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
"""Start of a formula in a cell: a sign, possibly full-width and after invisible characters, or a tab or CR."""
_BEGINNING = re.compile(rf"(\A|[;\t\r\n]){_FORMULA}")
_QUOTED = re.compile(rf"(\A|[;\t\r\n])'{_FORMULA}")


def number(value: float) -> str:
    """Format points for tables and pages: at most four decimals and no trailing zeros."""
    text = f"{value:.4f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def points(value: float) -> str:
    """Format points with their unit, as in "1 point" and "0.5 points"."""
    return f"{number(value)} {'point' if value == 1 else 'points'}"


def read_number(text: str, where: str) -> float | None:
    """Parse the number in a cell, with a decimal point or comma. Return None for an empty cell.

    Args:
        text: Contents of the cell.
        where: Start of the error message.

    Raises:
        ValueError: If the cell contains anything else.
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
    """Read a CSV file whose cells are separated by commas, semicolons or tabs.

    Returns:
        The rows, each a dictionary from column name to cell. Missing cells are empty.

    Raises:
        ValueError: If the file cannot be read, is not CSV in UTF-8, has two columns with the same name, or has a row
            with more cells than columns.
    """
    try:
        text = read_text(path)
        table = csv.DictReader(io.StringIO(text), strict=True, delimiter=separator(text))
        names = [name.strip() for name in table.fieldnames or ()]
        if len(names) != len(set(names)):
            raise csv.Error("two columns have the same name")
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
    """Return the separator of a table: the comma, semicolon or tab, whichever occurs most often in the header line."""
    head = re.sub(r'"[^"]*"', "", text.lstrip("\r\n").partition("\n")[0])
    return max(",;\t", key=head.count)


def as_csv(columns: Iterable[str], rows: Iterable[Mapping[str, str]], separated: str = ",") -> str:
    """Return a table as CSV text with a header line. Missing cells are left empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [*columns], lineterminator="\n", delimiter=separated)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_it_was(file: Path, columns: Iterable[str], rows: Iterable[Mapping[str, str]]) -> str:
    """Return a table as CSV text with the separator, byte order mark and line endings of a given file."""
    before = file.read_bytes()
    text = as_csv(columns, rows, separator(read_text(file)))
    if b"\r\n" in before:
        text = text.replace("\n", "\r\n")
    return "\ufeff" * before.startswith(codecs.BOM_UTF8) + text


def quoted(text: str) -> str:
    """Escape text so that spreadsheets do not interpret it as a formula. `unquoted` is the inverse.

    In some languages, spreadsheets separate cells with semicolons, so text after any separator is escaped too.
    """
    return _BEGINNING.sub(r"\1'\2", text)


def unquoted(cell: str) -> str:
    """Recover the text that `quoted` escaped."""
    return _QUOTED.sub(r"\1\2", cell)
