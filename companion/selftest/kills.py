"""`companion selftest`: kill a training run again and again, and see that its weights come out the same, bit for bit.

A small model is trained once without interruption; this run notes the digest of its weights after every update. Then
the same command is run, killed (SIGKILL) at a random moment, and run again, as often as was asked for. What each kill
left is looked at: the last checkpoint must be whole, and have the weights that the uninterrupted run had at its update.
A run that comes to its end must have the same weights, the same moments of the optimizer, the same log and the same
result. There are two runs, killed in turn: one saves after every update, so that many kills hit a checkpoint that is
being written; one saves when runs usually do, so that others find a log that is ahead of its checkpoint. When one comes
to its end before its next kill, another begins. Three kills or fewer are all the first one's.

What is run in place of `companion train` is `companion.selftest.victim`: it trains, and does what a plan says besides.
A moment is counted in file operations of the run, which Python's audit hooks report: nothing in the training knows of
it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tqdm.auto import tqdm

from companion.ground.display import table
from companion.selftest.victim import KILL, Plan, digest
from companion.training.checkpoints import Saved
from companion.training.run_folder import MACHINE_FIELDS, RunFolder

UPDATES = 60
"""Of the run that is killed; ten evaluations."""
TOLERANCE = 1e-5
"""Largest difference of a weight when another number of processes goes on with a run: they add in another order."""
EXPERTS = 4
"""In each layer of the model that is trained."""
PATIENCE = 300.0
"""Seconds until a process that should have ended is taken for one that hangs."""


@dataclass(frozen=True)
class Kill:
    """A kill and what it left.

    moment:      the file operation that was about to happen, or had happened `delay` seconds ago.
    victim:      which process; "all" of several.
    checkpoint:  the updates that the last whole checkpoint has done; `None`: there was none yet.
    fault:       what was wrong with what was left; empty: nothing.
    """

    run: int
    moment: str
    delay: float
    victim: str
    checkpoint: int | None
    fault: str = ""


@dataclass
class Outcome:
    """What a selftest found.

    runs:    by their number, what was different at the end from the uninterrupted run; empty: nothing.
    other:   the largest difference of a weight in a run that another number of processes went on with, if there are
             several; else `None`.
    """

    processes: int
    updates: int = UPDATES
    kills: list[Kill] = field(default_factory=list)
    runs: dict[int, str] = field(default_factory=dict)
    other: float | None = None
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether every kill left what it should, and every run ended as it should."""
        same = self.other is None or self.other <= TOLERANCE
        return bool(self.runs) and not any(self.runs.values()) and not any(kill.fault for kill in self.kills) and same

    def to_json(self) -> str:
        kills = [asdict(kill) for kill in self.kills]
        return json.dumps({**asdict(self), "kills": kills, "tolerance": TOLERANCE, "holds": self.holds}, indent=2)

    def table(self) -> str:
        """A line for each kill, and a verdict."""
        rows = []
        for i, kill in enumerate(self.kills, 1):
            when = f"{1000 * kill.delay:.0f} ms after " if kill.delay else "before "
            left = "none" if kill.checkpoint is None else f"{kill.checkpoint:,}"
            verdict = kill.fault or ("-" if kill.checkpoint is None else "yes")
            rows.append((f"{i}", f"{kill.run}", when + kill.moment, kill.victim, left, verdict))
        head = ("kill", "run", "killed", "who", "left", "same weights")
        lines = [table(rows, head, left=(2, 3, 5), indent=0, width=None)]
        good = sum(not kill.fault for kill in self.kills)
        lines += ["", f"{good} of {len(self.kills)} kills left a state to go on from, with the weights of its update."]
        same = sum(not fault for fault in self.runs.values())
        lines += [f"{same} of {len(self.runs)} runs ended with the same weights, optimizer, log and result as the "
                  "uninterrupted one, bit for bit."]  # fmt: skip
        lines += [f"  run {i}: {fault}" for i, fault in self.runs.items() if fault]
        if self.other is not None:
            verdict = "within" if self.other <= TOLERANCE else "NOT within"
            lines += [f"Gone on with by another number of processes, the weights differ by {self.other:.1e} at most, "
                      f"{verdict} {TOLERANCE:g}."]  # fmt: skip
        lines += [f"{'All holds' if self.holds else 'NOT all holds'}, in {self.seconds:,.0f} seconds."]
        return "\n".join(lines)


