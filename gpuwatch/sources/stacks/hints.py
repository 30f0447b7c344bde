"""What the text of a loop says about its purpose, for as long as no sample has shown it."""

from __future__ import annotations

import ast
import re
from enum import Enum, auto
from typing import Final

_TRAINING_CALLS: Final = frozenset({"backward", "step", "training_step", "train_step", "train_batch", "fit_batch"})
_EVALUATING: Final = re.compile(r"(?:.*_)?(?:eval\w*|valid\w*|val|test\w*|infer\w*|predict\w*)", re.I)
_COMPUTING: Final = re.compile(r".*(?:model|net|train|step|forward|fit|loss|criterion|optim|learn|run|process).*", re.I)


class Hint(Enum):
    """What a loop seems to do."""

    TRAINS = auto()
    EVALUATES = auto()
    LOOKS_ONLY = auto()  # its body calls nothing that could be a model


def hint_of(loop: ast.For | ast.AsyncFor | ast.While | None, function: str) -> Hint | None:
    """The purpose of a loop by its text and by the name of the function it stands in."""
    called = _called_names(loop) if loop is not None else set()
    if called & _TRAINING_CALLS:
        return Hint.TRAINS
    over = _called_names(loop.iter) | _names(loop.iter) if isinstance(loop, (ast.For, ast.AsyncFor)) else set()
    if _EVALUATING.fullmatch(function) or any(_EVALUATING.match(name) for name in over):
        return Hint.EVALUATES
    if loop is not None and not any(_COMPUTING.fullmatch(name) for name in called):
        return Hint.LOOKS_ONLY
    return None


def _called_names(node: ast.AST) -> set[str]:
    functions = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
    names = {function.attr for function in functions if isinstance(function, ast.Attribute)}
    return names | {function.id for function in functions if isinstance(function, ast.Name)}


def _names(node: ast.AST) -> set[str]:
    names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    return names | {name.attr for name in ast.walk(node) if isinstance(name, ast.Attribute)}
