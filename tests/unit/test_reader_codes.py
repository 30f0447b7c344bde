from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, NoneType

import pytest

from gpuwatch.reader.codes import line_table

VERSION = sys.version_info[:2]

SOURCES = ["argparse", "asyncio/base_events", "dataclasses", "typing", "inspect"]


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


@pytest.mark.parametrize("name", SOURCES)
def test_every_instruction_has_the_line_that_the_interpreter_gives_it(name: str) -> None:
    path = Path((Path.__module__ and sys.modules["os"].__file__) or "").parent / f"{name}.py"
    for code in codes(compile(path.read_text(), str(path), "exec")):
        table = line_table(VERSION, code.co_linetable, code.co_firstlineno)
        for start, end, line in code.co_lines():
            assert {table.line(offset) for offset in range(start, end, 2)} == {line}


def test_table_of_3_9_adds_signed_lines_to_bytes() -> None:
    # From the compiler of 3.9: a loop whose condition follows its body, first line 1.
    table = line_table((3, 9), bytes([0, 1, 4, 2, 6, 255, 2, 3]), 1)
    assert [table.line(offset) for offset in (0, 2, 4, 8, 10, 12, 50)] == [2, 2, 4, 4, 3, 6, 6]


def test_table_of_3_8_carries_distances_above_a_byte_over_several_pairs() -> None:
    table = line_table((3, 8), bytes([255, 0, 45, 127, 0, 73]), 10)
    assert table.line(299) == 10
    assert table.line(300) == 210


def test_table_of_3_10_gives_its_own_bytes_a_line_or_none() -> None:
    table = line_table((3, 10), bytes([4, 1, 2, 128, 6, 254]), 7)
    assert [table.line(offset) for offset in (0, 2, 4, 6, 10)] == [8, 8, None, 6, 6]


def test_table_of_3_11_knows_all_its_kinds_of_entries() -> None:
    def entry(kind: int, units: int, *more: int) -> bytes:
        return bytes([0x80 | kind << 3 | units - 1, *more])

    raw = b"".join(
        [
            entry(0, 1, 0x11),  # short: same line
            entry(11, 2, 4, 9),  # one line on
            entry(13, 1, 3),  # no columns: -1 as a signed varint
            entry(14, 1, 0x40 | 0x08, 0x03, 1, 2, 3),  # long: 100 lines on
            entry(15, 8),  # none
        ]
    )
    table = line_table((3, 12), raw, 5)
    assert [table.line(offset) for offset in (0, 2, 4, 6, 8, 10, 24)] == [5, 6, 6, 5, 105, None, None]


@pytest.mark.parametrize("version", [(3, 8), (3, 10), (3, 11), (3, 14)])
def test_frame_before_its_first_instruction_stands_on_its_definition(version: tuple[int, int]) -> None:
    table = line_table(version, b"", 42)
    assert table.line(-2) == 42
    assert table.line(0) == 42


@pytest.mark.parametrize("version", [(3, 9), (3, 10), (3, 13)])
def test_torn_table_gives_lines_but_no_exception(version: tuple[int, int]) -> None:
    for raw in (b"\xf0", b"\xf0\x40\x40", b"\x01", bytes(range(256)), b"\x00" * 7):
        table = line_table(version, raw, 1)
        assert {type(table.line(offset)) for offset in range(0, 64, 2)} <= {int, NoneType}
        assert list(table.starts) == sorted(table.starts), "else none is found"
