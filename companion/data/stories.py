"""Short stories from a grammar, and a reader that checks whether a story is consistent about who did what.

A plot is a sequence of beats, and a beat has several wordings. Persons, things and places have roles in a plot (who
loses the thing, who finds it), and each sentence names its roles. So every story makes sense, and whether a text by
another writer makes sense can be decided. `read` finds the plot that a text follows and what it says about each role,
and lists contradictions: another name, another thing, "he" for "she", the wrong one who is glad.

Everything is drawn with `random.Random(seed).random()`, the only method that Python guarantees not to change, so the
same seed gives the same stories on every Python and machine.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from companion.data.corpora import Document
from companion.ground.fields import require_whole

Facts = Mapping[str, str]
"""What is known about a role, such as {"name": "Mila", "kind": "mole", "she": "yes"}."""

CAST = {"Emil": "frog", "Greta": "goat", "Hugo": "hare", "Mila": "mole", "Rosa": "owl", "Tom": "fox"}
"""The persons, and what they are. There are few, so that a small model meets each one often enough."""
GIRLS = ("Greta", "Mila", "Rosa")
THINGS = {"ball": "blue", "bell": "golden", "boat": "little", "drum": "old", "hat": "striped", "kite": "red"}
FOODS = {"cake": "big", "melon": "sweet", "pie": "warm"}
PLACES = ("hill", "market", "mill", "pond")
BOXES = ("basket", "chest", "drawer", "jar")
TIMES = ("morning", "sunny day", "windy day")


def _a(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _sex(name: str) -> str:
    return "yes" if name in GIRLS else "no"


def _by_sex(her: str, him: str) -> dict[str, Facts]:
    return {her: {"she": "yes"}, him: {"she": "no"}}


def _looking(things: Mapping[str, str]) -> dict[str, dict[str, Facts]]:
    both = {f"{look} {noun}": {"look": look, "noun": noun} for look in things.values() for noun in things}
    return {
        "": dict(both),
        "a": {_a(words): facts for words, facts in both.items()},
        "noun": {noun: {"noun": noun} for noun in things},
    }


def _plain(words: Sequence[str]) -> dict[str, dict[str, Facts]]:
    return {"": {word: {"word": word} for word in words}}


FORMS: Mapping[str, Mapping[str, Mapping[str, Facts]]] = {
    "person": {
        "": {name: {"name": name, "she": _sex(name)} for name in CAST},
        "the": {f"the {kind}": {"kind": kind} for kind in CAST.values()},
        "The": {f"The {kind}": {"kind": kind} for kind in CAST.values()},
        "a": {_a(kind): {"kind": kind} for kind in CAST.values()},
        "A": {_a(kind).capitalize(): {"kind": kind} for kind in CAST.values()},
        "he": _by_sex("she", "he"),
        "He": _by_sex("She", "He"),
        "him": _by_sex("her", "him"),
        "his": _by_sex("her", "his"),
        "His": _by_sex("Her", "His"),
    },
    "thing": _looking(THINGS),
    "food": _looking(FOODS),
    "place": _plain(PLACES),
    "box": _plain(BOXES),
    "time": _plain(TIMES),
}
"""For each sort of role, the forms in which a sentence may name it; for each form, a map from text to what it says."""


@dataclass(frozen=True)
class Plot:
    """A sequence of beats, and the roles in it.

    Attributes:
        roles: role -> its sort, a key of `FORMS`.
        beats: for each beat its wordings; "" means that the beat may be left out.
        holds: who has what in the end, role -> role.
    """

    roles: Mapping[str, str]
    beats: tuple[tuple[str, ...], ...]
    holds: Mapping[str, str]


_OPEN = (
    "Once there was {hero:a} named {hero}.",
    "Once upon a time there lived {hero:a} named {hero}.",
    "{hero} was {hero:a} who lived near the {place}.",
    "Near the {place} lived {hero:a}, and {hero:his} name was {hero}.",
)
_OWN = (
    "{hero:He} had {thing:a}, and {hero:he} loved it very much.",
    "{hero:The} had {thing:a}.",
    "Of all {hero:his} things {hero:he} liked {hero:his} {thing} best.",
    "For {hero:his} birthday {hero:he} had got {thing:a}.",
)
_MEET = (
    "Then {friend:a} named {friend} came along.",
    "Just then {friend}, {friend:a}, came down the road.",
    "There {hero:he} met {friend:a} named {friend}.",
)

PLOTS: Mapping[str, Plot] = {
    "lost": Plot(
        {"hero": "person", "friend": "person", "thing": "thing", "place": "place", "time": "time"},
        (
            _OPEN,
            _OWN,
            (
                "One {time} {hero} took the {thing:noun} to the {place}.",
                "One {time} {hero:he} went to the {place} and played with the {thing:noun}.",
                "One {time} {hero:the} carried it all the way to the {place}.",
            ),
            (
                "But when {hero:he} came home, the {thing:noun} was gone.",
                "In the evening {hero} saw that {hero:he} had lost the {thing}.",
                "When {hero:he} wanted to go home, {hero:he} could not find the {thing:noun}.",
            ),
            ("{hero} sat down and cried.", "{hero:The} was very sad.", "{hero} looked and looked, and began to cry."),
            _MEET[:2],
            (
                '"Why are you crying, {hero}?" asked {friend}.',
                '"What is wrong?" asked {friend:the}.',
                '"You look so sad, {hero}," said {friend:the}.',
            ),
            (
                '"I have lost my {thing}," said {hero}.',
                '"My {thing:noun} is gone," said {hero:the}.',
                '"I had my {thing} near the {place}, and now it is gone," said {hero}.',
            ),
            (
                "They went back to the {place} and looked everywhere.",
                '"Then we will look for it near the {place}," said {friend}.',
                "So the two went to the {place}.",
            ),
            (
                "Under a big leaf {friend} found the {thing}.",
                "It was {friend} who saw the {thing:noun} behind a stone.",
                'After a while {friend:the} called, "Here is your {thing}!"',
            ),
            (
                "{friend} gave the {thing:noun} back to {hero}.",
                "{friend:He} gave it to {hero}.",
                "{hero} got {hero:his} {thing:noun} back.",
            ),
            (
                '{hero} was happy again. "Thank you, {friend}!" {hero:he} said.',
                '"Thank you, {friend}," said {hero}, and {hero:he} laughed.',
                "{hero:The} was so glad that {hero:he} hugged {friend}.",
            ),
            (
                "",
                "From that day on {hero} and {friend:the} were friends.",
                "And {hero} never left the {thing:noun} near the {place} again.",
            ),
        ),
        {"hero": "thing"},
    ),
    "gone": Plot(
        {"hero": "person", "friend": "person", "thing": "thing", "other": "thing", "place": "place", "time": "time"},
        (
            _OPEN,
            _OWN,
            (
                "One {time} {hero} let the {thing:noun} fall into the water near the {place}.",
                "One {time} the wind took the {thing} away, over the {place} and far off.",
                "One {time} {hero:he} took it to the {place}, and on the way home {hero:he} lost it.",
            ),
            ("{hero} was very sad.", "{hero:The} cried all the way home.", "{hero} could not stop crying."),
            _MEET[:2],
            (
                '"My {thing} is gone," said {hero}.',
                '"I have lost my {thing:noun}, and I will never get it back," said {hero:the}.',
            ),
            (
                '"We will look for it," said {friend}.',
                '"Let us go to the {place} and look," said {friend:the}.',
            ),
            (
                "They looked near the {place} until it was dark, but they did not find it.",
                "They looked everywhere, but the {thing:noun} was not there.",
            ),
            (
                "Then {friend} went home and came back with {other:a}.",
                '"Wait here," said {friend}, and {friend:he} ran home and came back with {other:a}.',
            ),
            (
                '"I will give you my {other}," said {friend}.',
                '"This {other:noun} is for you, {hero}," {friend:he} said.',
            ),
            (
                "{hero} took the {other:noun} and smiled.",
                '"Thank you, {friend}," said {hero}. "You are kind."',
            ),
            (
                "The {thing} never came back, but now {hero} had the {other} and a friend.",
                "So {hero} lost the {thing:noun}, and {friend} gave {hero:him} the {other:noun}.",
            ),
        ),
        {"hero": "other"},
    ),
    "swap": Plot(
        {"hero": "person", "friend": "person", "thing": "thing", "other": "thing", "place": "place", "time": "time"},
        (
            _OPEN,
            _OWN[:2],
            (
                "But {hero:he} wished for {other:a}.",
                "But what {hero:he} wanted most was {other:a}.",
                "Every night {hero:he} dreamed of {other:a}.",
            ),
            (
                "One {time} {hero} went to the {place}.",
                "One {time} {hero:the} walked to the {place} with the {thing:noun}.",
            ),
            _MEET[1:],
            (
                "{friend} had {other:a}!",
                "{friend:The} was playing with {other:a}.",
                "And what did {friend} have? It was {other:a}.",
            ),
            (
                '"What a fine {other:noun}!" said {hero}.',
                '"I wish I had your {other}," said {hero:the}.',
            ),
            (
                '"And I wish I had your {thing}," said {friend}.',
                '"I like your {thing:noun} better," said {friend:the}.',
            ),
            (
                '"Then let us swap," said {hero}.',
                '"Shall we swap, {friend}?" asked {hero:the}.',
                '"Take my {thing:noun}, and give me your {other:noun}," said {hero}.',
            ),
            (
                "So {hero} gave {friend} the {thing}, and {friend} gave {hero} the {other}.",
                "{hero} gave away the {thing:noun} and got the {other:noun}.",
                "{friend} took the {thing:noun}, and {hero} took the {other:noun}.",
            ),
            (
                "",
                "They played near the {place} until the sun went down.",
                "{friend:The} laughed, and {hero} laughed too.",
            ),
            (
                "Now {hero} had the {other}, and {friend} had the {thing}.",
                "{hero} went home with the {other}, and {friend} went home with the {thing}.",
            ),
        ),
        {"hero": "other", "friend": "thing"},
    ),
    "stuck": Plot(
        {"hero": "person", "friend": "person", "thing": "thing", "place": "place", "time": "time"},
        (
            _OPEN,
            _OWN,
            (
                "One {time} {hero} threw the {thing:noun} so high that it stayed in a tree near the {place}.",
                "One {time} the wind blew the {thing} onto a roof near the {place}.",
                "One {time} a bird took the {thing:noun} and dropped it on a wall near the {place}.",
            ),
            (
                "{hero:He} jumped and jumped, but {hero:he} was too small.",
                "{hero} tried to climb up, but {hero:he} fell down again.",
                "It was much too high for {hero}.",
            ),
            (
                "{friend}, {friend:a}, saw it.",
                "A little later {friend:a} named {friend} came to the {place}.",
            ),
            (
                '"Can you help me, {friend}?" asked {hero}.',
                '"My {thing:noun} is up there, and I am too small," said {hero:the}.',
                '"Please help me to get my {thing}," said {hero}.',
            ),
            (
                '"I can climb," said {friend}.',
                '"Of course I will help you, {hero}," said {friend:the}.',
                '"Stand on my back, {hero}," said {friend}.',
            ),
            (
                "{friend} was strong, and soon they had the {thing:noun} down.",
                "With the help of {friend} the {thing} was soon down.",
                "It took a while, but then {friend:the} had it in {friend:his} paws.",
            ),
            (
                "{friend} gave {hero} the {thing:noun}.",
                '"Here is your {thing}, {hero}," said {friend}.',
            ),
            (
                '"Thank you, {friend}," said {hero}. "Now we will play together!"',
                '{hero} danced for joy. "Thank you!" {hero:he} said to {friend}.',
                "{hero:The} thanked {friend}.",
            ),
            (
                "They played with the {thing} until it was dark.",
                "All day the two played with the {thing:noun} near the {place}.",
                "In the evening {hero} took the {thing} home.",
            ),
        ),
        {"hero": "thing"},
    ),
    "hidden": Plot(
        {"hero": "person", "friend": "person", "thing": "thing", "place": "place", "box": "box", "second": "box"},
        (
            _OPEN,
            (
                "{hero:He} had a friend, {friend:a} named {friend}.",
                "{friend}, {friend:a}, was {hero:his} best friend.",
            ),
            (
                "{hero} had {thing:a}.",
                "They often played with {thing:a} that {hero} had found.",
            ),
            (
                "One evening {hero} put the {thing:noun} into the {box}.",
                "{hero:The} laid the {thing} in the {box} and closed it.",
            ),
            (
                "Then {hero} went to the {place}.",
                "Then {hero:he} left the house and walked to the {place}.",
            ),
            (
                "While {hero} was away, {friend} took the {thing:noun} out of the {box} and put it into the {second}.",
                "{friend} opened the {box}, took the {thing} and hid it in the {second}.",
            ),
            (
                "{hero:The} was at the {place} and saw nothing of this.",
                "{hero} did not know it, for {hero:he} was at the {place}.",
            ),
            (
                "When {hero} came back, {hero:he} looked into the {box}.",
                "{hero} came back and wanted to play, so {hero:he} opened the {box}.",
            ),
            (
                "But the {box} was empty!",
                "But there was no {thing:noun} in the {box}.",
            ),
            (
                '"Where is my {thing:noun}?" asked {hero}.',
                '"Somebody has taken my {thing}!" cried {hero:the}.',
            ),
            (
                '{friend} laughed. "Look into the {second}, {hero}!"',
                '"I hid it in the {second}," said {friend}.',
                '"It is not in the {box}, it is in the {second}," said {friend:the}.',
            ),
            (
                "{hero} opened the {second}, and there was the {thing}.",
                "And there it was: the {thing} lay in the {second}, and {hero} took it out.",
            ),
            (
                "",
                "{hero} laughed too.",
                '"Next time I will hide it from you, {friend}," said {hero}.',
            ),
        ),
        {"hero": "thing"},
    ),
    "broken": Plot(
        {"hero": "person", "friend": "person", "thing": "thing", "place": "place", "time": "time"},
        (
            _OPEN,
            (
                "{hero:His} friend {friend}, {friend:a}, had {thing:a}.",
                "{friend:A} named {friend} was {hero:his} friend, and {friend:he} had {thing:a}.",
            ),
            (
                '"May I borrow your {thing:noun}, {friend}?" asked {hero}.',
                '"Please lend me your {thing}, {friend}," said {hero:the}.',
            ),
            (
                '"Yes, but take care of it," said {friend}.',
                '"Take it, {hero}, and bring it back," said {friend:the}.',
            ),
            (
                "One {time} {hero} ran to the {place} with the {thing:noun}.",
                "One {time} {hero:the} carried it to the {place}.",
            ),
            (
                "{hero:He} fell over a stone, and the {thing:noun} broke.",
                "There {hero} dropped the {thing:noun}, and it broke in two.",
            ),
            (
                '{hero} was afraid. "What will {friend} say?" {hero:he} thought.',
                "{hero:The} wanted to hide it near the {place}, for {hero:he} was afraid.",
            ),
            (
                "But {hero:he} went to {friend} and told {friend:him} everything.",
                "But then {hero} took the {thing:noun} back to {friend}.",
            ),
            (
                '"I broke your {thing}, {friend}. I am sorry," said {hero}.',
                '"I am sorry, {friend}," said {hero:the}. "Your {thing:noun} is broken."',
            ),
            (
                "{friend} was sad, but {friend:he} was not angry.",
                '"It is good that you told me, {hero}," said {friend}.',
            ),
            (
                "They mended the {thing:noun} with a little glue.",
                "{hero} worked all night and mended the {thing:noun}.",
            ),
            (
                "Soon the {thing} was as good as new, and {friend} had it back.",
                "In the end {friend} had {friend:his} {thing} again, and {hero} was glad.",
            ),
        ),
        {"friend": "thing"},
    ),
    "gift": Plot(
        {
            "hero": "person",
            "friend": "person",
            "third": "person",
            "thing": "thing",
            "other": "thing",
            "place": "place",
        },
        (
            _OPEN,
            (
                "{hero:His} friend was {friend:a} named {friend}.",
                "{hero} had a friend, {friend:a} named {friend}.",
            ),
            (
                "Tomorrow was the birthday of {friend}, who wished for {thing:a}.",
                '"Tomorrow is my birthday," said {friend}, "and I wish for {thing:a}."',
            ),
            (
                "But {hero} had no {thing:noun}. All {hero:he} had was {other:a}.",
                "{hero:The} had nothing to give but {other:a}.",
            ),
            (
                "So {hero} took the {other:noun} and went to the {place}.",
                "{hero:He} went to the {place} with the {other:noun} in {hero:his} paw.",
            ),
            (
                "At the {place} {hero:he} met {third:a} named {third}, who had {thing:a}.",
                "There stood {third}, {third:a}, with {thing:a}.",
            ),
            (
                '"Will you give me the {thing} for my {other}?" asked {hero}.',
                '"I need your {thing:noun}, {third}," said {hero}. "You may have my {other:noun}."',
            ),
            (
                '"Gladly," said {third:the}, and {third:he} took the {other}.',
                '"I always wanted {other:a}," said {third}.',
            ),
            (
                "{hero} ran home from the {place} with the {thing:noun}.",
                "{hero} thanked {third} and carried the {thing:noun} home.",
            ),
            (
                "The next day {hero} gave the {thing} to {friend}.",
                '"This is for you, {friend}," said {hero} the next day, and gave {friend:him} the {thing}.',
            ),
            (
                '{friend} jumped for joy. "Thank you, {hero}!"',
                "{friend:The} was so happy that {friend:he} hugged {hero}.",
            ),
            (
                "Now {friend} had the {thing}, {third} had the {other}, and {hero} had a happy friend.",
                "{third} kept the {other}, {friend} kept the {thing}, and {hero} was the happiest of all.",
            ),
        ),
        {"friend": "thing", "third": "other"},
    ),
    "selfish": Plot(
        {"hero": "person", "friend": "person", "food": "food", "place": "place", "time": "time"},
        (
            _OPEN,
            (
                "One {time} {hero:he} was eating {food:a} near the {place}.",
                "One {time} {hero} sat near the {place} with {food:a}.",
            ),
            (
                "{friend:A} named {friend} came by and was very hungry.",
                "Then came {friend}, {friend:a}, who had eaten nothing all day.",
            ),
            (
                '"Will you give me a piece of your {food:noun}, {hero}?" asked {friend}.',
                '"Please, {hero}, may I have some of the {food}?" asked {friend:the}.',
            ),
            (
                '"No, the {food:noun} is mine," said {hero}.',
                '"No," said {hero:the}, "I want to eat it alone."',
            ),
            (
                "{friend} went away, sad and hungry.",
                "So {friend:the} walked on and got nothing.",
            ),
            (
                "But on the way home {hero} fell into a deep hole near the {place}.",
                "Soon after, {hero:the} slipped and fell into the mud near the {place}.",
            ),
            (
                '"Help! Help!" cried {hero}.',
                "{hero} called for help, but nobody came.",
            ),
            (
                "It was {friend} who heard {hero:him} and pulled {hero:him} out.",
                "Then {friend} came running and helped {hero:him} out.",
            ),
            (
                "{hero} was ashamed, for {hero:he} had been unkind to {friend}.",
                '"You helped me, and I gave you nothing, {friend}," said {hero}.',
            ),
            (
                '"Take the {food:noun}, {friend}," {hero:he} said.',
                "{hero} broke the {food} in two and gave half of it to {friend}.",
            ),
            (
                "They ate the {food:noun} together, and it had never tasted so good.",
                "And from then on {hero} never ate {food:a} alone.",
            ),
        ),
        {"friend": "food"},
    ),
}


@dataclass(frozen=True)
class Story:
    """A generated story: its plot (a key of `PLOTS`), what each role is, and its sentences."""

    plot: str
    roles: Mapping[str, Facts]
    beats: tuple[str, ...]

    @property
    def text(self) -> str:
        """The text of the story: sentences separated by spaces."""
        return " ".join(_filled(beat, PLOTS[self.plot].roles, self.roles) for beat in self.beats)

    @property
    def document(self) -> Document:
        """The story as a document, named by its plot and persons."""
        persons = [facts["name"] for facts in self.roles.values() if "name" in facts]
        return Document(f"{self.plot}: {', '.join(persons)}", self.text)

    def holds(self) -> dict[str, str]:
        """Return who has what in the end, by name: {"Mila": "red kite"}."""
        return _held(PLOTS[self.plot], self.roles)

    def bits(self) -> float:
        """Return -log2 of the probability of this text: no code, and no model, needs fewer bits on average.

        Only the roles that the text names count. (It ignores that no text is generated twice.)
        """
        plot = PLOTS[self.plot]
        said = {role for beat in self.beats for role, _ in _said(beat, plot.roles, self.roles)}
        total = math.log2(len(PLOTS)) + sum(math.log2(len(ways)) for ways in plot.beats)
        for role in said:
            earlier = list(plot.roles)[: list(plot.roles).index(role)]
            taken = sum(plot.roles[other] == plot.roles[role] for other in earlier)
            total += math.log2(len(_options(plot.roles[role], "noun")) - taken)
        return total


@dataclass(frozen=True)
class Reading:
    """Result of reading a text as the plot that it follows furthest.

    Attributes:
        plot: that plot.
        roles: what the text first says about each role that it names.
        followed: number of its characters that were read as beats of the plot.
        whole: whether it was read to its end, and the plot's own end was there.
        faults: contradictions about a role, in the order of the text, one sentence each.
        places: number of contradictions that are about a place.
    """

    plot: str
    roles: Mapping[str, Facts]
    followed: int
    whole: bool
    faults: tuple[str, ...]
    places: int

    @property
    def keeps_who(self) -> bool:
        """Whether the text is a whole story in which persons and things stay who and what they are, ignoring places."""
        return self.whole and len(self.faults) == self.places

    @property
    def keeps(self) -> bool:
        """Whether the text is a whole story in which every role stays who and what it is."""
        return self.whole and not self.faults

    def holds(self) -> dict[str, str]:
        """Return who has what in the end, by name; empty for a story that is not consistent."""
        return _held(PLOTS[self.plot], self.roles) if self.keeps else {}


def stories(count: int, seed: int = 0) -> Iterator[Story]:
    """Generate `count` stories with different texts.

    The same seed gives the same stories; a larger count only adds more.

    Raises:
        ValueError: for a count or a seed that is not a whole number from 0 on.
    """
    require_whole("count", count, 0)
    require_whole("seed", seed, 0)
    dice = random.Random(seed)
    told: set[str] = set()
    while len(told) < count:
        story = _drawn(dice)
        if story.text not in told:
            told.add(story.text)
            yield story


def read(text: str) -> Reading:
    """Read `text` as far as it follows a plot, see `Reading`. Spaces and line breaks make no difference."""
    text = " ".join(text.split())
    found = [_followed(name, text) for name in PLOTS]
    return max(found, key=lambda reading: (reading.followed, -len(reading.faults)))


def keeps(text: str) -> bool:
    """Return whether `text` is a whole story that is consistent about who did what to whom, with what and where.

    See `read`.
    """
    return read(text).keeps


def swapped(story: Story) -> Iterator[tuple[str, str]]:
    """Yield (what was changed, text) for every way to make one sentence contradict another.

    Two people in the sentence are swapped; or a person, a thing or a place is replaced by another, or "he" by "she".
    """
    plot = PLOTS[story.plot]
    said = [_said(beat, plot.roles, story.roles) for beat in story.beats]
    for number, here in enumerate(said):
        elsewhere = {fact for other, facts in enumerate(said) if other != number for fact in facts}
        persons = [role for role in plot.roles if (role, "name") in here]
        for one, two in combinations(persons, 2):
            exchanged = {one: story.roles[two], two: story.roles[one]}
            yield f"{one} and {two} exchanged in sentence {number + 1}", _told_with(story, number, exchanged)
        for role, key in sorted(here & elsewhere):
            wrong = {role: {**story.roles[role], **_another(story, role, key)}}
            yield f"another {key} of {role} in sentence {number + 1}", _told_with(story, number, wrong)


def _told_with(story: Story, number: int, wrong: Mapping[str, Facts]) -> str:
    """Return the story's text with other facts about some roles in one sentence."""
    sorts = PLOTS[story.plot].roles
    roles = [{**story.roles, **wrong} if n == number else story.roles for n in range(len(story.beats))]
    return " ".join(_filled(beat, sorts, here) for beat, here in zip(story.beats, roles, strict=True))


