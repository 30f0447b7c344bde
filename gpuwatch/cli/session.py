"""What a command watches: the monitor over this machine, one process tree of it, or a simulated machine."""

from __future__ import annotations

import argparse
import logging
import os
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from gpuwatch.cli.arguments import ANY_PROCESS, unknown
from gpuwatch.cli.errors import GpuwatchError
from gpuwatch.diagnosis.settings import Settings
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.wiring import TakeNvml, live_monitor, simulated_monitor
from gpuwatch.timeline.runs import title_of

if TYPE_CHECKING:
    from gpuwatch.sources.host.identify import ProcessIdentity

_DEMO_PAST_SECONDS = 120.0
_LEAD_SECONDS = 120.0
"""What a simulated report lets pass before it begins: a run that is warm, a hang that has lasted."""


@dataclass(slots=True)
class Session:
    """A monitor and what it is narrowed to; leaving the session stops the monitor."""

    monitor: Monitor
    interval_seconds: float
    virtual: bool = False
    attached: ProcessIdentity | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.monitor.stop()

    @property
    def label(self) -> str:
        """What the screen says of the source: "LIVE", "SIMULATED starved"."""
        return self.monitor.snapshot().origin.label

    @property
    def narrowed_to(self) -> str | None:
        """The attached process as people say it: "train.py (4711)"."""
        if self.attached is None:
            return None
        return f"{title_of(self.attached.arguments)} ({self.attached.pid})"

    def now_ns(self) -> int:
        """The monitor's time."""
        return self.monitor.snapshot().time_ns if self.virtual else time.monotonic_ns()

    def has_ended(self) -> bool:
        """Whether the attached process is gone; one that waits for its parent to collect it is gone, too."""
        if self.attached is None:
            return False
        from gpuwatch.sources.host.procfs import read_stat

        stat = read_stat("/proc", self.attached.pid)
        return stat is None or stat.start_ticks != self.attached.start_ticks or stat.has_ended


def open_session(arguments: argparse.Namespace, nvml: TakeNvml | None = None) -> Session:
    """The session that `--simulate`, `--attach` and `--interval` ask for.

    Args:
        arguments: as parsed.
        nvml: as for `live_monitor`.
    """
    quiet_log()
    if arguments.simulate is not None:
        if arguments.attach is not None:
            raise GpuwatchError("--simulate and --attach exclude each other: a simulated machine has no process here")
        return simulated_session(
            arguments.simulate,
            virtual=arguments.command == "report",
            interval=arguments.interval,
            settings=arguments.config.settings,
        )
    pid = arguments.attach
    if pid == ANY_PROCESS:
        from gpuwatch.cli.candidates import pick_candidate

        pid = pick_candidate(arguments.command)
    attached = None if pid is None else _identified(pid)
    if arguments.inject and pid is not None:
        from gpuwatch.cli.inject import inject

        inject(pid, yes=arguments.yes)
    monitor = live_monitor(
        interval_seconds=arguments.interval, attach_pid=pid, settings=arguments.config.settings, nvml=nvml
    )
    return Session(monitor, arguments.interval, attached=attached)


def simulated_session(
    scenario: str,
    *,
    virtual: bool,
    interval: float = 1.0,
    settings: Settings | None = None,
    lead_seconds: float = _LEAD_SECONDS,
) -> Session:
    """A made-up machine, in passing time or in time that jumps, which then has gone on for `lead_seconds` already."""
    from gpuwatch.sources.simulator import SCENARIOS

    quiet_log()
    if scenario not in SCENARIOS:
        raise GpuwatchError(unknown("scenario", scenario, list(SCENARIOS)))
    monitor = simulated_monitor(
        scenario,
        virtual=virtual,
        history_seconds=0.0 if virtual else _DEMO_PAST_SECONDS,
        interval_seconds=interval,
        settings=settings,
    )
    if virtual:
        monitor.run_until(monitor.snapshot().time_ns + round(lead_seconds * 1e9))
    return Session(monitor, interval, virtual=virtual)


def _identified(pid: int) -> ProcessIdentity:
    from gpuwatch.sources.host.identify import CannotAttachError, identify

    try:
        return identify(pid)
    except CannotAttachError as error:
        raise GpuwatchError(error.sentence.rstrip(".")) from error


def quiet_log() -> None:
    """Keeps what parts log of their failures off the screen: they also say it in one sentence, where it belongs."""
    log = logging.getLogger("gpuwatch")
    if os.environ.get("GPUWATCH_TRACEBACK"):
        logging.basicConfig(level=logging.INFO)
    elif not log.handlers:
        log.addHandler(logging.NullHandler())
        log.propagate = False
