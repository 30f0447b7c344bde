"""Asks the child, starts it again where it ended, and takes no answer for "cannot be parsed"."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, NamedTuple

from gpuwatch.sources.limited_child import CLOSE_SECONDS, LimitedChild
from gpuwatch.sources.syntax_child.protocol import (
    ANSWER_SECONDS,
    CPU_SECONDS,
    LONGEST_ANSWER,
    LONGEST_TEXT,
    QUESTION,
    TABLES,
    WITHOUT_LINE,
    Loop,
    Request,
)

_MODULE = "gpuwatch.sources.syntax_child.__main__"


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
            raise NoAnswerError(f"larger than {LONGEST_TEXT >> 20} MiB")
        with self.turn:
            if self._child is not None and self._child.has_ended():
                self._end(0.0)
            answer = self._converse(QUESTION.pack(line) + data)
            if answer is None:
                self.cpu_seconds += CPU_SECONDS
                self._end(0.0)
                raise NoAnswerError(f"takes more than {CPU_SECONDS:g} s to parse, or ends the parser")
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
