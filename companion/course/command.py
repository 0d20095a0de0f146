"""What `companion course` and `companion progress` do."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from companion.checkpoints import write_atomic


def course(chosen: Any) -> int:
    """Run one action of `companion course`; the exit code."""
    if chosen.action is None:
        raise ValueError("expected an action: release, export, verify or notebooks; --help explains them")
    actions = {"release": _release, "export": _export, "verify": _verify, "notebooks": _notebooks}
    return actions[chosen.action](chosen[chosen.action])


def progress() -> int:
    from companion.study.exercises.progress import table

    print(table())
    return 0


def _release(chosen: Any) -> int:
    from companion.course.bundle import ProblemSet, check_free, release
    from companion.course.seeds import read_secret

    if chosen.out is None:
        raise ValueError("--out: expected a folder to write into, got none; for example --out course/")
    pset, out = ProblemSet.of(chosen.pset, chosen.exercises), Path(chosen.out)
    check_free(pset, out)
    made = None
    if chosen.seed_file is None:
        file = out / "secret.seed"
        if not file.exists():
            made = file
            _put_secret(file)
    else:
        file = Path(chosen.seed_file)
    written = release(pset, read_secret(file), out)
    if made:
        print(f"{made}: your secret, new. Keep it; grading needs it, and nobody else may read it.")
    for path in written:
        print(f"{path}: written")
    print(f"\nGive students {out / 'release' / pset.name}, the whole folder. {out / f'{pset.name}.md'} is your page.")
    return 0


def _put_secret(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as opened:
        opened.write(secrets.token_hex(32) + "\n")


def _export(chosen: Any) -> int:
    from companion.course.export import collect, to_csv

    folder = Path(chosen.folder)
    to = folder / "grades.csv" if chosen.to is None else Path(chosen.to)
    if to.is_dir():
        raise ValueError(f"--to {to}: expected a file, got a folder")
    rows = collect(folder, None if chosen.roster is None else Path(chosen.roster), leave_out=to)
    write_atomic(to, to_csv(rows))
    students, sets = {row["student_id"] for row in rows}, {row["assignment"] for row in rows}
    print(f"{to}: {len(students)} students, {len(sets)} problem sets ({', '.join(sorted(sets))})")
    return 0


def _verify(chosen: Any) -> int:
    from companion.course.proof import as_json, as_text, prove

    if chosen.jobs < 1:
        raise ValueError(f"--jobs {chosen.jobs}: expected a whole number >= 1")
    proof = prove(chosen.exercises or None, jobs=chosen.jobs)
    print(as_json(proof) if chosen.json else as_text(proof))
    return 0 if proof.holds else 1


def _notebooks(chosen: Any) -> int:
    from companion.course.notebooks import stale_files, write_self_study, write_solved

    folder = Path(chosen.folder)
    if chosen.check and chosen.solved is not None:
        raise ValueError("--check: expected no --solved beside it, got both")
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected the folder of the lessons, got no folder")
    if chosen.solved is not None:
        for path in write_solved(folder, Path(chosen.solved)):
            print(f"{path}: written")
        return 0
    lines = stale_files(folder) if chosen.check else write_self_study(folder)
    print("\n".join(lines) or f"{folder / 'exercises'}: up to date")
    if chosen.check and lines:
        print("Run: make notebooks")
    return 1 if chosen.check and lines else 0
