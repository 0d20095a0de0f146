"""The learner's files for a notebook: his own where they are right, the course's where they are not there yet."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from companion_school import records
from companion_school.build.isolated_modules import World
from companion_school.build.keep import keep
from companion_school.build.parts import references
from companion_school.build.stages import STAGES, find_stage
from companion_school.build.workspace import find_folder, is_done, read_sources


def own(number: int) -> World:
    """The files of a stage and of all before it, of which each is the learner's if it has passed its check or was
    taken, and else the course's; a line says whose they are. The names of the stage's file are the world's attributes,
    and `world["model"]` is another file."""
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
    print("yours:", ", ".join(yours) or "nothing yet, so these are the course's files")
    files = {name: str(folder / f"{name}.py") for name in there if f"{name}.py" in yours}
    return World(sources, stage.module, files)


def keep_own(name: str, code: World, model: Any, merges: Sequence[tuple[int, int]], context: int) -> None:
    """Save a model of the learner's as the folder `name` in the folder of stages, and say so.

    Where there are no stages yet, as for someone who only reads, nothing is written.

    Args:
        name: of the folder.
        code: the files, as `own` gives those of stage 6 or a later one.
        model: a `Transformer` of stage 5.
        merges: those of its tokenizer.
        context: the longest text it was trained on, in tokens.

    Raises:
        ValueError: if it cannot be saved (`keep`).
    """
    folder = find_folder()
    if not folder.is_dir():
        print("not kept: there is no my/transformer yet (companion build start makes it)")
        return
    keep(folder / name, code, model, merges, context)
    print(f'kept: companion generate --checkpoint {folder / name} --prompt "Once upon a time"')


def own_model() -> Path:
    """Return the folder of the model that `companion build story` has saved, or else of the course's story model in the
    same form, and print whose it is."""
    folder = find_folder()
    if (folder / "config.json").is_file() and (folder / "model.safetensors").is_file():
        print(f"the model: yours, in {folder.name}")
        return folder
    print("the model: the course's, since you have not saved one yet (`companion build story`)")
    from companion.families.export import export_model  # a notebook that only writes needs no families

    made = Path(tempfile.mkdtemp(prefix="companion-story-"))
    export_model(made, records.story_model()[0], kind="llama", further={"eos_token_id": 0})
    shutil.copy(str(resources.files(records) / "story" / "tokenizer.json"), made / "tokenizer.json")
    return made
