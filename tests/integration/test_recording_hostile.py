"""Recordings made to harm: every command ends soon, in bounded memory, with a sentence instead of a traceback."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import sys
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from gpuwatch.__main__ import main
from gpuwatch.recording.columns import pack, write_column
from gpuwatch.recording.file import open_recording
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import CHUNK_BITS, CannotOpenError, checksum
from tests.integration.recorded_files import START_NS, TRAINER, everything, recorded

MEMORY_BYTES = 700 << 20
CPU_SECONDS = 20
COMMANDS = (("report",), ("compare",), ("export", "--jsonl"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "run.gpuwatch"
    recorded(path, 150)
    return path.read_bytes()


@pytest.fixture
def recording(whole: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "run.gpuwatch"
    path.write_bytes(whole)
    return path


def change(path: Path, *statements: str, values: tuple[object, ...] = ()) -> None:
    """Runs statements on the file as somebody who has a database at hand would; the last one takes the values."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        for statement in statements[:-1]:
            connection.execute(statement)
        connection.execute(statements[-1], values)


def run_all(folder: Path, path: Path) -> list[tuple[int, str]]:
    """Exit code and standard error of every command over the file; each has a fork with little memory and CPU.

    -9 or -24 is the exit code of one that went beyond it.
    """
    found = []
    for number, command in enumerate(COMMANDS):
        said = folder / f"{number}.stderr"
        pid = os.fork()
        if not pid:
            code = 70
            try:
                size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
                resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, size + MEMORY_BYTES))
                resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
                sys.stderr = said.open("w")
                sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - it ends with the process
                operands = [str(path), str(path)] if command[0] == "compare" else [str(path)]
                code = main([command[0], *operands, *command[1:]])
                sys.stderr.flush()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        found.append((os.waitstatus_to_exitcode(status), said.read_text() if said.exists() else ""))
    return found


def assert_bounded(folder: Path, path: Path, codes: tuple[int, ...] = (0, 1, 2)) -> list[str]:
    """Every command ends by itself with a known code and in sentences; what they said."""
    said = []
    for (code, stderr), command in zip(run_all(folder, path), COMMANDS, strict=True):
        assert code in codes, (command, code, stderr)
        assert "internal error" not in stderr and "Traceback" not in stderr, (command, stderr)
        assert code != 2 or len(stderr.strip().splitlines()) == 1, (command, stderr)
        said.append(stderr)
    return said


ENDLESS = (
    "CREATE VIEW {table} AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
    "SELECT x AS {columns} FROM n"
)
FOREIGN_SCHEMAS = {
    "view for the head": ("DROP TABLE meta", ENDLESS.format(table="meta", columns="key, x AS value, x AS crc")),
    "view for the index": (
        "DROP TABLE segment",
        ENDLESS.format(table="segment", columns="id, x AS start_ns, x AS end_ns, x AS bytes, x AS data, x AS crc"),
    ),
    "trigger": ("CREATE TRIGGER t AFTER INSERT ON meta BEGIN DELETE FROM meta; END",),
    "another table": ("CREATE TABLE other (a)",),
    "generated column": (
        "DROP TABLE anchor",
        "CREATE TABLE anchor (id INTEGER PRIMARY KEY, time_ns INTEGER, wall_time AS (zeroblob(90000000)), crc INTEGER)",
    ),
    "virtual table": ("DROP TABLE finding", "CREATE VIRTUAL TABLE finding USING fts5(key)"),
    "index with an expression": ("CREATE INDEX i ON event (length(json))",),
    "column of no type": ("DROP TABLE finding", "CREATE TABLE finding (id, key)"),
    "without a table": ("DROP TABLE kind",),
}


@pytest.mark.parametrize("statements", FOREIGN_SCHEMAS.values(), ids=FOREIGN_SCHEMAS)
def test_a_file_with_anything_but_our_tables_is_refused_in_a_sentence(
    statements: tuple[str, ...], recording: Path, tmp_path: Path
) -> None:
    change(recording, *statements)
    with pytest.raises(CannotOpenError, match="is damaged or was not made by gpuwatch") as refused:
        Recording(recording)
    assert str(recording) in str(refused.value)
    assert_bounded(tmp_path, recording, codes=(2,))


@pytest.mark.parametrize("column", ["sql", "name"])
def test_a_schema_that_is_no_text_is_refused_in_a_sentence(column: str, recording: Path, tmp_path: Path) -> None:
    """SQLite's message quotes it, with its line breaks and escapes."""
    text = b"CREATE TABLE meta (\x1b[31m\n\xb8)"
    change(recording, f"UPDATE sqlite_master SET {column} = CAST(? AS TEXT) WHERE name = 'meta'", values=(text,))
    with pytest.raises(CannotOpenError, match="damaged") as refused:
        Recording(recording)
    assert str(refused.value).isprintable()
    assert_bounded(tmp_path, recording, codes=(2,))


