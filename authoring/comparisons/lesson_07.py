"""What lesson 07 compares, with three starts and several budgets. Each function prints and returns what it found."""

from __future__ import annotations

from types import SimpleNamespace

from authoring.comparisons.cells import names_of

STARTS = (0, 1, 2)
CELLS = (
    "setup", "sets-up-text", "corrupt", "sets-up-guesses", "sets-up-model", "train", "sets-up-belief",
)  # fmt: skip
RULES = {"half and half": 0.1, "kept only": 0.0, "random only": 0.2}


def encoder_and_count() -> dict[tuple[str, int, int], dict[str, float]]:
    """Gaps filled (per cent), loss, and wins of 100 against the count of both neighbours, by stack, steps, start."""
    lesson, found = SimpleNamespace(**names_of("07", *CELLS)), {}
    count = lesson.counted["both neighbours"]
    by_count = lesson.allowed(count).argmax(dim=-1) == lesson.truth
    for stack, budgets in (("encoder", (800, 400, 1200)), ("decoder", (800, 400))):
        for steps in budgets:
            for start in STARTS:
                said = lesson.answers(lesson.train(stack, start, steps), lesson.shown, lesson.gaps)
                hit = lesson.allowed(said).argmax(dim=-1) == lesson.truth
                apart = lesson.once & (hit != by_count)
                found[stack, steps, start] = {
                    "filled": 100 * lesson.right(said),
                    "loss": lesson.gap_loss(said),
                    "wins": 100 * hit[apart].double().mean().item(),
                }
                shown = ", ".join(f"{name} {value:.2f}" for name, value in found[stack, steps, start].items())
                print(f"{stack}, {steps} steps, start {start}: {shown}", flush=True)
    return found


def rule_and_control() -> dict[tuple[str, int, int], tuple[float, float]]:
    """How far encoders that were shown only true, only random or both kinds of words believe what they are shown."""
    lesson, found = SimpleNamespace(**names_of("07", *CELLS)), {}
    for steps in (150, 300):
        for rule, random in RULES.items():
            for start in STARTS:
                model = lesson.train("encoder", start, steps, random)
                found[rule, steps, start] = lesson.belief(model)
                filled = 100 * lesson.right(lesson.answers(model, lesson.shown, lesson.gaps))
                true, false = found[rule, steps, start]
                print(f"{rule:13} {steps} steps, start {start}: believes a true word {true:.3f},", end=" ")
                print(f"a random one {false:.3f}; fills {filled:.1f} %", flush=True)
    return found
