"""The check of each part: right answers pass on each seed, and every known mistake is noticed and named."""

import ast

import pytest
import torch

from companion_school.build.parts import parts, patched
from companion_school.build.stages import STAGES
from companion_school.build.stubs import names
from companion_school.build.verify import equivalent, faults, survivors

WRITTEN = [number for number in STAGES if parts(number)]
"""The stages whose checks are written."""
# Its checks take seconds each, and its file may be anything; `python -m companion_school.build.verify 11` runs them
RACE = 11
THROUGH = {
    10: {"Published", "Normed", "llama", "renamed"},
    13: {"gelu"},
    14: {"State", "new"},
    15: {"shorten"},
    16: {"unpack", "bytes"},
    17: {"merge"},
}
"""What is examined through another part of its stage, by the first word of its name: a model of a layout by `load`."""
MUTATED = (2, 3)
"""Those whose mutants take seconds; `python -m companion_school.build.verify 4 --mutants` tries another stage's."""


@pytest.mark.parametrize(
    "part",
    [part for number in WRITTEN if number != RACE for part in parts(number)],
    ids=lambda part: f"{part.stage.number}-{part.name}",
)
def test_what_is_right_passes_and_known_mistakes_are_named(part):
    # `python -m companion_school.build.verify` also names them on the other seed
    assert not list(faults(part, naming=[0]))


@pytest.mark.parametrize("number", [number for number in WRITTEN if number != RACE])
def test_every_name_is_asked_for_and_its_points_are_the_stages(number):
    assert {part.name.split("_")[0] for part in parts(number)} | THROUGH.get(number, set()) >= {
        name.split("_")[0] for name in names(number)
    }
    assert sum(part.points for part in parts(number)) == STAGES[number].points
    assert sum(len(part.mistakes) for part in parts(number)) >= 15
    assert sum(len(part.variants) for part in parts(number)) >= 3


@pytest.mark.parametrize("number", MUTATED)
def test_mutants_that_pass_are_declared_with_a_reason(number):
    passed = {change for change, passes in survivors(number) if passes}
    assert passed == {*equivalent(number)}


def test_a_program_for_the_sandbox_gives_the_same():
    part = parts(2)[0]
    names = {"__name__": "answer"}
    exec(part.program({"attention": patched(2, (("q @ k.mT", "2 * q @ k.mT"),))}), names)
    q, k = torch.eye(2).expand(1, 1, 2, 2), torch.tensor([[3.0, 1], [1, 2]])[None, None]
    weights = (2 * q @ k.mT / 2**0.5).softmax(-1)
    torch.testing.assert_close(names["answer"](q, k, q, None), weights)


@pytest.mark.parametrize("number", WRITTEN)
def test_every_mistake_and_variant_is_valid_python(number):
    # a mistake with a syntax error is noticed and named like any other, but no learner's file matches it
    patches = [patch for part in parts(number) for patch in (*(patch for _, patch in part.mistakes), *part.variants)]
    assert patches
    for patch in patches:
        assert ast.parse(patched(number, patch)).body


def test_a_patch_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"expected 'no such' once in the reference, found it 0 times"):
        patched(2, (("no such", ""),))
    with pytest.raises(ValueError, match="expected a definition of one of attend, causal"):
        patched(2, "def other(): ...")
