"""Translation of number names from the command line: train, translate, evaluate, and every input that is rejected."""

import io
import json
import os
import re
import signal
from pathlib import Path

import pytest
from edited_runs import edit_record

from companion.commands.main import main
from companion.data import number_words
from companion.data.number_names import language
from companion.files.models import load_model
from companion.training.exact_match import wilson
from companion.training.run_folder import MACHINE_FIELDS, RunFolder

TRAIN = ["train", "--task", "number-words"]
TINY = ["--d-model", "16", "--layers", "1", "--heads", "2", "--batch", "3", "--steps", "5", "--dropout", "0.2"]


def measured_on(patch: pytest.MonkeyPatch, numbers: int, briefly: int) -> None:
    patch.setattr("companion.training.tasks.number_words.MEASURED", numbers)
    patch.setattr("companion.training.tasks.number_words.MEASURED_BRIEFLY", briefly)


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> Path:
    """Make a folder with a run that has learned most of German to English, in seconds, and a newer run on text."""
    home = tmp_path_factory.mktemp("learned")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        measured_on(patch, 400, 40)
        assert main([*TRAIN, "--steps", "160", "--batch", "48"]) == 0
    RunFolder(home / "runs" / "text").create({"settings": {"task": "text"}}, {})
    os.utime(home / "runs" / "text" / "run.json", (2e9, 2e9))  # this one is the newest
    return home


@pytest.fixture
def at_home(learned: Path, monkeypatch) -> Path:
    monkeypatch.chdir(learned)
    measured_on(monkeypatch, 400, 40)
    return learned


@pytest.fixture
def empty(tmp_path: Path, monkeypatch) -> Path:
    """Make an empty folder, in which runs are evaluated on few numbers."""
    monkeypatch.chdir(tmp_path)
    measured_on(monkeypatch, 40, 8)
    return tmp_path


def files() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def refused(arguments: list[str], capsys) -> str:
    """Run a command that must fail with a usage error, and return its message."""
    before = files()
    code = main(arguments)
    said = capsys.readouterr()
    assert code == 2 and said.out == "" and "Traceback" not in said.err
    assert files() == before, "something was written"
    return said.err


def weights(run: str) -> bytes:
    folder = RunFolder(run).checkpoint()
    return (folder / "model.safetensors").read_bytes() + (folder / "optimizer.safetensors").read_bytes()


# train


def test_training_learns_to_translate_and_keeps_what_it_did(at_home: Path) -> None:
    run = at_home / "runs" / "number-words-de-en"
    assert {path.name for path in run.iterdir()} >= {"run.json", "log.jsonl", "result.json", "loss.png"}
    record, result = json.loads((run / "run.json").read_text()), json.loads((run / "result.json").read_text())
    assert record["settings"]["task"] == "number-words" and record["text"]["title"] == "number names, German to English"
    assert 230_000 < record["parameters"] < 240_000
    assert result["exact_match"] > 0.8 and result["low"] < result["exact_match"] < result["high"]
    assert sum(total for _, total in result["by_digits"].values()) == 400
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [entry["update"] for entry in log if "loss" in entry] == list(range(1, 161))
    shares = [entry["exact_match"] for entry in log if "exact_match" in entry]
    assert len(shares) == 10 and shares[0] < 0.1 and shares[-1] > 0.8


def test_what_is_trained_is_said_and_a_finished_run_says_so(empty: Path, capsys) -> None:
    arguments = [*TRAIN, "--from", "fr", "--to", "de", "--source-pieces", "characters", *TINY]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    for part in (
        "French  'v' 'i' 'n' 'g' 't' ' ' 'e' 't'",
        "German  ein und zwanzig tausend drei hundert vier",
        "5 updates of 3 pairs of names",
        "exact match on held-out numbers",
        "run       runs/number-words-fr-de-characters-parts",
        "companion translate --run runs/number-words-fr-de-characters-parts 'vingt et un mille trois cent quatre'",
    ):
        assert part in first, part
    before = files()
    assert main(arguments) == 0
    again = capsys.readouterr().out
    assert "this run is finished" in again and files() == before
    assert next(line for line in first.splitlines() if line.startswith("  all")) in again


