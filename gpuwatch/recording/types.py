"""What a recording takes and gives in addition to samples: its head, findings, minutes, and refusals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class CannotOpenError(Exception):
    """A file that cannot be read as a recording: one sentence with the cause and the cure."""


class CannotRecordError(Exception):
    """A place where no recording can be begun: one sentence with the cause and the cure."""


@dataclass(frozen=True, slots=True)
class RecordingMeta:
    """What a recording says of itself. The last four fields are the file's: a writer takes no notice of them."""

    hostname: str
    version: str  # of gpuwatch
    label: str = "LIVE"  # or "SIMULATED starved"
    command: tuple[str, ...] = ()  # of `gpuwatch record -- COMMAND`
    attached_pid: int | None = None
    interval_seconds: float = 1.0
    started_wall: float = 0.0
    ended: bool = False  # closed properly; else it is still being written, or its writer was killed
    problem: str | None = None  # what is missing of it, and why


@dataclass(frozen=True, slots=True)
class FindingRecord:
    """A finding as a recording keeps it. `key` tells apart those of one moment; `blob` is opaque here."""

    key: str
    rule: str
    severity: str
    state: str
    run: str | None
    gpu: str | None
    blob: bytes


@dataclass(frozen=True, slots=True)
class FindingSpan:
    """A stretch in which a finding had one state and severity.

    `end_ns` is None if it lasted to the end of the recording. `blob` is the finding as of the stretch's last minute.
    """

    start_ns: int
    end_ns: int | None
    state: str
    rule: str
    severity: str
    run: str | None
    gpu: str | None
    key: str
    blob: bytes

    @property
    def is_active(self) -> bool:
        """Whether it was reported: not while its rule still waited for it to last."""
        return self.state in ("firing", "clearing")


class Rollup(NamedTuple):
    """One metric of one subject over one minute. All but `count` are rounded to single precision (6e-8)."""

    minute_ns: int  # its start
    subject: str  # a GPU's UUID, "host", or a trainer
    metric: str
    count: int  # type: ignore[assignment]  # hides tuple.count, for which a minute has no use
    min: float
    mean: float
    max: float
    p50: float
    p95: float
    sigma: float  # sample standard deviation
    p5: float = math.nan  # which the first recordings do not have
