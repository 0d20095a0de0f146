"""Record for lesson 14: the training of the story model, samples taken during it, and how often they are consistent.

The model is trained for about three minutes with three seeds, and for about ten minutes with one seed. Its twin with
experts is trained for as many updates as in the three-minute runs, also with three seeds. A run is saved in
`build/records` every fifty updates and can be resumed. A JSON file with all runs,
`companion_school/records/story.json`, and the weights of the first run ship with the course.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from companion import (
    AttentionConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    Sampling,
    Transformer,
    complete,
)
from companion.data.batches import EvaluationBatches, TrainingBatches, encode_documents
from companion.data.corpora import fingerprint
from companion.data.stories import Story, read, stories
from companion.data.tokenizer import BytePairTokenizer
from companion.training.evaluation import evaluate
from companion.training.run_folder import RunFolder
from companion.training.trainer import Trainer, TrainingConfig

TRAIN, HELD_OUT, VOCAB, CONTEXT, BATCH = 10_000, 500, 768, 192, 8
DENSE = ModelConfig(
    vocab=VOCAB,
    d_model=96,
    layers=3,
    context=CONTEXT,
    attention=AttentionConfig(heads=4),
    positions=PositionConfig("rotary"),
    norm=NormConfig("rms", "pre"),
    feed_forward=FeedForwardConfig(256, "swiglu"),
)
EXPERTS = DENSE.with_(feed_forward=FeedForwardConfig(128, "swiglu"), moe=MoEConfig(experts=8, top_k=2))
"""Its twin, with the same number of active parameters except for the router."""
SHORT, LONG = 1800, 6000
"""Numbers of updates, which take about three and ten minutes on one core."""
LOOKS = {SHORT: (0, 120, 360, 720, 1080, SHORT), LONG: (0, 150, 300, 600, 1200, 1800, 3600, LONG)}
RUNS = (
    ("dense", DENSE, 0, LONG),
    *(("dense", DENSE, start, SHORT) for start in range(3)),
    *(("experts", EXPERTS, start, SHORT) for start in range(3)),
)
"""Name, configuration, start and number of updates of each run."""
SCORED = 100
"""Number of held-out stories that are scored, and of beginnings that are continued, at each measurement."""
FALL = 0.3
"""Share of a run during which the rate decays."""
RULE = Sampling(temperature=0.5, top_p=0.95)


class Text:
    """The stories, as text and as tokens."""

    def __init__(self) -> None:
        told = list(stories(TRAIN + HELD_OUT))
        self.train: list[Story] = told[:TRAIN]
        self.held_out: list[Story] = told[TRAIN:]

    @cached_property
    def tokenizer(self) -> BytePairTokenizer:
        """The tokenizer, trained only on the training stories."""
        return BytePairTokenizer.train((story.text for story in self.train), VOCAB)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the training stories and the tokenizer."""
        digest = hashlib.sha256(fingerprint(story.document for story in self.train).encode())
        digest.update(self.tokenizer.to_json().encode())
        return digest.hexdigest()[:16]


def run(text: Text, config: ModelConfig, start: int, updates: int, folder: Path) -> tuple[dict[str, Any], Transformer]:
    """Train a model, resuming from `folder` if possible, and return its record and the model.

    The model is measured at the updates in `LOOKS`.
    """
    balance = 0.01 if config.moe else 0.0
    plan = TrainingConfig(  # the rate is constant after the warm-up (`min_lr_ratio` is 1); `falling` adds the decay
        updates=updates, learning_rate=6e-3, warmup=100, min_lr_ratio=1.0, seed=start, balance_loss=balance
    )
    torch.manual_seed(start)
    model = Transformer(config)
    ids = encode_documents(text.tokenizer, [story.document for story in text.train])
    batches = TrainingBatches(ids, context=CONTEXT, batch=BATCH, seed=start)
    trainer, files = Trainer(model, batches, plan), RunFolder(folder)
    trainer.learning_rate = falling(trainer.learning_rate, updates)  # type: ignore[method-assign]
    kept: dict[str, Any] = {"seconds": 0.0, "losses": [], "looks": []}
    if (folder / "kept.json").exists():
        files.restore(trainer)
        kept = json.loads((folder / "kept.json").read_text("utf-8"))
        kept["losses"] = kept["losses"][: trainer.done]
        kept["looks"] = [look for look in kept["looks"] if look["update"] <= trainer.done]
    while True:
        if trainer.done in LOOKS[updates] and trainer.done not in [look["update"] for look in kept["looks"]]:
            kept["looks"].append({"update": trainer.done, "seconds": round(kept["seconds"], 1), **look(model, text)})
            print(f"{folder.name}: {kept['looks'][-1] | {'samples': None}}", flush=True)
        if trainer.done % 50 == 0 or trainer.done == updates:
            folder.mkdir(parents=True, exist_ok=True)
            files.save(trainer)
            (folder / "kept.json").write_text(json.dumps(kept), encoding="utf-8")
        if trainer.done == updates:
            break
        began = time.process_time()
        kept["losses"].append(trainer.update().loss)
        kept["seconds"] += time.process_time() - began
    record = {
        "start": start,
        "weights": trainer.parameters,
        "tokens_read": updates * BATCH * CONTEXT,
        "epochs": round(batches.epochs(updates), 2),
        "config": json.loads(config.to_json()),
        "plan": asdict(plan),
        "loss": [round(sum(part) / len(part), 4) for part in _parts(kept["losses"], 20)],
        "looks": kept["looks"],
    }
    return {"made_of": made_of(text, record), **record}, model


