"""A small synthetic web crawl for the lesson on data, in which the origin and quality of every page are known.

Each page has a kind. The good pages are prose (from this course's first edition), stories (`companion.data.stories`),
verse or code. The bad pages are shop menus, lists of keywords or markup. Some prose pages are copied to other sites
with a few words changed. Every page ends with a notice that is the same on all pages of its site.

All random draws use `random.Random(seed).random()`, the only method whose results Python promises not to change.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from companion.data.corpora import Document, first_edition, split
from companion.data.stories import stories
from companion.ground.fields import require_whole

GOOD = ("prose", "story", "verse", "code")
BAD = ("menu", "salad", "markup")
PAGE_BYTES = 1200
"""Minimum length of a page of prose in bytes, except for the last page of a document."""
SITES = (
    "Harbour Notes", "The Blue Kettle", "Page & Quill", "North Lane", "Open Shelf", "Tin Roof Daily",
    "Second Attic", "River Post",
)  # fmt: skip
WARES = (
    "shoes", "lamps", "phones", "tents", "mugs", "sofas", "rings", "bikes", "pens", "bags", "watches", "rugs", "boots",
    "drills", "pans", "toys",
)  # fmt: skip
PUSHED = (
    "best", "cheap", "free", "online", "deal", "top", "buy", "new", "review", "fast", "price", "sale", "offer", "now",
    "discount", "shop", "quality", "bonus", "2024", "win",
)  # fmt: skip
ODD = ("harbour", "kettle", "marble", "orchard", "sparrow", "thicket", "velvet", "willow")
VERSES = (
    "Who has seen the wind?\nNeither I nor you:\nBut when the leaves hang trembling,\nThe wind is passing through.\n\n"
    "Who has seen the wind?\nNeither you nor I:\nBut when the trees bow down their heads,\nThe wind is passing by.",
    "Tyger Tyger, burning bright,\nIn the forests of the night;\nWhat immortal hand or eye,\n"
    "Could frame thy fearful symmetry?\n\nIn what distant deeps or skies.\nBurnt the fire of thine eyes?\n"
    "On what wings dare he aspire?\nWhat the hand, dare seize the fire?",
    "I'm Nobody! Who are you?\nAre you, Nobody, too?\nThen there's a pair of us!\nDon't tell! they'd advertise, "
    "you know!\n\nHow dreary, to be, Somebody!\nHow public, like a Frog,\nTo tell one's name, the livelong June,\n"
    "To an admiring Bog!",
    "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate:\n"
    "Rough winds do shake the darling buds of May,\nAnd summer's lease hath all too short a date;\n"
    "Sometime too hot the eye of heaven shines,\nAnd often is his gold complexion dimm'd.",
    "She walks in beauty, like the night\nOf cloudless climes and starry skies;\nAnd all that's best of dark and "
    "bright\nMeet in her aspect and her eyes;\nThus mellowed to that tender light\nWhich heaven to gaudy day denies.",
    "My heart leaps up when I behold\nA rainbow in the sky:\nSo was it when my life began;\nSo is it now I am a man;\n"
    "So be it when I shall grow old,\nOr let me die!\nThe Child is father of the Man.",
)  # fmt: skip
"""Verse by Rossetti, Blake, Dickinson, Shakespeare, Byron and Wordsworth, all in the public domain."""
CODE = (
    "def {f}({x}):\n    {t} = 0\n    for {i} in {x}:\n        {t} = {t} + {i} * {i}\n    return {t}\n\n\n"
    "def mean_{f}({x}):\n    return {f}({x}) / len({x})",
    "def {f}({x}, {i}):\n    if not {x}:\n        return None\n    {t} = {x}[0]\n    while {t} < {i}:\n"
    "        {t} = 2 * {t} + 1\n    return [{t}, *{x}]\n\n\nassert {f}([1], 9) == [15, 1]",
    "class {F}:\n    def __init__(self, {x}):\n        self.{x} = {x}\n        self.{t} = {{}}\n\n"
    "    def {f}(self, {i}):\n        if {i} not in self.{t}:\n            self.{t}[{i}] = self.{x}({i})\n"
    "        return self.{t}[{i}]",
    "{t} = [{i} for {i} in range(100) if {i} % 7 == 3]\n{x} = {{}}\nfor {i} in {t}:\n"
    "    {x}.setdefault({i} % 10, []).append({i})\nfor {f}, each in sorted({x}.items()):\n    print({f}, sum(each))",
)  # fmt: skip
NAMES = ("total", "items", "row", "key", "value", "count", "left", "found", "size", "step")


@dataclass(frozen=True)
class Page:
    """A page of the crawl.

    Attributes:
        kind: Kind of page: an element of `GOOD` or `BAD`.
        site: Site on which the page was found, one of `SITES`.
        text: Text of the page, with the site's notice at the end.
        copied: Index (in the crawl) of the page from which this page was copied; `None` for an original.
    """

    kind: str
    site: str
    text: str
    copied: int | None = None

    @property
    def bytes(self) -> int:
        """Length of the text in UTF-8 bytes."""
        return len(self.text.encode())

    @property
    def document(self) -> Document:
        """The page as a document."""
        return Document(f"{self.kind} on {self.site}", self.text)


class Dice:
    """Random choices that use only the `random()` method of a seeded generator."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, count: int) -> int:
        """Return a random integer from 0 to `count` - 1."""
        return int(count * self._random())

    def one(self, options: Sequence[str]) -> str:
        """Return one of the options at random."""
        return options[self.below(len(options))]

    def shuffled(self, items: Sequence[Page]) -> list[Page]:
        """Return the items in random order."""
        rest, order = list(items), []
        while rest:
            order.append(rest.pop(self.below(len(rest))))
        return order


