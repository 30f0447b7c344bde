"""A recording as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Counters of GPUs and the host, slices of trainers and workers, and findings, in the Trace Event Format.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

from gpuwatch.export.samples import Axis
from gpuwatch.metrics import HOST, Metric, charted
from gpuwatch.recording.schema import FindingSpan
from gpuwatch.samples import (
    BatchWait,
    GpuFacts,
    GpuLost,
    GpuSample,
    HostSample,
    PhaseSpan,
    RunFacts,
    StepEnd,
    TrainerEnded,
    WorkerFetch,
    XidEvent,
)
from gpuwatch.text import json_text, printable
from gpuwatch.timeline.runs import title_of

Event = dict[str, Any]

_HOST_COUNTERS = ("cpu_percent", "pressure_cpu_percent", "pressure_io_percent")
_MOST_WAITS = 4_096
TRACKS = ("training", "waits", "eval", "eval waits", "checkpoint", "compile", "warmup", "gc", "stopped", "user")
"""A trainer's tracks from top to bottom; a slice never crosses the edge of another on the same track."""
_FIRST_WORKER = 100
_FINDINGS, _HOST, _FIRST_GPU, _FIRST_TRAINER = 1, 2, 10, 1000


def chrome_trace(samples: Iterable[Any], axis: Axis, end_ns: int, about: dict[str, Any]) -> Iterator[str]:
    """The trace as pieces of JSON: metadata, then all events in order of time, what encloses before what is within.

    A slice is known when it ends and sorted by when it began, so the events go through a temporary database, which
    keeps memory small; SQLite deletes its file by itself.

    Args:
        samples: in time order, findings last.
        axis: of time.
        end_ns: when the stretch ends; what still lasts ends then.
        about: what the trace is of, as its `otherData`.
    """
    tracks = Tracks(end_ns)
    with closing(sqlite3.connect("")) as database:
        database.execute("CREATE TABLE event (ts REAL, dur REAL, json TEXT)")
        database.executemany("INSERT INTO event VALUES (?, ?, ?)", _rows(TraceEvents(axis, tracks), samples, end_ns))
        yield f'{{"displayTimeUnit":"ms","otherData":{_json(about)},"traceEvents":[\n'
        lead = ""
        for event in tracks.metadata():
            yield lead + _json(event)
            lead = ",\n"
        for (text,) in database.execute("SELECT json FROM event ORDER BY ts, dur DESC, rowid"):
            yield lead + text
            lead = ",\n"
        yield "\n]}\n"


def _rows(maker: TraceEvents, samples: Iterable[Any], end_ns: int) -> Iterator[tuple[float, float, str]]:
    for sample in samples:
        for event in maker.events(sample):
            if event["ph"] == "X" and event["ts"] == event["dur"] == 0.0:  # of the hook's past: over before the start
                continue
            yield event["ts"], event.get("dur", 0.0), _json(event)
    for event in maker.close(end_ns):
        yield event["ts"], event.get("dur", 0.0), _json(event)


def _json(value: Any) -> str:
    return json_text(value, compact=True)


