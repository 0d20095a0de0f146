"""Check lessons against their contract, without running cells, and show how minutes are counted.

Example: `python -m authoring 02`.
"""

from __future__ import annotations

import argparse
import sys

from authoring import quoted_outputs
from authoring.contract import check, known_of
from authoring.lesson import lessons, with_deeper
from authoring.question import SourceError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m authoring", description=__doc__)
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="number or beginning of the name (default: all)")
    options = parser.parse_args(arguments)
    course = lessons()
    chosen = [x for x in course if not options.lessons or any(x.name.startswith(p) for p in options.lessons)]
    if not chosen:
        parser.error(f"no lesson begins with {' or '.join(options.lessons)}")
    fine = True
    try:
        for lesson in with_deeper(chosen):
            if not lesson.notebook.exists():
                fine = False
                print(f"{lesson.name}: has never been built. Run: make notebooks LESSON={lesson.label}")
                continue
            faults = check(lesson, known_of(lesson, course))
            fine &= not faults
            print(f"{lesson.name}: {len(faults) or 'no'} fault{'s' * (len(faults) != 1)}")
            print("".join(f"  {fault}\n" for fault in faults), end="")
            for part in lesson.parts:
                print(f"  {part.title}: {part}")
            if lesson.parts:
                print(f"  {lesson.minutes} minutes in all")
            for line, number, cell in quoted_outputs.by_hand(lesson.source.read_text(encoding="utf-8"), lesson.built):
                print(f"  {lesson.source.name}, line {line}: {number}, which {cell!r} shows too; is it a result?")
    except SourceError as error:
        print(error)
        return 1
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
