"""`companion train` reports each problem, and afterwards the same command resumes the run."""

import errno
import hashlib
import json
import os
import shutil
import signal
import sys
import types
from pathlib import Path

import pytest
import torch
from edited_runs import edit_state
from small_tokenizers import byte_level, with_spaces_marked

from companion.commands.main import command_parser, main
from companion.data.tokenizer import BytePairTokenizer
from companion.training.run_folder import RunFolder
from companion.training.settings import TextSettings

TRAIN = [
    "train", "--data", "books", "--out", "runs/one", "--d-model", "16", "--layers", "1", "--heads", "2", "--context",
    "24", "--vocab", "280", "--batch", "3", "--dropout", "0.2", "--steps", "6", "--save-seconds", "0",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Make a folder with texts and two runs: `one`, stopped after four of six updates, and `whole`, not stopped."""
    from companion.training.trainer import Trainer

    home = tmp_path_factory.mktemp("made")
    (home / "books").mkdir()
    for name in ("Ada", "Blaise", "Carl", "Emmy", "Grace"):
        lines = (f"{name} walked {i} miles to the {place}." for i in range(9) for place in ("sea", "hill", "town"))
        (home / "books" / f"{name}.txt").write_text("\n".join(lines) + "\n", "utf-8")
    update = Trainer.update

    def stopped(self):
        if self.done == 3 and "one" in self.stops:
            os.kill(os.getpid(), signal.SIGINT)
        return update(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert main([*TRAIN, "--out", "runs/whole"]) == 0
        Trainer.stops = "one"
        patch.setattr(Trainer, "update", stopped)
        assert main(TRAIN) == 130
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path, monkeypatch) -> Path:
    """Make a copy of the folder, for tests that damage it."""
    shutil.copytree(made, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def state(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights(run: str) -> bytes:
    return Path(f"runs/{run}/checkpoints/step-00000006/model.safetensors").read_bytes()


def test_a_stopped_run_has_its_picture_and_goes_on_to_the_same_weights(home: Path, capsys) -> None:
    assert Path("runs/one/loss.png").read_bytes()[:4] == b"\x89PNG"
    assert main(TRAIN) == 0
    assert "resuming after update 4" in capsys.readouterr().out
    assert weights("one") == weights("whole")
    assert json.loads(Path("runs/one/result.json").read_text()) == json.loads(
        Path("runs/whole/result.json").read_text()
    )
    assert not list(Path("runs/one").rglob(".*"))


def test_muon_a_schedule_that_stays_and_a_wider_model_go_on_to_the_same_weights(
    home: Path, capsys, monkeypatch
) -> None:
    from companion.training.trainer import Trainer

    flags = [*TRAIN, "--optimizer", "muon", "--schedule", "wsd", "--decay-share", "0.5", "--width-base", "8"]
    assert main([*flags, "--out", "runs/two"]) == 0
    update = Trainer.update

    def stopped(self):
        if self.done == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return update(self)

    monkeypatch.setattr(Trainer, "update", stopped)
    assert main([*flags, "--out", "runs/three"]) == 130
    monkeypatch.setattr(Trainer, "update", update)
    capsys.readouterr()
    assert main([*flags, "--out", "runs/three"]) == 0
    assert "resuming after update 4" in capsys.readouterr().out
    assert weights("two") == weights("three") != weights("whole")
    rates = [
        json.loads(line)["learning_rate"]
        for line in Path("runs/two/log.jsonl").read_text().splitlines()
        if "learning_rate" in line
    ]
    assert rates[1] == rates[2] == max(rates) and rates[3] > rates[4] > rates[5]
    config = json.loads(Path("runs/two/checkpoints/step-00000006/config.json").read_text())
    assert config["embedding"]["logit_divisor"] == config["d_model"] / 8
    assert main([*TRAIN, "--out", "runs/two"]) == 2
    error = capsys.readouterr().err
    assert "--optimizer: muon in the run, adamw now" in error and "--width-base: 8 in the run, not given now" in error
    assert main([*TRAIN, "--out", "runs/four", "--decay-share", "0.5"]) == 2
    assert "--decay-share 0.5 needs the schedule wsd" in capsys.readouterr().err


def change(path: Path) -> None:
    path.write_text("Something else.\n" + path.read_text("utf-8"), "utf-8")


def encode(path: Path) -> None:
    path.write_bytes(path.read_text("utf-8").encode("utf-16"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace(path: Path) -> None:
    path.write_text(BytePairTokenizer.train(["another text altogether"], vocab=258).to_json(), "utf-8")


def forget(path: Path) -> None:
    record = json.loads(path.read_text())
    del record["updates"]
    path.write_text(json.dumps(record))


LEFT_OUT = "\n  as it is now: left out, not UTF-8 text: 1 file (Ada.txt)\n"
GOES_ON = "runs/one has not changed; once that is fixed, the same command resumes it"


@pytest.mark.parametrize(
    ("path", "spoil", "messages"),
    [
        ("books/Ada.txt", change, ["runs/one holds a run on different data: books has changed since", GOES_ON]),
        ("books/Ada.txt", Path.unlink, ["books has changed since", GOES_ON]),
        ("books", shutil.rmtree, ["'books' does not exist", GOES_ON]),
        ("books/Ada.txt", encode, ["books has changed since", LEFT_OUT, GOES_ON]),
        ("runs/one/tokenizer.json", cut, ["tokenizer.json", "restore it from a backup", GOES_ON]),
        ("runs/one/tokenizer.json", Path.unlink, ["tokenizer.json", "restore it from a backup"]),
        ("runs/one/tokenizer.json", replace, ["this is not the tokenizer that the run started with"]),
        ("runs/one/run.json", cut, ["run.json: cannot be read", "restore it from a backup"]),
        ("runs/one/run.json", forget, ["run.json: the file was changed after this run wrote it"]),
        ("runs/one/checkpoints/step-00000004/state.json", cut, ["no checkpoint is complete", "or delete this folder"]),
    ],
)
def test_what_is_damaged_is_named_nothing_is_touched_and_with_it_back_the_command_goes_on(
    path, spoil, messages, home: Path, capsys
) -> None:
    shutil.rmtree("runs/one/checkpoints/step-00000003")  # an earlier checkpoint would do
    kept = shutil.copytree(home, home.with_name("kept"))
    spoil(Path(path))
    before = state(home)
    assert main(TRAIN) == 2
    error = capsys.readouterr().err
    assert all(message in error for message in messages), error
    assert state(home) == before
    shutil.rmtree(home)
    shutil.copytree(kept, home)
    os.chdir(home)
    assert main(TRAIN) == 0 and weights("one") == weights("whole")


def test_the_checkpoint_before_a_damaged_one_does(home: Path, capsys) -> None:
    cut(Path("runs/one/checkpoints/step-00000004/optimizer.safetensors"))
    assert main(TRAIN) == 0
    said = capsys.readouterr().out
    assert "step-00000004/optimizer.safetensors: expected a complete safetensors file" in said
    assert "resuming from the previous one, runs/one/checkpoints/step-00000003" in said
    assert "resuming after update 3" in said and weights("one") == weights("whole")


def test_a_damaged_result_is_measured_again(home: Path, capsys) -> None:
    before = Path("runs/whole/result.json").read_bytes()
    cut(Path("runs/whole/result.json"))
    whole = [*TRAIN, "--out", "runs/whole"]
    assert main(whole) == 2 and "remove it, and the command that trained the run" in capsys.readouterr().err
    Path("runs/whole/result.json").unlink()
    assert main(whole) == 0 and Path("runs/whole/result.json").read_bytes() == before


@pytest.mark.parametrize(
    ("what", "message", "standing"),
    [
        ("model.safetensors", "step-00000005 could not be written", "after update 4, is complete"),
        ("run.json", "runs/new/run.json could not be written", "No checkpoint had been written yet."),
        ("loss.png", "runs/one/loss.png could not be written", "after update 6, is complete"),
    ],
)
def test_a_full_disk_is_said_with_the_command_that_goes_on(what, message, standing, home: Path, capsys) -> None:
    arguments = [*TRAIN[:4], "runs/new" if what == "run.json" else "runs/one", *TRAIN[5:]]
    from companion.files import models
    from companion.ground import atomic

    real = atomic.replacing

    def full(*paths):
        for path in paths:
            if path.name == what:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(*paths)

    with pytest.MonkeyPatch.context() as patch:
        for module in (atomic, models):
            patch.setattr(module, "replacing", full)
        assert main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error and ": no space left on device; it takes" in error and " are free." in error
    assert standing in error and "Free some space, and the same command resumes:" in error
    assert error.rstrip().endswith("  companion " + " ".join(arguments))
    assert not list(Path("runs").rglob(".*")) and (what != "run.json" or not Path("runs/new").exists())
    assert main(arguments) == 0


def test_a_run_that_diverges_says_what_to_change(home: Path, capsys) -> None:
    arguments = [*TRAIN, "--out", "runs/wild", "--learning-rate", "1e30", "--clip", "1e30", "--warmup", "0"]
    for _ in range(2):  # twice, to the same point
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert "is nan at update 2" in error or "is inf at update 2" in error
        assert "The last checkpoint, after update 1, is complete" in error
        assert "The same command would fail in the same way" in error
        assert "Lower --learning-rate or raise --warmup, and choose another --out" in error
    assert Path("runs/wild/loss.png").exists()


def test_two_processes_do_not_train_into_one_folder(home: Path, capsys) -> None:
    before = state(home)
    with RunFolder("runs/one").lock():
        assert main(TRAIN) == 2
        error = capsys.readouterr().err
        assert f"runs/one: another process ({os.getpid()} on " in error and "choose another --out" in error
        assert main(["generate", "--run", "runs/one", "--prompt", "The ", "--tokens", "3"]) == 0  # reading is allowed
    assert state(home) == before
    with RunFolder("runs/new").lock():
        assert main([*TRAIN, "--out", "runs/new"]) == 2
        assert "another process" in capsys.readouterr().err
    assert main(TRAIN) == 0


# logging


class Writer:
    """Stand-in for TensorBoard's writer, which need not be installed here."""

    made: list["Writer"] = []  # noqa: RUF012

    def __init__(self, log_dir: str, purge_step: int | None = None) -> None:
        self.log_dir, self.purge_step, self.scalars, self.closed = Path(log_dir), purge_step, [], False
        self.log_dir.mkdir(exist_ok=True)
        (self.log_dir / "events.out").touch()
        self.made.append(self)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        assert not self.closed and isinstance(value, int | float)
        self.scalars.append((tag, step))

    def close(self) -> None:
        self.closed = True


def test_tensorboard_gets_the_log_and_forgets_what_is_made_again(home: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    before = state(home)
    assert main([*TRAIN, "--tensorboard"]) == 2
    error = capsys.readouterr().err
    assert "--tensorboard: expected TensorBoard, which is not installed" in error and "pip install" in error
    assert state(home) == before
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=Writer))
    Writer.made.clear()
    kept = Path(shutil.copytree("runs/one", "runs/kept"))
    assert main([*TRAIN, "--tensorboard"]) == 0
    (writer,) = Writer.made
    assert writer.log_dir == Path("runs/one/tensorboard") and writer.purge_step is None and writer.closed
    scalars = writer.scalars
    assert [step for tag, step in scalars if tag == "train/loss"] == [1, 2, 3, 4, 5, 6]  # the log's earlier entries too
    assert {"train/learning_rate", "train/tokens_per_second", "held_out/bits_per_byte"} <= {tag for tag, _ in scalars}
    shutil.copytree("runs/one/tensorboard", kept / "tensorboard")
    assert main([*TRAIN, "--out", str(kept), "--tensorboard"]) == 0
    assert Writer.made[1].purge_step == 5
    assert [step for tag, step in Writer.made[1].scalars if tag == "train/loss"] == [5, 6]