def test_a_view_that_takes_the_place_of_a_table_while_the_file_is_read_is_never_run(recording: Path) -> None:
    with Recording(recording) as opened:
        change(recording, *FOREIGN_SCHEMAS["view for the index"])
        opened.refresh()
        assert list(opened.samples(opened.start_ns, opened.end_ns)) == []
        assert "damaged parts" in (opened.meta.problem or "")


def test_a_view_is_not_read_even_where_no_changed_schema_is_noticed(recording: Path) -> None:
    """It gives the very rows of the table and ends at once, so only that it is a view can keep it from being read."""
    with closing(open_recording(recording)) as opened:
        assert opened.connection.execute("SELECT id FROM chunk").fetchall()
        change(recording, "ALTER TABLE chunk RENAME TO kept", "CREATE VIEW chunk AS SELECT * FROM kept")
        with pytest.raises(sqlite3.DatabaseError, match="prohibited"):
            opened.connection.execute("SELECT id FROM chunk").fetchall()


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH 'other' AS other",
        "PRAGMA query_only=OFF",
        "SELECT randomblob(9)",
        "DELETE FROM chunk",
        "CREATE TABLE t (a)",
    ],
)
def test_a_connection_does_nothing_but_read_our_tables(statement: str, recording: Path) -> None:
    with closing(open_recording(recording)) as opened, pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        opened.connection.execute(statement)


