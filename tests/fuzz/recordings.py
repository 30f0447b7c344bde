"""Recordings, as every reader of one takes them: replay, report, compare and export.

An input is either the bytes of a file, or (`_MAGIC` first) changes to the rows of a small real recording, whose
checksums are put right, so that what is behind them is reached.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.export.samples import Axis, json_lines, samples_of
from gpuwatch.export.tables import TABLES, RowMaker
from gpuwatch.export.trace import chrome_trace
from gpuwatch.monitor.clock import VirtualClock
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.recorded_findings import RecordedFindings
from gpuwatch.monitor.replay import Stage
from gpuwatch.monitor.snapshot import Origin
from gpuwatch.recording.columns import ColumnReader, DamagedError, write_column
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import CannotOpenError, checksum
from gpuwatch.recording.stretch import summarize
from gpuwatch.report.recorded import MinutesOnce, observe
from gpuwatch.sources.simulator.source import SimulatorSource

_MAGIC = b"rows"
_CHANGE = struct.Struct("<BBBH")  # table, row, column, length of the value
_SECOND_NS = 1_000_000_000
_START_NS = 86_400 * _SECOND_NS
_TABLES = {
    "meta": ("key", "value"),
    "kind": ("id", "name", "shape"),
    "anchor": ("id", "time_ns", "wall_time"),
    "segment": ("id", "start_ns", "end_ns", "bytes", "data"),
    "tail": ("id", "segment", "start_ns", "end_ns", "data"),
    "chunk": ("id", "kind", "subject", "count", "data"),
    "rollup_1m": ("minute_ns", "data"),
    "rollup_1h": ("hour_ns", "data"),
    "event": ("time_ns", "kind", "subject", "json", "until_ns"),
    "finding": ("id", "key", "start_ns", "end_ns", "state", "rule", "severity", "run", "gpu", "blob"),
}
_NAMES = tuple(_TABLES)
_BLOBS = ("segment", "tail", "chunk", "rollup_1m")
"""Whose checksum is of `data` alone."""


def seeds() -> list[bytes]:
    """The file, and changes of which each puts one value back as it was or into bounds."""
    whole = _recording()
    own = [_MAGIC + _change(*each) for each in ((4, 0, 4, b"5"), (5, 3, 3, b"7"), (8, 1, 4, b"99"), (0, 0, 1, b'"x"'))]
    return [whole, *own, _MAGIC + b"".join(_change(table, 0, 1, b"3") for table in range(len(_NAMES)))]


def run(data: bytes) -> None:
    """Opens and reads it in all ways; what is refused must be refused in a sentence."""
    folder = Path(tempfile.mkdtemp(prefix="gwf-", dir="/dev/shm"))
    path = folder / "fuzz.gpuwatch"
    try:
        path.write_bytes(data if not data.startswith(_MAGIC) else _recording())
        if data.startswith(_MAGIC):
            _apply(path, data[len(_MAGIC) :])
        _read(path, zlib.crc32(data) % 3)
    except CannotOpenError as refusal:
        assert str(path) in str(refusal) and "\n" not in str(refusal)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Another few changes of rows, whose values are near the old ones, hostile, or blobs with one layer changed."""
    changes = [data[len(_MAGIC) :]] if data.startswith(_MAGIC) and rng.random() < 0.5 else []
    rows = _rows()
    for _ in range(1 << rng.randrange(3)):
        table = rng.randrange(len(_NAMES))
        found = rows[_NAMES[table]]
        if not found:
            continue
        row = rng.randrange(min(255, len(found)))
        column = rng.randrange(len(_TABLES[_NAMES[table]]))
        changes.append(_change(table, row, column, _value(found[row][column], rng)))
    return _MAGIC + b"".join(changes)


