"""The command `companion`: train, generate, evaluate, account, bench.

Bad input gives one message and exit code 2, and nothing is written. torch and the rest are imported by the commands
that need them, so that `--help` and a mistyped flag answer at once.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from jsonargparse import ActionConfigFile, ArgumentParser, DefaultHelpFormatter, Namespace

from companion.training import report
from companion.training.settings import TrainSettings, differences

if TYPE_CHECKING:
    from companion.training.folder import RunFolder
    from companion.training.loop import Evaluation, Trainer
    from companion.training.run import Prepared, Text

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0 done, 2 bad input, 1 anything else, 130 stopped by Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    if not arguments:
        parser.print_help()
        return 2
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without the character shows "?" and goes on
    chosen = parser.parse_args(arguments)
    command: str = chosen.command
    commands = {"train": _train, "generate": _generate, "evaluate": _evaluate, "account": _account, "bench": _bench}
    try:
        return commands[command](chosen[command], arguments)
    except ValueError as error:
        print(f"companion {command}: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"companion {command}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\ncompanion {command}: stopped", file=sys.stderr)
        return INTERRUPTED


# The command line


class _Formatter(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Defaults and types behind each flag; descriptions and examples as they are written."""


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="companion",
        description=(
            "Train a transformer on real text from this machine, watch it write, and account for every parameter.\n\n"
            "  companion train                     about five minutes on a laptop; no flag is needed\n"
            '  companion generate --prompt "The "  stream text from the model just trained\n'
            "  companion evaluate                  bits per byte on text it has not seen\n"
            "  companion account                   its parameters, FLOPs and bytes"
        ),
        formatter_class=_Formatter,
    )
    commands = parser.add_subcommands(dest="command", title="commands", description="Each explains itself with --help.")
    commands.add_subcommand("train", _train_parser(), help="train a decoder on text and keep it in a run folder")
    commands.add_subcommand("generate", _generate_parser(), help="continue one or several prompts")
    commands.add_subcommand("evaluate", _evaluate_parser(), help="measure a run on held-out text, or on text of yours")
    commands.add_subcommand("account", _account_parser(), help="count a model's parameters, FLOPs and bytes")
    commands.add_subcommand("bench", _bench_parser(), help="measure speed beside other libraries, on this machine")
    return parser


def _train_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description=(
            "Train a decoder on text and print bits per byte on a held-out part of it, beside what xz and n-gram\n"
            "models need for the same text.\n\n"
            "Stop with Ctrl-C at any time: the run is saved, and the same command goes on from there. A run that was\n"
            "killed ends, when continued, with the same weights as one that was not, bit for bit."
        ),
        epilog=(
            "examples:\n"
            "  companion train                                    text that comes with Python, default model\n"
            "  companion train --minutes 5                        as many updates as fit into five minutes\n"
            "  companion train --data notes/ 'books/*.txt'        your own text\n"
            "  companion train --d-model 256 --layers 6 --dropout 0.2 --out runs/larger\n"
            "  companion train --experts 8 --out runs/experts     a mixture of experts\n"
            "  companion train --config settings.yaml             the same flags from a file; --print_config writes one"
        ),
        formatter_class=_Formatter,
    )
    parser.add_argument("--config", action=ActionConfigFile, help="a YAML or JSON file with any of the flags below")
    hints = get_type_hints(TrainSettings)
    groups: dict[str, Any] = {}
    defaults = TrainSettings()
    for f in fields(TrainSettings):
        title = f.metadata["group"]
        group = groups.setdefault(title, None) or parser.add_argument_group(title)
        groups[title] = group
        options: dict[str, Any] = {"type": hints[f.name], "default": getattr(defaults, f.name)}
        if f.name == "data":
            options |= {"type": str, "nargs": "+", "metavar": "PATH"}
        elif f.name == "compile":
            options = {"action": "store_true"}
        group.add_argument("--" + f.name.replace("_", "-"), help=f.metadata["help"], **options)
    return parser


