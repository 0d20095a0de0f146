"""What `companion grade` does."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from companion.checking.exercise import Exercise
from companion.course.grading.answers import Submission, Unreadable
from companion.exercises.catalogue import exercises, find_exercise


def grade_folder(chosen: Any) -> int:
    """Run `companion grade`; the exit code."""
    from companion.course.grading.sandbox.parent import Limits
    from companion.course.grading.submissions import handed_in, left_out
    from companion.course.seeds import read_secret

    if chosen.seed_file is None:
        raise ValueError(
            "--seed-file: expected the file with your secret, got none; `companion course release` makes one"
        )
    folder, seed_file, out = Path(chosen.folder), Path(chosen.seed_file), Path(chosen.out)
    limits = Limits(chosen.time, chosen.memory)
    if chosen.jobs < 1:
        raise ValueError(f"--jobs {chosen.jobs}: expected a whole number >= 1")
    secret = read_secret(seed_file)
    for flag, other in (("folder", folder), ("--out", out)):
        if seed_file.resolve().parent.is_relative_to((other / "feedback" if flag == "--out" else other).resolve()):
            if flag == "folder" and (folder / "submitted").is_dir():
                continue
            raise ValueError(f"--seed-file {seed_file}: expected it outside {other}, which holds what students see")
    for place in (out, out / "feedback"):
        if place.exists() and not place.is_dir():
            raise ValueError(f"--out {out}: expected a folder, but {place} is a file")
    wanted = choose(chosen.exercises, chosen.pset, [Path(), folder, folder.parent, seed_file.parent])
    name = chosen.assignment or (Path(chosen.pset).stem if chosen.pset else folder.resolve().name)
    handed = handed_in(folder, name)
    for file in left_out(folder):
        print(f"left out: {file} is no notebook and no Python file", file=sys.stderr)

    import torch
    from tqdm import tqdm

    from companion.course.grading.grade import TRIED, grade
    from companion.course.grading.marks_csv import summary, write

    torch.set_num_threads(1)  # of the comparisons; the answers run elsewhere
    with tqdm(total=len(handed), desc="submissions", unit=" students", file=sys.stderr) as bar:
        graded = grade(
            handed,
            wanted,
            secret,
            jobs=chosen.jobs,
            limits=limits,
            done=lambda _: bar.update(),
            warn=lambda text: bar.write(text, file=sys.stderr),
        )
    write(graded, name, out)
    print(summary(graded))
    for one in graded:
        if one.fault is not None:
            print(f"{one.handed.student}: {one.submission}: {one.fault}")
    tried = [one.points for one in graded if one.submission in TRIED]
    if tried:
        mean, most = sum(tried) / len(tried), sum(one.points for one in wanted)
        print(f"\n{len(tried)} of {len(graded)} submissions graded, {mean:.1f} of {most} points on average")
    print(f"{out / 'marks.csv'}: the marks; {out / 'feedback'}: a page for each student")
    return 0


def choose(ids: Sequence[str], pset: str | None, near: Sequence[Path]) -> list[Exercise]:
    """The exercises to grade: those of these numbers, or those whose functions the problem set's notebook defines.

    Args:
        ids: the exercises' numbers; none where there is a problem set.
        pset: a problem set's notebook or its folder, or its name.
        near: the folders whose `release` may hold a problem set of that name.

    Raises:
        ValueError: unknown or repeated numbers, no problem set there, or no exercise in it.
    """
    if bool(ids) == (pset is not None):
        raise ValueError(
            "--exercises: expected the exercises' numbers, or --pset with a problem set's notebook, one of them"
        )
    if pset is None:
        chosen = [find_exercise(id) for id in ids]
        twice = [id for id, count in Counter(ids).items() if count > 1]
        if twice:
            raise ValueError(f"--exercises {twice[0]}: expected each exercise once")
    else:
        places = [Path(pset), *(folder / "release" / pset for folder in near)]
        files = next((files for place in places if (files := _notebooks(place))), None)
        if files is None:
            raise ValueError(f"--pset {pset}: expected a problem set's notebook, its folder, or its name; found none")
        try:
            book = Submission.read(files)
        except Unreadable as error:
            raise ValueError(f"--pset {pset}: {error}") from None
        chosen = [one for one in exercises().values() if book.defines(one.name)]
        if not chosen:
            raise ValueError(f"--pset {pset}: expected a notebook with exercises of the course, found none in it")
    names = Counter(one.name for one in chosen)
    for one in chosen:
        if names[one.name] > 1:
            raise ValueError(
                f"--exercises: {one.id} and another one both ask for a function {one.name}; grade them apart"
            )
    return chosen


def _notebooks(place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(place.glob("*.ipynb"))
    return [place] if place.is_file() else []
