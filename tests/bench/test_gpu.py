"""`make gpu` where there is no GPU: the rehearsal runs all that a GPU would, and what goes wrong in a part stays there.

No figure of it is asserted, except those that are counted.
"""

import json
import re
import runpy
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from models import drawn

from companion import KVCache, ModelConfig
from companion.bench import __main__ as bench_command
from companion.bench import cuda_graphs, gpu, gpu_parts, gpu_requirements, sizes
from companion.bench.compare import OURS, Comparison, Row
from companion.bench.layers import DENSE
from companion.bench.models import AGAIN
from companion.bench.timing import Spread
from companion.config.model import AttentionConfig, FeedForwardConfig
from companion.costs import account
from companion.generation.generate import complete
from companion.generation.sampling import Sampling

ROOT = Path(__file__).parents[2]
OPTIONS = {"rehearsal": True, "chip": [2e11, 1e10]}


def test_the_command_rehearses_and_writes_the_page_that_it_prints(tmp_path, monkeypatch, capsys):
    """As `python -m companion.bench` runs it, but for the start of one process more."""
    parts = ["attention", "processes", "tests"]
    monkeypatch.setattr(sys, "argv", ["companion.bench", "--rehearsal", "--only", *parts, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(bench_command.__file__, run_name="__main__")
    printed = capsys.readouterr().out
    assert ended.value.code == 0, printed
    report = json.loads((tmp_path / "gpu.json").read_text())
    text = (tmp_path / "gpu.txt").read_text()
    assert report["rehearsal"] and "a rehearsal on the CPU" in text and "goal" not in text
    assert [part["name"] for part in report["parts"]] == ["tests", "processes", "attention"]
    assert {part["status"] for part in report["parts"]} == {"done"}
    assert set(text.splitlines()) - {""} <= set(printed.splitlines())
    collected, processes, attention = report["parts"]
    found = re.fullmatch(r"0 of (\d+) tests passed, (\d+) skipped", collected["remarks"][0])
    assert found and int(found[1]) == int(found[2]) >= 53
    losses = [float(said.split(": ")[1]) for said in processes["remarks"] if said.startswith("loss")]
    assert len(losses) == 3 and losses[0] == pytest.approx(losses[2], abs=1e-4)
    assert [c["length"] for c in attention["comparisons"]] == [16, 48, 16, 48]
    assert all({OURS, "tiled"} <= {row["name"] for row in c["rows"]} for c in attention["comparisons"])


def test_every_other_part_is_rehearsed_too(tmp_path, monkeypatch, few_and_short):
    """In this process, to save the start of theirs."""
    monkeypatch.setattr(torch, "compile", torch.compile)  # which the rehearsal replaces, and this puts back
    names = ["train", "decode", "cache", "kept", "batch", "moe", "ceiling"]
    for name in names:
        assert gpu_parts.main(name, str(tmp_path / name), json.dumps(OPTIONS)) == 0
    torch._dynamo.reset()
    parts = {name: gpu.Part(name) for name in names}
    assert all(part.read(tmp_path / name) == "" for name, part in parts.items())
    assert parts["ceiling"].chip and min(parts["ceiling"].chip) > 0
    for name in names[:-1]:
        for one in parts[name].comparisons:
            assert {out.kind for out in one.left_out if out.name.startswith("ours")} <= {"refused"}
            assert one.rows[0].name == OURS and len(one.rows[0].samples) == 1
    ways = [one.title.partition("parameters)")[2] for one in parts["train"].comparisons]
    assert ways == ["", ", compiled", ", compiled, with Muon"]
    assert all([row.name for row in one.rows] == [OURS, "ours, compiled"] for one in parts["decode"].comparisons)
    steps = parts["cache"].comparisons
    assert [one.length for one in steps] == [32, 128] and all(
        [row.name for row in one.rows][1] == AGAIN for one in steps
    )
    for one in steps:  # the share is of the bandwidth that was handed over, 1e10 bytes a second
        moved = account.decode_bytes(sizes.REHEARSED.config, one.length)
        assert one.rows[0].share == pytest.approx(moved / one.rows[0].seconds.median / 1e10)
    assert "32" in gpu.block(parts["cache"], False) and AGAIN in gpu.block(parts["cache"], False)


def test_all_of_it_works_with_nothing_but_torch_numpy_safetensors_jaxtyping_and_pytest():
    """The packages that may be missing are hidden; companion's public names and the GPU's tests are all there."""
    hidden = "lazy_loader tokenizers tqdm jsonargparse num2words yaml beartype hypothesis nbval transformers matplotlib"
    script = f"""
import sys
sys.modules.update(dict.fromkeys({hidden.split()!r}))
sys.path[:0] = [".", "tests"]
import companion, companion.bench.gpu_parts, companion.bench.gpu
for name in companion.__all__:
    getattr(companion, name)
import pytest
from companion.bench.gpu_parts import gpu_tests
options = ["-q", "--collect-only", "-m", "gpu", "-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider"]
sys.exit(pytest.main([*options, *map(str, gpu_tests())]))
"""
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+)(?:/\d+)? tests collected", done.stdout)[1]) >= 53


def test_a_part_that_fails_hangs_or_dies_says_why(monkeypatch):
    failed = gpu.Part("no such part")
    gpu._run(failed, OPTIONS, 60)
    assert (failed.status, failed.why) == ("failed", "KeyError: 'no such part'")
    late = gpu.Part("train")
    gpu._run(late, OPTIONS, 0.05)
    assert late.status == "out of time" and late.seconds < 30
    monkeypatch.setattr(gpu.sys, "executable", "/bin/false")
    dead = gpu.Part("train")
    gpu._run(dead, OPTIONS, 60)
    assert dead.status == "failed" and dead.why == "ended with 1: nothing was said"


def test_the_others_go_on_within_the_time_of_all(monkeypatch, tmp_path):
    limits = {}

    def fake(part, options, limit):
        limits[part.name] = limit
        part.status, part.why = ("failed", "it broke") if part.name == "train" else ("done", "")
        if part.name == "ceiling":
            part.chip = (3e12, 4e9)
        else:
            assert options["chip"] == (3e12, 4e9)

    monkeypatch.setattr(gpu, "_run", fake)
    shown = []
    done = gpu.measure(list(gpu.LIMITS), rehearsal=True, out=tmp_path, minutes=3.2, show=shown.append)
    assert not done and "training (train, 0 s): failed: it broke" in "\n".join(shown)
    assert list(limits) == list(gpu.LIMITS) == list(gpu_parts.PARTS)
    assert limits["ceiling"] == 30 and limits["tests"] == pytest.approx(96 * 2 - gpu.RESERVE * (len(limits) - 2), abs=2)
    assert [part["status"] for part in json.loads((tmp_path / "gpu.json").read_text())["parts"]].count("done") == len(
        limits
    ) - 1


def test_the_limits_leave_every_part_some_of_the_eight_minutes():
    slow = gpu.MINUTES * 60
    for name in gpu.LIMITS:
        left = slow - gpu.RESERVE * (len(gpu.LIMITS) - 1 - list(gpu.LIMITS).index(name))
        assert min(gpu.LIMITS[name], left) > 0
        slow -= min(gpu.LIMITS[name], max(left, 0))
    assert gpu.MINUTES < 8


def compared(title, times, **sizes):
    """A comparison in which each took so many seconds, and used half of what the machine has."""
    made = Comparison("", title, "tiny", 5000, 1.0, 1.0, **sizes)
    for name, (seconds, share) in times.items():
        spread = Spread(seconds, seconds, seconds)
        ratio = seconds / times[OURS][0]
        made.rows.append(Row(name, (seconds,), spread, Spread(ratio, ratio, ratio), 5000 / seconds, share))
    return made


def test_what_was_found_before_the_end_is_kept(tmp_path):
    one = compared("a step", {OURS: (2.0, 0.5)})
    lines = [{"comparison": asdict(one)}, {"remark": "so it is"}, {"remark": "so it is"}, {"chip": [3e12, 4e9]}]
    (tmp_path / "found").write_text("\n".join(map(json.dumps, lines)) + '\n{"remark": "cut o')
    part = gpu.Part("train")
    assert part.read(tmp_path / "found") is None
    assert part.comparisons == [one] and part.remarks == ["so it is"] and part.chip == (3e12, 4e9)


def test_the_goals_by_hand():
    found = {
        "train": compared("a step", {OURS: (1.0, 0.56)}),
        "decode": compared("a text", {OURS: (2.0, 0.3), "ours, CUDA graphs": (1.0, 0.84)}, bound="memory"),
        "cache": compared("a gain", {OURS: (1.0, 0.1), "ours, CUDA graph": (0.2, 0.5), AGAIN: (2.2, 0.5)}, length=8192),
        "moe": compared("experts", {OURS: (1.4, 0.5), DENSE: (1.0, 0.7)}),
    }
    goals = {name: gpu.goals_of(gpu.Part(name, comparisons=[one])) for name, one in found.items()}
    assert {name: met for name, [(_, met)] in goals.items()} == {
        "train": True, "decode": False, "cache": True, "moe": False
    }  # fmt: skip
    page = gpu.block(gpu.Part("decode", "done", seconds=61.2, comparisons=[found["decode"]], remarks=["so"]), True)
    assert page.startswith("decoding (decode, 61 s): done\na text; tiny") and "  . so\n" in page
    assert page.endswith("goal: a text: 85 % of the measured bandwidth, 84%: missed")
    assert "goal" not in gpu.block(gpu.Part("decode", "done", comparisons=[found["decode"]]), False)


def test_recorded_steps_write_the_text_of_plain_ones(monkeypatch):
    """A graph that is replayed runs the same operations on the same memory: here they are run again instead."""
    monkeypatch.setattr(
        cuda_graphs.RecordedDecode, "_record", lambda self, last: SimpleNamespace(replay=lambda: self._once(last))
    )
    config = ModelConfig(29, 12, 2, 40, AttentionConfig(3, 1), FeedForwardConfig(20))
    model = drawn(config).eval()
    expected = complete(model, [[5, 3, 1]], max_new_tokens=30, sampling=Sampling(0.0))[0]
    with torch.inference_mode():
        prompt = torch.tensor([[5, 3, 1]])
        out = model(prompt, cache=KVCache.create(config, 1, 40, bucket=8))
        recorded = cuda_graphs.RecordedDecode(model, out.logits[:, -1].argmax(-1), out.cache)
        for _ in range(2):  # and once more from the beginning
            text = [recorded.tokens.item()] + [recorded.advance().item() for _ in range(29)]
            assert text == expected and len(recorded._graphs) == 4
            again = model(prompt, cache=KVCache.create(config, 1, 40, bucket=8))
            recorded.start(again.logits[:, -1].argmax(-1), again.cache)
    write = cuda_graphs.RecordedWriter(model, cuda_graphs.decode)
    for _ in range(2):  # with the graph that there is
        assert write(prompt, 30) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "sleep"], "--only sleep: expected one or more of ceiling, tests"),
        (["--minutes", "0"], "--minutes 0: expected a number above 0 and at most 60"),
        (["--minutes", "nan"], "--minutes nan: expected a number above 0"),
        (["--out", "file/gpu"], "--out file/gpu: expected a folder that can be written to"),
    ],
)
def test_bad_arguments_exit_2_before_anything_runs(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr(gpu, "measure", lambda *_, **__: pytest.fail("it was begun"))
    assert bench_command.main(arguments) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_nothing_can_do_without_is_named_before_anything_starts(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(gpu_requirements.REQUIRED, "abacus", ())
    monkeypatch.setitem(gpu_requirements.REQUIRED, "torch", (99, 0))
    assert bench_command.main(["--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "expected torch 99.0 or newer, found" in error and "; abacus" in error
    assert not (tmp_path / "out").exists()


def test_the_tests_of_a_gpu_are_found_by_their_mark():
    names = {path.name for path in gpu_parts.gpu_tests()}
    assert {"test_mask_predicates.py", "test_on_a_gpu.py", "test_trainer.py"} <= names
    assert Path(__file__).name not in names


def test_on_a_gpu_the_model_that_is_measured_has_gpt2s_size():
    assert account.parameters(sizes.ON_A_GPU.config).total == pytest.approx(124e6, rel=0.01)
