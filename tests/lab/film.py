"""Take ten pictures of a first visit to the explorer, from opening it to the head that brings a name.

    PYTHONPATH=tests .venv/bin/python tests/lab/film.py --figures FOLDER

The page is the one that `companion explore` writes. The script follows what the page says and shows, as a reader would,
and ends with an error if the page does not lead to the head. Look at the pictures. Needs Chromium and the extra `dev`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from check import BROWSER_FLAGS, add_browser, with_browser
from playwright.sync_api import Locator, Page, expect, sync_playwright

from companion.commands.main import main as companion

OTHER = 'Emil was a frog who lived near the mill. He had a red kite. Emil was very sad. "My kite is gone," said the'
SWAPPED = "(part => part.querySelector('td') && !part.innerText.includes('…'))(document.querySelector('.ex-swap'))"
SAID = re.compile(r"“·(\w+)” has (\d+)\s% after “·said”\. Without head (\d\.\d), .* it has (\d+)\s%")


def visit(page: Page, picture: Callable[[str], None]) -> None:
    """Go from the first screen to the head without which the name is not predicted."""

    def button(name: str) -> Locator:
        return page.get_by_role("button", name=name)

    def choose(place: int) -> None:
        page.locator(".ex-tokens button").nth(place).click()

    def see(part: str) -> None:
        page.locator(part).evaluate("part => part.scrollIntoView()")

    page.wait_for_selector(".ex-heads canvas")
    opened = page.locator("textarea").input_value()
    picture("opened: the likeliest word is a name")
    choose(5)
    picture("the name's own place chosen: all that stands below is about it now")
    choose(-1)
    button("Head 0.1").hover()
    picture("back at the end, a head pointed at: the tokens show where it looks")
    see("#ex-stream")
    picture("the stream: the name is there after the last layer, and not before")
    choose(5)
    page.get_by_label("another token").fill("Tom")
    button("Swap").last.click()
    page.wait_for_function(SWAPPED)
    see("#ex-swap")
    picture("Tom in the place of Mila: the difference stays at its place, and comes to the end in the last layer")
    button("Undo the swap").click()
    choose(-1)
    see("#ex-attention")
    button("Switch off each head in turn").click()
    says = page.locator(".ex-each [role=status]")
    expect(says).to_have_text(SAID)
    name, before, head, after = SAID.search(says.inner_text()).groups()
    picture("each head switched off in turn: " + says.inner_text())
    button(f"Head {head}").click()
    first = page.locator(".ex-card th button").first
    expect(first).to_contain_text(name)
    first.click()
    page.locator(".ex-card p").last.scroll_into_view_if_needed()
    picture(f"head {head} kept, and the score of “{name}” written out")
    first.click()
    page.locator("textarea").fill(OTHER)
    expect(says).to_contain_text(f"Without head {head}")
    see("#ex-attention")
    picture(f"another story, and the same head: {says.inner_text()}")
    page.locator("textarea").fill(opened)
    expect(says).to_have_text(SAID)
    see("#ex-attention")
    picture(f"found: head {head} looks at “{name}”, and it has {before} % with it, {after} % without")
    button("Switch this head off").click()
    page.wait_for_selector(".ex-off")
    expect(page.locator("#ex-next")).to_contain_text("nothing off")
    page.mouse.move(0, 0)
    see("#ex-attention")
    picture(f"switched off, “{name}” has {after} % in place of {before} %")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the pictures of a first visit to the explorer.")
    add_browser(parser)
    options = with_browser(parser)
    options.figures.mkdir(parents=True, exist_ok=True)
    page_file: Path = options.figures / "explorer.html"
    companion(["explore", "--out", str(page_file)])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=BROWSER_FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(page_file.resolve().as_uri())
        made: list[str] = []

        def picture(says: str) -> None:
            made.append(says)
            page.wait_for_timeout(300)
            page.screenshot(path=options.figures / f"{len(made):02}.png")
            print(f"{len(made):02}.png: {says}")

        visit(page, picture)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