def test_the_best_checkpoint_can_be_put_to_use(home: Path, capsys) -> None:
    run = RunFolder("runs/whole")
    best = home / "runs/whole/checkpoints/step-00000002"
    kept = json.loads((run.checkpoint() / "state.json").read_text())
    assert kept["best"] == {
        "update": 6,
        "error": min(e["bits_per_byte"] for e in run.entries() if "bits_per_byte" in e),
    }
    shutil.copytree(run.checkpoint(), best)
    model = best / "model.safetensors"
    model.write_bytes(Path("runs/one/checkpoints/step-00000003/model.safetensors").read_bytes())
    weights = hashlib.sha256(model.read_bytes()).hexdigest()
    edit_state(best, done=2, sha256={**kept["sha256"], "model.safetensors": weights})
    edit_state(run.checkpoint(), best={"update": 2, "error": 1.0})
    said = {}
    for flags in ((), ("--best",)):
        assert main(["evaluate", "--run", "runs/whole", *flags]) == 0
        said[flags] = next(line for line in capsys.readouterr().out.splitlines() if "this model" in line)
        assert main(["generate", "--run", "runs/whole", "--prompt", "The ", "--tokens", "9", *flags]) == 0
    assert said[()] != said[("--best",)]
    assert torch.equal(
        run.model(best=True).embedding.weight, RunFolder("runs/one").checkpoints.model(best).embedding.weight
    )
    shutil.rmtree(best)
    assert main(["evaluate", "--run", "runs/whole", "--best"]) == 2
    assert "step-00000002: the best checkpoint is missing" in capsys.readouterr().err
    assert main(["generate", "--checkpoint", "books", "--best", "--prompt", "The "]) == 2
    assert "--best cannot be used together with --checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--keep", "0"], "--keep 0: expected a whole number >= 1"),
        (["--save-seconds", "-1"], "--save-seconds -1: expected a number >= 0"),
    ],
)
def test_bad_flags_are_refused(flags, message, home: Path, capsys) -> None:
    before = state(home)
    assert main([*TRAIN, *flags]) == 2
    assert message in capsys.readouterr().err and state(home) == before


