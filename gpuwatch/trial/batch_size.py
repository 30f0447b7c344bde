"""`gpuwatch tune batch-size`: a program run with one batch size after another, and which size is worth it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gpuwatch import numbers
from gpuwatch.text import aligned, code_span, markdown, markdown_table, printable
from gpuwatch.trial.changes import BATCH_SIZE, PLACEHOLDER, Arm, Change, Place, TrialError
from gpuwatch.trial.experiment import ineffective, loader_place, nothing_to_compare
from gpuwatch.trial.render import SCHEMA_VERSION, speed_words
from gpuwatch.trial.results import RunResult
from gpuwatch.trial.tuning import Narrator, Runs
from gpuwatch.tune import LARGEST, MEMORY_SHARE, SAME_SPEED, Tried, best, next_size

FIRST_SIZE = 8
"""Of a command that takes the size, without --start."""

Outcome = Literal["passed", "too much memory", "out of memory", "failed"]


@dataclass(frozen=True, slots=True)
class SizeRun:
    """One size, what came of it, and the memory it took at its peak as a share of what there is, where known."""

    size: int
    outcome: Outcome
    run: RunResult
    memory_share: float | None

    @property
    def samples_per_second(self) -> float | None:
        """Its speed; None where no run gives one."""
        return self.run.steady.samples_per_second if self.run.steady is not None else None

    @property
    def step_seconds(self) -> float | None:
        """The mean training time of a step."""
        steady = self.run.steady
        return 1.0 / steady.steps_per_second if steady is not None and steady.steps_per_second > 0 else None

    @property
    def tried(self) -> Tried:
        """As the search takes it."""
        return Tried(self.size, self.outcome == "passed", self.samples_per_second)


@dataclass(slots=True)
class SizeSearch:
    """The search.

    Args:
        command: the program; its `{}`, where it has one, takes the size, else the hook sets that of the DataLoader.
        start: the first size; None: the program's own, or 8 where the command takes the size.
        most: the largest size.
        budget_bytes: the memory of the host that a run may take; None: as much as there is.
        target_percent: the utilization to reach, if it is asked for.
        has_time: whether one more run fits into the time.
    """

    command: Sequence[str]
    start: int | None = None
    most: int = LARGEST
    budget_bytes: float | None = None
    target_percent: float | None = None
    has_time: Callable[[], bool] = lambda: True
    runs: list[SizeRun] = field(default_factory=list)
    own_size: int | None = None
    place: Place | None = None
    interrupted: bool = False
    ran_out: bool = False

    @property
    def takes_argument(self) -> bool:
        """Whether the command is given the size."""
        return any(PLACEHOLDER in word for word in self.command)

    def perform(self, runs: Runs, narrator: Narrator) -> None:
        """Makes the runs, up to the end, the end of the time or the user's wish.

        Raises:
            TrialError: the program fails whatever its batch size, or its batch size cannot be set.
        """
        start = self.start or FIRST_SIZE
        if not self.takes_argument:
            first = self._made(Arm(), runs, narrator)
            if first is None:
                return
            start = self._own(first)
        while (size := next_size([each.tried for each in self.runs], start, self.most)) is not None:
            arm = Arm((Change(PLACEHOLDER if self.takes_argument else BATCH_SIZE, size),))
            run = self._made(arm, runs, narrator)
            if run is None:
                return
            self._check_effect(arm, run)
            self._add(size, run)

    @property
    def on_gpu(self) -> bool:
        """Whether the GPU's memory is the one that counts."""
        return any(_trains_on_gpu(each.run) for each in self.runs)

    @property
    def recommended(self) -> SizeRun | None:
        """The smallest size that is fast enough, or reaches the utilization that is asked for."""
        reaching = [each for each in self.fitting if self.target_percent is not None and self._reaches(each)]
        if reaching:
            return min(reaching, key=lambda each: each.size)
        found = best([each.tried for each in self.runs])
        return next((each for each in self.runs if found is not None and each.size == found.size), None)

    @property
    def fitting(self) -> list[SizeRun]:
        """Those that passed."""
        return [each for each in self.runs if each.outcome == "passed"]

    @property
    def own(self) -> SizeRun | None:
        """The run with the program's own size, where it has one."""
        return next((each for each in self.runs if each.size == self.own_size), None)

    def _reaches(self, each: SizeRun) -> bool:
        return (each.run.usage.utilization_percent or 0.0) >= (self.target_percent or 0.0)

    def _made(self, arm: Arm, runs: Runs, narrator: Narrator) -> RunResult | None:
        if not self.has_time():
            self.ran_out = True
            return None
        made = len(self.runs)
        run = runs.run(arm, self.place, made, narrator.begins(arm, made + 1))
        narrator.ended(run)
        if run.interrupted:
            self.interrupted = True
            return None
        if run.failure is not None and not run.failure.out_of_memory and not self.runs:
            raise nothing_to_compare(run.failure)
        return run

    def _own(self, first: RunResult) -> int:
        """Takes up the run with the program's own size, and returns the size to begin with."""
        loader = first.loader
        size = loader.batch_size if loader is not None else None
        if loader is None or size is None:
            why = "no DataLoader was read in training" if loader is None else "its DataLoader has no batch size"
            raise TrialError(f"{why}: write {{}} in the command where it takes the batch size, as in --batch-size {{}}")
        self.place = loader_place(first)
        self.own_size = size
        if loader.batches_per_epoch is not None:
            self.most = min(self.most, max(size, (loader.batches_per_epoch - 1) * size))
        if self.start is None or self.start == size:
            self._add(size, first)
        return self.start or size

    def _add(self, size: int, run: RunResult) -> None:
        share = self._memory_share(run)
        failure = run.failure
        outcome: Outcome
        if failure is not None:
            outcome = "out of memory" if failure.out_of_memory else "failed"
        elif run.usage.out_of_memory_count:
            outcome = "out of memory"  # which the program caught
        else:
            outcome = "passed" if share is None or share <= MEMORY_SHARE else "too much memory"
        self.runs.append(SizeRun(size, outcome, run, share))

    def _memory_share(self, run: RunResult) -> float | None:
        usage = run.usage
        if _trains_on_gpu(run):
            total, used = usage.gpu_total_bytes, usage.gpu_used_bytes
            return used / total if used is not None and total else None
        return usage.host_bytes / self.budget_bytes if usage.host_bytes and self.budget_bytes else None

    def _check_effect(self, arm: Arm, run: RunResult) -> None:
        if run.failure is not None:
            return
        missing = ineffective(arm, run)
        if missing:
            raise TrialError(
                f"the batch size did not take effect: {missing[0][1]}; write {{}} in the command where it takes "
                "the batch size, as in --batch-size {}"
            )
        before = next((each.run.loader for each in self.runs if each.run.loader is not None), None)
        loader = run.loader
        if before is not None and loader is not None and before.batch_size == loader.batch_size is not None:
            raise TrialError(
                f"the batch size did not take effect: the DataLoader's is {loader.batch_size} whatever the command "
                "says; check where its {} stands"
            )


