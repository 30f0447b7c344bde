"""The child that makes diffs: it parses the user's files, which may crash libcst or fill memory, and asks for each."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gpuwatch.edits.diff import combined_patch, edit_diff
from gpuwatch.edits.exchange import UNREADABLE, Request
from gpuwatch.edits.source import UnreadableSourceError
from gpuwatch.edits.workspace import Origin
from gpuwatch.sources.limited_child import Parent, limit_cpu

MEMORY_BYTES: Final = 512 << 20
CPU_SECONDS: Final = 8.0  # for one edit; four passes of ruamel.yaml over a file of 64 KiB take 2.6 s


def main() -> None:
    """Ends when nothing is asked for 10 s, and with its parent."""
    parent = Parent(MEMORY_BYTES)
    while (question := parent.receive()) is not None:
        request: Request = pickle.loads(question)
        try:
            answer = _answer(request, parent)
        except (EOFError, MemoryError):
            return
        except Exception as error:  # noqa: BLE001 - for the parent to report: odd source found a fault of ours
            answer = {"failed": type(error).__name__}
        limit_cpu(0.0)
        _send(parent, {**answer, "is_last": parent.is_used_up()})


def _answer(request: Request, parent: Parent) -> dict[str, Any]:
    def attempt(index: int) -> str | None:
        if index in request.refused:
            return request.refused[index]
        _send(parent, {"edit": index})
        limit_cpu(CPU_SECONDS)
        return None

    if request.is_patch:
        edits = [
            (edit, Origin(_reader(index, parent), folder, command))
            for index, (edit, folder, command) in enumerate(request.edits)
        ]
        patch = combined_patch(edits, attempt)
        return {"data": patch.data.decode("latin-1"), "reasons": patch.reasons}
    folder, command = request.edits[0][1:]
    diff = edit_diff([edit for edit, *_ in request.edits], _reader(0, parent), folder, command, attempt)
    return {"text": diff.text, "reason": diff.reason}


def _reader(index: int, parent: Parent) -> Callable[[Path], bytes]:
    def read(path: Path) -> bytes:
        _send(parent, {"read": str(path), "of": index})
        answer = parent.receive(idle_seconds=None)
        if answer is None:
            raise EOFError
        if answer[:1] == UNREADABLE:
            raise UnreadableSourceError(answer[1:].decode("utf-8", "surrogateescape"))
        return answer[1:]

    return read


def _send(parent: Parent, message: dict[str, Any]) -> None:
    parent.send(json.dumps(message).encode("ascii"))
