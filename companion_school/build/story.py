"""Train the learner's own transformer (stages 1 to 7) to tell stories for a few minutes, and save it.

The training text is either `companion.data.stories`, stories from a small grammar, or files that the learner chooses.
The model is saved in the learner's folder, in a format that every command reads (`save_model`).
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from companion.data.corpora import read_corpus
from companion.data.stories import stories
from companion.ground.device import find_device
from companion.ground.display import printable
from companion_school.build.isolated_modules import World
from companion_school.build.parts import references
from companion_school.build.saved_model import END, check_merges, save_model
from companion_school.build.stages import STAGES
from companion_school.build.stubs import is_untouched
from companion_school.build.workspace import read_sources, unfinished

STAGE = STAGES[7]
STORIES = 3000
MERGES = 512
SHAPE = {"d_model": 96, "layers": 3, "heads": 4, "kv_heads": 2, "d_ff": 256}
CONTEXT, BATCH, RATE, WARMUP = 160, 8, 6e-3, 50
SHORTEST = 32
"""Minimum context length, in tokens."""
LITTLE = 200_000
"""Number of bytes of text below which a model of this size memorizes its training text."""
FEW = 300
"""Number of updates below which a story falls apart."""
BEGINNING = "Once upon a time"
SAMPLES = 10


@dataclass(frozen=True)
class Told:
    """The outcome of a training run.

    Attributes:
        story: A story that the model wrote.
        seconds: Seconds spent on each step, by name.
        updates: Number of updates.
        loss: Mean loss over the last tenth of the updates, in nats per token.
        files: Names of the files written into the folder.
    """

    story: str
    seconds: dict[str, float]
    updates: int
    loss: float
    files: Sequence[str]

    def __str__(self) -> str:
        spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.seconds.items())
        whole = sum(self.seconds.values())
        lines = [printable(self.story), "", f"{self.updates:,} updates, loss {self.loss:.2f} nats a token; {spent}"]
        if self.seconds["learning merges"] > 0.3 * whole:
            lines.append(
                "Learning the merges took much of the time: join a pair only in the pieces where it occurs, and count "
                "again only what changed (stage 1)."
            )
        if self.updates < FEW:
            lines.append(
                f"Only {self.updates:,} updates fitted into the time. Allow more minutes (--minutes), or close other "
                "programs that use the processor, and the story will hold together better."
            )
        return "\n".join(lines)


def tell(
    folder: Path,
    minutes: float,
    data: Sequence[str] = (),
    *,
    reference: bool = False,
    device: str = "auto",
    say: Callable[[str], None] = print,
) -> Told:
    """Train the learner's own transformer on stories, let it write one, and save the model in the learner's folder.

    Args:
        folder: The learner's folder.
        minutes: Total time for learning merges, encoding and training.
        data: Files to train on instead of the stories.
        reference: If true, use the course's files instead of the learner's.
        device: "cpu", "cuda" or "auto".
        say: Function called with progress messages, including a sample after each tenth of the updates.

    Raises:
        ValueError: If a stage that is needed is not written, the text is too short, or the model cannot be saved.
    """
    code, place = _files(folder, reference, say), find_device(device)
    try:
        return _told(folder, code, minutes, _texts(data, say), place, say)
    except NotImplementedError as error:
        raise unfinished(folder, "stages 1 to 7", error) from None


def _files(folder: Path, reference: bool, say: Callable[[str], None]) -> World:
    """Load the learner's files, using the course's files for stages that the learner has not begun."""
    stages = [STAGES[number] for number in range(1, 8)]
    sources = {module: text for stage in stages for module, text in references(stage).items()}
    theirs = {} if reference or not folder.is_dir() else read_sources(folder)
    begun = [s for s in stages if s.module in theirs and not is_untouched(s.number, theirs[s.module])]
    missing = [stage.file for stage in stages if stage not in begun]
    say(f"yours: {', '.join(stage.file for stage in begun) or 'nothing yet'}" + "; the course's: " * bool(missing)
        + ", ".join(missing))  # fmt: skip
    mine = {stage.module: theirs[stage.module] for stage in begun}
    others = {name: text for name, text in theirs.items() if name not in sources}
    return World(sources | others | mine, STAGE.module, {name: str(folder / f"{name}.py") for name in mine})


def _texts(data: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Return the training texts, and print a warning if there is little text."""
    if not data:
        return [story.text for story in stories(STORIES)]
    texts = [document.text for document in read_corpus(data).documents]
    size = sum(len(text.encode()) for text in texts)
    if size < LITTLE:
        say(
            f"{size:,} bytes are not much, so the model will memorize them. From about {LITTLE:,} bytes on it starts "
            "to write sentences of its own; a megabyte or more is better."
        )
    return texts


