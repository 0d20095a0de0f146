"""Comparisons for lesson 07, with three seeds and several budgets. Each function prints and returns its results."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F

from authoring.comparisons.cells import names_of
from companion_school.study.real import real_model

STARTS = (0, 1, 2)
CELLS = (
    "setup", "sets-up-text", "corrupt", "neighbours", "sets-up-guesses", "sets-up-model", "train", "sets-up-belief",
)  # fmt: skip
ROLES = (  # a sentence, the same sentence with exchanged roles, and its passive
    ("The dog bites the man.", "The man bites the dog.", "The man was bitten by the dog."),
    ("The nurse thanks the doctor.", "The doctor thanks the nurse.", "The doctor was thanked by the nurse."),
    ("The teacher praised the student.", "The student praised the teacher.", "The student was praised by the teacher."),
    (
        "Brazil beat Germany in the final.",
        "Germany beat Brazil in the final.",
        "In the final Germany was beaten by Brazil.",
    ),
    ("The bank sued the company.", "The company sued the bank.", "The company was sued by the bank."),
    ("The cat chased the mouse.", "The mouse chased the cat.", "The mouse was chased by the cat."),
    ("Anna sold the car to Peter.", "Peter sold the car to Anna.", "Peter bought the car from Anna."),
    ("The police arrested the thief.", "The thief arrested the police.", "The thief was arrested by the police."),
    ("Rome defeated Carthage.", "Carthage defeated Rome.", "Carthage was defeated by Rome."),
    ("The lion killed the hunter.", "The hunter killed the lion.", "The hunter was killed by the lion."),
)
RULES = {"half and half": 0.1, "kept only": 0.0, "random only": 0.2}


def encoder_and_count() -> dict[tuple[str, int, int], dict[str, float]]:
    """Measure the accuracy in gaps, the loss, and wins per 100 over counting baselines, by stack, steps and seed."""
    lesson, found = SimpleNamespace(**names_of("07", *CELLS)), {}
    rivals = {
        name: lesson.allowed(lesson.counted[name]).argmax(dim=-1) == lesson.truth
        for name in ("both neighbours", "three on either side")
    }
    for stack, budgets in (("encoder", (800, 400, 2400)), ("decoder", (800, 400))):
        for steps in budgets:
            for start in STARTS:
                said = lesson.answers(lesson.train(stack, start, steps), lesson.shown, lesson.gaps)
                hit = lesson.allowed(said).argmax(dim=-1) == lesson.truth
                measured = {"filled": 100 * lesson.right(said), "loss": lesson.gap_loss(said)}
                for name, by_count in rivals.items():
                    apart = lesson.once & (hit != by_count)
                    measured[f"wins against {name}"] = 100 * hit[apart].double().mean().item()
                found[stack, steps, start] = measured
                shown = ", ".join(f"{name} {value:.2f}" for name, value in measured.items())
                print(f"{stack}, {steps} steps, start {start}: {shown}", flush=True)
    return found


def writer() -> dict[tuple[int, int], float]:
    """Measure how accurately a next-word decoder fills gaps if it reads the true words to the left of each gap."""
    lesson, found = SimpleNamespace(**names_of("07", *CELLS)), {}
    first = (torch.arange(lesson.CONTEXT).expand_as(lesson.gaps))[lesson.gaps] == 0
    for steps in (800, 400):
        for start in STARTS:
            torch.manual_seed(start)
            model, g = lesson.model_of("decoder"), torch.Generator().manual_seed(start)
            optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), fused=True)
            for step in range(steps):
                optimizer.param_groups[0]["lr"] = 1e-2 * lesson.schedule(step, steps)
                begin = torch.randint(len(lesson.text) - lesson.CONTEXT, (48, 1), generator=g)
                tokens = lesson.text[begin + torch.arange(lesson.CONTEXT)]
                logits = model.head(model.features(tokens).stream[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():  # the row to the left of the gap predicts the missing word
                stream = F.pad(model.eval().features(lesson.test).stream, (0, 0, 1, 0))[:, :-1]
                said = model.head(stream[lesson.gaps])[:, : lesson.WORDS]
            said[first] = lesson.share.log()  # the first word of a window has no row to its left
            found[steps, start] = 100 * lesson.right(said)
            print(f"writer, {steps} steps, start {start}: filled {found[steps, start]:.2f}", flush=True)
    return found


def rule_and_control() -> dict[tuple[str, int, int], tuple[float, float]]:
    """Measure how much encoders trust the words that they are shown.

    In training, the words shown at the gaps were true, random, or half true and half random.
    """
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


def exchanged_roles() -> dict[str, tuple[float, float]]:
    """Measure MiniLM's cosines between ten sentences and their versions with exchanged roles or in the passive voice.

    Raises:
        RuntimeError: MiniLM is not on this machine.
    """
    if (opened := real_model("minilm")) is None:
        raise RuntimeError("MiniLM is not on this machine; `companion get minilm` downloads it")
    model, tokenizer = opened
    found = {}
    for texts in ROLES:
        with torch.no_grad():
            rows = [model.features(torch.tensor([tokenizer.encode(text)])).stream[0] for text in texts]
        here, exchanged, passive = (F.normalize(each.mean(dim=0), dim=0) for each in rows)
        found[texts[0]] = (here @ exchanged).item(), (here @ passive).item()
        print(f"{texts[0]} roles exchanged {found[texts[0]][0]:.3f}, passive {found[texts[0]][1]:.3f}", flush=True)
    return found
