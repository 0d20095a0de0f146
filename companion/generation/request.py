"""Generation requests: the arguments of a call, in which all errors are found before anything runs (lesson 10)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from torch import Tensor

from companion.config.model import ModelConfig
from companion.generation.draft import Draft, Proposer, draft_of
from companion.generation.logit_rules import Rules, Until, check_ids
from companion.generation.sampling import Sampling
from companion.generation.weights import Weights, check_weights
from companion.ground.arguments import check_kind, described
from companion.ground.fields import require_whole
from companion.transformer import Transformer

Stream = int | np.random.Generator
Kind = TypeVar("Kind", Sampling, Rules)


@dataclass
class Text:
    """Tokens of one row so far; the first `given` of them are the prompt."""

    ids: list[int]
    given: int
    row: int = 0


@dataclass(frozen=True)
class Ends:
    """Conditions that end a row: stop ids and a stopping criterion."""

    stop: frozenset[int]
    until: Until | None

    def after(self, text: Text) -> bool:
        """Return whether the text's last token has ended it."""
        stopped = text.ids[-1] in self.stop
        return stopped or (self.until is not None and bool(self.until(text.row, text.ids[text.given :])))


@dataclass(frozen=True)
class Request:
    """Arguments of `generate`, validated and with their defaults filled in, as all ways of generating use them.

    Attributes:
        steps: maximum number of tokens.
        ends: conditions that end a row.
        streams: random generators, one per prompt.
        weights: the format in which decode steps read the weights. Prompts are read with the model's own weights.
    """

    model: Transformer
    prompts: Sequence[Sequence[int]]
    source: Sequence[Sequence[int]] | None
    steps: int
    sampling: Sampling
    rules: Rules
    ends: Ends
    streams: Sequence[np.random.Generator]
    compile: bool = False
    weights: Weights | None = None
    draft: Draft | None = None

    def texts(self) -> list[Text]:
        """Return each prompt as a text to be extended."""
        return [Text(list(ids), len(ids), row) for row, ids in enumerate(self.prompts)]


def checked(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    steps: int,
    *,
    reach: int,
    source: Sequence[Sequence[int]] | None = None,
    sampling: Sampling | None = None,
    stop: Collection[int] = (),
    rules: Rules | None = None,
    until: Until | None = None,
    seed: int = 0,
    streams: Sequence[Stream] | None = None,
    compile: bool = False,
    weights: Weights | None = None,
    draft: Draft | Proposer | None = None,
) -> Request:
    """Build a request for `steps` tokens after prompts that `check_prompts` has validated, with defaults filled in.

    Args:
        reach: length in tokens of the longest text that a cache has to hold.

    Raises:
        ValueError: if an argument is invalid; the message names it, its value and what was expected.
    """
    check_kind("compile", compile, bool, "True or False")
    check_weights(model, weights)
    chosen = _chosen("rules", rules, Rules, "Rules, such as Rules(never=[0])")
    chosen.check(model.config.vocab, stop)
    helper = draft_of(draft)
    if helper is not None:
        if compile:
            raise ValueError("compile=True cannot be used together with draft; the verification pass is not compiled")
        helper.check(model, reach)
    return Request(
        model,
        prompts,
        source,
        steps,
        _chosen("sampling", sampling, Sampling, "a Sampling, such as Sampling(temperature=0.7)"),
        chosen,
        Ends(frozenset(stop), until),
        streams_of(seed, streams, len(prompts)),
        compile,
        weights,
        helper,
    )


def _chosen(name: str, value: Kind | None, kind: Callable[[], Kind], expected: str) -> Kind:
    """Return `value`, or an instance of `kind` with default values if `value` is `None`."""
    if value is None:
        return kind()
    check_kind(name, value, kind, expected)  # type: ignore[arg-type]
    return value


