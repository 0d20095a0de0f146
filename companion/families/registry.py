"""The registry of all families and presets, collected from the modules of this folder (lesson 13).

A preset follows its paper or its released configuration. It is a `ModelConfig` like any other, and no code in the
package depends on a particular preset. `Transformer(preset(name))` builds an untrained model; `load_pretrained` reads
trained ones.
"""

from __future__ import annotations

import difflib
import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from companion.config.model import ModelConfig
from companion.files.published.family import Family, Preset
from companion.ground.fields import shown

ABOUT_ALL = {"registry", "pretrained", "inspected", "export", "adapters"}
"""Modules of this folder that deal with all families; every other module is a family."""
_SIDE_BY_SIDE = "attention and feed-forward networks in parallel"
_STATES = "layers that store a state instead of keys"
UNBUILT = {
    **dict.fromkeys(("falcon", "gptj", "phi"), _SIDE_BY_SIDE),
    **dict.fromkeys(("bamba", "falcon_h1", "jamba", "mamba", "mamba2", "nemotron_h", "zamba2"), _STATES),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), "an indexer, which chooses the keys that a query sees"),
    **dict.fromkeys(
        ("gemma4", "gemma4_text"), "global layers whose heads have another width and share keys and values"
    ),
    "minimax": "linear layers with a fixed decay per layer, and weighted residuals",
    "olmo_hybrid": "norms in different positions in linear layers and in others",
    **dict.fromkeys(("bloom", "mpt"), "scores that fall with the distance (ALiBi)"),
    **dict.fromkeys(("vit", "clip", "siglip"), "images instead of tokens"),
    **dict.fromkeys(("whisper", "wav2vec2"), "sound instead of tokens"),
    **dict.fromkeys(("lfm2", "lfm2_moe"), "layers that are convolutions"),
    **dict.fromkeys(("arcee", "nanochat", "nemotron"), "networks with squared ReLUs"),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), "embeddings for every layer"),
    "apertus": "networks with xIELU activations",
    "ministral3": "queries that grow with their position",
    "hunyuan_v1_dense": "norms of queries and keys after rotation",
}
"""Published model types that cannot be read, each with the feature that our models lack."""


@cache
def _files() -> tuple[ModuleType, ...]:
    found = sorted(file.name for file in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return tuple(import_module(f"companion.families.{name}") for name in found if name not in ABOUT_ALL)


@cache
def families() -> dict[str, Family]:
    """Return all families that can be read, keyed by the `model_type` in their config.json."""
    every = [family for file in _files() for family in getattr(file, "FAMILIES", ())]
    found = {family.kind: family for family in every}
    assert len(found) == len(every), "two families read the same model_type"
    return found


@cache
def presets() -> dict[str, Preset]:
    """Return all presets, keyed by name, oldest first."""
    every = [named for file in _files() for named in getattr(file, "PRESETS", {}).items()]
    found = dict(sorted(every, key=lambda named: named[1].year))
    assert len(found) == len(every), "two presets have the same name"
    return found


def systems() -> dict[str, ModelConfig]:
    """Return the models that the course teaches, keyed by the names that `companion account` and `companion sizing`
    accept."""
    return {name: preset.config for name, preset in presets().items() if preset.taught}


def preset(name: str) -> ModelConfig:
    """Return the configuration of a published model.

    Raises:
        ValueError: If no preset has this name.
    """
    known = presets()
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"name={shown(name)}: expected one of {', '.join(known)}{hint}")
    return known[name].config