def test_a_run_that_was_stopped_ends_with_the_same_weights_bit_for_bit(empty: Path, capsys, monkeypatch) -> None:
    from companion.training.trainer import Trainer

    update = Trainer.update

    def interrupted(self):
        if self.done == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return update(self)

    arguments = [*TRAIN, *TINY, "--accumulate", "2", "--label-smoothing", "0.1", "--experts", "3"]
    monkeypatch.setattr(Trainer, "update", interrupted)
    assert main([*arguments, "--out", "runs/stopped"]) == 130
    assert "Stopped and saved at update 3 of 5. To resume:" in capsys.readouterr().out
    monkeypatch.setattr(Trainer, "update", update)
    assert main([*arguments, "--out", "runs/stopped"]) == 0
    assert "resuming after update 3" in capsys.readouterr().out
    assert main([*arguments, "--out", "runs/whole"]) == 0
    assert weights("runs/stopped") == weights("runs/whole")
    logs = [
        [{k: v for k, v in entry.items() if k not in MACHINE_FIELDS} for entry in RunFolder(run).entries()]
        for run in ("runs/stopped", "runs/whole")
    ]
    assert logs[0] == logs[1] and logs[0]


def test_other_settings_and_another_task_are_refused_on_the_same_folder(empty: Path, capsys) -> None:
    assert main([*TRAIN, *TINY, "--out", "runs/one"]) == 0
    capsys.readouterr()
    assert "--from: de in the run, fr now" in refused([*TRAIN, *TINY, "--from", "fr", "--out", "runs/one"], capsys)
    assert "--task: number-words in the run, text now" in refused(["train", "--out", "runs/one"], capsys)
    record = json.loads(Path("runs/one/run.json").read_text())
    edit_record(Path("runs/one"), text={**record["text"], "fingerprint": "another", "num2words": "0.4.2"})
    assert "has changed since" in refused([*TRAIN, *TINY, "--out", "runs/one"], capsys)
    for command in (["translate", "zwei"], ["evaluate"]):
        assert "with num2words 0.4.2, and the names of numbers have changed since then" in refused(command, capsys)


def test_settings_from_a_file_name_their_task(empty: Path) -> None:
    Path("words.yaml").write_text("task: number-words\nfrom: en\nto: fr\nsteps: 2\nd_model: 8\nout: runs/file\n")
    assert main(["train", "--config", "words.yaml", "--layers", "1"]) == 0
    config = load_model("runs/file/checkpoints/step-00000002").config
    assert (config.stack, config.d_model, config.layers, config.embedding.scaled) == ("encoder_decoder", 8, 1, True)


@pytest.mark.parametrize("text", ["task: [number-words]", "task: poetry", "- 3", "{", "task: number-words\nvocab: 300"])
def test_a_file_that_is_no_settings_of_a_task_is_refused(text: str, empty: Path, capsys) -> None:
    Path("words.yaml").write_text(text)
    assert "error" in refused(["train", "--config", "words.yaml"], capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "xx"], "language 'xx': expected one of de (German), en (English), fr (French)"),
        (["--from", "en"], "from 'en' to 'en': expected two different languages"),
        (["--context", "9"], "--context 9: expected at least 15, the number of tokens in the longest name"),
        (["--source-pieces", "syllables"], "source-pieces"),
        (["--data", "words.txt"], "--data"),
        (["--steps", "0"], "--steps 0: expected a whole number >= 1"),
        (["--label-smoothing", "1"], "--label-smoothing 1: expected a number >= 0 and < 1"),
        (["--heads", "5"], "heads=5: expected a divisor of d_model=64"),
        (["--schedule", "square"], "schedule"),
        (["--device", "abacus"], "--device abacus: expected cpu, cuda"),
        (["--out", "thesis", *TINY], "--out thesis: expected a new or empty folder"),
    ],
)
def test_bad_input_to_train_is_refused_by_name_and_nothing_is_written(arguments, message, empty: Path, capsys) -> None:
    Path("thesis").mkdir()
    Path("thesis/thesis.txt").write_text("precious")
    before = files()
    code = main([*TRAIN, *arguments])
    assert code == 2 and files() == before and message in capsys.readouterr().err


