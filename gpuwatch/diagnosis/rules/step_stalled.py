"""Training has stopped making steps.

Means:
    The process lives, its GPU idles, and no step comes: a dead or deadlocked DataLoader worker, storage that does not
    answer, a full /dev/shm, or a lock.
Evidence:
    No step for 60 s or ten of the slowest steps, GPU utilization below 5%, the process tree uses less than a tenth of
    a core and reads or writes less than 100 kB/s, process alive. Where stacks can be read, the line it is at, and since
    when; without a hook it must be there for 60 s. In an evaluation, a save or a compilation the same must hold for
    five minutes, with its stack in that phase.
Fires:
    All of that holds in two evaluations. Where neither its stack nor its processes show what it waits for, it may have
    left its loop, or be at a breakpoint: information at first, a warning after a quarter of an hour.
Clears:
    A step arrives.
Not when:
    A known phase (evaluation, checkpoint, compilation) of less than five minutes, a process that computes, reads or
    writes, a program that has left its training loop, a breakpoint, a prompt or a sleep that its line asks for, a
    process stopped by SIGSTOP: that one is shown as stopped.
Causes:
    The training thread waits for its loader: dead workers or full shared memory. It is blocked in a read: storage. It
    is at a line of its own: a lock, a debugger, the network.
Fix:
    By what the process shows: missing or dead workers, blocked reads, or the line it is at; DataLoader(timeout=120)
    turns a silent wait for a worker into an error.
Gain:
    It cannot be computed: until this is fixed the run makes no progress at all.
Verify:
    Steps resume.
Source:
    pytorch#1355; GCM's 300 s in state D.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.fixes import place_of
from gpuwatch.diagnosis.advice.lines import MAKING, HotLine, hottest_of_workers, place
from gpuwatch.diagnosis.advice.progress import (
    MOST_NAMED,
    SilenceThresholds,
    Stand,
    current_line_measures,
    is_unseen_long,
    silence_measure,
    silent_seconds,
    stands,
    stuck_phase,
)
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import seconds
from gpuwatch.timeline.windows import RankWindow

LOADER_TIMEOUT_SECONDS = 120
WORKERS_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Thresholds(SilenceThresholds):
    idle_percent: float = threshold(5.0, "utilization of an idle GPU")
    idle_cores: float = threshold(0.1, "that an idle process tree uses")
    idle_bytes_per_second: float = threshold(100_000.0, "that an idle process tree reads or writes")


@rule("step-stalled", family="hang", subject="run", level=Level.E1, gated=False, thresholds=Thresholds)
def step_stalled(case: RunCase, limits: Thresholds) -> Draft | None:
    stall = _stall(case, limits)
    if stall is None or not _idle(case, limits):
        return None
    found = stands(case)
    known = _cause(case, found)
    cause, fix = known or _unseen(case)
    loader = case.run.critical.train_loader
    waits_for_workers = bool(loader and loader.num_workers and (not found or found[0].line.phase == "wait"))
    file, line = _place(found) or place_of(loader)
    return Draft(
        summary=f"{case.run.title} has {stall.words} and does nothing: {cause}",
        severity=stall.severity if known else _severity_unseen(stall.silence),
        level=Level.E2 if case.run.critical.facts.visibility == "exact" else Level.E1,
        evidence=(
            stall.measure,
            *current_line_measures(found),
            *_workers_measure(found),
            *_idle_measures(case),
        ),
        fix=Fix(
            text=fix,
            code=f"DataLoader(..., timeout={LOADER_TIMEOUT_SECONDS})" if waits_for_workers else None,
            file=file,
            line=line,
            value=LOADER_TIMEOUT_SECONDS if waits_for_workers else None,
        ),
        ruled_out=(
            RuledOut("a stopped process", "its state is not T"),
            *stall.ruled_out,
        ),
        verify="Steps resume",
        chart=("run.step_seconds", "gpu.utilization_percent"),
    )


@dataclass(frozen=True, slots=True)
class _Stall:
    """Since when the run makes no steps: "made no step for 2 min", "been evaluating for 6 min"."""

    words: str
    measure: Measure
    severity: Severity
    ruled_out: tuple[RuledOut, ...] = ()
    silence: float = 0.0


def _stall(case: RunCase, limits: Thresholds) -> _Stall | None:
    silence = silent_seconds(case, limits.silence_seconds)
    if silence is not None:
        measure, no_phase = silence_measure(case, silence), RuledOut("an evaluation or checkpoint", "none is open")
        return _Stall(f"made no step for {seconds(silence)}", measure, Severity.CRITICAL, (no_phase,), silence)
    phase = stuck_phase(case)
    if phase is None:
        return None
    said = f"{phase[0]} for {seconds(phase[1])}"
    return _Stall(f"been {said}", Measure("phase_seconds", round(phase[1], 1), said), Severity.WARNING)


def _idle(case: RunCase, limits: Thresholds) -> bool:
    """Whether nothing moves: no GPU, no core, no byte. A busy process may be in a long step or save a checkpoint."""
    processes = [rank.process for rank in case.run.ranks if rank.process]
    cores = [process.tree_cores_lately for process in processes if process.tree_cores_lately is not None]
    rates = [each.latest.read_bytes_per_second for each in processes]
    rates += [each.latest.write_bytes_per_second for each in processes]
    if any(value >= limits.idle_cores for value in cores):
        return False
    if any(value is not None and value >= limits.idle_bytes_per_second for value in rates):
        return False
    if case.gpus:
        readings = [gpu.latest.utilization_percent for gpu in case.gpus if gpu.latest]
        return bool(readings) and all(value is not None and value < limits.idle_percent for value in readings)
    return bool(cores) and len(cores) == len(processes)


def _cause(case: RunCase, found: tuple[Stand, ...]) -> tuple[str, str] | None:
    """What it waits for, in words, and what to do; None where neither its processes nor its stack show that."""
    where = f"; it is at {found[0].words}" if found else ""
    for rank in case.run.ranks:
        process = rank.process.latest if rank.process else None
        # In an evaluation the training loader's workers may have ended with their epoch.
        expected = rank.train_loader.num_workers if rank.train_loader and rank.open_phase is None else None
        if process is None:
            continue
        dead = [worker.pid for worker in process.workers if worker.state in ("Z", "X")]
        if dead or (expected and len(process.workers) < expected):
            gone = len(dead) or (expected or 0) - len(process.workers)
            of_all = f"{gone} of its {expected}" if expected else f"{gone} of its"
            return (
                f"{of_all} DataLoader workers {'is' if gone == 1 else 'are'} gone",
                "See the kernel log for an out-of-memory kill, then restart; a timeout turns this wait into an error"
                + where,
            )
        if process.state == "D" or any((worker.blocked_share or 0) >= 0.5 for worker in process.workers):
            return (
                "it is blocked in a read or write",
                f"Check the storage or network file system that holds the data{where}",
            )
        if process.shm_total_bytes and (process.shm_used_bytes or 0) >= 0.95 * process.shm_total_bytes:
            return (
                "/dev/shm is full",
                "Give the container more shared memory (--shm-size) or lower prefetch_factor" + where,
            )
    return _stands(case, found) if found else None


def _unseen(case: RunCase) -> tuple[str, str]:
    """The same words where its stack cannot be read: it may hang, or have left its loop, or wait for its user."""
    look = f"Look at its stack: gpuwatch stacks {case.run.critical.facts.pid}"
    return "it hangs or waits for something that is not visible from outside", look


def _severity_unseen(silence: float) -> Severity:
    return Severity.WARNING if is_unseen_long(silence) else Severity.INFO


def _stands(case: RunCase, found: tuple[Stand, ...]) -> tuple[str, str]:
    chief = found[0]
    who = f"{chief.who} " if len(case.run.ranks) > 1 else "it "
    others = "".join(f"; {stand.who} on {stand.words}" for stand in found[1:MOST_NAMED])
    at = f"{who}is at {place(chief.line.file, chief.line.line)}"
    line = _workers_line(chief.rank) if chief.line.phase == "wait" else None
    if line is None:
        return at, f"See what that line waits for: {chief.words}{others}"
    return (
        f"{at} and waits for workers that are at {line.place}",
        f"See what its workers are stuck at: {line.words}; the training thread is at {chief.words}{others}",
    )


def _workers_line(rank: RankWindow) -> HotLine | None:
    """The line that workers spend most of the last minute on."""
    line = hottest_of_workers(rank.stacks, *MAKING)
    return line if line is not None and line.share.value >= WORKERS_SHARE else None


def _place(found: tuple[Stand, ...]) -> tuple[str | None, int | None] | None:
    """The workers' line where they are what is waited for, else the line the run stands on."""
    if not found:
        return None
    line = _workers_line(found[0].rank) if found[0].line.phase == "wait" else None
    return (line.file, line.line) if line is not None else (found[0].line.file, found[0].line.line)


def _workers_measure(found: tuple[Stand, ...]) -> tuple[Measure, ...]:
    line = _workers_line(found[0].rank) if found and found[0].line.phase == "wait" else None
    return () if line is None else (line.measure("hot_line", "the workers' time"),)


def _idle_measures(case: RunCase) -> tuple[Measure, ...]:
    gpus = [
        Measure(
            f"gpu_{gpu.facts.index}_utilization_percent",
            gpu.latest.utilization_percent,
            f"GPU {gpu.facts.index} {gpu.latest.utilization_percent:.0f}% busy",
        )
        for gpu in case.gpus
        if gpu.latest is not None and gpu.latest.utilization_percent is not None
    ]
    used = [rank.process.tree_cores_lately for rank in case.run.ranks if rank.process]
    cores = [
        Measure("tree_cores", round(each, 2), f"{each:.2f} cores in use in the last 30 s")
        for each in used
        if each is not None
    ]
    return (*gpus, *cores)
