"""`companion export`: write a model in a published layout, or as a GGUF file.

`transformers`, vLLM, SGLang and others read published layouts; llama.cpp and Ollama read GGUF files.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jsonargparse import Namespace

from companion.commands.parser import Parser, add_checkpoint, add_run, exclude
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
"""Files in a published model's folder that are copied unchanged."""
IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def parser() -> Parser:
    parser = Parser(
        description=(
            "Write a model in Hugging Face's layout (config.json, model.safetensors and the tokenizer). transformers "
            "can then load it, and servers such as vLLM or SGLang can run it on one machine or many.\n\n"
            "The model is written as the simplest published architecture that supports all of its parts. If no "
            "published architecture supports some part, the error names it. The logits agree up to rounding.\n\n"
            "With --gguf, the model becomes a single file for llama.cpp, Ollama and LM Studio, which stores the "
            "matrices in the given type and also contains the tokenizer and the chat template."
        ),
        epilog=(
            "examples:\n"
            "  companion export served/\n"
            "  companion export served/ --run runs/larger --best --dtype bf16\n"
            "  companion export served/ --run runs/sums-grpo\n"
            "      a tuned run, adapters merged, with its chat template\n"
            "  companion export served/ --checkpoint SmolLM2-135M/ --as mistral\n"
            "  companion export letters.gguf --run runs/larger --gguf Q8_0\n"
            "  companion export smollm2.gguf --checkpoint smollm2 --gguf F16\n"
            "to serve the model to others, with one of these servers:\n"
            "  vllm serve served/                       http://localhost:8000/v1\n"
            "  python -m sglang.launch_server --model-path served/\n"
            "  llama-server -m letters.gguf             http://localhost:8080/v1\n"
            "to talk to the model on this machine: companion chat, companion explore (extra 'school')"
        ),
    )
    parser.add_argument("folder", metavar="FOLDER", help="output: a new or empty folder or, with --gguf, a new file")
    add_run(parser, best=True)
    add_checkpoint(parser)
    parser.add_argument(
        "--as",
        metavar="KIND",
        help="model_type of the architecture to write (default: the simplest type that supports the whole model)",
    )
    parser.add_argument(
        "--gguf",
        type=Literal["F32", "F16", "BF16", "Q8_0"] | None,
        help="write a GGUF file with matrices of this type; Q8_0 uses one byte per element and a scale per 32 of them",
    )
    parser.add_dtype()
    return parser


@dataclass
class Source:
    """A model to export, with the files that accompany it.

    Attributes:
        model: The model to export.
        kind: The `model_type` to export as (default: the simplest type that supports every part of the model).
        fields: The special token ids in config.json.
        texts: Contents of the text files to write next to the model (tokenizer, template and generation settings),
            keyed by file name.
        files: Files to copy unchanged.
    """

    model: Transformer
    kind: str | None
    fields: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


def run(flags: Namespace) -> int:
    exclude(flags, "checkpoint", "run", "best")
    target = Path(flags.folder)
    if flags.gguf is not None:
        if flags.dtype is not None:
            raise ValueError("--dtype cannot be used together with --gguf, which already names the type")
        if target.suffix != ".gguf" or target.exists():
            raise ValueError(f"FOLDER {flags.folder}: with --gguf, expected the name of a new file that ends in .gguf")
    elif target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ValueError(f"FOLDER {flags.folder}: expected a new or empty folder, but it contains files")
    source = _of_run(flags) if flags.checkpoint is None else _of_checkpoint(flags)
    try:
        with waiting(f"writing {plain(flags.folder)}"):
            says = _write_folder(target, source, flags) if flags.gguf is None else _write_gguf(target, source, flags)
    except ValueError as error:
        raise ValueError(f"FOLDER {flags.folder}: the model cannot be written: {error}") from None
    print(f"{flags.folder}: {says}")
    return 0


