"""Figures: `show` rejects everything that is not legible, and maps have the right axes."""

import base64
import html
import io
import re

import matplotlib

matplotlib.use("Agg")

import matplotlib.image
import numpy as np
import pytest
import torch

from companion_school.study import figures

ALT = "Two curves, of which one rises faster."
SKY = figures.PALETTE["sky"]


@pytest.fixture
def shown(monkeypatch):
    """Return what `show` passes to Jupyter."""
    pictures = []
    monkeypatch.setattr(figures, "display", pictures.append)
    return pictures


def line_figure(**axis):
    fig, ax = figures.subplots()
    ax.plot([1, 2, 3], [1, 2, 3], label="slow")
    ax.plot([1, 2, 3], [1, 4, 9], label="fast")
    ax.set(**({"xlabel": "token", "ylabel": "time (ms)"} | axis))
    ax.legend()
    return fig, ax


def page(picture):
    """Return the HTML that reaches the page."""
    return picture._repr_mimebundle_()["text/html"]


def png(picture):
    return base64.b64decode(re.search(r'src="data:image/png;base64,([^"]+)"', page(picture))[1])


def test_a_finished_figure_is_shown_with_its_words_and_closed(shown):
    fig, _ = line_figure()
    figures.show(fig, alt=f"  {ALT}\n ", caption="Figure 2.3. Faster & faster.")
    assert repr(shown[0]) == f"Figure (640 x 380 pixels, 1 axis): {ALT}"
    assert f'<img alt="{ALT}" width="640"' in page(shown[0])
    assert "<figcaption><b>Figure 2.3.</b> Faster &amp; faster.</figcaption>" in page(shown[0])
    assert not matplotlib.pyplot.fignum_exists(fig.number)


def test_a_figure_is_stored_with_twice_the_pixels_of_the_page(shown):
    figures.show(line_figure()[0], alt=ALT)
    assert matplotlib.image.imread(io.BytesIO(png(shown[0]))).shape[:2] == (760, 1280)


def test_jupyter_takes_the_picture_as_html_alone_so_that_its_words_reach_the_page(shown):
    from IPython.core.interactiveshell import InteractiveShell

    fig, _ = line_figure()
    figures.show(fig, alt='A "slow" curve < a fast one.')
    data, metadata = InteractiveShell.instance().display_formatter.format(shown[0])
    assert set(data) == {"text/html", "text/plain"} and not metadata
    assert html.unescape(re.search(r'alt="([^"]*)"', data["text/html"])[1]) == 'A "slow" curve < a fast one.'


def test_the_same_figure_gives_the_same_bytes_and_names_no_software(shown):
    for _ in range(2):
        figures.show(line_figure()[0], alt=ALT)
    assert page(shown[0]) == page(shown[1])
    assert b"Software" not in png(shown[0]) and b"tEXt" not in png(shown[0])


def test_a_figure_is_stored_small_and_in_its_own_colours(shown):
    fig, ax = figures.subplots()
    matrix = torch.linspace(0, 1, 400).view(20, 20)
    figures.heatmap(ax, matrix, row_label="query", column_label="key", bar_label="weight")
    full = io.BytesIO()
    fig.savefig(full, format="png", dpi=200)
    figures.show(fig, alt=ALT)
    drawn, stored = (matplotlib.image.imread(io.BytesIO(data))[..., :3] for data in (full.getvalue(), png(shown[0])))
    assert len(png(shown[0])) < len(full.getvalue()) / 1.5
    assert (np.abs(drawn - stored) > 0.06).mean() < 0.01  # only at the smoothed edges of letters and lines


def unlabelled_bar():
    fig, ax = figures.subplots()
    fig.colorbar(ax.imshow([[1.0]]))
    ax.set(xlabel="key", ylabel="query")
    return fig


def without_legend():
    fig, ax = line_figure()
    ax.get_legend().remove()
    return fig


def told_apart_by_colour():
    fig, ax = line_figure()
    for line in ax.get_lines():
        line.set(linestyle="-", marker="")
    return fig


def pale_curve():
    fig, ax = line_figure()
    ax.get_lines()[0].set_color("#E69F00")
    return fig


def pale_print():
    fig, ax = line_figure()
    ax.text(1, 1, "note", color=figures.PALETTE["orange"])
    return fig


def boxed(color):
    fig, ax = line_figure()
    ax.text(1, 1, "note", bbox={"facecolor": color})
    return fig


def on_a_patch(color):
    fig, ax = line_figure()
    ax.add_patch(figures.Rectangle((0, 0), 2, 2, facecolor=color))
    ax.text(1, 1, "note")
    return fig


def small_print():
    fig, ax = line_figure()
    ax.text(1, 1, "note", fontsize=6)
    return fig


