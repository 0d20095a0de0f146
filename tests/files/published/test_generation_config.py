"""Generation settings in a folder: every field is used, known to have no effect, or rejected by name."""

import json
from dataclasses import fields

import pytest
import torch
import transformers
from generation.test_sampling import some
from transformers import GenerationConfig, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from companion.files.published.config_fields import WRITING, alike
from companion.files.published.generation_config import (
    UNSAID,
    SpecialTokens,
    Writing,
    left_out,
    read_writing,
    special_tokens,
)
from companion.generation.beam import Search
from companion.generation.logit_rules import Rules
from companion.generation.sampling import Sampling


@pytest.fixture
def folder(tmp_path):
    """Return a function that makes a folder; without arguments, its files have no generation settings."""

    def say(config=(), generation=None):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **dict(config)}))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return tmp_path

    return say


def test_every_field_that_transformers_writes_has_a_row():
    theirs = set(transformers.GenerationConfig().to_dict())
    assert theirs <= set(WRITING)
    older = {"forced_decoder_ids", "generation_kwargs", "return_legacy_cache", "cache_config", "num_beam_groups"}
    assert older <= set(WRITING)


def test_everything_that_is_taken_arrives(folder):
    drawn = {rule.name: some(rule) for rule in fields(Sampling)}
    said = {
        "bos_token_id": 1, "eos_token_id": [2, 9], "pad_token_id": -1, "do_sample": True, "num_beams": 3,
        "length_penalty": 2.0, "early_stopping": "never", "max_new_tokens": 30, "max_length": 40, "min_new_tokens": 5,
        "repetition_penalty": 1.1, "no_repeat_ngram_size": 3, "bad_words_ids": [[7]], "suppress_tokens": [8],
        "forced_eos_token_id": [2], "renormalize_logits": True, "stop_strings": "end", **drawn,
    }  # fmt: skip
    assert read_writing(folder({}, said)) == Writing(
        SpecialTokens(1, frozenset({2, 9}), -1), draws=True, sampling=Sampling(**drawn),
        rules=Rules((7, 8), min_new_tokens=5, last=2, repetition_penalty=1.1, no_repeat=3, renormalised=True),
        search=Search(3, 2.0, "never"), most=30, longest=40, stop_strings=("end",),
    )  # fmt: skip
    used = {name for name, policy in WRITING.items() if policy.kind == "used"}
    assert used == {*said, "decoder_start_token_id", "min_length"}
    of_a_translator = {"decoder_start_token_id": 4, "min_length": 7}
    told = read_writing(folder({"is_encoder_decoder": True}, of_a_translator))
    assert told.special.start == 4 and told.rules.min_new_tokens == 6  # `min_length` counts the start token


NOT_TAKEN = {"max_length": "a prompt of as many tokens would leave no room; `companion generate` writes 200"}
"""The defaults of `transformers` that are not ours, and why."""
NOTHING_SAID = {"renormalize_logits": False}
"""What we write where `transformers` leaves a field without a value, and means this."""


def test_every_default_is_that_of_transformers():
    theirs = dict.fromkeys(GenerationConfig().to_dict()) | GenerationConfig._get_default_generation_params()
    theirs |= NOTHING_SAID
    compared = set()
    for name, policy in WRITING.items():
        if policy.kind == "used" and name not in NOT_TAKEN:
            assert alike(policy.default, theirs.get(name)), name  # a rule that only we have is off
        elif policy.kind == "must be":  # without a value, what we do not support is off in `transformers` too
            assert any(alike(value, theirs.get(name)) for value in policy.values), name
        compared |= {name} if policy.kind in ("used", "must be") else set()
    assert set(NOT_TAKEN) < compared and len(compared) > 40
    assert theirs["max_length"] == WRITING["max_length"].default == UNSAID
    undecided = {name for name in theirs if name not in WRITING}
    assert not undecided


def test_a_folder_that_says_nothing_writes_as_the_released_code_does(folder):
    silent = read_writing(folder({}, {}))
    assert not silent.draws and silent.longest is None and silent.search.width == 1
    assert silent.sampling == Sampling(1.0, top_k=50, top_p=1.0) == Writing().sampling and silent == Writing()
    draws = read_writing(folder({}, {"do_sample": True, "temperature": 0.6, "top_p": 0.9}))  # as in Llama 3.2
    assert draws.draws and draws.sampling == Sampling(0.6, top_k=50, top_p=0.9)
    assert read_writing(folder({}, {"do_sample": True, "top_k": 0})).sampling.top_k is None
    unsaid = left_out(folder({}, {"do_sample": True, "temperature": 0.6}))
    assert unsaid["top_k"] == 50 and "temperature" not in unsaid and "max_length" not in unsaid


def test_what_is_drawn_from_is_what_transformers_draws_from(folder):
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(0))
    for said in (
        {"do_sample": True},
        {"do_sample": True, "temperature": 0.6, "top_p": 0.9},
        {"do_sample": True, "top_k": 0},
    ):
        theirs = GenerationConfig.from_dict(said)
        theirs.update(**GenerationConfig._get_default_generation_params(), defaults_only=True)
        made = TemperatureLogitsWarper(theirs.temperature)(None, logits)
        made = TopKLogitsWarper(theirs.top_k)(None, made) if theirs.top_k else made
        made = TopPLogitsWarper(theirs.top_p)(None, made).softmax(-1)
        torch.testing.assert_close(read_writing(folder({}, said)).sampling.probabilities(logits), made)


