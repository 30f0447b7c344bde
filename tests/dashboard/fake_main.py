"""Runs the dashboard over a hand-made snapshot in this terminal: `python -m tests.dashboard.fake_main [MODE]`.

`hanging`: the monitor's stop() never returns, as with a driver that is stuck. `lively`: it keeps sending the same
snapshot, so that nothing on the screen changes, also not into a word on its silence.
"""

from __future__ import annotations

import sys
import threading

from gpuwatch.cli.output import flush_stderr
from gpuwatch.dashboard.launch import run_dashboard
from tests.dashboard import situations
from tests.dashboard.fake_monitor import FakeMonitor


class EagerMonitor(FakeMonitor):
    """Sends its snapshot as soon as somebody listens."""

    def subscribe(self, callback: object) -> None:
        super().subscribe(callback)  # type: ignore[arg-type]
        self.push()
        if "lively" in sys.argv:
            threading.Thread(target=self._push_on, daemon=True).start()

    def _push_on(self) -> None:
        while not self.stopped.wait(0.3):
            self.push()

    def stop(self) -> None:
        if "hanging" in sys.argv:
            threading.Event().wait()


if __name__ == "__main__":
    made = situations.monitor(situations.starved())
    exit_code = run_dashboard(EagerMonitor(made.current, made.timeline))
    flush_stderr()
    sys.exit(exit_code)
