"""The sizing page and `companion sizing` are complete and agree with each other, and bad flags are named."""

import json
from pathlib import Path

import pytest

from companion.commands.main import main
from companion.costs.sizing import device_bytes, fewest_devices, train_cost
from companion.costs.tables import Question, data
from companion.families.registry import preset, systems

PAGE = Path(__file__).parents[2] / "notebooks" / "sizing.md"


def test_the_page_shows_every_preset_in_every_table_and_says_where_it_misleads():
    text = PAGE.read_text(encoding="utf-8")
    for name in systems():
        assert text.count(f"| {name} |") >= 4
    assert "## Where this page misleads" in text
    for line in text.splitlines():
        assert "nan" not in line.split() and "inf" not in line.split()


def test_json_gives_the_figures_of_the_library(capsys):
    flags = ["--chip", "a100-80gb", "--devices", "64", "--share", "0.45", "--tokens", "1e12", "--batch", "2"]
    assert main(["sizing", "llama-7b", "mixtral-8x7b", *flags, "--json"]) == 0
    llama, mixtral = json.loads(capsys.readouterr().out)
    config = preset("llama-7b")
    cost = train_cost(config, 1e12)
    assert llama["parameters"] == llama["active_parameters"] == 6_738_415_616
    assert llama["train_state_bytes"] == 16 * 6_738_415_616 == device_bytes(config, "data", 1).state
    assert llama["flops"] == cost.flops and llama["flops_6nd"] == 6 * 6_738_415_616 * 1e12
    assert llama["days"] == pytest.approx(cost.flops / 64 / 0.45 / 312e12 / 86_400)
    assert list(llama["fewest_devices"]) == ["a100-80gb"]
    found = llama["fewest_devices"]["a100-80gb"]["shard"]
    assert found == {
        "kept": fewest_devices(config, "shard", 80e9, rows=2),
        "recomputed": fewest_devices(config, "shard", 80e9, rows=2, activation_checkpointing=True),
    }
    assert set(mixtral["fewest_devices"]["a100-80gb"]) == {"data", "shard", "experts", "experts+shard"}
    assert mixtral["active_parameters"] < mixtral["parameters"] / 3


def test_the_tables_name_what_was_asked_for(capsys):
    assert main(["sizing", "gpt2", "mixtral-8x7b", "--chip", "h200", "--devices", "16", "--share", "0.3"]) == 0
    text = capsys.readouterr().out
    for expected in ("124 M", "of NVIDIA H200", "141 GB", "30% of the peak", "on 16 h200", "experts over 8", "12.9 B"):
        assert expected in text
    assert "llama" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_model_of_ones_own(tmp_path, capsys):
    (tmp_path / "mine.json").write_text(preset("gpt2").with_(layers=2).to_json(), encoding="utf-8")
    assert main(["sizing", "--config", str(tmp_path / "mine.json")]) == 0
    text = capsys.readouterr().out
    assert "mine" in text and "gpt2" not in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["gpt-2-xl"], "name='gpt-2-xl': expected one of transformer-base"),
        (["--devices", "0"], "--devices 0: expected a whole number >= 1"),
        (["--batch", "0"], "--batch 0: expected a whole number >= 1"),
        (["--context", "0"], "--context 0: expected a whole number >= 1"),
        (["--context", "4096", "gpt2"], "--context 4096: expected at most 1024, the number of learned positions"),
        (["--share", "1.2"], "--share 1.2: expected a fraction above 0 and at most 1"),
        (["--usable", "0"], "--usable 0: expected a fraction above 0 and at most 1"),
        (["--tokens", "-3"], "--tokens -3: expected a number > 0"),
        (["--chip", "h1000"], "--chip h1000: expected one of a100-40gb"),
        (["--config", "missing.json"], "--config missing.json: cannot be read"),
    ],
)
def test_bad_flags_are_named_and_nothing_is_written(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = main(["sizing", *flags])
    assert code == 2
    said = capsys.readouterr()
    assert message in said.err and said.out == "" and not list(tmp_path.iterdir())


def test_figures_are_of_the_question():
    few, many = (data({"gpt2": preset("gpt2")}, Question(batch=batch))[0] for batch in (1, 4))
    assert many["activation_bytes"] == 4 * few["activation_bytes"] and many["flops"] == few["flops"]
    assert many["train_state_bytes"] == few["train_state_bytes"]


def test_a_model_that_this_machine_could_not_hold_is_sized_and_both_counts_are_shown(capsys):
    assert main(["sizing", "gpt-oss-120b", "llama-7b"]) == 0
    said = capsys.readouterr().out
    (row,) = [line.split("  ") for line in said.splitlines() if line.startswith("  llama-7b") and "(" in line]
    cells = [cell.strip() for cell in row if cell.strip()][1:]
    assert cells == ["- (8)", "45 (4)", "12 (3)", "3 (2)", "2 (1)"]
    plain = [int(cell.split()[0]) for cell in cells[1:]]
    assert plain == sorted(plain, reverse=True), "more memory, fewer devices"
