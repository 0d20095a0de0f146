"""A learner's folder, from the stubs to a check that says what is right, what is wrong, and in which file."""

import json

import pytest

from companion.commands.main import main
from companion_school.build.check import examine_stage
from companion_school.build.check_process import unreadable
from companion_school.build.parts import parts
from companion_school.build.stages import STAGES
from companion_school.build.stubs import reference, stub
from companion_school.build.workspace import RECORD, find_folder, lay_stubs, overview, read_sources, state, take
from companion_school.checking.notebook_answer import NotYet
from companion_school.exercises import check

ATTENTION = STAGES[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPANION_BUILD", str(tmp_path / "mine"))
    lay_stubs(tmp_path / "mine")
    return tmp_path / "mine"


def write(folder, *changes, stage=ATTENTION):
    """Write the reference with changes as a learner's file."""
    text = reference(stage.number)
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / stage.file).write_text(text, "utf-8")


def by_part(report):
    return {one.part: one for one in report.found}


def test_the_folder_is_found_from_inside_and_from_above(tmp_path, monkeypatch):
    monkeypatch.delenv("COMPANION_BUILD", raising=False)
    (tmp_path / "my" / "notes").mkdir(parents=True)
    home = tmp_path / "my" / "transformer"
    assert find_folder(start=tmp_path) == find_folder(start=tmp_path / "my" / "notes") == home
    lay_stubs(home)
    assert find_folder(start=home) == home and find_folder(tmp_path / "other") == tmp_path / "other"
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="expected a folder for your transformer, found a file"):
        find_folder(tmp_path / "file")


def test_nothing_that_was_written_is_overwritten(folder):
    write(folder, ("scores.softmax(-1)", "scores.softmax(-2)"))
    mine = (folder / "attention.py").read_text("utf-8")
    assert lay_stubs(folder) == []
    said = take(folder, [ATTENTION, STAGES[3]])
    assert (folder / "attention.py").read_text("utf-8") == mine
    assert (folder / "attention.taken.py").read_text("utf-8").endswith(reference(2)) and "next to it" in said[0]
    assert state(folder, STAGES[3]) == "taken" and (folder / "positions.py").read_text("utf-8").startswith("# taken")


def test_a_later_versions_stub_replaces_the_old_stub_and_stands_beside_what_is_written(folder):
    record = json.loads((folder / RECORD).read_text("utf-8"))
    import hashlib

    for file in ("attention.py", "positions.py"):
        old = f"# an earlier version\n{(folder / file).read_text('utf-8')}"
        (folder / file).write_text(old, "utf-8")
        record[file]["laid"] = hashlib.sha256(old.encode()).hexdigest()[:16]
    (folder / RECORD).write_text(json.dumps(record), "utf-8")
    write(folder)
    said = lay_stubs(folder)
    assert (folder / "positions.py").read_text("utf-8") == stub(3)
    assert (folder / "attention.py").read_text("utf-8") == reference(2)
    assert (folder / "attention.new.py").read_text("utf-8") == stub(2)
    assert len(said) == 2 and "was not changed" in said[0] and lay_stubs(folder) == []
    assert "attention.new" not in read_sources(folder)


def test_a_right_file_is_right_and_that_is_kept_until_it_changes(folder, capsys):
    write(folder)
    check("build.2")
    assert "build.2 attention.py: right." in capsys.readouterr().out
    assert state(folder, ATTENTION).startswith("right, on 20")
    assert "Next: write" in overview(folder) and "tokenizer.py" in overview(folder)
    write(folder, ("scores.softmax(-1)", "torch.softmax(scores, -1)"))
    assert state(folder, ATTENTION) == "changed since it was right"


def test_a_mistake_is_named_with_what_shows_it_and_the_rest_is_judged_by_itself(folder, monkeypatch):
    write(folder, ("tril(keys - queries)", "tril()"))
    reports = []
    monkeypatch.setattr(
        "companion_school.build.check.examine_stage", lambda *of: reports.append(examine_stage(*of)) or reports[0]
    )
    with pytest.raises(NotYet, match="most likely: with fewer queries than keys, the last query is at the last key"):
        check("build.2")
    [report] = reports
    assert {one.part for one in report.found if one.result != "right"} == {"causal"}
    assert report.points == 10 and "queries = 2" in by_part(report)["causal"].told


def test_what_raises_is_said_with_its_line_the_first_fault_with_its_place_and_the_others_in_a_line(folder):
    write(folder, ("q @ k.mT / math", "q.mT @ k.mT / math"))
    report = examine_stage(ATTENTION, folder)
    attend, layer = by_part(report)["attend"], by_part(report)["Attention"]
    assert attend.told.endswith("in attention.py, line 12: scores = q.mT @ k.mT / math.sqrt(q.shape[-1])")
    assert attend.place is not None and "Look at attention.py, in attend." in attend.place
    assert layer.place is None and f"  Attention: crashed\n    {layer.briefly}\n  Attention, grouped" in str(report)
    assert layer.briefly.startswith("it raised RuntimeError") and len(layer.told.splitlines()) > 2


