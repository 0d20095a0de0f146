"""A figure that moves: sliders above a picture, drawn anew at each place, by the same rules as every other figure.

    def clock(m):
        fig, ax = figures.subplots()
        ...
        figures.show(fig, alt=f"The hands at position {m}.")

    slider(clock, m=range(41))

Draw the same content beside it without sliders: on paper, on a web page and in a stored notebook nothing moves.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets
from IPython.display import display
from IPython.utils.capture import capture_output

WIDGET = "application/vnd.jupyter.widget-view+json"


class _Moving:
    """A box of widgets that says, where there is nothing to run them, what would be there."""

    def __init__(self, box: widgets.VBox, sliders: dict[str, Sequence[Any]]):
        self.box = box
        ranges = " and ".join(f"{_label(name)} ({values[0]} to {values[-1]})" for name, values in sliders.items())
        self.text = (
            f"A picture with a slider for {ranges}. It moves where the notebook runs: in JupyterLab, run this cell."
        )

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"text/plain": self.text, WIDGET: self.box._repr_mimebundle_()[WIDGET]}


def slider(draw: Callable[..., None], **values: Sequence[Any]) -> None:
    """Show the figure of `draw`, and a slider for each of its arguments that draws it anew.

    Args:
        draw: called as `draw(name=value, ...)`; draws one figure and finishes it with `figures.show`, whose checks and
            alternative text apply to every picture as they do to a figure that stands still.
        values: for each argument of `draw` the values its slider runs through, in order; it begins at the first.
            Underscores in a name are shown as spaces. A picture that was drawn once is kept.

    A program that cannot move it (a web page, a stored notebook) shows a line of text in its place. Sliders take the
    keyboard: Tab to reach one, arrow keys to move it.

    Raises:
        ValueError: no slider, one without two values to choose from, or `draw` did not show exactly one figure.
    """
    if not values:
        raise ValueError(
            "values: expected the values of at least one slider, as in slider(draw, m=range(10)); got none"
        )
    for name, choices in values.items():
        if len(choices) < 2:
            raise ValueError(f"{name}={list(choices)}: expected at least two values to choose from")
    kept: dict[tuple[Any, ...], str] = {}
    handles = [
        widgets.SelectionSlider(
            options=[(str(choice), choice) for choice in choices],
            description=_label(name),
            style={"description_width": "initial"},
            layout={"width": "min(520px, 95%)"},
        )
        for name, choices in values.items()
    ]

    def picture() -> str:
        chosen = tuple(handle.value for handle in handles)
        if chosen not in kept:
            kept[chosen] = _drawn(draw, dict(zip(values, chosen, strict=True)))
        return kept[chosen]

    screen = widgets.HTML(picture())
    for handle in handles:
        handle.observe(lambda change: screen.set_trait("value", picture()), names="value")
    display(_Moving(widgets.VBox([*handles, screen]), values))


def _label(name: str) -> str:
    return name.replace("_", " ")


def _drawn(draw: Callable[..., None], arguments: dict[str, Any]) -> str:
    """What `draw` shows, as an HTML image with its alternative text."""
    with capture_output(stdout=False, stderr=False) as caught:
        draw(**arguments)
    pictures = [output for output in caught.outputs if "image/png" in output.data]
    if len(pictures) != 1 or len(caught.outputs) != 1:
        raise ValueError(
            f"draw({arguments}) showed {len(caught.outputs)} outputs, {len(pictures)} of them pictures: "
            "expected one figure, finished with figures.show(fig, alt=...)"
        )
    data, words = pictures[0].data["image/png"], pictures[0].metadata["image/png"]["alt"]
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return f'<img style="max-width: 100%" alt="{html.escape(words)}" src="{source}">'
