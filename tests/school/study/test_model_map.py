"""The map of the model leads to every lesson of the course."""

import json
from itertools import pairwise

import matplotlib

matplotlib.use("Agg")

from companion_school.study import figures, model_map, where_next


def test_every_lesson_but_the_first_is_on_the_map():
    named = [part for _, _, lesson, _ in model_map.PATH for part in lesson.split(", ")]
    named += [lesson for _, lesson in model_map.AROUND]
    course = [lesson["number"] for lesson in json.loads(where_next.COURSE.read_text(encoding="utf-8"))]
    assert sorted(set(named)) == course[1:]


def test_no_box_of_the_map_lies_on_another():
    fig = model_map.draw()
    boxes = [patch for patch in fig.axes[0].patches if patch.get_fill() and patch.get_height() < 1]
    spans = sorted((box.get_x(), box.get_y(), box.get_height()) for box in boxes)
    assert len(spans) == len(model_map.PATH) + len(model_map.AROUND)
    for (x, low, tall), (other, next_low, _) in pairwise(spans):
        assert x != other or low + tall < next_low + 1e-9
    figures.plt.close(fig)
