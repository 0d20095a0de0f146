"""`make machines`: the simulated machines do what they say, settings are checked, and what differs is found."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from machines import run
from machines.run import SETTINGS, whole_environment
from machines.site.simulated import OtherSums, oddly_aligned
from nbformat import v4, write

ROOT = Path(__file__).resolve().parents[2]


def python(setting, code, **more):
    environment = {**whole_environment(setting), **more}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)


# The simulated machines


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(61, 20), (3,), (), (0, 4)])
def test_an_odd_address_is_a_multiple_of_the_elements_size_and_of_no_more(dtype, shape):
    tensor = (9 * torch.randn(shape)).to(dtype)
    copy = oddly_aligned(tensor)
    assert torch.equal(copy, tensor) and copy.is_contiguous() and copy.dtype == dtype
    assert copy.data_ptr() % (2 * tensor.element_size()) == tensor.element_size() or not tensor.numel()


@pytest.mark.parametrize(("name", "remainder"), [("odd-loads", 8), ("other-sums", 8), ("hash-1", 0)])
def test_weights_that_the_package_reads_lie_at_odd_addresses(name, remainder, tmp_path):
    code = f"""
import torch
from companion.files.models import load_tensors, save_tensors
save_tensors({str(tmp_path / "x.safetensors")!r}, {{"weight": torch.ones(5, 3, dtype=torch.float64)}})
weight = load_tensors({str(tmp_path / "x.safetensors")!r})["weight"]
print(weight.data_ptr() % 16 if {remainder} else weight.data_ptr() % 8, weight.sum().item())
"""
    done = python(name, code)
    assert done.stdout == f"{remainder} 15.0\n", done.stderr


def test_other_sums_depend_on_where_the_numbers_lie():
    torch.manual_seed(0)
    x, w = torch.randn(17, 20, dtype=torch.float64), torch.randn(61, 20, dtype=torch.float64)
    plain, moved = F.linear(x, w), oddly_aligned(w)
    with OtherSums():
        once, again, elsewhere, in_parts = F.linear(x, w), F.linear(x, w), F.linear(x, moved), F.linear(x[:5], w)
        softmax, mean = x.softmax(-1), x.mean(dim=(0, 1))
    assert torch.equal(once, again)  # the same operation on the same memory
    assert not torch.equal(once, elsewhere) and not torch.equal(once[:5], in_parts)
    for other in (once, elsewhere):
        torch.testing.assert_close(other, plain, rtol=1e-13, atol=1e-13)
    assert 0 < (softmax - x.softmax(-1)).abs().max() < 1e-15
    torch.testing.assert_close(mean, x.mean(), rtol=1e-13, atol=0)


def test_what_needs_no_rounding_is_exact_on_every_machine():
    table = torch.randn(7, 4)
    rows = F.one_hot(torch.tensor([3, 0, 3]), 7).float()
    with OtherSums():
        assert torch.equal(rows @ table, table[[3, 0, 3]])
        assert torch.arange(9.0).view(3, 3).sum(dim=1).tolist() == [3, 12, 21]
        assert torch.tensor([0.3, -torch.inf]).softmax(0).tolist() == [1, 0]
        assert torch.zeros(4).softmax(0).tolist() == [0.25] * 4
        with pytest.raises(RuntimeError, match=r"\(3x7 and 4x7\)"):  # PyTorch's own words
            rows @ table.T


def test_gradients_go_through_other_sums():
    w = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    x = torch.randn(4, 3, dtype=torch.float64)
    gradients = []
    for machine in (nullcontext(), OtherSums()):
        with machine:
            loss = F.cross_entropy(x @ w.T + 1, torch.tensor([0, 1, 2, 4]))
            gradients += torch.autograd.grad(loss, w)
    plain, other = gradients
    torch.testing.assert_close(other, plain, rtol=1e-12, atol=1e-14)


def test_an_unknown_machine_stops_every_python_with_a_sentence():
    done = python("odd-loads", "print(1)", COMPANION_MACHINE="strange")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "COMPANION_MACHINE='strange': expected one of odd-loads, other-sums\n"


# Settings


def test_a_setting_is_alone_in_its_environment(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    environment = whole_environment("avx2")
    assert environment["ATEN_CPU_CAPABILITY"] == "avx2" and environment["OMP_NUM_THREADS"] == "1"
    assert "MKL_CBWR" not in environment and "PYTHONHASHSEED" not in environment
    joined = whole_environment("odd-loads+threads-2+MKL_CBWR=AVX512")
    assert (joined["COMPANION_MACHINE"], joined["OMP_NUM_THREADS"], joined["MKL_CBWR"]) == ("odd-loads", "2", "AVX512")
    assert str(run.SITE) in joined["PYTHONPATH"]
    assert all(run.environment(name) for name in SETTINGS if name != "none") and not run.environment("none")


@pytest.mark.parametrize("text", ["avx3", "HOME=x", "ATEN_CPU_CAPABILITY=sse9", "plain+hash-3"])
def test_an_unknown_setting_is_refused(text, capsys):
    with pytest.raises(SystemExit) as stopped:
        run.main(["--setting", text])
    assert stopped.value.code == 2
    assert f"--setting {text.split('+')[-1]}: expected one of none, plain, avx2, " in capsys.readouterr().err


# What differs


def test_a_cell_that_prints_something_else_is_found(tmp_path, monkeypatch, capsys):
    cells = [v4.new_code_cell("print(1)"), v4.new_code_cell("print(2)")]
    for count, cell in enumerate(cells, 1):
        cell.execution_count = count
        cell.outputs = [v4.new_output("stream", name="stdout", text="1\n")]
    write(v4.new_notebook(cells=cells), tmp_path / "42_small.ipynb")
    write(v4.new_notebook(cells=cells[:1]), tmp_path / "43_alike.ipynb")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    found = {name: [f"{name}.ipynb"] for name in ("42_small", "43_alike")}
    monkeypatch.setattr(run, "rows", lambda: found)
    here = run.differ
    monkeypatch.setattr(run, "differ", lambda paths, setting: here(paths, setting, root=tmp_path))
    assert run.main(["--setting", "plain"]) == 1
    said = capsys.readouterr().out
    assert "FAILED 42_small.ipynb::Cell 1" in said and "Cell 0" not in said
    assert [line.split() for line in said.splitlines()[-2:]] == [["42_small", "DIFFERS"], ["43_alike", "="]]


def test_the_table_keeps_what_was_run_and_says_what_was_not(tmp_path, monkeypatch, capsys):
    found = {"42_small": [], "43_other": []}
    monkeypatch.setattr(run, "rows", lambda: found)
    monkeypatch.setattr(run, "differ", lambda paths, setting: "1 failed" if setting == "avx2" else "")
    file = tmp_path / "table.md"
    for machine, setting, row in (
        ("PyTorch 2", "plain", "42"),
        ("PyTorch 2", "avx2", "43"),
        ("PyTorch 1", "none", "4"),
    ):
        monkeypatch.setattr(run, "here", lambda machine=machine: machine)
        run.main(["--setting", setting, "--lesson", row, "--table", str(file)])
    cells = [
        [cell.split()[0] for cell in line.split("|")[1:-1] if cell.strip()] for line in file.read_text().split("\n")
    ]
    assert [line for line in cells if line] == [
        *(["none"], ["---", "---"], ["42_small", "="], ["43_other", "="]),
        *(["plain", "avx2"], ["---", "---", "---"], ["42_small", "=", "not"], ["43_other", "not", "DIFFERS"]),
    ]


def test_every_lesson_is_a_row_with_its_exercises_and_the_tests_are_rows():
    rows = run.rows()
    lessons = [name for name in rows if name not in run.TESTS]
    assert len(lessons) == len(list((ROOT / "authoring" / "lessons").glob("[0-9]*.md")))
    assert all(f"notebooks/exercises/{name[:2]}_exercises.ipynb" in rows[name] for name in lessons)
    assert "notebooks/deeper/02_deeper.ipynb" in rows["02_scaled_dot_product_attention"]
    assert all((ROOT / path).exists() for paths in rows.values() for path in paths)
