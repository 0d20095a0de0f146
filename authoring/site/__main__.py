"""Build the site: `python -m authoring.site [--out build/site]`. No cells are executed."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from authoring.lesson import NOTEBOOKS, ROOT
from authoring.site.build import build
from authoring.site.fault import Broken
from companion.ground.display import count


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m authoring.site", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "site", help="output folder of the site (default: %(default)s)"
    )
    parser.add_argument(
        "--notebooks", type=Path, default=NOTEBOOKS, help="folder of the notebooks (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    start, work = time.monotonic(), options.out.with_name(f"{options.out.name}.new")
    try:
        links = build(options.notebooks.resolve(), ROOT, work.resolve())
    except Broken as error:
        print(error, file=sys.stderr)
        said = f"The site was not built: {count(len(error.faults), 'fault')}. {options.out} is as it was."
        print(said, file=sys.stderr)
        return 1
    shutil.rmtree(options.out, ignore_errors=True)
    (work / "html").rename(options.out)
    shutil.rmtree(work)
    pages = sorted(options.out.rglob("*.html"))
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    seconds = time.monotonic() - start
    print(f"{len(pages)} pages, {size / 1e6:.1f} MB, {links:,} links followed, {seconds:.0f} s")
    print(f"Open {options.out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
