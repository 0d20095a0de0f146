"""Fine-tuning tasks, which teach a pretrained model to answer (lesson 20).

    SupervisedTask   the answers of conversations, token by token (Ouyang et al. 2022, InstructGPT, section 3.5)
    PreferenceTask   the better of two answers (Rafailov et al. 2023, DPO)
    PolicyTask       the model's own answers, checked by a function (Shao et al. 2024, GRPO)

All three are ordinary runs, with the same loop, folder, checkpoints and log as in `companion train`.
"""

from __future__ import annotations

import hashlib
import shlex
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from companion.config.model import ModelConfig
from companion.data.batches import IGNORE
from companion.data.chat_tokens import Dialect, Row, dialect_in
from companion.data.conversations import Conversation, Preference, read_conversations, read_preferences
from companion.data.verifiable import Problem, checkable
from companion.families.adapters import adapt, published_layers
from companion.files.models import assemble
from companion.generation.generate import complete
from companion.generation.prefill_decode import evaluating
from companion.generation.sampling import Sampling
from companion.ground.display import count
from companion.ground.padding import padded
from companion.ground.waiting import counted, waiting
from companion.layers.low_rank import low_rank_layers, without_adapters
from companion.training.distributed.parallel import Parallel
from companion.training.exact_match import wilson
from companion.training.fine_tuning import Tuner
from companion.training.hyperparameters import TrainingConfig
from companion.training.losses import Batch, Loss, Scored, head_cross_entropy_sum
from companion.training.plot import plot_tuning
from companion.training.precision import autocast
from companion.training.preferences import group_advantages, policy_loss, preference_loss, target_log_probs
from companion.training.run_folder import Start
from companion.training.seeds import derived_seed
from companion.training.settings import TuneSettings
from companion.training.tasks.task import Task
from companion.training.trainer import Trainer
from companion.transformer import Transformer

DRAWN = 4000
"""Number of problems of a checkable task that supervised fine-tuning and preference optimization learn from."""
MEASURED, MEASURED_BRIEFLY = 500, 100
"""Number of held-out problems, or conversations, for evaluating a finished run, and for evaluations during the run."""
LEARNED = 0.5
"""If the fraction of right answers is below this, a run is reported not to have learned its task."""
PASSES = {"sft": 3, "dpo": 1}
"""Number of passes through a file of conversations by default."""
USUAL = 200
"""Default number of updates on a checkable task."""
RATES = {"sft": 1e-3, "dpo": 1e-4, "grpo": 5e-5}


@dataclass(frozen=True)
class Tuned:
    """Scores of a fine-tuned model in an evaluation, keyed by name. The first score selects the best checkpoint."""

    scores: dict[str, float]
    counted: tuple[int, int] | None = None

    @property
    def error(self) -> float:
        """Score that selects the best checkpoint; smaller is better."""
        name, value = next(iter(self.scores.items()))
        return value if name == "held_out_loss" else 1 - value

    def result(self) -> dict[str, Any]:
        """Return the scores to store with a finished run, including a confidence interval if answers were counted."""
        if self.counted is None:
            return dict(self.scores)
        low, high = wilson(*self.counted)
        return {**self.scores, "low": low, "high": high, "right": self.counted[0], "total": self.counted[1]}

    def __str__(self) -> str:
        said = {"right_share": "{:6.1%} right", "held_out_loss": "{:.3f} nats", "preferred": "{:6.1%} preferred"}
        return ", ".join(said[name].format(value) for name, value in self.scores.items() if name in said)


