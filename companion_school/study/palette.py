"""Colors for the course's figures on light and dark pages, and functions that compute contrast.

The hues are from Okabe and Ito's palette ("Color universal design", 2008), which can be told apart with all common
forms of color blindness. The colors for the light page are slightly darker than the original ones, because lines need a
contrast of 3 to 1.
"""

from __future__ import annotations

LINE_CONTRAST = 3.0  # minimum contrast of a line or mark with the page: WCAG 2.2, success criterion 1.4.11
TEXT_CONTRAST = 4.5  # minimum contrast of normal-size text: WCAG 2.2, success criterion 1.4.3

# For a white page. All are dark enough for lines, and all except orange and sky are dark enough for text.
PALETTE = {
    "blue": "#0072B2",
    "orange": "#B87F00",
    "green": "#007A59",
    "red": "#BF4A00",
    "purple": "#A6517F",
    "sky": "#2F93CC",
    "black": "#000000",
}
# The same colors for JupyterLab's dark page, #111111.
DARK = {
    "blue": "#5FB0EA",
    "orange": "#E9A820",
    "green": "#2FC79A",
    "red": "#FF8A4C",
    "purple": "#E09BC4",
    "sky": "#9BD6F7",
    "black": "#FFFFFF",
}
LIGHT_PAGE = {"ink": "#1A1A1A", "quiet": "#5C5C5C", "edge": "#7A7A7A", "faint": "#E8E8E8", "page": "#FFFFFF"}
DARK_PAGE = {"ink": "#ECECEC", "quiet": "#B4B4B4", "edge": "#8C8C8C", "faint": "#2E2E2E", "page": "#111111"}


def contrast(color: object, other: object) -> float:
    """Return the contrast ratio of two colors as defined by WCAG 2.2, from 1 to 21.

    Args:
        color: A color in any form that Matplotlib accepts; alpha is ignored.
        other: The other color.

    Raises:
        ValueError: An argument is not a color.
    """
    darker, lighter = sorted(map(_luminance, (color, other)))
    return (lighter + 0.05) / (darker + 0.05)


def on_dark_page(color: object) -> tuple[float, float, float]:
    """Convert a picture's color to the color shown on the dark page.

    The lightness is inverted and the hue stays the same, as in the style sheet of `companion_school.study.figure_html`:
    `invert(1)`, then `hue-rotate(180deg)` with the matrix from the W3C's Filter Effects, then a blend that turns white
    into the page's color.

    Args:
        color: A color in any form that Matplotlib accepts; alpha is ignored.

    Returns:
        Red, green and blue from 0 to 1.

    Raises:
        ValueError: The argument is not a color.
    """
    from matplotlib.colors import to_rgb  # imported late, because the palette itself does not need Matplotlib

    red, green, blue = (1 - part for part in to_rgb(color))  # type: ignore[arg-type]
    grey = 0.426 * red + 1.43 * green + 0.144 * blue  # twice the lightness
    turned = (min(max(grey - part, 0.0), 1.0) for part in (red, green, blue))
    page = to_rgb(DARK_PAGE["page"])
    red, green, blue = (1 - (1 - part) * (1 - under) for part, under in zip(turned, page, strict=True))
    return red, green, blue


def _luminance(color: object) -> float:
    from matplotlib.colors import to_rgb

    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]  # type: ignore[arg-type]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
