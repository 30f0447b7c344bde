"""Textual's terminal driver, with an input thread that sleeps until there is input.

Textual's own looks for a key ten times a second: 0.05 CPU seconds a minute, a sixth of what all our drawing costs, and
a tenth of a second at every exit (measured with 8.2.8).
"""

from __future__ import annotations

import os
import select
import signal
import threading
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager

from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from gpuwatch.dashboard.terminal import MOST_COLUMNS, MOST_ROWS

ESCAPE_SECONDS = 0.1
"""How often to look while an escape character may still turn out to be a key of its own."""

LOOKS_AFTER_INPUT = 3


class CalmDriver(LinuxDriver):
    """Differs from its parent in how it waits, and in what SIGCONT without Ctrl-Z and absurd sizes do."""

    _is_active = False

    def __init__(
        self, app: App[object], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size or self._get_terminal_size())

    _wake_fd: int | None = None
    _wake_lock = threading.Lock()  # a terminal that is gone ends the thread while the app is about to wake it

    def start_application_mode(self) -> None:
        """Takes the terminal."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._is_active = True

    def stop_application_mode(self) -> None:
        """Gives the terminal back."""
        self._is_active = False
        super().stop_application_mode()

    # A signal may interrupt the drawing while that holds the lock of the queue which the changes of the terminal write
    # to as well, or interrupt another such change half-way: they wait for the event loop.

    def _sigtstp_application(self, *_: object) -> None:
        """Stops, as Ctrl-Z asks."""
        if self._loop.is_closed():
            os.kill(os.getpid(), signal.SIGSTOP)  # the terminal has been given back
        else:
            self._loop.call_soon_threadsafe(self._stop)

    def _sigcont_application(self, *_: object) -> None:
        """Goes on after a stop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._resume)

    def _stop(self) -> None:
        """Gives the terminal back and stops; one that was stopped has given it back where its SIGCONT was discarded."""
        if self._is_active:
            super()._sigtstp_application()
        else:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _resume(self) -> None:
        """Takes the terminal back.

        After SIGSTOP, which a program cannot catch, and after a SIGCONT alone, as systemd sends one after SIGTERM, the
        terminal was never given back. Textual takes it a second time then: two threads read the keys, no key ends the
        program, and the raw mode is what is restored at the end.
        """
        if self._is_active and not self._must_signal_resume:
            self.suspend_application_mode()
            self._must_signal_resume = True
        elif not self._must_signal_resume:
            return  # the app is ending, or has not begun
        super()._sigcont_application()

    def _get_terminal_size(self) -> tuple[int, int]:
        columns, rows = super()._get_terminal_size()
        return min(columns, MOST_COLUMNS), min(rows, MOST_ROWS)

    def run_input_thread(self) -> None:
        """Reads input and dispatches its events until the driver is asked to stop."""
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")("replace").decode
        looks = LOOKS_AFTER_INPUT
        with self._waking() as wake_fd:
            while not self.exit_event.is_set():
                timeout = ESCAPE_SECONDS if looks else None
                ready, _, _ = select.select([self.fileno, wake_fd], [], [], timeout)
                looks = LOOKS_AFTER_INPUT if ready else looks - 1
                if wake_fd in ready:
                    os.read(wake_fd, 1)
                if self.fileno in ready:
                    data = os.read(self.fileno, 4096)
                    for event in parser.feed(decode(data)) if data else ():
                        self.process_message(event)
                    if not data:
                        break  # the terminal is gone; the guard ends the app
                for event in parser.tick():
                    self.process_message(event)
        try:
            for _event in parser.feed(""):
                pass
        except (EOFError, ParseError):
            return

    @contextmanager
    def _waking(self) -> Iterator[int]:
        """A pipe for as long as the thread runs, through which it can be woken."""
        wake_fd, self._wake_fd = os.pipe()
        try:
            yield wake_fd
        finally:
            with self._wake_lock:
                os.close(wake_fd)
                os.close(self._wake_fd)
                self._wake_fd = None

    def disable_input(self) -> None:
        """Ends the input thread; it looks at `exit_event` several times after having been woken."""
        with self._wake_lock:
            if self._wake_fd is not None:
                os.write(self._wake_fd, b"!")
        super().disable_input()
