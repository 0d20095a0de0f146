"""`make machines`: the simulated machines do what they say, settings are checked, and what differs is found."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from machines import run, settings
from machines.run import Outcome
from machines.settings import SETTINGS, Setting, missing_here, parse
from machines.site.simulated import OtherSums, oddly_aligned
from nbformat import v4, write

ROOT = Path(__file__).resolve().parents[2]


def python(setting, code, **more):
    environment = {**setting.whole_environment(), **more}
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
    done = python(parse(name), code)
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
    done = python(parse("odd-loads"), "print(1)", COMPANION_MACHINE="strange")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "COMPANION_MACHINE='strange': expected one of odd-loads, other-sums\n"


# Settings


def test_the_settings_that_were_promised_are_there():
    given = {item for setting in SETTINGS for item in setting.environment.items()}
    assert given >= {
        ("ATEN_CPU_CAPABILITY", "default"), ("ATEN_CPU_CAPABILITY", "avx2"), ("MKL_ENABLE_INSTRUCTIONS", "SSE4_2"),
        ("MKL_ENABLE_INSTRUCTIONS", "AVX2"), ("MKL_CBWR", "COMPATIBLE"), ("ONEDNN_MAX_CPU_ISA", "SSE41"),
        ("OMP_NUM_THREADS", "1"), ("OMP_NUM_THREADS", "2"), ("OMP_NUM_THREADS", "4"),
        ("COMPANION_MACHINE", "odd-loads"), ("PYTHONHASHSEED", "0"), ("PYTHONHASHSEED", "1"), ("PYTHONHASHSEED", "2"),
    }  # fmt: skip
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)


def test_a_setting_is_alone_in_its_environment(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    environment = parse("avx2").whole_environment()
    assert environment["ATEN_CPU_CAPABILITY"] == "avx2" and environment["OMP_NUM_THREADS"] == "1"
    assert "MKL_CBWR" not in environment and "PYTHONHASHSEED" not in environment
    assert parse("MKL_CBWR=AVX512").environment == {"MKL_CBWR": "AVX512"}


def test_joined_settings_are_one_environment():
    joined = parse("odd-loads+threads-2+MKL_CBWR=AVX512")
    assert joined.name == "odd-loads+threads-2+MKL_CBWR=AVX512"
    environment = joined.whole_environment()
    assert (environment["COMPANION_MACHINE"], environment["OMP_NUM_THREADS"]) == ("odd-loads", "2")
    assert environment["MKL_CBWR"] == "AVX512"
    assert str(settings.SITE) in environment["PYTHONPATH"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("avx3", r"setting 'avx3': expected one of plain, avx2, .*, or VARIABLE=VALUE"),
        ("HOME=x", r"setting 'HOME=x': expected one of the variables ATEN_CPU_CAPABILITY, "),
        ("ATEN_CPU_CAPABILITY=sse9", r"expected for ATEN_CPU_CAPABILITY one of default, avx2, avx512"),
        ("plain+hash-3", r"setting 'hash-3': expected one of plain, "),
        ("plain+hash-1+avx2", r"'plain\+hash-1\+avx2': expected one part that sets ATEN_CPU_CAPABILITY, got two"),
    ],
)
def test_an_unknown_setting_is_refused(text, message, capsys):
    with pytest.raises(ValueError, match=message):
        parse(text)
    with pytest.raises(SystemExit) as stopped:
        run.main(["--setting", text])
    assert stopped.value.code == 2 and text.split("+")[-1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("DEFAULT", "this processor does not know the kernels ATEN_CPU_CAPABILITY=avx512: leave"),
        (None, "this PyTorch was built without the library that ATEN_CPU_CAPABILITY is for: leave"),
    ],
)
def test_kernels_that_this_processor_does_not_know_get_one_sentence(said, message, monkeypatch, capsys):
    monkeypatch.setattr(settings, "_said", lambda *asked: said)
    with pytest.raises(SystemExit) as stopped:
        run.main(["--setting", "ATEN_CPU_CAPABILITY=avx512+hash-1"])
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_the_libraries_are_asked_which_kernels_they_use():
    assert missing_here(parse("plain")) is None  # PyTorch without vectors is everywhere
    assert missing_here(Setting("odd", "", {"ATEN_CPU_CAPABILITY": "default", "PYTHONHASHSEED": "0"})) is None


# What differs


def test_a_cell_that_prints_something_else_is_found(tmp_path):
    cells = [v4.new_code_cell("print(1)"), v4.new_code_cell("print(2)"), v4.new_code_cell("assert 1 > 2, 'no'")]
    for count, cell in enumerate(cells, 1):
        cell.execution_count = count
    cells[0].outputs = [v4.new_output("stream", name="stdout", text="1\n")]
    cells[1].outputs = [v4.new_output("stream", name="stdout", text="3\n")]
    write(v4.new_notebook(cells=cells), tmp_path / "42_small.ipynb")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    outcome = run.run(["42_small.ipynb"], parse("plain"), tmp_path / "out" / "report.xml", root=tmp_path)
    assert outcome.ran == 3 and outcome.cell == "2 of 3"
    assert outcome.failed == (("42_small Cell 1", "- 2"), ("42_small Cell 2", "AssertionError: no"))
    with pytest.raises(ValueError, match=r"none\.ipynb: pytest ended with code 4"):
        run.run(["none.ipynb"], parse("plain"), tmp_path / "out" / "none.xml", root=tmp_path)


def test_the_table_says_where(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(run, "OUT", tmp_path)

    def attempt(paths, setting, report):
        bad = setting.name == "avx2" and "13" in paths[0]
        return Outcome(51, (("13_one_model Cell 42", "AssertionError"),) if bad else (), 1.0)

    assert run.main(["--setting", "plain", "avx2", "--lesson", "00", "13"], attempt) == 1
    said = capsys.readouterr().out
    assert "| | plain | avx2 |" in said and "| 00_one_token_by_hand | = | = |" in said
    assert "| 13_one_model_many_names | = | 1 of 51 |" in said
    assert "avx2: 13_one_model_many_names: 13_one_model Cell 42: AssertionError" in said
    assert said.endswith("204 cells and tests under 2 settings: a difference in 1 of 4 places\n")
    assert (tmp_path / "table.md").read_text() in said + "\n"
    assert run.main(["--setting", "plain", "--lesson", "13"], attempt) == 0
    assert capsys.readouterr().out.endswith("51 cells and tests under 1 settings: no difference\n")


def test_every_lesson_is_a_row_with_its_exercises_and_the_tests_are_rows():
    rows = run.rows()
    lessons = [name for name in rows if name not in run.TESTS]
    assert len(lessons) == len(list((ROOT / "authoring" / "lessons").glob("[0-9]*.md")))
    assert all(f"notebooks/exercises/{name[:2]}_exercises.ipynb" in rows[name] for name in lessons)
    assert "notebooks/deeper/02_deeper.ipynb" in rows["02_scaled_dot_product_attention"]
    assert all((ROOT / path).exists() for paths in rows.values() for path in paths)
