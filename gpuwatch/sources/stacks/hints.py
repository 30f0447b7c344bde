"""What the text of a loop says about its purpose, for as long as no sample has shown it."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from gpuwatch.sources.syntax_child.protocol import Loop

_TRAINING_CALLS: Final = frozenset({"backward", "step", "training_step", "train_step", "train_batch", "fit_batch"})
_EVALUATING: Final = re.compile(r"(?:.*_)?(?:eval\w*|valid\w*|val|test\w*|infer\w*|predict\w*)", re.I)
_COMPUTING: Final = re.compile(r".*(?:model|net|train|step|forward|fit|loss|criterion|optim|learn|run|process).*", re.I)


class Hint(Enum):
    """What a loop seems to do."""

    TRAINS = auto()
    EVALUATES = auto()
    LOOKS_ONLY = auto()  # its body calls nothing that could be a model


def hint_of(loop: Loop | None, function: str) -> Hint | None:
    """The purpose of a loop by its text and by the name of the function it stands in."""
    if loop is not None and loop.calls & _TRAINING_CALLS:
        return Hint.TRAINS
    over = loop.over_names if loop is not None else frozenset()
    if _EVALUATING.fullmatch(function) or any(_EVALUATING.match(name) for name in over):
        return Hint.EVALUATES
    if loop is not None and not any(_COMPUTING.fullmatch(name) for name in loop.calls):
        return Hint.LOOKS_ONLY
    return None
