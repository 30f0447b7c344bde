"""Training has not produced a steady step yet.

Means:
    The job holds its GPU and has not begun to train: it compiles, downloads, indexes its dataset, or waits for other
    ranks.
Evidence:
    How long the process has been running, whether steps have settled (ten of them, the last five within 20% of the
    five before), and what it does meanwhile: a known phase, or the line its training thread is at.
Fires:
    No steady step after ten minutes; a warning from twenty.
Clears:
    Steps are steady.
Not when:
    It holds no GPU: a job that only prepares data costs none. For a process attached to from outside the ten minutes
    count from then on, because earlier steps were not seen; and nothing is reported where neither hook nor stacks show
    steps.
Causes:
    Compilation, a download, a scan of the dataset, or the start of NCCL, as shown by a phase or the stacks.
Fix:
    Keep what is made at the start: TORCHINDUCTOR_CACHE_DIR on a disk that lasts, the dataset's index, the model.
Gain:
    None for the steps: the job starts sooner.
Verify:
    Steady steps within ten minutes.
Source:
    SageMaker debugger's MaxInitializationTime (20 min), torch's notes on compile time.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.lines import quoted
from gpuwatch.diagnosis.advice.sampled import is_sampled
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped, seconds
from gpuwatch.timeline.windows import RankWindow

MOST_STEPS = 100


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_seconds: float = threshold(600.0, "without a steady step: reported from here on")
    warning_seconds: float = threshold(1200.0, "a warning from here on", bounded_by="fire_seconds")


@rule("warmup-long", family="phases", subject="run", level=Level.E1, gated=False, thresholds=Thresholds)
def warmup_long(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    waited = _waited_seconds(rank)
    if rank.warm or rank.steps_total >= MOST_STEPS or waited is None or waited < limits.fire_seconds:
        return None
    if not (rank.facts.gpu_uuids or case.gpus or rank.facts.device == "cuda"):
        return None
    doing = _doing(rank)
    return Draft(
        summary=f"No steady step after {seconds(waited)}" + (f": {doing}" if doing else ""),
        severity=Severity.WARNING if waited >= limits.warning_seconds else Severity.INFO,
        level=Level.E1,
        evidence=(
            Measure("waited_seconds", round(waited, 1), f"no steady step for {seconds(waited)}"),
            Measure("steps_total", rank.steps_total, f"{grouped(rank.steps_total)} steps so far"),
            *((Measure("doing", doing, doing),) if doing else ()),
        ),
        fix=_fix(rank),
        hint="no speedup of the steps: the job starts sooner",
        verify="Steady steps within ten minutes",
    )


def _waited_seconds(rank: RankWindow) -> float | None:
    if rank.facts.visibility == "exact":
        return rank.process.latest.age_seconds if rank.process else None
    return rank.watched_seconds if is_sampled(rank) and rank.stacks is not None else None


def _doing(rank: RankWindow) -> str | None:
    if rank.open_phase is not None:
        return f"it is in the phase {rank.open_phase.kind}"
    current_line = rank.stacks.current_line if rank.stacks is not None else None
    if current_line is None:
        return None
    return f"it is at {quoted(current_line.file, current_line.line, current_line.text)} ({current_line.phase})"


def _fix(rank: RankWindow) -> Fix:
    current_line = rank.stacks.current_line if rank.stacks is not None else None
    compiles = (current_line is not None and current_line.phase == "compile") or (
        rank.open_phase is not None and rank.open_phase.kind == "compile"
    )
    file, line = (current_line.file, current_line.line) if current_line is not None else (None, None)
    if compiles:
        text = "Keep what is compiled for the next start: the cache on a disk that outlasts the job"
        return Fix(text=text, code="TORCHINDUCTOR_CACHE_DIR=/path/that/stays", file=file, line=line)
    text = "Keep what the start makes for the next one: the dataset's index, downloads, the compiler's cache"
    return Fix(text=text, file=file, line=line)
