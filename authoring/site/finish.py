"""Steps after Sphinx: remove unneeded files, and check links, files and page sizes."""

from __future__ import annotations

import html
import posixpath
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from authoring.site.fault import Faults

LARGEST = 400_000
"""Maximum bytes of a page's HTML; its pictures, styles and scripts are separate files."""
# Files from Sphinx and its theme: their search, source maps for debuggers, and data for incremental builds.
UNNEEDED = (
    "_static/searchtools.js", "_static/language_data.js", "_static/*.map", "_static/**/*.map", "_static/file.png",
    "_static/minus.png", "_static/plus.png", "_static/skeleton.css", "_static/debug.css", "_static/basic.css.map",
    ".buildinfo", ".buildinfo.bak", "objects.inv", "_sources", "searchindex.js",
)  # fmt: skip
_ID = re.compile(r'\s(?:id|name)="([^"]+)"')
_LEADS = re.compile(r'<(a|link|script|img|source|iframe)\b[^>]*?\s(?:href|src)="([^"]*)"')
_ADDRESS = re.compile(r"(?:[a-z]+:|//)")


def clear(site: Path) -> None:
    """Remove files that readers do not need."""
    for pattern in UNNEEDED:
        for path in sorted(site.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def check(site: Path, sources: Mapping[str, str], faults: Faults) -> int:
    """Check the size of every page and the targets of its links.

    Args:
        site: The site's folder.
        sources: The source that a fault should name, keyed by the page's path.
        faults: Collection to which faults are added.

    Returns:
        The number of links to pages and files of the site.
    """
    texts = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    ids = {page: set(map(html.unescape, _ID.findall(text))) for page, text in texts.items()}
    count = 0
    for page, text in sorted(texts.items()):
        place = sources.get(page, page)
        if (size := len(text.encode())) > LARGEST:
            faults.add(place, f"the page has {size:,} bytes, above {LARGEST:,}")
        counts = Counter(re.findall(r'\sid="([^"]+)"', text))
        for name in (name for name, times in counts.items() if times > 1):
            faults.add(place, f"two places of the page are called {name!r}")
        for tag, target in _LEADS.findall(text):
            target = html.unescape(target)
            if _ADDRESS.match(target):
                if tag != "a" and not target.startswith("data:"):
                    faults.add(place, f"the page would ask another machine for {target}")
                continue
            path, _, anchor = target.partition("#")
            file = posixpath.join(posixpath.dirname(page), unquote(path.partition("?")[0]))
            file = posixpath.normpath(file) if path else page
            count += 1
            if file.startswith("..") or not (site / file).is_file():
                faults.add(place, f"the link {target!r} leads nowhere: there is no {file}")
            # an anchor with "=" is a state of the page, not an id
            elif anchor and file in ids and "=" not in anchor and unquote(anchor) not in ids[file]:
                faults.add(place, f"the link {target!r} leads nowhere: {file} has no place of that name")
    return count