def _trains_on_gpu(run: RunResult) -> bool:
    return run.facts is not None and (run.facts.device or "").startswith("cuda")


def headline(search: SizeSearch) -> str:
    """The outcome in one sentence."""
    return f"{_outcome(search)}{_incomplete(search)}"


def _outcome(search: SizeSearch) -> str:
    found, own = search.recommended, search.own
    if found is None:
        smallest = min((each.size for each in search.runs), default=None)
        return "no batch size was measured" if smallest is None else f"no batch size fits, not even {smallest}"
    speed = f"{speed_words(found.samples_per_second)} samples/s{_share_words(search, found)}"
    if own is None or own.samples_per_second is None or found.samples_per_second is None:
        return f"batch size {found.size}: {speed}"
    if found is own:
        return f"keep batch size {own.size}, {speed}: no size that fits is faster by more than {100 * SAME_SPEED:g}%"
    ratio = found.samples_per_second / own.samples_per_second
    before = f"the {speed_words(own.samples_per_second)} samples/s of batch size {own.size}"
    return f"batch size {found.size}: {speed}, {ratio:.{2 if ratio < _FAR else 1}f}x of {before}"


def _share_words(search: SizeSearch, each: SizeRun) -> str:
    if each.memory_share is None:
        return ""
    return f", {100 * each.memory_share:.0f}% of {_MEMORY_OF_GPU if search.on_gpu else 'the memory budget'}"


_MEMORY_OF_GPU = "the GPU's memory"


def _incomplete(search: SizeSearch) -> str:
    if search.interrupted:
        return " (INCOMPLETE: stopped before its end)"
    return " (INCOMPLETE: the budget was used up)" if search.ran_out else ""


_HEADING = ("batch size", "samples/s", "step", "utilization", "memory", "of torch: reserved", "allocated", "outcome")


def _row(each: SizeRun, *, on_gpu: bool) -> tuple[str, ...]:
    usage = each.run.usage
    memory = usage.gpu_used_bytes if on_gpu else usage.host_bytes
    failure = each.run.failure
    return (
        str(each.size),
        speed_words(each.samples_per_second),
        "-" if each.step_seconds is None else numbers.seconds(each.step_seconds),
        "-" if usage.utilization_percent is None else f"{usage.utilization_percent:.0f}%",
        _bytes(memory) + ("" if each.memory_share is None else f" ({100 * each.memory_share:.0f}%)"),
        _bytes(usage.reserved_bytes),
        _bytes(usage.allocated_bytes),
        failure.reason if failure is not None else each.outcome,
    )


def _bytes(count: int | None) -> str:
    return "-" if count is None else numbers.byte_size(count)


def _rows(search: SizeSearch) -> list[tuple[str, ...]]:
    """By size, without the columns of which nothing is known."""
    rows = [_row(each, on_gpu=search.on_gpu) for each in sorted(search.runs, key=lambda each: each.size)]
    kept = [place for place in range(len(_HEADING)) if any(row[place] != "-" for row in rows)]
    return [tuple(row[place] for place in kept) for row in (_HEADING, *rows)]


