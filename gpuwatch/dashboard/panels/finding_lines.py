"""The lines of the user's code that a finding is about, as stacks saw them, with their text."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.panels.page import MARGIN, Page
from gpuwatch.dashboard.sampled import line_place, standing_words
from gpuwatch.dashboard.text import Line, LineWriter
from gpuwatch.dashboard.themes import Look
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.timeline.windows import LineShare, RunWindow

MOST_LINES = 5

_LOADING = ("wait", "item", "collate", "send")
_PHASES: Mapping[str, tuple[str, ...]] = {
    "data-starvation": _LOADING,
    "workers-zero": _LOADING,
    "workers-too-few": _LOADING,
    "worker-cpu-bound": ("item", "collate"),
    "too-many-workers": _LOADING,
    "thread-oversubscription": _LOADING,
    "worker-affinity-pinned": _LOADING,
    "bursty-prefetch": _LOADING,
    "slow-samples": _LOADING,
    "slow-collate-ipc": ("collate", "send"),
    "io-bound": _LOADING,
    "cpu-quota-throttled": _LOADING,
    "sync-per-step": ("sync",),
    "pageable-transfer": ("copy", "sync"),
    "launch-bound": ("sync", "log", "forward", "backward", "other"),
    "eval-stall": ("eval",),
    "checkpoint-stall": ("save",),
    "log-stall": ("log",),
    "epoch-start-stall": ("start",),
}
"""Rule -> what a thread does on the lines that can be to blame."""

_STANDING = ("step-stalled", "collective-hang")


def finding_lines(page: Page, finding: Finding, run: RunWindow | None) -> None:
    """A section of the lines, where stacks were read and show some."""
    stacks = run.critical.stacks if run is not None else None
    if run is not None and finding.rule in _STANDING:
        _standing(page, run)
    phases = _PHASES.get(finding.rule, ())
    if run is None or stacks is None or not phases:
        return
    own = [line for line in stacks.lines if line.phase in phases]
    workers = [line for line in stacks.worker_lines if line.phase in phases]
    if workers:
        own = []  # the training thread stands on its `for` statement then
    seen = f"{say.count(stacks.worker_samples)} samples"
    if any(loader.role == "eval" and loader.num_workers for loader in run.critical.facts.loaders):
        seen += ", evaluation's included"
    _table(page, "Lines of the workers, shares of their busy time", workers, seen)
    _table(
        page,
        "Lines of the training thread, shares of its time",
        own,
        f"{say.count(stacks.samples)} samples, {say.span(stacks.seconds)}",
    )


def _table(page: Page, title: str, lines: list[LineShare], right: str) -> None:
    if not lines:
        return
    page.heading(title, right=right)
    width = max(len(line_place(line)) for line in lines[:MOST_LINES])
    page.add([_row(line, min(width, 32), page.width, page.look) for line in lines[:MOST_LINES]])


def _row(line: LineShare, place_width: int, width: int, look: Look) -> Line:
    writer = LineWriter(width, look).to(MARGIN)
    writer.right(say.share(line.share.value), 6, look.strong).left(f" ±{say.points(line.share)}", 6, look.dim)
    writer.gap(1).left(line_place(line), place_width, look.accent).gap(2)
    writer.put(say.escape((line.text or f"in {line.function}()").strip().expandtabs(4)), look.text)
    below = f"  in {say.escape(line.leaf)}" if line.leaf else ""
    return writer.put(below if len(below) <= writer.room else "", look.dim).line()


def _standing(page: Page, run: RunWindow) -> None:
    """The line on which each rank stands: the one that stands elsewhere is the one that the others wait for."""
    ranks = [(rank, rank.stacks.standing) for rank in run.ranks if rank.stacks is not None]
    if not any(standing for _, standing in ranks):
        return
    page.heading("Where it stands")
    for rank, standing in ranks:
        name = "" if rank.facts.rank is None else f"rank {rank.facts.rank}"
        if standing is None:
            continue
        writer = LineWriter(page.width, page.look).to(MARGIN)
        writer.put(f"{name} ".lstrip(), page.look.dim).put(f"{standing_words(standing)}  ", page.look.warning)
        page.lines.append(writer.put(say.escape((standing.text or "").strip()), page.look.text).line())
