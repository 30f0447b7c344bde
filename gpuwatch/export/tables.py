"""The tables of an export: one per kind of sample, with the rows that each sample gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuwatch.export.axis import Axis
from gpuwatch.export.columns import Column, Kind, cell, columns_of
from gpuwatch.recording.types import FindingSpan
from gpuwatch.samples import (
    BatchCount,
    BatchWait,
    CallCount,
    GpuFacts,
    GpuGap,
    GpuHealth,
    GpuLost,
    GpuProcess,
    GpuSample,
    GpuStatus,
    HostSample,
    LineCount,
    LinkLoss,
    LoaderFacts,
    MachineFacts,
    ModelFacts,
    NvmlState,
    PhaseSpan,
    ProcessSample,
    RunFacts,
    RunMemory,
    StackTally,
    StepEnd,
    TrainerEnded,
    WorkerFetch,
    WorkerSample,
    XidEvent,
)

Row = dict[str, Any]
NO_CONTEXT: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Table:
    """A kind of rows. `rows` makes of one sample as many things as it has of the kind; `context` reads the sample."""

    name: str
    of: type
    columns: tuple[Column, ...]
    context: tuple[Column, ...] = ()
    rows: Callable[[Any], Iterable[Any]] = lambda sample: (sample,)
    has_gpu: bool = False

    def header(self) -> list[tuple[str, Kind]]:
        """Names and kinds of all columns."""
        gpu: list[tuple[str, Kind]] = [("gpu_index", "int")] if self.has_gpu else []
        fields = [(column.name, column.kind) for column in (*self.context, *self.columns)]
        return [("time_seconds", "time"), ("wall_time", "str"), *gpu, *(f for f in fields if f[0] != "time_seconds")]


def table(
    name: str,
    of: type,
    *,
    inner: type | None = None,
    rows: Callable[[Any], Iterable[Any]] | None = None,
    context: Mapping[str, str] = NO_CONTEXT,
    extra: tuple[Column, ...] = (),
    leave_out: tuple[str, ...] = (),
) -> Table:
    """A table of a sample's own fields, or of the things of class `inner` in it beside some fields of the sample.

    `context` maps the sample's fields to the names that their columns have.
    """
    own = columns_of(of)
    return Table(
        name=name,
        of=of,
        columns=(*columns_of(inner or of, leave_out=leave_out), *extra),
        context=tuple(replace(column, name=context[column.name]) for column in own if column.name in context),
        rows=rows or (lambda sample: (sample,)),
        has_gpu=any(column.name == "uuid" for column in own),
    )


def _pairs(name: str, ring: str) -> Table:
    """The driver's own buffer of one quantity, value by value."""
    return Table(
        name=f"gpu_{ring}",
        of=GpuSample,
        columns=(Column("time_seconds", "time", lambda pair: pair[0]), Column(name, "float", lambda pair: pair[1])),
        context=tuple(column for column in columns_of(GpuSample) if column.name == "uuid"),
        rows=lambda sample: getattr(sample, ring),
        has_gpu=True,
    )


_TRAINER = {"trainer": "trainer"}


def _of_model(column: Column) -> Column:
    return Column(column.name, column.kind, lambda facts: column.read(facts.model))


TABLES: Mapping[str, Table] = {
    each.name: each
    for each in (
        table("gpu", GpuSample),
        _pairs("utilization_percent", "utilization_ring"),
        _pairs("power_watts", "power_ring"),
        table("gpu_facts", GpuFacts),
        table("gpu_status", GpuStatus),
        table("gpu_health", GpuHealth),
        table("gpu_process", GpuStatus, inner=GpuProcess, rows=lambda s: s.processes or (), context={"uuid": "uuid"}),
        table("gpu_lost", GpuLost),
        table("xid", XidEvent),
        table("nvml", NvmlState),
        table("machine", MachineFacts),
        table("host", HostSample),
        table("process", ProcessSample),
        table("worker", ProcessSample, inner=WorkerSample, rows=lambda s: s.workers, context={"pid": "trainer_pid"}),
        table("run", RunFacts, extra=tuple(_of_model(each) for each in columns_of(ModelFacts, prefix="model_"))),
        table("loader", RunFacts, inner=LoaderFacts, rows=lambda s: s.loaders, context=_TRAINER),
        table("step", StepEnd),
        table("wait", BatchWait),
        table("gap", GpuGap),
        table("phase", PhaseSpan),
        table("fetch", WorkerFetch),
        table("run_memory", RunMemory),
        table("ended", TrainerEnded),
        table("loss", LinkLoss),
        table("stacks", StackTally),
        table("stack_line", StackTally, inner=LineCount, rows=lambda s: (*s.lines, *s.worker_lines), context=_TRAINER),
        table("stack_call", StackTally, inner=CallCount, rows=lambda s: (*s.calls, *s.worker_calls), context=_TRAINER),
        table("batch_count", BatchCount),
        table("finding", FindingSpan, leave_out=("blob",)),
    )
}
"""By name, in the order in which they are listed."""

_BY_CLASS: dict[type, list[Table]] = {}
for _each in TABLES.values():
    _BY_CLASS.setdefault(_each.of, []).append(_each)


class RowMaker:
    """Makes the rows of samples, for the tables that are wanted."""

    def __init__(self, axis: Axis, gpu_indices: Mapping[str, int], wanted: Iterable[str]) -> None:
        self._axis = axis
        self._gpu_indices = dict(gpu_indices)
        self._wanted = frozenset(wanted)

    def rows(self, sample: Any) -> Iterable[tuple[str, Row]]:
        """Each row with the name of its table."""
        if isinstance(sample, GpuFacts):
            self._gpu_indices[sample.uuid] = sample.index
        for each in _BY_CLASS.get(type(sample), ()):
            if each.name in self._wanted:
                for thing in each.rows(sample):
                    yield each.name, self._row(each, sample, thing)

    def _row(self, of: Table, sample: Any, thing: Any) -> Row:
        at_ns = time_of(sample)
        row: Row = {
            "time_seconds": None if at_ns is None else self._axis.seconds(at_ns),
            "wall_time": None if at_ns is None else self._axis.wall_text(at_ns),
        }
        if of.has_gpu:
            row["gpu_index"] = self._gpu_indices.get(sample.uuid)
        for column in of.context:
            row[column.name] = self._cell(column, sample)
        for column in of.columns:
            row[column.name] = self._cell(column, thing)
        return row

    def _cell(self, column: Column, thing: Any) -> Any:
        value = column.read(thing)
        if column.kind == "time":
            return None if value is None else self._axis.seconds(value)
        return cell(value)


def time_of(sample: Any) -> int | None:
    """When a sample was taken: the end of what it tells of, the beginning of what still lasts.

    None for a GPU's gap, which has the number of its step.
    """
    for name in ("time_ns", "end_ns", "start_ns"):
        value = getattr(sample, name, None)
        if value is not None:
            return int(value)
    return None
