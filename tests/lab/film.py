"""A first visit to the explorer as ten pictures, from opening it to the head that brings a name.

    PYTHONPATH=tests .venv/bin/python tests/lab/film.py --figures FOLDER

The page is the one that `companion explore` writes. What is looked for is chosen by what the page says and shows, as a
reader would; it ends with an error if the page does not lead there. Look at the pictures. Needs Chromium and the extra
`dev`.
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

SAID = re.compile(r"“·(\w+)” has (\d+) % after “·said”\. Without head (\d\.\d), .* it has (\d+) %")


def visit(page: Page, picture: Callable[[str], None]) -> None:
    """From the first screen to the head without which the name is not said."""

    def button(name: str) -> Locator:
        return page.get_by_role("button", name=name)

    page.wait_for_selector(".ex-heads canvas")
    picture("opened")
    page.locator("textarea").click()
    picture("the text, where one may type")
    page.locator(".ex-tokens button").nth(5).click()
    picture("the first “Mila” chosen: after it the model expects “the”")
    page.locator(".ex-tokens button").last.click()
    button("Head 0.1").hover()
    picture("“said” again, and a head pointed at")
    button("Switch each off in turn").click()
    says = page.locator(".ex-each [role=status]")
    expect(says).to_have_text(SAID)
    picture("each head switched off in turn: " + says.inner_text())
    name, before, head, after = SAID.search(says.inner_text()).groups()
    button(f"Head {head}").click()
    picture(f"head {head} kept: it looks at “{name}”")
    page.locator(".ex-card th button").first.click()
    page.locator(".ex-card p").last.scroll_into_view_if_needed()
    picture("the score written out")
    page.locator(".ex-card th button").first.click()
    page.locator(".ex-tokens button").nth(5).click()
    page.get_by_label("another token").fill("Tom")
    button("Swap").last.click()
    page.wait_for_function("document.querySelectorAll('.ex-swap td').length && !document.querySelector('.ex-swap').innerText.includes('…')")
    page.locator("#ex-swap").evaluate("part => part.scrollIntoView()")
    picture("Tom in the place of Mila, and where the difference travels")
    button("Take it back").click()
    page.locator(".ex-tokens button").last.click()
    page.evaluate("scrollTo(0, 0)")
    button("Switch each off in turn").click()
    picture("Mila again, all heads on")
    button("Switch this head off").click()
    page.wait_for_selector(".ex-off")
    button("Switch each off in turn").click()
    expect(page.locator("#ex-next tbody tr").first.locator("td").nth(1)).not_to_have_text(f"{before} %")
    picture(f"head {head} off: “{name}” has {after} % in place of {before} %")


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
