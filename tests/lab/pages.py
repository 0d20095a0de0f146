"""Open every page of the site in a real browser, as a reader does who was given the folder (`make site-check`).

Most checks open the pages from the folder, some from a server. It fails if a page writes an error to the console, sends
a request to another machine, scrolls sideways or has something that axe finds (at 360, 390, 768, 1280 and 1920 pixels,
in the light and the dark theme, and on paper), a broken link, a handle that does not move its figure, or a question
that does not respond or forgets its answer, is empty without scripts, waits for a script before it shows anything,
paints late, or is too large. In a lesson it fails if code is not copied, an equation or a figure has no link, or a
picture is not printed. It also fails if the search does not find what it must, including each term of the glossary, if
the first page forgets where a reader was, and if a tensor of the explorer's engine differs from PyTorch's. At the end
it prints the sizes of the pages. Screenshots are saved for inspection. Needs Chromium, the extra `dev`, and the site:
`make site`.

    make site-check PAGES="02 glossary" FIGURES=FOLDER

`make site-quick` (`--quick`) is the part to run after every change: sizes and links, elements that would be printed
over the text, figures on a phone (text of at least 11 pixels that is on the screen and overlaps nothing), and the
search.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import answering
import living
import moving
from check import BROWSER_FLAGS, add_browser, with_browser
from playwright.sync_api import BrowserContext, Page, sync_playwright
from reader import axe
from weight import SLOWEST, Weight, summary

from authoring.site import finish
from authoring.site.fault import Broken, Faults

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (360, 390, 768, 1280, 1920)
SHOWN = (360, 1280, 1920)
"""Widths of which a screenshot is saved."""
PAPER = 718
"""Pixels of the text's width on A4 paper with margins of one centimetre."""
# Phrases to search for, each with a page that must be among the first three results
PHRASES = {
    "why divide by the root": "02_",
    "rotary": "05_",
    "RoPE": "05_",
    "teacher forcing": "09_",
    "KV-cache": "10_",
    "causal mask": "02_",
    "BPE": "01_",
    "tokenizer": "01_",
    "GQA": "03_",
    "layer normalization": "06_",
    "overfitting": "14_",
    "quantization": "19_",
    "LoRA": "20_",
    "residual stream": "06_",
    "cross-attention": "08_",
    "sliding_window_attention": "reference/layers",
    "softmax": "02_",
}
# Typing mistakes, each with the word that the search must suggest for it
MISTYPED = {"softmaxx": "softmax", "atention head": "attention head"}
TEX = r"\\(?:[dt]?frac|begin|end|q?quad|[Bb]ig|left|right|math\w+|operatorname|partial|ln|hat|omega|text)\b"
"""A mark of TeX, which no excerpt of a lesson may show."""
FEW = 3
LEAST = 200
"""Terms that the search must know, at least."""
# Type each term. Returns the number of terms, and [term, where it is explained] for those that are not found.
TERMS = """few => {
  const field = document.getElementById("search-for"), rows = window.courseSections.filter(row => row[2] === "term");
  const lost = rows.filter(([page, anchor, , , term]) => {
    field.value = term.replace(/ \\(.*\\)$/, ""); // without its other names
    field.dispatchEvent(new Event("input"));
    const links = [...document.querySelectorAll("#search-found a")].slice(0, few);
    return !links.some(link => link.getAttribute("href") === page + ".html" + (anchor ? "#" + anchor : ""));
  });
  return [rows.length, lost.map(([page, anchor, , , term]) => [term, page + "#" + anchor])];
}"""
ABORTED = "net::ERR_ABORTED"  # a picture that was still loading when the page was left
WIDE = Path(__file__).with_name("wide.js").read_text(encoding="utf-8").split("\n", 1)[1]
ON_A_PHONE = Path(__file__).with_name("phone.js").read_text(encoding="utf-8").split("\n", 1)[1]
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
PRINT = 11
"""Pixels of the smallest print of a figure on a phone."""
# Elements with a fixed position, which would be printed over the text of each sheet
STANDS_STILL = """() => [...document.querySelectorAll("body *")].filter(one => {
  const style = getComputedStyle(one);
  return ["fixed", "sticky"].includes(style.position) && one.checkVisibility() && one.getBoundingClientRect().width
    && !one.closest(".ext-figure");
}).map(one => `${one.tagName.toLowerCase()}.${one.className}: ${one.textContent.trim().slice(0, 40)}`)"""
# Code, tables and pictures whose right end is not on the paper
CUT = """() => [...document.querySelectorAll("article :is(pre, table, .ext-numbers, .ext-box, .formula, img, svg)")]
  .filter(one => one.checkVisibility() && one.getBoundingClientRect().width).map(one => {
    const { left, width } = one.getBoundingClientRect(), held = getComputedStyle(one).overflowX !== "visible";
    const wide = Math.max(one.scrollWidth, width), end = left + (held ? one.clientWidth : wide);
    return [one, Math.round(wide), held && one.scrollWidth > one.clientWidth + 2 || end > innerWidth + 1];
  }).filter(([, , cut]) => cut)
  .map(([one, wide]) => `is cut, ${wide} pixels: ${one.tagName} ${one.textContent.trim().slice(0, 50)}`).slice(0, 6)"""
