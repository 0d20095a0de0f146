"""`make gpu` where there is no GPU: the rehearsal runs all that a GPU would, and what goes wrong in a part stays there.

No figure of it is asserted, except those that are counted.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from models import drawn

from companion import KVCache, ModelConfig
from companion.bench.gpu import graphs, needs, page, pieces, run, sizes
from companion.bench.gpu.__main__ import main
from companion.bench.gpu.figures import Figure, Record, read
from companion.config.model import AttentionConfig, FeedForwardConfig
from companion.generation.generate import complete
from companion.generation.sampling import Sampling

ROOT = Path(__file__).parents[2]
OPTIONS = {"rehearsal": True, "chip": [2e11, 1e10]}


def told(*command: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)


def test_the_command_rehearses_and_writes_the_page_that_it_prints(tmp_path):
    parts = ["attention", "processes", "tests"]
    done = told("-m", "companion.bench.gpu", "--rehearsal", "--only", *parts, "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "gpu.json").read_text())
    text = (tmp_path / "gpu.txt").read_text()
    assert report["rehearsal"] and "a rehearsal on the CPU" in text
    assert [part["name"] for part in report["parts"]] == ["tests", "processes", "attention"]
    assert {part["status"] for part in report["parts"]} == {"done"}
    assert set(text.splitlines()) - {""} <= set(done.stdout.splitlines())
    found = {part["name"]: {f["name"]: f for f in part["figures"]} for part in report["parts"]}
    [(collected, share)] = found["tests"]["passed"]["shares"].items()
    assert int(collected.split()[0]) >= 53 and share == 0.0
    losses = [found["processes"][f"loss after 3 updates, {how}"]["value"] for how in ("plain", "sharded")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert {"attend, forward", "tiled, with backward"} <= set(found["attention"])


def test_every_other_part_is_rehearsed_too(tmp_path):
    """In one process, to save its start, they compute what they do in their own."""
    script = """
import sys
from companion.bench.gpu.child import main
sys.exit(max(main(part, f"{sys.argv[1]}/{part}", sys.argv[2]) for part in sys.argv[3:]))
"""
    parts = {"training": "tokens/s", "decoding": "tokens/s", "cache": "times", "experts": "times", "ceiling": "B/s"}
    done = told("-c", script, str(tmp_path), json.dumps(OPTIONS), *parts)
    assert done.returncode == 0, done.stderr
    for part, unit in parts.items():
        figures, remarks, error = read(tmp_path / part)
        assert error == "" and any(figure.unit == unit for figure in figures)
        assert all(figure.value > 0 for figure in figures)
        ours = [remark for remark in remarks if not remark.startswith("transformers")]  # theirs may want more
        assert not [remark for remark in ours if "Error" in remark], ours
    names = [figure.name for figure in read(tmp_path / "training")[0]]
    assert [name.split(",")[1] for name in names] == [" eager", " compiled"]
    decoding, remarks, _ = read(tmp_path / "decoding")
    assert [figure.name for figure in decoding] == ["decoding, eager", "decoding, compiled"]
    assert not [remark for remark in remarks if "near ties" in remark], "compiled steps write another text"
    step = 1 / decoding[0].value  # the share is of the bandwidth that was handed over, 1e10 bytes a second
    moved = float(re.search(r"([\d.]+) MB to read", remarks[0])[1]) * 1e6
    assert decoding[0].shares["measured bandwidth"] == pytest.approx(moved / step / 1e10, rel=0.01)


def test_all_of_it_works_with_nothing_but_torch_numpy_safetensors_jaxtyping_and_pytest():
    """The packages that may be missing are hidden; companion's public names and the GPU's tests are all there."""
    hidden = "lazy_loader tokenizers tqdm jsonargparse num2words yaml beartype hypothesis nbval transformers matplotlib"
    script = f"""
import sys
sys.modules.update(dict.fromkeys({hidden.split()!r}))
sys.path[:0] = [".", "tests"]
import companion, companion.bench.gpu.child, companion.bench.gpu.run
for name in companion.__all__:
    getattr(companion, name)