def _sentences(search: SizeSearch) -> list[str]:
    found, own = search.recommended, search.own
    if found is None:
        return []
    sentences = []
    if search.target_percent is not None and not search._reaches(found):
        highest = max((each.run.usage.utilization_percent or 0.0 for each in search.fitting), default=0.0)
        known = any(each.run.usage.utilization_percent is not None for each in search.fitting)
        reached = f"the highest is {highest:.0f}%" if known else "no GPU reports its utilization"
        sentences.append(f"No size reaches a utilization of {search.target_percent:g}%: {reached}")
    if own is not None and found.size != own.size:
        sentences.append(_effect(found.size / own.size))
        where = "" if search.place is None else f" It is built at {_shown(search.place)}."
        sentences.append(f"To change: the DataLoader's batch_size, {own.size} -> {found.size}.{where}")
    if search.takes_argument:
        words = [word.replace(PLACEHOLDER, str(found.size)) for word in search.command]
        sentences.append(f"To change: {' '.join(words)}")
    beyond = [each for each in search.runs if each.size > found.size and each.outcome != "passed"]
    if beyond and max(search.fitting, key=lambda each: each.size) is found:
        first = min(beyond, key=lambda each: each.size)
        if first.outcome != "failed":
            sentences.append(
                f"Memory stops it: {first.size} needs too much. For more samples per update, accumulate the gradients "
                "of several steps; that brings no samples/s"
            )
    elif found is own:
        sentences.append("If the GPU waits for data at every size, `gpuwatch tune` looks for what to change")
    sentences.append(f"One run per size: speeds that differ by less than {100 * SAME_SPEED:g}% count as equal")
    return sentences


def _shown(place: Place) -> str:
    path, here = Path(place[0]), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{place[1]}"


def _effect(factor: float) -> str:
    """What another batch size does to the optimization: Goyal et al. 2017 for SGD, Malladi et al. 2022 for Adam."""
    changed = f"It changes what is learned: {factor:.3g}x the samples per step, 1/{factor:.3g} of the steps per epoch"
    if not 1 / _FAR <= factor <= _FAR:
        return f"{changed}. No rule for the learning rate holds so far: compare the validation loss of sizes between"
    return (
        f"{changed}. Usual learning rates to begin with: {factor:.3g}x for SGD, {math.sqrt(factor):.2g}x for Adam, "
        "with a warm-up; compare the validation loss"
    )


_FAR = 8.0
"""Times: SGD kept its accuracy with 8192 samples instead of 256 only by a long warm-up (Goyal et al. 2017)."""


def render_text(search: SizeSearch) -> str:
    """For a terminal."""
    rows = [tuple(map(printable, row)) for row in _rows(search)]
    last = len(rows[0]) - 1
    lines = [printable(" ".join(search.command)), "", *(f"  {line}" for line in aligned(rows, range(last)))]
    lines += ["", f"Result: {printable(headline(search))}", *map(printable, _sentences(search))]
    return "\n".join(lines) + "\n"


def render_markdown(search: SizeSearch) -> str:
    """For a pull request: the result first."""
    head, *rows = _rows(search)
    lines = [f"### gpuwatch tune batch-size: {markdown(headline(search))}", "", code_span(" ".join(search.command)), ""]
    lines += [markdown_table([*head], [[*map(markdown, row)] for row in rows]), ""]
    lines += [f"- {markdown(sentence)}" for sentence in _sentences(search)]
    return "\n".join(lines).rstrip() + "\n"


def document(search: SizeSearch, version: str) -> dict[str, Any]:
    """All of it as JSON; `version` is gpuwatch's."""
    found = search.recommended
    return {
        "gpuwatch": {"version": version, "schema": SCHEMA_VERSION, "incomplete": search.interrupted or search.ran_out},
        "batch_size": {
            "command": list(search.command),
            "own": search.own_size,
            "recommended": None if found is None else found.size,
            "target_utilization_percent": search.target_percent,
            "memory_budget_bytes": search.budget_bytes,
        },
        "sizes": [_size(each) for each in sorted(search.runs, key=lambda each: each.size)],
        "notes": _sentences(search),
    }


def _size(each: SizeRun) -> dict[str, Any]:
    usage, failure = each.run.usage, each.run.failure
    return {
        "size": each.size,
        "outcome": each.outcome,
        "reason": failure.reason if failure is not None else None,
        "samples_per_second": each.samples_per_second,
        "step_seconds": each.step_seconds,
        "utilization_percent": usage.utilization_percent,
        "memory_share": each.memory_share,
        "gpu_used_bytes": usage.gpu_used_bytes,
        "reserved_peak_bytes": usage.reserved_bytes,
        "allocated_peak_bytes": usage.allocated_bytes,
        "host_peak_bytes": usage.host_bytes,
    }
