"""Who gets how much of the screen: the columns that all panels share, and the height that they divide."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

TWO_CHARTS_FROM = 96
"""Below this width the two charts of a row stand one above the other instead of side by side."""

WIDE_FROM = 150


@dataclass(frozen=True, slots=True)
class Columns:
    """Widths in cells; a `chart_2` of None means that the charts are stacked in one column, or that there is but one.

    `owner` is 0 where a GPU's owner has no column of its own.
    """

    width: int
    gap: int
    name: int
    meter: int
    utilization: int
    power: int
    memory: int
    temperature: int
    clock: int
    slowed: int
    owner: int
    chart_1: int  # first cell of the left chart
    chart_2: int | None
    chart_width: int

    @property
    def left_width(self) -> int:
        """What the numbers have, up to the charts."""
        return self.chart_1 - self.gap if self.chart_width else self.width - 1

    @property
    def stacked(self) -> bool:
        """Whether there is one column of charts."""
        return self.chart_2 is None


@cache
def columns(width: int) -> Columns:
    """The widths that suit a terminal."""
    if width >= WIDE_FROM:
        gap, fields = 2, (22, 10, 9, 11, 13, 6, 8, 14)
    elif width >= 110:
        gap, fields = 1, (15, 0, 9, 9, 11, 6, 8, 9)
    elif width >= TWO_CHARTS_FROM:
        gap, fields = 1, (10, 0, 9, 9, 11, 6, 8, 7)
    elif width >= 76:
        gap, fields = 1, (7, 0, 9, 9, 9, 5, 8, 6)
    else:
        gap, fields = 1, (6, 0, 9, 9, 9, 5, 0, 0)
    used = 1 + sum(field + gap for field in fields if field)
    right = width - 1  # the last cell belongs to a scroll bar
    chart_1 = used
    if width >= TWO_CHARTS_FROM:
        chart_width = max(0, (right - chart_1 - gap) // 2)
        chart_2: int | None = right - chart_width
        chart_1 = right - 2 * chart_width - gap
    else:
        chart_width, chart_2 = max(0, right - chart_1), None
    return Columns(width, gap, *fields, 0, chart_1, chart_2, chart_width)


@cache
def owner_columns(width: int) -> Columns:
    """The widths where rows name the GPUs' owners: one chart stays, above that of the runs' step time, and no meter."""
    if width >= 200:
        gap, fields = 2, (22, 10, 9, 11, 13, 6, 8, 14)
    elif width >= WIDE_FROM:
        gap, fields = 1, (17, 0, 9, 10, 11, 6, 8, 9)
    elif width >= 110:
        gap, fields = 1, (11, 0, 9, 10, 11, 5, 0, 8)
    elif width >= TWO_CHARTS_FROM:
        gap, fields = 1, (8, 0, 9, 9, 9, 5, 0, 7)
    else:
        gap, fields = 1, (6, 0, 9, 9, 9, 5, 0, 6 if width >= 76 else 0)
    used = 1 + sum(field + gap for field in fields if field)
    usual = columns(width)
    if usual.chart_2 is None:
        return Columns(width, gap, *fields, width - 1 - used, width - 1, None, 0)
    return Columns(width, gap, *fields, usual.chart_2 - gap - used, usual.chart_2, None, usual.chart_width)


OWNERS_FROM = 4
"""From this number of GPUs on, a row names its GPU's owner; fewer have room for a second line, and charts."""
MIN_WIDTH, MIN_HEIGHT = 60, 15
RANK_FIELD = 26
"""Cells of one rank: "rank 12 1.04 s wait 100%"."""
WIDE_RANK_FIELD = 37
"""The same with what it does itself and where: "rank 5  312 ms own wait 2% GPU 5 1410 MHz"."""
FRAMED_FROM = 30
"""From this height on the verdict has a frame: two lines less do no harm there."""


LEAST_PREVIEW_LINES, PREVIEW_LINES = 5, 8
"""Of the finding under the cursor: its fix, what that brings, and why, below the list."""
HUGE_ROW = 12
TALLEST_ROW, TALLEST_ROW_TALL, TALL_FROM = 6, 9, 46
"""Higher charts say no more; on a tall terminal they look lost when they are low."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What there is to show."""

    verdict_lines: int
    gpus: int  # rows, which are fewer than GPUs where those alike share one
    runs: int  # with a panel of their own
    ranks: int  # of the first run
    findings: int
    ended: int = 0  # runs that are over, a line each
    host: bool = True
    reason: bool = False  # why there is no GPU has to be said
    alike: bool = False  # whether no row is higher than a line: GPUs share rows, or are MIG instances
    gpu_summary: int = 0  # lines about all GPUs, below the heads of the columns


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
    ended: int
    findings: int

    @property
    def total(self) -> int:
        """All lines, with the top bar, the findings' head and the keys."""
        return (
            3 + self.verdict + self.gpu_head + self.gpu_lines + self.host + sum(self.runs) + self.ended + self.findings
        )