@dataclass(frozen=True)
class TuneTask(Task):
    """Base class of the fine-tuning tasks. `given` contains the files that define an existing run's conversation
    format."""

    settings: TuneSettings
    start: Start
    given: Mapping[str, str] | None = None
    preparing: ClassVar[str] = "{title}: reading"

    @cached_property
    def first(self) -> Transformer:
        """The initial model, without dropout."""
        return self.start.model()

    @cached_property
    def config(self) -> ModelConfig:
        return self.first.config.with_(dropout=float(self.settings.dropout))

    def files(self) -> dict[str, str]:
        return dict(self._files)

    @cached_property
    def _files(self) -> dict[str, str]:
        return self.start.files() if self.given is None else dict(self.given)

    @cached_property
    def dialect(self) -> Dialect:
        """The model's conversation format."""
        return dialect_in(self._files)

    def with_files(self, files: Mapping[str, str]) -> TuneTask:
        return replace(self, given=files)

    # Training data

    @abstractmethod
    def batches_of(self, model: Transformer, precision: str = "fp32") -> Callable[[int], Batch]:
        """Return a function from a micro-batch number to this model's tensors for `loss`, with the targets last."""

    @property
    def batches(self) -> Callable[[int], Batch]:
        return self.batches_of(self.first)

    @cached_property
    def held_problems(self) -> list[Problem]:
        """A fixed set of held-out problems, which is empty for a file of conversations."""
        if self.settings.problems is None:
            return []
        return checkable(self.settings.problems).problems(MEASURED, 0, held_out=True)

    @property
    def title(self) -> str:
        if self.settings.problems is not None:
            return checkable(self.settings.problems).title
        return ", ".join(Path(path).name for path in self.settings.data)

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self._learned} {self.start.fingerprint}".encode()).hexdigest()[:16]

    @property
    @abstractmethod
    def _learned(self) -> str:
        """Text that identifies the training data."""

    def record(self) -> dict[str, Any]:
        text = {"title": self.title, "fingerprint": self.fingerprint, "start": self.start.fingerprint}
        return {"text": text, "start": str(self.start.folder)}

    def facts(self) -> Sequence[tuple[str, str]]:
        settings = self.settings
        trained = "all weights"
        if settings.rank is not None:
            where = "attention" if settings.targets == "attention" else "attention and feed-forward networks"
            trained = f"adapters of rank {settings.rank} in the linear layers of {where}"
        return (
            ("learns", f"{self.title}, by {settings.method}"),
            *(("", line) for line in self._amounts()),
            ("from", f"{self.start.folder}"),
            ("trained", trained),
        )

    @abstractmethod
    def _amounts(self) -> Iterator[str]:
        """Describe the amounts of training and evaluation data."""

    def amount(self, updates: int) -> str:
        each = count(self.settings.batch * self.settings.accumulate, self._unit)
        return f"{updates:,} updates of {each}"

    _unit: ClassVar[str] = "conversation"

    @property
    def parts(self) -> tuple[list[int], list[int]]:
        """Indices of the training examples and of the held-out ones; both are empty for the model's own answers."""
        return [], []

    @property
    def usual(self) -> int:  # type: ignore[override]
        if self.settings.problems is not None:
            return USUAL
        each = self.settings.batch * self.settings.accumulate
        return max(1, round(PASSES[self.settings.method] * len(self.parts[0]) / each))

    # Evaluation

    def right_share(self, model: Transformer, problems: Sequence[Problem], precision: str = "fp32") -> Tuned:
        """Measure the fraction of problems that the model answers correctly with greedy decoding."""
        assert self.settings.problems is not None
        task = checkable(self.settings.problems)
        answers = self.answers(model, [problem.messages for problem in problems], Sampling(0.0), precision=precision)
        right = sum(task.reward(one, self.dialect.answer(ids)) for one, ids in zip(problems, answers, strict=True))
        return Tuned({"right_share": right / len(problems)}, (int(right), len(problems)))

    def answers(
        self,
        model: Transformer,
        conversations: Sequence[Sequence[Any]],
        sampling: Sampling,
        *,
        seed: int = 0,
        precision: str = "fp32",
    ) -> list[list[int]]:
        """Return the ids of the model's answers, each of which ends at a stop token or after `settings.tokens` tokens.

        Raises:
            ValueError: if a conversation is so long that no answer fits in the context.
        """
        prompts = [self.dialect.prompt(messages) for messages in conversations]
        longest = max(map(len, prompts))
        room = model.config.context - longest
        if room < 1:
            raise ValueError(
                f"a prompt of {longest:,} tokens leaves no room for an answer in the context of "
                f"{model.config.context:,}"
            )
        device = next(model.parameters()).device
        with waiting(f"answering {count(len(prompts), 'prompt')}"), autocast(device, precision):
            return complete(
                model,
                prompts,
                max_new_tokens=min(self.settings.tokens, room),
                sampling=sampling,
                stop=self.dialect.stop,
                seed=seed,
                weights=None,
            )

    def excerpt(self, model: Transformer) -> str:
        messages = self._example()
        (ids,) = self.answers(model, [messages], Sampling(0.0))
        asked, answered = (" ".join(text.split()) for text in (messages[-1]["content"], self.dialect.answer(ids)))
        return f"{asked[:30]} -> {answered[:60]}"

    @abstractmethod
    def _example(self) -> Sequence[Any]:
        """Return a held-out conversation, up to the answer."""

    def verdict(self, record: Mapping[str, Any], result: Mapping[str, Any]) -> str:
        if "right_share" in result:
            return (
                f"{result['right']:,} of {result['total']:,} held-out problems are answered right, "
                f"{result['right_share']:.1%} (95 % interval {result['low']:.1%} to {result['high']:.1%})."
                + (f"\n{self._advice(record)}" if result["high"] < LEARNED else "")
            )
        return f"On held-out data: {Tuned({k: v for k, v in result.items() if k != 'digest'})}."

    def _advice(self, record: Mapping[str, Any]) -> str:
        if self.settings.method == "grpo":
            helps = (
                "GRPO can only reinforce right answers that the model already gives sometimes. Start from a model "
                "that is right in some of its answers: first companion tune --method sft, then --start with that run"
            )
        else:
            helps = (
                f"more updates (this run made {record['updates']}), a larger --batch, or a --start that was trained "
                "for longer"
            )
        return f"The model has not learned the task: most of its answers are wrong.\nWhat usually helps: {helps}."

    def next_command(self, folder: Path) -> str:
        return f"companion chat --run {shlex.quote(str(folder))}"

    def plot(self, entries: Sequence[Mapping[str, Any]], path: Path, record: Mapping[str, Any]) -> bool:
        return plot_tuning(entries, path)

    # The trainer

    def trainer(self, updates: int, device: torch.device, precision: str, parallel: Parallel | None = None) -> Trainer:
        """Make a trainer for the initial model, to which adapters are added if the settings request them.

        Raises:
            ValueError: if there are several processes, or if no published layout has names for the adapters.
        """
        settings = self.settings
        if parallel is not None and parallel.world > 1:
            raise ValueError("torchrun: expected one process; tuning supports only one (trl and peft support several)")
        torch.manual_seed(derived_seed(settings.seed, 2))
        kept = {name: tensor.clone() for name, tensor in self.first.state_dict().items()}
        model = assemble(self.config, kept, self.start.folder, None).to(device)
        model.requires_grad_(True)
        if settings.rank is not None:
            model.published_kind = self.first.published_kind
            published_layers(self.config, model.published_kind)  # raises an error if the adapters could not be saved
            adapt(model, settings.rank, alpha=settings.alpha, targets=settings.targets)
        learning = settings.learning() | {"seed": derived_seed(settings.seed, 3), "learning_rate": self.rate}
        moe = self.config.moe
        balance = 0.0 if moe is None or moe.balanced or settings.rank is not None else 0.01
        return Tuner(
            model,
            self.batches_of(model, precision),
            TrainingConfig(updates, balance_loss=balance, **learning),
            steps=settings.epochs,
            loss=self.loss,
            precision=precision,
            compile=settings.compile,
            activation_checkpointing=settings.activation_checkpointing,
        )

    @property
    def rate(self) -> float:
        """The peak learning rate, which by default depends on the method and on the starting point."""
        settings = self.settings
        if settings.learning_rate is not None:
            return settings.learning_rate
        return RATES[settings.method] * (0.1 if self.start.run is None else 1) * (1 if settings.rank is None else 10)

    @contextmanager
    def reference(self, model: Transformer) -> Iterator[Transformer]:
        """Yield the model that `model` started from; if it has adapters, this is `model` with its adapters disabled."""
        if low_rank_layers(model):
            with without_adapters(model):
                yield model
        else:
            yield self.first.to(next(model.parameters()).device).requires_grad_(False).eval()

    def log_probs(self, model: Transformer, tokens: Tensor, targets: Tensor, precision: str = "fp32") -> Tensor:
        """Return log p of each target, (row, token), without gradients and without dropout."""
        device = next(model.parameters()).device
        with torch.no_grad(), evaluating(list(model.modules())), autocast(device, precision):
            targets = targets.to(device)
            logits = model(tokens.to(device), token_mask=read_for(targets)).logits
            return target_log_probs(logits, targets)


