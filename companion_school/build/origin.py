"""Trace a differing tensor back to the line of code that made it wrong."""

from __future__ import annotations

from dataclasses import dataclass

from companion_school.build.compared_runs import HIDDEN, State, Streams, operation, same_numbers, same_scores
from companion_school.build.trace import Call, Operation, Place, Stack, Value


@dataclass(frozen=True)
class Origin:
    """The line where a tensor became wrong, or a range of lines if code is missing between them.

    Attributes:
        place: The line, or the first line of the range.
        last: The last line of the range.
        whole: True if only the function is known, not the line.
    """

    place: Place
    last: int
    whole: bool = False

    def holds(self, file: str, line: int) -> bool:
        return not self.whole and self.place.file == file and self.place.line <= line <= self.last

    def __str__(self) -> str:
        if self.whole:
            return self.place.file
        if self.last > self.place.line:
            return f"{self.place.file}, between line {self.place.line} and line {self.last}"
        return str(self.place)


def origin(streams: Streams, key: str, file: str | None = None) -> Origin | None:
    """Return the line that computed a wrong tensor for a node from correct inputs, or None if it is unknown.

    Args:
        streams: The learner's run compared with the reference's.
        key: Key of the node.
        file: The only file that may contain the fault. If the line is in another file, the innermost line of this file
            on the call stack is returned.
    """
    found = _anywhere(streams, key)
    if found is None or file is None or found.place.file == file:
        return found
    seen = streams.seen[key].mine
    step = _with_a_line(streams, operation(streams.mine, seen))
    stacks = [step.stack if step else (), seen.used or () if seen else ()]
    place = next((place for stack in stacks for place in reversed(stack) if place.file == file), None)
    return Origin(place, place.line) if place else None


def _anywhere(streams: Streams, key: str) -> Origin | None:
    node, seen = streams.nodes[key], streams.seen[key]
    mine, theirs = seen.mine, seen.theirs
    step = _with_a_line(streams, operation(streams.mine, mine))
    if mine is None or step is None:
        return _used(streams, mine, node.home) or _of_call(streams, node.home)
    used = mine.used or _use(streams, mine, node.home)
    if streams.is_known(mine.content) and _is_a_parent(streams, key, mine):
        # The tensor is correct, but an operation on it is missing between its computation and its use.
        made = _at_home(step.stack, node.home)
        there = [place for place in used if made and place.function == made.function and place.file == made.file]
        if made and there:
            return Origin(made, max(made.line, there[-1].line))
        return Origin(made or step.stack[-1], (made or step.stack[-1]).line) if step.stack else None
    chosen = _at_home(used, node.home[:1])
    if chosen and streams.is_known(mine.content) and not _at_home(step.stack, node.home[:1]):
        return Origin(chosen, chosen.line)  # a correct tensor from elsewhere was passed instead of another tensor
    wrong, taken = _descend(streams, step, operation(streams.theirs, theirs))
    place = _at_home(wrong.stack, node.home) or wrong.stack[-1]
    source = operation(streams.mine, taken)
    made = _at_home(source.stack, (place.function,)) if source else None
    # A correct tensor was used instead of another one, so the fault is between its computation and its use.
    if made and made.file == place.file and made.line < place.line:
        return Origin(made, place.line)
    return Origin(place, place.line)


def _with_a_line(streams: Streams, step: Operation | None) -> Operation | None:
    """Step back from operations in the scene itself, whose file is not recorded, to the learner's own operation."""
    while step is not None and not step.stack:
        step = next((maker for value in step.inputs if (maker := operation(streams.mine, value))), None)
    return step