def test_what_is_kept_and_how_often_may_change_from_sitting_to_sitting(home: Path) -> None:
    assert main([*TRAIN[:-1], "1000", "--keep", "1"]) == 0
    assert weights("one") == weights("whole") and len(RunFolder("runs/one").checkpoints.all()) <= 2


def test_more_steps_make_a_finished_or_a_stopped_run_longer(home, capsys):
    folder = RunFolder("runs/whole")
    first = folder.entries().__next__()
    assert main([*TRAIN, "--out", "runs/whole", "--steps", "9"]) == 0
    said = capsys.readouterr().out
    assert "runs/whole: from 6 updates to 9" in said and "resuming after update 6" in said
    assert folder.finished and folder.checkpoint().name == "step-00000009" and next(folder.entries()) == first
    rates = {entry["update"]: entry["learning_rate"] for entry in folder.entries() if "learning_rate" in entry}
    assert list(rates) == [*range(1, 10)] and rates[9] == min(rates[u] for u in (7, 8, 9)) < rates[7]
    assert main([*TRAIN, "--out", "runs/one", "--steps", "7"]) == 0  # it was at update 4 of 6
    assert "resuming after update 4" in capsys.readouterr().out
    assert main(["evaluate", "--run", "runs/whole"]) == 0


def test_a_run_is_made_longer_by_more_steps_only_and_only_when_all_else_fits(home, capsys):
    before = state(Path("runs/whole"))
    for changed in (["--steps", "5"], ["--steps", "9", "--batch", "2"], ["--minutes", "3"]):
        flags = TRAIN[: -4 if changed[0] == "--minutes" else None]
        assert main([*flags, "--out", "runs/whole", *changed]) == 2
        assert "holds a run with other settings" in capsys.readouterr().err
    Path("books/Ada.txt").write_text("Something else, as long as a line is.\n" * 9, "utf-8")
    assert main([*TRAIN, "--out", "runs/whole", "--steps", "9"]) == 2
    assert "holds a run on different data" in capsys.readouterr().err
    assert state(Path("runs/whole")) == before