# The style sheets and scripts that the first paint waits for
BLOCKING = """['link[rel=stylesheet]', 'script[src]:not([defer], [async], [type=module])'].map(
  kind => [...document.head.querySelectorAll(kind)].map(element => element.getAttribute('href') || element.src))"""


SCREEN = 900
"""Pixels from where a reader was, at most, to where the first page leads."""
COPIED = 3
"""Pieces of code of each lesson whose button is pressed."""
CLIPBOARD = "navigator.clipboard.readText()"
# Count the elements that can be linked to, and list those that cannot, and the links to neighbouring lessons.
LINKED = """() => {
  const here = [...document.querySelectorAll("article .equation[id]")], wrong = [];
  const figures = [...document.querySelectorAll("article .ext-figure")];
  const leads = place => [...place.querySelectorAll("a[href^='#']")].some(link => document.getElementById(
    decodeURIComponent(link.getAttribute("href").slice(1))));
  for (const place of here) if (!leads(place)) wrong.push(place.id);
  figures.forEach((place, at) => { if (!leads(place)) wrong.push("figure " + (at + 1)); });
  const steps = document.querySelectorAll(".related-pages a").length;
  return [{ equation: here.length, figure: figures.length, "step to another lesson": steps }, wrong];
}"""
# The distinct pictures of a page, those that are not loaded, and moving figures that are not drawn
PICTURES = """() => {
  const shown = [...document.querySelectorAll("article img")].filter(one => one.offsetWidth);
  const moving = [...document.querySelectorAll("article .ext-figure[data-live]")];
  return [new Set(shown.map(one => one.src)).size, shown.filter(one => !one.naturalWidth).length,
    moving.filter(one => !one.querySelector("svg, canvas, table, pre")).length];
}"""
PAINT = """new Promise(done => {
  const paint = () => performance.getEntriesByName('first-contentful-paint')[0]?.startTime;
  const look = left => paint() || !left ? done(paint() ?? 0) : setTimeout(look, 50, left - 1);
  look(100);
})"""


class Watch:
    """Record the messages and requests of a browser's pages. `local` is the prefix of our own addresses."""

    def __init__(self, context: BrowserContext, local: tuple[str, ...]) -> None:
        self.faults: list[str] = []
        self.asked: list[str] = []
        context.on("console", lambda said: self._add(said.type == "error", f"console: {said.text}"))
        context.on("weberror", lambda error: self._add(True, f"script: {error.error}"))
        context.on("request", lambda asked: self._asked(asked.url, local))
        context.on("requestfailed", lambda asked: self._add(asked.failure != ABORTED, f"not there: {asked.url}"))

    def _add(self, wrong: bool, fault: str) -> None:
        self.faults += [" ".join(fault.split())[:300]] if wrong else []

    def _asked(self, url: str, local: tuple[str, ...]) -> None:
        self.asked.append(url)
        self._add(not url.startswith(local), f"asked of another machine: {url}")

    def taken(self) -> list[str]:
        """Return the faults since the last call."""
        found, self.faults = self.faults, []
        return found


def look(page: Page, watch: Watch, address: str, name: str, shots: Path) -> tuple[Weight, list[str]]:
    """Look at a page at each width and in both themes; return its weight and the faults."""
    faults = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        watch.asked.clear()
        page.goto(address)
        sheets, scripts = page.evaluate(BLOCKING)
        weight = Weight.of(watch.asked, len(sheets), len(scripts), page.evaluate(PAINT))
        faults += [f"at {width} pixels: {fault}" for fault in page.evaluate(WIDE)]
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.wait_for_timeout(60)
            coloured = width in (WIDTHS[0], WIDTHS[-1])  # between them the colours are those of the one or the other
            if coloured or theme == "light":
                faults += [f"{theme}, {width} pixels: {fault}" for fault in axe(page, "html", contrast=coloured)]
            if width in SHOWN:
                page.screenshot(path=shots / f"{name.replace('/', '-')}-{width}-{theme}.png")
        page.emulate_media(color_scheme="light")
    faults += [f"a script blocks the first paint: {script}" for script in scripts]
    if not 0 < weight.paint <= SLOWEST:
        faults.append(f"first paint after {weight.paint:.0f} ms, expected at most {SLOWEST:,}")
    return weight, [*dict.fromkeys([*faults, *watch.taken()])]


