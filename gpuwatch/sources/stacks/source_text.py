"""Lines of the target's source files, read as the target sees them and with its rights.

A file that is newer than the process is not what runs there, so nothing is said of it.
"""

from __future__ import annotations

import codecs
import os
import re
import tokenize
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TypeVar

from gpuwatch.foreign import exists_for, read_foreign
from gpuwatch.procfs import keyed_int, read_all
from gpuwatch.reader.refusals import Cache
from gpuwatch.sources.syntax import SHARED, Loop, NoAnswerError, Parser, Request, Tables, request_in_text

_LARGEST_FILE = 2 << 20
_FILES_KEPT = 128
_TEXT_SHOWN = 200
_LAST_END = re.compile(r"(\r\n|\r|\n)\Z")
_LINE_END = re.compile(r"\r\n|\r|\n")  # as Python counts lines: `splitlines` also cuts at form feeds
_PARSE_SECONDS = 5.0  # of the child's CPU time, for all files of a process; 20 files of a training take 1 s
_MOST_UNPARSED = 4
_ENCODINGS = ("utf", "ascii", "iso", "cp", "latin", "mac", "koi8", "euc", "gb", "big5", "shift_jis", "hz", "johab")

_Answer = TypeVar("_Answer")


class SourceFile:
    """One file's lines, and what is asked of its syntax where that can be had."""

    def __init__(self, text: str, parse: Callable[[str], Tables | None] = SHARED.tables) -> None:
        self.lines = _LINE_END.split(_LAST_END.sub("", text))
        self.text = text
        self._parse = parse
        self._tables: Tables | None = None
        self._is_parsed = False

    def line(self, number: int) -> str | None:
        """The text of a line, without its indentation."""
        if not 1 <= number <= len(self.lines):
            return None
        return self.lines[number - 1].strip()[:_TEXT_SHOWN]

    @property
    def parses(self) -> bool:
        """Whether its statements are known."""
        return self._syntax() is not None

    def request(self, number: int) -> Request | None:
        """What the statement at a line asks for; what the line alone says where the file cannot be parsed."""
        tables = self._syntax()
        return request_in_text(self.line(number) or "") if tables is None else tables.requests.get(number)

    def loops(self, number: int) -> Sequence[Loop]:
        """The loops around a line, in the function it belongs to, innermost first."""
        tables = self._syntax()
        if tables is None:
            return ()
        scope = max((first for first, last in tables.scopes if first <= number <= last), default=0)
        found = [loop for loop in tables.loops if scope <= loop.first <= number <= loop.last]
        return sorted(found, key=lambda loop: -loop.first)

    def _syntax(self) -> Tables | None:
        if not self._is_parsed:
            self._is_parsed = True
            self._tables = self._parse(self.text)
        return self._tables


class SourceText:
    """The source files of one process.

    Args:
        pid: Whose files they are; its workers see the same ones.
        start_ticks: When it started, in clock ticks after boot.
        proc_root: The /proc to read.
        parser: Takes the files apart.
    """

    def __init__(self, pid: int, start_ticks: int, proc_root: Path, parser: Parser = SHARED) -> None:
        self._pid, self._start_ticks, self._proc_root = pid, start_ticks, proc_root
        self._started = _wall_seconds(start_ticks, proc_root)
        self._files: Cache[str, SourceFile | None] = Cache(_FILES_KEPT)
        self._parser = parser
        self._parse_seconds = _PARSE_SECONDS
        self.problem: str | None = None
        """Why syntax was left out, where it was: only lines are known then."""
        self.unanswered = 0
        """How often the parser gave no answer: on a busy machine it may have one later."""

    def exists(self, file: str) -> bool:
        """Whether the target has such a file."""
        return exists_for(self._pid, file, proc_root=self._proc_root)

    def file(self, file: str) -> SourceFile | None:
        """A file's content; None where it cannot be read or is newer than the process."""
        if file not in self._files:
            self._files[file] = self._read(file)
        return self._files[file]

    def parses(self, file: str) -> bool:
        """Whether the file's statements are known."""
        source = self.file(file)
        return source is not None and source.parses

    def line(self, file: str, number: int | None) -> str | None:
        """The text of one line."""
        source = self.file(file) if number is not None else None
        return source.line(number) if source is not None and number is not None else None

    def request(self, file: str, number: int | None) -> Request | None:
        """What the statement at a line asks for."""
        source = self.file(file) if number is not None else None
        return source.request(number) if source is not None and number is not None else None

    def loops(self, file: str, number: int | None) -> Sequence[Loop]:
        """The loops around a line, in the function it belongs to, innermost first."""
        source = self.file(file) if number is not None else None
        return source.loops(number) if source is not None and number is not None else ()

    def loader_line(self, file: str, loop_line: int | None) -> int | None:
        """The line of the `DataLoader(...)` call that the loop at a line reads; None where it is not sure."""
        source = self.file(file)
        return None if source is None else self._asked(lambda: self._parser.loader_line(source.text, loop_line))

    def _tables(self, text: str) -> Tables | None:
        return self._asked(lambda: self._parser.tables(text))

    def _asked(self, question: Callable[[], _Answer | None]) -> _Answer | None:
        """The parser's answer, as long as this process's files have not taken more of its time than they may."""
        if self._parse_seconds <= 0.0:
            return None
        with self._parser.turn:
            before = self._parser.cpu_seconds
            try:
                return question()
            except NoAnswerError as error:
                self.unanswered += 1
                self.problem = f"a source file that {error} is not parsed: only its lines are known"
                self._parse_seconds -= _PARSE_SECONDS / _MOST_UNPARSED
                return None
            finally:
                self._parse_seconds -= self._parser.cpu_seconds - before
                if self._parse_seconds <= 0.0:
                    self.problem = "its source files take too long to parse: only their lines are known"

    def _read(self, file: str) -> SourceFile | None:
        try:
            found = read_foreign(
                self._pid, file, _LARGEST_FILE, start_ticks=self._start_ticks, proc_root=self._proc_root
            )
            if self._started is not None and found.modified_seconds > self._started + 1.0:
                return None
            encoding, _ = tokenize.detect_encoding(BytesIO(found.content).readline)
            return SourceFile(_decoded(found.content, encoding), self._tables)
        except (OSError, SyntaxError, LookupError):
            return None


def _decoded(content: bytes, encoding: str) -> str:
    """The text of a file.

    Raises:
        LookupError: It is in an encoding that takes more time the longer the text is: punycode, idna.
    """
    if not codecs.lookup(encoding).name.startswith(_ENCODINGS):
        raise LookupError(encoding)
    return content.decode(encoding, "replace")


def _wall_seconds(start_ticks: int, proc_root: Path) -> float | None:
    booted = keyed_int(read_all(f"{proc_root}/stat") or b"", b"btime")
    return None if booted is None else booted + start_ticks / os.sysconf("SC_CLK_TCK")