_SLOT = re.compile(r"\{(\w+)(?::(\w+))?\}")
_SORTS = {"thing": THINGS, "food": FOODS}
_WORDS = {"place": PLACES, "box": BOXES, "time": TIMES}


def _one(dice: random.Random, options: Sequence[str]) -> str:
    return options[int(dice.random() * len(options))]


def _drawn(dice: random.Random) -> Story:
    """Draw a story: a plot, what its roles are (no two alike), and a wording of each beat."""
    name = _one(dice, sorted(PLOTS))
    roles: dict[str, Facts] = {}
    for role, sort in PLOTS[name].roles.items():
        taken = {value for facts in roles.values() for value in facts.values()} - {"yes", "no"}
        facts = _facts(dice, sort)
        while taken.intersection(facts.values()):
            facts = _facts(dice, sort)
        roles[role] = facts
    beats = [_one(dice, ways) for ways in PLOTS[name].beats]
    return Story(name, roles, tuple(beat for beat in beats if beat))


def _facts(dice: random.Random, sort: str) -> Facts:
    if sort == "person":
        name = _one(dice, list(CAST))
        return {"name": name, "kind": CAST[name], "she": _sex(name)}
    if sort in _SORTS:
        noun = _one(dice, list(_SORTS[sort]))
        return {"look": _SORTS[sort][noun], "noun": noun}
    return {"word": _one(dice, _WORDS[sort])}