def test_only_the_folder_that_is_chosen_must_be_writable(home, monkeypatch, capsys):
    """The usual folder holds a run with other settings and is protected, as an archive may be."""
    flags = [*TRAIN[:3], *TRAIN[5:], "--baselines", "false", "--steps", "1"]  # without --out
    settings = vars(command_parser(wanted=["train"]).parse_args(flags).train)
    usual = TextSettings.of_flags(settings).folder()
    shutil.copytree("runs/whole", usual)
    locked, access = {usual.absolute()}, os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path not in locked and access(path, mode))
    assert main(flags) == 0
    chosen = usual.with_name(f"{usual.name}-2")
    assert RunFolder(chosen).finished
    locked.add(chosen.absolute())
    assert main(flags) == 2
    assert f"--out {chosen}: expected a writable folder, but {chosen.absolute()} is not writable" in (
        capsys.readouterr().err
    )


def test_a_new_run_begins_with_the_weights_and_the_tokenizer_of_another(home, capsys):
    begin = ["train", "--data", "books", "--baselines", "false", "--steps", "1", "--learning-rate", "1e-30"]
    assert main([*begin, "--init-from", "runs/whole", "--out", "runs/next"]) == 0
    old, new = RunFolder("runs/whole"), RunFolder("runs/next")
    assert new.tokenizer().to_json() == old.tokenizer().to_json()
    weights = old.model().state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in new.model().state_dict().items())
    capsys.readouterr()
    assert main([*begin, "--init-from", "runs/whole", "--layers", "2"]) == 2
    assert "--init-from runs/whole cannot be used together with --layers" in capsys.readouterr().err
    assert main([*begin, "--init-from", "books"]) == 2
    assert "books/config.json: expected the model's configuration, found no such file" in capsys.readouterr().err
    assert main([*begin, "--init-from", "runs/none"]) == 2
    assert "--init-from runs/none: expected the folder of a run or of a published model" in capsys.readouterr().err


