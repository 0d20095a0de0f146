"""The commands: their output, the input that they reject, and runs that resume exactly after they were killed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from companion.commands import many_prompts, writer
from companion.commands.main import main
from companion.config.model import AttentionConfig, FeedForwardConfig, ModelConfig
from companion.data.tokenizer import BytePairTokenizer
from companion.files.models import load_model
from companion.training.run_folder import MACHINE_FIELDS, RunFolder

SMALL = [
    "--d-model", "16", "--layers", "1", "--heads", "2", "--context", "24", "--vocab", "280", "--batch", "3",
    "--accumulate", "2", "--dropout", "0.2", "--steps", "12",
]  # fmt: skip


def story(name: str) -> str:
    places = ("sea", "hill", "old mill", "town")
    lines = [f"{name} walked {i} miles to the {place}." for i in range(9) for place in places]
    return f"The walk of {name}\n\n" + "\n".join(lines) + "\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch) -> None:
    """Give every test an empty working directory.

    Runs are created there, and `refused` reads everything in it, which in a checkout with its environment would be
    gigabytes.
    """
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """Make a folder of small texts; the working directory is its parent."""
    folder = tmp_path / "books"
    folder.mkdir()
    for name in ("Ada", "Blaise", "Carl", "Emmy", "Grace", "Kurt", "Sofya", "Évariste"):
        (folder / f"{name}.txt").write_text(story(name), "utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Make the folder with one finished run in it."""
    home = tmp_path_factory.mktemp("trained")
    (home / "books").mkdir()
    for name in ("Ada", "Blaise", "Carl", "Emmy", "Grace"):
        (home / "books" / f"{name}.txt").write_text(story(name), "utf-8")
    assert main(["train", "--data", str(home / "books"), "--out", str(home / "runs" / "books"), *SMALL]) == 0
    return home


