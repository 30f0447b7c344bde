"""Fixes as unified diffs of the user's own files: each by itself, or several as one patch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

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
from gpuwatch.edits.exchange import Diff, Patch
from gpuwatch.edits.kinds.autocast import autocast_changes
from gpuwatch.edits.kinds.call import call_changes, loop_changes, settings_changes
from gpuwatch.edits.kinds.interval import interval_changes
from gpuwatch.edits.kinds.model import model_changes
from gpuwatch.edits.kinds.setup import setup_changes
from gpuwatch.edits.kinds.transfer import transfer_changes
from gpuwatch.edits.kinds.worker_init import worker_init_changes
from gpuwatch.edits.module import CannotEditError, Change
from gpuwatch.edits.workspace import Origin, Workspace

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
    overflow (SIGSEGV) on 3000 nested brackets, needs minutes for a sum of 20 000 terms and
    740 MiB for 2 x 2 500 minus signs. For source that others write: `gpuwatch.edits.apart`.
    """
    workspace = Workspace()
    origin = Origin(read, folder, tuple(command))
    edits = [edit] if not isinstance(edit, Sequence) else edit
    reasons = [attempt(index) or _applied(each, workspace, origin) for index, each in enumerate(edits)]
    said = list(dict.fromkeys(reason for reason in reasons if reason is not None))
    return Diff(workspace.diff() or None, "; ".join(said) or None)


def combined_patch(edits: Iterable[tuple[Edit, Origin]], attempt: Attempt = _any_attempt) -> Patch:
    """The edits as one patch, applied in order: where two set the same keyword, the first one stands."""
    workspace = Workspace()
    done: list[Edit] = []
    reasons: list[str | None] = []
    for index, (edit, origin) in enumerate(edits):
        settled, reason = _settled_before(edit, done)
        if not settled:
            reason = attempt(index) or _applied(edit, workspace, origin)
        if reason is None:
            done.append(edit)
        reasons.append(reason)
    return Patch(workspace.patch(), tuple(reasons))


def _applied(edit: Edit, workspace: Workspace, origin: Origin) -> str | None:
    """Applies an edit; the reason where it could not be. One that is there already is a reason, too."""
    try:
        workspace.apply(origin, _changes(edit, workspace, origin))
    except CannotEditError as error:
        return str(error)
    except RecursionError:  # what ast's and libcst's own functions make of source that CPython's parser took
        return f"{edit.file or 'the source'} nests too deeply to be edited"
    return None


def _changes(edit: Edit, workspace: Workspace, origin: Origin) -> list[Change]:
    match edit:
        case CallEdit():
            return call_changes(edit, workspace, origin)
        case SettingsEdit():
            return settings_changes(edit, workspace, origin)
        case LoopEdit():
            return loop_changes(edit, workspace, origin)
        case TransferEdit():
            return transfer_changes(edit, workspace, origin)
        case SetupEdit():
            return setup_changes(edit, workspace, origin)
        case ModelEdit():
            return model_changes(edit, workspace, origin)
        case AutocastEdit():
            return autocast_changes(edit, workspace, origin)
        case IntervalEdit():
            return interval_changes(edit, workspace, origin)
        case WorkerInitEdit():
            return worker_init_changes(edit, workspace, origin)


def _settled_before(edit: Edit, done: Sequence[Edit]) -> tuple[bool, str | None]:
    """Whether earlier edits leave nothing to do: they did the same, or something else that stands (then why)."""
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
            return True, f"an earlier fix of this patch sets {name}={before[name]}: apply that first, then look again"
    return edit.keywords.keys() <= before.keys(), None


def _same_call(one: KeywordEdit, other: KeywordEdit) -> bool:
    return (one.call, one.file, getattr(one, "line", 0)) == (other.call, other.file, getattr(other, "line", 0))
