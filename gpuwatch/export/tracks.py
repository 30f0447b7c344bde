"""The processes and threads of a trace: one process per GPU, per trainer, and for host and findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwatch.samples import GpuFacts, RunFacts
from gpuwatch.text.escape import printable
from gpuwatch.timeline.runs import title_of

TRACKS = ("training", "waits", "eval", "eval waits", "checkpoint", "compile", "warmup", "gc", "stopped", "user")
"""A trainer's tracks from top to bottom; a slice never crosses the edge of another on the same track."""
_FIRST_WORKER = 100
_FINDINGS, _HOST, _FIRST_GPU, _FIRST_TRAINER = 1, 2, 10, 1000


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
        """The names, as events; to be asked for last, for names come late."""
        for pid, name in sorted(self._names.items()):
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "ts": 0, "args": {"sort_index": pid}}
        for (pid, tid), name in sorted(self._threads.items()):
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "ts": 0, "args": {"sort_index": tid}}
