"""A source file as text and syntax tree: where its nodes lie, what its names and calls mean.

CPython's parser decides what is source; nothing here recurses, so odd files end in a sentence, not in a crash.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | ast.Module
_STRINGS = (ast.JoinedStr, getattr(ast, "TemplateStr", ast.JoinedStr))  # t-strings came with 3.14
_LINE_STARTS = re.compile(r"(?:\A|(?<=\n)|(?<=\r)(?!\n))")
_REST_OF_LINE = re.compile(r"[ \t\f]*(#[^\r\n]*)?(\r\n|\r|\n|\Z)")


class CannotEditError(Exception):
    """The edit cannot be made safely; the message says why, without a full stop."""


class AlreadySoError(CannotEditError):
    """The source says already what the edit would make it say."""


@dataclass(frozen=True, slots=True)
class Change:
    """`text[start:end]` of a file gives way to `new`."""

    file: str
    start: int
    end: int
    new: str


class Module:
    """A Python file that was parsed."""

    def __init__(self, file: str, text: str, tree: ast.Module) -> None:
        self.file = file
        self.text = text
        self.tree = tree

    @cached_property
    def _starts(self) -> list[int]:
        return [match.start() for match in _LINE_STARTS.finditer(self.text)]

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def line_start(self, line: int) -> int:
        """Where a line (from 1) begins; behind the last one: the end of the text."""
        return self._starts[line - 1] if line <= len(self._starts) else len(self.text)

    def offset(self, line: int, column: int) -> int:
        """Where a position of `ast` lies in the text: it counts columns in bytes of UTF-8."""
        start = self.line_start(line)
        return start + len(self.text[start : start + column].encode("utf-8")[:column].decode("utf-8", "ignore"))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a node lies in the text."""
        if any(isinstance(each, _STRINGS) for each in self.ancestors(node)):  # places in there are right from 3.12 on
            raise CannotEditError(f"line {node.lineno} of {self.file} is inside of an f-string")
        return self.offset(node.lineno, node.col_offset), self.offset(*_end(node))

    def source(self, node: ast.expr | ast.stmt) -> str:
        """A node as it is written."""
        start, end = self.span(node)
        return self.text[start:end]

    def replaced(self, node: ast.expr | ast.stmt, new: str) -> Change:
        """The change that puts `new` in the place of a node."""
        return Change(self.file, *self.span(node), new)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """What holds a node."""
        return self._parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """What holds a node, from the inside out."""
        while (above := self._parents.get(node)) is not None:
            yield above
            node = above

    def scope(self, node: ast.AST) -> _Scope:
        """The innermost function, lambda, class or module around a node."""
        return next((each for each in self.ancestors(node) if isinstance(each, _Scope)), self.tree)

    def statement(self, line: int) -> ast.stmt:
        """The innermost statement on a line."""
        spanning = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.stmt) and first_line(node) <= line <= _end(node)[0]
        ]
        if not spanning:
            raise CannotEditError(f"line {line} of {self.file} holds no statement")
        innermost = max(spanning, key=lambda node: (node.lineno, -_end(node)[0], node.col_offset))
        if sum(node.lineno == innermost.lineno for node in self.block(innermost)) > 1:
            raise CannotEditError(f"line {line} of {self.file} holds several statements")
        return innermost

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """The statement that a node is part of."""
        if isinstance(node, ast.stmt):
            return node
        return next(each for each in self.ancestors(node) if isinstance(each, ast.stmt))

    def block(self, statement: ast.stmt) -> Sequence[ast.stmt]:
        """The statements of the block that a statement is in."""
        parent = self._parents[statement]
        for _, value in ast.iter_fields(parent):
            if isinstance(value, list) and statement in value:
                return value
        raise CannotEditError(f"line {statement.lineno} of {self.file} is in no block")

    def lines_of(self, first: ast.stmt, last: ast.stmt) -> tuple[int, int]:
        """First and last line of consecutive statements that share no line with others."""
        top, bottom = first_line(first), _end(last)[0]
        start = self.line_start(top)
        before = self.text[:start].rstrip("\r\n") if top > 1 else ""
        alone = not self.text[start : self.offset(first.lineno, first.col_offset)].strip() or top < first.lineno
        if not alone or before.endswith("\\") or not _REST_OF_LINE.match(self.text, self.offset(*_end(last))):
            raise CannotEditError(f"the statement in line {first.lineno} of {self.file} shares its line with another")
        return top, bottom

    def indentation(self, statement: ast.stmt) -> str:
        """The white space before a statement."""
        start = self.line_start(first_line(statement))
        return re.compile(r"[ \t\f]*").match(self.text, start).group()  # type: ignore[union-attr] # matches nothing, too

    def newline(self, line: int) -> str:
        """How a line ends, or how the file's lines end where this is the last one without an end."""
        ends = re.compile(r"\r\n|\r|\n")
        found = ends.search(self.text, self.line_start(line)) or ends.search(self.text)
        return found.group() if found else "\n"

    @cached_property
    def indent(self) -> str:
        """One level of indentation, as the file has it."""
        for node in ast.walk(self.tree):
            body = getattr(node, "body", None)
            if isinstance(node, ast.stmt) and isinstance(body, list) and body[0].lineno > node.lineno:
                outer, inner = self.indentation(node), self.indentation(body[0])
                if inner.startswith(outer) and len(inner) > len(outer) and "\f" not in inner:
                    return inner[len(outer) :]
        return "    "

    def inserted_before(self, statement: ast.stmt, code: str) -> Change:
        """The change that puts a line before a statement."""
        top, _ = self.lines_of(statement, statement)
        start = self.line_start(top)
        return Change(self.file, start, start, f"{self.indentation(statement)}{code}{self.newline(top)}")

    def inserted_behind(self, statement: ast.stmt, *codes: str) -> Change:
        """The change that puts lines behind a statement; an empty text is an empty line."""
        _, bottom = self.lines_of(statement, statement)
        newline, indentation = self.newline(bottom), self.indentation(statement)
        end = self.line_start(bottom + 1)
        open_end = not self.text[:end].endswith(("\n", "\r"))
        lines = "".join(f"{newline}{indentation if code else ''}{code}" for code in codes)
        if open_end:
            return Change(self.file, end, end, lines)
        return Change(self.file, end, end, f"{lines.removeprefix(newline)}{newline}")

    def wrapped(self, statements: Sequence[ast.stmt], header: str) -> list[Change]:
        """The changes that put consecutive statements of a block under a compound statement.

        Lines that begin inside of a string stay where they are.
        """
        top, bottom = self.lines_of(statements[0], statements[-1])
        start = self.line_start(top)
        head = f"{self.indentation(statements[0])}{header}{self.newline(top)}"
        changes = [Change(self.file, start, start, head)]
        for line in sorted(set(range(top, bottom + 1)) - _lines_in_strings(statements)):
            text = self.text[self.line_start(line) : self.line_start(line + 1)]
            if text.strip():
                at = self.line_start(line) + len(text) - len(text.lstrip(" \t\f"))
                changes.append(Change(self.file, at, at, self.indent))
        return changes