def shared_pages(path: Path, table: str) -> None:
    """Lets a table's root have all children equal: few bytes stand for many rows."""
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    leaf = len(data) // size + 1
    data += data[(root - 1) * size : root * size]  # the rows themselves, on a page of their own
    below = leaf
    for _ in range(6):
        page = bytearray(size)
        cells = (size - 12) // 8 - 1
        page[0:12] = (
            b"\x05\0\0"
            + cells.to_bytes(2, "big")
            + (size - 6 * cells).to_bytes(2, "big")
            + b"\0"
            + below.to_bytes(4, "big")
        )
        for cell in range(cells):
            at = size - 6 * (cell + 1)
            page[12 + 2 * cell : 14 + 2 * cell] = at.to_bytes(2, "big")
            page[at : at + 6] = below.to_bytes(4, "big") + b"\x7f\0"
        data += page
        below = len(data) // size
    data[(root - 1) * size : root * size] = data[(below - 1) * size : below * size]
    data[28:32] = (len(data) // size).to_bytes(4, "big")
    path.write_bytes(data)


@pytest.mark.parametrize("table", ["segment", "event", "anchor", "kind", "finding", "rollup_1m"])
def test_pages_that_are_shared_a_million_times_do_not_make_endless_rows(
    table: str, recording: Path, tmp_path: Path
) -> None:
    shared_pages(recording, table)
    assert recording.stat().st_size < 500_000
    assert_bounded(tmp_path, recording)


def put_segment(
    path: Path, number: int, chunk: bytes, count: int, start_ns: int, arrivals: bytes | None = None
) -> None:
    """Adds a sealed segment of one chunk of HostSamples, with all checksums right."""
    if arrivals is None:
        out = bytearray((1).to_bytes(4, "little"))
        write_column([start_ns], out)
        write_column([count], out)
        arrivals = zlib.compress(bytes(out), 9)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        kind = connection.execute("SELECT id FROM kind WHERE name = 'HostSample'").fetchone()[0]
        connection.execute(
            "INSERT INTO segment VALUES (?, ?, ?, ?, ?, ?)",
            (number, start_ns, start_ns, 0, arrivals, zlib.crc32(arrivals)),
        )
        connection.execute(
            "INSERT INTO chunk VALUES (?, ?, ?, ?, ?, ?)",
            (number << CHUNK_BITS, kind, "", count, zlib.crc32(chunk), chunk),
        )


def constant_chunk(columns: int = 80) -> bytes:
    """A chunk of a few bytes whose columns claim this many equal values."""
    growing = bytes((3,)) + (18).to_bytes(4, "little") + b"\x01" + bytes(8) + b"\xff\x01" + bytes(7)
    constant = bytes((1,)) + len(pack(1.5)).to_bytes(4, "little") + pack(1.5)
    return zlib.compress(growing + constant * columns, 9)


def test_a_bomb_of_constant_columns_is_left_out(recording: Path, tmp_path: Path) -> None:
    """57 KB of such chunks stood for 5 GB of values."""
    for number in range(1000, 1300):
        put_segment(recording, number, constant_chunk(), 1 << 24, START_NS + 60_000_000_000 * number)
    assert recording.stat().st_size < 200_000
    assert_bounded(tmp_path, recording)


def test_a_bomb_of_deflated_zeros_is_left_out(recording: Path, tmp_path: Path) -> None:
    bomb = zlib.compress(bytes(1 << 28), 9)
    for number in range(1000, 1003):
        put_segment(recording, number, bomb, 5, START_NS + 60_000_000_000 * number)
    assert_bounded(tmp_path, recording)


def test_millions_of_small_rows_take_bounded_memory(recording: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(recording)) as connection:
        connection.executemany(
            "INSERT INTO segment VALUES (?, ?, ?, NULL, NULL, NULL)",
            ((number, number, number) for number in range(1000, 3_000_000)),
        )
        connection.commit()
    assert_bounded(tmp_path, recording)


DEEP = "[" * 900 + "]" * 900
DEEPER = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("nested", [DEEP, DEEPER, '{"a":' * 50_000 + "1" + "}" * 50_000], ids=["900", "100000", "maps"])
def test_deep_nesting_is_left_out_and_the_rest_is_read(nested: str, recording: Path, tmp_path: Path) -> None:
    before = everything(recording)
    meta = ("label", nested)
    kind = (300, "StepEnd", '{"list":' * 50_000)
    event = (START_NS, "RunFacts", TRAINER, nested)
    finding = (900, "key", START_NS, None, "firing", "low-util", "warning", None, None, nested.encode())
    change(recording, "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", values=(*meta, checksum(meta)))
    change(recording, "INSERT INTO kind VALUES (?, ?, ?, ?)", values=(*kind, checksum(kind)))
    change(
        recording,
        "INSERT INTO event (time_ns, kind, subject, json, crc) VALUES (?, ?, ?, ?, ?)",
        values=(*event, checksum(event)),
    )
    row = "INSERT INTO finding VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    change(recording, row, values=(*finding, checksum(finding)))
    deep_pack = b"\x91" * 100_000 + b"\xc0"
    for table, key in (("tail", (90_000, 77, START_NS + 10, START_NS + 10)),):
        values = (*key, deep_pack, zlib.crc32(deep_pack))
        change(recording, f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?)", values=values)
    assert set(map(repr, before)) <= set(map(repr, everything(recording)))
    assert_bounded(tmp_path, recording, codes=(0, 1))


HOSTILE_VALUES: dict[str, object] = {
    "negative": -(2**62),
    "the end of time": 2**63 - 1,
    "a text": "soon",
    "a blob": b"\xff\xfe",
    "infinity": float("inf"),
    "nothing": None,
    "30 years later": START_NS + 10**18,
}


@pytest.mark.parametrize("column", ["start_ns", "end_ns", "id"])
@pytest.mark.parametrize("value", HOSTILE_VALUES.values(), ids=HOSTILE_VALUES)
def test_times_of_segments_that_no_clock_gave_do_not_count(
    value: object, column: str, recording: Path, tmp_path: Path
) -> None:
    if column == "id" and not (isinstance(value, int) and value < 2**62):
        pytest.skip("SQLite keeps no such value in this column")
    change(recording, f"UPDATE segment SET {column} = ? WHERE id = (SELECT max(id) FROM segment)", values=(value,))
    with Recording(recording) as opened:
        assert opened.end_ns - opened.start_ns < 400 * 10**9
    assert_bounded(tmp_path, recording)


@pytest.mark.parametrize("value", HOSTILE_VALUES.values(), ids=HOSTILE_VALUES)
def test_hostile_times_in_the_clock_and_in_rows_do_no_harm(value: object, recording: Path, tmp_path: Path) -> None:
    row = (0, value, 1.0)
    change(recording, "INSERT OR REPLACE INTO anchor VALUES (?, ?, ?, ?)", values=(*row, checksum(row)))
    for table, column in (
        ("rollup_1m", "minute_ns"),
        ("rollup_1h", "hour_ns"),
        ("event", "time_ns"),
        ("event", "until_ns"),
    ):
        with suppress(sqlite3.IntegrityError):  # a key takes integers only
            change(
                recording,
                f"UPDATE {table} SET {column} = ? WHERE rowid = (SELECT min(rowid) FROM {table})",
                values=(value,),
            )
    finding = (900, "key", value, value, "firing", "low-util", "warning", value, None, b"{}")
    row_of = "INSERT INTO finding VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    change(recording, row_of, values=(*finding, checksum(finding)))
    assert_bounded(tmp_path, recording)


def hostile_rows(name: str, **fields: object) -> bytes:
    """A row of the tail with one sample whose fields are not of their types."""
    from gpuwatch.recording.chunks import KINDS

    kind = next(each for each in KINDS.values() if each.name == name)
    return pack([[START_NS + 10, [[kind.number, [fields.get(field) for field, _ in kind.shape.fields]]]]])


SAMPLES: dict[str, bytes] = {
    "step of texts": hostile_rows("StepEnd", trainer=TRAINER, number="x", start_ns="a", end_ns="b", phase_seconds=[]),
    "step of infinite length": hostile_rows(
        "StepEnd", trainer=TRAINER, number=1, start_ns=0, end_ns=2**62, phase_seconds=float("inf"), batches=1
    ),
    "step of no length": hostile_rows(
        "StepEnd", trainer=TRAINER, number=2**62, start_ns=5, end_ns=5, phase_seconds=float("nan"), batches=0
    ),
    "gpu that is a list": hostile_rows("GpuSample", time_ns=START_NS, uuid=["a"], utilization_percent="full"),
    "gpu before the beginning": hostile_rows("GpuSample", time_ns=-(2**62), uuid="GPU-0", utilization_percent=1e308),
    "facts of numbers": hostile_rows("RunFacts", time_ns=START_NS, trainer=TRAINER, pid="x", start_ticks=0, command=7),
    "phase that never ends": hostile_rows("PhaseSpan", trainer=TRAINER, kind="eval", start_ns=0, end_ns=2**63 - 1),
    "phase of an unknown kind": hostile_rows("PhaseSpan", trainer=TRAINER, kind=[1], start_ns=0, end_ns=1),
    "count without end": hostile_rows("BatchCount", trainer=TRAINER, loader=1, role="train", time_ns=1, batches=2**62),
}


@pytest.mark.parametrize("data", SAMPLES.values(), ids=SAMPLES)
def test_samples_with_values_of_other_types_are_left_out(data: bytes, recording: Path, tmp_path: Path) -> None:
    before = len(everything(recording))
    values = (90_000, 77, START_NS + 10, START_NS + 10, data, zlib.crc32(data))
    change(recording, "INSERT INTO tail VALUES (?, ?, ?, ?, ?, ?)", values=values)
    assert before <= len(everything(recording)) <= before + 1
    assert_bounded(tmp_path, recording)


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_lies_beside_the_file_under_sqlites_names_must_be_files(suffix: str, kind: str, recording: Path) -> None:
    secret = recording.with_name("secret")
    secret.write_text("mine")
    beside = recording.with_name(f"{recording.name}{suffix}")
    make: dict[str, Callable[[], object]] = {
        "link": lambda: beside.symlink_to(secret),
        "pipe": lambda: os.mkfifo(beside),
        "folder": beside.mkdir,
    }
    make[kind]()
    with pytest.raises(CannotOpenError, match=r"move run\.gpuwatch to a folder of its own"):
        Recording(recording)
    assert secret.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="a file of another user takes root's rights to make")
