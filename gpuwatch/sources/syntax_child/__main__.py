"""The child: answers questions about the syntax of texts in JSON."""

from __future__ import annotations

import ast
import json
import time
from typing import Any

from gpuwatch.sources.limited_child import Parent, limit_cpu
from gpuwatch.sources.syntax_child.call_site import loader_line
from gpuwatch.sources.syntax_child.loops import loops_of, scopes_of
from gpuwatch.sources.syntax_child.protocol import (
    CPU_SECONDS,
    MEMORY_BYTES,
    MOST_ROWS,
    QUESTION,
    TABLES,
    WITHOUT_LINE,
)
from gpuwatch.sources.syntax_child.statements import requests_by_line


def main() -> None:
    """Ends when nothing is asked for 10 s, and with its parent."""
    parent = Parent(MEMORY_BYTES)
    while (question := parent.receive()) is not None:
        (line,) = QUESTION.unpack_from(question)
        limit_cpu(CPU_SECONDS)
        answer = _answer(question[QUESTION.size :], line)
        limit_cpu(0.0)
        parent.send(json.dumps({**answer, "is_last": parent.is_used_up()}).encode())


def _answer(text: bytes, line: int) -> dict[str, Any]:
    began = time.process_time()
    found: Any = None
    try:
        tree = ast.parse(text.decode("utf-8", "replace"))
        found = _tables(tree) if line == TABLES else loader_line(tree, None if line == WITHOUT_LINE else line)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return {"found": found, "cpu_seconds": time.process_time() - began}


def _tables(tree: ast.Module) -> dict[str, Any]:
    requests = requests_by_line(tree)
    return {
        "requests": list(requests.items())[:MOST_ROWS],
        "scopes": scopes_of(tree)[:MOST_ROWS],
        "loops": [loop.as_row() for loop in loops_of(tree, MOST_ROWS)],
    }


if __name__ == "__main__":
    main()