def use(page: Page, watch: Watch, address: str, name: str) -> tuple[int, int, list[str]]:
    """Move every handle of a page and answer every question; return their numbers and the faults."""
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(address)
    handles, faults = moving.move_all(page, page.locator("figure[data-live]"), name)
    count = 0
    if page.locator("section.ext-question").count():
        count, _, found = answering.answer_all(page, name, answering.BROWSER)
        faults += found
        page.goto(address)
        faults += answering.forgotten(page, "opened again")
    return handles, count, [*faults, *watch.taken()]


def printed(page: Page, address: str) -> list[str]:
    """Return what would be printed over the text of a page, is cut at the edge of the paper, or does not pass axe."""
    page.set_viewport_size({"width": PAPER, "height": 1000})
    page.emulate_media(media="print")
    page.goto(address)
    faults = [f"is printed over the text of each sheet: {what}" for what in page.evaluate(STANDS_STILL)]
    page.evaluate("() => { document.body.dataset.theme = 'dark'; dispatchEvent(new Event('beforeprint')); }")
    faults += [] if page.evaluate("document.body.dataset.theme") == "light" else ["is printed in the dark theme"]
    faults += [f"on paper: {fault}" for fault in [*page.evaluate(WIDE), *page.evaluate(CUT), *axe(page, "html")]]
    page.emulate_media(media="screen")
    return faults


def on_a_phone(page: Page, address: str) -> list[str]:
    """Return a page's faults on a phone, as it opens and with each handle at its end: text, overlaps, scrolling."""
    page.goto(address)
    page.evaluate("document.querySelectorAll('img[loading=lazy]').forEach(one => { one.loading = 'eager'; })")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(moving.SETTLES)
    faults = page.evaluate(WIDE) + page.evaluate(ON_A_PHONE, PRINT)
    page.evaluate(
        "document.querySelectorAll('figure[data-live] input[type=range]').forEach(one => {"
        " one.value = one.max; one.dispatchEvent(new Event('input')); })"
    )
    page.wait_for_timeout(moving.SETTLES)
    return [*dict.fromkeys([*faults, *page.evaluate(ON_A_PHONE, PRINT)])]


def quick(site: Path, browser: str, chosen: list[str]) -> list[str]:
    """Run the checks for every change, in a minute or two: links and sizes, printing, phones, and the search."""
    found, faults = Faults(), []
    links = finish.check(site, {}, found)
    try:
        found.stop()
    except Broken as broken:
        faults += broken.faults
    names = [path.relative_to(site).with_suffix("").as_posix() for path in sorted(site.rglob("*.html"))]
    names = [name for name in names if not chosen or any(part in name for part in chosen)]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, headless=True, args=BROWSER_FLAGS)
        wide, phone = chromium.new_context(), chromium.new_context(**PHONE)  # type: ignore[arg-type]
        page, small = wide.new_page(), phone.new_page()
        watch = Watch(wide, (site.as_uri(), "data:", "blob:"))
        for name in names:
            address = (site / f"{name}.html").as_uri()
            faults += [f"{name} {fault}" for fault in printed(page, address)]
            if not name.startswith(("reference/", "questions/")):
                faults += [f"{name}, on a phone: {fault}" for fault in on_a_phone(small, address)]
        faults += [f"console: {fault}" for fault in watch.taken()]
        faults += [*terms(page, site.as_uri())[1], *offered(page, site.as_uri()), *search(page, watch, site.as_uri())]
        chromium.close()
    print(f"{len(names)} pages, {links:,} links: weight, links, print, phone and search")
    return faults


def touch(page: Page, address: str) -> list[str]:
    """Use lesson 02 by touch on a phone: move its first handle and answer its first question."""
    page.goto(address)
    figure = page.locator("figure[data-live]").first
    handle = figure.locator("input[type=range]").first
    handle.scroll_into_view_if_needed()
    before, box = figure.evaluate(moving.STATE), handle.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] * 0.1, box["y"] + box["height"] / 2)
    page.wait_for_timeout(moving.SETTLES)
    faults = ["a finger does not move the handle"] if figure.evaluate(moving.STATE) == before else []
    question = page.locator("section.ext-question").first
    question.locator("label").first.tap()
    question.locator("button[type=submit]").tap()
    said = question.locator("[role=status]").inner_text()
    return faults + ([] if said.startswith(("Yes.", "Not")) else [f"a finger gets no answer: {said!r}"])


