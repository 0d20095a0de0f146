"""The stages of *Your own transformer*: the file, lessons and prerequisites of each stage."""

from __future__ import annotations

from dataclasses import dataclass

from companion.ground.fields import shown


@dataclass(frozen=True)
class Stage:
    """One file of the learner's own transformer.

    Attributes:
        number: Number in commands and checks. Learners write stages in the order of `STAGES`, which is not the order of
            their numbers.
        file: File name in the learner's folder.
        title: A short title.
        lessons: The lessons that derive the stage.
        minutes: Expected time, in minutes, for someone who has read these lessons.
        needs: The earlier stages that its check uses, whether or not its file imports them.
        points: Points for the stage in courses that grade it.
        begun: Earlier lessons after which the learner can already write some of the definitions, each with the names of
            those definitions. The learner writes the rest after finishing the last lesson in `lessons`.

    The reference of a stage determines which definitions learners write and which are given (`stubs.names`,
    `stubs.given`).
    """

    number: int
    file: str
    title: str
    lessons: tuple[int, ...]
    minutes: int
    needs: tuple[int, ...]
    points: int
    begun: tuple[tuple[int, str], ...] = ()

    @property
    def module(self) -> str:
        """The module name under which other files import this stage's file."""
        return self.file.removesuffix(".py")

    @property
    def id(self) -> str:
        """The stage's id for `check`, such as "build.5"."""
        return f"build.{self.number}"


STAGES = {
    stage.number: stage
    for stage in (
        Stage(1, "tokenizer.py", "Text to ids and back", (1,), 75, (), 10),
        Stage(2, "attention.py", "Attention", (2, 3), 60, (), 12, ((2, "attend causal"),)),
        Stage(3, "positions.py", "Positions", (4, 5), 45, (), 9, ((4, "frequencies waves"),)),
        Stage(20, "first.py", "A first model that learns", (1, 3, 5), 30, (2, 3), 6),
        Stage(4, "layers.py", "The block", (6,), 45, (2,), 10),
        Stage(5, "model.py", "The model", (1, 8), 60, (2, 3, 4), 13),
        Stage(6, "training.py", "Training", (9,), 150, (2, 3, 4, 5), 21),
        Stage(7, "generation.py", "Writing text", (10,), 60, (2, 3, 4, 5), 11),
        Stage(8, "translation.py", "Translation", (7, 8, 9), 75, (2, 3, 4, 5, 6), 11, ((8, "CrossBlock Translator"),)),
        Stage(9, "experts.py", "Experts", (11,), 75, (2, 3, 4, 5, 6), 11),
        Stage(10, "published.py", "Published models", (13,), 90, (2, 3, 4, 5), 10),
        Stage(13, "gpt2.py", "GPT-2", (13,), 60, (2, 3, 4, 5, 10), 8),
        Stage(11, "race.py", "The race", (12, 14), 120, (1, 2, 3, 4, 5, 6), 10),
        Stage(12, "latent.py", "Latent attention", (15,), 60, (2, 3, 4, 5, 7), 12),
        Stage(14, "delta.py", "A state in place of a cache", (17,), 45, (2, 3, 4, 5, 7), 10),
        Stage(15, "speculative.py", "Several tokens a pass", (18,), 60, (2, 3, 4, 5, 7), 10),
        Stage(16, "quantized.py", "Fewer bits", (19,), 45, (2, 3, 4, 5, 6, 10), 10),
        Stage(17, "adapters.py", "From completing to answering", (20,), 45, (2, 3, 4, 5, 6), 10),
        Stage(18, "inside.py", "Looking inside", (21,), 45, (2, 3, 4, 5, 10), 10),
    )
}
"""The stages by number, in the order they are written. Each stage uses only stages before it."""


def following(stage: Stage, by: int = 1) -> Stage | None:
    """Return the stage `by` steps after this one (or before it if `by` is negative), or None if there is none."""
    order = [*STAGES.values()]
    at = order.index(stage) + by
    return order[at] if 0 <= at < len(order) else None


def find_stage(name: str | int | float) -> Stage:
    """Return the stage with this name or number, such as 5, "5", "build.5", "model" or "model.py".

    Raises:
        ValueError: If there is no such stage. The message lists the stages.
    """
    word = str(name).strip().lower().removeprefix("build.").removesuffix(".0")
    for stage in STAGES.values():
        if word in (str(stage.number), f"{stage.number:02d}", stage.file, stage.module):
            return stage
    there = ", ".join(f"{stage.number} {stage.module}" for stage in STAGES.values())
    raise ValueError(f"stage {shown(str(name))}: expected one of {there}")


def find_stages(text: str) -> list[Stage]:
    """Return the stages of a list such as "2-7" or "1,3,5-6", in the order of `STAGES`.

    Raises:
        ValueError: If a name is unknown, or the larger number of a range comes first.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        ends = find_stage(first).number, find_stage(last if dash else first).number
        if ends[0] > ends[1]:
            raise ValueError(f"stages {shown(text)}: expected the smaller number first, as in 2-7")
        found |= {*range(ends[0], ends[1] + 1)}
    return [stage for number, stage in STAGES.items() if number in found]