class Reference(NamedTuple):
    """The uninterrupted run."""

    folder: RunFolder
    digests: Mapping[int, str]


def selftest(
    kills: int,
    *,
    processes: int = 1,
    flags: Sequence[str] = (),
    seed: int = 0,
    home: Path | None = None,
    updates: int = UPDATES,
    progress: bool | None = None,
) -> Outcome:
    """Do what the module's text says.

    processes:  that train together, with `torchrun`; one of them, or all, are killed.
    flags:      further ones of `companion train` where several processes train, see `how_together`.
    seed:       of the moments.
    home:       where the runs are kept; `None`: in a temporary folder, which is removed if all holds.
    progress:   show a bar; `None`: if standard error is a terminal.

    Raises `ValueError` for bad numbers, `flags` with a single process and a `home` that is not empty, and
    `RuntimeError` when training itself fails.
    """
    if kills < 1:
        raise ValueError(f"--kills {kills}: expected a whole number >= 1")
    if processes < 1:
        raise ValueError(f"--processes {processes}: expected a whole number >= 1")
    if flags and processes == 1:
        raise ValueError(f"{' '.join(flags)}: expected --processes 2 or more beside it, got one process")
    if home is not None and home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise ValueError(f"--out {home}: expected a new or empty folder, found something there")
    made = Path(tempfile.mkdtemp(prefix="companion-selftest-")) if home is None else home
    made.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    outcome = _Test(made, processes, updates, flags, random.Random(seed), progress).run(kills)
    outcome.seconds = round(time.monotonic() - began, 1)
    if home is None and outcome.holds:
        shutil.rmtree(made)
    elif not outcome.holds:
        print(f"what was found is kept in {made}", file=sys.stderr)
    return outcome


def how_together(processes: int, *, shard: bool, expert_parallel: int | None) -> list[str]:
    """The flags of `companion train` that say how several processes share the work; none: each does all of it.

    Raises `ValueError` when the processes, or the experts of the model that is trained, cannot be shared out so.
    """
    flags = ["--shard"] if shard else []
    if expert_parallel is not None:
        if expert_parallel < 2 or EXPERTS % expert_parallel:
            raise ValueError(
                f"--expert-parallel {expert_parallel}: expected 2 or more, a divisor of the {EXPERTS} experts of the "
                "model that is trained"
            )
        if processes > 1 and processes % expert_parallel:
            raise ValueError(
                f"--expert-parallel {expert_parallel}: expected a divisor of the number of --processes, {processes}"
            )
        flags += ["--expert-parallel", str(expert_parallel)]
    return flags