def streams_of(seed: int, streams: Sequence[Stream] | None, rows: int) -> list[np.random.Generator]:
    """Return one generator per row, as described in `generate`.

    Raises:
        ValueError: if the seed or a stream number is invalid.
    """
    require_whole("seed", seed, 0)
    if streams is None:
        streams = range(rows)
    check_kind("streams", streams, Sequence, "a list, one entry for each prompt")
    if len(streams) != rows:
        raise ValueError(f"streams has {len(streams)} entries: expected {rows}, one for each prompt")
    for row, stream in enumerate(streams):
        if not isinstance(stream, np.random.Generator):
            require_whole(f"streams[{row}]", stream, 0)
    # NumPy's generators accept (seed, row) as one seed, and draw the same numbers regardless of the model's device.
    return [s if isinstance(s, np.random.Generator) else np.random.default_rng((seed, s)) for s in streams]


def check_model(model: object) -> None:
    """Raise `ValueError` unless `model` is a model."""
    if not isinstance(getattr(model, "config", None), ModelConfig):
        raise ValueError(f"model={described(model)}: expected a Transformer")


def check_prompts(
    model: Transformer,
    prompts: Sequence[Sequence[int]] | None,
    source: Sequence[Sequence[int]] | None,
    start: int | None,
    max_new_tokens: int | None,
) -> tuple[Sequence[Sequence[int]], int]:
    """Validate the texts to continue, and return the prompts and the number of steps.

    Raises:
        ValueError: if an argument is invalid; the message names it, its value and what was expected.
    """
    check_model(model)
    config = model.config
    if config.stack == "encoder":
        raise ValueError("model has stack='encoder': expected 'decoder' or 'encoder_decoder', which generate text")
    if (source is None) == (config.stack == "encoder_decoder"):
        got = "none" if source is None else "one"
        raise ValueError(
            f"source: stack={config.stack!r} got {got}; a source is required for encoder_decoder and not allowed "
            "otherwise"
        )
    if source is not None:
        check_rows("source", source, config.vocab)
        longest = max(map(len, source))
        if longest > config.context:
            raise ValueError(f"a source of {longest} tokens: expected at most context={config.context}")
    if prompts is None:
        if source is None:
            raise ValueError("prompts=None: expected texts to continue; prompts can only be omitted with a source")
        if start is None:
            raise ValueError("start=None without prompts: expected the token id with which every target begins")
        check_ids("start", [start], config.vocab)
        prompts = [[start] for _ in source]
    elif start is not None:
        raise ValueError(f"start={start!r}: only allowed without prompts, because prompts already begin the targets")
    check_rows("prompts", prompts, config.vocab)
    if source is not None and len(source) != len(prompts):
        raise ValueError(f"source has {len(source)} rows: expected {len(prompts)}, one for each prompt")
    longest = max(map(len, prompts))
    room = config.context - longest
    if room < 1:
        raise ValueError(
            f"a prompt of {longest} tokens leaves no room: expected at most {config.context - 1}, because "
            f"context={config.context}"
        )
    if max_new_tokens is None:
        max_new_tokens = room
    require_whole("max_new_tokens", max_new_tokens)
    if max_new_tokens > room:
        raise ValueError(
            f"a prompt of {longest} tokens and max_new_tokens={max_new_tokens} add up to {longest + max_new_tokens}; "
            f"expected at most context={config.context}"
        )
    return prompts, max_new_tokens


def check_rows(name: str, rows: Sequence[Sequence[int]], vocab: int) -> None:
    """Check rows of token ids.

    Raises:
        ValueError: if there is no row, if a row is empty or if an id is outside the vocabulary.
    """
    if isinstance(rows, (str, bytes, Tensor)) or not isinstance(rows, Sequence):
        hint = f"; {name}.tolist() makes them of a tensor" if isinstance(rows, Tensor) else ""
        raise ValueError(f"{name}={described(rows)}: expected a list of rows, each a list of token ids{hint}")
    if len(rows) == 0:
        raise ValueError(f"{name} is empty: expected at least one {name.removesuffix('s')}")
    for row, ids in enumerate(rows):
        if isinstance(ids, (str, bytes, Tensor)) or not isinstance(ids, Sequence):
            hint = f"; {name}=[[...]] is one row" if isinstance(ids, int) else ""
            raise ValueError(f"{name}[{row}]={described(ids)}: expected a list of token ids{hint}")
        if len(ids) == 0:
            what = "token to continue from" if name == "prompts" else "token"
            raise ValueError(f"{name}[{row}] is empty: expected at least one {what}")
        check_ids(f"{name}[{row}]", ids, vocab)
