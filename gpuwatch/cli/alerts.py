"""`--notify` and `--on-finding`: tells the user's terminal, or runs a command, at what somebody should come for."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from gpuwatch.dashboard.terminal import notification
from gpuwatch.monitor.alerts import Alert, Alerts
from gpuwatch.monitor.snapshot import Snapshot

COMMAND_SECONDS = 10.0
"""A message to a chat takes one second; what takes ten is stuck, and would hold up the next."""
_MOST_WAITING = 100
_LONGEST_ERROR = 200


def environment_of(alert: Alert) -> dict[str, str]:
    """What a command gets to know of an alert; what is not known is empty."""
    fields = {
        "RULE": alert.rule,
        "SEVERITY": alert.severity,
        "SENTENCE": alert.sentence,
        "SUBJECT": alert.subject,
        "RUN": alert.run,
        "PID": alert.pid,
        "GPU": alert.gpu,
        "SOURCE": alert.origin,
    }
    return {
        f"GPUWATCH_FINDING_{name}": "" if value is None else str(value).replace("\0", "")
        for name, value in fields.items()
    }


class OnFinding:
    """Runs a command for each alert, one after the other, on a thread of its own.

    Args:
        command: for the shell.
        on_problem: takes one sentence where the command failed, else None, from that thread.
        seconds: what a command gets before it is killed, with all that it has started.
        patience_seconds: how long the end of gpuwatch waits for it; it goes on after that.
    """

    def __init__(
        self,
        command: str,
        on_problem: Callable[[str | None], object],
        seconds: float = COMMAND_SECONDS,
        patience_seconds: float = COMMAND_SECONDS,
    ) -> None:
        self._command = command
        self._on_problem = on_problem
        self._seconds = seconds
        self._patience_seconds = patience_seconds
        self._alerts = Alerts()
        self._waiting: queue.Queue[Alert | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._work, name="gpuwatch-on-finding", daemon=True)

    def take(self, snapshot: Snapshot) -> None:
        """Takes a snapshot, on the monitor's thread, and returns at once."""
        for alert in self._alerts.take(snapshot):
            if self._thread.ident is None:
                self._thread.start()
            with suppress(queue.Full):
                self._waiting.put_nowait(alert)

    def finish(self) -> None:
        """Lets what waits be run, as far as there is patience for it."""
        if self._thread.is_alive():
            with suppress(queue.Full):
                self._waiting.put_nowait(None)
            self._thread.join(self._patience_seconds)

    def _work(self) -> None:
        while (alert := self._waiting.get()) is not None:
            problem = self._run(alert)
            self._on_problem(None if problem is None else f"The command of --on-finding {problem}.")

    def _run(self, alert: Alert) -> str | None:
        """Runs the command; what went wrong, as the end of a sentence."""
        try:
            child = subprocess.Popen(
                ["sh", "-c", self._command],
                env={**os.environ, **environment_of(alert)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for gpuwatch
            )
        except OSError as error:
            return f"cannot be started: {error.strerror}"
        try:
            _, said = child.communicate(timeout=self._seconds)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return f"took longer than {self._seconds:g} s and was killed"
        if not child.returncode:
            return None
        words = " ".join(said.decode("utf-8", "replace").split())[:_LONGEST_ERROR]
        return f"failed with exit code {child.returncode}{f': {words}' if words else ''}"


class Notifier:
    """Has the terminal of stderr notify of each alert, if stderr is one."""

    def __init__(self) -> None:
        self._alerts = Alerts()

    def take(self, snapshot: Snapshot) -> None:
        """Takes a snapshot."""
        for alert in self._alerts.take(snapshot):
            if sys.stderr is not None and sys.stderr.isatty():
                sys.stderr.write(notification(alert.subject, alert.sentence))
                sys.stderr.flush()