def _generate_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description=(
            "Continue a prompt with a model you trained or a published one (GPT-2, LLaMA, Mixtral), token by token as\n"
            "they come; a published Marian translates it."
        ),
        epilog=(
            "examples:\n"
            '  companion generate --prompt "The "\n'
            '  companion generate --prompt "The " --prompt "If a class" --tokens 50    two at once\n'
            '  companion generate --prompt "The " --temperature 0                      always the most probable token\n'
            '  companion generate --checkpoint openai-community/gpt2 --download --prompt "The "\n'
            '  companion generate --checkpoint opus-mt-de-en/ --prompt "Guten Tag" --beams 4'
        ),
        formatter_class=_Formatter,
    )
    parser.add_argument("--prompt", action="append", type=str, default=[], help="text to continue; may be repeated")
    parser.add_argument(
        "--prompt-ids", action="append", type=str, default=[], metavar="IDS", help='token ids instead, as "5 17 3"'
    )
    _add_run(parser)
    parser.add_argument(
        "--checkpoint", type=str | None, default=None, metavar="FOLDER", help="a published model's folder, not a run"
    )
    parser.add_argument(
        "--download", action="store_true", help="--checkpoint may be the name that the Hugging Face hub has for it"
    )
    parser.add_argument("--tokens", type=int, default=200, help="most tokens to write for each prompt")
    parser.add_argument(
        "--temperature",
        type=float | None,
        default=None,
        help="0: the most probable token; 1: the model's own. Default: 0.8, for a translator 0",
    )
    parser.add_argument("--top-k", type=int | None, default=None, help="draw from the k most probable tokens only")
    parser.add_argument(
        "--top-p", type=float | None, default=None, help="draw from the fewest tokens that hold this much probability"
    )
    parser.add_argument("--seed", type=int, default=0, help="the same seed writes the same text")
    parser.add_argument(
        "--beams", type=int | None, default=None, help="search for the most probable text with this many candidates"
    )
    parser.add_argument(
        "--length-penalty",
        type=float | None,
        default=None,
        help="beams: divide a text's log-probability by its length to this power. Default: 1",
    )
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda, mps, or auto: cuda where there is one")
    parser.add_argument("--compile", action="store_true", help="compile the decode step: pays for long texts on a GPU")
    return parser


def _evaluate_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description=(
            "Measure a run in bits per byte: on the text that was held out of its training, or on text of yours.\n"
            "Every token is scored once, in its own document, from at least half of the context before it."
        ),
        epilog="examples:\n  companion evaluate\n  companion evaluate --run runs/larger --data letter.txt",
        formatter_class=_Formatter,
    )
    _add_run(parser)
    parser.add_argument(
        "--data", type=str, nargs="+", default=[], metavar="PATH", help="files, folders or globs to measure on instead"
    )
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda, mps, or auto: cuda where there is one")
    return parser


def _account_parser() -> ArgumentParser:
    from companion.presets import PRESETS

    parser = ArgumentParser(
        description=(
            "Count a model: parameters by part, FLOPs a token, bytes of its cache and of itself, and how fast the\n"
            "memory of a chip lets it write at most.\n\n"
            f"Published systems: {', '.join(list(PRESETS)[:6])},\n{', '.join(list(PRESETS)[6:])}."
        ),
        epilog=(
            "examples:\n"
            "  companion account                          the model of the newest run\n"
            "  companion account llama-2-70b              a published system\n"
            "  companion account mixtral-8x7b --chip h100\n"
            "  companion account --config my_model.json"
        ),
        formatter_class=_Formatter,
    )
    parser.add_argument("name", nargs="?", type=str | None, default=None, help="a published system, not a run")
    _add_run(parser)
    parser.add_argument(
        "--config", type=str | None, default=None, metavar="FILE", help="a JSON file with a ModelConfig, not a run"
    )
    parser.add_argument(
        "--chip", type=str | None, default=None, help="a chip's name, such as h100 or a100-80gb. Default: this machine"
    )
    return parser


