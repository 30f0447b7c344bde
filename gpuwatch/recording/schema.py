"""The layout of a recording, version 2: one SQLite file; and what it takes and gives in addition to samples.

| table       | holds                                                                                              |
|-------------|----------------------------------------------------------------------------------------------------|
| `meta`      | what the recording is of, its gaps, whether it was closed                                          |
| `kind`      | each kind of sample with the shape of its fields, as of the gpuwatch that wrote it                 |
| `anchor`    | wall time at a monotonic time: at the start, and wherever the wall clock has jumped                |
| `tail`      | the open segment: one row a second, MessagePack of [[arrival_ns, [[kind, [field, ...]], ...]], ...] |
| `segment`   | sealed segments of a minute: when each of their rows arrived                                       |
| `chunk`     | the rows of one kind and subject in a segment, as columns (see `chunks`); id is segment << 20 + n  |
| `rollup_1m` | one row a minute: count, min, mean, max, p50, p95, sigma, p5 of each metric below                  |
| `rollup_1h` | one row an hour that is over: its minutes once more, by metric and column (see `hours`)            |
| `event`     | GpuFacts, MachineFacts, RunFacts, GpuLost, XidEvent, TrainerEnded, PhaseSpan, Candidates           |
| `finding`   | each stretch of time with a finding                                                                |

All rows carry the CRC-32 of their blob or of all their values, so what a failing disk has changed is left out and
reported, not shown. An hour has one in the blob for its index and one for each metric.

Metrics of minutes. Those of a subject without a value in a minute have no row there. `count * mean` is a sum.

* GPU (subject: UUID). Gauges: those of `metrics.GPU_GAUGES` (of the driver's ring where it has one, else of the polls).
  Counters: what `minute` of `metrics.GPU_COUNTERS` names, of the minute: energy_joules with a count of 1; rates and
  shares with a count of the seconds between their readings.
* Machine (subject "host"): every number of HostSample under its own name.
* Steps (subject: trainer), a value per step: step_seconds (training time: period less phases), wait_seconds,
  forward_seconds, backward_seconds, optimizer_seconds, copy_seconds, step_batches, step_samples. `count` of
  step_seconds is steps per minute. wait_share has the quotient of the sums as its mean, over the steps where the wait
  is known, and per-step values as its range. A step that was sent twice counts once; stops by a signal are left out.
* Sums over steps, with a count of 1: {wait,samples,copy,forward,backward,optimizer}_train_seconds are the training
  seconds of just the steps in which X is known, in minutes where some do not know it (else: of all steps);
  settled_{wait,gap}_seconds and settled_{wait,gap}_train_seconds are of the settled steps whose wait or gap is known.
* Phases (subject: trainer), a value per phase that ended: eval_phase_seconds, checkpoint_phase_seconds, and so on,
  less the stops by a signal in it, which are stopped_phase_seconds.
* Seen from outside (subject: trainer): stack_PHASE_share of all stack samples, stack_wait_train_share of those in
  training; `count` is of samples, the range of seconds. With a count of 1: stack_seconds, in which stacks were sampled;
  counted_batches of training loaders, and counted_seconds between the readings of their counters.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

APPLICATION_ID = 0x67707577  # "gpuw"
VERSION = 2
CHUNK_BITS = 20
"""Of a chunk's id below its segment's number."""

TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT, crc INTEGER) WITHOUT ROWID",
    "CREATE TABLE kind (id INTEGER PRIMARY KEY, name TEXT, shape TEXT, crc INTEGER)",
    "CREATE TABLE anchor (id INTEGER PRIMARY KEY, time_ns INTEGER, wall_time REAL, crc INTEGER)",
    "CREATE TABLE segment (id INTEGER PRIMARY KEY, start_ns INTEGER, end_ns INTEGER, bytes INTEGER, data BLOB,"
    " crc INTEGER)",
    "CREATE TABLE tail (id INTEGER PRIMARY KEY, segment INTEGER, start_ns INTEGER, end_ns INTEGER, data BLOB,"
    " crc INTEGER)",
    "CREATE TABLE chunk (id INTEGER PRIMARY KEY, kind INTEGER, subject TEXT, count INTEGER, crc INTEGER, data BLOB)",
    "CREATE TABLE rollup_1m (minute_ns INTEGER PRIMARY KEY, data BLOB, crc INTEGER)",
    "CREATE TABLE rollup_1h (hour_ns INTEGER PRIMARY KEY, data BLOB)",
    "CREATE TABLE event (id INTEGER PRIMARY KEY, time_ns INTEGER, kind TEXT, subject TEXT, until_ns INTEGER,"
    " json TEXT, crc INTEGER)",
    "CREATE TABLE finding (id INTEGER PRIMARY KEY, key TEXT, start_ns INTEGER, end_ns INTEGER, state TEXT, rule TEXT,"
    " severity TEXT, run TEXT, gpu TEXT, blob BLOB, crc INTEGER)",
)


Operation = tuple[str, Sequence[object]]
"""A statement and its values."""


def meta_row(key: str, value: object) -> Operation:
    """What puts a value into the head, or replaces it."""
    values = (key, json.dumps(value))
    return "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (*values, checksum(values))


def checksum(values: Sequence[object]) -> int:
    """CRC-32 of a row's values."""
    return zlib.crc32(repr(tuple(values)).encode("utf-8", "backslashreplace"))


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