@pytest.fixture
def at_home(trained: Path, monkeypatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(arguments: list[str], capsys) -> str:
    """Run a command that must fail with a usage error, and return its message."""
    before = contents(Path())
    code = main(arguments)
    assert code == 2
    assert contents(Path()) == before, "something was written"
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


# train


def test_training_says_what_it_does_and_how_it_compares(books: Path, capsys) -> None:
    assert main(["train", "--data", "books", *SMALL]) == 0
    said = capsys.readouterr().out
    for part in (
        "books: 8 documents",
        "12 updates of 144 tokens",
        "xz -9, primed with the training text",
        "byte 5-gram model",
        "this model",
        "the best",
        "update 12",
        'companion generate --run runs/books --prompt "The "',
    ):
        assert part in said, part
    run = books.parent / "runs" / "books"
    made = {path.name for path in run.iterdir()}
    assert made >= {"run.json", "tokenizer.json", "log.jsonl", "result.json", "loss.png"}
    record, result = json.loads((run / "run.json").read_text()), json.loads((run / "result.json").read_text())
    assert record["updates"] == 12 and len(record["baselines"]) == 5
    assert 0 < result["bits_per_byte"] < 8 and result["bytes"] == record["text"]["held_out_bytes"]
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert len(losses) == 12 and losses[-1] < losses[0]


def test_a_finished_run_says_so_and_other_settings_are_refused(books: Path, capsys) -> None:
    assert main(["train", "--data", "books", *SMALL]) == 0
    first = capsys.readouterr().out
    weights = contents(Path("runs"))
    assert main(["train", "--data", "books", *SMALL]) == 0
    again = capsys.readouterr().out
    assert "this run is finished" in again and contents(Path("runs")) == weights
    assert next(line for line in first.splitlines() if "this model" in line) in again
    again = ["train", "--data", "books", *SMALL, "--out", "runs/books"]
    error = refused([*again, "--layers", "2", "--seed", "5"], capsys)
    assert "runs/books holds a run with other settings" in error
    assert "--layers: 1 in the run, 2 now" in error and "--seed: 0 in the run, 5 now" in error
    assert f"--out {Path('runs/books-2')}" in error
    (books / "Ada.txt").write_text(story("Ada Lovelace"), "utf-8")
    assert "has changed since" in refused(["train", "--data", "books", *SMALL], capsys)


def test_the_default_text_is_the_course_and_another_text_is_not_taken_for_it(tmp_path, monkeypatch, capsys) -> None:
    """Python's help topics are empty, as in all tests (conftest.py)."""
    monkeypatch.chdir(tmp_path)
    small = ["--d-model", "16", "--layers", "1", "--heads", "2", "--context", "64", "--vocab", "1024", "--steps", "2"]
    assert main(["train", *small]) == 0
    said = capsys.readouterr().out
    assert "the prose of this course, first edition: 288 documents, 552,204 bytes" in said
    record = json.loads((tmp_path / "runs" / "course" / "run.json").read_text())
    assert record["data"] == ["course"] and record["settings"]["data"] == ["course"]
    assert main(["train", "--data", "course", *small]) == 0 and "this run is finished" in capsys.readouterr().out
    assert main(["evaluate"]) == 0
    assert "held out of the prose of this course, first edition: 28 documents" in capsys.readouterr().out
    python = ["train", "--data", "python", *small]
    assert "this Python has no help topics" in refused(python, capsys)

    def install(version: str, lines: int) -> None:
        topics = {
            f"topic {i}": f"Topic {i}\n*******\n\n" + f"Line {i} of it is long enough. " * lines for i in range(30)
        }
        monkeypatch.setitem(sys.modules, "pydoc_data.topics", types.SimpleNamespace(topics=topics))
        monkeypatch.setattr("platform.python_version", lambda: version)

    install("3.11.7", 40)
    assert main(python) == 0
    install("3.12.1", 41)
    error = refused(python, capsys)
    assert "the language reference of Python 3.12.1 is not the language reference of Python 3.11.7, which" in error
    assert main(["evaluate"]) == 2
    assert "the text of this run has changed since it was trained" in capsys.readouterr().err


def test_other_settings_begin_another_run_beside_the_first_and_both_can_be_gone_on_with(books: Path, capsys) -> None:
    for flags, run in (([], "books"), (["--layers", "2"], "books-2"), ([], "books"), (["--layers", "2"], "books-2")):
        assert main(["train", "--data", "books", *SMALL, "--steps", "2", *flags]) == 0
        said = capsys.readouterr()
        assert str(Path("runs", run)) in said.out
        if flags:
            first = Path("runs", "books")
            assert f"{first} holds a run with other settings (--layers: 1 in the run, 2 now)" in said.err
    assert sorted(folder.name for folder in Path("runs").iterdir()) == ["books", "books-2"]


def test_kill_9_and_run_again_gives_the_weights_of_an_uninterrupted_run(books: Path, capsys) -> None:
    arguments = ["train", "--data", "books", *SMALL, "--steps", "30"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    root = Path(__file__).parents[2]
    environment["PYTHONPATH"] = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    # Windows does not have it; there, another signal ends a process as abruptly
    kill = getattr(signal, "SIGKILL", signal.SIGTERM)
    script = (
        "import os, sys\nfrom companion.training.trainer import Trainer\nupdate = Trainer.update\n"
        f"def killed(self):\n    self.done == 8 and os.kill(os.getpid(), {int(kill)})\n    return update(self)\n"
        "Trainer.update = killed\nfrom companion.commands.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, *arguments, "--out", "runs/killed"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == (-kill if os.name == "posix" else kill), done.stderr
    kept = {int(path.name.removeprefix("step-")) for path in Path("runs/killed/checkpoints").glob("step-*")}
    assert 0 < max(kept) < 8, "it is killed between two checkpoints"
    assert not Path("runs/killed/result.json").exists()
    assert main([*arguments, "--out", "runs/killed"]) == 0
    assert "resuming after update" in capsys.readouterr().out
    assert main([*arguments, "--out", "runs/whole"]) == 0
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, other = (Path(f"runs/{run}/checkpoints/step-00000030/{name}").read_bytes() for run in ("killed", "whole"))
        assert one == other, name
    logs = [
        [{k: v for k, v in entry.items() if k not in MACHINE_FIELDS} for entry in RunFolder(f"runs/{run}").entries()]
        for run in ("killed", "whole")
    ]
    assert logs[0] == logs[1] and len(logs[0]) == 40


def test_ctrl_c_saves_and_says_how_to_go_on(books: Path, capsys, monkeypatch) -> None:
    from companion.training.trainer import Trainer

    update = Trainer.update

    def interrupted(self):
        if self.done == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return update(self)

    monkeypatch.setattr(Trainer, "update", interrupted)
    arguments = ["train", "--data", "books", *SMALL, "--out", "runs/my run"]
    assert main(arguments) == 130
    said = capsys.readouterr().out
    assert (
        f"Stopped and saved at update 5 of 12. To resume:\n  companion {' '.join(arguments[:-1])} 'runs/my run'" in said
    )
    assert f"Loss curve so far: {Path('runs/my run/loss.png')}" in said
    monkeypatch.undo()
    monkeypatch.chdir(books.parent)
    assert main(arguments) == 0


def test_minutes_fix_the_steps_once_and_a_short_text_bounds_them(books: Path, capsys) -> None:
    arguments = ["train", "--data", "books", *SMALL[:-2], "--minutes", "0.01"]
    assert main(arguments) == 0
    record = json.loads(Path("runs/books/run.json").read_text())
    assert record["updates"] >= 1 and record["settings"]["minutes"] == 0.01 and record["settings"]["steps"] is None
    capsys.readouterr()
    assert main(arguments) == 0  # the speed is not measured again, because the finished run is found
    assert "this run is finished" in capsys.readouterr().out


def test_experts_and_every_other_variant_train(books: Path) -> None:
    variants = [
        ["--experts", "3", "--experts-per-token", "2"],
        ["--positions", "learned", "--norm", "layer", "--norm-placement", "post", "--tied", "false"],
        ["--positions", "sinusoidal", "--kv-heads", "1", "--activation", "gelu", "--precision", "bf16"],
    ]
    for i, variant in enumerate(variants):
        assert main(["train", "--data", "books", *SMALL, "--steps", "2", "--out", f"runs/{i}", *variant]) == 0
    config = load_model("runs/1/checkpoints/step-00000002").config
    assert (config.positions.kind, config.norm.placement, config.embedding.tied) == ("learned", "post", False)
    assert load_model("runs/0/checkpoints/step-00000002").config.moe.experts == 3


def test_a_model_and_settings_can_come_from_files(books: Path, capsys) -> None:
    config = ModelConfig(290, 8, 1, 12, AttentionConfig(2), FeedForwardConfig(16))
    Path("model.json").write_text(config.to_json())
    Path("settings.yaml").write_text("data: [books]\nmodel: model.json\nsteps: 2\nbatch: 2\nout: runs/file\n")
    assert main(["train", "--config", "settings.yaml"]) == 0
    made = load_model("runs/file/checkpoints/step-00000002").config
    assert made == config.with_(vocab=made.vocab) and made.vocab <= 290
    assert "cannot be used together with --layers" in refused(
        ["train", "--model", "model.json", "--layers", "5"], capsys
    )
    Path("model.json").write_text(config.with_(stack="encoder").to_json())
    assert "expected stack='decoder'" in refused(["train", "--model", "model.json"], capsys)
    Path("model.json").write_text("{")
    assert "--model model.json: config: expected JSON" in refused(["train", "--model", "model.json"], capsys)
    assert "cannot be read" in refused(["train", "--model", "nowhere.json"], capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere.txt"], "'nowhere.txt' does not exist"),
        (["--data", "*.rst"], "'*.rst' matches no file"),
        (["--data", os.devnull], f"expected a file, folder or glob, but {os.devnull!r} is none of them"),
        (["--data", "books/picture.txt"], "picture.txt: expected a text file in UTF-8"),
        (["--data", "books/empty.txt"], "found no text in books/empty.txt"),
        (["--data", "books/Ada.txt", "--context", "100000"], "context=100000: expected at most"),
        (["--heads", "5"], "heads=5: expected a divisor of d_model=96"),
        (["--d-model", "36", "--heads", "4"], "d_head=9: expected an even width"),
        (["--kv-heads", "3"], "kv_heads=3: expected a divisor of heads=4"),
        (["--experts", "2", "--experts-per-token", "3"], "top_k=3: expected at most experts=2"),
        (["--dropout", "1.5"], "dropout=1.5"),
        (["--vocab", "100"], "--vocab 100: expected at least 257"),
        (["--steps", "0"], "--steps 0: expected a whole number >= 1"),
        (["--steps", "3", "--minutes", "1"], "expected either --steps or --minutes, got both"),
        (["--minutes", "-1"], "--minutes -1: expected a number > 0"),
        (["--batch", "0"], "--batch 0: expected a whole number >= 1"),
        (["--held-out", "1"], "--held-out 1: expected a"),
        (["--learning-rate", "0"], "--learning-rate 0: expected a number > 0"),
        (["--clip", "0"], "--clip 0: expected a number > 0"),
        (["--weight-decay", "-1"], "--weight-decay -1: expected a number >= 0"),
        (["--device", "abacus"], "--device abacus: expected cpu, cuda"),
        (["--device", "cuda:99"], "--device cuda:99: expected a device on this machine"),
        (["--layers", "many"], "--layers many: expected a whole number >= 1"),
        (["--laiers", "3"], "--laiers: no such flag; did you mean --layers?"),
        (["--positions", "gps"], "--positions gps: expected one of rotary, sinusoidal"),
        (["--out", "books", "--data", "books", *SMALL], "--out books: expected a new or empty folder"),
    ],
)
def test_bad_input_to_train_is_refused_by_name_and_nothing_is_written(arguments, message, books: Path, capsys) -> None:
    (books / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (books / "empty.txt").touch()
    assert message in refused(["train", *arguments], capsys)


def test_a_checkpoint_cut_in_half_and_one_of_another_model_are_refused(books: Path, capsys, monkeypatch) -> None:
    assert main(["train", "--data", "books", *SMALL]) == 0
    checkpoint = Path("runs/books/checkpoints/step-00000012")
    weights = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    capsys.readouterr()
    for command in (["generate", "--prompt", "The "], ["evaluate"]):
        assert "expected a complete safetensors file" in refused(command, capsys)
    Path("runs/books/result.json").unlink()  # as if the run had been killed before the end
    shutil.rmtree("runs/books/checkpoints/step-00000011")  # the checkpoint to fall back to
    assert "no checkpoint is complete" in refused(["train", "--data", "books", *SMALL], capsys)
    (checkpoint / "model.safetensors").write_bytes(weights)
    config = ModelConfig.from_json((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(config.with_(layers=2).to_json())
    assert "does not match the weights" in refused(["generate", "--prompt", "The "], capsys)


def test_a_diverging_run_stops_and_says_where_its_last_good_state_is(books: Path, capsys) -> None:
    code = main(["train", "--data", "books", *SMALL, "--learning-rate", "1e30", "--clip", "1e30", "--warmup", "0"])
    error = capsys.readouterr().err
    assert code == 1 and "at update" in error
    assert "The last checkpoint, after update" in error or "No checkpoint had been written yet." in error
    assert "The same command would fail in the same way" in error and "--learning-rate" in error
    assert not Path("runs/books/result.json").exists()


# generate


def test_a_prompt_is_continued_the_same_way_for_the_same_seed(at_home: Path, capsys) -> None:
    said = []
    for seed in ("3", "3", "4"):
        assert main(["generate", "--prompt", "The walk ", "--tokens", "15", "--seed", seed]) == 0
        said.append(capsys.readouterr())
    assert said[0].out.startswith("The walk ") and len(said[0].out) > len("The walk \n")
    assert said[0].out == said[1].out != said[2].out
    assert f"run: {Path('runs/books')}" in said[0].err


def test_a_prompt_cannot_command_the_terminal(at_home: Path, capsys) -> None:
    assert main(["generate", "--prompt", "The\x1b[31m wälk\tof\x07", "--tokens", "1"]) == 0
    assert capsys.readouterr().out.startswith("The\\x1b[31m wälk\tof\\x07")


def test_what_a_model_writes_cannot_command_the_terminal(at_home: Path, capsys, monkeypatch) -> None:
    """Bytes are tokens, so a model may write an escape or \x9b: in a single text, in a list of texts, and in JSON."""
    tokenizer = BytePairTokenizer.load("runs/books/tokenizer.json")
    ids = tokenizer.encode("ä\x1b[2J\x9b1m\rnew")
    monkeypatch.setattr(writer, "_steps", lambda writer, rows, *rest: iter([[i] * len(rows) for i in ids]))
    assert main(["generate", "--prompt", "The", "--tokens", "20"]) == 0
    assert capsys.readouterr().out == "Theä\\x1b[2J\\x9b1m\\x0dnew\n"
    assert main(["generate", "--prompt", "The", "--prompt", "A", "--tokens", "20"]) == 0
    assert capsys.readouterr().out.count("ä\\x1b[2J\\x9b1m\\x0dnew\n") == 2
    monkeypatch.setattr(many_prompts, "_text", lambda *given: tokenizer.decode(ids))
    Path("prompts.txt").write_text("The\n")
    assert main(["generate", "--prompts", "prompts.txt", "--tokens", "2"]) == 0
    out = capsys.readouterr().out
    assert out.strip().isprintable() and json.loads(out)["text"] == "ä\x1b[2J\x9b1m\rnew"


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], []])
@pytest.mark.parametrize("error, code", [(OSError(28, "No space left on device"), 1), (BrokenPipeError(32, "pipe"), 0)])
def test_help_that_does_not_arrive_is_said(arguments, error, code, monkeypatch, capfd) -> None:
    def full(text):
        raise error

    with open(os.devnull, "w") as nowhere:
        monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(write=full, flush=lambda: None, fileno=nowhere.fileno))
        assert main(arguments) == (code or (0 if arguments else 2))
    assert ("standard output: No space left on device" in capfd.readouterr().err) is (code == 1)


def test_a_warm_up_that_is_cut_is_said(books: Path, capsys) -> None:
    assert main(["train", "--data", "books", *SMALL, "--warmup", "100"]) == 0
    assert "The warm-up takes 2 of the 12 updates, a fifth, instead of 100." in capsys.readouterr().out


def test_greedy_text_goes_on_past_the_context_and_unequal_prompts_do_not_disturb_each_other(at_home, capsys) -> None:
    prompts, alone = ["The ", "Ada walked 3 miles"], []
    command = ["generate", "--run", "runs/books", "--tokens", "20", "--temperature", "0"]
    for prompt in prompts:
        assert main([*command, "--prompt", prompt]) == 0
        alone.append(capsys.readouterr().out.rstrip("\n"))
    flags = [flag for prompt in prompts for flag in ("--prompt", prompt)]
    assert main([*command, *flags]) == 0
    assert capsys.readouterr().out.rstrip("\n") == f"[1] {alone[0]}\n\n[2] {alone[1]}"
    assert main(["generate", "--prompt", "The ", "--tokens", "60", "--seed", "1"]) == 0  # the context is 24


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--prompt: expected text to continue, got none"),
        (["--prompt", ""], "got an empty prompt"),
        (["--prompt", "The ", "--prompt", ""], "got an empty prompt"),
        (["--prompt", "The walk of Ada " * 20], "expected at most 24, the model's context"),
        (["--prompt", "a", "--tokens", "0"], "--tokens 0: expected a whole number >= 1"),
        (["--prompt", "a", "--temperature", "-1"], "--temperature -1: expected a number >= 0"),
        (["--prompt", "a", "--top-k", "-1"], "--top-k -1: expected a whole number >= 0"),
        (["--prompt", "a", "--top-p", "2"], "--top-p 2: expected a fraction above 0"),
        (["--prompt", "a", "--seed", "-1"], "--seed -1: expected a whole number >= 0"),
        (["--prompt", "a", "--checkpoint", "runs/books"], "this is a run: use --run runs/books"),
        (["--prompt", "a", "--run", "nowhere"], "but it has no run.json; train a model first"),
    ],
)
def test_bad_input_to_generate_is_refused_by_name(arguments, message, at_home: Path, capsys) -> None:
    assert message in refused(["generate", *arguments], capsys)


