"""The records that ship are complete and small, and agree with what produced them."""

import json

import pytest
import torch

from authoring.records import (
    adapted,
    answering,
    cache,
    data,
    evening,
    heads,
    inside,
    law,
    recall,
    rounding,
    steps,
    story,
)
from companion.config.model import FeedForwardConfig, ModelConfig
from companion.data.stories import keeps, stories
from companion.transformer import Transformer
from companion_school.records import NAMES, answering_model, record, story_model


@pytest.fixture(scope="module")
def text():
    """Return the stories, made only when the first test needs them and not during collection."""
    return story.Text()


def test_a_name_that_is_no_record_is_refused_with_those_there_are():
    assert list(NAMES) == sorted(NAMES)
    with pytest.raises(ValueError, match=f"record 'other': expected one of {', '.join(NAMES)}"):
        record("other")


def test_the_story_record_is_made_of_the_stories_that_the_package_tells(text):
    found = record("story")
    assert found["text"] == text.fingerprint
    assert (found["train"], found["held_out"]) == (len(text.train), len(text.held_out))
    for run, (name, config, start, updates) in zip(found["runs"], story.RUNS, strict=True):
        assert run["made_of"] == story.made_of(text, run)
        assert ModelConfig.from_json(json.dumps(run["config"])) == config
        assert (run["name"], run["start"], run["plan"]["updates"]) == (name, start, updates)
        assert len(run["loss"]) == -(-updates // 20)
        assert [look["update"] for look in run["looks"]] == list(story.LOOKS[updates])


def test_what_the_record_says_of_the_stories_in_it_is_what_reading_them_says():
    for run in record("story")["runs"]:
        for look in run["looks"]:
            assert 0 <= look["kept"] <= look.get("kept_who", look["whole"]) <= look["whole"] <= look["stories"]
            assert sum(map(keeps, look["samples"])) <= look["kept"]
            assert len(look["samples"]) == 8


def test_the_story_model_scores_as_in_its_record_and_fits_in_three_megabytes(text):
    model, tokenizer = story_model()
    assert tokenizer.to_json() == text.tokenizer.to_json()
    assert sum(p.numel() for p in model.parameters()) == record("story")["runs"][0]["weights"]
    scored = story.bits_of(model, text)
    assert abs(scored - record("story")["runs"][0]["looks"][-1]["bits_per_byte"]) < 0.002  # stored in half precision
    folder = story.__file__.replace("authoring/records/story.py", "companion_school/records/story")
    weights = (law.Path(folder) / "model.safetensors").stat().st_size
    assert weights < 3e6 and model.embedding.weight.dtype == torch.float32


def test_held_out_stories_are_told_to_nobody_before(text):
    trained = {one.text for one in text.train}
    assert trained.isdisjoint(one.text for one in text.held_out)
    assert [one.text for one in text.train[:5]] == [one.text for one in stories(5)]


def test_the_law_record_holds_the_trials_that_its_command_makes():
    found = record("law")
    assert [trial["width"] for trial in found["fitted"]] == list(law.FITTED)
    asked = [(width, updates, start) for width, updates in law.EQUAL.items() for start in law.STARTS]
    assert [(trial["width"], trial["updates"], trial["start"]) for trial in found["equal"]] == asked
    parts = [(part, start) for part in law.PARTS for start in law.STARTS]
    assert [(trial["part"], trial["start"]) for trial in found["parts"]] == parts
    assert [(trial["width"], trial["start"]) for trial in found["falling"]] == [
        (width, start) for width in (law.ADVISED, 64) for start in law.STARTS
    ]
    assert [(trial["width"], trial["rate"]) for trial in found["large"]] == [(208, 0.003), (208, 0.01)]
    for trial in (trial for trials in found.values() for trial in trials):
        at = trial.get("at", [trial["updates"]])
        assert list(trial["scores"]) == [str(update) for update in at] and at[-1] == trial["updates"]
    costs = {trial["parameters"] * trial["updates"] for trial in found["equal"]}
    assert max(costs) < 1.01 * min(costs)


def test_the_cache_record_holds_every_kind_from_every_start_at_both_budgets():
    found = record("cache")["runs"]
    asked = {
        (kind, start, updates) for updates, kinds in cache.BUDGETS.items() for kind in kinds for start in cache.STARTS
    }
    assert {(run["kind"], run["start"], run["updates"]) for run in found} == asked and len(found) == len(asked)
    for run in found:
        config = ModelConfig(512, 64, 2, 512, cache.KINDS[run["kind"]], FeedForwardConfig(170))
        assert run["kept"] == config.sizes.kept_numbers
        assert run["weights"] == sum(p.numel() for p in Transformer(config).decoder.blocks[0].attention.parameters())


def test_the_recall_record_holds_every_kind_from_every_start_at_both_budgets():
    found = record("recall")["runs"]
    assert [(run["start"], run["kind"]) for run in found] == [
        (start, kind) for start in recall.STARTS for kind in recall.KINDS
    ]
    for run in found:
        assert list(run["right"]) == [str(updates) for updates in recall.BUDGETS]
        for asked in run["right"].values():
            assert [(pairs, again) for pairs, again, _ in asked] == [
                (pairs, again) for pairs in (4, 8, 16, 32) for again in (0, pairs // 2)
            ]
            assert all(0 <= share <= 100 for *_, share in asked)


def test_the_record_of_heads_has_every_start_at_both_budgets_and_heads_that_fade_with_the_distance():
    found = record("heads")["runs"]
    asked = {
        (count, start, updates) for count in (0, heads.AHEAD) for start in heads.STARTS for updates in heads.BUDGETS
    }
    assert {(run["heads"], run["start"], run["updates"]) for run in found} == asked and len(found) == len(asked)
    for run in found:
        assert len(run["agreement"]) == run["heads"] and 0 < run["loss"] < 3
        assert run["agreement"] == sorted(run["agreement"], reverse=True)


def test_the_record_of_rounding_has_every_start_at_both_budgets_and_every_way():
    found = record("rounding")["runs"]
    assert [(run["start"], run["updates"]) for run in found] == [
        (start, updates) for start in rounding.STARTS for updates in rounding.BUDGETS
    ]
    for run in found:
        assert list(run["more"]) == ["plain model", "loud channels"]
        for more in run["more"].values():
            assert tuple(more) == rounding.WAYS and all(0 < percent < 100 for percent in more.values())


def test_the_record_of_steps_has_every_run_and_the_best_rates_of_the_first_start():
    found = record("steps")["runs"]
    asked = list(steps.asked())
    assert [steps.Run(*(run[name] for name in steps.Run._fields)) for run in found] == asked
    of = {run: one["loss"] for run, one in zip(asked, found, strict=True)}
    for (way, updates), best in steps.BEST.items():
        first = {run.rate: of[run] for run in asked if (run.part, *run[1:3]) == ("rates", way, 64)
                 and (run.updates, run.start) == (updates, 0)}  # fmt: skip
        assert min(first, key=first.__getitem__) == best
    for updates, carried in steps.CARRIED.items():
        narrow = {run.rate: of[run] for run in asked if run[:3] == ("widths", "AdamW", 32) and run.updates == updates}
        assert min(narrow, key=narrow.__getitem__) == carried


def test_the_record_of_answers_has_every_reward_from_every_start_and_a_model_that_is_small():
    every = record("answering")
    kinds = [(one["kind"], one["updates"], one["start"]) for one in every["smollm2"][1:]]
    assert kinds == [*adapted.RUNS] and every["smollm2"][0]["updates"] == 0
    assert [one["start"] for one in every["distilled"]] == [*answering.STARTS]
    assert all([step for step, _ in one["rows"]] == [*answering.DISTILLED] for one in every["distilled"])
    found = every["runs"]
    assert [(run["reward"], run["start"]) for run in found] == [
        (reward, start) for reward, of in answering.STEPS.items() for start in range(len(of))
    ]
    for run in found:
        steps = answering.STEPS[run["reward"]][run["start"]]
        assert [row[0] for row in run["rows"]] == [*range(0, steps + 1, answering.EVERY)]
        assert all(len(row) == 5 and all(0 <= share <= 1 for share in (*row[1:3], row[4])) for row in run["rows"])
        assert len(run.get("counted", ())) == (2 if run["reward"] == "checker" and run["start"] == 0 else 0)
        for counted in run.get("counted", ()):
            assert len(counted) == answering.TRIES + 1 and sum(counted) == answering.ASKED
    model = answering_model()
    assert sum(p.numel() for p in model.parameters()) < 100_000 and model.embedding.weight.dtype == torch.float32


def test_the_record_of_looks_inside_has_every_start_at_every_moment():
    found = record("inside")
    asked = [(start, updates) for updates in inside.READERS for start in inside.STARTS]
    assert [(run["start"], run["updates"]) for run in found["readers"]] == asked
    for run in found["readers"]:
        assert [row[0] for row in run["rows"]] == [*range(0, run["updates"] + 1, inside.LOOK)]
        assert all(0 <= share <= 1 for row in run["rows"] for share in row[1:])
    asked = [(start, updates) for updates in inside.BUDGETS for start in inside.STARTS]
    assert [(one["start"], one["updates"]) for one in found["stories"]] == asked
    assert all(0 < one["both"] <= inside.PAIRS and one["next"] < one["noising"] for one in found["stories"])
    assert [film["start"] for film in found["films"]] == [*inside.STARTS]
    for film in found["films"]:
        assert [row[0] for row in film["rows"]] == [*range(0, inside.BUDGETS[-1] + 1, 2 * inside.EVERY)]
    asked = [(start, updates) for updates in (0, *inside.BUDGETS) for start in inside.STARTS]
    assert [(one["start"], one["updates"]) for one in found["streams"]] == asked
    assert all(0 <= share <= 1 for one in found["streams"] for share in (one["probe"], *one["purity"]))


def test_the_record_of_data_has_every_text_from_every_start_at_both_budgets():
    found = record("data")
    asked = [(text, start) for text in data.TEXTS for start in data.STARTS]
    assert [(run["setting"], run["start"]) for run in found["texts"]] == asked
    for run in found["texts"]:
        assert list(run["scores"]) == [str(updates) for updates in (*data.LOOKS, data.UPDATES)]
        assert all(1 < bits < 4.5 for scores in run["scores"].values() for bits in scores.values())


def test_the_record_of_an_evening_has_its_pilots_and_every_way_to_a_longer_context_from_every_start():
    found = record("evening")
    assert [run["width"] for run in found["pilots"]] == list(evening.PILOTS)
    assert all(list(run["scores"]) == [str(look) for look in evening.LOOKS] for run in found["pilots"])
    trained, longer = found["trained"], found["longer"]
    operations = 6 * trained["parameters"] * 1024 * trained["updates"]
    assert abs(operations / evening.BUDGET - 1) < 0.01 and found["cost"]["training"][0] == operations
    assert trained["interval"][0] < trained["score"] < trained["interval"][1]
    assert [run["start"] for run in longer] == list(evening.STARTS)
    for run in longer:
        last = {how: rows[1][2] for how, rows in run["rows"].items()}
        assert min(last, key=last.get) == "context 64" and max(last, key=last.get) == "interpolated"
    for high, low in zip(longer, found["gentler"], strict=True):
        assert high["rate"] > low["rate"] and high["start"] == low["start"]
        assert high["scores"]["context 64"] > max(low["scores"]["context 64"], trained["looked"])
        assert high["scores"]["larger base"] < low["scores"]["larger base"]
    assert found["answers"]["right"] < found["openings"]["right"] <= 48
