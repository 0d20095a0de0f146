"""Numbers written by hand: a result is matched with the cell that prints it; inputs and formulas are ignored."""

import nbformat

from authoring.quoted_outputs import by_hand

SOURCE = """# A lesson

## Sitting 1

It reads 64 words, and gets 0.875 right, or 88 %. With a pencil $0.875 \\cdot 2$; see (0.875) and `0.875`, or
{out}`0.875 <share>`, and 12 of them at once.

```{code-cell}
:name: share
print(share_of(64))
```

```{code-cell}
:name: checks-share
# checks the share
assert share == 0.875
```

- [x] 7 of 8 | That is 0.88 and not 0.99.
= 0.875 | Said here.

## Sitting 2

0.875 is nothing here.
"""


def cell(name, text):
    output = nbformat.v4.new_output("stream", text=text)
    return nbformat.v4.new_code_cell("", metadata={"name": name}, outputs=[output])


def test_a_number_that_a_cell_of_its_part_prints_is_found_and_one_that_goes_in_is_not():
    cells = [cell("share", "64 words: 0.875 right"), cell("checks-share", "checked: 12")]
    assert list(by_hand(SOURCE, cells)) == [
        (5, "0.875", "share"),
        (5, "88 %", "share"),
        (6, "12", "checks-share"),
        (19, "0.88", "share"),
    ]