def test_without_a_run_every_command_says_to_train_first(capsys) -> None:
    for command in (["generate", "--prompt", "The "], ["evaluate"], ["account"]):
        assert "found none; create one with `companion train`" in refused(command, capsys)


# evaluate and account


def test_evaluation_agrees_with_the_run_and_measures_other_text(at_home: Path, capsys) -> None:
    result = json.loads((at_home / "runs/books/result.json").read_text())
    assert main(["evaluate"]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"this model +{result['bits_per_byte']:.3f}\b", said)
    assert f"Perplexity {result['perplexity']:.1f} per token over {result['tokens']:,} tokens" in said
    assert main(["evaluate", "--json", "--weights", "fp16"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert all(told[name] == pytest.approx(result[name]) for name in ("bits_per_byte", "perplexity", "tokens", "bytes"))
    assert told["run"] == "runs/books" and told["task"] == "text" and told["measured_on"].startswith("held out of ")
    assert set(told["baselines"]) and told["weights_bits_per_byte"] == pytest.approx(told["bits_per_byte"], rel=0.01)
    (at_home / "letter.txt").write_text("Dear reader,\n\n" + story("Ada") + "\n" + story("Blaise"), "utf-8")
    try:
        assert main(["evaluate", "--data", "letter.txt"]) == 0
        said = capsys.readouterr().out
        assert "letter.txt: 1 document" in said and "is also in the training text" in said
        assert "does not exist" in refused(["evaluate", "--data", "nowhere.txt"], capsys)
    finally:
        (at_home / "letter.txt").unlink()


def test_an_account_of_a_run_and_of_a_config(at_home: Path, capsys) -> None:
    record = json.loads((at_home / "runs/books/run.json").read_text())
    assert main(["account"]) == 0
    assert f"{record['parameters']:,}" in capsys.readouterr().out
    path = at_home / "runs/books/checkpoints/step-00000012/config.json"
    assert main(["account", "--config", str(path), "--chip", "h100"]) == 0
    assert f"{record['parameters']:,}" in capsys.readouterr().out
    for both in (["--config", "a", "--run", "b"], ["gpt2", "--run", "b"], ["gpt2", "--config", "a"]):
        assert "expected one model: a published name, --run, --checkpoint or --config; got" in refused(
            ["account", *both], capsys
        )
    assert "--config nowhere.json: cannot be read" in refused(["account", "--config", "nowhere.json"], capsys)


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("llama-2-70b", ("68,976,648,192", "275.9 GB", "NVIDIA H100 80GB HBM3: 3,350 GB/s")),
        ("mixtral-8x7b", ("46,702,792,704", "12,879,925,248")),
        ("gpt2", ("124,439,808", "36.9 kB")),
    ],
)
def test_an_account_of_a_published_system(name: str, figures: tuple[str, ...], capsys) -> None:
    assert main(["account", name, "--chip", "h100"]) == 0
    said = capsys.readouterr().out
    assert all(figure in said for figure in figures)
    assert max(map(len, said.splitlines())) < 80


