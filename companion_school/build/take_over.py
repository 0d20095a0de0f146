"""Copy an exercise answer into the learner's own transformer if a stage asks for the same function.

The learner's function is copied unchanged into the file of its stage. The stage's definition gets a body of a few
lines, called a bridge, that calls this function with the right arguments. A definition that the learner has already
begun is not changed.
"""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path

from companion.ground.atomic import write_atomic
from companion_school.build.parts import parts, references
from companion_school.build.stages import STAGES, Stage
from companion_school.build.stubs import stub
from companion_school.build.workspace import lay_stubs, read_sources
from companion_school.checking.examine import Result, examine, in_this_process, key_of

_IMPORTS = {
    "math": "import math",
    "torch": "import torch",
    "F": "import torch.nn.functional as F",
    "nn": "from torch import nn",
}


@dataclass(frozen=True)
class Bridge:
    """Code that implements a definition in a stage with the answer to an exercise.

    Attributes:
        exercise: Number of the exercise, such as "2.3".
        stage: The stage whose file gets the answer.
        definition: Name of the function or class in that file, and of the part of the check that must pass before the
            file is written.
        bodies: The body of the function, or of each method of the class, by name.
    """

    exercise: str
    stage: Stage
    definition: str
    bodies: dict[str, str]

    @property
    def told(self) -> str:
        """The line about the bridge that the exercise's check prints."""
        where = f"`{self.definition}` of {self.stage.file}, stage {self.stage.number} of your own transformer"
        return f'It is also {where}. take_over("{self.exercise}") copies it there.'


def _bridge(exercise: str, stage: int, definition: str, body: str | dict[str, str]) -> Bridge:
    bodies = {definition: body} if isinstance(body, str) else body
    laid_out = {name: textwrap.dedent(text).strip("\n") for name, text in bodies.items()}
    return Bridge(exercise, STAGES[stage], definition, laid_out)


BRIDGES = {
    bridge.exercise: bridge
    for bridge in (
        _bridge("2.3", 2, "attend", """
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            may_look = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand(scores.shape)
            return visible_softmax(scores, may_look) @ v
        """),
        _bridge("2.5", 2, "causal", "return causal_mask(queries, keys) == 0"),
        _bridge("3.3", 2, "split", "return to_heads(x, heads)"),
        _bridge("3.4", 2, "merge", "return from_heads(x)"),
        _bridge("5.2", 3, "rotate", """
            rows = x.flatten(0, 1)  # (batch * head, token, d_head): one text with one head each
            return torch.stack([rotary(row, places.tolist(), base) for row in rows]).view_as(x)
        """),
        _bridge("6.6", 4, "FeedForward", {
            "__init__": """
                super().__init__()
                self.gate = nn.Linear(d_model, d_ff, bias=False)
                self.inner = nn.Linear(d_model, d_ff, bias=False)
                self.outer = nn.Linear(d_ff, d_model, bias=False)
            """,
            "forward": "return swiglu_from_checkpoint(x, self.gate.weight, self.inner.weight, self.outer.weight)",
        }),
        _bridge("11.5", 9, "within", "return stays(chosen, experts, capacity)"),
        _bridge("14.3", 6, "clip", """
            weights = [weight for weight in model.parameters() if weight.grad is not None]
            shorter, length = clipped([weight.grad for weight in weights], most)
            for weight, gradient in zip(weights, shorter, strict=True):
                weight.grad.copy_(gradient)
            return length
        """),
        _bridge("14.4", 6, "AdamW", {
            "__init__": """
                self.betas, self.eps, self.decay, self.updates = betas, eps, decay, 0
                self.state = [[name, p, 0 * p.detach(), 0 * p.detach()] for name, p in model.named_parameters()]
            """,
            "step": """
                self.updates += 1
                for state in self.state:
                    name, weight, first, second = state
                    if weight.grad is None:
                        continue
                    decay = self.decay if weight.ndim > 1 and "embedding" not in name else 0.0
                    new, *state[2:] = adamw_step(
                        weight, weight.grad, first, second, self.updates, rate, self.betas, self.eps, decay
                    )
                    weight.copy_(new)
                    weight.grad = None
            """,
        }),
    )
}  # fmt: skip
"""The bridges by exercise number."""


def take_over(bridge: Bridge, answer: str, folder: Path) -> str:
    """Copy an answer into its stage's file, and return a sentence that says what was done.

    Args:
        bridge: The bridge from the exercise to the stage.
        answer: Source code of the learner's function.
        folder: The learner's folder. If the file does not exist, its stub is written first.

    Raises:
        ValueError: If the learner has already begun the definition, or its check fails with this answer, for example
            because the answer depends on other code in its notebook. In that case, the answer is not copied.
    """
    lay_stubs(folder, [bridge.stage])
    file, sources = folder / bridge.stage.file, read_sources(folder)
    text = sources[bridge.stage.module]
    told = f"{bridge.definition} of {bridge.stage.file}"
    if not _is_untouched(bridge, text):
        raise ValueError(f"{told}: you have already started this file, so it was not changed")
    new = _joined(bridge, text, textwrap.dedent(answer).strip())
    part = next(part for part in parts(bridge.stage.number) if part.name == bridge.definition)
    tried = part.answer({**sources, **references(bridge.stage), bridge.stage.module: new})
    verdict = examine(key_of(part.exercise()), in_this_process(tried, part.watched))
    if verdict.result is not Result.RIGHT:
        what = "it is not right with your answer, so nothing was written; does it use something else from its notebook?"
        raise ValueError(f"{told}: {what}\n{verdict}")
    write_atomic(file, new)
    return f"{told} is done: it calls your answer to {bridge.exercise}, which is above it."


def _definition(text: str, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    kinds = ast.FunctionDef, ast.ClassDef
    return next((node for node in tree.body if isinstance(node, kinds) and node.name == name), None)


def _is_untouched(bridge: Bridge, text: str) -> bool:
    """Return True if the definition is still as in the stub."""
    mine, handed_out = (_definition(one, bridge.definition) for one in (text, stub(bridge.stage.number)))
    return mine is not None and handed_out is not None and ast.dump(mine) == ast.dump(handed_out)


def _joined(bridge: Bridge, text: str, answer: str) -> str:
    """Return the text of the file with the answer inserted above the definition, whose body becomes the bridge."""
    node, lines = _definition(text, bridge.definition), text.splitlines()
    if node is None:
        raise ValueError(f"{bridge.stage.file}: expected a definition of {bridge.definition}, found none")
    methods = [one for one in ast.walk(node) if isinstance(one, ast.FunctionDef)]
    for method in sorted(methods, key=lambda one: -one.lineno):
        first = method.body[-1]  # the stub's `raise NotImplementedError`
        indent = " " * first.col_offset
        lines[first.lineno - 1 : first.end_lineno] = textwrap.indent(bridge.bodies[method.name], indent).splitlines()
    start = min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1
    lines[start:start] = [f"# your answer to exercise {bridge.exercise}", *answer.splitlines(), "", ""]
    return "\n".join([*_with_imports(lines, answer)]) + "\n"


def _with_imports(lines: list[str], answer: str) -> list[str]:
    """Add the imports that the answer needs and the file lacks."""
    tree = ast.parse("\n".join(lines))
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    there = {alias.asname or alias.name for node in imports for alias in node.names}
    used = {node.id for node in ast.walk(ast.parse(answer)) if isinstance(node, ast.Name)}
    missing = [line for name, line in _IMPORTS.items() if name in used - there]
    at = min((node.lineno - 1 for node in imports), default=0)
    return [*lines[:at], *missing, *lines[at:]]