class TraceEvents:
    """Turns samples into events of the Trace Event Format, one sample at a time.

    A step's waits are held back until the step ends, so that each lies within it whatever rounding did to its edges.
    """

    def __init__(self, axis: Axis, tracks: Tracks) -> None:
        self._axis = axis
        self._tracks = tracks
        self._waits: dict[str, list[BatchWait]] = {}
        self._open: dict[tuple[str, str, int], PhaseSpan] = {}
        self._drained: dict[tuple[str, str], int] = {}
        self._step_ends: dict[str, int] = {}
        self._findings = 0
        self._makers: dict[type, Callable[[Any], Iterator[Event]]] = {
            GpuFacts: self._gpu_facts,
            GpuSample: self._gpu,
            GpuLost: self._lost,
            XidEvent: self._xid,
            HostSample: self._host,
            RunFacts: self._run_facts,
            StepEnd: self._step,
            BatchWait: self._wait,
            PhaseSpan: self._phase,
            WorkerFetch: self._fetch,
            TrainerEnded: self._ended,
            FindingSpan: self._finding,
        }

    def events(self, sample: Any) -> Iterator[Event]:
        """What one sample is in the trace."""
        make = self._makers.get(type(sample))
        if make is not None:
            yield from make(sample)

    def close(self, end_ns: int) -> Iterator[Event]:
        """What had not ended when the recording did."""
        for trainer, waits in self._waits.items():
            yield from self._loose_waits(trainer, waits)
        for span in self._open.values():
            yield self._phase_slice(span, max(end_ns, span.start_ns))

    def _gpu_facts(self, facts: GpuFacts) -> Iterator[Event]:
        self._tracks.name_gpu(facts)
        yield from ()

    def _run_facts(self, facts: RunFacts) -> Iterator[Event]:
        self._tracks.name_trainer(facts)
        yield from ()

    def _gpu(self, sample: GpuSample) -> Iterator[Event]:
        pid = self._tracks.gpu(sample.uuid)
        for metric in charted("gpu"):
            for time_ns, value in self._readings(sample, metric):
                if time_ns < self._axis.start_ns:  # a buffer reaches back to before the recording
                    continue
                yield from self._counter(pid, _name(metric), time_ns, value * metric.shown_factor)

    def _readings(self, sample: GpuSample, metric: Metric) -> list[tuple[int, float]]:
        """The driver's own buffer where it was drained, each value once; else the poll."""
        field, ring = metric.name, getattr(sample, metric.ring) if metric.ring else ()
        if ring:
            until = self._drained.get((sample.uuid, field), -1)
            self._drained[sample.uuid, field] = max(until, ring[-1][0])
            return [(time_ns, value) for time_ns, value in ring if time_ns > until]
        value = getattr(sample, field)
        return [] if value is None else [(sample.time_ns, value)]

    def _host(self, sample: HostSample) -> Iterator[Event]:
        for field in _HOST_COUNTERS:
            value = getattr(sample, field)
            if value is not None:
                yield from self._counter(self._tracks.host(), _name(HOST[field]), sample.time_ns, value)

    def _step(self, step: StepEnd) -> Iterator[Event]:
        pid = self._tracks.trainer(step.trainer)
        start_ns = max(step.start_ns, self._step_ends.get(step.trainer, step.start_ns))
        waits = self._waits.pop(step.trainer, [])
        if start_ns >= step.end_ns:  # sent once more, after a link that broke
            return
        self._step_ends[step.trainer] = step.end_ns
        yield from self._loose_waits(step.trainer, [wait for wait in waits if wait.end_ns <= start_ns])
        details = _milliseconds(
            wait=step.wait_seconds,
            forward=step.forward_seconds,
            backward=step.backward_seconds,
            optimizer=step.optimizer_seconds,
            copy=step.copy_seconds,
            phases=step.phase_seconds or None,
        )
        if step.samples is not None:
            details["samples"] = step.samples
        yield self._slice(pid, "training", f"step {step.number}", start_ns, step.end_ns, details)
        until = start_ns
        for wait in sorted(waits, key=lambda each: each.start_ns):
            begin, end = max(wait.start_ns, until), min(wait.end_ns, step.end_ns)
            if begin < end:
                yield self._wait_slice(pid, "training", wait, begin, end)
                until = end
        self._waits[step.trainer] = [wait for wait in waits if wait.start_ns >= step.end_ns]

    def _wait(self, wait: BatchWait) -> Iterator[Event]:
        if wait.role == "eval":
            yield self._wait_slice(self._tracks.trainer(wait.trainer), "eval waits", wait, wait.start_ns, wait.end_ns)
            return
        held = self._waits.setdefault(wait.trainer, [])
        held.append(wait)
        if len(held) > _MOST_WAITS:
            yield from self._loose_waits(wait.trainer, held)
            held.clear()

    def _loose_waits(self, trainer: str, waits: list[BatchWait]) -> Iterator[Event]:
        """Waits that no step holds have a track of their own: the step they belong to may still come."""
        for wait in sorted(waits, key=lambda each: each.start_ns):
            yield self._wait_slice(self._tracks.trainer(trainer), "waits", wait, wait.start_ns, wait.end_ns)

    def _wait_slice(self, pid: int, track: str, wait: BatchWait, start_ns: int, end_ns: int) -> Event:
        name = "wait for data" if wait.part == "batch" else f"wait for data ({wait.part} of the epoch)"
        return self._slice(pid, track, name, start_ns, end_ns, {"role": wait.role})

    def _phase(self, span: PhaseSpan) -> Iterator[Event]:
        key = (span.trainer, span.kind, span.start_ns)
        if span.end_ns is None:
            self._open[key] = span
            return
        self._open.pop(key, None)
        if span.end_ns > span.start_ns:
            yield self._phase_slice(span, span.end_ns)

    def _phase_slice(self, span: PhaseSpan, end_ns: int) -> Event:
        details: Event = {}
        if span.file is not None:
            details["line"] = printable(f"{span.file}:{span.line}")
        if span.bytes is not None:
            details["bytes"] = span.bytes
        if span.detail:
            details["detail"] = printable(span.detail)
        # Kinds overlap (a collection in an evaluation), so each has a track.
        track = span.kind if span.kind in TRACKS else "user"
        return self._slice(self._tracks.trainer(span.trainer), track, span.kind, span.start_ns, end_ns, details)

    def _fetch(self, fetch: WorkerFetch) -> Iterator[Event]:
        pid = self._tracks.trainer(fetch.trainer)
        tid = self._tracks.worker(fetch.trainer, fetch.worker, fetch.worker_pid)
        details = _milliseconds(cpu=fetch.cpu_seconds)
        yield self._complete(pid, tid, "make a batch", fetch.start_ns, fetch.end_ns, details)

    def _lost(self, lost: GpuLost) -> Iterator[Event]:
        yield self._instant(self._tracks.gpu(lost.uuid), f"GPU lost: {lost.reason}", lost.time_ns)

    def _xid(self, event: XidEvent) -> Iterator[Event]:
        pid = self._tracks.host() if event.uuid is None else self._tracks.gpu(event.uuid)
        yield self._instant(pid, f"Xid {event.xid} {event.text}".strip(), event.time_ns)

    def _ended(self, ended: TrainerEnded) -> Iterator[Event]:
        yield self._instant(self._tracks.trainer(ended.trainer), f"training {ended.how}", ended.time_ns)

    def _finding(self, span: FindingSpan) -> Iterator[Event]:
        if not span.is_active:
            return
        self._findings += 1
        head: Event = {
            "cat": "finding",
            "id": self._findings,
            "name": printable(f"{span.rule} ({span.severity})"),
            "pid": self._tracks.findings(),
            "tid": 0,
        }
        end_ns = span.end_ns if span.end_ns is not None else self._tracks.end_ns
        yield {
            **head,
            "ph": "b",
            "ts": self._axis.micros(span.start_ns),
            "args": {"run": printable(span.run or ""), "gpu": span.gpu or "", "state": span.state},
        }
        yield {**head, "ph": "e", "ts": self._axis.micros(max(end_ns, span.start_ns))}

    def _counter(self, pid: int, name: str, time_ns: int, value: float) -> Iterator[Event]:
        at = self._axis.micros(time_ns)
        if math.isfinite(value):
            yield {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": at, "args": {"value": round(float(value), 6)}}

    def _slice(self, pid: int, track: str, name: str, start_ns: int, end_ns: int, details: Event) -> Event:
        return self._complete(pid, self._tracks.thread(pid, track), name, start_ns, end_ns, details)

    def _complete(self, pid: int, tid: int, name: str, start_ns: int, end_ns: int, details: Event) -> Event:
        event: Event = {
            "ph": "X",
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": self._axis.micros(start_ns),
            "dur": max(0, end_ns - max(start_ns, self._axis.start_ns)) / 1e3,
        }
        return {**event, "args": details} if details else event

    def _instant(self, pid: int, name: str, time_ns: int) -> Event:
        return {"ph": "i", "s": "p", "name": printable(name), "pid": pid, "tid": 0, "ts": self._axis.micros(time_ns)}


def _milliseconds(**seconds: float | None) -> Event:
    """The known ones in milliseconds. A damaged file may claim any number, and 1e308 s are no number of them."""
    known = {f"{name}_ms": value * 1e3 for name, value in seconds.items() if value is not None}
    return {name: round(value, 6) for name, value in known.items() if math.isfinite(value)}


def _name(metric: Metric) -> str:
    """Of a counter, on the track of its subject."""
    return f"{metric.label.removeprefix('host ')} ({metric.shown_unit})"


class Tracks:
    """Numbers for whatever has a row, and its name.

    The numbers are the trace's own: pids of a real machine may be those of several containers.

    Args:
        end_ns: when the exported stretch ends.
    """

    def __init__(self, end_ns: int) -> None:
        self.end_ns = end_ns
        self._names: dict[int, str] = {}
        self._threads: dict[tuple[int, int], str] = {}
        self._gpus: dict[str, int] = {}
        self._trainers: dict[str, int] = {}
        self._workers: dict[tuple[str, int, int], int] = {}

    def findings(self) -> int:
        """The process of the findings."""
        self._names[_FINDINGS] = "gpuwatch findings"
        return _FINDINGS

    def host(self) -> int:
        """The process of the host's counters."""
        self._names[_HOST] = "host"
        return _HOST

    def gpu(self, uuid: str) -> int:
        """The process of a GPU's counters."""
        if uuid not in self._gpus:
            self._gpus[uuid] = _FIRST_GPU + len(self._gpus)
            self._names[self._gpus[uuid]] = printable(uuid)
        return self._gpus[uuid]

    def name_gpu(self, facts: GpuFacts) -> None:
        """What a GPU is called."""
        self._names[self.gpu(facts.uuid)] = printable(f"GPU {facts.index} {facts.name}")

    def trainer(self, trainer: str) -> int:
        """The process of a trainer."""
        if trainer not in self._trainers:
            self._trainers[trainer] = _FIRST_TRAINER + len(self._trainers)
            self._names[self._trainers[trainer]] = printable(f"training process {trainer.split('.')[0]}")
        return self._trainers[trainer]

    def name_trainer(self, facts: RunFacts) -> None:
        """What a trainer is called."""
        rank = "" if facts.rank is None else f", rank {facts.rank}"
        self._names[self.trainer(facts.trainer)] = printable(f"{title_of(facts.command)} (pid {facts.pid}{rank})")

    def thread(self, pid: int, track: str) -> int:
        """One of a trainer's tracks."""
        tid = 1 + TRACKS.index(track)
        self._threads[pid, tid] = track
        return tid

    def worker(self, trainer: str, worker: int, worker_pid: int) -> int:
        """The track of a DataLoader worker; a restarted one has another."""
        key = (trainer, worker, worker_pid)
        if key not in self._workers:
            self._workers[key] = _FIRST_WORKER + sum(1 for name, *_ in self._workers if name == trainer)
            self._threads[self.trainer(trainer), self._workers[key]] = f"worker {worker} (pid {worker_pid})"
        return self._workers[key]

    def metadata(self) -> Iterator[dict[str, Any]]:
        """The names, as events; call this last, names may come late."""
        for pid, name in sorted(self._names.items()):
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "ts": 0, "args": {"sort_index": pid}}
        for (pid, tid), name in sorted(self._threads.items()):
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "ts": 0, "args": {"sort_index": tid}}
