"""`make gpu` without a GPU: the rehearsal runs everything that a GPU would, and an error in one part stays there."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from models import drawn

from benchmarks import cuda_graphs, gpu
from benchmarks.compare import OURS, Comparison, Row
from benchmarks.sizes import ON_A_GPU
from benchmarks.timing import Spread
from companion import ModelConfig
from companion.config.model import AttentionConfig, FeedForwardConfig
from companion.costs import account
from companion.costs.chips import Chip
from companion.generation.generate import complete
from companion.generation.prefill_decode import decode
from companion.generation.sampling import Sampling

ROOT = Path(__file__).parents[2]
CHIP = Chip(2e11, 1e10)


def test_the_rehearsal_writes_the_page_that_it_prints(tmp_path, capsys):
    parts = ["prefill", "processes", "kernels", "tests"]
    assert gpu.main(["--rehearsal", "--only", *parts, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    record, text = json.loads((tmp_path / "gpu.json").read_text()), (tmp_path / "gpu.txt").read_text()
    assert record["rehearsal"] and "a rehearsal on the CPU" in text and "goal" not in text
    assert set(text.splitlines()) - {""} <= set(printed.splitlines())
    assert [(part["name"], part["status"]) for part in record["parts"]] == [
        *(("prefill", "done"), ("processes", "done"), ("kernels", "done"), ("tests", "done")),
    ]
    _, processes, kernels, collected = (part["found"] for part in record["parts"])
    assert [json.loads(line) for line in (tmp_path / "tests.jsonl").read_text().splitlines()] == collected
    found = re.fullmatch(r"0 of (\d+) tests passed, (\d+) skipped", collected[0]["text"])
    assert found and int(found[1]) == int(found[2]) >= 53
    said = "a layer of a compiled decode step has 13 kernels: 1 attention, 5 fused, 7 products"
    assert kernels[0] == {"text": said}
    losses = [float(one["text"].split(": ")[1]) for one in processes if "loss" in one.get("text", "")]
    assert len(losses) == 3 and losses[0] == pytest.approx(losses[2], abs=1e-4)


def test_every_other_part_is_rehearsed_too(tmp_path, monkeypatch):
    """Run the parts in this process, which saves the time to start others."""
    monkeypatch.setattr(torch, "compile", torch.compile)  # the rehearsal replaces this, and monkeypatch restores it
    found = {}
    for name in ("ceiling", "training", "memory", "decode"):
        assert gpu.run_part(name, str(tmp_path / name), True, CHIP) == 0
        *found[name], end = map(json.loads, (tmp_path / name).read_text().splitlines())
        assert end == {"end": ""}
    torch._dynamo.reset()
    assert min(found["ceiling"][0]["chip"]) > 0 and "ours" in found["memory"][0]["text"]
    titles = [one["comparison"]["title"] for one in found["training"]]
    assert ["compiled" in title for title in titles] == [False, True, True] and "Muon" in titles[2]
    [decoded] = [one["comparison"] for one in found["decode"]]
    assert [row["name"] for row in decoded["rows"]] == [OURS, "ours, compiled"] and decoded["left_out"] == []


def test_all_of_it_works_with_nothing_but_torch_numpy_safetensors_jaxtyping_and_pytest():
    """Without the packages that may be missing, companion's public names and the GPU's tests can be imported."""
    hidden = "lazy_loader tokenizers tqdm jsonargparse num2words yaml beartype hypothesis nbval transformers matplotlib"
    script = f"""
import sys
sys.modules.update(dict.fromkeys({(hidden + " x_transformers gguf").split()!r}))
sys.path[:0] = [".", "tests"]
import companion, benchmarks.gpu
for name in companion.__all__:
    getattr(companion, name)