class _Test:
    def __init__(
        self,
        home: Path,
        processes: int,
        updates: int,
        flags: Sequence[str],
        moments: random.Random,
        progress: bool | None,
    ) -> None:
        self.home, self.processes, self.updates, self.moments = home, processes, updates, moments
        self.flags, self.progress = flags, progress
        self.text = home / "text"
        self.text.mkdir(exist_ok=True)
        for name in ("Ada", "Blaise", "Carl", "Emmy", "Grace", "Kurt", "Sofya", "Srinivasa"):
            (self.text / f"{name}.txt").write_text(_story(name), "utf-8")

    def run(self, kills: int) -> Outcome:
        outcome = Outcome(self.processes, self.updates)
        bar = tqdm(
            total=kills + 2,
            disable=None if self.progress is None else not self.progress,
            bar_format="{n_fmt}/{total_fmt} |{bar}| {desc}, {remaining} left",
        )
        with bar:
            bar.set_description_str("the uninterrupted run")
            reference = self.uninterrupted()
            bar.update()
            alive = [1, 2] if kills > 3 else [1]  # odd numbers save after every update
            begun, furthest, copy = 2, 0, self.folder(0)
            while len(outcome.kills) < kills:
                number = alive[len(outcome.kills) % len(alive)]
                bar.set_description_str(f"run {number}")
                kill = self.life(number, reference)
                if kill is None:
                    outcome.runs[number] = self.differences(number, reference)
                    begun += 2 if (begun + number) % 2 == 0 else 1
                    alive[alive.index(number)] = begun
                    continue
                outcome.kills.append(kill)
                bar.update()
                # Another number of processes will go on with the longest that has not come to its end.
                if self.processes > 1 and not kill.fault and furthest < (kill.checkpoint or 0) < self.updates:
                    furthest = kill.checkpoint or 0
                    shutil.rmtree(copy.path, ignore_errors=True)
                    shutil.copytree(self.folder(number).path, copy.path)
            for number in alive:
                if self.folder(number).path.exists():
                    bar.set_description_str(f"run {number}, to its end")
                    self.finish(self.folder(number), self.processes)
                    outcome.runs[number] = self.differences(number, reference)
            if furthest:
                bar.set_description_str("one process goes on")
                self.finish(copy, 1)
                outcome.other = _largest_difference(copy, reference.folder)
            bar.update()
        return outcome

    def folder(self, number: int) -> RunFolder:
        return RunFolder(self.home / (f"run-{number}" if number else "run-by-one-process"))

    def command(self, run: RunFolder, plan: Plan, processes: int, often: bool) -> list[str]:
        """The same for every life of a run, but for the plan. often: save after every update."""
        several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        return [
            sys.executable, *(several if processes > 1 else []), "-m", "companion.selftest.victim",
            json.dumps(asdict(plan)),
            "train", "--data", str(self.text), "--out", str(run.path), "--steps", str(self.updates),
            "--d-model", "32", "--layers", "2", "--heads", "2", "--kv-heads", "1", "--context", "32", "--vocab", "300",
            "--experts", str(EXPERTS), "--batch", str(max(4, processes)), "--accumulate", "2", "--dropout", "0.1",
            "--warmup", "5", "--device", "cpu", *(["--save-seconds", "0"] if often else []),
            *(self.flags if processes > 1 else []),
        ]  # fmt: skip

    def start(self, run: RunFolder, plan: Plan, processes: int, often: bool = False) -> subprocess.Popen[bytes]:
        shutil.rmtree(plan.notes, ignore_errors=True)
        Path(plan.notes).mkdir()
        environment = {"OMP_NUM_THREADS": "1", **os.environ}  # so few numbers gain nothing from more
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        with open(self.home / f"{run.path.name}.txt", "ab") as said:
            return subprocess.Popen(
                self.command(run, plan, processes, often),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the self-test alone
            )

    def finish(self, run: RunFolder, processes: int, witness: bool = False) -> None:
        """Let a run come to its end."""
        process = self.start(run, Plan(str(self.home / "notes"), witness), processes)
        if self.ended(process) != 0:
            said = (self.home / f"{run.path.name}.txt").read_text("utf-8", "replace").strip().splitlines()
            raise RuntimeError(f"training in {run.path} failed with exit code {process.returncode}: {said[-1:]}")

    def ended(self, process: subprocess.Popen[bytes]) -> int | None:
        """The exit code of a process that should end now; `None` if it hung, and had to be killed."""
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill(process)
            process.wait()
            return None

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill `process` and all that train for it. torchrun starts each in a group of its own, which would live on."""
        for file in (self.home / "notes").glob("pid-*"):
            _kill(int(file.read_text()))
        _kill(process.pid)

    def uninterrupted(self) -> Reference:
        run = RunFolder(self.home / "whole")
        self.finish(run, self.processes, witness=True)
        lines = (self.home / "notes" / "digests").read_text().splitlines()
        shutil.copy(self.home / "notes" / "digests", self.home / "digests")
        return Reference(run, {int(number): digest for number, digest in map(str.split, lines)})

    def life(self, number: int, reference: Reference) -> Kill | None:
        """Let a run live until a random moment; `None` if it came to its end before."""
        run, often = self.folder(number), number % 2 == 1
        each = 16 if often else 4  # file operations for an update, about
        delay = self.moments.choice([0.0, self.moments.uniform(0.0, 0.1)])
        # Mostly a quarter of the run; one in four dies early, while the folder is made or gone on with.
        latest = 12 if self.moments.random() < 0.25 else each * self.updates // 4
        several = self.processes > 1 and self.moments.random() < 0.5
        plan = Plan(str(self.home / "notes"), number=self.moments.randint(1, latest), wait=delay > 0 or several)
        victim = self.moments.choice(["all", *range(self.processes)]) if several else "all" if plan.wait else 0
        process = self.start(run, plan, self.processes, often)
        moment = Path(plan.notes) / "moment"
        if plan.wait:
            deadline = time.monotonic() + PATIENCE
            while process.poll() is None and not moment.exists() and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(delay)
            if process.poll() is None:
                if victim == "all":
                    self.kill(process)
                else:
                    _kill(int((Path(plan.notes) / f"pid-{victim}").read_text()))
        fault = "" if self.ended(process) is not None else "the processes that were left hung"
        if process.returncode == 0:
            return None
        if not moment.exists():
            raise RuntimeError(f"training in {run.path} failed with exit code {process.returncode} and was not killed")
        done, wrong = self.left(run, reference)
        who = "all" if victim == "all" else f"rank {victim}" if self.processes > 1 else ""
        return Kill(number, moment.read_text(), delay, "" if self.processes == 1 else who, done, fault or wrong)

    def left(self, run: RunFolder, reference: Reference) -> tuple[int | None, str]:
        """What a kill left: the updates done, and what is wrong with it."""
        last = run.checkpoint()
        if last is None:
            return None, ""
        try:
            saved = run.checkpoints.load(last)
        except ValueError as error:
            return None, str(error)
        same = digest(saved.weights) == reference.digests.get(saved.done)
        return saved.done, "" if same else "NO"

    def differences(self, number: int, reference: Reference) -> str:
        """In what a finished run differs from the uninterrupted one."""
        run = self.folder(number)
        last, whole = _last(run), _last(reference.folder)
        parts = {
            "the weights": digest(last.weights) == digest(whole.weights) == reference.digests[self.updates],
            "the optimizer": digest(last.optimizer) == digest(whole.optimizer),
            "the log": _log(run) == _log(reference.folder),
            "the result": run.result() == reference.folder.result(),
        }
        wrong = [name for name, same in parts.items() if not same]
        return f"{', '.join(wrong)} differ" if wrong else ""


def _last(run: RunFolder) -> Saved:
    last = run.checkpoint()
    if last is None:
        raise ValueError(f"{run.path}: expected a finished run, found no checkpoint")
    return run.checkpoints.load(last)


def _log(run: RunFolder) -> list[dict[str, Any]]:
    return [{name: value for name, value in entry.items() if name not in MACHINE_FIELDS} for entry in run.entries()]


def _largest_difference(run: RunFolder, other: RunFolder) -> float:
    these, those = _last(run).weights, _last(other).weights
    return max(float((these[name] - those[name]).abs().max()) for name in those)


def _kill(number: int) -> None:
    """Kill one process, which may be gone already."""
    with suppress(ProcessLookupError):
        os.kill(number, KILL)


def _story(name: str) -> str:
    places = ("sea", "hill", "old mill", "town", "library")
    lines = [f"{name} walked {i} miles to the {place}, and {i + 1} back." for i in range(9) for place in places]
    return f"The walks of {name}\n\n" + "\n".join(lines) + "\n"
