"""The ledger of claims: a cell or a test executes every claim that the lessons make, as claims.toml says."""

import ast
import csv
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
from course import lessons

from authoring.lesson import LessonError, assertions, claimed, with_deeper
from authoring.pages import where_texts_differ
from authoring.pages.claims import VERDICTS, decided, decisions, render, sentence

HERE = Path(__file__).parent
ROOT = HERE.parent
KINDS = ("cell", "test", "not_decidable")


def ledger():
    with (HERE / "ledger.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def claims_map():
    """Return the entries of claims.toml."""
    return tomllib.loads((HERE / "claims.toml").read_text(encoding="utf-8"))


def form_fault(key, entry, rows):
    """Return what is wrong with an entry by itself, or None."""
    if key not in rows:
        return f"{key} is not in ledger.csv"
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1 or set(entry) - {*KINDS, "says", "asserts"}:
        return f"{key}: expected one of {', '.join(KINDS)}, and `says` and `asserts` at most; got {sorted(entry)}"
    if ("cell" in entry) != bool(entry.get("asserts")):
        return f"{key}: expected `asserts` beside `cell`, and there alone: the assertions that decide it"
    texts = [text for value in entry.values() for text in (value if isinstance(value, list) else [value])]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        return f"{key}: every value must be text"
    if "not_decidable" in entry and rows[key]["verdict"] != "N":
        return f"{key}: its verdict is {rows[key]['verdict']}, so something can be computed; not_decidable is for N"
    return None


def cell_fault(key, lesson, cells):
    """Return the reason why no cell of the lesson executes the claim, or None."""
    naming = [cell for cell in cells if key in claimed(cell)]
    if not naming:
        return f"{key}: no code cell of {lesson} says `:claims: {key}`"
    for cell in naming:
        if cell.execution_count is None:
            return f"{key}: its cell in {lesson} was not executed"
        if not assertions(cell.source):
            return f"{key}: its cell in {lesson} asserts nothing"
    return None


def fault_of_test(key, node, root=ROOT):
    """Return the reason why the test that should execute the claim does not, or None."""
    path, *names = node.split("::")
    if not names or not (root / path).is_file():
        return f"{key}: no test file {path}"
    body = ast.parse((root / path).read_text(encoding="utf-8")).body
    for name in names:
        found = [item for item in body if isinstance(item, ast.FunctionDef | ast.ClassDef) and item.name == name]
        if not found:
            return f"{key}: {path} has no {'::'.join(names)}"
        body = found[0].body
    [function] = found
    code = ast.unparse(function)
    if re.search(r"\b(skip|skipif|xfail)\b", code):
        return f"{key}: {node} may be skipped"
    if not assertions(code) and "raises(" not in code and "gradcheck(" not in code:
        return f"{key}: {node} contains no assertion"
    return None


@cache
def cells_of(name):
    """Return the cells of a lesson and of its deeper notebook, because a claim may be in either."""
    found = [lesson for lesson in with_deeper(lessons()) if lesson.name in (name, f"deeper/{name}")]
    return [cell for lesson in found if lesson.notebook.exists() for cell in lesson.built]


def test_ledger_is_complete():
    rows = ledger()
    assert len(rows) == 278
    assert {row["verdict"] for row in rows.values()} == set("HCIWNA")


def test_every_claim_is_mapped_once_and_those_nobody_can_decide_are_listed_as_such():
    rows, entries = ledger(), claims_map()
    missing = [key for key in rows if key not in entries]
    assert not missing, f"{len(missing)} claims are nowhere executed: {', '.join(missing)}"
    undecidable = {key for key, row in rows.items() if row["verdict"] == "N"}
    assert {key for key, entry in entries.items() if "not_decidable" in entry} == undecidable


def test_every_claim_is_a_sentence_that_a_reader_can_judge():
    for key, row in ledger().items():
        said = sentence(key)
        assert len(said.split()) >= 5, f"{key}: {said!r} is no sentence"
        assert not re.search(r"\bas S\d-\d\d", said), f"{key}: {said!r} refers to another row"
        subjectless = r"(it|its|their|they|right|rounded|exact|exactly|always|equal|by|of|where|\*projections\*|\d+)\b"
        assert not re.match(subjectless, said), f"{key}: {said!r} says of nothing what is true of it"
        assert row["verdict"] in VERDICTS
    page = render(lessons())
    assert [key for key in ledger() if page.count(f"| {key} |") != 1] == []


def test_what_is_mapped_exists_is_executed_and_asserts():
    rows, entries = ledger(), claims_map()
    faults = []
    for key, entry in entries.items():
        fault = form_fault(key, entry, rows)
        if not fault and "cell" in entry:
            fault = cell_fault(key, entry["cell"], cells_of(entry["cell"]))
        if not fault and "test" in entry:
            fault = fault_of_test(key, entry["test"])
        faults += [fault] if fault else []
    assert not faults, "\n".join(["tests/claims.toml:", *faults])


def test_every_claim_of_a_cell_is_decided_by_assertions_that_are_there():
    written = lessons()
    counts = {key: len(decisions(key, written)) for key, entry in claims_map().items() if "cell" in entry}
    assert len(counts) == 265
    assert all(1 <= count <= 4 for count in counts.values()), counts


def test_an_assertion_that_is_not_there_or_is_meant_twice_is_found(monkeypatch):
    entry = {"cell": "00_one_token_by_hand", "says": "ids become vectors"}
    for named, found in (("X.shape == (4, 3)", "found 0"), ("torch.equal( ...", "found 2")):
        monkeypatch.setattr(where_texts_differ, "mapped", lambda named=named: {"S2-03": entry | {"asserts": [named]}})
        monkeypatch.setattr("authoring.pages.claims.mapped", where_texts_differ.mapped)
        with pytest.raises(LessonError, match=rf"S2-03: .*expected exactly one assertion.*{found}"):
            decisions("S2-03", lessons())


def test_a_claim_shows_the_assertion_behind_the_link_to_its_cell():
    said = decided("S2-07", lessons())
    assert re.fullmatch(r"\[.+\]\(00_\S+#cell-id=\w+\): `ids == \[1, 5, 9\] and .*`", said)


def test_lessons_name_only_claims_that_exist():
    rows = ledger()
    named = {(x.name, key) for x in lessons() for cell in cells_of(x.name) for key in claimed(cell)}
    assert {(lesson, key) for lesson, key in named if key not in rows} == set()
