"""Text as a task: how documents are arranged in windows, and what the model is told about it."""

import pytest
import torch

from companion import AttentionConfig, LatentConfig
from companion.data.batches import TrainingBatches
from companion.data.corpora import Corpus, Document, split
from companion.data.packing import PADDING, PackedBatches
from companion.training.losses import packed_next_token_loss
from companion.training.settings import TextSettings, recorded
from companion.training.tasks.text import Text, TextTask

CPU = torch.device("cpu")


def task(**settings):
    documents = tuple(Document(f"d{i}", f"document number {i} says {'so and ' * (i % 9)} on.\n") for i in range(60))
    corpus = Corpus(documents, "documents")
    settings = {"d_model": 16, "layers": 2, "heads": 2, "context": 24, "batch": 3, "vocab": 300, **settings}
    return TextTask(TextSettings(**settings), Text(corpus, split(corpus)))


def test_packing_says_what_batches_hold():
    assert isinstance(task(packing="ring").batches, TrainingBatches) and len(task(packing="ring").batches(0)) == 2
    for packing in ("documents", "apart"):
        packed = task(packing=packing)
        assert isinstance(packed.batches, PackedBatches)
        tokens = sum(len(ids) for ids in packed.train)
        places = torch.cat([packed.batches(i)[1] for i in range(-(-packed.batches.windows // 3))])
        assert int((places[: packed.batches.windows] != PADDING).sum()) == tokens
    assert task().settings.packing == "documents" and type(task().batches) is PackedBatches


@pytest.mark.parametrize("packing", ["ring", "documents", "apart"])
@pytest.mark.parametrize("experts", [None, 4])
def test_every_packing_trains(packing, experts):
    one = task(packing=packing, experts=experts, dropout=0.0, learning_rate=1e-2, warmup=5)
    trainer = one.trainer(40, CPU, "fp32")
    losses = [trainer.update().loss for _ in range(40)]
    assert sum(losses[-5:]) / 5 < 0.8 * losses[0]
    assert one.measure(trainer.model).tokens == sum(len(ids) - 1 for ids in one.held_out)


@pytest.mark.parametrize(("packing", "experts", "hide"), [
    ("documents", None, "nothing"), ("documents", 4, "padding"), ("apart", None, "documents"), ("apart", 4, "documents")
])  # fmt: skip
def test_the_model_is_told_what_it_must_not_see(packing, experts, hide):
    one = task(packing=packing, experts=experts, dropout=0.0, label_smoothing=0.1)
    model = one.trainer(5, CPU, "fp32").model.eval()
    batch = one.batches(2)
    expected = packed_next_token_loss(model, *batch, hide=hide, smoothing=0.1)
    assert torch.equal(one.loss(model, *batch).nats, expected.nats)
    assert [layer.counts.tolist() for layer in one.loss(model, *batch).routing] == [
        layer.counts.tolist() for layer in expected.routing
    ]


def test_settings_are_restored_from_a_record():
    assert recorded({"settings": TextSettings(packing="ring").what_matters()}) == TextSettings(packing="ring")


def test_flags_become_layers_and_older_runs_go_on_without_them():
    settings = TextSettings(layers=5, linear=2, latent=16, gate="head", d_model=60, heads=3)
    made = settings.model_config(settings.vocab)
    assert [made.linear(layer) for layer in range(5)] == [True, True, False, True, True]
    assert made.attention.latent == LatentConfig(16, d_rope=10) and made.attention.gate == "head"
    assert TextSettings(latent=16, positions="learned").model_config(300).attention.latent == LatentConfig(16, 0)
    assert TextSettings(layers=3, linear=3, sinks=True).model_config(300).attending == ()
    assert TextSettings(sinks=True).model_config(300).attention == AttentionConfig(4, sinks=True)
    for wrong, message in (
        ({"latent": 16, "sinks": True}, "sinks=True: expected False with latent"),
        ({"latent": 16, "kv_heads": 2}, "kv_heads=2: expected None with latent"),
    ):
        with pytest.raises(ValueError, match=message):
            TextSettings(**wrong).model_config(300)
    with pytest.raises(ValueError, match=r"--model x.json cannot be used together with --linear"):
        TextSettings(model="x.json", linear=2)
    old = {key: value for key, value in TextSettings().what_matters().items() if key not in ("linear", "gate")}
    assert recorded({"settings": old}) == TextSettings()


@pytest.mark.parametrize("packing", ["documents", "apart", "ring"])
def test_a_text_shorter_than_a_window_is_refused(packing):
    with pytest.raises(ValueError, match="context=4096: expected at most .* the number of training tokens"):
        _ = task(context=4096, packing=packing).batches


def test_text_from_templates_keeps_its_repeats_if_asked(tmp_path):
    same = "The goat went to the market and never came back again."
    for name, other in (("one", "It rained."), ("two", "The sun was shining on the hill.")):
        (tmp_path / f"{name}.txt").write_text(f"{same} {other}")
    texts = [Text.read(TextSettings(data=[str(tmp_path)], keep_repeats=keep)).corpus for keep in (False, True)]
    assert [len(corpus.documents) for corpus in texts] == [1, 2]
    assert "removed repeated paragraphs" in texts[0].notes[0] and texts[1].notes == ()


def test_without_yardsticks_none_is_measured_and_the_run_is_the_same():
    one, other = task(baselines=False), task()
    assert one.record()["baselines"] == {} and len(other.record()["baselines"]) == 5
    assert one.before({"baselines": {}}) == ""
    result = {"bits_per_byte": 2.5, "perplexity": 7.0, "tokens": 300}
    assert "2.500" in one.verdict({"baselines": {}}, result) and "than" not in one.verdict({"baselines": {}}, result)
    assert one.settings.what_matters() == other.settings.what_matters()
