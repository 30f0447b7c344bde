"""Textual's terminal driver, with an input thread that sleeps until there is input.

Textual's own looks for a key ten times a second: 0.05 CPU seconds a minute, a sixth of what all our drawing costs, and
a tenth of a second at every exit (measured with 8.2.8).
"""

from __future__ import annotations

import os
import select
import threading
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager

from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

ESCAPE_SECONDS = 0.1
"""How often to look while an escape character may still turn out to be a key of its own."""

LOOKS_AFTER_INPUT = 3


class CalmDriver(LinuxDriver):
    """Differs from its parent only in how it waits."""

    _wake_fd: int | None = None
    _wake_lock = threading.Lock()  # a terminal that is gone ends the thread while the app is about to wake it

    def run_input_thread(self) -> None:
        """Reads input and dispatches its events until the driver is told to stop."""
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
