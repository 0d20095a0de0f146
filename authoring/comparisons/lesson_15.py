"""Comparisons for lesson 15: kinds of attention at equal bytes, and what SmolLM2 finds among chosen tokens."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import names_of, row
from authoring.records.cache import BUDGETS, STARTS, Runs
from companion_school.study.real import real_model

Found = dict[tuple[str, int], list[float]]


def kinds() -> Found:
    """Read the loss on unseen text from the record's runs, for each kind of attention and number of updates."""
    run, found = Runs(Path("build/records/cache")), Found()
    for updates, trained in BUDGETS.items():
        for kind in trained:
            found[kind, updates] = [run(kind, start, updates)["loss"] for start in STARTS]
            print(row(kind, f"{updates} updates", "nats a token", found[kind, updates]), flush=True)
    return found


def chosen() -> Found:
    """Count right telephone numbers where SmolLM2 reads few tokens: chosen by an oracle, or the last ones.

    The lists are those of lesson 17. Return nothing without the model.
    """
    lesson, found = names_of("15", "setup", "sets-up-reading", "reads"), Found()
    if (opened := real_model("smollm2")) is None:
        return found
    model, tokenizer = opened
    telephone, best, last = names_of("17", "setup", "sets-up-book")["telephone"], lesson["best"], lesson["last"]
    for few in (64, 16):
        picks = {
            "all tokens": lambda z: z > float("-inf"),
            "chosen by each head": lambda z, few=few: best(z, few),
            "one choice for all": lambda z, few=few: best(z.softmax(-1).sum(1, True), few),
            "the first and the last": lambda z, few=few: last(z, few, first=1),
        }
        for name, pick in picks.items():
            found[name, few] = []
            for start in STARTS:
                ids, at = telephone(tokenizer, start)
                with lesson["reading"](model, pick):
                    said = model(ids).logits[0, :-1].argmax(-1)
                found[name, few].append(float((said[at] == ids[0, 1:][at]).all(-1).sum()))
            print(row(name, f"{few} tokens", "right of 16", found[name, few]), flush=True)
    return found