def _told(
    folder: Path, code: World, minutes: float, texts: Sequence[str], device: torch.device, say: Callable[[str], None]
) -> Told:
    clock = _Clock()
    say(f"learning {MERGES} merges from {sum(map(len, texts)):,} characters ...")
    merges = code["tokenizer"].learn("\n".join(texts), MERGES)
    clock.note("learning merges")
    with tempfile.TemporaryDirectory() as place:  # find out before training if the merges cannot be saved
        check_merges(code, merges, Path(place))
    # One call encodes all texts, because an `encode` that caches words then processes each word only once.
    # No merge crosses the end of a text.
    ids = torch.tensor(code["tokenizer"].encode("".join(f"{text}{chr(END)}" for text in texts), merges), device=device)
    clock.note("encoding")
    context = min(CONTEXT, len(ids) - 2)
    if context < SHORTEST:
        raise ValueError(f"--data: expected text of at least {SHORTEST} tokens, got {len(ids)}")
    left = 60 * minutes - sum(clock.seconds.values())
    trained = _Training(code, merges, ids, context, device)
    updates = trained.possible(max(left, 5.0))
    say(f"training {updates:,} updates of {BATCH} x {context} tokens on {device.type} ...")
    losses: list[float] = []
    bar = tqdm(trained.losses(updates), total=updates, unit="update", disable=None)
    for number, loss in enumerate(bar, 1):
        losses.append(loss)
        if number % max(1, updates // SAMPLES) == 0 and number < updates:
            line = f"update {number:>5,}  loss {loss:.2f}  {printable(trained.writes(24, seed=number))}"
            tqdm.write(line) if say is print else say(line)
    clock.note("training")
    story = trained.writes(context, seed=random.Random(updates).randrange(1000))
    clock.note("writing")
    files = save_model(folder, code, trained.model, merges, context)
    last = losses[-max(1, updates // 10) :]
    return Told(story, clock.seconds, updates, sum(last) / len(last), files)


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def note(self, what: str) -> None:
        now = time.monotonic()
        self.seconds[what], self._since = now - self._since, now


class _Training:
    def __init__(self, code: World, merges: Any, ids: Tensor, context: int, device: torch.device) -> None:
        self.code, self.merges, self.ids, self.context, self.device = code, merges, ids, context, device
        self.model = self._new()

    def _new(self) -> Any:
        torch.manual_seed(0)
        module = self.code["model"]
        return module.Transformer(module.Config(vocab=256 + len(self.merges), **SHAPE)).to(self.device)

    def losses(self, updates: int) -> Iterator[float]:
        """Train the model and yield the loss of each update."""
        training = self.code["training"]

        def loss_at(number: int) -> Tensor:
            generator = torch.Generator().manual_seed(number)
            inputs, targets = training.windows(self.ids, self.context, BATCH, generator)
            loss: Tensor = training.loss_of(self.model(inputs), targets)
            return loss

        yield from training.train(self.model, loss_at, updates, peak=RATE, warmup=WARMUP)

    def possible(self, seconds: float) -> int:
        """Estimate from five trial updates how many updates fit into the time, then reset the model."""
        began = time.monotonic()
        tried = sum(1 for _ in self.losses(5))
        each = (time.monotonic() - began) / tried
        self.model = self._new()
        return max(10, int(0.9 * seconds / each))

    def writes(self, tokens: int, seed: int) -> str:
        """Return a story: a fixed beginning followed by at most `tokens` generated tokens."""
        ids = list(self.code["tokenizer"].encode(BEGINNING, self.merges))
        room = min(tokens, self.context - len(ids))
        choice = {"temperature": 0.7, "top_p": 0.9}
        new = list(self.code.generate(self.model, ids, room, stop=END, seed=seed, **choice))
        text: str = self.code["tokenizer"].decode(ids + new, self.merges)
        return text
