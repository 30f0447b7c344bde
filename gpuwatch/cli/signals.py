"""Signals while a command works: a wish to stop, or passed on to the program that it started."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from gpuwatch.cli.run import signals_to_restore

_PASSED_ON = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_TERMINAL = ("SIGINT", "SIGQUIT", "SIGHUP")


class StopSignals:
    """While entered, the first SIGINT, SIGTERM or SIGHUP calls `on_stop`; the second ends the command at once."""

    _SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

    def __init__(self, on_stop: Callable[[], None]) -> None:
        self._on_stop = on_stop
        self._before: dict[int, Any] = {}
        self.received = False

    def __enter__(self) -> StopSignals:
        for number in self._SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGTERM:  # nohup stays nohup
                self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True
        self._on_stop()


class Child:
    """Runs a command in our process group while entered, and passes on what is sent to gpuwatch alone.

    What a terminal sends, it sends to both: passed on once more, the second Ctrl-C would break off what the first one
    has the command save. Batch systems and containers send SIGTERM and SIGUSR1 to the process that they started.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        self._code: int | None = None
        self._before: dict[int, Any] = {}
        self._early: list[int] = []
        self._wake_fds: tuple[int, int] = (-1, -1)
        self._wake_fd_before = -1

    def __enter__(self) -> Child:
        # A signal that comes just before the main thread waits for a lock, or that another thread receives, does not
        # end that wait. Python writes into this pipe in either case.
        self._wake_fds = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_fd_before = signal.set_wakeup_fd(self._wake_fds[1], warn_on_full_buffer=False)
        for number in (*map(_number, _PASSED_ON), signal.SIGCHLD):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._wake_fd_before)
        for descriptor in self._wake_fds:
            os.close(descriptor)

    @property
    def exit_code(self) -> int | None:
        """As a shell says it, 128 and the signal's number after one; None while it runs."""
        if self._code is None and self._pid is not None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self._code = code if code >= 0 else 128 - code
        return self._code

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Starts it; returns its pid.

        Raises:
            OSError: it cannot be started.
        """
        self._pid = os.posix_spawnp(command[0], list(command), dict(environment), setsigdef=signals_to_restore())
        for number in self._early:
            self._send(number)
        return self._pid

    def wait(self, seconds: float | None) -> int | None:
        """Its exit code once it has ended; None after that many seconds, or as soon as a signal arrives."""
        if self.exit_code is None:
            poll = select.poll()
            poll.register(self._wake_fds[0], select.POLLIN)
            if poll.poll(None if seconds is None else seconds * 1000):
                os.read(self._wake_fds[0], 4096)
        return self.exit_code

    def _take(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGCHLD or (number in map(_number, _FROM_TERMINAL) and _has_terminal()):
            return
        if self._pid is None:
            self._early.append(number)
        else:
            self._send(number)

    def _send(self, number: int) -> None:
        """Only to a command that has not been waited for: its pid cannot be reused until then."""
        if self._pid is not None and self._code is None:
            os.kill(self._pid, number)


def _number(name: str) -> int:
    return int(getattr(signal, name))


def _has_terminal() -> bool:
    """Whether a key pressed there reaches our process group, and so the command."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