def test_a_log_that_another_user_put_beside_the_file_is_not_read(recording: Path) -> None:
    os.chown(recording, 1234, -1)
    beside = recording.with_name(f"{recording.name}-wal")
    beside.write_bytes(b"x" * 5000)
    os.chown(beside, 4321, -1)
    with pytest.raises(CannotOpenError, match="belongs to user 4321"):
        Recording(recording)


def test_devices_pipes_and_sockets_are_refused_in_a_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, what in ((tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        with pytest.raises(CannotOpenError, match=what):
            Recording(path)


@pytest.mark.parametrize(
    "name", ["a?mode=rwc&vfs=none#x.gpuwatch", "file:x.gpuwatch", "%2e%00.gpuwatch", "\udcff:memory:"]
)
def test_a_name_is_a_name_and_no_address(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    added = recorded(path, 5)
    assert everything(path) == added
    assert sorted(each.name for each in tmp_path.iterdir()) == [name]


def test_a_file_that_is_rewritten_while_it_is_read_ends_the_reading_not_the_process(
    recording: Path, whole: bytes
) -> None:
    with Recording(recording) as opened:
        for cut in (100, 4096, len(whole) // 2):
            recording.write_bytes(whole[:cut])
            list(opened.samples(opened.start_ns, opened.end_ns))
            opened.refresh()
            recording.write_bytes(json.dumps(["not", "a", "recording"]).encode() * 5000)
            list(opened.samples(opened.start_ns, opened.end_ns))
            opened.facts_at(opened.end_ns)
            opened.refresh()
            recording.write_bytes(whole)
        assert opened.meta.problem
