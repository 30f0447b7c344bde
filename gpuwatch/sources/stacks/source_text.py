"""Lines of the target's source files, read as the target sees them: through its own root and working folder.

A file that is newer than the process is not what runs there, so nothing is said of it.
"""

from __future__ import annotations

import ast
import os
import stat
import tokenize
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from gpuwatch.sources.host.procfs import keyed_int, read_all
from gpuwatch.sources.stacks.statements import Request, request_in_text
from gpuwatch.sources.stacks.syntax import Loop, LoopTable, requests_by_line

_LARGEST_FILE = 2 << 20
_FILES_KEPT = 128
_TEXT_SHOWN = 200


class SourceFile:
    """One file's lines, and what is asked of its syntax where this Python can parse it."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self._text = text
        self._parses: bool | None = None
        self._loops: LoopTable | None = None
        self._requests: dict[int, Request] | None = None

    def line(self, number: int) -> str | None:
        """The text of a line, without its indentation."""
        if not 1 <= number <= len(self.lines):
            return None
        return self.lines[number - 1].strip()[:_TEXT_SHOWN]

    def parse(self) -> ast.Module | None:
        """The syntax tree, parsed anew; None for a file in a newer Python's syntax."""
        if self._parses is False:
            return None
        try:
            tree = ast.parse(self._text)
        except (SyntaxError, ValueError, RecursionError):
            self._parses = False
            return None
        self._parses = True
        return tree

    @property
    def parses(self) -> bool:
        """Whether its statements can be told."""
        return self._parses if self._parses is not None else self.parse() is not None

    def request(self, number: int) -> Request | None:
        """What the statement at a line asks for; what the line alone says where the file cannot be parsed."""
        if self._requests is None:
            tree = self.parse()
            self._requests = requests_by_line(tree) if tree is not None else {}
        if not self.parses:
            return request_in_text(self.line(number) or "")
        return self._requests.get(number)

    def loops(self, number: int) -> Sequence[Loop]:
        """The loops around a line, in the function it belongs to, innermost first."""
        if self._loops is None and (tree := self.parse()) is not None:
            self._loops = LoopTable(tree)
        return self._loops.around(number) if self._loops is not None else ()


class SourceText:
    """The source files of one process.

    Args:
        pid: Whose files they are; its workers see the same ones.
        start_ticks: When it started, in clock ticks after boot.
    """

    def __init__(self, pid: int, start_ticks: int, proc_root: Path) -> None:
        self._folder = f"{proc_root}/{pid}"
        self._started = _wall_seconds(start_ticks, proc_root)
        self._files: dict[str, SourceFile | None] = {}

    def exists(self, file: str) -> bool:
        """Whether the target has such a file."""
        return os.path.exists(self._path(file))  # noqa: PTH110 - asked of text, once per file

    def file(self, file: str) -> SourceFile | None:
        """A file's content; None where it cannot be read or is newer than the process."""
        if file not in self._files:
            if len(self._files) >= _FILES_KEPT:
                self._files.clear()
            self._files[file] = self._read(file)
        return self._files[file]

    def parses(self, file: str) -> bool:
        """Whether the file's statements can be told."""
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

    def _path(self, file: str) -> str:
        return f"{self._folder}/root{file}" if file.startswith("/") else f"{self._folder}/cwd/{file}"

    def _read(self, file: str) -> SourceFile | None:
        path = self._path(file)
        try:
            status = os.stat(path)  # noqa: PTH116 - a path of /proc as text
        except (OSError, ValueError):
            return None
        # A pipe (`python /dev/fd/63`, a named one) would hold its reader, and give to it what is for another.
        is_text = stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST_FILE
        if not is_text or (self._started is not None and status.st_mtime > self._started + 1.0):
            return None
        content = read_all(path, _LARGEST_FILE)
        if content is None:
            return None
        try:
            encoding, _ = tokenize.detect_encoding(BytesIO(content).readline)
            return SourceFile(content.decode(encoding, "replace"))
        except (SyntaxError, LookupError):
            return None


def _wall_seconds(start_ticks: int, proc_root: Path) -> float | None:
    booted = keyed_int(read_all(f"{proc_root}/stat") or b"", b"btime")
    return None if booted is None else booted + start_ticks / os.sysconf("SC_CLK_TCK")