def crawl(seed: int = 0) -> list[Page]:
    """Generate the crawl: about 600 pages in random order, except that every original precedes its copies.

    The prose comes from the training documents of `split(first_edition())`, because the held-out documents are reserved
    for testing.

    Args:
        seed: Seed of the crawl; it also determines which pages are copied and how.

    Raises:
        ValueError: The seed is not a non-negative integer.
    """
    require_whole("seed", seed, 0)
    dice = Dice(seed)
    texts = [("prose", text) for text in prose_pages()[::2]]
    told = list(stories(160, seed + 1000))
    texts += [("story", "\n\n".join(story.text for story in told[at : at + 4])) for at in range(0, len(told), 4)]
    texts += [("verse", verse) for verse in VERSES]
    texts += [("code", _code(dice)) for _ in range(24)]
    texts += [("menu", _menu(dice)) for _ in range(110)]
    texts += [("salad", _salad(dice)) for _ in range(70)]
    texts += [("markup", _markup(dice)) for _ in range(70)]
    pages = dice.shuffled([Page(kind, dice.one(SITES), text) for kind, text in texts])
    prose = [at for at, page in enumerate(pages) if page.kind == "prose"]
    copies = []
    for rank, at in enumerate(prose[:24]):
        for _ in range(max(1, 60 // (rank + 1))):
            text = _edited(dice, pages[at].text, dice.below(13))
            copies.append(Page("prose", dice.one(SITES), text, at))
    return [
        Page(page.kind, page.site, f"{page.text}\n\n{notice(page.site)}", page.copied)
        for page in [*pages, *dice.shuffled(copies)]
    ]


def prose_pages() -> list[str]:
    """Divide the first edition's training documents into pages made of whole paragraphs."""
    pages = []
    for document in split(first_edition()).train:
        page = ""
        for paragraph in document.text.strip().split("\n\n"):
            page = f"{page}\n\n{paragraph}" if page else paragraph
            if len(page.encode()) >= PAGE_BYTES:
                pages.append(page)
                page = ""
        if len(page.encode()) >= PAGE_BYTES // 3:
            pages.append(page)
    return pages


def notice(site: str) -> str:
    """Return the boilerplate notice at the end of every page of a site."""
    return (
        f"You are reading {site}. We and our partners use cookies to improve your visit to {site}. "
        f"Sign up for the {site} newsletter to receive news and offers. All rights reserved."
    )


def _edited(dice: Dice, text: str, edits: int) -> str:
    """Replace this many words of a text."""
    pieces = re.split(r"(\s+)", text)  # word, space, word, ...
    for _ in range(edits):
        pieces[2 * dice.below((len(pieces) + 1) // 2)] = dice.one(ODD)
    return "".join(pieces)


def _menu(dice: Dice) -> str:
    wares = [dice.one(WARES) for _ in range(16)]
    lines = ["Home | Products | Sale | About us | Contact | Log in | Cart (0)"]
    lines += [f"{ware.capitalize()} from {5 + dice.below(90)}.99 - Add to cart..." for ware in wares]
    lines += [f"* {ware} ({dice.below(40)})" for ware in wares[:8]]
    return "\n".join([*lines, "1 2 3 4 ... 27 Next >", "Sort by: price | newest | rating"])


def _salad(dice: Dice) -> str:
    return " ".join(dice.one(PUSHED if dice.below(3) else WARES) for _ in range(170 + dice.below(60)))


def _markup(dice: Dice) -> str:
    def rows() -> Iterator[str]:
        for number in range(9):
            style = f"padding:{dice.below(20)}px;color:#{dice.below(16**6):06x}"
            name = f"{dice.one(WARES)}-{dice.below(900)}"
            yield f'<div class="col-{number % 4}" id="{name}" style="{style}">'
            link = f"/item?id={dice.below(10**6)}&amp;ref={dice.below(900)}"
            yield f'<a href="{link}" onclick="go(\'{name}\')"></a></div>'

    return "\n".join(rows())


def _code(dice: Dice) -> str:
    names: list[str] = []
    while len(names) < 4:
        if (name := dice.one(NAMES)) not in names:
            names.append(name)
    f, x, t, i = names
    return "\n\n\n".join(dice.one(CODE).format(f=f, F=f.capitalize(), x=x, t=t, i=i) for _ in range(2))