def test_a_mistake_that_the_cases_name_gets_no_second_cause(folder):
    late = "weights = scores.softmax(-1)\n    return (weights if mask is None else weights * mask) @ v"
    write(
        folder,
        ("        scores = scores.masked_fill(~mask, -math.inf)", "        pass"),
        ("return scores.softmax(-1) @ v", late),
    )
    attend = by_part(examine_stage(ATTENTION, folder))["attend"]
    assert "most likely: the mask comes after the softmax" in attend.told
    assert attend.place.startswith("Compared step by step with the course's code, with a causal mask: the scores and ")
    assert attend.place.endswith("in attend.")  # attention without a mask has the same weights


def test_what_an_earlier_file_raises_is_said_with_its_line(folder):
    take(folder, [STAGES[3]])
    write(folder, ("q @ k.mT / math", "q.mT @ k.mT / math"))
    write(folder, stage=STAGES[4])
    block = by_part(examine_stage(STAGES[4], folder))["Block"]
    assert block.lies_in == 2 and "Check that stage first" in block.told
    assert "\nWith your attention.py: it raised RuntimeError" in block.told
    assert block.told.endswith("in attention.py, line 12: scores = q.mT @ k.mT / math.sqrt(q.shape[-1])")


def test_stubs_are_missing_and_no_file_is_said(folder):
    report = examine_stage(ATTENTION, folder)
    assert {one.result for one in report.found} == {"missing"} and report.points == 0
    (folder / "attention.py").unlink()
    with pytest.raises(ValueError, match="expected your file of stage 2, found none"):
        examine_stage(ATTENTION, folder)


def test_files_that_cannot_be_examined_get_a_sentence(folder):
    for text, said in (
        ("def attend(q, k, v:\n", "attention.py, line 1: it is not valid Python"),
        ("from torch.nn.functional import scaled_dot_product_attention as f\n", "it uses scaled_dot_product_attention"),
    ):
        assert said in unreadable(ATTENTION, {"attention": text}, parts(2))
    (folder / "attention.py").write_text("import companion\n", "utf-8")
    assert "it uses companion" in str(examine_stage(ATTENTION, folder))
    (folder / "attention.py").write_text("\ufeffimport companion\n", "utf-8")  # some editors save files in this way
    assert "it uses companion" in str(examine_stage(ATTENTION, folder))
    (folder / "attention.py").write_text("import torch\n", "utf-16")
    with pytest.raises(
        ValueError, match=r"attention.py: expected text in UTF-8, .*\(it is in UTF-16; save it as UTF-8"
    ):
        read_sources(folder)
    (folder / "attention.py").write_bytes(b"# " + b"x" * 2**21)
    with pytest.raises(ValueError, match="expected a Python file of at most 1 MiB"):
        read_sources(folder)


def test_code_that_ends_or_does_not_end_costs_its_own_part_alone(folder, monkeypatch):
    alone = parts(2)[:4]  # the other parts call these
    monkeypatch.setattr("companion_school.build.check.parts", lambda number: alone)
    monkeypatch.setattr(alone[-1], "seconds", 2.0)
    write(
        folder,
        (
            "    return torch.ones(queries, keys",
            "    import os\n    print('hello')\n    os.kill(os.getpid(), 9)\n    return torch.ones(queries, keys",
        ),
        ("    return x.transpose(1, 2).flatten(2)", "    while True:\n        pass"),
    )
    found = by_part(examine_stage(ATTENTION, folder))
    assert found["causal"].result == "crashed" and "exit" in found["causal"].told
    assert found["merge"].result == "timeout" and "did not finish within 2 seconds" in found["merge"].told
    assert found["attend"].result == found["split"].result == "right"


def test_to_show_the_stages_writes_nothing_and_to_start_writes_the_stubs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["build"]) == 0 and "Next:  companion build start" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert main(["build", "start"]) == 0 and "companion build check 1" in capsys.readouterr().out
    assert len(list((tmp_path / "my" / "transformer").glob("*.py"))) == len(STAGES)


def test_the_command_line_shows_takes_checks_and_refuses(folder, capsys):
    assert main(["build"]) == 0 and "About 21 hours left" in capsys.readouterr().out
    assert main(["build", "compare", "2"]) == 2 and "this file has not passed its check" in capsys.readouterr().err
    assert main(["build", "take", "2"]) == 0 and main(["build", "check", "2"]) == 0
    assert main(["build", "compare", "attention"]) == 0
    said = capsys.readouterr().out
    assert "# attend, yours (" in said and said.count("def attend(") == 2 and "# causal, the course's (" in said
    assert main(["build", "check", "2"]) == 0
    assert "attention.py: right." in capsys.readouterr().out
    assert main(["build", "show", "--folder", str(folder)]) == 0 and "taken, right, on" in capsys.readouterr().out
    for wrong, said in (
        (["check"], "expected one or several stages"),
        (["check", "99"], "stage '99': expected one of 1 tokenizer"),
        (["chek"], "did you mean check?"),
    ):
        assert main(["build", *wrong]) == 2 and said in capsys.readouterr().err
