"""Find the first tensor that differs between a learner's code and the reference, and the line that computed it.

The code and the reference run the same scenes (`scenes/`) with the same weights, and both runs are recorded (`trace`).
The records are compared tensor by tensor (`compared_runs`), and the first tensor that differs is traced back to a line
of code (`origin`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from companion.ground.time_limit import OutOfTime
from companion_school.build.bugs import BUGS
from companion_school.build.compared_runs import Node, State, Streams, gap, same
from companion_school.build.isolated_modules import World
from companion_school.build.origin import Origin, origin
from companion_school.build.parts import Patch, parts, patched, references
from companion_school.build.scenes import scenes
from companion_school.build.scenes.scene import Scene
from companion_school.build.stages import STAGES
from companion_school.build.trace import SECONDS, Log, Value, recorded


@dataclass(frozen=True)
class Parting:
    """The first difference between a learner's run and the reference's.

    Attributes:
        scene: The scene that was run.
        node: The first tensor that differs, or None if the code raised an exception before anything differed.
        agrees: The tensor's parents that are equal in both runs; if `node` is None, the last node that is equal.
        hidden: Parents of the tensor that could not be found in the learner's run.
        gap: A description of the difference.
        origin: The line that made the tensor wrong, if it is known.
        raised: A description of the error that ended the run, or "".
        mine: The learner's tensor.
    """

    scene: Scene
    node: Node | None
    agrees: tuple[Node, ...]
    hidden: tuple[Node, ...]
    gap: str
    origin: Origin | None
    raised: str = ""
    mine: Value | None = None


def where(stage: int, folder: Path, *, itself: bool = False, guess: bool = True) -> str | None:
    """Describe the first difference between a learner's stage and the reference, or return None.

    The learner's code runs in the current process, for at most ten seconds per scene. Call this in a separate process
    if you do not trust that code.

    Args:
        stage: Number of the stage.
        folder: The learner's folder.
        itself: True if the fault is known to be in this stage's file, so that references replace the other files and
            only lines of this file are reported.
        guess: Whether to suggest a fix if a known bug or mistake gives the same tensor.
    """
    wanted = [STAGES[number].module for number in (*STAGES[stage].needs, stage)]
    files = {module: folder / f"{module}.py" for module in wanted}
    sources = {module: file.read_text("utf-8", "replace") for module, file in files.items() if file.is_file()}
    if itself:
        sources |= {
            module: text for module, text in references(STAGES[stage]).items() if module != STAGES[stage].module
        }
    places = {module: str(file) for module, file in files.items()}
    found = first_difference(stage, sources, places, file=STAGES[stage].file if itself else None)
    return sentence(stage, found, sources, guess) if found else None


def first_difference(
    number: int,
    sources: Mapping[str, str],
    files: Mapping[str, str] | None = None,
    only: Sequence[Scene] | None = None,
    file: str | None = None,
) -> Parting | None:
    """Return the first difference between these sources and the references of a stage, or None if there is none.

    Args:
        number: Number of the stage.
        sources: Text of each file, by module name.
        files: Path of each file, by module name, as it should appear in tracebacks.
        only: Scenes to run (default: all scenes of the stage).
        file: Name of the file that contains the fault, if it is known.
    """
    for one in scenes(number) if only is None else only:
        mine = run(one, number, sources, files)
        found = compare(one, mine, _right(number, one), file)
        if found is not None:
            return found
    return None


def run(one: Scene, number: int, sources: Mapping[str, str], files: Mapping[str, str] | None = None) -> Log:
    """Run a scene with these sources and return the record of the run."""
    places = {module: f"<own>/{module}.py" for module in sources} | dict(files or {})
    world = World(sources, STAGES[number].module, places)
    return recorded(one.play, world, {place: f"{module}.py" for module, place in places.items()}, seconds=SECONDS)


@cache
def _right(number: int, one: Scene) -> Log:
    log = run(one, number, references(STAGES[number]))
    if log.error is not None:
        raise log.error
    return log


def compare(one: Scene, mine: Log, theirs: Log, file: str | None = None) -> Parting | None:
    streams = Streams(one.nodes, mine, theirs)
    key = streams.parted()
    raised = _raised(mine)
    if key is None:
        if not raised:
            return None
        # A node that the run never reached may seem to match an unrelated tensor, for example if both are all zeros.
        reached = [node for node in one.nodes if node.find(mine) is not None]
        seen = [node for node in reached if streams.seen[node.key].state is State.AGREES]
        raising = [place for place in mine.error_at if file in (None, place.file)]
        where = Origin(raising[-1], raising[-1].line) if raising else None
        return Parting(one, None, tuple(seen[-1:]), (), "", where, raised)
    found = streams.seen[key]
    parents = streams.visible_parents(key)
    hidden = tuple(streams.nodes[name] for name in streams.nodes[key].parents
                   if name in streams.nodes and streams.seen[name].state is State.UNSEEN)  # fmt: skip
    return Parting(
        one,
        streams.nodes[key],
        tuple(streams.nodes[name] for name in parents if streams.seen[name].state is State.AGREES),
        hidden,
        gap(found.mine.content if found.mine else None, found.theirs.content if found.theirs else None),
        origin(streams, key, file),
        raised,
        found.mine,
    )


def _raised(log: Log) -> str:
    if log.error is None:
        return ""
    if isinstance(log.error, OutOfTime):
        return "it did not end"
    if isinstance(log.error, NotImplementedError):
        return str(log.error) or "something is not written yet"
    return f"{type(log.error).__name__}: {log.error}".strip()[:300]


def sentence(number: int, found: Parting, sources: Mapping[str, str], guess: bool = True) -> str:
    """Describe a difference: its location, the tensors that agree and differ, the faulty line, and a fix."""
    lead = f"Compared step by step with the course's code{_when(found)}: "
    line = f"{found.origin}, in {found.origin.place.function}" if found.origin else ""
    agreeing = [node.says for node in found.agrees]
    same_so_far = f"{_listed(agreeing)} {'is' if _is_one(agreeing) else 'are'} the same" if agreeing else ""
    if found.node is None:
        before = f"{same_so_far}, then " if agreeing else ""
        return f"{lead}{before}the run ends{f' at {line}' if line else ''}: {found.raised}"
    hidden = [node.says for node in found.hidden]
    before = f"{same_so_far}{', but' if not hidden else ';'} " if agreeing else ""
    unseen = f"{_listed(hidden)} cannot be seen in your file; " if hidden else ""
    differ = found.node.says
    text = f"{lead}{before}{unseen}{differ} differ{'s' if _is_one([differ]) else ''}: {found.gap}."
    text += f" Look at {line}." if line else ""
    text += f" Then the run ends: {found.raised.rstrip('.')}." if found.raised else ""
    mend = _guess(number, found, sources) if guess else ""
    return f"{text} {mend}".rstrip()


def _guess(number: int, found: Parting, sources: Mapping[str, str]) -> str:
    """Suggest a fix if the learner's tensor equals one that a known bug or mistake produces; otherwise return ""."""
    here = next((s for s in STAGES.values() if found.origin and s.file == found.origin.place.file), None)
    if here is None or found.node is None or here.module not in sources:
        return ""
    mends = [bug.mend for bug in BUGS if bug.file == here.number and _gives(number, found, here.number, bug.pieces)]
    if mends:
        right = "It is right" if _is_one([found.node.says]) else "They are right"
        return f"{right} once {mends[0]}." if len({*mends}) == 1 else ""
    mistakes = (mistake for one in parts(here.number) for mistake in one.mistakes)
    told = [message for message, patch in mistakes if _gives(number, found, here.number, patch)]
    # If several mistakes produce this tensor, it is not known which of them the learner made.
    return f"Most likely: {told[0]}." if len(told) == 1 else ""


