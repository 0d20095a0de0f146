"""The learner's files for use in a notebook, with the course's files in place of those that are not right yet."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from companion_school import records
from companion_school.build.isolated_modules import World
from companion_school.build.parts import references
from companion_school.build.saved_model import save_model
from companion_school.build.stages import STAGES, find_stage
from companion_school.build.workspace import find_folder, is_done, read_sources

_told: dict[int, dict[str, bool]] = {}
"""For each stage number, which files `own` has reported as the learner's in this process."""


def own(number: int) -> World:
    """Load the files of a stage and all earlier stages, and print which of them are the learner's.

    A learner's file is used if it has passed its check or was taken over from the course (`companion build take`);
    otherwise, the course's file is used. The attributes of the returned world are the names defined in the stage's
    file; `world["model"]` gives access to the names in another file. Nothing is printed if an earlier call for another
    stage has already said the same about these files.
    """
    folder, stage = find_folder(), find_stage(number)
    there = read_sources(folder) if folder.is_dir() else {}
    sources: dict[str, str] = {}
    yours = []
    for other in STAGES.values():
        sources |= references(other) | sources
        if other.module in there and is_done(folder, other):
            sources[other.module] = there[other.module]
            yours.append(other.file)
        if other is stage:
            break
    told = {name: f"{name}.py" in yours for name in sources}
    if not any(told.items() <= before.items() for other, before in _told.items() if other != number):
        print("yours:", ", ".join(yours) or "nothing yet, so these are the course's files")
    _told[number] = told
    files = {name: str(folder / f"{name}.py") for name in there if f"{name}.py" in yours}
    return World(sources, stage.module, files)


def keep_own(name: str, code: World, model: Any, merges: Sequence[tuple[int, int]], context: int) -> None:
    """Save a learner's model in the subfolder `name` of the learner's folder, and print how to use it.

    Nothing is saved if the learner's folder does not exist, for example because the learner only reads the lessons.

    Args:
        name: Name of the subfolder.
        code: The files, as returned by `own` for stage 6 or a later stage.
        model: A `Transformer` from stage 5.
        merges: The merges of its tokenizer.
        context: Length of the longest training sequence, in tokens.

    Raises:
        ValueError: If the model cannot be saved (see `save_model`).
    """
    folder = find_folder()
    if not folder.is_dir():
        print("not saved: there is no my/transformer yet (companion build start creates it)")
        return
    save_model(folder / name, code, model, merges, context)
    print(f'saved: companion generate --checkpoint {folder / name} --prompt "Once upon a time"')


def own_model() -> Path:
    """Return the folder of the model that `companion build story` saved, and print whose model it is.

    If there is no such model, export the course's story model to a temporary folder in the same format.
    """
    folder = find_folder()
    if (folder / "config.json").is_file() and (folder / "model.safetensors").is_file():
        print(f"the model: yours, in {folder.name}")
        return folder
    print("the model: the course's, because you have not saved one yet (`companion build story`)")
    from companion.families.export import export_model  # imported late: rarely needed

    made = Path(tempfile.mkdtemp(prefix="companion-story-"))
    export_model(made, records.story_model()[0], kind="llama", further={"eos_token_id": 0})
    shutil.copy(str(resources.files(records) / "story" / "tokenizer.json"), made / "tokenizer.json")
    return made
