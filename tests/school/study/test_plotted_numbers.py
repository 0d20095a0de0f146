"""The numbers behind a picture are those that are drawn, in readable tables."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest
import torch

from companion_school.study import figures
from companion_school.study.figure_html import fold, written
from companion_school.study.plotted_numbers import MOST_ROWS, read_off


@pytest.fixture
def drawn():
    fig, ax = figures.subplots()
    yield fig, ax
    plt.close(fig)


def test_curves_over_the_same_places_share_a_table(drawn):
    fig, ax = drawn
    ax.plot([1, 2, 4], [1, 2, 4], label="slow")
    ax.plot([1, 2, 4], [1.5, 4, 16], label="fast")
    ax.plot([0, 1], [7, 8], label="elsewhere")
    ax.axhline(3)  # a reference line is not a number behind the picture
    ax.set(xlabel="token", title="Speed")
    assert read_off(fig) == [
        ("Speed", {"token": [1, 2, 4], "slow": [1, 2, 4], "fast": [1.5, 4, 16]}),
        ("Speed", {"token": [0, 1], "elsewhere": [7, 8]}),
    ]


def test_a_long_curve_is_thinned_out_and_keeps_its_ends(drawn):
    fig, ax = drawn
    ax.plot(range(1001), range(0, 2002, 2))
    ax.set(xlabel="update", ylabel="loss")
    [(title, columns)] = read_off(fig)
    assert len(columns["update"]) <= MOST_ROWS + 1 and title == "every 44th point"
    assert (columns["update"][0], columns["update"][1], columns["update"][-1]) == (0, 44, 1000)
    assert columns["loss"] == [2 * update for update in columns["update"]]


def test_places_that_are_only_numbered_have_the_names_of_their_ticks(drawn):
    fig, ax = drawn
    ax.plot([0, 1, 2], [4.5, 3.5, 2.5], label="loss")
    ax.plot([1, 2, 4], [1.5, 4.5, 16.5], label="numbers")
    ax.set_xticks([0, 1, 2], ["0 to 63", "64 to 127", "128 on"])
    ax.set(xlabel="position")
    assert read_off(fig) == [
        ("", {"position": ["0 to 63", "64 to 127", "128 on"], "loss": [4.5, 3.5, 2.5]}),
        ("", {"position": [1, 2, 4], "numbers": [1.5, 4.5, 16.5]}),
    ]


def test_bars_have_their_names(drawn):
    fig, ax = drawn
    ax.bar(range(3), [0.5, 0.25, 0.25])
    ax.axhline(0)  # across the whole width of the picture, from 0 to 1 in axes units
    ax.set_xticks(range(3), ["cat", "slept", "it"])
    ax.set(xlabel="key", ylabel="weight")
    assert read_off(fig) == [("", {"key": ["cat", "slept", "it"], "weight": [0.5, 0.25, 0.25]})]


def test_bars_of_a_panel_that_shares_its_axis_have_the_name_that_stands_once():
    fig, (left, right) = figures.subplots(1, 2, sharey=True)
    for ax, height in ((left, 1.5), (right, 2.5)):
        ax.bar(["a"], [height])
        ax.set(xlabel="expert")
    left.set_ylabel("score")
    assert [columns for _, columns in read_off(fig)] == [
        {"expert": ["a"], "score": [1.5]},
        {"expert": ["a"], "score": [2.5]},
    ]
    plt.close(fig)


def test_a_map_has_its_rows_and_says_what_is_masked(drawn):
    fig, ax = drawn
    scores = torch.tensor([[1.5, -torch.inf], [0.25, 2.0]])
    figures.heatmap(
        ax, scores, rows=["a", "b"], columns=["a", "a"], row_label="query", column_label="key", bar_label="score"
    )
    assert read_off(fig) == [("", {"query \\ key": ["a", "b"], "a": [1.5, 0.25], "a (1)": ["masked", 2.0]})]


def test_a_large_map_and_a_diagram_have_no_table(drawn):
    fig, ax = drawn
    ax.imshow(torch.rand(17, 17).numpy())
    assert read_off(fig) == []
    ax.images[0].remove()
    ax.plot([1, 2], [3, 4])
    ax.axis("off")
    assert read_off(fig) == []


def test_tables_are_folded_away_on_one_line_and_say_what_they_are():
    page = fold([("Speed", {"token": ["<s>", "a"], "time": [-0.123456, 3]})])
    assert page.startswith('<details class="ext-numbers"><summary>') and "\n" not in page
    assert "<caption>Speed</caption>" in page and '<th scope="col">time</th>' in page
    assert "<td>&lt;s&gt;</td><td>−0.1235</td>" in page and "<td>a</td><td>3</td>" in page


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"numbers: expected columns of equal length, got \{'a': 1, 'b': 2\}"):
        fold({"a": [1], "b": [1, 2]})


def test_numbers_are_written_as_they_are_read():
    assert [written(x) for x in (0.5, -2.0, 1234567.0, -3, "-inf")] == ["0.5", "−2", "1.235e+06", "−3", "-inf"]
