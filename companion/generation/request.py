"""Generation requests: the arguments of a call, checked for all errors before anything runs (lesson 10)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict, TypeVar

import numpy as np
from torch import Tensor

from companion.config.model import ModelConfig
from companion.generation.draft import Draft, Proposer, draft_of
from companion.generation.logit_rules import Rules, StoppingCriterion, check_ids
from companion.generation.sampling import Sampling
from companion.ground.arguments import check_kind, described
from companion.ground.fields import require_whole
from companion.quantization.weights import Weights, check_weights
from companion.transformer import Transformer

Rows = Sequence[Sequence[int]]
"""Token ids, in rows of any lengths."""
RandomSource = int | np.random.Generator
Kind = TypeVar("Kind", Sampling, Rules)


@dataclass
class Text:
    """Tokens of one row so far; the first `given` of them are the prompt."""

    ids: list[int]
    given: int
    row: int = 0


class Options(TypedDict, total=False):
    """Keyword arguments of a `Request`; `companion.generation.generate.generate` documents them."""

    source: Rows | None
    start: int | None
    sampling: Sampling | None
    stop: Collection[int]
    rules: Rules | None
    until: StoppingCriterion | None
    seed: int
    generators: Sequence[RandomSource] | None
    compile: bool
    weights: Weights | None
    draft: Draft | Proposer | None


@dataclass(frozen=True)
class Request:
    """Arguments of a call that generates text, checked and completed with their defaults when the request is created.

    `companion.generation.generate.generate` documents the arguments. All ways of generating text use these attributes:

    Attributes:
        prompts: token ids of each row; only `start` if it was given in place of prompts.
        max_new_tokens: maximum number of steps.
        generators: random generators, one per prompt.

    Raises:
        ValueError: if an argument is invalid; the message names it, its value and what was expected.
    """

    model: Transformer
    prompts: Rows
    max_new_tokens: int
    source: Rows | None
    sampling: Sampling
    stop: frozenset[int]
    rules: Rules
    until: StoppingCriterion | None
    generators: Sequence[np.random.Generator]
    compile: bool
    weights: Weights | None
    draft: Draft | None
    past_context: ClassVar[bool] = False

    def __init__(
        self,
        model: Transformer,
        prompts: Rows | None = None,
        max_new_tokens: int | None = None,
        *,
        source: Rows | None = None,
        start: int | None = None,
        sampling: Sampling | None = None,
        stop: Collection[int] = (),
        rules: Rules | None = None,
        until: StoppingCriterion | None = None,
        seed: int = 0,
        generators: Sequence[RandomSource] | None = None,
        compile: bool = False,
        weights: Weights | None = "fast",
        draft: Draft | Proposer | None = None,
    ) -> None:
        check_model(model)
        config, fill = model.config, vars(self).update  # no attribute of a frozen object can be assigned
        fill(model=model, source=source, until=until, compile=compile, weights=weights)
        _check_stack(config, source, self.past_context)
        fill(prompts=_prompts(config, prompts, source, start))
        fill(max_new_tokens=_steps(config, self.prompts, max_new_tokens, self.past_context))
        check_kind("compile", compile, bool, "True or False")
        check_weights(model, weights)
        fill(rules=_chosen("rules", rules, Rules, "Rules, such as Rules(never=[0])"))
        self.rules.check(config.vocab, stop)
        fill(stop=frozenset(stop), draft=draft_of(draft))
        if self.draft is not None:
            if compile:
                raise ValueError(
                    "compile=True cannot be used together with draft; the verification pass is not compiled"
                )
            self.draft.check(model, min(config.context, max(map(len, self.prompts)) + self.max_new_tokens))
        fill(sampling=_chosen("sampling", sampling, Sampling, "a Sampling, such as Sampling(temperature=0.7)"))
        fill(generators=_generators(seed, generators, len(self.prompts)))

    def texts(self) -> list[Text]:
        """Return each prompt as a text to be extended."""
        return [Text(list(ids), len(ids), row) for row, ids in enumerate(self.prompts)]

    def allowed(self, scores: Tensor, step: int, texts: Rows) -> Tensor:
        """Apply the rules to the scores of the tokens at one step, (batch, vocab)."""
        return self.rules.apply(scores, step, self.max_new_tokens, self.stop, texts)

    def ends(self, text: Text) -> bool:
        """Return whether the text's last token has ended it."""
        stopped = text.ids[-1] in self.stop
        return stopped or (self.until is not None and bool(self.until(text.row, text.ids[text.given :])))