def _check_fits(rows: Sequence[Row], context: int, where: str) -> None:
    longest = max(len(row.ids) for row in rows)
    if longest > context + 1:
        raise ValueError(
            f"{where}: expected at most {context + 1:,} tokens, the limit set by the model's context, got {longest:,}"
        )


def _inputs_and_targets(rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Convert rows of unequal lengths to (inputs, targets), each (row, token), padded on the right.

    A target is the token after an input if that token is scored, and `IGNORE` otherwise.
    """
    inputs = padded([row.ids[:-1] for row in rows])
    scored = ((zip(row.ids[1:], row.scored[1:], strict=True)) for row in rows)
    targets = [[id if counts else IGNORE for id, counts in row] for row in scored]
    return inputs, padded(targets, IGNORE)


def _chosen(number: int, batch: int, among: int, seed: int) -> list[int]:
    """Return the examples of micro-batch `number`; each pass uses all examples, in a different order."""
    places = [divmod(place, among) for place in range(number * batch, (number + 1) * batch)]
    orders = {turn: np.random.default_rng((seed, turn)).permutation(among) for turn in {turn for turn, _ in places}}
    return [int(orders[turn][at]) for turn, at in places]


def read_for(targets: Tensor) -> Tensor:
    """Return which tokens the targets of each row depend on, (row, token): all tokens up to the last target.

    Routing statistics leave out later tokens, such as padding, so that the result for a row does not depend on its
    padding.
    """
    return (targets != IGNORE).flip(-1).cummax(-1).values.flip(-1)


def answer_loss(model: Transformer, tokens: Tensor, targets: Tensor) -> Scored:
    """Compute the next-token loss of the answers only (Ouyang et al. 2022, section 3.5; lesson 20, equation 20.1).

    The tokens before the answers are read but are never targets. `tokens` and `targets` are (row, token).
    """
    stream, routing, _ = model.features(tokens, token_mask=read_for(targets))
    return Scored(*head_cross_entropy_sum(model, stream, targets), routing)


def _pair_loss(
    model: nn.Module, tokens: Tensor, targets: Tensor, reference: Tensor, counted: Tensor, *, beta: float
) -> Scored:
    """Compute the `preference_loss` of pairs, with the chosen answer first.

    Shapes: tokens and targets (pair, 2, token), reference (pair, 2).
    """
    out = model(tokens.flatten(0, 1), token_mask=read_for(targets.flatten(0, 1)))
    each = target_log_probs(out.logits, targets.flatten(0, 1)).sum(-1).view(-1, 2)
    loss, better, worse = preference_loss(each, reference, beta=beta)
    told = {
        "reward_chosen": better.sum(),
        "reward_rejected": worse.sum(),
        "margin": (better - worse).sum(),
        "preferred": (better > worse).sum(),
    }
    return Scored(loss.sum(), counted.new_tensor(len(counted)), out.routing, told=told)


def _sampled_loss(
    model: nn.Module,
    tokens: Tensor,
    targets: Tensor,
    old: Tensor,
    reference: Tensor,
    advantages: Tensor,
    rewards: Tensor,
    counted: Tensor,
    *,
    settings: TuneSettings,
) -> Scored:
    """Compute the `policy_loss` of sampled answers.

    Each row is an answer, and answers to the same problem are adjacent.
    """
    out = model(tokens, token_mask=read_for(targets))
    each, scored = target_log_probs(out.logits, targets), targets != IGNORE
    loss, away, clipped = policy_loss(
        each,
        each.detach() if settings.epochs == 1 else old,
        reference,
        advantages,
        scored,
        clip=settings.clip_ratio,
        beta=settings.strength,
        lengths=settings.lengths,
        longest=settings.tokens,
    )
    groups = rewards.view(-1, settings.group)
    silent = (groups == groups[:, :1]).all(-1).sum() * settings.group
    told = {"reward": rewards.sum(), "silent_groups": silent, "length": scored.sum(), "divergence": away.sum()}
    if settings.epochs > 1:
        told["clipped"] = clipped.sum()
    return Scored(loss.sum(), counted.new_tensor(len(counted)), out.routing, told=told)


@dataclass(frozen=True)
class SupervisedTask(TuneTask):
    """Supervised fine-tuning on the answers in conversations, token by token."""

    @cached_property
    def _conversations(self) -> list[Conversation]:
        if self.settings.problems is None:
            return read_conversations(self.settings.data)
        seed = derived_seed(self.settings.seed, 6)
        drawn = checkable(self.settings.problems).problems(DRAWN, seed)
        shown = np.random.default_rng((seed, 2)).random(DRAWN) < self.settings.worked
        answers = [one.worked if steps else one.straight for one, steps in zip(drawn, shown, strict=True)]
        return [
            Conversation([*one.messages, {"role": "assistant", "content": answer}], "")
            for one, answer in zip(drawn, answers, strict=True)
        ]

    @property
    def _learned(self) -> str:
        return repr([conversation.messages for conversation in self._conversations])

    @cached_property
    def _rows(self) -> list[list[Row]]:
        found = []
        for conversation in self._conversations:
            try:
                rows = self.dialect.rows(conversation.messages)
            except ValueError as error:
                raise ValueError(f"{conversation.where}: {error}" if conversation.where else str(error)) from None
            _check_fits(rows, self.config.context, conversation.where or f"--task {self.settings.problems}")
            found.append(rows)
        return found

    @cached_property
    def parts(self) -> tuple[list[int], list[int]]:
        """Indices of the training conversations and of the held-out ones."""
        if self.settings.problems is not None:
            return list(range(len(self._rows))), []
        return _divided(len(self._rows), self.settings.held_out)

    def batches_of(self, model: Transformer, precision: str = "fp32") -> Callable[[int], Batch]:
        learn, settings = [row for i in self.parts[0] for row in self._rows[i]], self.settings
        seed = derived_seed(settings.seed, 1)
        return lambda number: _inputs_and_targets([learn[i] for i in _chosen(number, settings.batch, len(learn), seed)])

    @property
    def loss(self) -> Loss:
        return answer_loss

    def measure(self, model: Transformer, precision: str = "fp32", *, brief: bool = False) -> Tuned:
        """Measure the fraction of right answers, or else the loss of held-out answers in nats per token."""
        most = MEASURED_BRIEFLY if brief else MEASURED
        if self.settings.problems is not None:
            return self.right_share(model, self.held_problems[:most], precision)
        rows = [row for i in (self.parts[1] or self.parts[0])[:most] for row in self._rows[i]]
        nats, tokens = 0.0, 0
        for first in counted(range(0, len(rows), self.settings.batch), unit="batch", what="measuring"):
            inputs, targets = _inputs_and_targets(rows[first : first + self.settings.batch])
            nats -= float(self.log_probs(model, inputs, targets, precision).sum())
            tokens += int((targets != IGNORE).sum())
        return Tuned({"held_out_loss": nats / tokens})

    def _amounts(self) -> Iterator[str]:
        learn, held = self.parts
        scored = sum(sum(row.scored) for i in learn for row in self._rows[i])
        yield f"from {count(len(learn), 'conversation')}, whose answers have {scored:,} tokens"
        yield _measured(self, len(held))

    def _example(self) -> Sequence[Any]:
        if self.held_problems:
            return self.held_problems[0].messages
        messages = self._conversations[(self.parts[1] or self.parts[0])[0]].messages
        return messages[: next(i for i, message in enumerate(messages) if message["role"] == "assistant")]


@dataclass(frozen=True)
class PreferenceTask(TuneTask):
    """Preference optimization on pairs of answers."""

    _unit: ClassVar[str] = "pair"

    @cached_property
    def _preferences(self) -> list[Preference]:
        if self.settings.problems is None:
            return read_preferences(self.settings.data)
        task, seed = checkable(self.settings.problems), derived_seed(self.settings.seed, 6)
        random = np.random.default_rng((seed, 1))
        drawn = task.problems(DRAWN, seed)
        return [Preference(one.messages, one.worked, task.wrong(one, random), "") for one in drawn]

    @property
    def _learned(self) -> str:
        return repr([one[:3] for one in self._preferences])

    @cached_property
    def _rows(self) -> list[list[Row]]:
        """The two conversations of each pair."""
        found = []
        for one in self._preferences:
            pair = []
            for answer in (one.chosen, one.rejected):
                row = self.dialect.rows([*one.prompt, {"role": "assistant", "content": answer}])[-1]
                end = len(row.scored) - row.scored[::-1].index(True)
                start = end - ([*row.scored[:end][::-1], False].index(False))
                # Earlier answers are not part of the comparison.
                pair.append(Row(row.ids, [start <= place < end for place in range(len(row.ids))]))
            _check_fits(pair, self.config.context, one.where or f"--task {self.settings.problems}")
            found.append(pair)
        return found

    @cached_property
    def parts(self) -> tuple[list[int], list[int]]:
        """Indices of the training pairs and of the held-out ones."""
        return _divided(len(self._rows), self.settings.held_out)

    def batches_of(self, model: Transformer, precision: str = "fp32") -> Callable[[int], Batch]:
        learn, settings = self.parts[0], self.settings
        seed = derived_seed(settings.seed, 1)
        return lambda number: self._batch(
            model, [learn[i] for i in _chosen(number, settings.batch, len(learn), seed)], precision
        )

    def _batch(self, model: Transformer, pairs: Sequence[int], precision: str) -> Batch:
        tokens, targets = _inputs_and_targets([row for i in pairs for row in self._rows[i]])
        with self.reference(model) as before:
            reference = self.log_probs(before, tokens, targets, precision).sum(-1).view(-1, 2).cpu()
        shape = (len(pairs), 2, -1)
        return tokens.view(shape), targets.view(shape), reference, torch.ones(len(pairs), dtype=torch.long)

    @property
    def loss(self) -> Loss:
        return partial(_pair_loss, beta=self.settings.strength)

    @torch.no_grad()
    def measure(self, model: Transformer, precision: str = "fp32", *, brief: bool = False) -> Tuned:
        """Measure the loss of held-out pairs, and the fraction of pairs whose better answer gained more probability."""
        pairs = (self.parts[1] or self.parts[0])[: MEASURED_BRIEFLY if brief else MEASURED]
        gained, nats = 0.0, 0.0
        device = next(model.parameters()).device
        for first in counted(range(0, len(pairs), self.settings.batch), unit="batch", what="measuring"):
            batch = self._batch(model, pairs[first : first + self.settings.batch], precision)
            with evaluating(list(model.modules())), autocast(device, precision):
                scored = self.loss(model, *(tensor.to(device) for tensor in batch))
            nats, gained = nats + float(scored.nats), gained + float(scored.told["preferred"])
        return Tuned({"preferred": gained / len(pairs), "held_out_loss": nats / len(pairs)})

    def _amounts(self) -> Iterator[str]:
        learn, held = self.parts
        yield f"from {count(len(learn), 'pair')} of answers, beta {self.settings.strength:g}"
        yield _measured(self, len(held))

    def _example(self) -> Sequence[Any]:
        return self._preferences[(self.parts[1] or self.parts[0])[0]].prompt


@dataclass(frozen=True)
class PolicyTask(TuneTask):
    """Policy optimization on the model's own answers, which a function checks.

    Answers that earn more than other answers to the same problem are reinforced. As a result, behavior that the initial
    model shows only sometimes becomes frequent. The method works only if the model's answers vary in a way that also
    helps with other problems.

    With the recipe in `companion tune --help` (16 problems per step, rate 5e-5), the following fractions of 500
    held-out sums are answered right, starting from three initial models that show their steps in half of their answers
    (`worked`):

        at the start        32.6 %   35.8 %   23.0 %
        after 30 updates    46.2 %   40.8 %   33.2 %
        after 60 updates    45.6 %   45.0 %   32.0 %

    Of the answers to 250 sums at temperature 1, 47 to 57 % show their steps at the start, and 92 to 96 % after 60
    updates; 8 to 14 % are right at the start, and 14 to 26 % after 60 updates. From the first initial model, 48.8 % are
    right after 60 updates at 1e-4. At 3e-4, the fraction of right answers to the first 100 sums falls from 40 % after 6
    updates to 28 % after 24.
    """

    _unit: ClassVar[str] = "problem"

    @property
    def _learned(self) -> str:
        return repr(self.held_problems)

    def batches_of(self, model: Transformer, precision: str = "fp32") -> Callable[[int], Batch]:
        return partial(self._written, model, precision)

    def _written(self, model: Transformer, precision: str, number: int) -> Batch:
        """Sample the current model's answers to the problems of micro-batch `number`, and compute their rewards."""
        settings, task = self.settings, checkable(self.settings.problems or "")
        problems = task.problems(settings.batch, derived_seed(settings.seed, 1) + number)
        asked = [problem for problem in problems for _ in range(settings.group)]
        answers = self.answers(
            model,
            [problem.messages for problem in asked],
            Sampling(settings.temperature),
            seed=derived_seed(settings.seed, 7) + number,
            precision=precision,
        )
        pairs = list(zip(asked, answers, strict=True))
        rewards = torch.tensor([task.reward(one, self._said(ids)) for one, ids in pairs])
        before = [self.dialect.prompt(one.messages) for one in asked]
        rows = [
            Row([*prompt, *ids], [False] * len(prompt) + [True] * len(ids))
            for prompt, ids in zip(before, answers, strict=True)
        ]
        tokens, targets = _inputs_and_targets(rows)
        old = reference = torch.zeros(targets.shape)
        if settings.epochs > 1:
            old = self.log_probs(model, tokens, targets, precision).cpu()
        if settings.strength > 0:
            with self.reference(model) as start:
                reference = self.log_probs(start, tokens, targets, precision).cpu()
        advantages = group_advantages(rewards.view(-1, settings.group), deviation=settings.deviation).flatten()
        counted = torch.ones(len(rows), dtype=torch.long)
        return tokens, targets, old, reference, advantages, rewards, counted

    def _said(self, ids: Sequence[int]) -> str:
        """Return the text of an answer, or an empty string if the answer was cut off before it ended."""
        return self.dialect.answer(ids) if ids and ids[-1] in self.dialect.stop else ""

    @property
    def loss(self) -> Loss:
        return partial(_sampled_loss, settings=self.settings)

    def measure(self, model: Transformer, precision: str = "fp32", *, brief: bool = False) -> Tuned:
        """Measure the fraction of held-out problems that the model answers correctly."""
        return self.right_share(model, self.held_problems[: MEASURED_BRIEFLY if brief else MEASURED], precision)

    def _amounts(self) -> Iterator[str]:
        settings = self.settings
        yield (
            f"from {settings.group} answers of its own to each problem, at temperature {settings.temperature:g}; "
            f"beta {settings.strength:g}"
        )
        yield _measured(self, 0)

    def _example(self) -> Sequence[Any]:
        return self.held_problems[0].messages


def _divided(entries: int, share: float) -> tuple[list[int], list[int]]:
    """Return the indices of training entries and of evenly spaced held-out entries; a single entry is not held out."""
    held = 0 if entries == 1 else max(1, round(share * entries))
    every = {int((place + 0.5) * entries / held) for place in range(held)} if held else set()
    return [i for i in range(entries) if i not in every], sorted(every)


def _measured(task: TuneTask, held: int) -> str:
    unit = task._unit
    if task.settings.problems is not None and task.settings.method != "dpo":
        return "measured on held-out problems, which it never sees"
    return f"measured on {count(held, f'other {unit}')}" if held else f"measured on the training {unit}, the only one"


METHODS: dict[str, type[TuneTask]] = {"sft": SupervisedTask, "dpo": PreferenceTask, "grpo": PolicyTask}
"""Task class of each method."""


def open_tune(settings: TuneSettings, files: Mapping[str, str] | None = None) -> TuneTask:
    """Open the task of `settings`. `files` contains the conversation format of an existing run.

    Raises:
        ValueError: if the initial model or a file is invalid, or if the files of a fine-tuning run were changed.
    """
    return METHODS[settings.method](settings, Start.find(settings.start), files)
