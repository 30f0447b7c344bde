"""The syntax of source files that watched processes name, taken apart in a process of its own.

Such a file may hold anything. Up to Python 3.10 `ast.parse` crashes the interpreter for 256 KiB of `a+a+a+...`; for as
much of short statements it holds the GIL for 0.8 s and takes 250 MB; and the search for where a loader was built may
have no end. The child (`syntax_child`) may do all that: it has limits, and what is lost with it is one answer.
"""

from __future__ import annotations

import json
import re
import struct
import threading
import time
from typing import Any, Final, Literal, NamedTuple

from gpuwatch.sources.limited_child import CLOSE_SECONDS, LimitedChild

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


_MODULE = "gpuwatch.sources.syntax_child"


class Tables(NamedTuple):
    """What is asked of a file's syntax: requests by line, the (first, last) lines of functions and classes, loops."""

    requests: dict[int, Request]
    scopes: list[tuple[int, int]]
    loops: list[Loop]


class NoAnswerError(Exception):
    """The child did not survive the text, or had no time for it."""


class Parser:
    """The syntax of texts, by a child that is started with the first one and ends itself when idle."""

    def __init__(self) -> None:
        self.turn = threading.RLock()
        """Held by one thread at a time: what `cpu_seconds` grows by meanwhile was for that one's questions."""
        self._child: LimitedChild | None = None
        self.cpu_seconds = 0.0
        """What the child has used, answers that never came included."""

    def tables(self, text: str) -> Tables | None:
        """What the statements of a text say; None where this Python cannot parse it.

        Raises:
            NoAnswerError: It takes too much time or memory.
        """
        found = self._ask(text, TABLES)
        if found is None:
            return None
        scopes = [(first, last) for first, last in found["scopes"]]
        return Tables(dict(found["requests"]), scopes, [Loop.of_row(row) for row in found["loops"]])

    def loader_line(self, text: str, loop_line: int | None) -> int | None:
        """The line of the `DataLoader(...)` call that the loop at `loop_line` reads; None where it is not sure.

        Raises:
            NoAnswerError: It takes too much time or memory.
        """
        line = self._ask(text, WITHOUT_LINE if loop_line is None else loop_line)
        return line if isinstance(line, int) else None

    def close(self) -> None:
        """Ends the child. Idempotent; a later question starts another one."""
        if self.turn.acquire(timeout=CLOSE_SECONDS):  # else it is asked right now, and ends with this process
            try:
                self._end(CLOSE_SECONDS)
            finally:
                self.turn.release()

    def _ask(self, text: str, line: int) -> Any:
        data = text.encode("utf-8", "replace")
        if len(data) > LONGEST_TEXT or not -(1 << 31) <= line < 1 << 31:
            raise NoAnswerError(f"is larger than {LONGEST_TEXT >> 20} MiB")
        with self.turn:
            if self._child is not None and self._child.has_ended():
                self._end(0.0)
            answer = self._converse(QUESTION.pack(line) + data)
            if answer is None:
                self.cpu_seconds += CPU_SECONDS
                self._end(0.0)
                raise NoAnswerError(f"takes more than {CPU_SECONDS:g} s to parse, or crashes the parser")
            self.cpu_seconds += float(answer["cpu_seconds"])
            if answer["is_last"]:
                self._end(CLOSE_SECONDS)
            return answer["found"]

    def _converse(self, question: bytes) -> Any:
        try:
            child = self._child = self._child or LimitedChild(_MODULE)
            end = time.monotonic() + ANSWER_SECONDS
            child.send(question, end)
            return json.loads(child.receive(LONGEST_ANSWER, end))
        except (OSError, ValueError):
            return None

    def _end(self, patience_seconds: float) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end(patience_seconds)


SHARED = Parser()
