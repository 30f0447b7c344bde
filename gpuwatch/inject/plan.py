"""What installing the hook in one running process takes, or why it cannot be done there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpuwatch.reader.attach import attach
from gpuwatch.reader.types import CannotReadError

FIRST_VERSION = (3, 14)
SITE = Path(__file__).resolve().parent.parent / "hook" / "site"

_DISABLED_BY = "PYTHON_DISABLE_REMOTE_DEBUG"
_DISABLED_BY_OPTION = re.compile(r"disable[_-]remote[_-]debug(=.*)?")
_PYTHON = re.compile(r"python[\d.]*")
_RESTART = "restart it with `gpuwatch run`, or attach without --inject"


class CannotInjectError(Exception):
    """A process in which the hook is not installed; its text is one sentence with the cause and the cure."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One installation. `interpreter` is the target's own program: both sides must be the same Python."""

    pid: int
    start_ticks: int
    uid: int
    gid: int
    version: tuple[int, int]
    interpreter: str
    site: Path
    proc_root: Path = Path("/proc")


def plan_for(pid: int, proc_root: Path = Path("/proc"), site: Path = SITE) -> Plan:
    """The plan for a process of this mount namespace.

    Args:
        pid: its process id.
        proc_root: /proc, or another view of it.
        site: the folder with the hook's launcher.

    Raises:
        CannotInjectError: where the hook cannot or must not be installed.
    """
    try:
        target = attach(pid, proc_root=proc_root)
    except CannotReadError as error:
        cure = f"{error.cure.rstrip('.')}; or {_RESTART}" if error.cure else _RESTART
        raise CannotInjectError(f"{error.sentence.rstrip('.')}: {cure}") from error
    try:
        version, start_ticks = target.version, target.start_ticks
    finally:
        target.close()
    if version < FIRST_VERSION:
        raise CannotInjectError(
            f"process {pid} runs Python {version[0]}.{version[1]}, and only 3.14 and later let the hook be installed "
            f"while they run (PEP 768): {_RESTART}"
        )
    folder = proc_root / str(pid)
    try:
        _honour_refusal(pid, folder)
        owner, interpreter = folder.stat(), _interpreter(pid, folder, site)
    except OSError as error:
        raise CannotInjectError(f"process {pid} has ended meanwhile: name one that runs") from error
    return Plan(pid, start_ticks, owner.st_uid, owner.st_gid, version, interpreter, site, proc_root)


def _honour_refusal(pid: int, folder: Path) -> None:
    """Whoever started the process may have said that it is not to be reached into."""
    settings = dict(entry.partition(b"=")[::2] for entry in (folder / "environ").read_bytes().split(b"\0"))
    if settings.get(_DISABLED_BY.encode()):
        raise CannotInjectError(f"process {pid} was started with {_DISABLED_BY} set, which forbids this: {_RESTART}")
    words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    for option, value in zip(words, [*words[1:], ""], strict=True):
        asked = value if option == "-X" else option.removeprefix("-X") if option.startswith("-X") else ""
        if _DISABLED_BY_OPTION.fullmatch(asked):
            raise CannotInjectError(
                f"process {pid} was started with -X disable_remote_debug, which forbids this: {_RESTART}"
            )


def _interpreter(pid: int, folder: Path, site: Path) -> str:
    """The target's own program, which is asked to hand the script over; and whether the target sees our files."""
    interpreter = os.readlink(folder / "exe")  # noqa: PTH115 - kept as text
    if not _PYTHON.fullmatch(Path(interpreter).name):
        raise CannotInjectError(
            f"process {pid} embeds Python in {Path(interpreter).name}, which cannot be asked to install the hook: call "
            "gpuwatch.watch() in its script"
        )
    seen = folder / "root" / site.relative_to("/")
    try:
        is_same = site.samefile(seen)
    except OSError:
        is_same = False
    if not is_same or not Path(interpreter).is_file():
        raise CannotInjectError(
            f"process {pid} does not see gpuwatch's files in {site}, as in a container: run gpuwatch where it runs, or "
            f"{_RESTART}"
        )
    return interpreter
