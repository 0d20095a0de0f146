"""`companion tune` and `companion chat`: from a trained model to one that answers, including resumed runs."""

import io
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

from companion.commands import chat
from companion.commands.main import main
from companion.families.adapters import load_adapters, merged_model
from companion.files.models import load_tensors
from companion.ground.display import printable
from companion.training.run_folder import MACHINE_FIELDS, RunFolder

TRAIN = [
    "train", "--data", "books", "--out", "runs/books", "--d-model", "16", "--layers", "1", "--heads", "2", "--context",
    "96", "--vocab", "280", "--batch", "2", "--steps", "2", "--baselines", "false",
]  # fmt: skip
TALKS = [
    {"messages": [{"role": "user", "content": f"Who walked to the {place}?"}, {"role": "assistant", "content": name}]}
    for place, name in zip(
        ("sea", "hill", "town", "mill", "wood"), ("Ada", "Carl", "Emmy", "Grace", "Blaise"), strict=True
    )
]
PAIRS = [
    {"prompt": one["messages"][0]["content"], "chosen": one["messages"][1]["content"], "rejected": "Nobody"}
    for one in TALKS
]
SMALL = ["--batch", "2", "--steps", "4", "--save-seconds", "0", "--tokens", "12"]
METHODS = {
    "sft": ["--data", "talks.jsonl"],
    "lora": ["--data", "talks.jsonl", "--rank", "2"],
    "dpo": ["--method", "dpo", "--data", "pairs.jsonl", "--rank", "2", "--targets", "attention"],
    "grpo": ["--method", "grpo", "--task", "sums", "--group", "3", "--epochs", "2"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Make a folder with a run on text, and one of each method, killed after two of four updates and then resumed."""
    home = tmp_path_factory.mktemp("made")
    (home / "books").mkdir()
    for name in ("Ada", "Carl", "Emmy"):
        lines = (f"{name} walked {i} miles to the {place}." for i in range(9) for place in ("sea", "hill", "town"))
        (home / "books" / f"{name}.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (home / "talks.jsonl").write_text("\n".join(map(json.dumps, TALKS)), "utf-8")
    (home / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setattr("companion.training.tasks.tune.MEASURED", 20)
        patch.setattr(os, "fsync", lambda descriptor: None)
        assert main(TRAIN) == 0
        for name in METHODS:
            assert main(tune(name, f"runs/{name}")) == 0
    return home


@pytest.fixture
def home(made, tmp_path, monkeypatch) -> Path:
    """Make a copy of the folder, for tests that damage it."""
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "home"))
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr("companion.training.tasks.tune.MEASURED", 20)
    return Path.cwd()


def tune(method: str, out: str, *more: str) -> list[str]:
    return ["tune", "--start", "runs/books", "--out", out, *METHODS[method], *SMALL, *more]


def kept(run: str) -> tuple[dict, dict, list]:
    folder = RunFolder(run)
    saved = folder.checkpoints.load(folder.checkpoint())
    log = [{k: v for k, v in entry.items() if k not in MACHINE_FIELDS} for entry in folder.entries()]
    return saved.weights, saved.optimizer, log


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_killed_ends_as_one_that_was_not(method, home, monkeypatch):
    """The run is killed in the middle of an update, after its first step, and nothing of that update is saved."""
    from companion.training.trainer import Trainer

    update, calls = Trainer.update, []

    def killed(self):
        calls.append(self.done)
        if self.done == 2 and calls.count(2) == (2 if method == "grpo" else 1):
            raise MemoryError
        return update(self)

    again = tune(method, f"runs/{method}-again")
    for wrong in (killed, update):
        monkeypatch.setattr(Trainer, "update", wrong)
        assert main(again) == (2 if wrong is killed else 0)
    (weights, state, log), (others, other_state, other_log) = kept(f"runs/{method}"), kept(f"runs/{method}-again")
    assert (
        all(torch.equal(tensor, others[name]) for name, tensor in weights.items()) and weights.keys() == others.keys()
    )
    assert all(torch.equal(tensor, other_state[name]) for name, tensor in state.items())
    results = [RunFolder(f"runs/{name}").result() for name in (method, f"{method}-again")]
    assert log == other_log and [{**one, "digest": ""} for one in results] == [{**results[0], "digest": ""}] * 2


def test_each_method_logs_what_it_is_about(made):
    said = {name: set(next(RunFolder(made / "runs" / name).entries())) for name in METHODS}
    assert {"reward", "silent_groups", "length", "divergence", "clipped"} <= said["grpo"]
    assert {"margin", "preferred", "reward_chosen", "reward_rejected"} <= said["dpo"] and "reward" not in said["sft"]
    first = next(RunFolder(made / "runs/dpo").entries())
    assert first["margin"] == 0 and abs(first["loss"] - 0.6931) < 1e-3, "the start itself prefers neither"
    scores = {name: set(RunFolder(made / "runs" / name).result()) for name in METHODS}
    assert "held_out_loss" in scores["sft"] and "preferred" in scores["dpo"] and "right_share" in scores["grpo"]
    assert (made / "runs/grpo/loss.png").is_file()


def test_of_adapters_they_alone_are_saved_and_the_start_stays(made):
    folder = RunFolder(made / "runs/lora")
    assert sorted(path.name for path in folder.checkpoint().iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "state.json",
    ]  # fmt: skip
    start, tuned = RunFolder(made / "runs/books").model(), folder.model()
    tokens = torch.randint(1, 250, (2, 9))
    load_adapters(folder.checkpoint(), start)
    with torch.no_grad():
        assert torch.equal(start(tokens).logits, tuned(tokens).logits)
        torch.testing.assert_close(merged_model(tuned)(tokens).logits, tuned(tokens).logits, rtol=1e-4, atol=1e-5)
    assert {"down", "up"} <= {name.rpartition(".")[2] for name in tuned.state_dict()}
    assert all(".lora_" in name for name in load_tensors(folder.checkpoint() / "adapter_model.safetensors"))


def test_a_tuned_run_is_exported_with_its_template_and_answers_there(home, monkeypatch, capsys):
    import transformers

    assert main(["export", "served", "--run", "runs/lora"]) == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained("served").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained("served")
    asked = tokenizer.apply_chat_template(TALKS[0]["messages"][:1], add_generation_prompt=True, return_tensors="pt")
    ids = asked["input_ids"] if not isinstance(asked, torch.Tensor) else asked
    with torch.no_grad():
        ours = merged_model(RunFolder("runs/lora").model())
        torch.testing.assert_close(theirs(ids).logits, ours(ids).logits, rtol=1e-3, atol=1e-4)
    capsys.readouterr()
    told = []
    for flags in (["--run", "runs/lora"], ["--checkpoint", "served"]):
        assert main(["generate", "--chat", *flags, "--prompt", "Who?", "--tokens", "5", "--temperature", "0"]) == 0
        monkeypatch.setattr(sys, "stdin", io.StringIO("Who?\n"))
        assert main(["chat", *flags, "--tokens", "5", "--temperature", "0"]) == 0
        told += capsys.readouterr().out.splitlines()
    assert len({line.strip() for line in told}) == 1 and len(told) == 4
    assert main(["tune", "--start", "served", "--out", "runs/third", *METHODS["lora"], *SMALL]) == 0


@pytest.mark.parametrize(
    ("run", "sentence"),
    [("dpo", "% preferred"), ("grpo", "of 20 held-out problems are answered right"), ("sft", "nats")],
)
def test_a_tuned_run_is_measured_again(run, sentence, home, capsys):
    said = json.loads((home / "runs" / run / "result.json").read_text())
    assert main(["evaluate", "--run", f"runs/{run}"]) == 0
    out = capsys.readouterr().out
    assert sentence in out and ("held_out_loss" not in said or f"{said['held_out_loss']:.3f} nats" in out)
    assert main(["evaluate", "--run", f"runs/{run}", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["task"] == "tune" and all(told[name] == pytest.approx(said[name]) for name in set(said) & set(told))
    assert {"held_out_loss", "preferred", "right_share"} & set(told)
    assert main(["evaluate", "--run", f"runs/{run}", "--data", "books"]) == 2


def test_a_tuned_run_may_be_the_start_of_another(home):
    assert main([*tune("grpo", "runs/next"), "--start", "runs/lora", "--rank", "1"]) == 0
    assert RunFolder("runs/next").model().config.layers == 1
    (home / "runs/lora/checkpoints").rename(home / "gone")
    with pytest.raises(ValueError, match="this run has no checkpoint yet"):
        RunFolder("runs/next").model()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "--data: expected either --data or --task, got neither"),
        (["--data", "talks.jsonl", "--task", "sums"], "--data: expected either --data or --task, got both"),
        (["--method", "grpo", "--data", "talks.jsonl"], "--method grpo needs --task"),
        (["--task", "sums", "--group", "4"], "--group 4 needs --method grpo"),
        (["--task", "sums", "--beta", "0.1"], "--beta 0.1 needs --method dpo or grpo"),
        (["--task", "names", "--worked", "0.5"], "--worked 0.5 needs --task sums, without another --method"),
        (["--task", "sums", "--worked", "1.1"], "--worked 1.1: expected a number from 0 to 1"),
        (["--task", "sums", "--alpha", "3"], "--alpha 3.0 needs --rank"),
        (["--method", "dpo", "--data", "pairs.jsonl", "--beta", "0"], "--beta 0: expected a number > 0"),
        (["--method", "dpo", "--data", "talks.jsonl"], 'line 1: expected "prompt", "chosen" and "rejected"'),
        (["--data", "pairs.jsonl"], 'line 1: expected "messages"'),
        (["--data", "long.jsonl"], "long.jsonl: line 1: expected at most 97 tokens"),
        (["--data", "nowhere.jsonl"], "--data nowhere.jsonl: cannot be read"),
        (["--task", "sums", "--start", "nowhere"], "--start nowhere: expected the folder of a run"),
        (["--task", "sums", "--start", "books"], "expected the model's configuration"),
        (["--task", "sum"], "--task sum: expected one of sums, names; did you mean sums?"),
        (["--task", "sums", "--rank", "0"], "--rank 0: expected a whole number >= 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_one_sentence_and_nothing_is_written(flags, sentence, home, capsys):
    long = {"messages": [TALKS[0]["messages"][0], {"role": "assistant", "content": "walked " * 500}]}
    Path("long.jsonl").write_text(json.dumps(long))
    assert main(["tune", "--start", "runs/books", "--out", "runs/new", *flags]) == 2
    assert sentence in capsys.readouterr().err and not Path("runs/new").exists()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_so_many_answers_show_their_steps_as_were_asked_for(share, made):
    from companion.training.settings import TuneSettings
    from companion.training.tasks.tune import open_tune

    settings = TuneSettings(problems="sums", start=str(made / "runs/books"), worked=share, batch=100)
    task = open_tune(settings)
    _, targets = task.batches(0)
    answers = [task.dialect.answer(ids[ids >= 0].tolist()) for ids in targets]
    assert abs(sum(";" in answer for answer in answers) / 100 - share) < (0.15 if 0 < share < 1 else 1e-9)


def test_another_start_or_file_is_noticed(home, capsys):
    assert main([*tune("sft", "runs/sft"), "--start", "runs/lora"]) == 2
    assert "runs/lora: the run in runs/sft started from " in capsys.readouterr().err
    Path("talks.jsonl").write_text(json.dumps(TALKS[0]))
    (home / "runs/sft/result.json").unlink()
    assert main(tune("sft", "runs/sft")) == 2
    assert "talks.jsonl has changed since" in capsys.readouterr().err


# chat


def talked(lines: str, monkeypatch, *flags: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    return main(["chat", "--run", "runs/sft", "--tokens", "6", *flags])


def talked_of(lines: str, monkeypatch, capsys, *flags: str) -> str:
    talked(lines, monkeypatch, *flags)
    return capsys.readouterr().err


def test_a_conversation_is_kept_taken_back_told_something_and_saved(home, monkeypatch, capsys):
    lines = "Who?\n/undo\n/system Be brief.\nWho walked?\n\nAnd who else?\n/save said.jsonl\n"
    lines += "/reset\n/save said.jsonl\n/what\n/bye\nno\n"
    assert talked(lines, monkeypatch) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 3 and "/what: expected one of /reset" in said.err
    assert "There is no conversation yet." in said.err and "The last question is removed." in said.err
    (line,) = Path("said.jsonl").read_text().splitlines()
    messages = json.loads(line)["messages"]
    assert [one["role"] for one in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[1]["content"] == "Who walked?" and messages[0]["content"] == "Be brief."
    assert printable(messages[2]["content"]) == said.out.splitlines()[1]


def test_the_same_seed_answers_the_same_and_a_full_context_is_one_sentence(home, monkeypatch, capsys):
    found = []
    for seed in ("1", "1", "2"):
        talked("Who?\n", monkeypatch, "--seed", seed)
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] != found[2]
    greedy = ("--temperature", "0")
    assert "cut off after 6 tokens" in talked_of("Who?\n", monkeypatch, capsys, *greedy)
    assert "did not end within the context of 96 tokens; /reset" in talked_of(
        "Who?\n", monkeypatch, capsys, *greedy, "--tokens", "900"
    )
    assert talked("Who walked? " * 30 + "\nWho?\n", monkeypatch) == 0
    said = capsys.readouterr()
    assert "tokens, which leave no room for an answer in the model's context of 96; /reset clears the" in said.err
    assert len(said.out.splitlines()) == 1, "and it goes on"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--run", "runs/books"], "expected a run of the task tune, got text; try `companion generate`"),
        (["--checkpoint", "served"], "expected a model whose folder has a chat template, found none"),
        (["--checkpoint", "served", "--run", "runs/sft"], "--checkpoint cannot be used together with --run"),
        (["--download"], "--download: expected a --checkpoint to fetch, got none"),
        (["--temperature", "-1"], "--temperature -1"),
    ],
)
def test_what_does_not_answer_is_refused(flags, sentence, home, capsys):
    assert main(["export", "served", "--run", "runs/books"]) == 0
    assert main(["chat", *flags]) == 2
    assert sentence in capsys.readouterr().err


def test_ctrl_c_stops_an_answer_and_not_the_program(home, monkeypatch, capsys):
    ask = chat.Talk.ask

    def slow(self, question):
        for n, piece in enumerate(ask(self, question)):
            if n == 1 and question == "Who?":
                os.kill(os.getpid(), signal.SIGINT)
            yield piece

    monkeypatch.setattr(chat.Talk, "ask", slow)
    assert talked("Who?\nWho walked?\n", monkeypatch, "--tokens", "9") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("(stopped)") and "(stopped)" not in second