def _bench_parser() -> ArgumentParser:
    from companion.bench.sizes import PARTS, SIZES

    parser = ArgumentParser(
        description=(
            "Measure ours and other libraries side by side, at the same sizes, with the same weights: training step,\n"
            "prefill and generation beside transformers (LLaMA's layout), and x-transformers and litgpt where they\n"
            "are installed; a mixture of experts beside Mixtral's and a dense layer; attention against length.\n\n"
            "Everybody's outputs are compared before anything is timed, then all run once in each round. The table\n"
            "gives medians, quartiles, ratios to ours, and the share of what this machine can reach at best. Nothing\n"
            "else should run meanwhile; OMP_NUM_THREADS sets the number of threads."
        ),
        epilog=(
            "examples:\n"
            "  companion bench --quick                       under three minutes on two cores\n"
            "  companion bench --only decode moe             parts of it\n"
            "  companion bench --sizes large --compile       on a GPU"
        ),
        formatter_class=_Formatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, fewer new tokens, shorter texts")
    parser.add_argument(
        "--sizes", type=str, nargs="+", default=["small"], metavar="SIZE", help=f"one or more of {', '.join(SIZES)}"
    )
    parser.add_argument(
        "--only", type=str, nargs="+", default=list(PARTS), metavar="PART", help=f"one or more of {', '.join(PARTS)}"
    )
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda, mps, or auto: cuda where there is one")
    parser.add_argument(
        "--precision", type=str, default="auto", help="fp32, bf16, or auto: bf16 where a GPU has it, else fp32"
    )
    parser.add_argument("--compile", action="store_true", help="compile training steps; compiled decoding as well")
    parser.add_argument("--rounds", type=int | None, default=None, help="how often. Default: 11, with --quick 5")
    parser.add_argument("--out", type=str, default="runs/bench", metavar="FOLDER", help="gets bench.json and bench.png")
    parser.add_argument(
        "--json", type=str | None, default=None, metavar="FILE", help="the figures go here, the picture beside it"
    )
    return parser


def _add_run(parser: ArgumentParser) -> None:
    parser.add_argument("--run", type=str | None, default=None, help="folder of a run. Default: the newest in runs/")


# train


def _train(chosen: Namespace, arguments: list[str]) -> int:
    settings = TrainSettings(**{f.name: chosen[f.name] for f in fields(TrainSettings)})
    from companion.training.folder import RunFolder
    from companion.training.loop import Diverged
    from companion.training.run import Prepared, Text, find_device, find_precision, new_record, plan

    folder = RunFolder(settings.folder())
    settings.model_config()  # a model that cannot be should not wait for its text
    text = Text.read(settings)
    device = find_device(settings.device)
    precision = find_precision(settings.precision, device)
    if folder.exists:
        record = folder.record()
        _check_same_run(folder, record, settings, text)
        if folder.finished:
            print(f"{folder.path}: this run is finished. Another --out begins a new one.\n")
            report.print_result(record, folder.result())
            report.print_next(folder)
            return 0
        prepared = Prepared.from_settings(settings, text, folder.tokenizer())
        trainer = prepared.trainer(record["updates"], device, record["precision"])
        report.print_head(prepared, trainer, folder)
    else:
        print(f"{text.corpus.title}: reading, and training a tokenizer on it", file=sys.stderr)
        prepared = Prepared.from_settings(settings, text)
        if settings.minutes is not None:
            print("measuring how fast this machine trains the model", file=sys.stderr)
        length = plan(prepared, device, precision)
        if length.why:
            print(f"{length.why}\n")
        trainer = prepared.trainer(length.updates, device, precision)
        report.print_head(prepared, trainer, folder)
        record = new_record(prepared, trainer, length)
        folder.create(record, prepared.tokenizer)
    report.print_yardsticks(record["yardsticks"])
    again = "companion " + shlex.join(arguments)
    try:
        reached = _fit(prepared, trainer, folder, record["evaluations"])
    except Diverged as error:
        kept = folder.checkpoint()
        where = f"the last good state is {kept}" if kept else "no state had been saved yet"
        print(f"companion train: {error}.\n{where}; a new run needs another --out.", file=sys.stderr)
        return 1
    if not reached:
        print(f"\nStopped and saved at update {trainer.done:,} of {trainer.config.updates:,}. To go on:\n  {again}")
        return INTERRUPTED
    _finish(prepared, trainer, folder, record)
    return 0


def _check_same_run(folder: RunFolder, record: dict[str, Any], settings: TrainSettings, text: Text) -> None:
    changed = differences(record["settings"], settings.what_matters())
    if changed:
        lines = "\n  ".join(changed)
        raise ValueError(
            f"{folder.path} holds a run with other settings:\n  {lines}\nexpected the same ones to go on with it, "
            "or another --out to begin a new run"
        )
    if record["text"]["fingerprint"] != text.fingerprint:
        raise ValueError(
            f"{folder.path} holds a run on other text: {text.corpus.title} has changed since; expected the same text "
            "to go on, or another --out to begin a new run"
        )


def _fit(prepared: Prepared, trainer: Trainer, folder: RunFolder, evaluations: int) -> bool:
    from tqdm.auto import tqdm

    from companion.training.fit import fit

    def show(update: int, evaluation: Evaluation) -> None:
        line = f"  update {update:>{len(str(trainer.config.updates))},}  {evaluation.bits_per_byte:.3f} bits per byte"
        tqdm.write(f"{line}   {_sample(prepared, trainer)}")
        sys.stdout.flush()

    done = folder.checkpoint()
    if done is not None:
        print(f"going on after update {int(done.name.removeprefix('step-')):,}")
    return fit(
        trainer,
        lambda: prepared.measure(trainer.model, trainer.precision),
        folder=folder,
        evaluate_every=max(1, trainer.config.updates // evaluations),
        after_evaluation=show,
    )


def _sample(prepared: Prepared, trainer: Trainer) -> str:
    """A few words of the model as it is now, on one line."""
    from companion.generation import Sampling, complete

    tokenizer, room = prepared.tokenizer, prepared.config.context
    prompt = [tokenizer.separator, *tokenizer.encode("The")][:room]
    steps = min(24, room - len(prompt))
    if steps < 1:
        return ""
    (ids,) = complete(trainer.model, [prompt], max_new_tokens=steps, sampling=Sampling(0.8), stop={tokenizer.separator})
    return "The" + " ".join(tokenizer.decode(ids).split(" ")).replace("\n", " ")[:70].rstrip()


def _finish(prepared: Prepared, trainer: Trainer, folder: RunFolder, record: dict[str, Any]) -> None:
    from companion.training.plot import plot_loss

    evaluation = prepared.measure(trainer.model, trainer.precision)
    result = {
        "bits_per_byte": evaluation.bits_per_byte,
        "perplexity": evaluation.perplexity,
        "tokens": evaluation.tokens,
        "bytes": evaluation.bytes,
    }
    picture = folder.path / "loss.png"
    drawn = plot_loss(
        list(folder.entries()), picture, bytes_per_token=record["bytes_per_token"], yardsticks=record["yardsticks"]
    )
    folder.finish(result)
    print()
    report.print_result(record, result)
    if drawn:
        print(f"The course of the loss: {picture}")
    report.print_next(folder)


# generate


def _generate(chosen: Namespace, arguments: list[str]) -> int:
    _check_generate(chosen)
    from companion.generation import Sampling
    from companion.training.run import find_device
    from companion.writing import Search, from_checkpoint, from_run, read_ids, write

    by_ids = bool(chosen.prompt_ids)
    for prompt in chosen.prompt_ids:
        read_ids(prompt)
    temperature = 1.0 if chosen.temperature is None else chosen.temperature
    sampling = Sampling(temperature, chosen.top_k, chosen.top_p)
    device = find_device(chosen.device)
    if chosen.checkpoint is None:
        writer = from_run(_run_folder(chosen.run), device, ids=by_ids)
    else:
        writer = from_checkpoint(chosen.checkpoint, device, download=chosen.download, ids=by_ids)
    if chosen.temperature is None:
        sampling = replace(sampling, temperature=0.0 if writer.translates else 0.8)
    search = None
    if chosen.beams is not None:
        search = Search(chosen.beams, 1.0 if chosen.length_penalty is None else chosen.length_penalty)
    write(
        writer,
        chosen.prompt_ids or chosen.prompt,
        tokens=chosen.tokens,
        sampling=sampling,
        search=search,
        seed=chosen.seed,
        compile=chosen.compile,
    )
    return 0


def _check_generate(chosen: Namespace) -> None:
    """What can be wrong with the flags alone."""
    if chosen.prompt and chosen.prompt_ids:
        raise ValueError("--prompt-ids: expected no --prompt beside it, got both")
    if not chosen.prompt and not chosen.prompt_ids:
        raise ValueError('--prompt: expected text to continue, got none; for example --prompt "The "')
    if "" in chosen.prompt:
        raise ValueError("--prompt '': expected at least one character, got an empty prompt")
    if chosen.checkpoint is not None and chosen.run is not None:
        raise ValueError("--checkpoint: expected no --run beside it, got both")
    if chosen.download and chosen.checkpoint is None:
        raise ValueError("--download: expected a --checkpoint to fetch, got none")
    for name, least in (("tokens", 1), ("seed", 0), ("beams", 1)):
        value = chosen[name]
        if value is not None and value < least:
            raise ValueError(f"--{name} {value}: expected a whole number >= {least}")
    if chosen.beams is None:
        if chosen.length_penalty is not None:
            raise ValueError("--length-penalty: expected --beams with it, got none")
        return
    for name in ("temperature", "top_k", "top_p"):
        if chosen[name] is not None:
            raise ValueError(f"--{name.replace('_', '-')}: expected no --beams beside it; a beam search draws nothing")
    if chosen.compile:
        raise ValueError("--compile: expected no --beams beside it; a beam search is not compiled")


def _run_folder(path: str | None) -> RunFolder:
    """The run that was named, or the newest; standard error says which."""
    from companion.training.folder import RunFolder, newest_run

    if path is not None:
        folder = RunFolder(path)
        folder.record()
        return folder
    folder = newest_run()
    print(f"run: {folder.path}", file=sys.stderr)
    return folder


# evaluate


def _evaluate(chosen: Namespace, arguments: list[str]) -> int:
    from companion.data.batches import encode_documents
    from companion.data.corpora import read_corpus, repeated_share
    from companion.data.yardsticks import yardsticks
    from companion.training.run import find_device, measure, text_of, total_bytes

    device = find_device(chosen.device)
    given = read_corpus(chosen.data, keep_repeats=True) if chosen.data else None
    folder = _run_folder(chosen.run)
    record = folder.record()
    model, tokenizer = folder.model().to(device), folder.tokenizer()
    try:
        split = text_of(record).split
    except ValueError:
        if given is None:
            raise
        split = None
    documents = given.documents if given is not None else split.held_out  # type: ignore[union-attr]
    title = given.title if given is not None else f"held out of {record['text']['title']}"
    print(f"text      {title}: {report.count(documents, 'document')}, {total_bytes(documents):,} bytes")
    if given is not None and split is not None and (share := repeated_share(split.train, documents)):
        print(f"          {share:.1%} of it, by whole paragraphs, is in the text the model learned from")
    if split is None:
        print("          the text the model learned from is not here any more: nothing to prime the yardsticks with")
    print(flush=True)
    evaluation = measure(model, encode_documents(tokenizer, documents), total_bytes(documents), progress=True)
    marks = yardsticks(split.train if split is not None else (), documents)
    report.print_yardsticks({mark.name: mark.bits_per_byte for mark in marks}, evaluation.bits_per_byte)
    print(f"Perplexity {evaluation.perplexity:.1f} per token over {evaluation.tokens:,} tokens.")
    return 0


# account


def _account(chosen: Namespace, arguments: list[str]) -> int:
    given = [name for name in ("name", "run", "config") if chosen[name] is not None]
    if len(given) > 1:
        names = {"name": chosen.name, "run": "--run", "config": "--config"}
        raise ValueError(
            f"expected one model: a published name, --run or --config; got {' and '.join(names[n] for n in given)}"
        )
    from companion.account import table
    from companion.chips import decoding_table, published_machine, this_machine
    from companion.config import ModelConfig
    from companion.presets import preset

    machine = None if chosen.chip is None else published_machine(chosen.chip)
    if chosen.config is not None:
        path = Path(chosen.config)
        try:
            config = ModelConfig.from_json(path.read_text("utf-8"))
        except OSError as error:
            raise ValueError(f"--config {path}: cannot be read ({error.strerror})") from None
        except UnicodeError:
            raise ValueError(f"--config {path}: expected a JSON file, got one that is not text") from None
        except ValueError as error:
            raise ValueError(f"--config {path}: {error}") from None
    elif chosen.name is not None:
        config = preset(chosen.name)
    else:
        config = _run_folder(chosen.run).model().config
    if machine is not None and config.stack != "decoder":
        raise ValueError(f"--chip {chosen.chip}: expected a decoder, which writes, got stack={config.stack!r}")
    print(table(config), flush=True)
    if config.stack == "decoder":
        print("\n" + decoding_table(config, machine or this_machine()))
    return 0


# bench


def _bench(chosen: Namespace, arguments: list[str]) -> int:
    from companion.bench.sizes import find_parts, find_sizes

    sizes, parts = find_sizes(chosen.sizes), find_parts(chosen.only)
    if chosen.rounds is not None and chosen.rounds < 1:
        raise ValueError(f"--rounds {chosen.rounds}: expected a whole number >= 1")
    if chosen.precision not in ("auto", "fp32", "bf16"):
        raise ValueError(f"--precision {chosen.precision}: expected auto, fp32 or bf16")
    flag, wanted = ("--out", chosen.out) if chosen.json is None else ("--json", chosen.json)
    data = Path(wanted) / "bench.json" if chosen.json is None else Path(wanted)
    picture = data.with_suffix(".png")
    if picture == data:
        raise ValueError(f"{flag} {wanted}: expected a name that does not end in .png, which the picture's does")
    for path in (data, picture):
        if path.is_dir():
            raise ValueError(f"{flag} {wanted}: expected a place for a file, but {path} is a folder")
    for parent in data.parents:
        if parent.exists() and not parent.is_dir():
            raise ValueError(f"{flag} {wanted}: expected a place for a file, but {parent} is not a folder")
    from companion.bench.run import QUICK_ROUNDS, ROUNDS, bench
    from companion.training.run import find_device, find_precision

    device = find_device(chosen.device)
    same = bench(
        [size.quick() for size in sizes] if chosen.quick else sizes,
        parts,
        data=data,
        picture=picture,
        device=device,
        precision=find_precision(chosen.precision, device),
        compile=chosen.compile,
        rounds=chosen.rounds or (QUICK_ROUNDS if chosen.quick else ROUNDS),
        show=lambda text: print(text, flush=True),
    )
    return 0 if same else 1
