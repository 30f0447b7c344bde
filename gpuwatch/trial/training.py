"""One run of the program: started, listened to, and ended with everything it left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from gpuwatch.trial import leash
from gpuwatch.trial.changes import TrialError

GRACE_SECONDS = 10.0
"""What a program gets to end after SIGINT, and once more after SIGTERM."""
_LAST_LINES = 15
_TAIL_BYTES = 64 * 1024


class Training:
    """A process group of its own, so that Ctrl-C in the terminal reaches the trial and not the program behind its back.

    It does not outlive the trial, however that ends: see `leash`.

    Args:
        command: what is started.
        environment: all of it.
        scratch: whether it runs in an empty folder of its own, which goes with it.
        meeting_place: the trial's folder for all its runs, which goes with the last one if the trial is killed.
        grace_seconds: between one signal and the next harder one.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        scratch: bool = False,
        meeting_place: Path | None = None,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._grace_seconds = grace_seconds
        self._folder = Path(tempfile.mkdtemp(prefix="gpuwatch-trial-"))
        self._log = self._folder / "output.log"
        self._place = environment.get("GPUWATCH_DIR")
        work = self._folder / "scratch"
        work.mkdir()
        folders = [self._folder] if meeting_place is None else [self._folder, meeting_place]
        waits, self._leash = os.pipe()
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", leash.__file__, str(waits), *map(str, folders), "--", *command],
                    env=environment,
                    cwd=work if scratch else None,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(waits,),
                )
        except OSError as error:
            os.close(self._leash)
            shutil.rmtree(self._folder, ignore_errors=True)
            raise TrialError(f"{command[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(waits)

    def __enter__(self) -> Training:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None or not issubclass(kind, KeyboardInterrupt):  # the second Ctrl-C: do not wait
                self.end()
        finally:
            self._kill_group(signal.SIGKILL)
            self._process.wait()
            os.close(self._leash)
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that killed it."""
        return self._process.poll()

    def end(self) -> None:
        """Asks it to end as Ctrl-C would, then harder; what is left of it is killed."""
        # Started from a shell's background or by nohup it ignores SIGINT, like everything it starts.
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        for number in (signal.SIGTERM,) if ignored else (signal.SIGINT, signal.SIGTERM):
            if self._process.poll() is not None:
                break
            self._kill_group(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self._grace_seconds)
        self._kill_group(signal.SIGKILL)
        leash.send(signal.SIGKILL, self._process.pid, self._place)

    def last_lines(self) -> tuple[str, ...]:
        """The end of what it printed."""
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
            text = log.read().decode("utf-8", "backslashreplace")
        return tuple(deque((line.rstrip() for line in text.splitlines() if line.strip()), maxlen=_LAST_LINES))

    def _kill_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
