"""Runs the dashboard over a hand-made snapshot in this terminal: `python -m tests.dashboard.fake_main [hanging]`.

`hanging`: the monitor's stop() never returns, as with a driver that is stuck.
"""

from __future__ import annotations

import sys
import threading

from gpuwatch.dashboard.launch import run_dashboard
from tests.dashboard import situations
from tests.dashboard.fake_monitor import FakeMonitor


class EagerMonitor(FakeMonitor):
    """Sends its snapshot as soon as somebody listens."""

    def subscribe(self, callback: object) -> None:
        super().subscribe(callback)  # type: ignore[arg-type]
        self.push()

    def stop(self) -> None:
        if "hanging" in sys.argv:
            threading.Event().wait()


if __name__ == "__main__":
    made = situations.monitor(situations.starved())
    sys.exit(run_dashboard(EagerMonitor(made.current, made.timeline)))
