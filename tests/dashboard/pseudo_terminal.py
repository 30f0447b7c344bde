"""A real pseudo-terminal around a child process, for tests of what only a terminal shows."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120.0  # only what hangs gets there


class PseudoTerminal:
    """Runs a module in a terminal of its own.

    Args:
        module: As for `python -m`.
        arguments: The module's arguments.
        controlling: Whether the terminal's end sends SIGHUP, as a closed window does.
        term: The child's TERM.
        environment: Replaces the tests' own environment, TERM and all.
        directory: The child's working directory.
        size: Columns and rows.
        before: Words in front of the interpreter: a command that execs what follows it.
        prepare: Called in the child before it becomes the program: limits, closed descriptors.
        program: What Python runs instead of the module, as for `python -c`.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        controlling: bool = True,
        term: str = "xterm-256color",
        environment: Mapping[str, str] | None = None,
        directory: Path = ROOT,
        size: tuple[int, int] = (120, 36),
        before: Sequence[str] = (),
        prepare: Callable[[], object] = lambda: None,
        program: str | None = None,
    ) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(*size)
        self.attributes_before = termios.tcgetattr(self.slave)
        self.output = b""

        def in_child() -> None:
            if controlling:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            prepare()

        own = {**os.environ, "TERM": term, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
        self.process = subprocess.Popen(
            [*before, sys.executable, *(["-m", module] if program is None else ["-c", program]), *arguments],
            cwd=directory,
            env=own if environment is None else environment,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=in_child,
        )

    def __enter__(self) -> PseudoTerminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for descriptor in (self.master, self.slave):
            if descriptor >= 0:
                os.close(descriptor)

    def read_until(self, wanted: str) -> None:
        """Reads until the text is on its way to the screen."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while wanted.encode() not in self.output:
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{wanted!r} never came; the last that did: {self.output[-2000:]!r}"
            self.output += os.read(self.master, 65536)

    def read_until_quiet(self, seconds: float = 1.0) -> None:
        """Reads on until nothing has come for so long."""
        while select.select([self.master], [], [], seconds)[0]:
            self.output += os.read(self.master, 65536)

    def resize(self, columns: int, rows: int) -> None:
        """Gives the terminal another size, which sends SIGWINCH."""
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Presses keys."""
        os.write(self.master, keys)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the child."""
        self.process.send_signal(number)

    def disappear(self) -> None:
        """The terminal is gone."""
        os.close(self.slave)
        os.close(self.master)
        self.master = self.slave = -1

    def wait(self) -> int:
        """The exit code; what the child still writes is read, as a terminal would."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            if self.master < 0:
                self.process.wait(PATIENCE_SECONDS)
            elif select.select([self.master], [], [], 0.05)[0]:
                self.output += os.read(self.master, 65536)
        code = self.process.wait(1)
        while self.master >= 0 and select.select([self.master], [], [], 0)[0]:
            self.output += os.read(self.master, 65536)
        return code

    @property
    def is_restored(self) -> bool:
        """Whether the normal screen, the cursor and the line discipline are back."""
        left = self.output.rfind(b"\x1b[?1049l") > self.output.rfind(b"\x1b[?1049h")
        cursor = self.output.rfind(b"\x1b[?25h") > self.output.rfind(b"\x1b[?25l")
        return left and cursor and termios.tcgetattr(self.slave) == self.attributes_before
