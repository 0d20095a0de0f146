"""The page on which a model runs, from `explorer.md`, and the files that it needs."""

from __future__ import annotations

from pathlib import Path

from authoring.site.notebook import raw
from authoring.site.output import Assets, page_html
from companion.school.explorer.files import body, model_script, script, style
from companion.school.explorer.models import NAMES
from companion.school.records import record

TEXT = Path(__file__).with_name("explorer.md")
NAME, LABEL, MODELS = "explorer", "See it live", "_static/explorer"
TITLES = {"story": "stories", "experts": "stories, with experts", "translator": "number names"}


def entry(assets: Assets) -> tuple[str, str, str]:
    """The page's name, what the contents call it, and its text; its files are put among the assets."""
    for name in NAMES:
        assets.files[f"{MODELS}/{name}.js"] = model_script(name).encode()
    parts = f'<style>{style()}</style>{body(MODELS)}<script type="module">{script()}</script>'
    shown = page_html(parts, assets, lambda href: href, "")
    text = TEXT.read_text(encoding="utf-8").replace("{{ explorer }}", raw(shown))
    return NAME, LABEL, text.replace("{{ models }}", models())


def models() -> str:
    """What is known of each model, as a table: its size, and its loss on texts that it has not read."""
    found = record("live")
    rows = ["| model | weights | file | bits per byte | in 8 bits |", "|---|---:|---:|---:|---:|"]
    for name in NAMES:
        made = found[name]
        size, before, after = f"{made['bytes'] / 1e6:.2f} MB", made["bits_before"], made["bits_after"]
        rows.append(f"| {TITLES[name]} | {made['weights']:,} | {size} | {before:.5f} | {after:.5f} |")
    said = found["translator"]
    right = f"The translator writes {said['exact_after']} of {said['measured']} names without a mistake, all unseen"
    ends = f"{right} (before the rounding, {said['exact_before']})."
    short = (
        f"The twin with experts was trained for {found['experts']['plan']['updates']:,} updates, the story model for"
    )
    long = record("story")["runs"][0]["plan"]["updates"]
    return "\n".join([*rows, "", f"{ends} {short} {long:,}: which of them is the better model is not said by this."])
