"""What all questions share: their arguments, and the file for the answer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


def ask(doc: str | None, answer: Callable[[argparse.Namespace], Answer]) -> int:
    """Parses, answers, writes: to --out, else to stdout."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, help="for each part, in place of its own time")
    args = parser.parse_args()
    text = json.dumps(answer(args), indent=1)
    if args.out is None:
        print(text)
    else:
        args.out.write_text(text)
    return 0


def attempt(function: Callable[[], Any]) -> Any:
    """The answer, or the words in which the machine refused it."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - a question of its own: what refuses, and how
        return f"refused: {type(error).__name__}: {error}"


def rank_at(values: Sequence[float], share: float) -> float:
    """The value below which that share of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