def test_a_configuration_speaks_where_there_is_no_file_of_generation(folder):
    config = {"eos_token_id": 3, "repetition_penalty": 1.3, "max_length": 20}
    alone = read_writing(folder(config))
    assert alone.special.stop == {3} and alone.rules.repetition_penalty == 1.3 and alone.longest is None
    beside = read_writing(folder(config, {"top_k": 0}))
    assert beside.rules.repetition_penalty == 1 and beside.sampling.top_k is None
    assert beside.special.stop == {3}  # ids that are only in config.json


OTHERS = {
    "typical_p": 0.5, "epsilon_cutoff": 0.1, "eta_cutoff": 0.1, "top_h": 0.3, "encoder_repetition_penalty": 2.0,
    "encoder_no_repeat_ngram_size": 3, "exponential_decay_length_penalty": [3, 1.1], "diversity_penalty": 0.5,
    "num_beam_groups": 2, "penalty_alpha": 0.6, "guidance_scale": 1.5, "dola_layers": "low",
    "watermarking_config": {"bias": 2.0}, "token_healing": True, "remove_invalid_values": True,
    "num_return_sequences": 2, "max_time": 1.0, "use_mtp": True, "generation_kwargs": {"a": 1},
    "begin_suppress_tokens": [3], "forced_bos_token_id": 3, "forced_decoder_ids": [[1, 2]],
    "force_words_ids": [[1]], "constraints": ["x"], "sequence_bias": {"(3,)": 2.0},
}  # fmt: skip


def test_every_rule_that_nothing_here_follows_has_a_case():
    followed = {rule.name for rule in fields(Sampling)}
    assert set(OTHERS) - followed == {name for name, policy in WRITING.items() if policy.kind == "must be"}


@pytest.mark.parametrize("name", [name for name in OTHERS if WRITING[name].kind == "must be"])
def test_a_rule_that_nothing_here_follows_is_refused_by_name(name, folder):
    with pytest.raises(ValueError, match=rf"generation_config.json: {name}=.*: expected .*the only supported value"):
        read_writing(folder({}, {name: OTHERS[name]}))
    for harmless in WRITING[name].values:
        assert read_writing(folder({}, {name: harmless})) == Writing()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"eos_token_id": [[1]]}, r"eos_token_id=\[\[1\]\]: expected token ids"),
        ({"eos_token_id": True}, "eos_token_id=True: expected token ids"),
        ({"eos_token_id": -1}, "eos_token_id=-1: expected token ids"),
        ({"eos_token_id": 2.0}, r"eos_token_id=2\.0: expected token ids"),
        ({"eos_token_id": 10}, "eos_token_id: 10: expected a token id from 0 to 9"),
        ({"suppress_tokens": [3, 12]}, "suppress_tokens: 12: expected a token id from 0 to 9"),
        ({"forced_eos_token_id": [1, 2]}, r"forced_eos_token_id=\[1, 2\]: expected a token id"),
        ({"forced_eos_token_id": "x"}, "forced_eos_token_id='x': expected a token id"),
        ({"bos_token_id": "<s>"}, "bos_token_id='<s>': expected a token id"),
        ({"decoder_start_token_id": "x"}, "decoder_start_token_id='x': expected a token id"),
        ({"pad_token_id": "x"}, "pad_token_id='x': expected a whole number"),
        ({"bad_words_ids": [[1, 2]]}, "expected single tokens"),
        ({"bad_words_ids": 5}, "bad_words_ids=5: expected single tokens"),
        ({"bad_words_ids": [[[1]]]}, "expected single tokens"),
        ({"do_sample": "yes"}, "do_sample='yes': expected true or false"),
        ({"temperature": -1}, "temperature=-1: expected a number >= 0"),
        ({"temperature": True}, "temperature=True"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"top_k": -1}, "top_k=-1: expected a whole number >= 0"),
        ({"top_p": 0}, "top_p=0: expected a fraction above 0"),
        ({"top_p": 1.5}, r"top_p=1\.5: expected a fraction"),
        ({"min_p": 2}, "min_p=2: expected a number from 0 to 1"),
        ({"num_beams": 0}, "num_beams=0: expected a whole number >= 1"),
        ({"num_beams": True}, "num_beams=True"),
        ({"length_penalty": "1"}, "length_penalty='1': expected a finite number"),
        ({"early_stopping": "soon"}, "early_stopping='soon'"),
        ({"max_new_tokens": 0}, "max_new_tokens=0: expected a whole number >= 1"),
        ({"max_length": 1.5}, r"max_length=1\.5"),
        ({"min_new_tokens": -1}, "min_new_tokens=-1"),
        ({"min_length": 5}, "min_length=5: expected 0 or min_new_tokens"),
        ({"repetition_penalty": 0}, "repetition_penalty=0: expected a number from 0.001"),
        ({"no_repeat_ngram_size": 2.5}, r"no_repeat_ngram_size=2\.5"),
        ({"renormalize_logits": 1}, "renormalize_logits=1: expected true or false"),
        ({"stop_strings": [""]}, r"stop_strings=\[''\]: expected a text"),
        ({"stop_strings": 5}, "stop_strings=5: expected a text"),
        ({"colour": "red"}, "colour='red': unsupported field"),
    ],
)
def test_what_a_field_cannot_be_is_refused(said, message, folder):
    with pytest.raises(ValueError, match=message) as caught:
        read_writing(folder({}, said), 10)
    assert "generation_config.json: " in str(caught.value)


def test_a_damaged_file_is_refused_before_anything(folder):
    home = folder({}, {})
    (home / "generation_config.json").write_text("[1]")
    with pytest.raises(ValueError, match="generation_config.json: expected a JSON object"):
        special_tokens(home)
