"""What stacks say of a run, as parts of the report: shares with their intervals, lines of code, where it stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuwatch.report.observation import Json, figure
from gpuwatch.samples import Standing
from gpuwatch.text.escape import encodable
from gpuwatch.timeline.hot_line import hot_line
from gpuwatch.timeline.windows import LineShare, RankWindow, Share, StackWindow

STANDS_FROM_SECONDS = 5.0
"""On one line for less is no news: a slow backward pass stands there for a second or two."""

LONGEST_CODE = 400
"""Generated code has lines of megabytes."""


def stack_section(stacks: StackWindow | None) -> Json | None:
    """All that was sampled of one trainer in the window."""
    if stacks is None:
        return None
    return {
        "seconds": figure(stacks.seconds),
        "samples": stacks.samples,
        "rejected_samples": stacks.rejected,
        "phases": _shares(stacks.phases),
        "train_phases": _shares(stacks.train_phases),
        "eval_wait_share": figure(stacks.eval_wait_share),
        "first_wait_share": figure(stacks.first_wait_share),
        "receiving_share": figure(stacks.receiving_share),
        "lines": _lines(stacks.lines),
        "workers": stacks.workers,
        "worker_samples": stacks.worker_samples,
        "worker_phases": _shares(stacks.worker_phases),
        "worker_lines": _lines(stacks.worker_lines),
        "batches": stacks.batches,
        "batches_exact": stacks.batches_exact,
        "epochs_started": stacks.epochs,
        "cpu_share": figure(stacks.cpu_share),
    }


def hot_line_section(rank: RankWindow) -> Json | None:
    """The line that makes the batches slow, or calls the function that does."""
    found = hot_line(rank)
    if found is None:
        return None
    callee = None if found.line.callee is None else encodable(found.line.callee)
    return {
        **_line(found.line),
        "where": found.where,
        "callee": callee,
        "callee_lines": list(found.line.callee_lines),
    }


def standing_section(rank: RankWindow, now_ns: int) -> Json | None:
    """Where a trainer has stood on one line for long."""
    standing = rank.stacks.standing if rank.stacks is not None else None
    if standing is None or rank.ended is not None:
        return None
    seconds = (standing.time_ns - standing.since_ns) / 1e9
    return _standing(standing, seconds, now_ns) if seconds >= STANDS_FROM_SECONDS else None


def steps_per_second(rank: RankWindow) -> tuple[float | None, str | None]:
    """The pace over all of the window, evaluation and saving included, and where it comes from."""
    if rank.facts.rung == "exact":
        seconds = rank.window_seconds
        return (rank.steps / seconds, "hook") if seconds > 0 and rank.steps else (None, None)
    stacks = rank.stacks
    if stacks is None or stacks.batches_per_second is None:
        return None, None
    return stacks.batches_per_second, "loader counter" if stacks.batches_exact else "estimated from stacks"


def _standing(standing: Standing, seconds: float, now_ns: int) -> Json:
    return {
        "file": encodable(standing.file),
        "line": standing.line,
        "function": encodable(standing.function),
        "text": _code(standing.text),
        "leaf": None if standing.leaf is None else encodable(standing.leaf),
        "phase": standing.phase,
        "seconds": figure(seconds),
        "seen_seconds_ago": figure(max(0, now_ns - standing.time_ns) / 1e9),
    }


def _shares(shares: Mapping[str, Share]) -> Json:
    return {phase: _share(share) for phase, share in shares.items()}


def _share(share: Share) -> Json:
    return {"share": figure(share.value), "low": figure(share.low), "high": figure(share.high)}


def _lines(lines: Iterable[LineShare]) -> list[Json]:
    return [_line(line) for line in lines]


def _line(line: LineShare) -> Json:
    return {
        "file": encodable(line.file),
        "line": line.line,
        "function": encodable(line.function),
        "text": _code(line.text),
        "phase": line.phase,
        "leaf": None if line.leaf is None else encodable(line.leaf),
        "samples": line.samples,
        **_share(line.share),
    }


def _code(text: str | None) -> str | None:
    if text is None:
        return None
    text = encodable(text.strip())
    return text if len(text) <= LONGEST_CODE else f"{text[:LONGEST_CODE]}…"