def too_small(width: int, height: int) -> str | None:
    """The one line for a terminal that is too small, if it is."""
    if width >= MIN_WIDTH and height >= MIN_HEIGHT:
        return None
    return f"gpuwatch needs {MIN_WIDTH}x{MIN_HEIGHT}, this is {width}x{height}"


def arrange(width: int, height: int, needs: Needs) -> Arrangement:
    """Shares out the height: first a little for everybody, then what each can use, in order of worth."""
    framed = height >= FRAMED_FROM
    verdict = max(2, min(needs.verdict_lines, height // 4 if framed else max(4, height // 6)))
    gpu_head = (1 if needs.gpus or needs.reason else 0) + needs.gpu_summary
    share = _Share(height - 3 - verdict - gpu_head, needs)
    stacked = columns(width).stacked or needs.gpus >= OWNERS_FROM
    share.findings(1)
    share.gpu_rows(2)
    share.run(4)
    share.findings(2)
    share.other_runs(1)
    share.ended_runs(1)
    share.gpu_rows(8)
    share.other_runs(3)
    share.findings(4)
    share.run(5)
    share.host(1)
    share.ended_runs(4)
    share.gpu_rows(16)
    per_line = max(1, (columns(width).left_width - 1) // RANK_FIELD)
    rank_lines = -(-needs.ranks // per_line) if needs.ranks > 1 else 0
    share.run(5 + min(8, rank_lines))
    if needs.gpus < OWNERS_FROM:
        share.gpu_height(2)
    share.run(5 + rank_lines)
    share.other_runs(5)
    share.gpu_rows(64)
    share.findings(8)
    share.host(2)
    if needs.gpus >= OWNERS_FROM:
        share.run(8 + rank_lines)
    for step in range(2, (TALLEST_ROW if height < TALL_FROM else TALLEST_ROW_TALL) + 1):
        if not stacked or step % 2 == 0:
            share.gpu_height(step)
        share.run(min(step + 6, 4 + step + rank_lines))
    share.findings_more(PREVIEW_LINES, kept=max(0, needs.verdict_lines - verdict))
    for step in range(TALLEST_ROW, HUGE_ROW + 1) if verdict >= needs.verdict_lines else ():
        if not stacked or step % 2 == 0:
            share.gpu_height(step)
        share.run(step + 8 + rank_lines)
    unused = min(share.rest, max(0, needs.verdict_lines - verdict))  # a sentence goes before empty lines
    return Arrangement(
        framed=framed,
        verdict=verdict + unused,
        gpu_head=gpu_head,
        gpu_row=share.row_height,
        gpu_lines=share.rows * share.row_height,
        host=share.host_lines,
        runs=tuple(share.run_heights),
        ended=share.ended_lines,
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
        self.ended_lines = 0

    def _take(self, wanted: int) -> int:
        given = max(0, min(wanted, self.rest))
        self.rest -= given
        return given

    def findings(self, up_to: int) -> None:
        wanted = min(up_to, max(1, self.needs.findings))
        self.finding_lines += self._take(wanted - self.finding_lines)

    def findings_more(self, lines: int, kept: int) -> None:
        """What the fix of the finding under the cursor takes, or as much of it as says something; `kept` are left."""
        if self.needs.findings and self.rest - kept >= LEAST_PREVIEW_LINES:
            self.finding_lines += self._take(min(lines, self.rest - kept))

    def host(self, up_to: int) -> None:
        if self.needs.host:
            self.host_lines += self._take(up_to - self.host_lines)

    def gpu_rows(self, up_to: int) -> None:
        self.rows += self._take(min(up_to, self.needs.gpus) - self.rows)

    def gpu_height(self, height: int) -> None:
        """Higher rows, only for all GPUs alike and only when none has to be scrolled to."""
        if self.needs.alike:
            return
        extra = (height - self.row_height) * self.rows
        if self.rows and self.rows == self.needs.gpus and extra <= self.rest:
            self.rest -= extra
            self.row_height = height

    def ended_runs(self, up_to: int) -> None:
        self.ended_lines += self._take(min(up_to, self.needs.ended) - self.ended_lines)

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
