"""The metrics of a minute of the machine, a process, and a run's batches, phases and stacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpuwatch.recording.chunks import Stream
from gpuwatch.recording.metric_values import Metrics
from gpuwatch.recording.shapes import Scalar
from gpuwatch.samples import WorkerSample
from gpuwatch.timeline.stack_log import NOT_TRAINING

_SECOND_NS = 1_000_000_000
_PROCESS_GAUGES = (
    "main_thread_cores",
    "tree_cores",
    "cpu_capacity_cores",
    "run_delay_share",
    "rss_bytes",
    "read_bytes_per_second",
    "write_bytes_per_second",
    "shm_used_bytes",
    "cgroup_memory_used_bytes",
)


def _host(stream: Stream, metrics: Metrics) -> None:
    for (name, shape), values in zip(stream.kind.shape.fields, stream.columns, strict=True):
        if isinstance(shape, Scalar) and name != "time_ns":
            metrics.add("host", name, values)


def _process(stream: Stream, metrics: Metrics) -> None:
    for name in _PROCESS_GAUGES:
        metrics.add(stream.subject, name, stream.column(name))
    workers: Sequence[Sequence[WorkerSample]] = stream.column("workers")
    metrics.add(stream.subject, "worker_count", [len(each) for each in workers])
    cores = [[worker.cpu_cores for worker in each if worker.cpu_cores is not None] for each in workers]
    metrics.add(stream.subject, "worker_cores", [sum(each) / len(each) for each in cores if each])


def _waits(stream: Stream, metrics: Metrics) -> None:
    found: dict[str, list[float]] = {"train": [], "eval": []}
    columns = (stream.column(name) for name in ("role", "part", "start_ns", "end_ns"))
    for role, part, start_ns, end_ns in zip(*columns, strict=True):
        if part == "batch" and role in found:
            found[role].append((end_ns - start_ns) / _SECOND_NS)
    metrics.add(stream.subject, "batch_wait_seconds", found["train"])
    metrics.add(stream.subject, "eval_wait_seconds", found["eval"])


def _fetches(stream: Stream, metrics: Metrics) -> None:
    spans = zip(stream.column("start_ns"), stream.column("end_ns"), strict=True)
    metrics.add(stream.subject, "fetch_seconds", [(end_ns - start_ns) / _SECOND_NS for start_ns, end_ns in spans])
    metrics.add(stream.subject, "fetch_cpu_seconds", stream.column("cpu_seconds"))


def _phases(stream: Stream, metrics: Metrics) -> None:
    columns = (stream.column(name) for name in ("kind", "start_ns", "end_ns"))
    for kind, start_ns, end_ns in zip(*columns, strict=True):
        if end_ns is not None and end_ns > start_ns:
            metrics.add(stream.subject, f"{kind}_phase_seconds", [(end_ns - start_ns) / _SECOND_NS])


def _stacks(stream: Stream, metrics: Metrics) -> None:
    looks: Sequence[int] = stream.column("samples")
    phases: Sequence[Mapping[str, int]] = stream.column("phases")
    for phase in dict.fromkeys(phase for each in phases for phase in each):
        metrics.add_shares(stream.subject, f"stack_{phase}_share", [each.get(phase, 0) for each in phases], looks)
    training = [
        count - sum(each.get(phase, 0) for phase in NOT_TRAINING) for count, each in zip(looks, phases, strict=True)
    ]
    waits = [each.get("wait", 0) for each in phases]
    metrics.add_shares(stream.subject, "stack_wait_train_share", waits, training)


def _counts(stream: Stream, metrics: Metrics) -> None:
    readings: dict[int, tuple[list[int], list[int]]] = {}
    columns = (stream.column(name) for name in ("role", "loader", "time_ns", "batches"))
    for role, loader, time_ns, batches in zip(*columns, strict=True):
        if role == "train":
            times, counts = readings.setdefault(loader, ([], []))
            times.append(time_ns)
            counts.append(batches)
    for loader, (times, counts) in readings.items():
        metrics.add_growth(stream.subject, f"counted_batches {loader}", times, counts, None)
    metrics.sum_up(stream.subject, "counted_batches")


def _memory(stream: Stream, metrics: Metrics) -> None:
    for name in ("allocated_peak_bytes", "reserved_peak_bytes", "total_bytes"):
        metrics.add(stream.subject, name, stream.column(name))


RUN_METRICS: Mapping[str, Callable[[Stream, Metrics], None]] = {
    "HostSample": _host,
    "ProcessSample": _process,
    "BatchWait": _waits,
    "WorkerFetch": _fetches,
    "PhaseSpan": _phases,
    "StackTally": _stacks,
    "BatchCount": _counts,
    "RunMemory": _memory,
}
"""By the kind of sample that they are derived from."""
