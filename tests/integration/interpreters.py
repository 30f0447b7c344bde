"""The Pythons of this machine that the reader is tried on: pyenv's, those on PATH, and Debian's newer ones in a chroot.

The newer ones lie in the folder that GPUWATCH_TEST_PYTHONS names, once `tests/newer_pythons.py` has filled it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import pytest

from tests.integration.process_groups import ended_by_its_input

TARGETS = Path(__file__).parent / "reader_targets"
MINORS = range(8, 16)
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


@dataclass(frozen=True)
class Python:
    """One interpreter: `command` starts it; with `root` it only runs below that folder, by chroot."""

    minor: int
    command: tuple[str, ...]
    root: Path | None = None

    def placed(self, script: Path) -> str:
        """The script's path as this interpreter sees it."""
        if self.root is None:
            return str(script)
        place = self.root / "tmp" / script.name
        if not place.exists() or place.read_bytes() != script.read_bytes():
            shutil.copy(script, place)
        return f"/tmp/{script.name}"


@dataclass
class Target:
    """A process that stands still, with what it said of itself."""

    process: subprocess.Popen[str]
    pid: int
    main: list[tuple[str, str, int]]
    threads: dict[int, list[tuple[str, str, int]]] = field(default_factory=dict)


@lru_cache(maxsize=1)
def found() -> dict[int, Python]:
    """One interpreter of each minor version that is here."""
    pythons: dict[int, Python] = {}
    for minor in MINORS:
        path = _path_of(minor)
        if path is not None:
            pythons[minor] = Python(minor, (str(path),))
    folder = os.environ.get("GPUWATCH_TEST_PYTHONS")
    if folder and os.geteuid() == 0 and shutil.which("chroot"):
        root = Path(folder).resolve()
        for minor in MINORS:
            if (root / f"usr/bin/python3.{minor}").exists():
                pythons.setdefault(minor, Python(minor, ("chroot", str(root), f"/usr/bin/python3.{minor}"), root))
    return pythons


def each(minors: Sequence[int] = MINORS) -> list[object]:
    """Parameters for pytest: an interpreter of each minor version, skipped where there is none."""
    pythons = found()
    return [
        pytest.param(
            pythons.get(minor),
            id=f"3.{minor}",
            marks=() if minor in pythons else pytest.mark.skip(reason=_missing(minor)),
        )
        for minor in minors
    ]


def _missing(minor: int) -> str:
    text = f"no Python 3.{minor} on PATH or in pyenv"
    if minor >= 14:
        text += ", nor in $GPUWATCH_TEST_PYTHONS (root only; filled by tests/newer_pythons.py)"
    return text


def _path_of(minor: int) -> Path | None:
    name = f"python3.{minor}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = sorted(pyenv.glob(f"3.{minor}.*/bin/{name}"))
    on_path = shutil.which(name)
    if on_path:
        candidates.append(Path(on_path))
    if sys.version_info[1] == minor:
        candidates.append(Path(sys.executable))
    return next((path for path in candidates if _is_program(path)), None)


def _is_program(path: Path) -> bool:
    """A program, not pyenv's shim, which is a shell script."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def require_reading() -> None:
    """Skips where the kernel lets nobody but root (Yama 2), or nobody (Yama 3), read even its own children."""
    level = int(_YAMA.read_text()) if _YAMA.exists() else 0
    if level == 3 or (level == 2 and os.geteuid() != 0):
        pytest.skip(f"kernel.yama.ptrace_scope={level} forbids reading own children")


@contextmanager
def running(command: Sequence[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    """A process that ends when its standard input is closed, and at the latest with the test."""
    require_reading()
    process: subprocess.Popen[str] = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
    )
    with ended_by_its_input(process):
        yield process


@contextmanager
def script(python: Python, name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """One of `reader_targets`, run by this interpreter."""
    with running([*python.command, python.placed(TARGETS / name), *arguments]) as process:
        yield process


@contextmanager
def standing(python: Python, kind: str) -> Iterator[Target]:
    """A process that stands still in a stack of this kind."""
    with script(python, "standing.py", kind) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        yield Target(
            process,
            told["pid"],
            [tuple(frame) for frame in told["main"]],
            {int(thread): [tuple(frame) for frame in frames] for thread, frames in told["threads"].items()},
        )


@contextmanager
def code(python: Python, text: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    """A program given as text that says one line once it is ready."""
    with running([*python.command, "-c", text], **options) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        yield process


def until_standing(pid: int) -> None:
    """Returns once the main thread waits in the kernel, so that what it said before is where it stands."""
    state = Path(f"/proc/{pid}/stat")
    while state.read_text().rpartition(")")[2].split()[0] not in "SD":
        os.sched_yield()
