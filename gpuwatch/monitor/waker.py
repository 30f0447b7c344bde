"""Wakes a thread that waits for files, from another thread or a signal handler."""

from __future__ import annotations

import os


class Waker:
    """A pipe to oneself. What is written to it while it is full says nothing new and is dropped."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._is_open = True

    def fileno(self) -> int:
        """The file to wait for."""
        return self._read

    def wake(self) -> None:
        """Ends the wait that is on, or the next one."""
        if not self._is_open:
            return
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            return

    def drain(self) -> None:
        """Takes note: the next wait sleeps again."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Gives the pipe back. Idempotent."""
        if self._is_open:
            self._is_open = False
            os.close(self._read)
            os.close(self._write)
