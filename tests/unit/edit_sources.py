"""Applies edits to sources that tests write down, and looks at what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent

from gpuwatch.diagnosis.finding import CallEdit, Edit
from gpuwatch.edits.diff import Diff, combined_patch, edit_diff
from gpuwatch.edits.source import UnreadableSourceError
from gpuwatch.edits.workspace import Origin

FOLDER = Path("/home/user")
FILE = "/home/user/train.py"


def line_of(source: str, text: str) -> int:
    """The line of a source that holds a text."""
    return next(number for number, line in enumerate(source.split("\n"), start=1) if text in line)


def reader(files: Mapping[str, str | bytes]):
    def read(path: Path) -> bytes:
        name = path.relative_to(FOLDER).as_posix() if path.is_absolute() else path.as_posix()
        if name not in files:
            raise UnreadableSourceError(f"{path} cannot be read (No such file or directory)")
        data = files[name]
        return data.encode() if isinstance(data, str) else data

    return read


def diff_of(edit: Edit | Sequence[Edit], source: str | bytes, command: Sequence[str] = (), **files: str) -> Diff:
    """The diff of an edit of `train.py`; other files are given by name, with `_` for the dot."""
    others = {name.replace("_", "."): dedent(text) for name, text in files.items()}
    return edit_diff(edit, reader({"train.py": source, **others}), FOLDER, command)


def changed(edit: Edit | Sequence[Edit], source: str, command: Sequence[str] = (), **files: str) -> list[str]:
    """The lines that the diff takes away and adds, with their sign."""
    diff = diff_of(edit, source, command, **files)
    assert diff.text is not None, diff.reason
    return [
        line for line in diff.text.split("\n") if line.startswith(("+", "-")) and not line.startswith(("+++", "---"))
    ]


def refused(edit: Edit | Sequence[Edit], source: str | bytes, command: Sequence[str] = (), **files: str) -> str:
    """Why there is no diff."""
    diff = diff_of(edit, source, command, **files)
    assert diff.text is None
    assert diff.reason is not None
    return diff.reason


def loader_edit(source: str, present: Mapping[str, str] | None = None, **keywords: str) -> CallEdit:
    """An edit of the source's DataLoader call."""
    return CallEdit("DataLoader", FILE, line_of(source, "DataLoader("), keywords, present or {})


def patched(edits: Sequence[Edit], files: Mapping[str, str | bytes], command: Sequence[str] = ()) -> bytes:
    """The combined patch; every edit has to be in it."""
    origin = Origin(reader(files), FOLDER, tuple(command))
    patch = combined_patch([(edit, origin) for edit in edits])
    assert patch.reasons == (None,) * len(edits)
    return patch.data
