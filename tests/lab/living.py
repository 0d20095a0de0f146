"""Test the explorer in a real browser: its engine's tensors against PyTorch's, its speed, and its controls."""

from __future__ import annotations

import base64
import json
import time

import numpy as np
from explorer_tensors import ENGINE, PASS, base64_of, differences, texts_of
from playwright.sync_api import Page

from companion_school.explorer.models import NAMES, live_file, load_live

NEAR = 1e-4
TEXTS = 100
PAGE = "explorer"
OPEN = f"(model) => {{ {ENGINE} {PASS} window.opened = [...openModel(model), passOf]; }}"
READ = """(text) => {
  const [engine, words, passOf] = window.opened, { numbers, ...said } = passOf(engine, words, text);
  const bytes = new Uint8Array(numbers.buffer);
  let letters = "";
  for (let at = 0; at < bytes.length; at += 32768) letters += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return [JSON.stringify(said), btoa(letters)];
}"""
SPEED = """() => {
  const [engine, words] = window.opened, pass = engine.begin();
  engine.read(pass, words.start);
  const began = performance.now();
  for (let i = 0; i < 100; i++) engine.read(pass, [20 + i]);
  return 100_000 / (performance.now() - began);
}"""


def compared(page: Page) -> list[str]:
    """Return the tensors that differ from PyTorch's, for a hundred texts and each model."""
    faults = []
    for name in NAMES:
        page.goto("about:blank")
        page.evaluate(OPEN, base64_of(live_file(name)))
        model, worst, began = load_live(live_file(name)), {}, time.monotonic()
        for text in texts_of(name, TEXTS):
            said, numbers = page.evaluate(READ, text)
            found = differences(json.loads(said), np.frombuffer(base64.b64decode(numbers), "<f4"), model)
            worst = {key: max(found.get(key, 0.0), worst.get(key, 0.0)) for key in {*found, *worst}}
        far = {key: value for key, value in worst.items() if value > NEAR}
        faults += [f"{name}: {key} differs by {value:.1e} from PyTorch" for key, value in far.items()]
        print(f"{name}: {len(worst)} tensors of {TEXTS} texts, at most {max(worst.values()):.1e} apart, "
              f"{time.monotonic() - began:.0f} s")  # fmt: skip
        if name == "story":
            print(f"{name}: {page.evaluate(SPEED):.0f} tokens a second")
    return faults


def swap(page: Page) -> list[str]:
    """Show two heads side by side, write out a sum and swap a token; check the page, also when its link is opened."""
    page.get_by_role("button", name="Compare with another head").click()
    page.locator(".ex-heads button").nth(6).click()
    page.locator(".ex-card th button").nth(1).click()
    page.locator('[data-key^="swap "]').first.click()
    page.wait_for_function("!document.querySelector('.ex-swap').innerText.includes('…')")
    shown = {"cards": ".ex-two .ex-card", "sums": ".ex-card p", "tables": ".ex-swap table"}
    counts = {what: page.locator(place).count() for what, place in shown.items()}
    page.reload()
    page.wait_for_function("document.querySelector('.ex-swap table')")
    again = {what: page.locator(place).count() for what, place in shown.items()}
    wanted = {"cards": 2, "sums": 2, "tables": 2}
    return [f"the explorer shows {one}: expected {wanted}" for one in (counts, again) if one != wanted]


def use(page: Page, address: str) -> list[str]:
    """Write a text, choose a token, pin a head and switch it off; check the page, also when its link is opened."""
    faults = []

    def says(part: str) -> None:
        said = page.locator("#explorer .ext-say").inner_text()
        faults.extend([] if part in said else [f"the explorer says {said!r}: expected {part!r}"])

    page.goto(address)
    page.wait_for_selector(".ex-heads canvas")
    before = page.locator(".ex-tokens button").count()
    page.get_by_role("button", name="Write a token").click()
    says(f"{before + 1} tokens")
    page.locator(".ex-tokens button").nth(2).click()
    page.keyboard.press("ArrowRight")
    chosen = page.locator(".ex-tokens button").nth(3).inner_text()
    says(f"After “{chosen}”")
    page.locator(".ex-heads button").nth(5).click()
    page.get_by_role("button", name="Switch this head off").click()
    page.wait_for_selector(".ex-off")
    says("with 1 switched off")
    page.reload()
    page.wait_for_selector(".ex-off")
    says(f"After “{chosen}”")
    faults += swap(page)
    page.get_by_role("button", name="Number names").click()
    page.wait_for_selector('[aria-label="tokens of the source"]')
    page.locator("#explorer textarea").fill("vierx")
    page.wait_for_selector(".ex-fault:not(:empty)")
    return faults