def _write_folder(folder: Path, source: Source, flags: Namespace) -> str:
    from companion.commands.generate import dtype_called
    from companion.families.export import export_model
    from companion.files.models import CONFIG
    from companion.ground.atomic import write_atomic

    dtype = dtype_called(flags.dtype)
    model = source.model if dtype is None else source.model.to(dtype)
    family = export_model(folder, model, kind=source.kind, further=source.fields)
    for name, text in source.texts.items():
        write_atomic(folder / name, text)
    for beside in source.files:
        shutil.copyfile(beside, folder / beside.name)
    names = ", ".join(sorted(path.name for path in folder.iterdir() if path.name != CONFIG))
    return f"a {family.kind} ({family.architecture}): {CONFIG}, {names}"


def _write_gguf(path: Path, source: Source, flags: Namespace) -> str:
    from companion.data.chat_template import SETTINGS, TEMPLATE
    from companion.families.export import export_gguf
    from companion.files.gguf.architectures import BY_KIND
    from companion.ground.display import readable_bytes

    texts = {beside.name: beside.read_text(encoding="utf-8") for beside in source.files if beside.suffix != ".spm"}
    texts |= source.texts
    if "tokenizer.json" not in texts:
        raise ValueError(
            "expected a tokenizer.json next to the weights, found none; a GGUF file contains the tokenizer"
        )
    template = texts.get(TEMPLATE) or json.loads(texts.get(SETTINGS, "{}")).get("chat_template")
    special = {name: value[0] if isinstance(value, list) else value for name, value in source.fields.items()}
    architecture = export_gguf(
        path,
        source.model,
        kind=source.kind if source.kind in BY_KIND or flags["as"] else None,
        type=flags.gguf,
        tokenizer=texts["tokenizer.json"],
        template=template if isinstance(template, str) else None,
        special={name: value for name, value in special.items() if name in IDS[:3]},
        name=path.stem,
    )
    return f"a {architecture} of llama.cpp, in {flags.gguf}, {readable_bytes(path.stat().st_size)}"


def _of_run(flags: Namespace) -> Source:
    from companion.families.adapters import merged_model
    from companion.files.published.generation_config import GENERATION

    found = run_folder(flags.run)
    model = found.model(best=flags.best)
    if found.task == TuneSettings.task:
        texts = found.texts()
        ends = {"eos_token_id": json.loads(texts[GENERATION])["eos_token_id"]}
        return Source(merged_model(model), flags["as"], ends, texts)
    if found.task != TextSettings.task:
        return Source(model, flags["as"])
    tokenizer = found.tokenizer()
    fields = dict.fromkeys(IDS[:3], tokenizer.separator)
    return Source(model, flags["as"], fields, _tokenizer_files(tokenizer, model))


def _of_checkpoint(flags: Namespace) -> Source:
    from companion.commands.writer import checkpoint_folder
    from companion.families.pretrained import family_of, load_pretrained
    from companion.files.models import read_config

    folder = checkpoint_folder(flags.checkpoint)
    family = family_of(folder)
    fields = {} if family is None else read_config(folder)
    own = None if family is None else family.kind
    files = [folder / name for name in COPIED if (folder / name).is_file()]
    ids = {name: fields[name] for name in IDS if name in fields}
    return Source(load_pretrained(folder), flags["as"] or own, ids, files=files)


def _tokenizer_files(tokenizer: BytePairTokenizer, model: Transformer) -> dict[str, str]:
    from companion.commands.writer import WARM
    from companion.data.chat_template import TEMPLATE
    from companion.data.chat_tokens import files_of_run
    from companion.files.published.generation_config import GENERATION

    files = files_of_run(tokenizer, model.config.context)
    writes = {"do_sample": True, "temperature": WARM, "top_k": 0, **json.loads(files.pop(GENERATION))}
    del files[TEMPLATE]  # the model continues texts and was not trained on conversations
    return {**files, GENERATION: json.dumps(writes, indent=2) + "\n"}
