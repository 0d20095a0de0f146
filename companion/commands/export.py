"""`companion export`: a model in the layout of a published family, for `transformers`, vLLM, SGLang and others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from companion.commands.parser import CHECKPOINT, Parser, add_run
from companion.commands.runs import run_folder
from companion.ground.fields import plain
from companion.ground.waiting import waiting
from companion.training.settings import TextSettings, TuneSettings

if TYPE_CHECKING:
    from companion.data.tokenizer import BytePairTokenizer
    from companion.transformer import Transformer

COPIED = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "vocab.json", "merges.txt", "source.spm", "target.spm",
)  # fmt: skip
"""What a published folder holds beside its model, which goes along as it is."""
IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def parser() -> Parser:
    parser = Parser(
        description=(
            "Write a model in Hugging Face's layout: config.json, model.safetensors, and its tokenizer. Whatever reads "
            "that can then run it: transformers, or a server such as vLLM or SGLang, on one machine or many.\n\n"
            "It is written as the simplest published kind of model that has all of its parts; a part that none of them "
            "has is refused by its name. The logits are the same, but for rounding."
        ),
        epilog=(
            "examples:\n"
            "  companion export served/\n"
            "  companion export served/ --run runs/larger --best --dtype bf16\n"
            "  companion export served/ --run runs/sums-grpo\n"
            "      a tuned run, adapters merged, with its chat template\n"
            "  companion export served/ --checkpoint SmolLM2-135M/ --as mistral\n"
            "then, to serve it to others, where one of these is installed:\n"
            "  vllm serve served/                       http://localhost:8000/v1\n"
            "  python -m sglang.launch_server --model-path served/\n"
            "  python convert_hf_to_gguf.py served/ && llama-server -m served/*.gguf\n"
            "to talk to a model on this machine: companion chat, companion explore"
        ),
    )
    parser.add_argument("folder", type=str, metavar="FOLDER", help="where to write it: a new folder, or an empty one")
    add_run(parser, best=True)
    parser.add_argument("--checkpoint", type=str, default=None, metavar="MODEL", help=CHECKPOINT)
    parser.add_argument(
        "--as", type=str, default=None, metavar="KIND", help="the published kind, a model_type. Default: one that fits"
    )
    parser.add_dtype()
    return parser


def run(flags: Namespace) -> int:
    if flags.checkpoint is not None and (flags.run is not None or flags.best):
        raise ValueError(f"--checkpoint: expected no --{'run' if flags.run is not None else 'best'} beside it")
    folder = Path(flags.folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ValueError(f"FOLDER {flags.folder}: expected a new folder, or an empty one, found something there")
    from companion.commands.generate import dtype_called
    from companion.commands.writer import checkpoint_folder
    from companion.families.adapters import merged_model
    from companion.families.export import export_model
    from companion.files.models import CONFIG
    from companion.files.published.generation_config import GENERATION
    from companion.ground.atomic import write_atomic

    texts: dict[str, str] = {}
    checkpoint = None if flags.checkpoint is None else checkpoint_folder(flags.checkpoint)
    if checkpoint is None:
        source = run_folder(flags.run)
        model, kind = source.model(best=flags.best), flags["as"]
        tokenizer = source.tokenizer() if source.task == TextSettings.task else None
        further = {} if tokenizer is None else dict.fromkeys(IDS[:3], tokenizer.separator)
        if source.task == TuneSettings.task:
            model, texts = merged_model(model), source.texts()
            further = {"eos_token_id": json.loads(texts[GENERATION])["eos_token_id"]}
    else:
        model, kind, further = _of_checkpoint(checkpoint, flags["as"])
        tokenizer = None
    try:
        with waiting(f"writing {plain(flags.folder)}"):
            if (dtype := dtype_called(flags.dtype)) is not None:
                model = model.to(dtype)
            family = export_model(folder, model, kind=kind, further=further)
    except ValueError as error:
        raise ValueError(f"FOLDER {flags.folder}: the model cannot be written: {error}") from None
    if tokenizer is not None:
        _write_tokenizer(folder, tokenizer, model)
    for name, text in texts.items():
        write_atomic(folder / name, text)
    for name in COPIED if checkpoint is not None else ():
        if (beside := checkpoint / name).is_file():
            shutil.copyfile(beside, folder / name)
    names = ", ".join(sorted(path.name for path in folder.iterdir() if path.name != CONFIG))
    print(f"{flags.folder}: a {family.kind} ({family.architecture}): {CONFIG}, {names}")
    return 0


def _of_checkpoint(source: Path, kind: str | None) -> tuple[Transformer, str | None, dict[str, Any]]:
    """The model, the kind to write it as, and the ids that its folder gives a meaning."""
    from companion.families.pretrained import family_of, load_pretrained
    from companion.files.models import read_config

    family = family_of(source)
    fields = {} if family is None else read_config(source)
    own = None if family is None else family.kind
    return load_pretrained(source), kind or own, {name: fields[name] for name in IDS if name in fields}


def _write_tokenizer(folder: Path, tokenizer: BytePairTokenizer, model: Transformer) -> None:
    """The tokenizer of a run, and how a run writes."""
    from companion.commands.writer import WARM
    from companion.data.chat_template import TEMPLATE
    from companion.data.chat_tokens import files_of_run
    from companion.files.published.generation_config import GENERATION
    from companion.ground.atomic import write_atomic

    files = files_of_run(tokenizer, model.config.context)
    writes = {"do_sample": True, "temperature": WARM, "top_k": 0, **json.loads(files.pop(GENERATION))}
    del files[TEMPLATE]  # it goes on with texts, and knows of no turns
    for name, text in {**files, GENERATION: json.dumps(writes, indent=2) + "\n"}.items():
        write_atomic(folder / name, text)
