"""Tables of a recording: one per kind of sample, its columns read from the sample's class, written as CSV or Parquet.

A new field of a sample is a new column.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import shlex
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Literal, Protocol, Union

from gpuwatch.export.samples import Axis, time_of
from gpuwatch.metrics import GPU_RINGS
from gpuwatch.recording.schema import FindingSpan
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
from gpuwatch.text import printable

Kind = Literal["float", "int", "str", "bool", "time"]
MOMENTS = ("time_ns", "start_ns", "end_ns", "since_ns")
"""Fields that are moments on CLOCK_MONOTONIC. Other names that end so are durations and stay as they are."""

_KINDS: dict[type, Kind] = {float: "float", int: "int", str: "str", bool: "bool"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name with the unit, what it holds, and how it is read from a sample."""

    name: str
    kind: Kind
    read: Callable[[Any], Any]


def columns_of(cls: type, *, prefix: str = "", leave_out: Sequence[str] = ()) -> list[Column]:
    """A column for each field that is a number, a string, a truth value, a moment, or a list of strings."""
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        kind = _kind(field.name, hints[field.name])
        if kind is None or field.name in leave_out:
            continue
        name = field.name.removesuffix("_ns") + "_seconds" if kind == "time" else field.name
        found.append(Column(prefix + name, kind, _reader(field.name, hints[field.name])))
    return found


def cell(value: Any) -> Any:
    """A value as a table has it: None where it is unknown, strings without what would steer a terminal."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _kind(name: str, hint: Any) -> Kind | None:
    if name in MOMENTS:
        return "time"
    if _is_words(hint):
        return "str"
    members = _members(hint)
    if float in members and int in members:
        return "float"
    return _KINDS.get(members[0]) if len(members) == 1 and isinstance(members[0], type) else None


def _members(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in (Union, types.UnionType):
        return [each for part in typing.get_args(hint) if part is not type(None) for each in _members(part)]
    if typing.get_origin(hint) is Literal:
        return [str]
    return [hint]


def _is_words(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple and typing.get_args(hint) == (str, Ellipsis)


def _reader(name: str, hint: Any) -> Callable[[Any], Any]:
    if not _is_words(hint):
        return lambda sample: getattr(sample, name)
    if name == "command":
        return lambda sample: shlex.join(sample.command)
    return lambda sample: ";".join(getattr(sample, name))


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
    """A table of a sample's own fields, or of the things of class `inner` in it with some fields of the sample.

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
        *(_pairs(name, ring) for name, ring in GPU_RINGS.items()),
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


_GROUP_ROWS = 16_384
"""Of each of some twenty tables: 50 000 as dictionaries took 263 MB, these 143, of which pyarrow itself is 68."""


class MissingLibraryError(Exception):
    """What the format needs is not installed: one sentence with the cure."""


class TableWriter(Protocol):
    """One table in one file."""

    def write(self, row: Row) -> None:
        """Adds a row."""

    def close(self) -> None:
        """Writes what is left. The caller closes the file that it opened."""


_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""What a spreadsheet takes for the beginning of a formula (OWASP, CSV injection), full-width ones too."""


class CsvWriter:
    """RFC 4180 with a header line, as pandas and every spreadsheet read it; an empty cell is not known.

    A text that a spreadsheet would run as a formula gets an apostrophe before it: names and commands come from other
    processes.
    """

    def __init__(self, table: Table, file: BinaryIO) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
        self._names = [name for name, _ in table.header()]
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._writer.writerow(self._names)

    def write(self, row: Row) -> None:
        """Adds a row."""
        self._writer.writerow([_inert(row[name]) for name in self._names])

    def close(self) -> None:
        """Flushes, and leaves the file open."""
        self._text.flush()
        self._text.detach()


def _inert(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


class ParquetWriter:
    """Groups of rows with typed columns; unknown is null.

    Raises:
        MissingLibraryError: pyarrow is not installed.
    """

    def __init__(self, table: Table, file: BinaryIO) -> None:
        try:
            import pyarrow as arrow
            import pyarrow.parquet as parquet
        except ImportError:
            raise MissingLibraryError(
                "--parquet is written with pyarrow, which is not installed: pip install 'gpuwatch[parquet]'"
            ) from None
        types: Mapping[str, Any] = {
            "float": arrow.float64(),
            "time": arrow.float64(),
            "int": arrow.int64(),
            "str": arrow.string(),
            "bool": arrow.bool_(),
        }
        self._arrow = arrow
        self._schema = arrow.schema([(name, types[kind]) for name, kind in table.header()])
        self._file = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._columns: dict[str, list[Any]] = {name: [] for name, _ in table.header()}
        self._rows = 0

    def write(self, row: Row) -> None:
        """Adds a row."""
        for name, column in self._columns.items():
            column.append(row[name])
        self._rows += 1
        if self._rows >= _GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        """Writes the last group and the footer."""
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        if self._rows:
            self._file.write_table(self._arrow.Table.from_pydict(self._columns, schema=self._schema))
            for column in self._columns.values():
                column.clear()
            self._rows = 0


class TableFiles:
    """The files of some tables; each is opened with its first row, so that there is none without rows."""

    def __init__(self, make: Callable[[Table, BinaryIO], TableWriter], open_file: Callable[[str], BinaryIO]) -> None:
        self._make = make
        self._open = open_file
        self._writers: dict[str, TableWriter] = {}
        self.rows: dict[str, int] = {}

    def begin(self, name: str) -> None:
        """Opens a table's file although it may stay without rows."""
        if name not in self._writers:
            self._writers[name] = self._make(TABLES[name], self._open(name))
            self.rows[name] = 0

    def write(self, name: str, row: Row) -> None:
        """Adds a row to its table."""
        self.begin(name)
        self._writers[name].write(row)
        self.rows[name] += 1

    def close(self) -> None:
        """Writes what is left of all."""
        for writer in self._writers.values():
            writer.close()