def _read(path: Path, way: int) -> None:
    """All samples and figures, and one of three more expensive ways to read them."""
    with MinutesOnce(path) if way == 2 else Recording(path) as recording:
        start_ns, end_ns = recording.start_ns, recording.end_ns
        samples = list(samples_of(recording, start_ns, end_ns))
        summarize(recording, start_ns, end_ns)
        if way == 0:
            summarize(recording, start_ns, end_ns + 1000 * _SECOND_NS)  # from the minutes
            _export(recording, samples)
        elif end_ns > start_ns and way == 1:
            _replay(recording)
        elif end_ns > start_ns:
            observe(recording, start_ns, end_ns, with_curves=True)
        assert recording.meta.problem is None or "\n" not in recording.meta.problem


def _export(recording: Recording, samples: list[Any]) -> None:
    axis = Axis(recording.start_ns + 1, recording.wall_time)
    for _ in json_lines(samples, axis):
        pass
    about = {"label": recording.meta.label, "host": recording.meta.hostname, "start": "", "gpuwatch": ""}
    for _ in chrome_trace(samples, axis, recording.end_ns, about):
        pass
    maker = RowMaker(axis, {gpu.uuid: gpu.index for gpu in recording.gpus()}, list(TABLES))
    for sample in samples:
        for _ in maker.rows(sample):
            pass


def _replay(recording: Recording) -> None:
    if recording.end_ns <= recording.start_ns:
        return
    middle_ns = (recording.start_ns + recording.end_ns) // 2
    stage = Stage(recording, RecordedFindings(recording), middle_ns, Origin("recording", "REPLAY"), 60.0)
    try:
        turns = iter(range(200))
        stage.clock.run(1e9)
        stage.monitor.run_until(
            min(recording.end_ns, middle_ns + 20 * _SECOND_NS), stop=lambda: next(turns, None) is None
        )
        notices = stage.monitor.snapshot().notices
        assert not any("rror" in notice for notice in notices), notices
    finally:
        stage.close()


