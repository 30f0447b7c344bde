"""How the main screen's height is shared out between verdict, GPUs, runs and findings."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.dashboard.panels.columns import columns
from gpuwatch.dashboard.panels.run_panel import RANK_FIELD

MIN_WIDTH, MIN_HEIGHT = 60, 15
FRAMED_FROM = 30
"""From this height on the verdict has a frame: two lines less do no harm there."""


TALLEST_ROW, TALLEST_ROW_TALL, TALL_FROM = 6, 9, 46
"""Higher charts say no more; on a tall terminal they look lost when they are low."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What there is to show."""

    verdict_lines: int
    gpus: int
    runs: int
    ranks: int  # of the first run
    findings: int
    host: bool = True
    reason: bool = False  # why there is no GPU has to be said


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Heights in lines, together the terminal's. `gpu_lines` is the window onto the rows: it may be scrolled."""

    framed: bool
    verdict: int
    gpu_head: int
    gpu_row: int
    gpu_lines: int
    host: int
    runs: tuple[int, ...]
    findings: int

    @property
    def total(self) -> int:
        """All lines, with the top bar, the findings' head and the keys."""
        return 3 + self.verdict + self.gpu_head + self.gpu_lines + self.host + sum(self.runs) + self.findings


def too_small(width: int, height: int) -> str | None:
    """The one line for a terminal that is too small, if it is."""
    if width >= MIN_WIDTH and height >= MIN_HEIGHT:
        return None
    return f"gpuwatch needs {MIN_WIDTH}x{MIN_HEIGHT}, this is {width}x{height}"


def arrange(width: int, height: int, needs: Needs) -> Arrangement:
    """Shares out the height: first a little for everybody, then what each can use, in order of worth."""
    framed = height >= FRAMED_FROM
    verdict = max(2, min(needs.verdict_lines, height // 4 if framed else max(3, height // 6)))
    gpu_head = 1 if needs.gpus or needs.reason else 0
    share = _Share(height - 3 - verdict - gpu_head, needs)
    stacked = columns(width).stacked
    share.findings(1)
    share.gpu_rows(2)
    share.run(4)
    share.findings(2)
    share.other_runs(1)
    share.gpu_rows(8)
    share.other_runs(3)
    share.findings(4)
    share.run(5)
    share.host(1)
    share.gpu_rows(16)
    per_line = max(1, (columns(width).left_width - 1) // RANK_FIELD)
    rank_lines = -(-needs.ranks // per_line) if needs.ranks > 1 else 0
    share.run(5 + min(8, rank_lines))
    share.gpu_height(2)
    share.run(5 + rank_lines)
    share.other_runs(5)
    share.gpu_rows(64)
    share.findings(8)
    share.host(2)
    for step in range(3, (TALLEST_ROW if height < TALL_FROM else TALLEST_ROW_TALL) + 1):
        if not stacked or step % 2 == 0:
            share.gpu_height(step)
        share.run(min(step + 6, 4 + step + rank_lines))
    unused = min(share.rest, max(0, needs.verdict_lines - verdict))  # a sentence goes before empty lines
    return Arrangement(
        framed=framed,
        verdict=verdict + unused,
        gpu_head=gpu_head,
        gpu_row=share.row_height,
        gpu_lines=share.rows * share.row_height,
        host=share.host_lines,
        runs=tuple(share.run_heights),
        findings=share.finding_lines + share.rest - unused,
    )


class _Share:
    """The lines still to give, and who has got how many."""

    def __init__(self, rest: int, needs: Needs) -> None:
        self.rest = max(0, rest)
        self.needs = needs
        self.rows = 0
        self.row_height = 1
        self.finding_lines = 0
        self.host_lines = 0
        self.run_heights: list[int] = []

    def _take(self, wanted: int) -> int:
        given = max(0, min(wanted, self.rest))
        self.rest -= given
        return given

    def findings(self, up_to: int) -> None:
        wanted = min(up_to, max(1, self.needs.findings))
        self.finding_lines += self._take(wanted - self.finding_lines)

    def host(self, up_to: int) -> None:
        if self.needs.host:
            self.host_lines += self._take(up_to - self.host_lines)

    def gpu_rows(self, up_to: int) -> None:
        self.rows += self._take(min(up_to, self.needs.gpus) - self.rows)

    def gpu_height(self, height: int) -> None:
        """Higher rows, only for all GPUs alike and only when none has to be scrolled to."""
        extra = (height - self.row_height) * self.rows
        if self.rows and self.rows == self.needs.gpus and extra <= self.rest:
            self.rest -= extra
            self.row_height = height

    def run(self, up_to: int) -> None:
        """The first run's panel."""
        if not self.needs.runs:
            return
        if not self.run_heights:
            if self.rest >= 2:
                self.run_heights.append(self._take(up_to))
            return
        self.run_heights[0] += self._take(up_to - self.run_heights[0])

    def other_runs(self, up_to: int) -> None:
        """The panels of the other runs, each only where all its lines fit."""
        for index in range(1, self.needs.runs):
            if index < len(self.run_heights):
                self.run_heights[index] += self._take(up_to - self.run_heights[index])
            elif self.rest >= up_to and self.run_heights:
                self.run_heights.append(self._take(up_to))
