"""Checks before a command writes anything: whether the path is writable and whether there is enough memory.

A failed check raises `ValueError`, which becomes one sentence and exit code 2.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from companion.ground.fields import plain, shown

if TYPE_CHECKING:
    import torch

    from companion.training.settings import Settings

REFUSED = frozenset(
    {
        *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.ENOENT, errno.EEXIST, errno.EINVAL, errno.ENXIO, errno.EILSEQ, errno.ENOTEMPTY),
    }
)
"""Error codes that mean that a path given by the user is unusable, as opposed to a disk that is full or failing."""


def refusal(error: OSError, given: Mapping[str, Any]) -> str:
    """Return the sentence about an unusable path.

    Args:
        error: The error.
        given: The values of the flags, named as they are typed. If one of them is the path or a folder above it, the
            sentence begins with its flag.
    """
    if error.filename is None:
        return str(error)
    place = os.fsdecode(error.filename)
    inside = Path(os.path.abspath(place))
    texts = [(name, text) for name, value in given.items() for text in (value if isinstance(value, list) else [value])]
    named = {
        len(around.parts): f"{name} "
        for name, text in reversed(texts)
        if isinstance(text, str)
        and text
        and (around := Path(os.path.abspath(os.path.expanduser(text)))) in (inside, *inside.parents)
    }
    flag = named[max(named)] if named else ""
    reason = (error.strerror or str(error)).lower()
    return f"{flag}{plain(place)}: cannot be used ({reason}); expected a usable path"


def must_be_writable(place: str | Path, flag: str, given: str | None = None) -> None:
    """Check, before any work, that a folder at `place` or a file in it can be written.

    Args:
        place: The path of the folder.
        flag: The flag that named the path, for messages.
        given: The text that the user typed (default: `place`).

    Raises:
        ValueError: If a parent is not a folder or cannot be written to, or if a name is too long.
    """
    name = f"{flag} {plain(str(place if given is None else given))}"
    path = Path(place).expanduser().absolute()
    try:
        above = next(folder for folder in (path, *path.parents) if folder.exists())
        # Leave room for the suffixes of temporary files, which are written first.
        longest = os.pathconf(above, "PC_NAME_MAX") - 24 if hasattr(os, "pathconf") else 231
    except OSError as error:
        raise ValueError(f"{name}: cannot be written to ({(error.strerror or str(error)).lower()})") from None
    if long := next((part for part in path.parts if len(os.fsencode(part)) > longest), None):
        raise ValueError(f"{name}: expected names of at most {longest} bytes, got one of {len(os.fsencode(long))}")
    if not above.is_dir():
        raise ValueError(f"{name}: expected a folder or the path of a new one, but {above} is not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"{name}: expected a writable folder, but {above} is not writable")


def try_to_write(place: Path, flag: str) -> None:
    """Write a temporary file into the folder at `place`, and remove it together with any folders created for it.

    Some disks only report that they are read-only or full when something is written.

    Raises:
        ValueError: If that fails.
    """
    path = place.absolute()
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        raise ValueError(f"{flag} {place}: cannot be written to ({(error.strerror or str(error)).lower()})") from None
    finally:
        for folder in new:
            with suppress(OSError):
                folder.rmdir()


_SIZES = ("vocab", "d_model", "layers", "heads", "kv_heads", "d_ff", "context", "experts", "shared_experts")
_OF_A_BATCH = ("batch", "accumulate")


def must_have_room(settings: Settings, device: torch.device, world: int = 1) -> None:
    """Check that this machine has the minimum memory for training, before anything is read or written.

    The estimate counts weights, gradients and both moments (16 bytes per parameter), the batches of an update, and the
    residual stream and logits of one micro-batch.

    Args:
        settings: The settings of the run.
        device: The device to train on.
        world: The number of processes that share the rows and, with `shard` or `expert_parallel`, the weights.

    Raises:
        ValueError: If this machine has less memory. The message names the flag that is furthest from its default.
    """
    from companion.costs.account import train_bytes
    from companion.ground.memory import check_room

    config = settings.model_config(getattr(settings, "vocab", 257))
    spread = world if settings.shard or settings.expert_parallel else 1
    training = train_bytes(config) // spread
    ids = settings.batch * settings.accumulate * config.context * 16
    rows = -(-settings.batch // world)
    stream = rows * config.context * (config.layers * config.d_model + config.vocab) * 4
    usual = type(settings)()

    def ratio(name: str) -> float:
        value, default = getattr(settings, name), getattr(usual, name) or 4
        return 0.0 if value is None else min(value, 10**300) / default

    def culprit(names: tuple[str, ...]) -> str:
        name = max((name for name in names if hasattr(settings, name)), key=ratio)
        return f"--{name.replace('_', '-')} {shown(getattr(settings, name))}"

    model = f"--model {settings.model}" if settings.model is not None else culprit(_SIZES)
    check_room(model, "this model in training", training, device)
    both = culprit((*_OF_A_BATCH, *(() if settings.model else _SIZES)))
    check_room(both, "an update", training + ids + stream, device)