def _filled(beat: str, sorts: Mapping[str, str], roles: Mapping[str, Facts]) -> str:
    """Fill the slots of a beat with the texts for its roles."""
    return _SLOT.sub(lambda slot: _text_of(sorts[slot[1]], slot[2] or "", tuple(roles[slot[1]].items())), beat)


@cache
def _text_of(sort: str, form: str, facts: tuple[tuple[str, str], ...]) -> str:
    known = dict(facts)
    for text, says in FORMS[sort][form].items():
        if all(known[key] == value for key, value in says.items() if key != "she" or "name" not in says):
            return text
    raise ValueError(f"facts={known}: expected those of a {sort}")


def _said(beat: str, sorts: Mapping[str, str], roles: Mapping[str, Facts]) -> set[tuple[str, str]]:
    """Return (role, key) for everything that the beat says about its roles.

    A name implies the sex, so only the name counts.
    """
    said = set()
    for slot in _SLOT.finditer(beat):
        says = next(iter(FORMS[sorts[slot[1]]][slot[2] or ""].values()))
        said |= {(slot[1], key) for key in says if key != "she" or "name" not in says}
    return said


def _another(story: Story, role: str, key: str) -> Facts:
    """Return another value for one fact about a role: that of another role of the same sort, if there is one."""
    sorts = PLOTS[story.plot].roles
    if key == "she":
        return {"she": "no" if story.roles[role]["she"] == "yes" else "yes"}
    rivals = [story.roles[other][key] for other in sorts if other != role and sorts[other] == sorts[role]]
    value = rivals[0] if rivals else next(v for v in _options(sorts[role], key) if v != story.roles[role][key])
    return {key: value, "she": _sex(value)} if key == "name" else {key: value}


