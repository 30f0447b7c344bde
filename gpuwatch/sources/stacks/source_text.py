"""Lines of the target's source files, read as the target sees them: through its own root and working folder.

A file that is newer than the process is not what runs there, so nothing is said of it.
"""

from __future__ import annotations

import ast
import os
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from gpuwatch.sources.host.procfs import keyed_int, read_all

_LARGEST_FILE = 2 << 20
_FILES_KEPT = 128
_TEXT_SHOWN = 200


class SourceFile:
    """One file's lines, and its syntax tree where this Python can parse it."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self._text = text
        self._tree: ast.Module | None = None
        self._statements: list[ast.stmt | None] | None = None
        self._loops: dict[int, list[Loop]] = {}

    def line(self, number: int) -> str | None:
        """The text of a line, without its indentation."""
        if not 1 <= number <= len(self.lines):
            return None
        return self.lines[number - 1].strip()[:_TEXT_SHOWN]

    @property
    def tree(self) -> ast.Module | None:
        """The syntax tree; None for a file in a newer Python's syntax."""
        if self._tree is None and self._statements is None:
            try:
                self._tree = ast.parse(self._text)
            except (SyntaxError, ValueError, RecursionError):
                self._statements = []
        return self._tree

    def statement(self, number: int) -> ast.stmt | None:
        """The innermost statement that has this line in it: of one with a body, only its header counts."""
        tree = self.tree
        if self._statements is None:
            self._statements = [None] * (len(self.lines) + 2)
            if tree is not None:
                _spread(tree.body, self._statements)
        return self._statements[number] if 0 <= number < len(self._statements) else None

    def loops(self, number: int) -> Sequence[Loop]:
        """The loops around a line, in the function it belongs to, innermost first."""
        known = self._loops.get(number)
        if known is None:
            known = self._loops[number] = _loops_around(self.tree.body, number) if self.tree else []
        return known


@dataclass(frozen=True, slots=True)
class Loop:
    """A `for` or `while` statement: its first line, the last line of its header, and its last line."""

    node: ast.For | ast.AsyncFor | ast.While
    first: int
    header_last: int
    last: int

    @property
    def iterates(self) -> bool:
        """Whether it is a `for`."""
        return not isinstance(self.node, ast.While)

    @property
    def target_text(self) -> str:
        """What it iterates over, as source; empty for a `while`."""
        return "" if isinstance(self.node, ast.While) else ast.unparse(self.node.iter)


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
        return source is not None and source.tree is not None

    def line(self, file: str, number: int | None) -> str | None:
        """The text of one line."""
        source = self.file(file) if number is not None else None
        return source.line(number) if source is not None and number is not None else None

    def statement(self, file: str, number: int | None) -> ast.stmt | None:
        """The statement that a line belongs to."""
        source = self.file(file) if number is not None else None
        return source.statement(number) if source is not None and number is not None else None

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
        if status.st_size > _LARGEST_FILE or (self._started is not None and status.st_mtime > self._started + 1.0):
            return None
        content = read_all(path, _LARGEST_FILE)
        if content is None:
            return None
        try:
            encoding, _ = tokenize.detect_encoding(BytesIO(content).readline)
            return SourceFile(content.decode(encoding, "replace"))
        except (SyntaxError, LookupError):
            return None


def header_lines(statement: ast.stmt) -> tuple[int, int]:
    """The first and last line of a statement, without the body of a compound one."""
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if not body:
        return statement.lineno, statement.end_lineno or statement.lineno
    first = body[0]
    start = getattr(first, "lineno", None) or first.pattern.lineno
    decorators = [decorator.lineno for decorator in getattr(first, "decorator_list", ())]
    last = max(statement.lineno, min([start, *decorators]) - 1)
    return statement.lineno, last


def _loops_around(body: Sequence[ast.AST], number: int) -> list[Loop]:
    found: list[Loop] = []
    inside: Sequence[ast.AST] = body
    while True:
        node = next((node for node in inside if _has_line(node, number)), None)
        if node is None:
            return found
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found = []
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            first, header_last = header_lines(node)
            found.insert(0, Loop(node, first, header_last, node.end_lineno or first))
        inside = list(ast.iter_child_nodes(node)) if not isinstance(node, ast.expr) else ()


def _has_line(node: ast.AST, number: int) -> bool:
    if isinstance(node, (ast.ExceptHandler, ast.match_case)):
        body = node.body
        start = getattr(node, "lineno", None) or node.pattern.lineno  # type: ignore[union-attr]
        return bool(start <= number <= (body[-1].end_lineno or start))
    return isinstance(node, ast.stmt) and node.lineno <= number <= (node.end_lineno or node.lineno)


def _spread(body: list[ast.stmt], statements: list[ast.stmt | None]) -> None:
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.stmt):
            first, last = header_lines(node)
            for number in range(first, min(last, len(statements) - 1) + 1):
                known = statements[number]
                if known is None or known.lineno <= node.lineno:
                    statements[number] = node
        if not isinstance(node, ast.expr):
            pending.extend(ast.iter_child_nodes(node))


def _wall_seconds(start_ticks: int, proc_root: Path) -> float | None:
    booted = keyed_int(read_all(f"{proc_root}/stat") or b"", b"btime")
    return None if booted is None else booted + start_ticks / os.sysconf("SC_CLK_TCK")
