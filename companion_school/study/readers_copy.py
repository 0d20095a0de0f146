"""Open the course: a reader's own copy of the notebooks, and JupyterLab on it (`make lab`).

    python -m companion_school.study.readers_copy

The notebooks of the course, `notebooks/`, are what git knows. A reader works in `my/`, which git ignores: every
notebook and page is copied there, once, and again when the course has a new version of it, as long as the reader has
not changed a cell. What a reader has changed is never written over: the new version is laid beside it, and the reader
is told.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from companion.ground.atomic import write_atomic
from companion_school.study import progress_table

MINE = "my"
START = progress_table.FILE
KERNEL = "The Executable Transformer"
RECORD = ".copied.json"  # in the reader's folder: each file as it was copied
SKIPPED = (".lab", ".ipynb_checkpoints", "__pycache__", "INSTRUCTORS.md", "PLAN.md")


NOT_FOR_READERS = (
    "jupyterlab_jupytext",
    *(
        f"nbgrader.server_extensions.{part}"
        for part in ("formgrader", "validate_assignment", "assignment_list", "course_list")
    ),
)
"""Extensions of the server that prove or grade notebooks."""


def refresh(course: Path, mine: Path) -> list[str]:
    """Copy what is new in the course's notebooks into the reader's own folder.

    course:  the folder of the course's notebooks.
    mine:    the reader's folder; made where it is missing.

    Returns a line for each file of which both the course and the reader have a new version.

    Raises `ValueError` if `course` is not there, or the record of what was copied cannot be understood.
    """
    if not course.is_dir():
        raise ValueError(f"{course}: expected the folder of the course's notebooks")
    record, said = _read_record(mine / RECORD), []
    for source in _files(course):
        name = source.relative_to(course).as_posix()
        new, target = source.read_bytes(), mine / name
        if target.exists() and _content(target.read_bytes()) != record.get(name):
            if record.get(name) == _content(new) or _content(target.read_bytes()) == _content(new):
                continue
            target = target.with_name(f"{target.stem}_new{target.suffix}")
            said.append(
                f"{mine.name}/{name} is yours and was left as it is; the new version is {target.name} beside it"
            )
        elif target.exists() and record.get(name) == _content(new):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, new)
        if target.suffix == ".ipynb":
            _sign(target)
        record[name] = _content(new)
    mine.mkdir(exist_ok=True)
    write_atomic(mine / RECORD, json.dumps(record, indent=1))
    return said


def _read_record(file: Path) -> dict[str, str]:
    try:
        return {str(name): str(digest) for name, digest in json.loads(file.read_text("utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError):
        what = "expected the record of what was copied; remove it, and nothing of yours is written over"
        raise ValueError(f"{file}: {what}") from None


def _files(course: Path) -> Iterator[Path]:
    for file in sorted(course.rglob("*")):
        inside = file.relative_to(course).parts
        if file.is_file() and not any(part in SKIPPED for part in inside):
            yield file


def _content(data: bytes) -> str:
    """A digest of what a reader writes: of a notebook its cells' text, not what running it has printed."""
    try:
        cells = json.loads(data)["cells"]
        data = json.dumps([[cell["cell_type"], "".join(cell["source"])] for cell in cells]).encode()
    except (ValueError, KeyError, TypeError):
        pass  # a page, a picture, or a notebook that is damaged: its bytes
    return hashlib.sha256(data).hexdigest()[:16]


def _sign(notebook: Path) -> None:
    """Tell Jupyter that the notebook may be shown with its scripts: its figures move before a cell was run."""
    import nbformat
    from nbformat.sign import NotebookNotary

    NotebookNotary().sign(nbformat.reads(notebook.read_text("utf-8"), as_version=4))


def show_progress(mine: Path) -> None:
    """Bring the start page up to date with what the reader has done; a page that is the reader's own is left alone.

    Raises `ValueError` if the progress cannot be understood.
    """
    page = mine / START
    try:
        progress_table.read(page)
    except ValueError:
        return
    progress_table.fill(page)
    _sign(page)


