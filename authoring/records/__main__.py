"""Make the records that ship: `python -m authoring.records story`, `law`, `cache`, `recall`, `heads`,
`answering`, `rounding`, `steps`, `inside`, `evening`, `data`, `scores` or `live`.

Making a record takes anywhere from a few minutes to an hour on one core. An interrupted run resumes from its results in
`build/records`. Nothing is written to the package until a record is complete.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from authoring.records.answering import answering
from authoring.records.cache import cache
from authoring.records.data import data
from authoring.records.evening import evening
from authoring.records.heads import heads
from authoring.records.inside import inside
from authoring.records.law import law
from authoring.records.live import live
from authoring.records.recall import recall
from authoring.records.rounding import rounding
from authoring.records.scores import scores
from authoring.records.steps import steps
from authoring.records.story import story
from companion.files.models import save_model
from companion.ground.atomic import write_atomic
from companion_school.records import NAMES

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "companion_school" / "records"
MAKE = {make.__name__: make for make in (law, cache, recall, heads, rounding, steps, inside, evening, data, scores)}
"""The records that ship without a model."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m authoring.records", description=__doc__)
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    names = parser.parse_args(arguments).names
    torch.set_num_threads(1)
    for name in names:
        folder = ROOT / "build" / "records" / name
        if name == "story":
            found, model, tokenizer = story(folder)
            save_model(SHIPPED / "story", model.half())
            tokenizer.save(SHIPPED / "story" / "tokenizer.json")
        elif name == "answering":
            found, books = answering(folder)
            save_model(SHIPPED / "answering", books.half())
        elif name == "live":
            found = live(folder, SHIPPED / "live")
        else:
            found = MAKE[name](folder)
        write_atomic(SHIPPED / f"{name}.json", json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