class LongRequest(Request):
    """A request for a decoder whose texts may grow past its context, as in `generate_long`."""

    past_context = True


def _chosen(name: str, value: Kind | None, kind: Callable[[], Kind], expected: str) -> Kind:
    """Return `value`, or an instance of `kind` with default values if `value` is `None`."""
    if value is None:
        return kind()
    check_kind(name, value, kind, expected)  # type: ignore[arg-type]
    return value


def _generators(seed: int, generators: Sequence[RandomSource] | None, rows: int) -> list[np.random.Generator]:
    """Return one random generator per row, as described in `generate`."""
    require_whole("seed", seed, 0)
    if generators is None:
        generators = range(rows)
    check_kind("generators", generators, Sequence, "a list, one entry for each prompt")
    if len(generators) != rows:
        raise ValueError(f"generators has {len(generators)} entries: expected {rows}, one for each prompt")
    for row, generator in enumerate(generators):
        if not isinstance(generator, np.random.Generator):
            require_whole(f"generators[{row}]", generator, 0)
    # NumPy's generators accept (seed, row) as one seed, and draw the same numbers regardless of the model's device.
    return [s if isinstance(s, np.random.Generator) else np.random.default_rng((seed, s)) for s in generators]


def check_model(model: object) -> None:
    """Raise `ValueError` unless `model` is a `Transformer`."""
    if not isinstance(getattr(model, "config", None), ModelConfig):
        raise ValueError(f"model={described(model)}: expected a Transformer")


def _check_stack(config: ModelConfig, source: Rows | None, past_context: bool) -> None:
    """Check that the model generates text, and has a source if it needs one."""
    if past_context and (config.stack != "decoder" or config.context < 2):
        raise ValueError(
            f"model has stack={config.stack!r} and context={config.context}: expected a decoder with a context of at "
            "least 2, for one prompt token and one new token"
        )
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


def _prompts(config: ModelConfig, prompts: Rows | None, source: Rows | None, start: int | None) -> Rows:
    """Return the prompts; if there are only sources, every row consists of `start`."""
    if prompts is None:
        if source is None:
            raise ValueError("prompts=None: expected texts to continue; prompts can only be omitted with a source")
        if start is None:
            raise ValueError("start=None without prompts: expected the token id that begins every target")
        check_ids("start", [start], config.vocab)
        prompts = [[start] for _ in source]
    elif start is not None:
        raise ValueError(
            f"start={start!r}: only allowed without prompts, because each prompt already begins its target"
        )
    check_rows("prompts", prompts, config.vocab)
    if source is not None and len(source) != len(prompts):
        raise ValueError(f"source has {len(source)} rows: expected {len(prompts)}, one for each prompt")
    return prompts


def _steps(config: ModelConfig, prompts: Rows, max_new_tokens: int | None, past_context: bool) -> int:
    longest = max(map(len, prompts))
    room = config.context - longest
    if past_context:
        for row, prompt in enumerate(prompts):
            if len(prompt) > config.context:
                raise ValueError(f"prompts[{row}] has {len(prompt)} tokens: expected at most context={config.context}")
    elif room < 1:
        raise ValueError(
            f"a prompt of {longest} tokens leaves no room for a new one: expected at most {config.context - 1}, "
            f"because context={config.context}"
        )
    if max_new_tokens is None and not past_context:
        return room
    require_whole("max_new_tokens", max_new_tokens)
    assert max_new_tokens is not None  # as just checked
    if max_new_tokens > room and not past_context:
        raise ValueError(
            f"a prompt of {longest} tokens and max_new_tokens={max_new_tokens} add up to {longest + max_new_tokens}; "
            f"expected at most context={config.context}"
        )
    return max_new_tokens


def check_rows(name: str, rows: Rows, vocab: int) -> None:
    """Check rows of token ids.

    Raises:
        ValueError: if there is no row, if a row is empty or if an id is outside the vocabulary.
    """
    if isinstance(rows, (str, bytes, Tensor)) or not isinstance(rows, Sequence):
        hint = f"; {name}.tolist() converts a tensor" if isinstance(rows, Tensor) else ""
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
