"""What lesson 03 compares: readers of one and of two layers that learn lines which repeat, by start and updates."""

from __future__ import annotations

from types import SimpleNamespace

from authoring.comparisons.cells import names_of, row

BUDGETS = (260, 520)


def layers() -> dict[tuple[str, int], list[float]]:
    """Right answers of 100 of one layer, of two, and of one on lines that all have the period 9."""
    lesson = SimpleNamespace(**names_of("03", "setup", "lines"))
    of = {"one layer": (1, lesson.PERIODS), "two layers": (2, lesson.PERIODS), "one layer, period 9": (1, (9, 9))}
    found = {}
    for setting, (depth, periods) in of.items():
        for steps in BUDGETS:
            found[setting, steps] = []
            for start in range(3):
                reader = lesson.Reader("rotary", start=start)
                reader.layers = reader.layers[:depth]
                lesson.practise(reader, start, steps, periods=periods, length=lesson.LENGTH)
                found[setting, steps].append(100 * lesson.right(reader, periods, lesson.LENGTH))
            print(row(setting, f"{steps} updates", "right of 100", found[setting, steps]), flush=True)
    return found
