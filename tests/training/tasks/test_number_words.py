"""The loss of an encoder-decoder ignores padding, and the task provides everything that the training loop needs."""

from dataclasses import fields, replace

import pytest
import torch
from models import drawn

from companion.config.model import ModelConfig
from companion.data import number_words
from companion.data.number_names import languages
from companion.data.number_words import BOS, EOS, PAD
from companion.training.losses import translation_loss
from companion.training.run import Plan, open_task, plan
from companion.training.settings import NumberWordsSettings, TextSettings, differences, recorded
from companion.training.tasks.number_words import NumberWordsTask, exact_match, translate
from companion.training.trainer import TrainingConfig

WORDS = number_words.task("de", "en")
SETTINGS = NumberWordsSettings(d_model=16, layers=1, heads=2, batch=3, steps=5)


def model(**changes) -> torch.nn.Module:
    settings = NumberWordsSettings(d_model=16, layers=1, heads=2, **changes)
    return drawn(settings.model_config(WORDS.vocab)).eval()


@pytest.mark.parametrize("experts", [None, 3])
def test_the_loss_of_a_batch_is_the_sum_of_its_rows_alone(experts) -> None:
    network, chosen = model(experts=experts).double(), [7, 21_304, 400, 990_017]
    with torch.no_grad():
        whole = translation_loss(network, *WORDS.batch(chosen), padding=PAD)
        rows = [translation_loss(network, *WORDS.batch([number]), padding=PAD) for number in chosen]
    torch.testing.assert_close(whole.nats, torch.stack([row.nats for row in rows]).sum())
    assert whole.tokens == sum(row.tokens for row in rows) == sum(1 + len(WORDS.encode(n)[1]) for n in chosen)
    if experts:  # no expert gets padding, in the encoder or the decoder
        pairs = zip(whole.routing, zip(*(row.routing for row in rows), strict=True), strict=True)
        for together, alone in pairs:
            assert torch.equal(together.counts, torch.stack([layer.counts for layer in alone]).sum(0))


def test_the_loss_is_minus_ln_p_of_each_token_given_those_before_it() -> None:
    network, number = model().double(), 1_204
    source, target = WORDS.encode(number)
    wanted, fed = 0.0, [BOS]
    with torch.no_grad():
        for token in [*target, EOS]:
            logits = network(torch.tensor([fed]), source=torch.tensor([source])).logits[0, -1]
            wanted -= logits.log_softmax(-1)[token].item()
            fed.append(token)
        assert translation_loss(network, *WORDS.batch([number]), padding=PAD).nats.item() == pytest.approx(wanted)


def test_a_right_answer_is_one_without_a_mistake(monkeypatch) -> None:
    answers = ["zero", "twenty one", "one hundred and", "three"]
    monkeypatch.setattr("companion.training.tasks.number_words.translate", lambda *arguments, **settings: answers)
    counted = exact_match(model(), WORDS, [0, 21, 100, 3])
    assert counted.by_digits == {1: (2, 2), 2: (0, 1), 3: (0, 1)}


def test_translations_do_not_depend_on_their_company(monkeypatch) -> None:
    network, chosen = model(), [5, 21_304, 77, 600_001, 12]
    alone = [translate(network, WORDS, [number])[0] for number in chosen]
    monkeypatch.setattr("companion.training.tasks.number_words.AT_ONCE", 2)
    assert translate(network, WORDS, chosen) == alone
    assert translate(network, WORDS, []) == []
    with pytest.raises(ValueError, match="beams=0"):
        translate(network, WORDS, chosen, beams=0)


@pytest.mark.parametrize("beams", [1, 3])
def test_padding_and_the_start_are_never_said_however_probable(beams: int, monkeypatch) -> None:
    """If they were generated and then dropped by `decode`, a wrong answer would look right."""
    network, chosen = model(), [5, 21_304]
    wanted, head = translate(network, WORDS, chosen, beams=beams), network.head
    eager = 20.0 * torch.tensor([i in (PAD, BOS) for i in range(WORDS.vocab)])
    monkeypatch.setattr(network, "head", lambda stream: head(stream) + eager)
    said = translate(network, WORDS, chosen, beams=beams)
    assert said == wanted or beams > 1  # the scores of beams are the model's own, of which eager decoding takes a share
    assert all(said)


