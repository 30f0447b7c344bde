"""A fix as a unified diff of the user's own file, made on its syntax tree so that formatting stays."""

from __future__ import annotations

import ast
import difflib
import io
import re
import tokenize
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import libcst as cst

from gpuwatch.diagnosis.finding import CallEdit
from gpuwatch.edits.source import UnreadableSourceError, name_in_patch

_POSITIONS: Mapping[str, tuple[str, ...]] = {
    "DataLoader": (
        "dataset",
        "batch_size",
        "shuffle",
        "sampler",
        "batch_sampler",
        "num_workers",
        "collate_fn",
        "pin_memory",
        "drop_last",
    ),
}
"""Parameters that may be given by position, in order (torch 2.13)."""


@dataclass(frozen=True, slots=True)
class Diff:
    """The diff, or the reason why there is none."""

    text: str | None = None
    reason: str | None = None


def edit_diff(edit: CallEdit, read: Callable[[Path], bytes], folder: Path | None = None) -> Diff:
    """The unified diff that sets the keywords of the call at `edit.file:edit.line`.

    It names the file as `git apply` takes it; `folder` is where the training runs.

    Only the call itself goes through libcst, and only after CPython's parser took the file: libcst 1.9.0 dies of
    a stack overflow (SIGSEGV) on 3000 nested brackets and needs minutes for a sum of 20 000 terms.
    """
    try:
        data = read(Path(edit.file))
        text = _decoded(data)
        tree = ast.parse(data)
    except UnreadableSourceError as error:
        return Diff(reason=str(error))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # what CPython's parser says of odd source
        return Diff(reason=f"{edit.file} is not Python source that can be parsed")
    found = _find_call(tree, edit)
    if found is None:
        return Diff(reason=f"line {edit.line} of {edit.file} holds no single {edit.call}(...) call")
    start, end = _place(text, found)
    newline = "\r\n" if "\r\n" in text else "\n"
    try:
        call = cst.ensure_type(cst.parse_expression(text[start:end]), cst.Call)
        if any(arg.star for arg in call.args):
            return Diff(reason=f"the call takes its arguments from * or **: set {', '.join(edit.keywords)} there")
        changed = cst.Module([], default_newline=newline).code_for_node(_with_keywords(call, edit))
    except (cst.ParserSyntaxError, RecursionError):
        return Diff(reason=f"the call in line {edit.line} of {edit.file} cannot be edited")
    after = text[:start] + changed + text[end:]
    name = name_in_patch(Path(edit.file), folder)
    lines = difflib.unified_diff(_lines(text), _lines(after), f"a/{name}", f"b/{name}")
    diff = "".join(_complete(line) for line in lines)
    return Diff(text=diff) if diff else Diff(reason="the call already has these arguments")


def _decoded(data: bytes) -> str:
    """The source as text, by its byte order mark or coding line, with its line ends as they are."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return data.decode(encoding)


def _find_call(tree: ast.Module, edit: CallEdit) -> ast.Call | None:
    """The call of that name that begins on the line, or else the only one that spans it."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node) == edit.call]
    starting = [call for call in calls if call.lineno == edit.line]
    spanning = [call for call in calls if call.lineno < edit.line <= (call.end_lineno or 0)]
    return next((found[0] for found in (starting, spanning) if len(found) == 1), None)


def _name(call: ast.Call) -> str | None:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None


def _place(text: str, call: ast.Call) -> tuple[int, int]:
    """Where the call lies in the text; `ast` counts columns in bytes of UTF-8."""
    lines = [match.start() for match in re.finditer(r"(?:\A|(?<=\n)|(?<=\r)(?!\n))", text)]

    def offset(line: int, column: int) -> int:
        start = lines[line - 1]
        return start + len(text[start : start + column].encode("utf-8")[:column].decode("utf-8", "ignore"))

    assert call.end_lineno is not None and call.end_col_offset is not None  # always set by ast.parse
    return offset(call.lineno, call.col_offset), offset(call.end_lineno, call.end_col_offset)


def _with_keywords(call: cst.Call, edit: CallEdit) -> cst.Call:
    args = list(call.args)
    positions = _POSITIONS.get(edit.call, ())
    for keyword, text in edit.keywords.items():
        value = cst.parse_expression(text)
        at = _index_of(args, keyword, positions)
        if at is None:
            args = _appended(args, call, keyword, value)
        else:
            args[at] = args[at].with_changes(value=value)
    return call.with_changes(args=args)


def _index_of(args: list[cst.Arg], keyword: str, positions: tuple[str, ...]) -> int | None:
    for index, arg in enumerate(args):
        if arg.keyword is None:
            if index < len(positions) and positions[index] == keyword:
                return index
        elif arg.keyword.value == keyword:
            return index
    return None


def _appended(args: list[cst.Arg], call: cst.Call, keyword: str, value: cst.BaseExpression) -> list[cst.Arg]:
    """The arguments with one more, set apart as the others are: on a line of its own where they have theirs."""
    new = cst.Arg(
        keyword=cst.Name(keyword),
        value=value,
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    if not args:
        return [new]
    last = args[-1]
    separator = args[-2].comma if len(args) > 1 else cst.Comma(whitespace_after=call.whitespace_before_args)
    space = separator.whitespace_after if isinstance(separator, cst.Comma) else cst.SimpleWhitespace(" ")
    if isinstance(space, cst.SimpleWhitespace):
        space = cst.SimpleWhitespace(space.value or " ")
    else:
        space = space.with_changes(first_line=_first_line(last), empty_lines=[])
    new = new.with_changes(
        comma=_without_comment(last.comma, "whitespace_after"),
        whitespace_after_arg=_without_comment(last, "whitespace_after_arg").whitespace_after_arg,
    )
    before = last.with_changes(comma=cst.Comma(whitespace_after=space), whitespace_after_arg=cst.SimpleWhitespace(""))
    return [*args[:-1], before, new]


def _first_line(last: cst.Arg) -> cst.TrailingWhitespace:
    """The rest of the line behind the argument: its comment stays with it."""
    behind = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else last.whitespace_after_arg
    return behind.first_line if isinstance(behind, cst.ParenthesizedWhitespace) else cst.TrailingWhitespace()


_Node = TypeVar("_Node", cst.Arg, cst.Comma | cst.MaybeSentinel)


def _without_comment(node: _Node, field: str) -> _Node:
    space = getattr(node, field, None)
    if not isinstance(space, cst.ParenthesizedWhitespace) or isinstance(node, cst.MaybeSentinel):
        return node
    return node.with_changes(**{field: space.with_changes(first_line=cst.TrailingWhitespace())})


def _lines(text: str) -> list[str]:
    """Lines with their ends, cut at line feeds only: `splitlines` would also cut at form feeds."""
    return [line for line in re.split("(?<=\n)", text) if line]


def _complete(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