def _options(sort: str, key: str) -> Sequence[str]:
    """Return the possible values of one fact about a role."""
    if sort in _WORDS:
        return _WORDS[sort]
    pairs = CAST if sort == "person" else _SORTS[sort]
    return list(pairs.values()) if key in ("kind", "look") else list(pairs)


def _held(plot: Plot, roles: Mapping[str, Facts]) -> dict[str, str]:
    return {
        roles[person]["name"]: " ".join(roles[thing][key] for key in ("look", "noun") if key in roles[thing])
        for person, thing in plot.holds.items()
    }


@cache
def _pattern(plot: str, beat: str) -> tuple[re.Pattern[str], tuple[tuple[str, str], ...]]:
    """Return a pattern that matches a beat with any roles, and (role, form) for each of its groups."""
    sorts, slots, parts, end = PLOTS[plot].roles, [], [], 0
    for slot in _SLOT.finditer(beat):
        texts = sorted(FORMS[sorts[slot[1]]][slot[2] or ""], key=len, reverse=True)
        parts += [re.escape(beat[end : slot.start()]), "(", "|".join(map(re.escape, texts)), ")"]
        slots.append((slot[1], slot[2] or ""))
        end = slot.end()
    return re.compile("".join([*parts, re.escape(beat[end:]), "(?: |$)"])), tuple(slots)