def _apply(path: Path, data: bytes) -> None:
    """Writes the changed values, and the checksums that belong to them."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA journal_mode=MEMORY")
        connection.text_factory = bytes
        for table, place, column, value in _changes(data):
            name = _NAMES[table % len(_NAMES)]
            columns = _TABLES[name]
            changed = columns[column % len(columns)]
            key = "key" if name == "meta" else "rowid"
            row = connection.execute(f"SELECT {key} FROM {name} ORDER BY {key} LIMIT 1 OFFSET ?", (place,)).fetchone()
            if row is None:
                continue
            try:
                connection.execute(f"UPDATE {name} SET {changed} = ? WHERE {key} = ?", (value, row[0]))
            except sqlite3.Error:
                continue
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        for name, columns in _TABLES.items():
            if name == "rollup_1h":
                continue
            covered = ("data",) if name in _BLOBS else columns[:4] if name == "event" else columns
            key = "key" if name == "meta" else "rowid"
            for key_value, *values in connection.execute(f"SELECT {key}, {', '.join(covered)} FROM {name}").fetchall():
                crc = checksum(values)
                if name in _BLOBS:
                    crc = zlib.crc32(values[0]) if isinstance(values[0], bytes) else 0
                connection.execute(f"UPDATE {name} SET crc = ? WHERE {key} = ?", (crc, key_value))


def _changes(data: bytes) -> Iterator[tuple[int, int, int, object]]:
    at = 0
    while at + _CHANGE.size <= len(data):
        table, row, column, length = _CHANGE.unpack_from(data, at)
        at += _CHANGE.size
        value = data[at : at + length]
        at += length
        yield table, row, column, _as_sql(value)


def _as_sql(value: bytes) -> object:
    """A number, a text or a blob, as the first byte says."""
    kind, rest = value[:1], value[1:]
    if kind == b"i":
        return int.from_bytes(rest[:8], "little", signed=True)
    if kind == b"f":
        return struct.unpack("<d", rest[:8].ljust(8, b"\0"))[0]
    if kind == b"n":
        return None
    if kind == b"b":
        return rest
    return value.decode("utf-8", "replace")


def _change(table: int, row: int, column: int, value: bytes) -> bytes:
    return _CHANGE.pack(table, row, column, min(len(value), 65535)) + value[:65535]


def _value(old: object, rng: random.Random) -> bytes:
    """Another value for one of the real recording."""
    if isinstance(old, bytes) and rng.random() < 0.9:
        return b"b" + _changed_blob(old, rng)
    if isinstance(old, str) and rng.random() < 0.7:
        return _changed_text(old, rng).encode("utf-8", "replace")
    wide = (0, 1, -1, 255, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63), _START_NS, _START_NS + 10**18)
    if isinstance(old, int) and rng.random() < 0.6:
        near = old + rng.choice((1, -1, 1000, -_SECOND_NS, 3600 * _SECOND_NS, old))
        return b"i" + max(-(2**63), min(2**63 - 1, near)).to_bytes(8, "little", signed=True)
    return rng.choice(
        (
            b"i" + rng.choice(wide).to_bytes(8, "little", signed=True),
            b"f" + struct.pack("<d", rng.choice((0.5, -1.0, 1e308, float("inf"), float("nan"), 1e18))),
            b"n",
            b"b" + rng.randbytes(rng.randrange(40)),
            b"text",
            b"[" * rng.choice((10, 900, 5000)),
        )
    )


def _changed_blob(blob: bytes, rng: random.Random) -> bytes:
    """Changes what was deflated, not the deflated bytes; or the values of a column of it."""
    try:
        plain = zlib.decompress(blob)
    except zlib.error:
        return _changed_bytes(blob, rng)
    plain = _changed_columns(plain, rng) if rng.random() < 0.5 else _changed_bytes(plain, rng)
    return zlib.compress(plain, 1)


def _changed_columns(plain: bytes, rng: random.Random) -> bytes:
    """Cuts a blob that is made of columns and puts another one in the place of one."""
    reader, columns = ColumnReader(plain), []
    try:
        while not reader.is_at_end and len(columns) < 200:
            columns.append(reader.cut())
    except DamagedError:
        return plain
    if not columns:
        return plain
    out = bytearray()
    hostile: object = rng.choice(
        (None, -1, 0, 2**63 - 1, -(2**63), 1e308, float("nan"), float("inf"), "x", [1], {}, True)
    )
    write_column([hostile] * 3, out)
    columns[rng.randrange(len(columns))] = bytes(out)
    return b"".join(columns)


def _changed_bytes(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        if out:
            out[rng.randrange(len(out))] = rng.choice((0, 1, 0x7F, 0x80, 0xC0, 0xCB, 0xFF, rng.randrange(256)))
    return bytes(out)


def _changed_text(text: str, rng: random.Random) -> str:
    try:
        plain = json.loads(text)
    except ValueError:
        return _changed_bytes(text.encode(), rng).decode("utf-8", "replace")
    hostile = rng.choice((None, -1, 2**63 - 1, 10**30, 1e308, "x\x1b[2J", [], {}, [[1]], "9" * 5000, True))
    if isinstance(plain, dict) and plain:
        plain[rng.choice([*plain])] = hostile
    elif isinstance(plain, list) and plain:
        plain[rng.randrange(len(plain))] = hostile
    else:
        plain = hostile
    return json.dumps(plain)


@cache
def _recording() -> bytes:
    """Two and a half minutes of a starved run on one GPU, with findings, as bytes."""
    folder = Path(tempfile.mkdtemp(prefix="gwf-", dir="/dev/shm"))
    try:
        path = folder / "seed.gpuwatch"
        source = SimulatorSource("starved", start_ns=_START_NS)
        clock = VirtualClock(_START_NS, 1_700_000_000.0)
        monitor = Monitor(
            [source], origin=Origin("simulated", "SIMULATED starved"), clock=clock, engine=Engine(), focus=source.focus
        )
        monitor.record(path)
        monitor.run_until(_START_NS + 80 * _SECOND_NS)
        monitor.stop_recording()
        monitor.stop()
        return path.read_bytes()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _rows() -> dict[str, list[tuple[object, ...]]]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(_recording())
        file.flush()
        with closing(sqlite3.connect(file.name)) as connection:
            return {
                name: connection.execute(
                    f"SELECT {', '.join(columns)} FROM {name} ORDER BY {'key' if name == 'meta' else 'rowid'} LIMIT 255"
                ).fetchall()
                for name, columns in _TABLES.items()
            }
