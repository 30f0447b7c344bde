"""What installing the hook in one running process takes, or why it cannot be done there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gpuwatch.foreign import Rights, answered, exists_for, rights_of
from gpuwatch.procfs import is_running
from gpuwatch.reader.attach import attach
from gpuwatch.reader.refusals import CannotReadError

FIRST_VERSION = (3, 14)
SITE = Path(__file__).resolve().parent.parent / "hook" / "site"

_DISABLED_BY = "PYTHON_DISABLE_REMOTE_DEBUG"
_DISABLED_BY_OPTION = re.compile(r"disable[_-]remote[_-]debug(=.*)?")
_RESTART = "restart it with `gpuwatch run`, or attach without --inject"


class CannotInjectError(Exception):
    """A process in which the hook is not installed; its text is one sentence with the cause and the cure."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One installation. `uid` and `gid` are those with which the process opens files."""

    pid: int
    start_ticks: int
    uid: int
    gid: int
    version: tuple[int, int]
    site: Path
    proc_root: Path = Path("/proc")
    restart: ClassVar[str] = _RESTART

    def still_runs(self) -> bool:
        """Whether its pid is still its own: while the user was asked, another process may have got it."""
        return is_running(self.pid, self.start_ticks, self.proc_root)


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
        alternative = f"; or {_RESTART}" if error.cure else f": {_RESTART}"
        raise CannotInjectError(f"{error.with_cure}{alternative}") from error
    try:
        version, start_ticks = target.version, target.start_ticks
    finally:
        target.close()
    if version < FIRST_VERSION:
        raise CannotInjectError(
            f"process {pid} runs Python {version[0]}.{version[1]}, and only 3.14 and later let the hook be installed "
            f"while they run (PEP 768): {_RESTART}"
        )
    try:
        rights = rights_of(pid, proc_root)
        _check_rights(pid, rights, (os.geteuid(), os.getegid()))
        answered(pid, lambda: _honour_refusal(pid, proc_root / str(pid)))
        _check_sees(pid, site, proc_root)
    except TimeoutError as error:
        raise CannotInjectError(f"process {pid} does not answer reads of its memory: {_RESTART}") from error
    except OSError as error:
        raise CannotInjectError(f"process {pid} has ended meanwhile: name one that runs") from error
    return Plan(pid, start_ticks, rights.user, rights.group, version, site, proc_root)


def _check_rights(pid: int, rights: Rights, me: tuple[int, int]) -> None:
    """Only root may act in the name of another user."""
    if me[0] != 0 and (rights.user, rights.group) != me:
        raise CannotInjectError(
            f"process {pid} runs as user {rights.user} and group {rights.group}, and this gpuwatch as user {me[0]} and "
            f"group {me[1]}: run gpuwatch as that user"
        )


def _honour_refusal(pid: int, folder: Path) -> None:
    """The process may have been started with the wish that it is not to be reached into."""
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


def _check_sees(pid: int, site: Path, proc_root: Path) -> None:
    """Whether the target sees our files, by the same name, and may read them."""
    try:
        seen = proc_root / str(pid) / "root" / site.relative_to("/")
        is_same = answered(pid, lambda: site.samefile(seen))
    except OSError:
        is_same = False
    if not is_same or not exists_for(pid, str(site), proc_root=proc_root):
        raise CannotInjectError(
            f"process {pid} does not see gpuwatch's files in {site}, as in a container or a closed home: run gpuwatch "
            f"where it runs, or {_RESTART}"
        )