def test_a_new_run_begins_with_a_published_model(home, capsys):
    from transformers import GPT2Config, GPT2LMHeadModel

    size = byte_level(Path())
    torch.manual_seed(3)
    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=size, n_embd=16, n_layer=2, n_head=2, n_positions=40))
    theirs.save_pretrained("gpt2")
    shutil.move("tokenizer.json", "gpt2/tokenizer.json")
    begin = ["train", "--data", "books", "--baselines", "false", "--steps", "1", "--learning-rate", "1e-30"]
    assert main([*begin, "--init-from", "gpt2", "--out", "runs/next"]) == 0
    run, ids = RunFolder("runs/next"), torch.tensor([[5, 300, 17, 2]])
    with torch.no_grad():
        torch.testing.assert_close(run.model().eval()(ids).logits, theirs.eval()(ids).logits, atol=1e-5, rtol=1e-5)
    tokenizer = run.tokenizer()
    assert tokenizer.separator == 0 and tokenizer.decode(tokenizer.encode("The shells, 東")) == "The shells, 東"
    with_spaces_marked(Path("gpt2"))
    assert main([*begin, "--init-from", "gpt2", "--out", "runs/more"]) == 2
    said = capsys.readouterr().err
    assert "--init-from" in said and "expected a byte-level tokenizer" in said and not Path("runs/more").exists()
