"""Starts the program of a run so that it ends when the trial does, however that ends.

A script for `python -I -S process_guard.py DESCRIPTOR FOLDER... -- COMMAND...`. The descriptor reads a pipe of which
only the trial holds the other end: the kernel closes that one with the trial, killed by SIGKILL too. A parent's death
signal (PR_SET_PDEATHSIG) would reach one process, and its ranks and workers would train on. So one process stays behind
in the run's group, waits for the pipe's end, ends the run, and removes the trial's folders. While it is there, the
group's number cannot be another's; and it is no child of the program, so that the program has none that it did not
start.
"""

import os
import signal
import sys
import time

GRACE_SECONDS = 10.0
"""What the program gets to end after SIGTERM."""
DYING_SECONDS = 5.0
"""What it gets after SIGKILL, before the folders go that it may write to."""
_ANSWER_SECONDS = 2.0
_silent: set[int] = set()
_NOT_STARTED = 126
_NOT_FOUND = 127


def start(pipe: int, folders: list[str], command: list[str]) -> None:
    """Becomes the command, with a process that guards it."""
    if os.fork() == 0:
        if os.fork() == 0:
            _guard(pipe, folders)
        os._exit(0)
    os.wait()
    os.close(pipe)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and what it starts would
        signal.signal(number, signal.SIG_DFL)
    # As it was handed over: in the C locale Python has added LC_CTYPE to os.environ (PEP 538).
    entries = [entry.partition(b"=") for entry in _content("/proc/self/environ").split(b"\0")]
    environment = {name: value for name, equals, value in entries if equals} or os.environb
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        sys.stderr.write(
            f"{command[0]} cannot be started ({error.strerror}): give a program, "
            "or put the interpreter before a script\n"
        )
        sys.exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED)


def _guard(pipe: int, folders: list[str]) -> None:
    """Waits until the trial is gone, then ends the run: asks first. A run that ends before takes this process along."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    while os.read(pipe, 1):
        pass
    group, place = os.getpgrp(), os.environ.get("GPUWATCH_DIR")
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, DYING_SECONDS)):
        send(number, group, place)
        deadline = time.monotonic() + seconds
        while members(group, place) and time.monotonic() < deadline:
            time.sleep(0.1)
    for folder in folders:
        remove(folder)
    os.killpg(group, signal.SIGKILL)


def remove(folder: str) -> None:
    """Takes away a folder of this user's with all that is in it; links are removed and never followed."""
    import shutil

    try:
        is_own = os.lstat(folder).st_uid == os.geteuid()
    except OSError:
        return
    if is_own:  # a link in its place is refused, and one that gets into its place meanwhile
        shutil.rmtree(folder, ignore_errors=True)


def send(number: signal.Signals, group: int, place: str | None) -> None:
    """Sends a signal to what is left of a run, but not to this process."""
    for pid in members(group, place):
        _kill(pid, number)


def members(group: int, place: str | None) -> list[int]:
    """The processes of a run but this one: its group, and wherever else its trainers would meet the trial.

    Some launchers put ranks into sessions of their own; they pass on the environment, in which the place is.
    """
    mark = b"\0GPUWATCH_DIR=%s\0" % os.fsencode(place or "")
    found = []
    for pid in {int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal()} - {os.getpid()}:
        fields = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if not fields or fields[0] in (b"Z", b"X"):
            continue
        if int(fields[2]) == group or (place and mark in b"\0%s\0" % _environment(pid)):
            found.append(pid)
    return found


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # gone by now; or it has become another user
        return


def _environment(pid: int) -> bytes:
    """What it was started with; nothing of a process that keeps its readers waiting, which is asked once."""
    import threading

    if pid in _silent:
        return b""
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(_content(f"/proc/{pid}/environ")), daemon=True)
    reader.start()
    reader.join(_ANSWER_SECONDS)
    if not found:
        _silent.add(pid)
    return b"".join(found)


def _content(path: str) -> bytes:
    """What is in a file of /proc; nothing where it is gone or another user's."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - this starts in front of each run: without pathlib
            return file.read()
    except OSError:
        return b""


if __name__ == "__main__":
    behind = sys.argv.index("--")
    start(int(sys.argv[1]), sys.argv[2:behind], sys.argv[behind + 1 :])
