"""Make the start page's picture of a figure that moves, from the site's page of its lesson.

    make pictures

The picture is taken from the site (`make site`) with Chromium, and needs the extra `dev`. Look at it before you commit
it: fonts differ between browsers, so no test compares it.
"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from check import BROWSER_FLAGS, add_browser, with_browser
from moving import SETTLES
from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "notebooks" / "figures"
LESSON = "02_scaled_dot_product_attention"
MOST = 400_000
"""Bytes of a picture."""
PAUSE = 900
"""Milliseconds that the moving picture rests at each place of the handle."""


def moved(page: Page) -> list[Image.Image]:
    """Yield the first moving figure of the lesson at each position of its handle."""
    page.set_viewport_size({"width": 900, "height": 900})
    figure = page.locator("figure[data-live]").first
    handle = figure.locator("input[type=range]").first
    handle.scroll_into_view_if_needed()
    least, most = (int(handle.get_attribute(name) or 0) for name in ("min", "max"))
    frames = []
    for place in range(least, most + 1):
        handle.evaluate(
            "(one, at) => { one.value = at; one.dispatchEvent(new Event('input', { bubbles: true })); }", str(place)
        )
        page.wait_for_timeout(SETTLES)
        frames.append(Image.open(io.BytesIO(figure.screenshot())).convert("RGB"))
    same = min(frame.height for frame in frames)
    return [frame.crop((0, 0, frame.width, same)) for frame in frames]


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the start page's picture of a figure that moves.")
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site", help="the site's folder (%(default)s)")
    add_browser(parser)
    options = with_browser(parser)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=BROWSER_FLAGS)
        page = browser.new_page(color_scheme="light")
        page.goto((options.site.resolve() / f"{LESSON}.html").as_uri())
        frames = moved(page)
        browser.close()
    first, *rest = [frame.quantize(32, dither=Image.Dither.NONE) for frame in [*frames, *frames[-2:0:-1]]]
    first.save(FIGURES / "moving.gif", save_all=True, append_images=rest, duration=PAUSE, loop=0, optimize=True)
    size = (FIGURES / "moving.gif").stat().st_size
    print(f"{FIGURES / 'moving.gif'}: {size:,} bytes")
    return int(size > MOST)


if __name__ == "__main__":
    sys.exit(main())