def write_kernel(folder: Path) -> None:
    """Describe this Python as a kernel with the course's name, in a folder for JUPYTER_PATH."""
    description = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=40"],
        "display_name": KERNEL,
        "language": "python",
        "metadata": {"debugger": True},
    }
    spec = folder / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(spec, json.dumps(description, indent=1))


def environment(root: Path, known: dict[str, str]) -> dict[str, str]:
    """What JupyterLab inherits: the course's settings, which the reader's own overrule, and its kernel."""
    ours = {"JUPYTER_CONFIG_PATH": root / "notebooks" / ".lab", "JUPYTER_PATH": root / MINE / ".jupyter"}
    return known | {
        name: os.pathsep.join(filter(None, [str(folder), known.get(name)])) for name, folder in ours.items()
    }


def command(root: Path) -> list[str]:
    """The command that opens JupyterLab at the start page."""
    settings = {
        # the page's own style; `static_custom_path` is no setting of the server, so it goes where the server keeps it
        "static_custom_path": [str(root / "notebooks" / ".lab" / "custom")],
    }
    # Tornado warns once that it shortens the server's own timeout for pings, which is the server's business: with a
    # timeout that tornado likes, the server closes every connection as soon as it first looks (`make lab-check`).
    quiet = {"loggers": {"tornado.general": {"level": "ERROR"}}}
    flags = [
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{MINE}/{START}",
        "--LabApp.custom_css=True",
        "--LabApp.expose_app_in_browser=True",  # so that an answer to a question reaches the reader's progress
        f"--ServerApp.tornado_settings={settings!r}",
        f"--ServerApp.logging_config={quiet!r}",
        "--log-level=WARN",
        "--LabApp.log_level=WARN",  # of JupyterLab in the server, which the other does not reach
        # what other extras have brought stays out of a reader's JupyterLab (labconfig/page_config.json does its part)
        f"--ServerApp.jpserver_extensions={dict.fromkeys(NOT_FOR_READERS, False)!r}",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--allow-root")
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        flags.append("--no-browser")
    return [sys.executable, "-m", "jupyterlab", *flags]


def open_already(root: Path) -> str | None:
    """The address of a JupyterLab of this checkout that runs, if there is one: two would write the same notebooks."""
    from jupyter_server.serverapp import list_running_servers

    for server in list_running_servers():
        if Path(server["root_dir"]) == root:
            return f"{server['url']}lab/tree/{MINE}/{START}?token={server['token']}"
    return None


def main(arguments: list[str] | None = None) -> int:
    """Open the course, with what `arguments` tell JupyterLab besides; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m companion_school.study.readers_copy",
        description="Open the course in JupyterLab, in your own copy of its notebooks: the folder my/.",
        epilog="Other flags are handed to JupyterLab, as in --port=9999 or --no-browser.",
    )
    parser.add_argument("--prepare", action="store_true", help="make or refresh the copy, and do not open JupyterLab")
    options, further = parser.parse_known_args(arguments)
    root = Path.cwd()
    try:
        said = refresh(root / "notebooks", root / MINE)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        show_progress(root / MINE)
    except ValueError as error:  # the course can be read without it
        said.append(str(error))
    print(*said, sep="\n", end="\n" if said else "")
    write_kernel(root / MINE / ".jupyter")
    if options.prepare:
        return 0
    if address := open_already(root):
        print(
            f"The course is open already, at {address}\nTo open it anew: Ctrl-C twice where it runs, then this again."
        )
        return 0
    os.environ.update(environment(root, dict(os.environ)))
    print("Opening the course. To stop it: Ctrl-C twice, here. Your notebooks are in my/ and stay.", flush=True)
    if os.name == "nt":  # has no exec that keeps the terminal
        import subprocess

        return subprocess.call([*command(root), *further])
    os.execv(sys.executable, [*command(root), *further])


if __name__ == "__main__":
    sys.exit(main())