def terms(page: Page, root: str) -> tuple[int, list[str]]:
    """Type every term of the glossary into the search page; return their number, and those not explained first."""
    page.goto(f"{root}/search.html")
    asked, lost = page.evaluate(TERMS, FEW)
    faults = [f"search for the term {term!r}: expected {where} among the first {FEW}" for term, where in lost]
    return asked, faults + ([] if asked >= LEAST else [f"{asked} terms of the glossary, expected {LEAST} at least"])


def offered(page: Page, root: str) -> list[str]:
    """Check the suggestions for unknown words, and that the excerpts of lessons contain no TeX."""
    page.goto(f"{root}/search.html")
    faults = []
    for typed, wanted in MISTYPED.items():
        page.locator("#search-for").fill(typed)
        button = page.locator("#search-said button")
        if not button.count() or button.inner_text() != wanted:
            faults.append(
                f"search for {typed!r}: expected the offer {wanted!r}, got {page.inner_text('#search-said')!r}"
            )
            continue
        button.click()
        faults += [] if page.locator("#search-found a").count() else [f"the offer {wanted!r} finds nothing"]
    left = page.evaluate(
        "tex => window.courseSections.filter(row => ['lesson', 'term'].includes(row[2]) && row[5].match(RegExp(tex)))"
        ".map(row => [row[0], row[5].match(RegExp(tex))[0]])",
        TEX,
    )
    return faults + [f"the search shows {mark!r} of {where}" for where, mark in left]


def search(page: Page, watch: Watch, root: str) -> list[str]:
    """Type phrases into the search field of the first page."""
    faults = []
    for phrase, wanted in PHRASES.items():
        page.goto(f"{root}/index.html")
        page.locator(".sidebar-search").fill(phrase)
        page.keyboard.press("Enter")
        page.wait_for_selector("#search-said:not(:empty)")
        links = [a.get_attribute("href") or "" for a in page.locator("#search-found a").all()[:FEW]]
        if not any(link.startswith(wanted) for link in links):
            faults.append(f"{phrase!r}: expected {wanted} among the first {FEW}, found {links}")
            continue
        page.locator("#search-found a").first.click()
        page.wait_for_load_state()
        if "search.html" in page.url:
            faults.append(f"{phrase!r}: the first place found does not open")
    return [*faults, *watch.taken()]


def kept(page: Page, address: str) -> list[str]:
    """Check that code can be copied, equations and figures have links, and every picture is printed."""
    page.goto(address)
    faults = []
    for code in page.locator(".highlight:has(> .copy):visible").all()[:COPIED]:
        code.hover()
        code.locator(".copy").click()
        wanted, said = code.locator("pre").evaluate("pre => pre.textContent"), page.evaluate(CLIPBOARD)
        faults += [] if said == wanted else [f"the copy button gives {said[:80]!r}"]
    counts, wrong = page.evaluate(LINKED)
    faults += [f"has no {what}" for what, count in counts.items() if not count]
    faults += [f"a link to {what} leads nowhere, or is not there" for what in wrong]
    printed = page.pdf(print_background=True)
    pictures, missing, empty = page.evaluate(PICTURES)
    drawn = len(re.findall(rb"/Subtype\s*/Image", printed))
    if missing or drawn < pictures:
        faults.append(f"of {pictures} pictures {drawn} are printed, {missing} not loaded")
    return faults + ([f"{empty} moving figures have drawn nothing"] if empty else [])


def goes_on(page: Page, first: str, lesson: str) -> list[str]:
    """Read a lesson as far as its third heading and leave; the first page must lead back to that heading."""
    page.goto(lesson)
    heading = page.locator("article section[id] > h2").nth(2)
    heading.evaluate("one => one.scrollIntoView()")
    page.wait_for_function("localStorage.getItem('ext-page:last')")
    was = page.evaluate("scrollY")
    page.goto(first)
    link = page.locator(".begin a")
    if link.count() != 1 or not link.inner_text().startswith("Go on: "):
        return [f"the first page does not lead to where the reader was: {link.all_inner_texts()}"]
    link.click()
    page.wait_for_load_state()
    page.wait_for_function("scrollY > 0")
    off = abs(page.evaluate("scrollY") - was)
    return [] if page.url.startswith(f"{lesson}#") and off < SCREEN else [f"{page.url}: {off} pixels from the reader"]


