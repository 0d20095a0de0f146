"""Comparisons for lesson 15: kinds of attention with caches of equal size, and SmolLM2 with a smaller cache."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from authoring.comparisons.cells import names_of, row
from authoring.records.cache import BUDGETS, STARTS, Runs
from companion.data.stories import stories
from companion_school.study.real import real_model

Found = dict[tuple[str, int], list[float]]


def kinds() -> Found:
    """Read the loss on unseen text from the recorded runs, for each kind of attention and number of updates."""
    run, found = Runs(Path("build/records/cache")), Found()
    for updates, trained in BUDGETS.items():
        for kind in trained:
            found[kind, updates] = [run(kind, start, updates)["loss"] for start in STARTS]
            print(row(kind, f"{updates} updates", "nats a token", found[kind, updates]), flush=True)
    return found


def squeezed() -> Found:
    """Measure SmolLM2's bits per byte with fewer cached elements per token, for three calibration texts of 1,024
    tokens.

    Two of these texts are from this course, and one is a series of stories. For each calibration text, the cache stores
    the directions that explain most of the text's keys and values, after both are scaled to the same size. If the model
    is missing, the result is empty.
    """
    lesson, found = names_of("15", "setup", "sets-up-text", "sets-up-real"), Found()
    if (opened := real_model("smollm2")) is None:
        return found
    model, tokenizer = opened
    course = "\n\n".join(part.text for part in lesson["parts"].train)
    told = "\n\n".join(story.text for story in stories(200))
    texts = {"course": course[:8000], "course, later": course[-8000:], "stories": told[:8000]}
    layers = [block.attention for block in model.decoder.blocks]
    own = [(layer.key.weight.clone(), layer.value.weight.clone()) for layer in layers]
    for text in texts.values():
        grams: list[torch.Tensor] = []
        hooks = [layer.key.register_forward_pre_hook(_products(grams)) for layer in layers]
        model(torch.tensor([tokenizer.encode(text)[:1024]]))
        for hook in hooks:
            hook.remove()
        for rank in (288, 192):
            for layer, (key, value), gram in zip(layers, own, grams, strict=True):
                noise = 0.01 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
                read = torch.linalg.cholesky(gram + noise)  # the layer's inputs, except for a rotation
                both = [matrix.double() / (matrix.double() @ read).norm() for matrix in (key, value)]
                directions = torch.linalg.svd(torch.cat(both) @ read, full_matrices=False)[0][:, :rank]
                kept = (directions @ (directions.T @ torch.cat(both))).float()
                sizes = [(matrix.double() @ read).norm().float() for matrix in (key, value)]
                layer.key.weight.copy_(kept[: len(key)] * sizes[0])
                layer.value.weight.copy_(kept[len(key) :] * sizes[1])
            found.setdefault(("by text", rank), []).append(lesson["bits_of_text"](model, tokenizer))
            for layer, (key, value) in zip(layers, own, strict=True):
                layer.key.weight.copy_(key)
                layer.value.weight.copy_(value)
    for rank in (288, 192):
        print(row("by text", f"{rank} elements", "bits per byte", found["by text", rank]), flush=True)
    return found


def _products(grams: list[torch.Tensor]) -> Any:
    """Return a hook that appends the Gram matrix of a layer's inputs (the sum of outer products over tokens)."""

    def look(layer: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        grams.append(given[0][0].double().T @ given[0][0].double())

    return look


def quantized() -> Found:
    """Measure the increase in SmolLM2's bits per byte with low-bit keys or values, by kind of scale, on three texts.

    Two texts are from this course and one is a series of stories. If the model is missing, the result is empty.
    """
    lesson, found = names_of("15", "setup", "sets-up-text", "sets-up-real", "sets-up-rounding", "rounded"), Found()
    if (opened := real_model("smollm2")) is None:
        return found
    course = "\n\n".join(part.text for part in lesson["parts"].held_out)
    for text in (course, course[-4000:], "\n\n".join(story.text for story in stories(200))):
        lesson["parts"] = SimpleNamespace(held_out=[SimpleNamespace(text=text)])  # its beginning is read
        bits = lesson["rounded_caches"].__wrapped__(*opened)
        for name, value in bits.items():
            if name != "in full":
                setting, _, few = name.rpartition(", ")
                found.setdefault((setting, int(few)), []).append(value - bits["in full"])
    for (setting, few), values in found.items():
        print(row(setting, f"{few} bits", "more bits per byte", values), flush=True)
    return found


def chosen() -> Found:
    """Count correct telephone numbers when SmolLM2 attends to few tokens: the most recent ones, or an oracle's choice.

    The lists of telephone numbers are those of lesson 17. If the model is missing, the result is empty.
    """
    lesson, found = names_of("15", "setup", "sets-up-reading", "reads"), Found()
    if (opened := real_model("smollm2")) is None:
        return found
    model, tokenizer = opened
    telephone, best, last = names_of("17", "setup", "sets-up-book")["telephone"], lesson["best"], lesson["last"]
    for few in (64, 16):
        picks = {
            "all tokens": lambda z: z > float("-inf"),
            "chosen by each head": lambda z, few=few: best(z, few),
            "one choice for all": lambda z, few=few: best(z.softmax(-1).sum(1, True), few),
            "the first and the last": lambda z, few=few: last(z, few, first=1),
        }
        for name, pick in picks.items():
            found[name, few] = []
            for start in STARTS:
                ids, at = telephone(tokenizer, start)
                with lesson["reading"](model, pick):
                    said = model(ids).logits[0, :-1].argmax(-1)
                found[name, few].append(float((said[at] == ids[0, 1:][at]).all(-1).sum()))
            print(row(name, f"{few} tokens", "right of 16", found[name, few]), flush=True)
    return found