def falling(steady: Callable[[int], float], updates: int) -> Callable[[int], float]:
    """Add a decay to a schedule: in the last part (`FALL`) of a run, the rate falls linearly to a twentieth.

    Before that, the rate does not depend on the length of the run, so runs can be shortened or extended (a
    warmup-stable-decay schedule).
    """
    return lambda number: steady(number) * min(1.0, 0.05 + 0.95 * (updates - number) / (FALL * updates))


def made_of(text: Text, record: dict[str, Any]) -> str:
    """Hash everything that determines a run's result on a given machine: text, tokenizer, model, plan and seed."""
    parts = [text.fingerprint, record["config"], record["plan"], record["start"], BATCH, CONTEXT, FALL]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def bits_of(model: Transformer, text: Text) -> float:
    """Return the bits per byte of the first `SCORED` held-out stories."""
    scored = [story.document for story in text.held_out[:SCORED]]
    batches = EvaluationBatches(encode_documents(text.tokenizer, scored), context=CONTEXT)
    return evaluate(model, batches, sum(document.bytes for document in scored)).bits_per_byte


def look(model: Transformer, text: Text) -> dict[str, Any]:
    """Measure held-out bits per byte, and how many stories with held-out beginnings end and are consistent."""
    wrote = list(write(model, text.tokenizer, [beginning(story) for story in text.held_out[:SCORED]]))
    readings = [read(story) for story in wrote]
    return {
        "bits_per_byte": round(bits_of(model, text), 4),
        "stories": len(wrote),
        "whole": sum(reading.whole for reading in readings),
        "kept_who": sum(reading.keeps_who for reading in readings),
        "kept": sum(reading.keeps for reading in readings),
        "plots": len({reading.plot for reading in readings if reading.keeps_who}),
        "samples": wrote[:8],
    }


def beginning(story: Story) -> str:
    """Return the first sentence of a story, up to its first period."""
    return story.text[: story.text.index(".") + 1]


def write(model: Transformer, tokenizer: BytePairTokenizer, begun: list[str]) -> Iterator[str]:
    """Yield each beginning with the model's continuation, up to the end of the story or of the context."""
    for at in range(0, len(begun), 100):
        part = begun[at : at + 100]
        prompts = [[tokenizer.separator, *tokenizer.encode(one)] for one in part]
        room = CONTEXT - max(map(len, prompts))
        new = complete(model, prompts, max_new_tokens=room, sampling=RULE, stop={tokenizer.separator}, seed=at)
        yield from (one + tokenizer.decode(tokens) for one, tokens in zip(part, new, strict=True))


def _parts(values: list[float], size: int) -> list[list[float]]:
    return [values[at : at + size] for at in range(0, len(values), size)]


def story(folder: Path) -> tuple[dict[str, Any], Transformer, BytePairTokenizer]:
    """Return the record of all `RUNS`, and the first run's model with its tokenizer."""
    text = Text()
    done = [run(text, *which, folder / f"{name}_{which[1]}_{which[2]}") for name, *which in RUNS]
    names = [name for name, *_ in RUNS]
    runs = [{"name": name, **record} for name, (record, _) in zip(names, done, strict=True)]
    found = {"text": text.fingerprint, "train": TRAIN, "held_out": HELD_OUT, "runs": runs}
    return found, done[0][1], text.tokenizer
