"""The colours are legible on light and dark pages, as lines and as text."""

import pytest
from matplotlib.colors import to_hex

from companion_school.study.palette import (
    DARK,
    DARK_PAGE,
    LIGHT_PAGE,
    LINE_CONTRAST,
    PALETTE,
    TEXT_CONTRAST,
    contrast,
    on_dark_page,
)


def test_contrast_is_that_of_the_standard():
    """Examples from WCAG: black on white is 21, a colour on itself 1; #777777 fails on white, and #767676 passes."""
    assert contrast("black", "white") == pytest.approx(21) == contrast("white", "black")
    assert contrast("#0072B2", "#0072B2") == 1
    assert contrast("#777777", "white") < TEXT_CONTRAST < contrast("#767676", "white")


@pytest.mark.parametrize("colors, page", [(PALETTE, LIGHT_PAGE), (DARK, DARK_PAGE)])
def test_every_colour_is_good_for_lines_and_all_print_is_readable(colors, page):
    for name, color in colors.items():
        assert contrast(color, page["page"]) >= LINE_CONTRAST, name
    assert contrast(page["edge"], page["page"]) >= LINE_CONTRAST
    for name in ("ink", "quiet"):
        assert contrast(page[name], page["page"]) >= TEXT_CONTRAST, name
    for name in ("blue", "green", "red", "purple"):
        assert contrast(colors[name], page["page"]) >= TEXT_CONTRAST, name


def test_a_picture_turns_as_the_browser_turns_it():
    """The last two are what Chromium paints with the style of `companion_school.study.figure_html`."""
    assert to_hex(on_dark_page("white")) == DARK_PAGE["page"]
    assert to_hex(on_dark_page("black")) == "#ffffff"
    assert to_hex(on_dark_page(PALETTE["orange"])) == "#b88311"
    assert on_dark_page(PALETTE["sky"]) == pytest.approx([56 / 255, 150 / 255, 203 / 255], abs=0.005)


def test_both_pages_have_the_same_names():
    assert PALETTE.keys() == DARK.keys() and LIGHT_PAGE.keys() == DARK_PAGE.keys()
