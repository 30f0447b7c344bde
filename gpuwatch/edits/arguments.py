"""The arguments of a call: found by name or position, set without touching the others' formatting."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TypeVar

import libcst as cst

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


def argument(call: ast.Call, name: str, of: str) -> ast.expr | None:
    """The value that a call gives for a parameter; `of` is the name of what is called, whatever it was imported as."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    positions = _POSITIONS.get(of, ())
    index = positions.index(name) if name in positions else len(call.args)
    return call.args[index] if index < len(call.args) else None


def with_keywords(call: cst.Call, name: str, keywords: Mapping[str, str]) -> cst.Call:
    """The call with its keywords set, in place where it has them."""
    args = list(call.args)
    positions = _POSITIONS.get(name, ())
    for keyword, text in keywords.items():
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
