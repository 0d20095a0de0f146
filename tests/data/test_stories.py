"""The story reader finds every story of ours consistent, and inconsistent after any swap of facts."""

import dataclasses
import hashlib
import math

import pytest

from companion.data.stories import PLOTS, keeps, read, stories, swapped

TOLD = list(stories(150, seed=7))


def test_the_same_seed_tells_the_same_stories_on_every_python() -> None:
    text = "\n".join(story.text for story in stories(500))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "72354b896bd2230c"
    assert [story.text for story in stories(40)] == text.split("\n")[:40]
    assert {story.text for story in stories(300)}.isdisjoint(story.text for story in TOLD)


def test_the_bits_of_a_story_are_those_of_its_dice() -> None:
    story = next(one for one in TOLD if one.plot == "stuck")
    ways = math.prod(map(len, PLOTS["stuck"].beats))
    persons, thing, place, time = 6 * 5, 6, 4, 3
    assert math.isclose(story.bits(), math.log2(len(PLOTS) * ways * persons * thing * place * time))
    without = dataclasses.replace(story, beats=tuple(beat for beat in story.beats if "{time}" not in beat))
    assert math.isclose(story.bits() - without.bits(), math.log2(time))  # what is left unsaid costs nothing


def test_no_story_is_told_twice() -> None:
    assert len({story.text for story in stories(3000)}) == 3000


def test_every_story_keeps_who_did_what() -> None:
    assert {story.plot for story in TOLD} == set(PLOTS)
    for story in TOLD:
        reading = read(story.text)
        assert reading.keeps and keeps(story.text.replace(". ", ".\n\n")), reading
        assert reading.plot == story.plot and reading.holds() == story.holds()
        for role, facts in reading.roles.items():  # a text need not mention all that its author knew
            assert facts.items() <= story.roles[role].items() and facts


def test_no_story_with_a_swapped_fact_keeps_who_did_what() -> None:
    kinds = set()
    for story in TOLD:
        for done, text in swapped(story):
            reading = read(text)
            assert text != story.text and not reading.keeps and reading.faults, done
            assert reading.holds() == {}
            kinds.add(done.split(" ")[1])
            of_place = "word of place" in done
            assert reading.keeps_who == of_place and reading.places == of_place * len(reading.faults)
    # "and" means that two persons were exchanged
    assert kinds == {"name", "kind", "she", "look", "noun", "word", "and"}


def test_in_most_sentences_of_a_story_a_fact_can_be_swapped() -> None:
    for story in TOLD:
        touched = {done.rsplit(" ", 1)[1] for done, _ in swapped(story)}
        assert len(touched) > 0.7 * len(story.beats), story.text


@pytest.mark.parametrize("at", [1, 3, -1])
def test_a_story_that_loses_a_beat_or_tells_it_too_late_is_no_whole_story(at: int) -> None:
    for story in TOLD:
        beats = story.beats
        if "" in PLOTS[story.plot].beats[at] and at == -1:
            continue  # the last beat of this plot is optional
        left_out = type(story)(story.plot, story.roles, (*beats[:at], *beats[at:][1:]))
        assert not read(left_out.text).whole
        late = type(story)(story.plot, story.roles, (*beats[:at], *beats[at:][1:], beats[at], beats[0]))
        assert not read(late.text).whole


def test_a_fault_says_what_was_said_before_and_what_is_said_now() -> None:
    text = (
        "Once there was a mole named Mila. The mole had a red kite. One windy day Mila took the kite to the mill. "
        "But when she came home, the kite was gone. Mila sat down and cried. Then a fox named Otto came along."
    )
    # Otto is not one of our characters, and the story is not over
    assert not read(text).keeps and not read(text).faults
    text = text.replace("Otto", "Tom")
    assert read(text).faults == () and not read(text).whole and read(text).followed == len(text)
    wrong = text + ' "Why are you crying, Tom?" asked Mila.'
    assert "the hero was Mila, and here is Tom" in read(wrong).faults[0]
    assert "the friend was Tom, and here is Mila" in read(wrong).faults[1]
    he = text.replace("when she came", "when he came")
    assert "the hero was Mila, and here is he" in read(he).faults[0]
    same = text.replace("a fox named Tom", "a mole named Tom")
    assert read(same).faults == ("friend and hero are alike",)


@pytest.mark.parametrize("text", ["", "   ", "Hello world.", "Once there was a owl named Mila."])
def test_what_is_no_story_is_none(text: str) -> None:
    assert not keeps(text) and not read(text).whole


@pytest.mark.parametrize("count, seed, message", [(-1, 0, "count=-1"), (1.5, 0, "count=1.5"), (3, -2, "seed=-2")])
def test_what_is_no_number_of_stories_is_refused(count: int, seed: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(stories(count, seed))