def _descend(streams: Streams, mine: Operation, theirs: Operation | None) -> tuple[Operation, Value | None]:
    """Starting at an operation whose result differs, go back to the operation whose inputs are all right.

    While both runs perform the same kind of operation, the inputs are compared pairwise. After that, an input counts as
    wrong if its elements occur nowhere in the reference's run.

    Returns:
        The operation, and the input (if any) that is a correct tensor but differs from the one that the reference uses
        here.
    """
    visited: set[int] = set()
    right = {
        made
        for name, seen in streams.seen.items()
        if seen.state is State.AGREES and seen.mine is not None and not streams.nodes[name].scores
        for made in (seen.mine.made, *seen.mine.makers)
    }

    def maker(value: Value) -> Operation | None:
        made = operation(streams.mine, value)
        return made if made and made.stack and made.number not in right else None

    while mine.number not in visited:
        visited.add(mine.number)
        following: tuple[Operation, Operation | None] | None = None
        taken: Value | None = None
        if theirs is not None and mine.kind == theirs.kind and len(mine.inputs) == len(theirs.inputs):
            pairs = list(zip(mine.inputs, theirs.inputs, strict=True))
            if mine.kind == "mul" or mine.kind == "add":
                pairs = _matched(pairs)
            for a, b in pairs:
                if not _agree(a, b, mine.kind) and (made := maker(a)):
                    following = made, operation(streams.theirs, b)
                    break
                if taken is None and a.made in right and not _agree(a, b, mine.kind):
                    taken = a
        else:
            for a in mine.inputs:
                if not streams.is_known(a.content) and (made := maker(a)):
                    following = made, None
                    break
        if following is None:
            return mine, taken
        mine, theirs = following
    return mine, None


def _matched(pairs: list[tuple[Value, Value]]) -> list[tuple[Value, Value]]:
    """Pair the operands of two products or sums, choosing the order in which more pairs agree."""
    if len(pairs) != 2:
        return pairs
    (a, b), (c, d) = pairs
    crossed = [(a, d), (c, b)]
    return crossed if sum(_agree(*pair) for pair in crossed) > sum(_agree(*pair) for pair in pairs) else pairs


def _agree(mine: Value, theirs: Value, kind: str = "") -> bool:
    a, b = mine.content, theirs.content
    if a.numel() != b.numel():
        return False
    if kind == "softmax" and a.shape == b.shape and same_scores(a, b):
        return bool(((a > HIDDEN) == (b > HIDDEN)).all())
    return same_numbers(a, b)


def _at_home(stack: Stack, home: tuple[str, ...]) -> Place | None:
    """Return the innermost line of the first function in `home` that is on the stack, or None."""
    for name in home:
        for place in reversed(stack):
            if place.function == name:
                return place
    return None


def _is_a_parent(streams: Streams, key: str, value: Value) -> bool:
    """Return True if a node's value is the unchanged value of one of its parents."""
    before = [streams.seen[parent].mine for parent in streams.visible_parents(key)]
    return any(
        other is not None and (other.object == value.object != 0 or other.made == value.made is not None)
        for other in before
    )


def _use(streams: Streams, value: Value, home: tuple[str, ...]) -> Stack:
    """Return the call stack at the first use of a value in a function that should have changed it."""
    for step in streams.mine.operations:
        if any(given.object == value.object != 0 for given in step.inputs) and _at_home(step.stack, home):
            return step.stack
    for call in streams.mine.calls:
        if call.function in home and call.file and call.gave and call.gave.object == value.object != 0:
            return (Place(call.file, call.function, call.left),)
    for call in streams.mine.calls:
        if any(given.object == value.object != 0 and given.made == value.made for given in call.given):
            return call.stack
    return ()


def _used(streams: Streams, value: Value | None, home: tuple[str, ...]) -> Origin | None:
    """For an argument that no operation computed, return the function that chose it and the line of the call."""
    if value is None or not value.used:
        return None
    place = _at_home(value.used, home) or value.used[-1]
    call = streams.mine.function(place.function)
    if value.content is None or call is None:  # the function did not pass on its argument
        return Origin(place, place.line)
    return Origin(Place(place.file, place.function, call.line), place.line)


def _of_call(streams: Streams, home: tuple[str, ...]) -> Origin | None:
    """As a last resort, attribute a node to the function that computes it.

    If the function returned an unchanged argument or a plain number, use the line of its `return`.
    """
    for name in home:
        call: Call | None = streams.mine.function(name)
        if call is not None and call.file:
            gave = call.gave or Value(None)
            unchanged = any(given.object == gave.object != 0 for given in call.given)
            known = unchanged or isinstance(gave.content, (bool, int, float))
            line = call.left if known else call.line
            return Origin(Place(call.file, name, line), line, whole=not known)
    return None
