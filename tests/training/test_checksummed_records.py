"""Changes to a run's files by hand are noticed before the files are used."""

import hashlib
import json

import pytest
import torch
from edited_runs import edit_record

from companion.training.run_folder import RunFolder
from companion.training.trainer import Trainer, TrainingConfig
from companion.transformer import Transformer

RECORD = {"settings": {"seed": 0}, "updates": 9, "evaluations": 2, "precision": "fp32"}
RECORD |= {"text": {"title": "a text", "fingerprint": "0123"}, "baselines": {"xz": 2.0}}


def begun(path, make_trainer, **changes) -> RunFolder:
    folder, trainer = RunFolder(path), make_trainer()
    folder.create(RECORD | changes, {})
    for _ in range(2):
        update = trainer.update()
        folder.log({"update": update.number, "loss": update.loss, "seconds": 0.5})
        folder.save(trainer, error=1.0 / update.number)
    folder.finish({"bits_per_byte": 2.5})
    return folder


def edit(path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("change", [{"updates": 8}, {"updates": 8, "digest": None}])
def test_a_changed_record_is_noticed(tmp_path, make_trainer, change):
    folder = begun(tmp_path, make_trainer)
    edit(tmp_path / "run.json", **change)
    for use in (folder.record, folder.result, folder.model):
        with pytest.raises(ValueError, match=r"run\.json: the file was changed after .*; restore it from a backup"):
            use()


def test_a_record_without_a_digest_may_come_from_an_earlier_version(tmp_path, make_trainer):
    folder = begun(tmp_path, make_trainer)
    edit(tmp_path / "run.json", digest=None)
    with pytest.raises(ValueError, match=r"was changed after this run wrote it, or an earlier version wrote it, with"):
        folder.record()


def test_a_record_cannot_name_files_outside_its_folder(tmp_path, make_trainer):
    """These names become paths of files that are written when the run is exported or chatted with."""
    run, other = begun(tmp_path / "run", make_trainer), tmp_path / "other.txt"
    other.write_text("from another folder")
    digest = hashlib.sha256(other.read_bytes()).hexdigest()
    edit_record(run.path, sha256={"../other.txt": digest, str(other): digest})
    assert run.texts() == {}


def test_a_field_that_is_missing_is_named_where_it_is_asked_for(tmp_path, make_trainer):
    record = begun(tmp_path, make_trainer).record()
    with pytest.raises(ValueError, match=r"run\.json: the entry 'bytes_per_token' is missing; the file is damaged"):
        record["bytes_per_token"]
    with pytest.raises(ValueError, match=r"run\.json: the entry 'train_bytes' is missing"):
        record["text"]["train_bytes"]


def test_the_result_and_the_checkpoint_of_another_run_are_noticed(tmp_path, make_trainer):
    one = begun(tmp_path / "one", make_trainer)
    other = begun(tmp_path / "other", make_trainer, updates=10)
    (one.path / "result.json").write_bytes((other.path / "result.json").read_bytes())
    with pytest.raises(ValueError, match=r"result\.json: .* was changed .*; remove it"):
        one.result()
    last = one.checkpoint()
    (last / "state.json").write_bytes((other.checkpoint() / "state.json").read_bytes())
    with pytest.raises(ValueError, match=r"state\.json: the checkpoint is damaged .*was changed"):
        one.checkpoints.load(last)
    said = []
    assert one.restore(make_trainer(), said.append) == 1 and "state.json" in said[0]


@pytest.mark.parametrize(
    "change", [{"done": 1}, {"best": {"update": 1, "error": 0.1}}, {"sha256": {}}, {"digest": None}]
)
def test_a_changed_state_is_noticed(tmp_path, make_trainer, change):
    folder = begun(tmp_path, make_trainer)
    edit(folder.checkpoint() / "state.json", **change)
    with pytest.raises(ValueError, match="the checkpoint is damaged"):
        folder.checkpoints.load(folder.checkpoint())


def test_a_changed_log_is_noticed_and_one_that_is_gone_is_mentioned(tmp_path, make_trainer):
    folder = begun(tmp_path, make_trainer)
    log, good = tmp_path / "log.jsonl", (tmp_path / "log.jsonl").read_bytes()
    for bad in (good.replace(b'"update": 1', b'"update": 3', 1), good.replace(b"{", b"[", 1), good.splitlines()[0]):
        log.write_bytes(bad)
        with pytest.raises(ValueError, match=r"log\.jsonl: the log of updates 1 to 2 was changed after it was written"):
            folder.restore(make_trainer())
        assert log.read_bytes() == bad
    log.unlink()
    said: list[str] = []
    assert folder.restore(make_trainer(), said.append) == 2
    assert said == [f"{log} is missing, so the log of updates 1 to 2 is lost"]


def test_what_stands_in_the_way_of_a_checkpoint_is_no_trouble(tmp_path, make_trainer):
    folder = begun(tmp_path, make_trainer)
    (tmp_path / "checkpoints" / ".step-00000003.tmp").write_text("a file")
    state = folder.checkpoint() / "state.json"
    state.unlink()
    state.mkdir()
    said: list[str] = []
    assert folder.restore(make_trainer(), said.append) == 1 and "state.json" in said[0]


def test_a_frozen_and_an_unused_parameter_go_through_a_checkpoint(tmp_path, make_trainer):
    def made() -> Trainer:
        plain = make_trainer()
        model = Transformer(plain.model.config)
        model.load_state_dict(plain.model.state_dict())
        model.decoder.blocks[0].attention_norm.weight.requires_grad_(False)
        model.unused = torch.nn.Parameter(torch.ones(3))
        return Trainer(model, plain.batches, TrainingConfig(9, warmup=2))

    trainer, other = made(), made()
    trainer.update()
    other.load(trainer.weights(), trainer.state(), 1)
    assert trainer.update().loss == other.update().loss
    state = other.state()
    assert all(torch.equal(tensor, state[name]) for name, tensor in trainer.state().items())
