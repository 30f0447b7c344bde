"""Structures of a target that have no end or no measure: each is bounded, and all of them together are."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

import pytest

from gpuwatch.reader.attach import interpreter_in
from gpuwatch.reader.codes import line_table
from gpuwatch.reader.layout import OffsetsError, layout_from
from gpuwatch.reader.memory import Gather, UnreadableAddressError
from gpuwatch.reader.program import Image, file_address, mapped_image
from gpuwatch.reader.refusals import Budget, BudgetExceededError, Cache, CannotReadError, Reason, contained
from tests.fuzz.process_images import ImageMemory

VERSION = (3, 11)
MINUTE = 60.0
BASE = 0x400000


def varint(size: int) -> bytes:
    return bytes([0x80 | 13 << 3]) + b"\x7f" * size + b"\x3f"


@pytest.mark.parametrize("size", [7, 5000, 900_000])
def test_a_line_number_of_thousands_of_digits_is_no_line(size: int) -> None:
    began = time.thread_time()
    table = line_table(VERSION, bytes([0x80]) + b"\0" + varint(size) + bytes([0x80, 0]), 5)
    assert [table.line(offset) for offset in (0, 2, 4, 100)] == [5, None, None, None]
    assert time.thread_time() - began < MINUTE, "32 s of CPU at the size of a table before it was bounded"


@pytest.mark.parametrize(("version", "pair"), [((3, 8), b"\1\x7f"), ((3, 10), b"\1\x81"), ((3, 11), b"\xe8\x7e")])
def test_lines_that_leave_the_range_of_lines_are_none(version: tuple[int, int], pair: bytes) -> None:
    table = line_table(version, pair * 400_000, (1 << 31) - 1 if version == (3, 8) else 1)
    assert table.line(300_000) is None
    assert len(table.starts) <= 400_001
    assert table.starts.itemsize + table.lines.itemsize <= 8, "of a table of 1 MiB, lists would be 40 MiB"


def test_a_table_is_read_within_the_budget() -> None:
    budget = Budget(iter(range(1000)).__next__)  # a second passes at each look at the clock
    budget.begin(2.0)
    with pytest.raises(BudgetExceededError):
        line_table(VERSION, b"\x80\0" * 400_000, 1, budget.check)


def test_the_budget_counts_bytes_and_time_of_one_operation() -> None:
    now = [0.0]
    budget = Budget(lambda: now[0])
    budget.begin(1.0)
    for _ in range(1000):
        budget.charge(8)
    now[0] = 1.5
    with pytest.raises(BudgetExceededError, match="1 s of CPU time"):
        for _ in range(1000):
            budget.charge(8)
    budget.begin(1.0)
    budget.charge(8)
    with pytest.raises(BudgetExceededError, match="512 MiB"):
        for _ in range(20):
            budget.charge(64 << 20)


def test_a_read_of_any_size_is_refused_before_memory_is_taken_for_it() -> None:
    memory = ImageMemory({BASE: bytes(4096)}, b"")
    for size in (1 << 27, 1 << 40, (1 << 63) - 1, -1):
        with pytest.raises(UnreadableAddressError):
            memory.read(BASE, size)
    with pytest.raises(UnreadableAddressError):
        Gather(memory, [(BASE, 1 << 26), (BASE, 1 << 26)])


def test_a_read_of_nothing_is_empty() -> None:
    assert ImageMemory({BASE: bytes(4096)}, b"").read(BASE, 0) == b""


def test_a_dynamic_section_of_no_size_has_no_symbols() -> None:
    segment = struct.Struct("<IIQQQQQQ")
    head = HEADER.pack(b"\x7fELF\2\1\1", 2, 62, 1, 0, 64, 0, 0, 64, segment.size, 2, 64, 0, 0)
    head += segment.pack(1, 5, 0, BASE, BASE, 4096, 4096, 4096) + segment.pack(2, 4, 0, BASE, 0, 0, 8, 8)
    image = mapped_image(ImageMemory({BASE: head.ljust(4096, b"\0")}, b""), BASE, "/bin/python3")
    assert image.exported("_PyRuntime") is None


class Broken:
    """A reader whose reading fails."""

    pid = 4711

    def __init__(self, error: BaseException) -> None:
        self.budget = Budget()
        self.error = error

    @contained
    def look(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RecursionError("deep"),
        OverflowError("int"),
        ValueError("Exceeds the limit (4300 digits)"),
        struct.error("short"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
        KeyError("x"),
        IndexError(),
        ZeroDivisionError(),
        AssertionError(),
        OSError(5, "Input/output error"),
        ValueError("\x1b[2Jforged\r\nline\u202e"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_reading_raises_is_a_refusal_of_that_process(error: Exception) -> None:
    with pytest.raises(CannotReadError) as refused:
        Broken(error).look()
    assert refused.value.reason is Reason.MALFORMED
    assert refused.value.is_lasting
    assert refused.value.sentence.startswith(f"reading process 4711 failed ({type(error).__name__}")
    assert refused.value.sentence.isprintable() and refused.value.sentence.isascii()
    assert refused.value.cure


def test_a_budget_that_is_used_up_is_a_refusal_of_that_process() -> None:
    with pytest.raises(CannotReadError) as refused:
        Broken(BudgetExceededError("it takes more than 0.5 s of CPU time")).look()
    assert refused.value.reason is Reason.EXPENSIVE
    assert "0.5 s of CPU time" in refused.value.sentence


def test_a_program_named_to_steer_a_terminal_is_named_safely() -> None:
    maps = b"400000-410000 r-xp 00000000 08:01 9 /bin/a\x1b[2J\xff\r\xe2\x80\xaepython\n"
    with pytest.raises(CannotReadError) as refused:
        interpreter_in(ImageMemory({BASE: bytes(4096)}, maps))
    assert refused.value.sentence.isprintable()
    assert "\\x1b[2J\\xff\\x0d\\u202epython" in refused.value.sentence


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_what_ends_gpuwatch_itself_is_passed_on(error: BaseException) -> None:
    with pytest.raises(type(error)):
        Broken(error).look()


def test_what_is_kept_of_a_process_is_bounded() -> None:
    kept: Cache[int, int] = Cache(100)
    for number in range(1050):
        kept[number] = number
    assert len(kept) == 50
    assert kept[1049] == 1049


SECTION, SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")


@contextmanager
def program(sections: list[tuple[int, ...]], body: bytes = b"", names: int = 0) -> Iterator[tuple[BinaryIO, Image]]:
    """An ELF file with these sections behind its header, then `body`."""
    head = HEADER.pack(
        b"\x7fELF\2\1\1", 3, 62, 1, 0, 0, HEADER.size, 0, 64, 56, 0, SECTION.size, len(sections), names
    )  # fmt: skip
    with os.fdopen(os.memfd_create("program"), "w+b") as file:
        file.write(head + b"".join(SECTION.pack(*section) for section in sections) + body)
        file.flush()
        file.seek(0)
        memory = ImageMemory({BASE: head}, b"")
        memory.budget.begin()
        yield file, Image(memory, BASE, "/bin/python3", 64, 62, 0, head)


def section(kind: int, offset: int, size: int, link: int = 0) -> tuple[int, ...]:
    return (0, kind, 0, 0, offset, size, link, 0, 0, 0)


@pytest.mark.parametrize(
    "place",
    [(1 << 63, 100), ((1 << 64) - 1, (1 << 64) - 1), (0, 1 << 63), (1 << 40, 24), (0, 65 << 20), (100, (1 << 64) - 50)],
)
def test_sections_that_lie_nowhere_are_left_out(place: tuple[int, int]) -> None:
    with program([section(2, *place, link=1), section(3, *place)], names=1) as (file, image):
        assert file_address(file, image, "_PyRuntime", ".PyRuntime") is None


def test_a_sparse_file_of_terabytes_is_not_read() -> None:
    with program([section(2, 4096, 1 << 40, link=1), section(3, 4096, 60 << 20)], names=1) as (file, image):
        os.ftruncate(file.fileno(), 1 << 42)
        assert file_address(file, image, "_PyRuntime", ".PyRuntime") is None


def test_one_symbol_table_is_read_however_many_there_are() -> None:
    count, table = 200, 48 << 20
    rows = [section(2, 1 << 20, table // 24 * 24, link=count)] * count + [section(3, 1 << 20, 1 << 20)]
    with program(rows, names=count) as (file, image):
        os.ftruncate(file.fileno(), 1 << 28)
        file.seek(1 << 20)
        file.write(b"\0_PyRuntime\0")
        file.flush()
        file.seek(0)
        began = time.thread_time()
        with suppress(BudgetExceededError):
            assert file_address(file, image, "_PyRuntime", ".PyRuntime") is None
        assert time.thread_time() - began < 10.0, "0.5 s for each of 200 tables"


def test_symbols_whose_names_are_everywhere_are_found_once() -> None:
    names = b"\0" + b"_PyRuntime\0" * 100_000
    at = HEADER.size + 2 * SECTION.size
    symbols = SYMBOL.pack(1, 0, 0, 1, 0x1234, 8)
    rows = [section(2, at, len(symbols), link=1), section(3, at + len(symbols), len(names))]
    with program(rows, symbols + names, names=1) as (file, image):
        assert file_address(file, image, "_PyRuntime") == 0x1234


def test_a_hash_table_without_end_uses_up_the_budget_of_its_process_only() -> None:
    """Each image may ask for a chain of 4 096 symbols; a process may map a thousand images."""
    segment = struct.Struct("<IIQQQQQQ")
    dynamic = struct.pack("<8Q", 5, 0x2000, 6, 0x2000, 0x6FFFFEF5, 0x1000, 0, 0)
    head = HEADER.pack(b"\x7fELF\2\1\1", 2, 62, 1, 0, 64, 0, 0, 64, segment.size, 2, 64, 0, 0)
    head += segment.pack(1, 5, 0, BASE, BASE, 0x9000, 0x9000, 0x1000)
    head += segment.pack(2, 4, 0x800, BASE + 0x800, 0, len(dynamic), len(dynamic), 8)
    wanted = 5381
    for byte in b"_PyRuntime":
        wanted = (wanted * 33 + byte) & 0xFFFFFFFF
    table = struct.pack("<IIIIQI", 1, 1, 1, 0, 0, 1) + struct.pack("<I", wanted & ~1) * 8000
    image = bytearray(0x10000)
    image[: len(head)] = head
    image[0x800 : 0x800 + len(dynamic)] = struct.pack(
        "<8Q", 5, BASE + 0x100, 6, BASE + 0x200, 0x6FFFFEF5, BASE + 0x1000, 0, 0
    )
    image[0x1000 : 0x1000 + len(table)] = table
    for index in range(4096):
        place = 0x200 + 24 * index
        if place + 24 < 0x1000:
            image[place : place + 24] = SYMBOL.pack(0, 0, 0, 1, 0, 0)
    pieces = {BASE + (number << 20): bytes(image) for number in range(1000)}
    maps = b"".join(
        b"%x-%x r-xp 00000000 08:01 %d /lib/python%d\n" % (start, start + 0x10000, start, start) for start in pieces
    )
    memory = ImageMemory(pieces, maps)
    began = time.thread_time()
    with pytest.raises(CannotReadError) as refused:
        interpreter_in(memory)
    assert refused.value.reason in (Reason.EXPENSIVE, Reason.NOT_PYTHON, Reason.NO_SYMBOLS)
    assert time.thread_time() - began < 5.0


def test_offsets_that_are_no_layout_of_python_are_refused() -> None:
    """Sizes and orders that made the reader ask for gigabytes or build a format with negative padding."""
    good = described()
    layout_from(good)
    for name, value in (
        ("text.asciiobject_size", 1 << 60),
        ("text.asciiobject_size", 8),
        ("frame.owner", 1 << 23),
        ("frame.size", 1 << 23),
        ("frame.previous", 4),
        ("code.size", 1 << 23),
        ("thread.size", 1 << 23),
    ):
        with pytest.raises(OffsetsError):
            layout_from(described(**{name.replace(".", "__"): value}))


def described(**changes: int) -> bytes:
    """A description of 3.13 with these numbers changed."""
    from gpuwatch.reader import layout

    numbers = {
        "runtime": [1000, 0, 8], "interpreter": [1000, 8, 0, 16], "thread": [500, 0, 8, 16, 72, 152, 160, 232],
        "frame": [80, 8, 0, 56, 72, 70], "code": [208, 112, 120, 128, 136, 68, 0, 0, 0, 200], "object": [16, 8],
        "type": [408, 24, 0, 0], "bytes": [40, 16, 32], "text": [64, 32, 16, 40],
    }  # fmt: skip
    raw = b"xdebugpy" + struct.pack("<QQ", 0x030D00F0, 0)
    for name, fields in layout._SECTIONS[3, 13].items():
        for index, field in enumerate(fields.split()):
            value = numbers.get(name, [])[index] if index < len(numbers.get(name, [])) else 0
            raw += struct.pack("<Q", changes.get(f"{name}__{field}", value))
    return raw.ljust(layout.SIZE, b"\0")
