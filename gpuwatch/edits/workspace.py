"""The files of one patch: as they are on disk, and as the edits so far leave them."""

from __future__ import annotations

import ast
import difflib
import io
import re
import tokenize
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuwatch.edits.module import CannotEditError, Change, Module
from gpuwatch.edits.source import UnreadableSourceError, name_in_patch

_BOM = "\ufeff"
_GENERATED = re.compile(
    r"(?i)^\s*#.*(@generated|\bdo not edit\b|\b(auto-?)?generated (by|from|file|code)\b)", re.MULTILINE
)
_GENERATED_WITHIN = 1000  # characters, as GitHub's linguist looks at the head of a file
_PACKAGES = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class Origin:
    """The process whose source is edited: how its files are read, where and how it was started."""

    read: Callable[[Path], bytes]
    folder: Path | None = None
    command: tuple[str, ...] = ()


@dataclass(slots=True)
class _File:
    path: str  # as the finding names it
    name: str  # as the patch names it
    encoding: str
    bom: str
    before: str
    now: str
    applied: list[Sequence[Change]] = field(default_factory=list)


class Workspace:
    """Files read once, changed in memory only."""

    def __init__(self) -> None:
        self._files: dict[Path, _File] = {}

    def module(self, origin: Origin, path: str) -> Module:
        """A Python file as the edits so far leave it."""
        _refuse_others(path)
        text = self.text(origin, path)
        # The head only: whoever writes about generated files further down has written a file.
        if _GENERATED.search(text[:_GENERATED_WITHIN]):
            raise CannotEditError(f"{path} says that it is generated: change what it is made from")
        return Module(path, text, _parsed(path, text))

    def text(self, origin: Origin, path: str) -> str:
        """A file's text as the edits so far leave it, without a byte order mark."""
        key = _key(origin, path)
        if key not in self._files:
            self._files[key] = _read(origin, path)
        return self._files[key].now

    def line(self, origin: Origin, path: str, line: int) -> int:
        """Where a line of the file on disk is now."""
        file = self._files[_key(origin, path)]
        if not file.applied:
            return line
        starts = _line_offsets(file.before)
        if not 1 <= line <= len(starts):
            return line
        at = starts[line - 1]
        at += len(file.before[at:]) - len(file.before[at:].lstrip(" \t\f"))
        for changes in file.applied:
            at = _moved(at, changes)
        return len(_line_offsets(file.now[: at + 1]))

    def apply(self, origin: Origin, changes: Iterable[Change]) -> None:
        """All of the changes, or none where one leaves source that cannot be parsed."""
        by_file: dict[str, list[Change]] = {}
        for change in changes:
            by_file.setdefault(change.file, []).append(change)
        after = {path: _changed(self.text(origin, path), each) for path, each in by_file.items()}
        for path, text in after.items():
            if path.endswith(".py"):
                _parsed(path, text)
            try:
                text.encode(self._files[_key(origin, path)].encoding)
            except UnicodeEncodeError as error:
                raise CannotEditError(f"{path} is not in an encoding that can hold the change") from error
        for path, text in after.items():
            file = self._files[_key(origin, path)]
            file.applied.append(sorted(by_file[path], key=lambda change: change.start))
            file.now = text

    def diff(self) -> str:
        """What changed, as one unified diff that `git apply` takes."""
        return "".join(text for text, _ in self._diffs())

    def patch(self) -> bytes:
        """The same in the bytes of each file's own encoding."""
        return b"".join(text.encode(encoding) for text, encoding in self._diffs())

    def _diffs(self) -> Iterable[tuple[str, str]]:
        for file in self._files.values():
            before, after = _lines(file.bom + file.before), _lines(file.bom + file.now)
            lines = difflib.unified_diff(before, after, _quoted(f"a/{file.name}"), _quoted(f"b/{file.name}"))
            yield "".join(_complete(line) for line in lines), file.encoding


def _refuse_others(path: str) -> None:
    parts = Path(path).parts
    if path.endswith(".ipynb") or any(part.startswith(("ipykernel_", "<ipython-input")) for part in parts):
        raise CannotEditError(f"{path} is a notebook's cell: change it there")
    if path.startswith("<"):
        raise CannotEditError(f"{path} is code without a file")
    if not path.endswith((".py", ".pyw")):
        raise CannotEditError(f"{path} is not a Python source file")
    if not _PACKAGES.isdisjoint(parts):
        raise CannotEditError(f"{path} belongs to an installed package: it is not yours to change")


def _key(origin: Origin, path: str) -> Path:
    return Path(path) if origin.folder is None else origin.folder / path


def _read(origin: Origin, path: str) -> _File:
    try:
        data = origin.read(Path(path))
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline) if path.endswith(".py") else ("utf-8", [])
        encoding = "utf-8" if encoding == "utf-8-sig" else encoding
        text = data.decode(encoding)
    except UnreadableSourceError as error:
        raise CannotEditError(str(error)) from error
    except (SyntaxError, ValueError, LookupError) as error:  # an unknown or a wrong coding line
        raise CannotEditError(f"{path} is not text in the encoding that it claims") from error
    bom = _BOM if text.startswith(_BOM) else ""
    text = text.removeprefix(_BOM)
    return _File(path, name_in_patch(Path(path), origin.folder), encoding, bom, text, text)


def _parsed(path: str, text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's escapes such as "\d"
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # CPython's words for odd source
        raise CannotEditError(f"{path} is not Python source that can be parsed") from error


def _changed(text: str, changes: Sequence[Change]) -> str:
    pieces, at = [], 0
    for change in sorted(changes, key=lambda change: change.start):
        if change.start < at:
            raise CannotEditError(f"two changes of {change.file} overlap")
        pieces += [text[at : change.start], change.new]
        at = change.end
    return "".join([*pieces, text[at:]])


def _moved(at: int, changes: Sequence[Change]) -> int:
    shift = 0
    for change in changes:
        if change.end <= at:
            shift += len(change.new) - (change.end - change.start)
        elif change.start < at:
            return change.start + shift
    return at + shift


def _line_offsets(text: str) -> list[int]:
    return [match.start() for match in re.finditer(r"(?:\A|(?<=\n)|(?<=\r)(?!\n))", text)]


def _lines(text: str) -> list[str]:
    """Lines with their ends, cut at line feeds only: `splitlines` would also cut at form feeds."""
    return [line for line in re.split("(?<=\n)", text) if line]


def _complete(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _quoted(name: str) -> str:
    """A name as git reads it in a patch: in C's quotes where it has characters that would end or hide it."""
    if not re.search(r'[\x00-\x1f\x7f"\\]', name):
        return name
    escaped = re.sub(r'["\\]', r"\\\g<0>", name)
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\{ord(match.group()):03o}", escaped) + '"'
