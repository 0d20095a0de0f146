"""Grading the hostile class detects a grader that is too trusting."""

from dataclasses import replace

from companion_school.course.grading import exercise_mark
from companion_school.course.grading.grade import grade
from companion_school.course.grading.sandbox import parent
from companion_school.course.grading.submissions import handed_in
from companion_school.course.proof import hostile
from companion_school.exercises.catalogue import find_exercise


def test_the_class_is_large():
    """`companion course verify` runs all of it, and no student in it gains a point."""
    assert len(hostile.hostile_class()) > 120


def faults_of(names, tmp_path, target=None):
    students = {name: hostile.hostile_class()[name] for name in names}
    for name, student in students.items():
        hostile._hand_in(student, tmp_path / name, tmp_path / "secret")
    chosen = [target or find_exercise(hostile.TARGET)]
    graded = grade(handed_in(tmp_path), chosen, b"a secret of the tests", jobs=1, limits=hostile.PATIENT)
    return {one.handed.student: hostile._fault(one, students) for one in graded}


def test_a_claim_to_be_right_is_refused_where_it_is_read_too(tmp_path, monkeypatch):
    monkeypatch.setattr(parent, "believable", lambda outcome, case: outcome)
    free = replace(find_exercise(hostile.TARGET), forbidden=())  # so that the code makes the claim
    faults = faults_of(["says that it is right", "right, over a blank one"], tmp_path, free)
    assert faults["says that it is right"] is None and faults["right, over a blank one"] is None


def test_the_class_notices_a_grader_without_its_list_of_names(tmp_path, monkeypatch):
    monkeypatch.setattr(exercise_mark, "Program", lambda source, name, forbidden: parent.Program(source, name, ()))
    target = replace(find_exercise(hostile.TARGET), forbidden=())
    faults = faults_of(["spells the banned operator"], tmp_path, target)
    assert "should end as refused" in faults["spells the banned operator"]


def test_a_slow_machine_makes_nobody_hostile(monkeypatch):
    """Students who run out of time unexpectedly are graded once more with more time; those who loop forever are not."""
    some = {name: hostile.hostile_class()[name] for name in ("right", "loops for ever")}
    monkeypatch.setattr(hostile, "hostile_class", lambda: some)
    given, grade_ = [], hostile.grade

    def slow(handed, *rest, limits, **more):
        """Pretend that reading the first student's file took too long, but only the first time."""
        given.append(([one.student for one in handed], limits))
        late = "right" if len(given) == 1 else ""
        graded = grade_(handed, *rest, limits=limits, **more)
        return [replace(one, submission="unreadable") if one.handed.student == late else one for one in graded]

    monkeypatch.setattr(hostile, "grade", slow)
    *students, _ = hostile.run_hostile_class(jobs=1)
    assert [trial.fault for trial in students] == [None, None]
    first, again = (["right"], hostile.LIMITS), (["right"], hostile.PATIENT)
    assert given == [first, again, (["loops for ever"], hostile.LIMITS)]
