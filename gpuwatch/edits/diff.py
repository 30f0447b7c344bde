"""Fixes as unified diffs of the user's own files: each by itself, or several as one patch.

`main` is the child process that makes them for `gpuwatch.edits.editor`: it parses the user's files, which may crash
libcst or fill memory, and asks its parent for each file.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from gpuwatch.diagnosis.finding import (
    AutocastEdit,
    CallEdit,
    Edit,
    IntervalEdit,
    KeywordEdit,
    LoopEdit,
    ModelEdit,
    SettingsEdit,
    SetupEdit,
    TransferEdit,
    WorkerInitEdit,
)
from gpuwatch.edits.editor import UNREADABLE, Diff, Patch, Request
from gpuwatch.edits.intervals import interval_changes
from gpuwatch.edits.kinds import (
    autocast_changes,
    call_changes,
    loop_changes,
    model_changes,
    settings_changes,
    setup_changes,
    transfer_changes,
    worker_init_changes,
)
from gpuwatch.edits.source import UnreadableSourceError
from gpuwatch.edits.workspace import CannotEditError, Change, Files, Origin, Workspace
from gpuwatch.sources.limited_child import Parent, limit_cpu

Attempt = Callable[[int], str | None]


def _any_attempt(_: int) -> None:
    return None


def edit_diff(
    edit: Edit | Sequence[Edit],
    read: Callable[[Path], bytes],
    folder: Path | None = None,
    command: Sequence[str] = (),
    attempt: Attempt = _any_attempt,
) -> Diff:
    """The unified diff of one fix, as `git apply` takes it.

    Args:
        edit: The fix's edit, or all of them.
        read: Gives a file as the running process read it, or raises UnreadableSourceError.
        folder: Where the training runs: relative names are meant from there.
        command: How it was started: what that sets is not to be found in a file.
        attempt: Called with the number of each edit before it is made; a reason refuses it.

    Only single calls go through libcst, and only after CPython's parser took the file: libcst 1.9.0 dies of a stack
    overflow (SIGSEGV) on 3000 nested brackets, needs minutes for a sum of 20,000 terms and
    740 MiB for 2 x 2,500 minus signs. For source that others write: `gpuwatch.edits.editor`.
    """
    workspace = Workspace()
    files = workspace.files(Origin(read, folder, tuple(command)))
    edits = [edit] if not isinstance(edit, Sequence) else edit
    reasons = [attempt(index) or _applied(each, files) for index, each in enumerate(edits)]
    said = list(dict.fromkeys(reason for reason in reasons if reason is not None))
    return Diff(workspace.diff() or None, "; ".join(said) or None)


def combined_patch(edits: Iterable[tuple[Edit, Origin]], attempt: Attempt = _any_attempt) -> Patch:
    """The edits as one patch, applied in order: where two set the same keyword, the first one counts."""
    workspace = Workspace()
    done: list[Edit] = []
    reasons: list[str | None] = []
    for index, (edit, origin) in enumerate(edits):
        settled, reason = _settled_before(edit, done)
        if not settled:
            reason = attempt(index) or _applied(edit, workspace.files(origin))
        if reason is None:
            done.append(edit)
        reasons.append(reason)
    return Patch(workspace.patch(), tuple(reasons))


def _applied(edit: Edit, files: Files) -> str | None:
    """Applies an edit; the reason where it could not be. One that is there already is a reason, too."""
    try:
        files.apply(_changes(edit, files))
    except CannotEditError as error:
        return str(error)
    except RecursionError:  # what ast's and libcst's own functions make of source that CPython's parser took
        return f"{edit.file or 'the source'} nests too deeply to be edited"
    return None


def _changes(edit: Edit, files: Files) -> list[Change]:
    match edit:
        case CallEdit():
            return call_changes(edit, files)
        case SettingsEdit():
            return settings_changes(edit, files)
        case LoopEdit():
            return loop_changes(edit, files)
        case TransferEdit():
            return transfer_changes(edit, files)
        case SetupEdit():
            return setup_changes(edit, files)
        case ModelEdit():
            return model_changes(edit, files)
        case AutocastEdit():
            return autocast_changes(edit, files)
        case IntervalEdit():
            return interval_changes(edit, files)
        case WorkerInitEdit():
            return worker_init_changes(edit, files)


def _settled_before(edit: Edit, done: Sequence[Edit]) -> tuple[bool, str | None]:
    """Whether earlier edits leave nothing to do: they did the same, or something else that counts (then why)."""
    if edit in done:
        return True, None
    if not isinstance(edit, KeywordEdit):
        return False, None
    before: dict[str, str] = {}
    for other in done:
        if isinstance(other, type(edit)) and _same_call(edit, other):
            before = {**other.keywords, **before}
    for name, text in edit.keywords.items():
        if before.get(name, text) != text:
            return True, f"an earlier fix of this patch sets {name}={before[name]}: apply that first, then check again"
    return edit.keywords.keys() <= before.keys(), None


def _same_call(one: KeywordEdit, other: KeywordEdit) -> bool:
    return (one.call, one.file, getattr(one, "line", 0)) == (other.call, other.file, getattr(other, "line", 0))


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
