"""Comparisons for lesson 20: answers before and after training with rewards, DPO, and two ways to distill a teacher."""

from __future__ import annotations

from pathlib import Path

import torch

from authoring.comparisons.cells import names_of, row
from authoring.records.answering import CELLS, EVERY, STARTS, Runs

Found = dict[tuple[str, int], list[float]]
RIGHT, WORKING = 2, 4
"""The columns with these shares in a run's rows."""


def checked() -> Found:
    """Read the share of right answers and the share of answers with working from the recorded runs.

    In these runs, the model was rewarded for the right digit.
    """
    run, found = Runs(Path("build/records/answering")), Found()
    for steps in (0, 10, 100):
        for name, column in (("right", RIGHT), ("with working", WORKING)):
            found[name, steps] = [run("checker", start)["rows"][steps // EVERY][column] for start in STARTS]
            print(row("checker", f"{steps} steps", name, found[name, steps]))
    return found


def distilled() -> Found:
    """Measure the accuracy of students distilled on-policy and of students fine-tuned on their teacher's answers.

    Each update uses 256 answers, either the student's own or the teacher's, at the same constant learning rate.
    """
    run, found = Runs(Path("build/records/answering")), Found()
    lesson = run.lesson
    for start in STARTS:
        dice, on_policy = torch.Generator().manual_seed(start), dict(run.distilled(start)["rows"])
        teacher, student, optimizer = run.teacher_and_student(start, dice)
        for updates in range(1, 25):
            texts = lesson["write"](teacher, lesson["template"](lesson["questions"](256, dice)), dice=dice)
            optimizer.zero_grad()
            lesson["on_answers"](student, texts).backward()
            optimizer.step()
            if updates in (12, 24):
                right = lesson["right_share"](student, dice=torch.Generator().manual_seed(start))
                found.setdefault(("teacher's answers", updates), []).append(right)
                found.setdefault(("on-policy", updates), []).append(on_policy[updates])
    for (way, updates), values in found.items():
        print(row(way, f"{updates} updates", "right", values), flush=True)
    return found


def preferred() -> Found:
    """Measure answers before and after DPO with two penalty weights.

    The measures are the share of answers that show working, and the share of these that are right.
    """
    run, lesson, found = Runs(Path("build/records/answering")), names_of("20", *CELLS, "pair-loss", "prefer"), Found()
    for start in STARTS:
        taught, dice = run.taught(start), torch.Generator().manual_seed(start)
        pairs = lesson["pairs_of"](taught, 200, dice)
        models = {("before", 0): taught}
        for updates in (40, 80):
            for tau in (0.1, 0.5):
                models[f"tau {tau}", updates] = lesson["prefer"](taught, pairs, tau, dice, updates)
        for (setting, updates), model in models.items():
            for name, share in zip(("with working", "of these right"), lesson["shares"](model, dice), strict=False):
                found.setdefault((f"{setting}, {name}", updates), []).append(share)
    for (setting, updates), values in found.items():
        print(row(setting, f"{updates} updates", "share", values), flush=True)
    return found
