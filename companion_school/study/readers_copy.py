"Open the course in JupyterLab, in your own copy of its notebooks (the folder my/)."

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from companion.ground.atomic import write_atomic
from companion_school.study import missing_names, progress_table

MINE = "my"
START = progress_table.FILE
KERNEL = "The Executable Transformer"
KERNEL_SPEC = {"display_name": KERNEL, "language": "python", "name": "python3"}
LANGUAGE = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
    "version": sys.version.split()[0],
}
"""Language information that the kernel reports."""
RECORD = ".copied.json"  # in the reader's folder; contains digests of each file's cells and of the whole file
SKIPPED = (".lab", ".ipynb_checkpoints", "__pycache__", "INSTRUCTORS.md", "PLAN.md")


NOT_FOR_READERS = (
    "jupyterlab_jupytext",
    *(
        f"nbgrader.server_extensions.{part}"
        for part in ("formgrader", "validate_assignment", "assignment_list", "course_list")
    ),
)
"""Server extensions that only authors and graders of notebooks need."""


def refresh(course: Path, mine: Path) -> list[str]:
    """Copy new versions of the course's notebooks into the reader's own folder.

    Args:
        course: Folder of the course's notebooks.
        mine: The reader's folder (created if missing).

    Returns:
        One line for each file that both the course and the reader have changed.

    Raises:
        ValueError: `course` is missing, or the record of copied files cannot be read.
    """
    if not course.is_dir():
        raise ValueError(f"{course}: expected the folder of the course's notebooks")
    record, said = _read_record(mine / RECORD), []
    for source in _files(course):
        name = source.relative_to(course).as_posix()
        new, target = source.read_bytes(), mine / name
        content = _content(new)
        cells, _, whole = record.get(name, "").partition(" ")
        if target.exists() and (own := _content(target.read_bytes())) != cells:
            if content in (cells, own):
                continue
            target = target.with_name(f"{target.stem}_new{target.suffix}")
            said.append(
                f"{mine.name}/{name} is yours and was left as it is; the new version is {target.name} beside it"
            )
        elif target.exists() and whole == _digest(new):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, _with_kernel(new) if target.suffix == ".ipynb" else new)
        if target.suffix == ".ipynb":
            _sign(target)
        record[name] = f"{content} {_digest(new)}"
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
    """Return a digest of a file's content. For a notebook, it covers the text of the cells but not their outputs."""
    try:
        cells = json.loads(data)["cells"]
        data = json.dumps([[cell["cell_type"], "".join(cell["source"])] for cell in cells]).encode()
    except (ValueError, KeyError, TypeError):
        pass  # pages, pictures and damaged notebooks are compared byte by byte
    return _digest(data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _with_kernel(data: bytes) -> bytes:
    """Return the notebook with the metadata of the reader's kernel.

    JupyterLab writes this metadata when it connects to the kernel. A notebook with different metadata looks unsaved as
    soon as it is opened.
    """
    notebook = json.loads(data)
    notebook["metadata"] |= {"kernelspec": KERNEL_SPEC, "language_info": LANGUAGE}
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def _sign(notebook: Path) -> None:
    """Mark a notebook as trusted, so that its figures move even before any cell has been run."""
    import nbformat
    from nbformat.sign import NotebookNotary

    NotebookNotary().sign(nbformat.reads(notebook.read_text("utf-8"), as_version=4))


def show_progress(mine: Path) -> None:
    """Update the reader's progress on the start page. A start page without the course's metadata is left unchanged.

    Raises:
        ValueError: The progress cannot be read.
    """
    page = mine / START
    try:
        progress_table.read(page)
    except ValueError:
        return
    progress_table.fill(page)
    _sign(page)


def write_kernel(folder: Path) -> None:
    """Write a kernel specification for this Python, under the course's name, to a folder meant for JUPYTER_PATH."""
    description = {
        "argv": [
            *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=40"),
            f"--ext={missing_names.__name__}",
        ],
        "display_name": KERNEL,
        "language": "python",
        "metadata": {"debugger": True},
    }
    spec = folder / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(spec, json.dumps(description, indent=1))


def environment(root: Path, known: dict[str, str]) -> dict[str, str]:
    """Return the environment variables for JupyterLab, with the course's settings, extension and kernel added.

    Args:
        root: Folder of the checkout.
        known: The current environment variables.
    """
    settings = root / "notebooks" / ".lab"
    ours = {"JUPYTER_CONFIG_PATH": [settings], "JUPYTER_PATH": [root / MINE / ".jupyter", settings]}
    return known | {
        name: os.pathsep.join([*map(str, folders), *filter(None, [known.get(name)])]) for name, folders in ours.items()
    }


def command(root: Path) -> list[str]:
    """Return the command that opens JupyterLab at the start page."""
    settings = {
        # The server has no setting for the path of the course's style sheet, so set it in Tornado.
        "static_custom_path": [str(root / "notebooks" / ".lab" / "custom")],
    }
    # Tornado's warning that it shortens the server's timeout for pings is harmless.
    # With a shorter timeout, the server would close every connection at its first check (`make lab-check`).
    quiet = {"loggers": {"tornado.general": {"level": "ERROR"}}}
    flags = [
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{MINE}/{START}",
        # A single Ctrl-C stops the lab. A request for confirmation would be lost among the lines in the terminal.
        "--ServerApp.answer_yes=True",
        "--LabApp.custom_css=True",
        "--LabApp.expose_app_in_browser=True",  # needed to record answers to questions in the reader's progress
        f"--ServerApp.tornado_settings={settings!r}",
        f"--ServerApp.logging_config={quiet!r}",
        "--log-level=WARN",
        "--LabApp.log_level=WARN",  # JupyterLab's own log level, which the previous flag does not set
        # Disable extensions that other extras install (labconfig/page_config.json does the same in the browser).
        f"--ServerApp.jpserver_extensions={dict.fromkeys(NOT_FOR_READERS, False)!r}",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--allow-root")
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        flags.append("--no-browser")
    return [sys.executable, "-m", "jupyterlab", *flags]


def open_already(root: Path) -> str | None:
    """Return the address of a JupyterLab that is already running in this checkout, or None.

    Two servers would write to the same notebooks.
    """
    from jupyter_server.serverapp import list_running_servers

    for server in list_running_servers():
        if Path(server["root_dir"]) == root:
            return f"{server['url']}lab/tree/{MINE}/{START}?token={server['token']}"
    return None


def main(arguments: list[str] | None = None) -> int:
    """Open the course.

    Args:
        arguments: Command-line arguments; unknown ones are passed to JupyterLab.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="python -m companion_school.study.readers_copy",
        description="Open the course in JupyterLab, in your own copy of its notebooks (the folder my/).",
        epilog="Other flags are handed to JupyterLab, as in --port=9999 or --no-browser.",
    )
    parser.add_argument("--prepare", action="store_true", help="make or update the copy without opening JupyterLab")
    options, further = parser.parse_known_args(arguments)
    root = Path.cwd()
    try:
        said = refresh(root / "notebooks", root / MINE)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        show_progress(root / MINE)
    except ValueError as error:  # the course works without the reader's progress
        said.append(str(error))
    print(*said, sep="\n", end="\n" if said else "")
    write_kernel(root / MINE / ".jupyter")
    if options.prepare:
        return 0
    if address := open_already(root):
        print(
            f"The course is open already, at {address}\n"
            "To start it anew, press Ctrl-C in the terminal where it runs, then run this command again."
        )
        return 0
    os.environ.update(environment(root, dict(os.environ)))
    print("Opening the course. To stop it, press Ctrl-C here. Your notebooks are in my/ and stay.", flush=True)
    if os.name == "nt":  # on Windows, exec would detach the terminal
        import subprocess

        return subprocess.call([*command(root), *further])
    os.execv(sys.executable, [*command(root), *further])


if __name__ == "__main__":
    sys.exit(main())
