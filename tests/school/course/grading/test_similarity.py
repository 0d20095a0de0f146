"""Copies are found even after renaming, but not answers that many students would write anyway."""

import re

import pytest

from companion.commands.main import main
from companion_school.course.grading.similarity import words
from companion_school.exercises.catalogue import exercises

ODD = '''
def visible_softmax(scores, may_look):
    """Mine."""
    if may_look.dtype is not torch.bool or tuple(may_look.shape) != tuple(scores.shape):
        raise ValueError("no mask")
    rows = []
    for row, look in zip(scores, may_look):
        best = max([float(s) for s, l in zip(row, look) if l], default=0.0)
        weights = [math.exp(float(s) - best) if l else 0.0 for s, l in zip(row, look)]
        total = sum(weights) or 1.0
        rows.append([w / total for w in weights])
    return torch.tensor(rows, dtype=scores.dtype)
'''
NEW = {"rows": "lines", "best": "top", "weights": "shares", "look": "seen", "s": "a", "l": "b", "Mine": "My own"}
RENAMED = re.sub("|".join(rf"\b{word}\b" for word in NEW), lambda found: NEW[found[0]], ODD) + "# done"


def test_names_comments_and_docstrings_make_no_difference():
    assert words(ODD) == words(RENAMED) and len(words(ODD)) > 100
    assert words(ODD) != words(ODD.replace("or 1.0", "or 2.0"))
    assert words("def f(:") == []


@pytest.mark.slow
def test_a_copy_in_a_class_is_told_and_so_is_the_courses_own_answer(tmp_path, capsys):
    known = exercises()["2.3"].solution
    for name, text in {"ada": ODD, "ben": RENAMED, "cem": known, "dora": known, "emmy": "x = 1"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert main(["course", "alike", str(tmp_path), "--exercises", "2.3"]) == 0
    assert capsys.readouterr().out == (
        "2.3  100%  (the course's own answer), cem, dora\n2.3  100%  ada, ben\n2 groups of similar answers\n"
    )


def test_no_exercise_is_one_sentence(tmp_path, capsys):
    assert main(["course", "alike", str(tmp_path)]) == 2
    assert "--exercises: expected at least one" in capsys.readouterr().err


def test_an_export_has_a_file_for_each_answer_and_what_is_to_be_left_out(tmp_path, capsys):
    for student, text in (("ada", ODD), ("ben", RENAMED)):
        (tmp_path / "in" / student).mkdir(parents=True)
        (tmp_path / "in" / student / "a.py").write_text(f"import math\nimport torch\n{text}", encoding="utf-8")
    call = ["course", "alike", str(tmp_path / "in"), "--exercises", "2.3", "2.4", "--export", str(tmp_path / "out")]
    assert main(call) == 0
    assert "2 answers of 2 students" in capsys.readouterr().out
    files = {file.relative_to(tmp_path / "out").as_posix() for file in (tmp_path / "out").rglob("*.py")}
    assert files == {"handed_in/ada/2.3.py", "handed_in/ben/2.3.py", "known/2.3.py", "known/2.4.py"}
    assert "total = sum(weights) or 1.0" in (tmp_path / "out/handed_in/ada/2.3.py").read_text("utf-8")
    known = (tmp_path / "out/known/2.3.py").read_text("utf-8")
    assert exercises()["2.3"].solution.strip() in known and "raise NotImplementedError" in known
    assert main(call) == 2
