"""Record for the explorer: its three models, their training, and how much rounding to 8 bits raises their loss.

The first of them is the story model of lesson 14, which ships anyway. Its twin with experts is trained in the same way,
for as many updates as the short runs. The translator of number names is trained with the defaults of `companion train
--task number-words`, but for more updates. An interrupted run of the twin is resumed. The translator needs only a
minute.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from authoring.records.story import EXPERTS, SHORT, Text, bits_of, run
from companion.data import number_words
from companion.data.batches import IGNORE
from companion.training.losses import bits_per_byte
from companion.training.settings import NumberWordsSettings
from companion.training.tasks.number_words import NumberWordsTask, exact_match
from companion.transformer import Transformer
from companion_school.explorer.models import load_live, names_of, pairs_of, save_live
from companion_school.records import record, story_model

SETTINGS = NumberWordsSettings(source="de", target="en")
UPDATES = 800
"""Updates of the translator."""
TWIN = SHORT
"""Updates of the twin with experts."""
MEASURED = 500
"""Held-out numbers for measuring the translator."""


def live(folder: Path, shipped: Path) -> dict[str, Any]:
    """Write the three models to `shipped`. Return the run of each model, and its loss before and after rounding."""
    text = Text()
    model, tokenizer = story_model()
    pairs = {"pairs": pairs_of(tokenizer)}
    of_story = {key: record("story")["runs"][0][key] for key in ("made_of", "start", "weights", "looks")}
    of_twin, twin = run(text, EXPERTS, 0, TWIN, folder / f"experts_0_{TWIN}")
    of_names, translator, task = translating()
    found = {}
    for name, made, trained, said in (
        ("story", of_story, model, pairs),
        ("experts", of_twin, twin.eval(), pairs),
        ("translator", of_names, translator.eval(), {"names": names_of(task.words)}),
    ):
        file = shipped / f"{name}.safetensors"
        save_live(file, trained, {"made_of": made["made_of"], **said})
        rounded = load_live(file)
        if name == "translator":
            scores = [translated(one, task) for one in (trained, rounded)]
            made["measured"] = MEASURED
            made["exact_before"], made["exact_after"] = (right for _, right in scores)
            bits = [bits for bits, _ in scores]
        else:
            bits = [bits_of(one, text) for one in (trained, rounded)]
            made["looks"] = [{key: look[key] for key in look if key != "samples"} for look in made["looks"]]
        made["bits_before"], made["bits_after"] = (round(each, 5) for each in bits)
        made["sha256"], made["bytes"] = hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_size
        found[name] = made
        print(name, {key: made[key] for key in made if key not in ("looks", "loss")}, flush=True)
    return found


def translating() -> tuple[dict[str, Any], Transformer, NumberWordsTask]:
    """Train the translator from German to English number names, and return its record, the model and the task."""
    task = NumberWordsTask.open(SETTINGS)
    trainer = task.trainer(UPDATES, torch.device("cpu"), "fp32")
    losses = [trainer.update().loss for _ in range(UPDATES)]
    settings = json.loads(json.dumps(asdict(SETTINGS)))
    parts = [task.fingerprint, settings, UPDATES]
    made = {
        "made_of": hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16],
        "updates": UPDATES,
        "settings": settings,
        "weights": trainer.parameters,
        "loss": [round(sum(losses[at : at + 20]) / 20, 4) for at in range(0, UPDATES, 20)],
    }
    return made, trainer.model, task


@torch.no_grad()
def translated(model: Transformer, task: NumberWordsTask) -> tuple[float, int]:
    """Measure the translator on held-out numbers.

    Returns:
        The bits per byte of the English names, including their end tokens, and the number of names translated
        correctly.
    """
    numbers = number_words.held_out(MEASURED, seed=1)
    nats = size = 0.0
    for at in range(0, MEASURED, 100):
        pairs = task.words.batch(numbers[at : at + 100])
        real = pairs.source != number_words.PAD
        logs = model(pairs.inputs, source=model.encode(pairs.source, attention_mask=real)).logits.log_softmax(-1)
        scored = pairs.targets != IGNORE
        nats -= logs.gather(-1, pairs.targets.where(scored, 0)[..., None])[scored].sum().item()
        size += sum(len(task.words.target.name(number).encode()) for number in numbers[at : at + 100])
    return bits_per_byte(nats, int(size)), exact_match(model, task.words, numbers).right
