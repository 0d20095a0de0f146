"""`companion inspect`: show the contents of a published model's folder, and how each field is used."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from companion.commands.parser import Parser

if TYPE_CHECKING:
    from companion.config.model import ModelConfig
    from companion.families.inspected import Inspection
    from companion.files.published.checkpoint_folder import Became
    from companion.files.published.generation_config import Writing


JSON = (
    "print the results as JSON: an object with the keys folder, kind, model, parameters, fields, left_out, tensors, "
    "files, writing and refused. Later versions may add keys but will not change these"
)


def parser() -> Parser:
    parser = Parser(
        description=(
            "Examine the folder of a published model or of one of your own: what the model is, how each field in its "
            "files is used, what is missing, and which settings text generation will use. The model is loaded, so "
            "that NaN and infinite weights are found. If it cannot be loaded, the exit code is 2 and the last lines "
            "say why. If you pass only a config.json, the command prints its fields and the size of the model."
        ),
        epilog=(
            "examples:\n"
            "  companion inspect SmolLM2-135M/\n"
            "  companion inspect runs/one/checkpoints/step-200/\n"
            "  companion inspect downloads/config.json\n"
            "  companion inspect SmolLM2-135M/ --json    for a program"
        ),
    )
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        help="folder with config.json and model.safetensors, a GGUF file, a model name that companion get accepts, or "
        "a config.json",
    )
    parser.add_argument("--json", action="store_true", help=JSON)
    return parser


def run(flags: Namespace) -> int:
    from companion.commands.writer import checkpoint_folder
    from companion.families.inspected import inspect, read_card
    from companion.files.gguf.folder import is_gguf
    from companion.files.models import read_config

    folder = Path(flags.folder)
    if folder.is_file() and not is_gguf(folder):
        found = read_card(read_config(folder.parent, folder.name), folder)
    else:
        folder = checkpoint_folder(flags.folder, flag="FOLDER")
        found = inspect(folder)
    if flags.json:
        said = json.dumps({**as_data(folder, found), "folder": flags.folder}, default=str)
        print(json.dumps(json.loads(said, parse_constant=str), indent=2), flush=True)  # JSON has no NaN: write "NaN"
    else:
        print("\n\n".join(_report(flags.folder, folder, found)), flush=True)
    if found.refused:
        if not flags.json:
            print()
        more = len(found.refused) - 1
        raise ValueError(found.refused[0] + (f"; and {more} more, listed above" if more else ""))
    return 0


def as_data(folder: Path, found: Inspection) -> dict[str, Any]:
    """Convert an inspection to data for JSON, with `None` for missing parts."""
    from companion.costs.account import parameters

    writing = None
    if found.rules or found.writing is not None:
        writing = {
            "source": found.source,
            "fields": list(map(asdict, found.rules)),
            "left_out": found.unsaid,
            "says": None if found.writing is None else writes(found.writing, found.config),
        }
    return {
        "folder": str(folder),
        "kind": "companion" if found.family is None else found.family.kind,
        "model": None if found.config is None else asdict(found.config),
        "parameters": None if found.config is None else parameters(found.config).total,
        "fields": list(map(asdict, found.fields)),
        "left_out": found.usual,
        "tensors": found.tensors,
        "files": list(files(folder, found)),
        "writing": writing,
        "refused": found.refused,
    }


def _report(name: str, folder: Path, found: Inspection) -> Iterable[str]:
    from companion.families.inspected import settings_of
    from companion.ground.display import table

    yield f"{name}: {found.family.kind if found.family else 'a model of companion'}"
    if found.config is not None:
        settings = table(settings_of(found.config), left=(0, 1), width=None)
        yield f"The model\n{_wrapped(described(found.config))}\n\n{settings}"
        yield f"Figures\n{_wrapped(figures(found.config))}"
    left_out = ", ".join(f"{name} ({_json(value)})" for name, value in found.usual.items())
    rest = "\n\n" + _wrapped(f"Missing fields, with the values used instead: {left_out}.") if left_out else ""
    yield f"config.json\n{_became(found.fields)}{rest}"
    if folder.is_file():
        pass  # other files hold the generation settings
    elif found.family is None or not found.family.writes:
        yield "Writing\n" + _wrapped("No generation settings." if found.family is None else "It generates no text.")
    elif found.rules or found.writing is not None:
        said = _became(found.rules) if found.source != "config.json" else ""
        yield f"{found.source}\n{said}" if said else f"{found.source} also has the generation settings."
        if found.writing is not None:
            usual = ", ".join(f"{name} ({_json(value)})" for name, value in found.unsaid.items())
            rest = "\n\n" + _wrapped(f"Missing settings, with the defaults of released code: {usual}.") if usual else ""
            yield f"Writing\n{_wrapped(writes(found.writing, found.config))}{rest}"
    if folder.is_file():
        yield "Files\n" + _wrapped("The tensors were not read.")
    else:
        yield "Files\n" + "\n".join(map(_wrapped, files(folder, found)))
    if found.refused:
        yield "Refused\n" + "\n".join(map(_wrapped, found.refused))


def _wrapped(text: str) -> str:
    from companion.ground.display import columns

    return textwrap.fill(
        text, columns(), initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _became(ends: Sequence[Became]) -> str:
    from companion.ground.display import table

    def cells(end: Became) -> tuple[str, str, str]:
        value = "" if end.words == "missing" else _json(end.value)
        return end.name, value, f"REFUSED: {end.words}" if end.refused is not None else end.words

    ranked = sorted(ends, key=lambda end: (end.refused is None, end.words.startswith(("ignored", "null"))))
    return table([cells(end) for end in ranked], left=(0, 1, 2), width=None) if ranked else "  nothing"


def _json(value: object) -> str:
    from companion.ground.fields import shown

    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = shown(value)
    return text if len(text) <= 30 else f"{text[:27]}..."


PLACED = {
    "pre": "before each sub-layer",
    "post": "after the sum with each sub-layer",
    "both": "before and after each sub-layer",
    "after": "after each sub-layer",
    "parallel": "before attention and before the network, which read the stream in parallel",
    "parallel_shared": "before attention and the network together, which read the stream in parallel",
}
"""Descriptions of where the norms are, keyed by `NormConfig.placement`."""


def described(config: ModelConfig) -> str:
    """Describe a model in a few sentences."""
    from companion.costs.account import parameters
    from companion.ground.display import count

    sizes, stack = config.sizes, config.stack.replace("_", "-")
    heads = count(sizes.heads, "head") + f" of {sizes.d_head}"
    if sizes.kv_heads != sizes.heads:
        heads += f", which share {count(sizes.kv_heads, 'head')} of keys and values"
    if sizes.latent is not None:
        heads += f", whose keys and values are computed from {sizes.latent.kv_lora_rank} elements per token"
    window = config.attention.window
    local = sum(config.local(layer) for layer in range(config.layers))
    if window is not None:
        heads += f"; {local} of the layers see only {window.width:,} tokens"
    memory, linear = config.linear_config, config.linears
    if memory is not None:
        heads += f"; {linear} of the layers store {memory.heads} matrices of {memory.d_head} by {memory.d_v} instead"
    network = f"a {config.feed_forward.activation} network of {config.feed_forward.d_ff:,}"
    if config.moe is not None:
        network = f"{config.moe.top_k} of {config.moe.experts} experts for each token, each {network}"
        if config.mixtures < config.layers:
            network += f", in {count(config.mixtures, 'layer')}"
    norm = {"layer": "layer norms", "rms": "RMS norms"}[config.norm.kind]
    order: str = "no" if config.positions.kind == "none" else config.positions.kind
    scaling = config.positions.scaling
    if scaling is not None:
        order += f" ({scaling.kind}, {scaling.factor:g} times)"
    turning = config.positions.pattern
    share = config.positions.partial_rotary_factor
    order += " positions" + (f" in {share:.0%} of each head" if share != 1 else "")
    order += " in some of the layers" if not all(turning) else ""
    table = "one table for input and output" if config.embedding.tied else "a table each for input and output"
    article = "An" if stack.startswith("enc") else "A"
    return (
        f"{article} {stack} of {count(config.layers, 'layer')} and {parameters(config).total:,} parameters; d_model "
        f"{config.d_model:,}. Attention with {heads}. Then {network}. There are {norm} "
        f"{PLACED[config.norm.placement]}, {order}, {config.vocab:,} token ids in {table}, and a context of "
        f"{config.context:,} tokens."
    )


def figures(config: ModelConfig) -> str:
    """Describe the size of a model: its total and active parameters, and its weights and KV cache in bf16."""
    import torch

    from companion.costs.account import cache_bytes, parameters, weights_bytes
    from companion.ground.display import readable_bytes

    count = parameters(config)
    active = f", of which {count.active:,} are active per token" if config.moe is not None else ""
    held = readable_bytes(weights_bytes(config, torch.bfloat16))
    words = f"{count.total:,} parameters{active}; in bf16 they take {held}"
    if config.stack != "decoder":
        return words + "."
    tokens = min(config.context, 8192)
    kept = cache_bytes(config, tokens, dtype=torch.bfloat16)
    return words + f", and the keys and values of a text of {tokens:,} tokens take {readable_bytes(kept)}."


def writes(says: Writing, config: ModelConfig | None) -> str:
    """Describe in one sentence how a model generates text if no flag overrides its settings."""
    translates = config is not None and config.stack == "encoder_decoder"
    if says.search.width > 1:
        how = f"Beam search with {says.search.width} beams and length penalty {says.search.length_penalty:g}"
    elif not says.draws:
        how = f"The most probable token each time. (If a flag asks for sampling: {says.sampling}.)"
    else:
        how = f"Sampling with {says.sampling}"
    rules = says.rules
    rest = []
    if says.special.start is not None and translates:
        rest.append(f"begins with {says.special.start}")
    if says.special.stop:
        rest.append(f"ends at {' or '.join(map(str, sorted(says.special.stop)))}")
    if says.stop_strings:
        rest.append(f"ends at the text {' or '.join(map(repr, says.stop_strings))}")
    if rules.never:
        rest.append(f"never {', '.join(map(str, rules.never))}")
    if rules.last is not None:
        rest.append(f"the last token, if the length limit is reached, is {rules.last}")
    if rules.min_new_tokens:
        rest.append(f"at least {rules.min_new_tokens} tokens")
    if says.most is not None:
        rest.append(f"at most {says.most} tokens")
    elif says.longest is not None:
        rest.append(f"at most {says.longest} tokens, including the prompt")
    if rules.repetition_penalty != 1:
        rest.append(f"a repetition penalty of {rules.repetition_penalty:g}")
    if rules.no_repeat:
        rest.append(f"no {rules.no_repeat}-gram twice")
    return f"{how}{'; ' if rest else ''}{'; '.join(rest)}."


def files(folder: Path, found: Inspection) -> Iterable[str]:
    """Yield sentences about the tensors, tokenizer and chat template of a folder.

    Missing tensors are not mentioned here, because `found.refused` lists them.
    """
    from companion.data.chat_template import compiled, load_chat_template
    from companion.data.published_tokenizers import load_tokenizer
    from companion.files.published.family import heads_left_out
    from companion.ground.display import count

    if found.tensors:
        kinds = ", ".join(f"{number} in {dtype}" for dtype, number in sorted(found.tensors.items()))
        yield f"Tensors: {kinds}, in {count(found.files, 'file')}."
    else:
        yield "Tensors: none can be read."
    if found.left_out:
        said = heads_left_out(found.left_out)
        yield said[0].upper() + said[1:] + "."
    if found.family is None:
        return
    try:
        tokenizer = load_tokenizer(folder)
        yield f"Tokenizer: found, with {tokenizer.vocab:,} ids."
        if found.config is not None and tokenizer.vocab > found.config.vocab:
            yield f"The tokenizer has {tokenizer.vocab:,} ids, the model {found.config.vocab:,}: some lack a vector."
    except ValueError as error:
        yield f"Tokenizer: missing; --prompt-ids takes token ids instead. ({error})"
    try:
        template = load_chat_template(folder)
        if template is not None:
            compiled(template.source, str(template.origin))
            yield f"Chat template: found in {template.origin.name}; generate --chat uses it."
    except ValueError as error:
        yield f"Chat template: cannot be used. ({error})"