@pytest.mark.parametrize(
    "make, alt, message",
    [
        (lambda: line_figure(xlabel="")[0], ALT, "axes 1: no label on the x axis"),
        (lambda: line_figure(ylabel="", title="Speed")[0], ALT, r"axes 1 \('Speed'\): no label on the y axis"),
        (lambda: line_figure()[0], "", "alt: expected a sentence"),
        (lambda: line_figure()[0], "a plot", "alt: expected a sentence that says what the figure shows, got 'a plot'"),
        (unlabelled_bar, ALT, "axes 2: the colour bar has no label"),
        (without_legend, ALT, "several labelled curves and no legend"),
        (told_apart_by_colour, ALT, "curves 'slow' and 'fast' differ by colour alone"),
        (pale_curve, ALT, r"axes 1: curve 'slow' in '#E69F00' has a contrast of 2.3; a line needs 3"),
        (pale_print, ALT, r"text 'note' in '#B87F00' has a contrast of 3.\d; print needs 4.5"),
        (
            lambda: boxed("#555555"),
            ALT,
            r"text 'note' in 'black' on the dark page has a contrast of 2.2; print needs 4.5",
        ),
        (lambda: on_a_patch(SKY), ALT, r"text 'note' in 'black' on the dark page has a contrast of 3.3; print needs"),
        (small_print, ALT, "text 'note' is 6 points; 8 is the smallest"),
        (lambda: figures.plt.figure(), ALT, "the figure has no axes"),
    ],
)
def test_an_unfinished_figure_is_refused(shown, make, alt, message):
    fig = make()
    with pytest.raises(ValueError, match=message):
        figures.show(fig, alt=alt)
    assert shown == []
    figures.plt.close(fig)


@pytest.mark.parametrize("make", [boxed, on_a_patch])
def test_print_may_stand_on_a_pale_colour(shown, make):
    figures.show(make((SKY, 0.35)), alt=ALT)
    assert len(shown) == 1


def test_shared_and_switched_off_axes_need_no_name_of_their_own(shown):
    fig, axes = figures.subplots(2, 2, sharex=True, sharey=True)
    for ax in axes.flat:
        ax.plot([1, 2])
    axes[1, 0].set(xlabel="token", ylabel="loss (nats)")
    figures.show(fig, alt=ALT)
    fig, ax = figures.subplots()
    ax.axis("off")
    figures.show(fig, alt=ALT)
    assert len(shown) == 2


def test_seven_curves_of_the_style_differ_without_colour():
    fig, ax = figures.subplots()
    for height in range(7):
        ax.plot([0, 1], [height, height], label=str(height))
    assert len({(line.get_linestyle(), line.get_marker()) for line in ax.get_lines()}) == 7
    figures.plt.close(fig)


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_heatmap_writes_the_matrix_as_it_is_printed():
    fig, ax = figures.subplots()
    matrix = torch.tensor([[1.0, -2.0, float("-inf")], [0.25, -0.001, float("nan")]])
    image = figures.heatmap(ax, matrix, rows=["a", "b"], columns=["x y", "$z$", "\n"], row_label="r", column_label="c")
    assert texts(ax) == ["1.00", "−2.00", "−∞", "0.25", "0.00", "NaN"]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["x␣y", "$z$", "⏎"]
    assert image.get_clim() == (-2, 2)
    assert ax.get_ylim() == (1.5, -0.5)  # the first row is at the top
    assert len(ax.patches) == 2  # the masked entry and the NaN are hatched
    fig.draw_without_rendering()
    figures.plt.close(fig)


def test_large_heatmaps_carry_no_values_unless_asked():
    fig, ax = figures.subplots()
    figures.heatmap(ax, np.ones((13, 2)), row_label="r", column_label="c")
    assert texts(ax) == []
    figures.heatmap(ax, np.ones((13, 2)), row_label="r", column_label="c", values=True, digits=0)
    assert texts(ax) == ["1"] * 26
    figures.plt.close(fig)


def test_attention_map_has_queries_down_and_keys_across():
    fig, ax = figures.subplots()
    image = figures.attention_map(ax, [[1, 0, 0], [0.5, 0.5, 0]], queries=["q1", "q2"], keys=["k1", "k2", "k3"])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["q1", "q2"]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["k1", "k2", "k3"]
    assert ax.get_ylabel().startswith("query") and ax.get_xlabel().startswith("key")
    assert image.get_clim() == (0, 1)
    figures.plt.close(fig)


@pytest.mark.parametrize(
    "weights, message",
    [
        (torch.ones(2, 2, 3), r"weights: expected the axes \(query, key\) of one head, got shape \(2, 2, 3\)"),
        (torch.full((3, 2), 0.5), r"expected shape \(queries, keys\) = \(2, 3\), got \(3, 2\)"),
        (torch.tensor([[2.0, 1, 0], [0, 0, 1]]), r"each row must be a distribution.*rows sum to \[3.0, 1.0\]"),
        (torch.tensor([[2.0, -1, 0], [0, 0, 1]]), "the smallest entry is -1"),
    ],
)
def test_what_is_no_attention_map_is_refused(weights, message):
    fig, ax = figures.subplots()
    with pytest.raises(ValueError, match=message):
        figures.attention_map(ax, weights, queries=["a", "b"], keys=["a", "b", "c"])
    figures.plt.close(fig)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"rows": ["a"]}, r"rows: expected 2 names, got 1: \['a'\]"),
        ({"columns": ["a", "b"]}, "columns: expected 3 names"),
    ],
)
def test_names_must_fit_the_matrix(options, message):
    fig, ax = figures.subplots()
    with pytest.raises(ValueError, match=message):
        figures.heatmap(ax, torch.ones(2, 3), row_label="r", column_label="c", **options)
    with pytest.raises(ValueError, match="two axes"):
        figures.heatmap(ax, torch.ones(2), row_label="r", column_label="c")
    figures.plt.close(fig)
