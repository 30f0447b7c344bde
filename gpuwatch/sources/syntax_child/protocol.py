"""What parent and child agree on."""

from __future__ import annotations

import re
import struct
from typing import Any, Final, Literal, NamedTuple

Request = Literal["sync", "copy", "save", "log", "forward"]

QUESTION = struct.Struct("<i")
"""What is asked of the text behind it: TABLES, or where the loader of the loop at a line was built."""
TABLES, WITHOUT_LINE = -1, -2

LONGEST_TEXT = 1 << 20
LONGEST_ANSWER = 4 << 20
MOST_ROWS = 10_000  # of each table; torch's longest file has 200 loops
LONGEST_OVER = 200
MOST_NAMES = 200
CPU_SECONDS = 0.5  # for one text; torch's longest file, 270 KiB, takes 0.2 s
ANSWER_SECONDS = 3.0  # of wall time, on a machine where others compute
MEMORY_BYTES = 512 << 20


class Loop(NamedTuple):
    """A `for` or `while` statement: its first line, the last line of its header, and its last line.

    `over` is what a `for` iterates over, as text, and `over_names` the names in it; `calls` are the names of all
    functions that the loop calls. `counters` are the variables that grow by one each time around ("step",
    "self.step"), surest first.
    """

    first: int
    header_last: int
    last: int
    iterates: bool
    over: str
    over_names: frozenset[str]
    calls: frozenset[str]
    counters: tuple[str, ...] = ()

    def as_row(self) -> list[object]:
        """As JSON has it."""
        return [*self[:5], sorted(self.over_names), sorted(self.calls), self.counters]

    @classmethod
    def of_row(cls, row: list[Any]) -> Loop:
        """From what JSON has."""
        return cls._make([*row[:5], frozenset(row[5]), frozenset(row[6]), tuple(row[7])])


_IN_TEXT: Final[tuple[tuple[Request, re.Pattern[str]], ...]] = (
    ("sync", re.compile(r"\.(?:item|cpu|tolist|numpy)\(|synchronize\(")),
    ("copy", re.compile(r"\.(?:to|cuda)\(")),
    ("save", re.compile(r"pickle\.dump\(|torch\.save\(")),
    ("log", re.compile(r"(?<![\w.])print\(")),
)


def request_in_text(text: str) -> Request | None:
    """What one line of text asks for, where no syntax tree can be had."""
    return next((request for request, pattern in _IN_TEXT if pattern.search(text)), None)