def without_scripts(page: Page, address: str) -> list[str]:
    """Return what is missing if no script runs: text, pictures, formulas, and questions with their reasons."""
    page.goto(address)
    faults = [] if len(page.locator("article").inner_text()) > 2000 else ["no text"]
    counts = {
        what: page.locator(f"article {what}").count() for what in ("math", ".ext-figure img", ".ext-answers details")
    }
    return faults + [f"no {what}" for what, count in counts.items() if not count]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the folder, and yield its address."""
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=folder))
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # the browser left a page that was still loading
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def check(site: Path, chosen: list[str], shots: Path, browser: str) -> list[str]:
    """Return the faults of the chosen pages and of the site as a whole."""
    found = Faults()
    links = finish.check(site, {}, found)
    faults: list[str] = []
    try:
        found.stop()
    except Broken as broken:
        faults += broken.faults
        print(*faults, sep="\n")
    names = [path.relative_to(site).with_suffix("").as_posix() for path in sorted(site.rglob("*.html"))]
    names = [name for name in names if not chosen or any(part in name for part in chosen)]
    handles = answers = 0
    weights = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, sync_playwright() as playwright:
        start = {"executable_path": browser, "headless": True, "args": BROWSER_FLAGS}
        context = playwright.chromium.launch_persistent_context(folder, **start)
        page, watch = context.pages[0], Watch(context, (site.as_uri(), "data:", "blob:"))
        page.set_default_timeout(60_000)
        for name in names:
            address, began = (site / f"{name}.html").as_uri(), time.monotonic()
            weights[name], wrong = look(page, watch, address, name, shots)
            if not name.startswith("questions/"):  # the lessons' questions, which are answered there
                moved, given, more = use(page, watch, address, name)
                handles, answers, wrong = handles + moved, answers + given, wrong + more
            wrong += printed(page, address)
            print(f"{name}: {len(wrong)} faults, {time.monotonic() - began:.0f} s", *wrong, sep="\n  ", flush=True)
            faults += [f"{name}: {fault}" for fault in wrong]
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        lessons = [name for name in names if re.match(r"\d\d_", name)]
        wrong = [f"{name}: {fault}" for name in lessons for fault in kept(page, (site / f"{name}.html").as_uri())]
        asked, lost = terms(page, site.as_uri())
        wrong += lost + offered(page, site.as_uri()) + search(page, watch, site.as_uri())
        if living.PAGE in names:
            wrong += [
                *living.use(page, (site / f"{living.PAGE}.html").as_uri()),
                *living.compared(page),
                *watch.taken(),
            ]
        context.close()
        chromium = playwright.chromium.launch(**start)
        lesson = next((name for name in names if name.startswith("02_")), "")
        if lesson:
            phone = chromium.new_context(**PHONE)  # type: ignore[arg-type]
            wrong += [f"on a phone: {fault}" for fault in touch(phone.new_page(), (site / f"{lesson}.html").as_uri())]
            there = chromium.new_context()
            wrong += goes_on(there.new_page(), (site / "index.html").as_uri(), (site / f"{lesson}.html").as_uri())
            bare = chromium.new_context(java_script_enabled=False)
            wrong += [
                f"without scripts: {fault}"
                for fault in without_scripts(bare.new_page(), (site / f"{lesson}.html").as_uri())
            ]
        with served(site) as root:
            context = chromium.new_context()
            page, watch = context.new_page(), Watch(context, (root, "data:", "blob:"))
            wrong += [f"behind a server: {fault}" for fault in search(page, watch, root)]
            for name in names:
                page.goto(f"{root}/{name}.html")
                wrong += [f"{name}, behind a server: {fault}" for fault in watch.taken()]
        chromium.close()
    print(*wrong, sep="\n", end="\n" if wrong else "")
    if weights:
        print(summary(weights))
    print(
        f"{len(names)} pages, {links:,} links, {handles} handles moved, {answers} answers, "
        f"{asked + 2 * len(PHRASES)} searches, {len(lessons)} lessons printed"
    )
    return faults + wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Open the site's pages in a real browser, and look.")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="part of a page's name (default: all)")
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site", help="the site's folder (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="weight, links, print, phone and search only")
    add_browser(parser)
    options = with_browser(parser)
    if not (options.site / "index.html").exists():
        parser.error(f"{options.site}: there is no site; build it with make site")
    if options.quick:
        faults = quick(options.site.resolve(), options.chromium, options.pages)
        print(*faults, f"{len(faults)} faults", sep="\n")
        return 1 if faults else 0
    options.figures.mkdir(parents=True, exist_ok=True)
    faults = check(options.site.resolve(), options.pages, options.figures, options.chromium)
    print(f"{len(faults)} faults; screenshots in {options.figures}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