def _followed(name: str, text: str) -> Reading:
    """Read the text as this plot, beat after beat, choosing the matching wording with the fewest contradictions."""
    plot, at, missing = PLOTS[name], 0, False
    roles: dict[str, dict[str, str]] = {}
    faults: list[tuple[str, str]] = []
    for ways in plot.beats:
        fitting = [
            (found, slots) for way in ways if way for pattern, slots in [_pattern(name, way)]
            if (found := pattern.match(text, at))
        ]  # fmt: skip
        if not fitting:
            missing = "" not in ways
            if missing:
                break
            continue
        tried = [(_bound(plot, roles, found, slots), found) for found, slots in fitting]
        (new, wrong), found = min(tried, key=lambda one: (len(one[0][1]), -one[1].end()))
        roles, at = new, found.end()
        faults += wrong
    alike = [
        f"{one} and {two} are alike" for one, two in _pairs(plot, roles)
        if any(roles[one].get(key) == roles[two].get(key, "?") for key in ("name", "kind", "noun", "word"))
    ]  # fmt: skip
    places = sum(plot.roles[role] == "place" for role, _ in faults)
    whole = not missing and at == len(text) > 0
    return Reading(name, roles, at, whole, (*(fault for _, fault in faults), *alike), places)


def _pairs(plot: Plot, roles: Mapping[str, Facts]) -> Iterator[tuple[str, str]]:
    known = [role for role in plot.roles if role in roles]
    for i, one in enumerate(known):
        yield from ((one, two) for two in known[:i] if plot.roles[one] == plot.roles[two])


def _bound(
    plot: Plot, roles: Mapping[str, Mapping[str, str]], found: re.Match[str], slots: Sequence[tuple[str, str]]
) -> tuple[dict[str, dict[str, str]], list[tuple[str, str]]]:
    """Add what this beat says to the roles.

    Returns:
        The roles, and (role, contradiction) for what does not fit earlier beats.
    """
    new: dict[str, dict[str, str]] = {role: dict(facts) for role, facts in roles.items()}
    faults: list[tuple[str, str]] = []
    for (role, form), text in zip(slots, found.groups(), strict=True):
        facts = new.setdefault(role, {})
        says = FORMS[plot.roles[role]][form][text]
        wrong = [key for key, value in says.items() if facts.get(key, value) != value]
        if wrong:
            was = facts.get("name") or {"yes": "she", "no": "he"}.get(facts[wrong[0]], facts[wrong[0]])
            faults.append((role, f"{found[0].strip()!r}: the {role} was {was}, and here is {text}"))
        new[role] = {**says, **facts}
    return new, faults
