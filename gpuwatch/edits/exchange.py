"""What the child that makes diffs is asked, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuwatch.diagnosis.finding import Edit

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