def test_an_account_for_a_program_has_the_numbers_of_the_tables(capsys) -> None:
    assert main(["account", "mixtral-8x7b", "--chip", "h100", "--json"]) == 0
    [mixtral] = json.loads(capsys.readouterr().out)
    assert mixtral["name"] == "mixtral-8x7b" and mixtral["decoding"]["chips"] == {"fp32": 3, "bf16": 2, "int8": 1}
    assert (mixtral["parameters"]["total"], mixtral["parameters"]["active"]) == (46_702_792_704, 12_879_925_248)
    assert mixtral["bytes"]["weights"]["bf16"] == 2 * mixtral["parameters"]["total"]
    assert main(["account", "gpt2", "bert-base", "transformer-base", "--json"]) == 0
    gpt2, bert, translator = json.loads(capsys.readouterr().out)
    assert set(gpt2) == set(bert) == {"name", "stack", "context", "parameters", "flops", "bytes", "decoding"}
    assert (
        bert["decoding"] is None
        and set(bert["bytes"]) == {"weights", "train"}
        and set(bert["flops"]) == {"train_token"}
    )
    assert gpt2["decoding"]["tokens_a_second"]["empty_context"]["fp32"] > 0 and "serve" in translator["bytes"]


def test_an_account_of_what_does_not_write_and_of_what_is_not_known(capsys) -> None:
    assert main(["account", "bert-base"]) == 0
    said = capsys.readouterr().out
    assert "110,106,428" in said and "tokens a second" not in said
    assert "expected a decoder, got" in refused(["account", "bert-base", "--chip", "h100"], capsys)
    assert "did you mean llama-2-70b?" in refused(["account", "llama2-70b"], capsys)
    assert "did you mean h100?" in refused(["account", "gpt2", "--chip", "h100-sxm"], capsys)


# help


@pytest.mark.parametrize("command", ["train", "generate", "evaluate", "account"])
def test_help_teaches_by_example(command: str, capsys) -> None:
    code = main([command, "--help"])
    said = capsys.readouterr().out
    assert code == 0
    assert f"examples:\n  companion {command}" in said
    if command == "train":
        assert "default: 0.15" in said and "You can stop with Ctrl-C at any time" in " ".join(said.split())


def test_without_a_command_the_help_is_shown(capsys) -> None:
    assert main([]) == 2
    assert "companion train" in capsys.readouterr().out
    code = main(["dance"])
    assert code == 2
