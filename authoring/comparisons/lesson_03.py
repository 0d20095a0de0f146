"""What lesson 03 compares: one layer and two on repetitions, and a split of the heads that mixes tokens."""

from __future__ import annotations

import torch

from authoring.comparisons.cells import names_of, row
from companion.school.study.rounds import Reader, practise, right

PERIODS, LENGTH, BUDGETS = (6, 12), 32, (260, 520)


def layers() -> dict[tuple[int, int], list[float]]:
    """Right answers of 100 with one layer and with two, by layers and updates; and when two layers jump."""
    found = {}
    for count in (1, 2):
        for updates in BUDGETS:
            scores, jumps = [], []
            for start in range(4):
                reader = Reader("rotary", start)
                reader.layers = reader.layers[:count]
                curve: dict[int, float] = {}

                def watch(done: int, reader: Reader = reader, curve: dict[int, float] = curve) -> None:
                    if done % 20 == 0:
                        curve[done] = 100 * right(reader, PERIODS, LENGTH)

                practise(reader, start, steps=updates, periods=PERIODS, length=LENGTH, watch=watch)
                scores.append(curve[updates])
                jumps.append(float(next((done for done in curve if curve[done] > 50), -1)))
            print(row(f"{count} layer(s)", f"{updates} updates", "right, of 100", scores), flush=True)
            print(row(f"{count} layer(s)", f"{updates} updates", "over half after", jumps), flush=True)
            found[count, updates] = scores
    return found


def direct_view() -> dict[tuple[str, int], list[float]]:
    """Right answers of 100 on whole lines, and with the beginning of a line alone, after a split by the direct view."""
    lesson, found = names_of("03", "setup", "lines"), {}
    text, _ = lesson["rounds"](torch.Generator().manual_seed(300), 64, PERIODS, LENGTH)
    for updates in BUDGETS:
        whole, writes = [], []
        for start in range(3):
            reader = Reader("rotary", start)
            for layer in reader.layers:
                layer._split = lambda x, h: x.view(len(x), h, x.shape[1], -1)
            practise(reader, start, steps=updates, periods=PERIODS, length=LENGTH)
            whole.append(100 * right(reader, PERIODS, LENGTH))
            with torch.no_grad():
                hits = [reader(text[:, :t])[:, -1].argmax(-1) == text[:, t] for t in (16, 20, 24, 28)]
            writes.append(100 * torch.stack(hits).double().mean().item())
        for measure, values in (("whole lines, of 100", whole), ("writing, of 100", writes)):
            print(row("direct view", f"{updates} updates", measure, values), flush=True)
            found[measure, updates] = values
    return found
