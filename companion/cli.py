"""The command `companion`: train, generate, translate, evaluate, account, bench, selftest; exercises, course.

Bad input gives one message and exit code 2, and nothing is written. torch and the rest are imported by the commands
that need them, so that `--help` and a mistyped flag answer at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from companion.parsers import command_parser, task_asked_for
from companion.train_command import INTERRUPTED, run_training
from companion.training import report
from companion.training.settings import NumberWordsSettings, Settings, TextSettings

if TYPE_CHECKING:
    import torch

    from companion.config import ModelConfig
    from companion.data.corpora import Corpus
    from companion.training.folder import RunFolder


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0 done, 2 bad input, 1 anything else, 130 stopped by Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = command_parser(task_asked_for(arguments))
    if not arguments:
        parser.print_help()
        return 2
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without the character shows "?" and goes on
    chosen = parser.parse_args(arguments)
    command: str = chosen.command
    commands = {
        "train": run_training,
        "generate": _generate,
        "translate": _translate,
        "evaluate": _evaluate,
        "account": _account,
        "sizing": _sizing,
        "bench": _bench,
        "selftest": _selftest,
        "progress": _progress,
        "grade": _grade,
        "course": _course,
    }
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
        writer = from_run(_run_folder(chosen.run, TextSettings), device, ids=by_ids, best=chosen.best)
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
    if chosen.checkpoint is not None and chosen.best:
        raise ValueError("--best: expected no --checkpoint beside it; only a run has a best one")
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


def _run_folder(path: str | None, kind: type[Settings] | None = None) -> RunFolder:
    """The run that was named, or the newest; of one task, or of any. Standard error says which."""
    from companion.training.folder import RunFolder, newest_run

    if path is not None:
        folder = RunFolder(path)
        folder.record()
        if kind is not None and folder.task != kind.task:
            use = "companion translate" if folder.task == NumberWordsSettings.task else "companion generate"
            raise ValueError(f"--run {path}: expected a run of the task {kind.task}, got {folder.task}; try `{use}`")
        return folder
    folder = newest_run(task=None if kind is None else kind.task)
    print(f"run: {folder.path}", file=sys.stderr)
    return folder


# translate


def _translate(chosen: Namespace, arguments: list[str]) -> int:
    if chosen.beams < 1:
        raise ValueError(f"--beams {chosen.beams}: expected a whole number >= 1; 1 is greedy decoding")
    if not chosen.names and sys.stdin.isatty():
        raise ValueError('NAME: expected number names to translate, got none; for example "einundzwanzig"')
    from companion.training.run import find_device
    from companion.training.translation import NumberWordsTask
    from companion.translating import read_names, show

    device = find_device(chosen.device)
    folder = _run_folder(chosen.run, NumberWordsSettings)
    words = NumberWordsTask.of_record(folder.record()).words
    names = chosen.names or [line for line in sys.stdin.read().splitlines() if line.strip()]
    numbers = read_names(words.source, names)
    show(folder.model(best=chosen.best).to(device), words, names, numbers, beams=chosen.beams)
    return 0


# evaluate


def _evaluate(chosen: Namespace, arguments: list[str]) -> int:
    from companion.data.corpora import read_corpus
    from companion.training.run import find_device

    device = find_device(chosen.device)
    given = read_corpus(chosen.data, keep_repeats=True) if chosen.data else None
    if chosen.numbers is not None and chosen.numbers < 1:
        raise ValueError(f"--numbers {chosen.numbers}: expected a whole number >= 1")
    if chosen.beams is not None and chosen.beams < 1:
        raise ValueError(f"--beams {chosen.beams}: expected a whole number >= 1; 1 is greedy decoding")
    folder = _run_folder(chosen.run)
    if folder.task != NumberWordsSettings.task:
        for name in ("numbers", "beams"):
            if chosen[name] is not None:
                raise ValueError(f"--{name}: expected a run of {NumberWordsSettings.task} with it, got {folder.path}")
        return _evaluate_text(folder, given, device, best=chosen.best)
    if given is not None:
        raise ValueError(f"--data: expected a run on text with it, got {folder.path}, which translates number names")
    from companion.data import number_words
    from companion.training.translation import MEASURED, NumberWordsTask, exact_match

    words = NumberWordsTask.of_record(folder.record()).words
    numbers = number_words.held_out(chosen.numbers or MEASURED)
    print(f"numbers   {words.title}, {len(numbers):,} that the model never learned from\n", flush=True)
    model = folder.model(best=chosen.best).to(device)
    print(exact_match(model, words, numbers, beams=chosen.beams or 1, progress=True).table())
    return 0


def _evaluate_text(folder: RunFolder, given: Corpus | None, device: torch.device, *, best: bool) -> int:
    from companion.data.batches import encode_documents
    from companion.data.corpora import repeated_share
    from companion.data.yardsticks import yardsticks
    from companion.training.text import measure, text_of, total_bytes

    record = folder.record()
    model, tokenizer = folder.model(best=best).to(device), folder.tokenizer()
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
    print(report.yardstick_table({mark.name: mark.bits_per_byte for mark in marks}, evaluation.bits_per_byte))
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
    from companion.presets import preset

    machine = None if chosen.chip is None else published_machine(chosen.chip)
    if chosen.config is not None:
        config = _read_config(chosen.config)
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


def _read_config(name: str) -> ModelConfig:
    from companion.config import ModelConfig

    path = Path(name)
    try:
        return ModelConfig.from_json(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"--config {path}: cannot be read ({error.strerror})") from None
    except UnicodeError:
        raise ValueError(f"--config {path}: expected a JSON file, got one that is not text") from None
    except ValueError as error:
        raise ValueError(f"--config {path}: {error}") from None


# sizing


def _sizing(chosen: Namespace, arguments: list[str]) -> int:
    import json

    from companion.presets import PRESETS, preset
    from companion.sizing_page import Question, data, text

    question = Question(
        **{name: chosen[name] for name in ("devices", "chip", "share", "tokens", "context", "batch", "usable")}
    )
    models = {name: preset(name) for name in chosen.names}
    if chosen.config is not None:
        models[Path(chosen.config).stem] = _read_config(chosen.config)
    models = models or PRESETS
    print(json.dumps(data(models, question), indent=2) if chosen.json else text(models, question))
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


def _selftest(chosen: Namespace, arguments: list[str]) -> int:
    from companion.selftest import how_together, selftest

    found = selftest(
        chosen.kills,
        processes=chosen.processes,
        flags=how_together(chosen.processes, shard=chosen.shard, expert_parallel=chosen.expert_parallel),
        seed=chosen.seed,
        home=None if chosen.out is None else Path(chosen.out),
    )
    print(found.to_json() if chosen.json else found.table())
    return 0 if found.holds else 1


def _progress(chosen: Namespace, arguments: list[str]) -> int:
    from companion.course.command import progress

    return progress()


def _grade(chosen: Namespace, arguments: list[str]) -> int:
    from companion.course.grade_command import grade_folder

    return grade_folder(chosen)


def _course(chosen: Namespace, arguments: list[str]) -> int:
    from companion.course.command import course

    return course(chosen)