def test_a_task_that_does_not_exist_and_a_model_of_another_stack_are_refused(at_home: Path, capsys) -> None:
    assert "number-words" in refused(["train", "--task", "poetry"], capsys)
    config = RunFolder("runs/number-words-de-en").checkpoint() / "config.json"
    error = refused(["train", "--model", str(config), "--out", "runs/new"], capsys)
    assert "expected stack='decoder', got 'encoder_decoder'" in error


# translate


def test_the_issues_sentence_is_translated_and_both_numbers_are_named(at_home: Path, capsys) -> None:
    assert main(["translate", "einundzwanzigtausenddreihundertvier"]) == 0
    said = capsys.readouterr()
    german, english, verdict = said.out.splitlines()
    assert german == "German   einundzwanzigtausenddreihundertvier  =  21,304"
    assert english == "English  twenty-one thousand, three hundred and four  =  21,304"
    assert verdict.strip() == "the same number"
    assert said.err.strip() == f"run: {Path('runs/number-words-de-en')}"  # not the newer one on text


def test_names_from_standard_input_by_beam_search_with_their_mistakes_counted(
    at_home: Path, capsys, monkeypatch
) -> None:
    german = language("de")
    numbers = number_words.held_out(12, seed=1, digits=[5, 6])
    names = [german.name(number) for number in numbers]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n\n".join(names) + "\n"))
    assert main(["translate", "--beams", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("German")] == names
    right = sum("the same number" in line for line in lines)
    assert lines[-1] == f"{right} of 12 agree" and right >= 8
    assert sum(line.strip().startswith("wrong: ") for line in lines) == 12 - right


@pytest.mark.parametrize(("draft", "least"), [("ngram", 0), ("runs/number-words-de-en", 90)])
def test_a_draft_changes_no_translation_and_its_share_is_said(draft: str, least: int, at_home: Path, capsys) -> None:
    german = language("de")
    names = [german.name(number) for number in number_words.held_out(5, seed=2, digits=[3, 5])]
    assert main(["translate", *names]) == 0
    expected = capsys.readouterr().out
    assert main(["translate", *names, "--draft", draft]) == 0
    said = capsys.readouterr()
    assert said.out == expected
    share = re.search(r"draft: (\d+) of (\d+) proposed tokens? accepted \((\d+)%\), (\d\.\d) tokens per pass", said.err)
    assert share is not None and int(share[1]) <= int(share[2]) and int(share[3]) >= least


def test_a_draft_of_other_pieces_is_refused(at_home: Path, tmp_path: Path, capsys) -> None:
    assert main([*TRAIN, "--from", "fr", *TINY, "--steps", "1", "--out", str(tmp_path / "french")]) == 0
    capsys.readouterr()
    error = refused(
        ["translate", "zwei", "--run", "runs/number-words-de-en", "--draft", str(tmp_path / "french")], capsys
    )
    assert "expected a run with the tokenizer of German to English, got that of French to English" in error


def test_a_wrong_answer_is_called_wrong_and_the_right_one_is_given(at_home: Path, capsys, monkeypatch) -> None:
    answers = ["twenty-two", "two hundred and", "two"]
    monkeypatch.setattr("companion.training.tasks.number_words.translate", lambda *arguments, **settings: answers)
    assert main(["translate", "zwölf", "zweihundert", "zwei"]) == 0
    said = capsys.readouterr().out
    assert "English  twenty-two  =  22\n         wrong: twelve\n" in said
    assert "English  two hundred and  =  no number\n         wrong: two hundred\n" in said
    assert said.endswith("English  two  =  2\n         the same number\n\n1 of 3 agree\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["zwei", "zwanzigeinund"], "'zwanzigeinund' is not a German number name: no name"),
        (["Guten Tag"], "'guten tag' does not occur in the name of any number below a million"),
        (["twenty-one"], "is not a German number name"),
        (["21304"], "its name is 'einundzwanzigtausenddreihundertvier'"),
        ([""], "'' is not a German number name: it is empty"),
        (["zwei", "--beams", "0"], "--beams 0: expected a whole number >= 1"),
        (["zwei", "--beams", "2", "--draft", "ngram"], "--draft cannot be used together with --beams 2"),
        (["zwei", "--draft", "nowhere"], "--draft nowhere: expected ngram, or the folder of a number-words run"),
        (["zwei", "--draft", "runs/text"], "expected a run of the task number-words, got text"),
        (["zwei", "--run", "runs/text"], "expected a run of the task number-words, got text; try `companion generate`"),
        (["zwei", "--run", "nowhere"], "but it has no run.json; train a model first"),
        ([], "expected number names to translate, one per line, got none"),
    ],
)
def test_bad_input_to_translate_is_refused_by_name(arguments, message, at_home: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert message in refused(["translate", *arguments], capsys)


def test_without_a_run_or_a_name_translate_says_what_to_do(empty: Path, capsys, monkeypatch) -> None:
    error = refused(["translate", "zwei"], capsys)
    assert "found none; create one with `companion train --task number-words`" in error
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    assert "expected number names to translate, got none" in refused(["translate"], capsys)


# evaluate, generate and account


def test_evaluation_prints_exact_match_by_length_with_its_interval(at_home: Path, capsys) -> None:
    run = "runs/number-words-de-en"
    result = json.loads(Path(run, "result.json").read_text())
    assert main(["evaluate", "--run", run]) == 0
    said = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in said if line.startswith("  ")}
    for digits, (right, total) in result["by_digits"].items():
        low, high = wilson(right, total)
        assert f"{right:,}" in rows[digits] and f"{low:.2%} to {high:.2%}" in rows[digits]
    assert f"{result['exact_match']:.2%}" in rows["all"] and f"{result['low']:.2%} to" in rows["all"]
    assert main(["evaluate", "--run", run, "--numbers", "30", "--beams", "2"]) == 0
    assert "30 that were not in the training data" in capsys.readouterr().out
    assert main(["evaluate", "--run", run, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["task"] == "number-words" and told["by_digits"] == result["by_digits"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "--run", "runs/number-words-de-en", "--data", "notes.txt"], "--data: only for runs on text"),
        (["evaluate", "--run", "runs/number-words-de-en", "--numbers", "0"], "--numbers 0: expected a whole number"),
        (["evaluate", "--run", "runs/number-words-de-en", "--beams", "0"], "--beams 0: expected a whole number"),
        (["evaluate", "--run", "runs/text", "--numbers", "5"], "--numbers: only for runs of number-words"),
        (
            ["generate", "--run", "runs/number-words-de-en", "--prompt", "a"],
            "got number-words; try `companion translate`",
        ),
    ],
)
def test_flags_of_the_other_task_are_refused(arguments, message, at_home: Path, capsys) -> None:
    (at_home / "notes.txt").write_text("Dear reader,\n")
    assert message in refused(arguments, capsys)


def test_an_account_of_the_run_has_its_parameters(at_home: Path, capsys) -> None:
    run = "runs/number-words-de-en"
    assert main(["account", "--run", run]) == 0
    assert f"{json.loads(Path(run, 'run.json').read_text())['parameters']:,}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [TRAIN, ["translate"]])
def test_help_teaches_by_example(arguments: list[str], capsys) -> None:
    code = main([*arguments, "--help"])
    said = capsys.readouterr().out
    assert code == 0 and f"examples:\n  companion {arguments[0]}" in said
    if arguments == TRAIN:
        assert "--from" in said and "--held-out" not in said and "default: 64" in said
