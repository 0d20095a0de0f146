"""Lessons measure real models if they are on this machine, compare with a record, and otherwise show the record."""

import json

import pytest
import torch

from companion.files.published.fetching import Got
from companion_school.study import real


@pytest.fixture
def records_of(monkeypatch, tmp_path):
    """Replace the records for one test, with or without a model on this machine."""

    def arrange(known, opened):
        (tmp_path / "real.json").write_text(json.dumps(known), "utf-8")
        monkeypatch.setattr(real.records.resources, "files", lambda _: tmp_path)
        monkeypatch.setattr(real, "real_model", lambda name, load=None: opened)

    return arrange


def measured(value, key="09/key"):
    return real.on_real_model("smollm2", key)(lambda model, tokenizer: value)()


def test_what_agrees_is_returned_as_measured(records_of):
    records_of({"09/key": {"loss": 2.0, "words": ["a", 3]}}, ("model", "tokenizer"))
    assert measured({"loss": torch.tensor(2.019), "words": ("a", 3)}) == {"loss": 2.019, "words": ["a", 3]}


@pytest.mark.parametrize(
    "value, told",
    [
        ({"loss": 2.1, "words": ["a", 3]}, r"09/key: the result\['loss'\] is 2.1, and the record says 2.0"),
        ({"loss": 2.0, "words": ["a", 4]}, r"\['words'\]\[1\] is 4, and the record says 3"),
        ({"loss": 2.0, "words": ["b", 3]}, r"\['words'\]\[0\] is 'b'"),
        ({"loss": 2.0}, "the result is {'loss': 2.0}"),
        ({"loss": 2.0, "words": ["a", True]}, r"\['words'\]\[1\] is True"),
        ({"loss": float("nan"), "words": ["a", 3]}, "is nan"),
    ],
)
def test_what_differs_from_its_record_is_refused(records_of, value, told):
    records_of({"09/key": {"loss": 2.0, "words": ["a", 3]}}, ("model", "tokenizer"))
    with pytest.raises(ValueError, match=told):
        measured(value)


def test_without_the_model_the_record_is_shown_with_the_command_that_gets_it(records_of, capsys):
    records_of({"09/key": [1.5]}, None)
    assert measured("never asked") == [1.5]
    assert "SmolLM2-135M-Instruct is not on this machine" in (told := capsys.readouterr().out)
    assert "companion get smollm2" in told


def test_a_result_without_a_record_is_refused_until_it_is_recorded(records_of, monkeypatch):
    records_of({}, ("model", "tokenizer"))
    with pytest.raises(ValueError, match="no record named '09/key'"):
        measured(1)
    monkeypatch.setattr(real, "recording", {})
    assert measured(torch.tensor([1, 2])) == [1, 2] and real.recording == {"09/key": [1, 2]}


def test_another_model_is_refused():
    with pytest.raises(ValueError, match="expected one of smollm2, minilm, got 'gpt2'"):
        real.real_model("gpt2")


def test_times_are_not_compared_and_are_recorded_all_the_same(records_of):
    records_of({"09/key": {"loss": 2.0, "≈ seconds": 5.0}}, ("model", "tokenizer"))
    assert measured({"loss": 2.0, "≈ seconds": 0.1}) == {"loss": 2.0, "≈ seconds": 0.1}
    with pytest.raises(ValueError, match="loss"):
        measured({"loss": 3.0, "≈ seconds": 5.0})


def test_a_readers_own_code_may_load_the_model(monkeypatch, tmp_path):
    class Model(torch.nn.Module):
        pass

    monkeypatch.setattr(real, "at_hand", lambda name: Got(tmp_path, "a package"))
    monkeypatch.setattr(real, "load_tokenizer", lambda folder: "tokenizer")
    given, own = [], Model()

    def load(folder):
        given.append(folder)
        return own

    assert real.real_model("smollm2", load) == (own, "tokenizer") == real.real_model("smollm2", load)
    assert given == [tmp_path] and not own.training  # once per process, and in evaluation mode


def test_a_cell_may_measure_in_float64_and_an_interrupted_one_leaves_the_shared_model_as_loaded(records_of):
    model = torch.nn.Linear(3, 2)
    weight = model.weight.detach().clone()
    records_of({"09/key": "float64"}, (model, "tokenizer"))

    def interrupted(model, tokenizer):
        raise KeyboardInterrupt

    inside = real.on_real_model("smollm2", "09/key", dtype=torch.float64)
    assert inside(lambda model, tokenizer: str(model.weight.dtype).removeprefix("torch."))() == "float64"
    with pytest.raises(KeyboardInterrupt):
        inside(interrupted)()
    assert model.weight.dtype == torch.float32 and torch.equal(model.weight, weight)
