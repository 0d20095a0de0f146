"""Tables for a terminal: aligned columns, a maximum line length, and nothing omitted because of it."""

import pytest

from companion.ground.display import count, readable_bytes, table

ROWS = [("gpt2", "124 M", "248.9 MB", "first"), ("mixtral-8x7b", "46.7 B", "93.4 GB"), ("none",)]
HEAD = ("model", "parameters", "hold", "note")


def test_words_are_flush_left_and_figures_flush_right():
    assert table(ROWS, HEAD, left=(0, 3)).splitlines() == [
        "  model         parameters      hold  note",
        "  gpt2               124 M  248.9 MB  first",
        "  mixtral-8x7b      46.7 B   93.4 GB",
        "  none",
    ]


@pytest.mark.parametrize("width", [80, 42, 34, 33, 25, 24, 1])
def test_columns_that_do_not_fit_follow_below_with_their_names(width):
    blocks = [block.splitlines() for block in table(ROWS, HEAD, left=(0, 3), width=width).split("\n\n")]
    cells = [word for block in blocks for word in block[0].split()[1:]]
    assert cells == ["parameters", "hold", "note"]
    for block in blocks:
        assert [line.split()[0] for line in block] == ["model", "gpt2", "mixtral-8x7b", "none"]
        columns = len(block[0].split()) - 1
        assert columns == 1 or max(map(len, block)) <= width
    assert len(blocks) == {80: 1, 42: 2, 34: 2, 33: 2, 25: 3, 24: 3, 1: 3}[width]


def test_a_table_of_one_column_and_of_none():
    assert table([("a",), ("b",)], indent=0) == "a\nb"
    assert table([]) == ""
    assert len(table([("name", "x" * 200, "y" * 200)], width=None).splitlines()) == 1


def test_a_noun_is_in_its_number():
    token_mask = [count(number, "point") for number in (0, 1, 2.5, 1234, 1234567)]
    assert token_mask == ["0 points", "1 point", "2.5 points", "1,234 points", "1,234,567 points"]


def test_bytes_have_decimal_units():
    assert [readable_bytes(size) for size in (999, 1000, 2.5e9, 4e15)] == ["999 B", "1.0 kB", "2.5 GB", "4000.0 TB"]
