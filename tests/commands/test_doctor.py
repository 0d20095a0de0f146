"""The report of `companion doctor` fits on a screen, names what is wrong, and says what to do about it."""

import json

import torch
import torch.nn.functional as F
from packaging.requirements import Requirement

from companion.commands import doctor, same_everywhere
from companion.commands.main import main
from companion.ground import installed


def test_it_fits_on_a_screen_and_all_that_must_hold_holds(capsys, monkeypatch) -> None:
    for name in doctor.NOTED:
        monkeypatch.delenv(name, raising=False)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) < 80
    said = "\n".join(lines)
    assert torch.__version__ in said and torch.backends.cpu.get_cpu_capability() in said
    first = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert first.count("holds") == len(same_everywhere.MUST_HOLD) == 5
    assert first.count("same") + first.count("differs") == len(same_everywhere.may_differ()) >= 4


def test_a_program_reads_the_same(capsys, monkeypatch) -> None:
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["holds"] and said["versions"]["torch"] == torch.__version__ and said["wrong"] == []
    assert set(said) == {"course", "python", "versions", "extras", "wrong", "machine", "comparisons", "holds"}
    assert said["machine"]["threads"] == torch.get_num_threads() and "test" in said["extras"]["here"]
    assert sum(one["must_hold"] for one in said["comparisons"]) == len(same_everywhere.MUST_HOLD)
    monkeypatch.setattr("companion.commands.same_everywhere.attend", lambda q, k, v, causal: 1.001 * v)
    assert main(["doctor", "--json"]) == 1
    wrong = [one for one in json.loads(capsys.readouterr().out)["comparisons"] if one["must_hold"] and not one["same"]]
    assert [one["claim"] for one in wrong] == ["PyTorch's fused attention agrees with the formula"]
    _asked(monkeypatch, "torch>=999")
    assert main(["doctor", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["machine"] is None and not said["holds"] and "torch>=999" in said["wrong"][0]


def test_a_calculation_that_is_wrong_here_is_named(capsys, monkeypatch) -> None:
    monkeypatch.setattr("companion.commands.same_everywhere.attend", lambda q, k, v, causal: 1.001 * v)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "FAILS    PyTorch's fused attention agrees with the formula" in said and said.count("FAILS") == 1
    assert "A required result is wrong" in said


def test_every_comparison_notices_what_it_is_for(monkeypatch) -> None:
    linear = F.linear

    def by_place(x, weight):
        """Return a product that depends on the matrix's address, the number of rows and the number of threads."""
        odd = (weight.data_ptr() % 64 != 0) or len(x) == 1 or torch.get_num_threads() == 1
        return linear(x, weight) * (1 + 1e-6 * odd)

    with same_everywhere.threads(2):
        monkeypatch.setattr("companion.commands.same_everywhere.F.linear", by_place)
        address, rows = same_everywhere.other_address(), same_everywhere.other_rows()
        assert not address.same and address.found.startswith("400 of 400, ")
        assert not rows.same and not same_everywhere.other_threads().same
        assert torch.get_num_threads() == 2
        monkeypatch.undo()
    monkeypatch.setattr("companion.commands.same_everywhere.NORMAL", [0.0] * 4)
    assert not same_everywhere.drawn_numbers().same
    monkeypatch.setattr("companion.commands.same_everywhere.load_tensors", lambda path: {"weight": torch.zeros(61, 20)})
    assert not same_everywhere.written_and_read().same
    losses = iter([1.0, 2.0])
    monkeypatch.setattr("companion.commands.same_everywhere.train", lambda: (next(losses), {}))
    assert not same_everywhere.trained_twice().same


def test_it_leaves_the_random_numbers_of_the_process_alone() -> None:
    before = torch.get_rng_state()
    for compare in (*same_everywhere.MUST_HOLD, *same_everywhere.may_differ()):
        compare()
    assert torch.equal(before, torch.get_rng_state())


def _asked(monkeypatch, *lines: str) -> None:
    monkeypatch.setattr("companion.ground.installed.requirements", lambda: tuple(map(Requirement, lines)))


def test_what_is_not_installed_or_too_old_has_a_sentence_that_says_what_to_do(capsys, monkeypatch) -> None:
    _asked(monkeypatch, "torch>=2.11", "nowhere>=3", "numpy>=900", 'absent; extra == "lab"', 'numpy; extra == "bench"')
    monkeypatch.setattr("companion.commands.doctor.comparisons", lambda: True)
    assert main(["doctor"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "nowhere is not installed: run pip install 'nowhere>=3'" in said
    assert "numpy 2" in said and "run pip install 'numpy>=900'" in said
    assert "bench" in said.split("not here")[0] and "lab (pip install -e ./school -e '.[lab]')" in said
    assert "torch is" not in said


def test_an_extra_that_contains_another_needs_what_that_needs(monkeypatch) -> None:
    own = doctor.NAME
    _asked(monkeypatch, "torch", 'absent; extra == "lab"', f'{own}[lab]; extra == "test"', 'numpy; extra == "bench"')
    assert [str(gone.name) for gone in installed.missing("test")] == ["absent"]
    assert installed.missing("bench") == [] and installed.missing() == []


def test_without_torch_it_still_says_what_is_missing(capsys, monkeypatch) -> None:
    _asked(monkeypatch, "torch>=999")
    monkeypatch.setattr("companion.commands.doctor.hardware", lambda: 1 / 0)
    assert main(["doctor"]) == 1
    assert "run pip install 'torch>=999'" in capsys.readouterr().out


def test_outside_an_installation_it_reads_the_checkout_and_says_how_to_install(capsys, monkeypatch, tmp_path) -> None:
    from importlib import metadata

    def nowhere(name: str) -> str:
        if name == doctor.NAME:
            raise metadata.PackageNotFoundError(name)
        return "2.99"

    installed.requirements.cache_clear()
    monkeypatch.setattr("importlib.metadata.version", nowhere)
    monkeypatch.setattr("importlib.metadata.requires", nowhere)
    try:
        assert {"torch", "jupyterlab", "x-transformers"} <= {asked.name for asked in installed.requirements()}
        assert doctor.course().startswith("companion, not installed")
        [sentence] = doctor.missing_requirements()[-1:]
        assert "is not installed" in sentence and "make lab" in sentence
        assert main(["--version"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert said.startswith("companion from its folder and is not installed: run `make lab`")
        installed.requirements.cache_clear()
        monkeypatch.setattr("companion.ground.installed.CHECKOUT", tmp_path)
        assert installed.requirements() == () and "executable-transformer[lab]" in installed.install_line("lab")
    finally:
        installed.requirements.cache_clear()


def test_what_an_extra_brings_is_named_with_the_extra(capsys, monkeypatch) -> None:
    _asked(monkeypatch, "torch", 'num2words; extra == "school"', 'ipykernel; extra == "lab"')

    def without(flags):
        raise ModuleNotFoundError("No module named 'num2words.lang_DE'", name="num2words.lang_DE")

    monkeypatch.setattr("companion.commands.doctor.run", without)
    assert main(["doctor"]) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("companion doctor: error: this needs num2words, which is not installed: pip install ")
    assert said.endswith("[school]'")
    assert "[lab]" in installed.how_to_get("IPython.display", doctor.EXTRAS)
    assert installed.how_to_get("torchvision", doctor.EXTRAS) is None