def _gives(number: int, found: Parting, file: int, patch: Patch) -> bool:
    """Return True if the reference with a patch produces the learner's tensor at the same node."""
    if found.node is None or found.mine is None or found.mine.content is None:
        return False
    value = found.node.find(_patched(number, found.scene, file, patch))
    return value is not None and same(found.mine.content, value.content)


@lru_cache(maxsize=300)
def _patched(number: int, one: Scene, file: int, patch: Patch) -> Log:
    return run(one, number, references(STAGES[number]) | {STAGES[file].module: patched(file, patch)})


def _when(found: Parting) -> str:
    """Return the scene and the location of a difference, such as ", with caches, in block 0"."""
    node = found.node or next(iter(found.agrees), None)
    words = [f"the {word}" if word.endswith(("coder", "attention")) else word for word in _words(node)]
    where = f"{'at' if words[-1].startswith('token') else 'in'} {' of '.join(reversed(words))}" if words else ""
    return "".join(f", {part}" for part in (found.scene.name, where) if part)


def _words(node: Node | None) -> list[str]:
    return node.place.split(", ") if node and node.place else []


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


_ONE = (
    "the stream", "the input", "the output of", "the update", "the final", "the state", "the number", "the loss",
    "the rate", "the length", "the mask", "silu", "the gate", "the inner", "the base", "the sum", "the source", "token",
    "the cache", "the balance", "the translation", "the standard", "the key before", "the width", "the gradient of",
)  # fmt: skip
"""Beginnings of singular node names; all other names are plural."""


def _is_one(says: Sequence[str]) -> bool:
    """Return True if a list of node names needs a singular verb when it is the subject of a sentence."""
    return len(says) == 1 and says[0].startswith(_ONE)