def test_the_task_is_what_its_settings_say_and_trains_the_2017_model() -> None:
    task = open_task(SETTINGS)
    assert isinstance(task, NumberWordsTask) and task.words == WORDS
    config = task.config
    assert (config.stack, config.vocab, config.positions.kind, config.norm.kind, config.feed_forward.activation) == (
        "encoder_decoder", WORDS.vocab, "sinusoidal", "layer", "relu",
    )  # fmt: skip
    assert config.feed_forward.d_ff == 64 and config.embedding.scaled and config.context >= WORDS.longest
    trainer = task.trainer(5, torch.device("cpu"), "fp32")
    assert trainer.config.schedule == "linear" and trainer.config.betas == (0.9, 0.98)
    first, other = trainer.update(), task.trainer(5, torch.device("cpu"), "fp32").update()
    assert first == other and first.tokens == int((task.batches(0).targets >= 0).sum())


def test_label_smoothing_reaches_the_loss_of_both_tasks() -> None:
    plain, smooth = (open_task(replace(SETTINGS, label_smoothing=s)) for s in (0.0, 0.3))
    network = drawn(plain.config)
    batch = plain.batches(0)
    assert smooth.loss(network, *batch).nats > plain.loss(network, *batch).nats


def test_the_longest_names_fit_the_default_context_letter_by_letter() -> None:
    for source, target in (("de", "en"), ("fr", "pt"), ("en", "fr")):
        open_task(
            NumberWordsSettings(source=source, target=target, source_pieces="characters", target_pieces="characters")
        )
    with pytest.raises(ValueError, match="--context 40: expected at least"):
        open_task(NumberWordsSettings(source_pieces="characters", context=40))


def test_a_run_is_as_long_as_its_task_needs_and_letters_need_longer() -> None:
    cpu = torch.device("cpu")
    usual = plan(open_task(NumberWordsSettings()), cpu, "fp32")
    letters = plan(open_task(NumberWordsSettings(target_pieces="characters")), cpu, "fp32")
    assert usual == Plan(400) and letters.updates > usual.updates
    timed = plan(open_task(NumberWordsSettings(d_model=16, layers=1, heads=2, batch=2, minutes=0.02)), cpu, "fp32")
    assert timed.updates >= 1 and not timed.why  # there are infinitely many numbers, so their count is not a limit


def test_settings_come_back_from_a_record_and_differ_by_flags() -> None:
    for settings in (SETTINGS, TextSettings(layers=2)):
        assert recorded({"settings": settings.what_matters()}) == settings
    assert differences(SETTINGS, NumberWordsSettings(source="fr", d_model=16, layers=1, heads=2, batch=3, steps=5)) == [
        "--from: de in the run, fr now"
    ]
    assert differences(SETTINGS, TextSettings()) == ["--task: number-words in the run, text now"]
    with pytest.raises(ValueError, match=r"run\.json: expected a run's settings"):
        recorded({"settings": {"task": "poetry"}})
    with pytest.raises(ValueError, match="the run learned text: expected a run of number-words"):
        NumberWordsTask.of_record({"settings": TextSettings().what_matters()})


def test_the_help_names_every_language() -> None:
    (source,) = [f for f in fields(NumberWordsSettings) if f.name == "source"]
    known = ", ".join(f"{found.code} ({found.title})" for found in languages())
    assert source.metadata["help"].endswith(known)


def test_flags_and_training_configs_that_cannot_be_are_refused() -> None:
    for name in ("beta2", "label_smoothing"):
        with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} 1: expected a number >= 0 and < 1"):
            NumberWordsSettings(**{name: 1.0})
    with pytest.raises(ValueError, match=r"beta2=1.0: expected a number >= 0 and < 1"):
        TrainingConfig(1, beta2=1.0)


def test_a_schedule_that_does_not_exist_is_refused(unchecked) -> None:
    with pytest.raises(ValueError, match="schedule='steps': expected one of 'cosine', 'linear', 'inverse_sqrt'"):
        TrainingConfig(1, schedule="steps")  # type: ignore[arg-type]


def test_a_model_from_a_file_gets_the_vocabulary_of_the_names(tmp_path) -> None:
    config: ModelConfig = SETTINGS.model_config(5)
    (tmp_path / "model.json").write_text(config.to_json())
    task = open_task(NumberWordsSettings(model=str(tmp_path / "model.json")))
    assert task.config == config.with_(vocab=WORDS.vocab)