def first_line(statement: ast.stmt) -> int:
    """The first line of a statement, its decorators included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None  # always set by ast.parse
    return node.end_lineno, node.end_col_offset


def _lines_in_strings(statements: Sequence[ast.stmt]) -> set[int]:
    inside: set[int] = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, _STRINGS) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
                inside.update(range(node.lineno + 1, _end(node)[0] + 1))
    return inside


def called(call: ast.Call) -> str | None:
    """The last part of what a call calls: `DataLoader` of `torch.utils.data.DataLoader(...)`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None


def dotted(node: ast.AST) -> str | None:
    """`self.model` for names and their attributes; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def root(node: ast.AST) -> str | None:
    """The name that an expression of attributes, items and calls begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def loaded(node: ast.AST) -> set[str]:
    """The names that are read anywhere in a node."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


def stored(node: ast.AST) -> set[str]:
    """The names that a node binds or changes: assigned, deleted, imported, defined, with an item or attribute set."""
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(each.ctx, ast.Load):
            found.add(root(each) or "")
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(each.name)
        elif isinstance(each, ast.Import | ast.ImportFrom):
            found.update((alias.asname or alias.name).split(".")[0] for alias in each.names)
        elif isinstance(each, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and each.name:
            found.add(each.name)
    return found - {""}


def imported_as(module: Module, name: str) -> set[str]:
    """The name itself, and those it was imported under: `from torch.utils.data import DataLoader as Loader`."""
    aliases = (
        alias.asname
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == name and alias.asname
    )
    return {name, *aliases}


def import_missing(module: Module, package: str) -> list[Change]:
    """The import of a package, behind the others, where the module does not have it under its own name."""
    if any(_binds(node, package) for node in module.tree.body):
        return []
    if package in stored(module.tree):
        raise CannotEditError(f"{module.file} uses the name {package} for something else")
    last = last_import(module)
    if last is None:
        raise CannotEditError(f"{module.file} does not import {package}")
    return [module.inserted_behind(last, f"import {package}")]


def last_import(module: Module) -> ast.stmt | None:
    """The last import at the head of a module: before its first function, class, loop or condition."""
    last = None
    for node in module.tree.body:
        tried = node.body if isinstance(node, ast.Try) else [node]
        if any(isinstance(each, ast.Import | ast.ImportFrom) for each in tried):
            last = node
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.For | ast.While | ast.If):
            break
    return last


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """All calls in a node."""
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def calls_of(function: ast.FunctionDef | ast.AsyncFunctionDef, module: Module) -> list[ast.Call]:
    """The calls of a function in its file; of a method by its name on anything, of a constructor by its class."""
    owner = module.parent(function)
    method = isinstance(owner, ast.ClassDef)
    if isinstance(owner, ast.ClassDef) and function.name == "__init__":
        return [call for call in calls_in(module.tree) if called(call) == owner.name]
    kind = ast.Attribute if method else ast.Name
    return [call for call in calls_in(module.tree) if isinstance(call.func, kind) and called(call) == function.name]


def _binds(node: ast.stmt, package: str) -> bool:
    return isinstance(node, ast.Import) and any(
        alias.asname == package if alias.asname else alias.name.split(".")[0] == package for alias in node.names
    )