import pytest
options = ["-q", "--collect-only", "-m", "gpu", "-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider"]
sys.exit(pytest.main([*options, *map(str, benchmarks.gpu.gpu_tests())]))
"""
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+)(?:/\d+)? tests collected", done.stdout)[1]) >= 53


def test_a_part_that_fails_hangs_or_dies_says_why(monkeypatch, tmp_path):
    failed = gpu.run_apart("no such part", True, CHIP, 60, tmp_path)
    assert (failed["status"], failed["why"]) == ("failed", "KeyError: 'no such part'")
    late = gpu.run_apart("training", True, CHIP, 0.05, tmp_path)
    assert late["status"] == "out of time" and late["seconds"] < 30
    monkeypatch.setattr(gpu.sys, "executable", "/bin/false")
    dead = gpu.run_apart("training", True, CHIP, 60, tmp_path)
    assert dead["status"] == "failed" and dead["why"] == "ended with 1: no error message"


def test_the_others_go_on_within_the_time_of_all_and_each_is_written_as_it_comes(monkeypatch, tmp_path):
    limits, written = {}, []

    def fake(name, rehearsal, chip, limit, out):
        limits[name] = limit
        page = tmp_path / "gpu.json"
        written.append(len(json.loads(page.read_text())["parts"]) if page.exists() else 0)
        assert name == "ceiling" or chip == Chip(3e12, 4e9)
        status = ("failed", "it broke") if name == "training" else ("done", "")
        found = [{"chip": [3e12, 4e9]}] if name == "ceiling" else []
        return {"status": status[0], "why": status[1], "seconds": 0.0, "found": found}

    monkeypatch.setattr(gpu, "run_apart", fake)
    shown = []
    done = gpu.measure(list(gpu.PARTS), rehearsal=True, out=tmp_path, minutes=2.5, show=shown.append)
    assert not done and "training (0 s): failed: it broke" in "\n".join(shown)
    assert list(limits) == list(gpu.LIMITS) == list(gpu.PARTS) and written == list(range(len(limits)))
    left = [150 - gpu.RESERVE * (len(limits) - place - 1) for place in range(len(limits))]
    assert list(limits.values()) == pytest.approx(
        [min(3 * gpu.LIMITS[name], s) for name, s in zip(limits, left, strict=True)], abs=2
    )


def test_the_goals_by_hand():
    made = Comparison("decode", "a text", "tiny", 5000, 1.0, "memory")
    for name, share in ((OURS, 0.3), ("ours, CUDA graphs", 0.84), ("theirs", 0.9)):
        one = Spread(1.0, 1.0, 1.0)
        made.rows.append(Row(name, (1.0,), one, one, 5000.0, share))
    assert gpu.goal_of(made) == "\ngoal: 85% of the limit, 84%: missed"
    made.part = "prefill"
    assert gpu.goal_of(made) == ""


def test_recorded_steps_write_the_text_of_plain_ones(monkeypatch):
    """Replaying a graph runs the same operations on the same memory, so the stand-in runs them again."""
    monkeypatch.setattr(
        cuda_graphs.RecordedStep, "_record", lambda self, tokens, cache: SimpleNamespace(replay=self.once)
    )
    config = ModelConfig(29, 12, 2, 80, AttentionConfig(3, 1), FeedForwardConfig(20))
    model = drawn(config).eval()
    write = cuda_graphs.RecordedWriter(model, decode)
    for given, new in (([5, 3, 1], 30), ([7, 2, 9, 4], 20), ([5, 3, 1], 70)):  # the second text uses the first's graph
        expected = complete(model, [given], max_new_tokens=new, sampling=Sampling(0.0))[0]
        assert write(torch.tensor([given]), new) == expected
    assert len(write._recorded) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "sleep"], "invalid choice: 'sleep'"),
        (["--minutes", "0"], "--minutes 0: expected a number above 0 and at most 60"),
        (["--minutes", "nan"], "--minutes nan: expected a number above 0"),
        (["--out", "file/gpu"], "--out file/gpu: expected a writable folder"),
    ],
)
def test_bad_arguments_exit_2_before_anything_runs(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr(gpu, "measure", lambda *_, **__: pytest.fail("it was begun"))
    with pytest.raises(SystemExit) as ended:
        gpu.main(arguments)
    assert ended.value.code == 2 and message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_tests_of_a_gpu_are_found_by_their_mark():
    names = {path.name for path in gpu.gpu_tests()}
    assert {"test_mask_predicates.py", "test_on_a_gpu.py", "test_trainer.py"} <= names
    assert Path(__file__).name not in names


def test_on_a_gpu_the_model_that_is_measured_has_gpt2s_size():
    assert account.parameters(ON_A_GPU.config).total == pytest.approx(124e6, rel=0.01)