import pytest
from companion.bench.gpu.pieces import gpu_tests
options = ["-q", "--collect-only", "-m", "gpu", "-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider"]
sys.exit(pytest.main([*options, *map(str, gpu_tests())]))
"""
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+)(?:/\d+)? tests collected", done.stdout)[1]) >= 53


def test_a_part_that_fails_hangs_or_dies_says_why(monkeypatch):
    failed = run.Part("no such part")
    run._run(failed, OPTIONS, 60)
    assert (failed.status, failed.why) == ("failed", "KeyError: 'no such part'")
    late = run.Part("training")
    run._run(late, OPTIONS, 0.05)
    assert late.status == "out of time" and late.seconds < 30
    monkeypatch.setattr(run.sys, "executable", "/bin/false")
    dead = run.Part("training")
    run._run(dead, OPTIONS, 60)
    assert dead.status == "failed" and dead.why == "ended with 1: nothing was said"


def test_the_others_go_on_within_the_time_of_all(monkeypatch, tmp_path):
    limits = {}

    def fake(part, options, limit):
        limits[part.name] = limit
        part.status, part.why = ("failed", "it broke") if part.name == "training" else ("done", "")
        if part.name == "ceiling":
            part.figures = [Figure("peak", 3e12, "FLOP/s"), Figure("bandwidth", 4e9, "B/s")]
        else:
            assert options["chip"] == (3e12, 4e9)

    monkeypatch.setattr(run, "_run", fake)
    shown = []
    done = run.measure(list(run.LIMITS), rehearsal=True, out=tmp_path, minutes=1.6, show=shown.append)
    assert not done and "training (training, 0 s): failed: it broke" in "\n".join(shown)
    assert list(limits) == list(run.LIMITS) == list(page.TITLES)
    assert limits["ceiling"] == 30 and limits["tests"] == pytest.approx(96 - 6 * 6, abs=2)
    assert [part["status"] for part in json.loads((tmp_path / "gpu.json").read_text())["parts"]].count("done") == 7


def test_the_limits_leave_every_part_some_of_the_eight_minutes():
    slow = run.MINUTES * 60
    for name in run.LIMITS:
        left = slow - run.RESERVE * (len(run.LIMITS) - 1 - list(run.LIMITS).index(name))
        assert min(run.LIMITS[name], left) > 0
        slow -= min(run.LIMITS[name], max(left, 0))
    assert run.MINUTES < 8


def test_what_was_found_before_the_end_is_kept(tmp_path):
    record = Record(tmp_path / "found")
    record.figure(Figure("speed", 2.5, "tokens/s", shares={"peak": 0.5}))
    record.remark("a  remark")
    record.remark("a remark")
    with (tmp_path / "found").open("a") as file:
        file.write('{"figure": {"name": "cut o')
    assert read(tmp_path / "found") == ([Figure("speed", 2.5, "tokens/s", shares={"peak": 0.5})], ["a remark"], None)


def test_the_page_names_units_shares_and_goals():
    figures = [
        Figure("training", 123456.0, "tokens/s", shares={"measured peak": 0.553}, goal="55 %", met=True),
        Figure("memory", 2.5e9, "B"),
    ]
    text = page.block(run.Part("training", "failed", "it broke", 61.2, figures, ["so it is"]))
    assert text.splitlines()[0] == "training (training, 61 s): failed: it broke"
    assert "123,456 tokens/s  55.3% of measured peak  goal 55 %: met" in text
    assert "2.5 GB" in text and "  . so it is" in text
    lengths = [Figure("gain", 3.0, "times", at="512"), Figure("gain", 12.0, "times", at="8,192", goal="10", met=True)]
    lines = page.block(run.Part("cache", "done", "", 1.0, lengths)).splitlines()
    assert lines[1].split() == ["512", "8,192"] and lines[2].split() == ["gain", "3", "times", "12", "times"]
    assert lines[3] == "  gain at 8,192: goal 10: met"


def test_recorded_steps_write_the_text_of_plain_ones(monkeypatch):
    """A graph that is replayed runs the same operations on the same memory: here they are run again instead."""
    monkeypatch.setattr(
        graphs.RecordedDecode, "_record", lambda self, last: SimpleNamespace(replay=lambda: self._once(last))
    )
    config = ModelConfig(29, 12, 2, 40, AttentionConfig(3, 1), FeedForwardConfig(20))
    model = drawn(config).eval()
    expected = complete(model, [[5, 3, 1]], max_new_tokens=30, sampling=Sampling(0.0))[0]
    with torch.inference_mode():
        prompt = torch.tensor([[5, 3, 1]])
        out = model(prompt, cache=KVCache.create(config, 1, 40, bucket=8))
        recorded = graphs.RecordedDecode(model, out.logits[:, -1].argmax(-1), out.cache)
        for _ in range(2):  # and once more from the beginning
            text = [recorded.tokens.item()] + [recorded.advance().item() for _ in range(29)]
            assert text == expected and len(recorded._graphs) == 4
            again = model(prompt, cache=KVCache.create(config, 1, 40, bucket=8))
            recorded.start(again.logits[:, -1].argmax(-1), again.cache)


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
    monkeypatch.setattr(run, "measure", lambda *_, **__: pytest.fail("it was begun"))
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_nothing_can_do_without_is_named_before_anything_starts(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(needs.REQUIRED, "abacus", ())
    monkeypatch.setitem(needs.REQUIRED, "torch", (99, 0))
    assert main(["--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "expected torch 99.0 or newer, found" in error and "; abacus" in error
    assert not (tmp_path / "out").exists()


def test_the_tests_of_a_gpu_are_found_by_their_mark():
    names = {path.name for path in pieces.gpu_tests()}
    assert {"test_flex_attention.py", "test_on_a_gpu.py", "test_loop.py"} <= names
    assert Path(__file__).name not in names


def test_on_a_gpu_the_model_that_is_measured_is_gpt2s(monkeypatch):
    from companion.costs import account

    measured = sizes.setting(rehearsal=False)
    assert account.parameters(measured.model).total == pytest.approx(124e6, rel=0.01)
    assert (measured.precision, measured.rehearsal) == ("bf16", False)
    assert max(measured.lengths) + 64 <= measured.long.context
