"""Diffs and patches made in a child process with limits: foreign source costs its own edit and nothing else."""

from __future__ import annotations

import json
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gpuwatch.diagnosis.finding import Edit
from gpuwatch.edits.source import UnreadableSourceError
from gpuwatch.sources.limited_child import CLOSE_SECONDS, LimitedChild

READABLE: Final = b"+"
"""Before the content of a file that the child asked for; UNREADABLE is before the reason why it gets none."""
UNREADABLE: Final = b"-"


@dataclass(frozen=True, slots=True)
class Diff:
    """The diff, or the reason why there is none; both where only a part of the change could be made."""

    text: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """Several edits as one patch, in the bytes of the files' own encodings; empty where nothing is to change.

    `reasons` has one entry per edit: None where the patch holds it.
    """

    data: bytes
    reasons: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """Edits with the folder and the command line of their process each, and those that are refused for a reason.

    `is_patch` asks for one patch, else for the diff of one fix, whose edits share a process.
    """

    edits: tuple[tuple[Edit, Path | None, tuple[str, ...]], ...]
    refused: dict[int, str]
    is_patch: bool


_MODULE: Final = "gpuwatch.edits.diff"
_ANSWER_SECONDS: Final = 20.0  # of wall time for one edit, on a machine where others compute
_LONGEST_ANSWER: Final = 16 << 20
_MOST_READS: Final = 64  # of one edit: its file, and the configuration files on the command line
_Read = Callable[[Path], bytes]


class _NoAnswerError(Exception):
    """The child ended, or did not answer, in the edit of that number; None: at once, or where no edit is to blame."""

    def __init__(self, edit: int | None) -> None:
        self.edit = edit


class Editor:
    """Makes diffs and patches in a child that is started with the first one and ends itself when idle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: LimitedChild | None = None

    def edit_diff(
        self,
        edit: Edit | Sequence[Edit],
        read: _Read,
        folder: Path | None = None,
        command: Sequence[str] = (),
    ) -> Diff:
        """As `gpuwatch.edits.diff.edit_diff`, whatever the files hold."""
        edits = tuple(edit) if isinstance(edit, Sequence) else (edit,)
        request = Request(tuple((each, folder, tuple(command)) for each in edits), {}, is_patch=False)
        answer, reasons = self._ask(request, [read] * len(edits))
        if answer is None:
            return Diff(None, "; ".join(dict.fromkeys(reasons.values())))
        return Diff(_text(answer["text"]), _text(answer["reason"]))

    def combined_patch(self, edits: Iterable[tuple[Edit, Any]]) -> Patch:
        """As `gpuwatch.edits.diff.combined_patch`, whatever the files hold."""
        wanted = list(edits)
        if not wanted:
            return Patch(b"", ())
        request = Request(tuple((edit, of.folder, of.command) for edit, of in wanted), {}, is_patch=True)
        answer, reasons = self._ask(request, [of.read for _, of in wanted])
        if answer is None:
            return Patch(b"", tuple(reasons[index] for index in range(len(wanted))))
        return Patch(str(answer["data"]).encode("latin-1"), tuple(_text(each) for each in answer["reasons"]))

    def close(self) -> None:
        """Ends the child. Idempotent; a later question starts another one."""
        if self._lock.acquire(timeout=CLOSE_SECONDS):  # else it is asked right now, and ends with this process
            child, self._child = self._child, None
            self._lock.release()
            if child is not None:
                child.end(CLOSE_SECONDS)

    def _ask(self, request: Request, reads: Sequence[_Read]) -> tuple[dict[str, Any] | None, dict[int, str]]:
        """The child's answer; None where it has none even without the edits that ended it, and the reason for each."""
        everything = range(len(request.edits))
        is_shared = self._lock.acquire(blocking=False)  # who waits would pay for another's file: a child of its own
        child = self._child if is_shared else None
        try:
            while True:
                is_fresh = child is None or child.has_ended()
                if child is None or child.has_ended():
                    if child is not None:
                        child.end()
                    child = _start()
                try:
                    answer = _converse(child, request, reads)
                except _NoAnswerError as error:
                    child.end()
                    child = None
                    if error.edit is None and not is_fresh:
                        continue  # it was idle for too long, and ended while it was asked
                    if error.edit is None or error.edit in request.refused:
                        refused = {index: _unsafe(request.edits[index][0]) for index in everything}
                        return None, {**refused, **request.refused}
                    reason = _unsafe(request.edits[error.edit][0])
                    request = replace(request, refused={**request.refused, error.edit: reason})
                    continue
                if answer["is_last"] or "failed" in answer:
                    child.end()
                    child = None
                if "failed" in answer:
                    failed = f"the edit of its source failed ({answer['failed']}): please report it"
                    return None, dict.fromkeys(everything, failed) | request.refused
                return answer, {}
        finally:
            if is_shared:
                self._child = child
                self._lock.release()
            elif child is not None:
                child.end()


_SHARED: Final = Editor()
edit_diff = _SHARED.edit_diff
combined_patch = _SHARED.combined_patch


def _start() -> LimitedChild:
    return LimitedChild(_MODULE, [path for path in sys.path if Path(path).is_absolute()])


def _converse(child: LimitedChild, request: Request, reads: Sequence[_Read]) -> dict[str, Any]:
    edit: int | None = None
    count = 0
    try:
        end = time.monotonic() + _ANSWER_SECONDS
        child.send(pickle.dumps(request), end)
        while True:
            message = json.loads(child.receive(_LONGEST_ANSWER, end))
            if "edit" in message:
                edit, count, end = int(message["edit"]), 0, time.monotonic() + _ANSWER_SECONDS
            elif "read" not in message:
                return dict(message)
            elif (count := count + 1) > _MOST_READS:
                raise OSError("it reads without end")
            else:
                child.send(_content(reads[message["of"]], Path(message["read"])), end)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise _NoAnswerError(edit) from None


def _content(read: _Read, path: Path) -> bytes:
    try:
        return READABLE + read(path)
    except UnreadableSourceError as error:
        return UNREADABLE + str(error).encode("utf-8", "surrogateescape")


def _unsafe(edit: Edit) -> str:
    return f"{edit.file or 'the source'} cannot be parsed safely: only its line is known"


def _text(value: object) -> str | None:
    return None if value is None else str(value)
