"""Sliders: each place shows the figure of that place, checked and with its words; a static page gets a line of text."""

import base64
import html
import io
import re

import matplotlib.image
import pytest
from IPython.core.interactiveshell import InteractiveShell

from companion.study import figures
from companion.study import slider as module
from companion.study.slider import slider


@pytest.fixture(autouse=True)
def shell():
    """Pictures are caught on their way to a notebook, so there is one."""
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


@pytest.fixture
def shown(monkeypatch):
    """What `slider` hands to Jupyter."""
    boxes = []
    monkeypatch.setattr(module, "display", boxes.append)
    return boxes


@pytest.fixture
def bar():
    def draw(m, bar_height=1):
        draw.drawn.append((m, bar_height))
        fig, ax = figures.subplots(width=2, height=1.5)
        ax.bar([0], [m + bar_height])
        ax.set(xlabel="pair", ylabel="angle (radians)", ylim=(0, 10))
        figures.show(fig, alt=f'A bar at "{m}" that is {bar_height} high.')

    draw.drawn = []
    return draw


def parts(shown):
    *handles, screen = shown[0].box.children
    return handles, screen


def pixels(screen):
    png = base64.b64decode(re.search(r'src="data:image/png;base64,([^"]+)"', screen.value)[1])
    return matplotlib.image.imread(io.BytesIO(png))


def words(screen):
    return html.unescape(re.search(r'alt="([^"]*)"', screen.value)[1])


def test_moving_a_slider_shows_the_figure_of_that_place_with_its_words(shown, bar):
    slider(bar, m=range(4), bar_height=[1, 2.5])
    (place, height), screen = parts(shown)
    assert (place.description, height.description) == ("m", "bar height")
    first = pixels(screen)
    assert first.shape[:2] == (150, 200) and words(screen) == 'A bar at "0" that is 1 high.'
    place.value = 3
    assert words(screen) == 'A bar at "3" that is 1 high.' and (pixels(screen) != first).any()
    height.value = 2.5
    assert words(screen) == 'A bar at "3" that is 2.5 high.'
    assert bar.drawn == [(0, 1), (3, 1), (3, 2.5)]


def test_a_picture_is_drawn_once(shown, bar):
    slider(bar, m=range(4))
    [place], screen = parts(shown)
    first = screen.value
    for m in (1, 0, 1):
        place.value = m
    assert bar.drawn == [(0, 1), (1, 1)]
    place.value = 0
    assert screen.value == first


def test_nothing_but_the_widget_reaches_the_page_and_a_static_page_gets_a_sentence(bar, capsys, shell):
    published = []
    shell.display_pub.publish = lambda data, metadata=None, **rest: published.append(data)
    slider(bar, m=range(3, 9))
    [data] = published
    assert set(data) == {"text/plain", "application/vnd.jupyter.widget-view+json"}
    assert data["text/plain"].startswith("A picture with a slider for m (3 to 8).")
    assert "model_id" not in data["text/plain"] and "0x" not in data["text/plain"]
    assert capsys.readouterr() == ("", "")


def test_every_picture_is_checked_like_a_figure_that_stands_still(shown):
    def unnamed(m):
        fig, _ = figures.subplots()
        figures.show(fig, alt="An axis that has no name.")

    with pytest.raises(ValueError, match="no label on the x axis"):
        slider(unnamed, m=range(3))
    assert shown == []


def test_no_slider_or_nothing_to_choose_is_told(bar):
    with pytest.raises(ValueError, match=r"values: expected .* at least one slider.* got none"):
        slider(bar)
    with pytest.raises(ValueError, match=r"m=\[5\]: expected at least two values"):
        slider(bar, m=[5])
    assert bar.drawn == []


def test_a_drawing_that_shows_no_figure_or_two_is_told(bar):
    with pytest.raises(ValueError, match="showed 0 outputs, 0 of them pictures: expected one figure"):
        slider(lambda m: None, m=range(2))
    with pytest.raises(ValueError, match="showed 2 outputs"):
        slider(lambda m: (bar(m), bar(m)), m=range(2))
