"""What a command watches: the monitor over this machine, one process tree of it, or a simulated machine.

And what it says of it as it goes: how far it has got, and that there is nothing to watch.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gpuwatch.cli.arguments import ANY_PROCESS, unknown
from gpuwatch.cli.output import GpuwatchError
from gpuwatch.diagnosis.thresholds import Settings
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.monitor.wiring import TakeNvml, live_monitor, simulated_monitor
from gpuwatch.numbers import byte_size
from gpuwatch.timeline.runs import title_of

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from gpuwatch.cli.alerts import OnFinding
    from gpuwatch.sources.host.identify import ProcessIdentity

_DEMO_PAST_SECONDS = 120.0
_LEAD_SECONDS = 120.0
"""What a simulated report lets pass before it begins: a run that is warm, a hang that has lasted."""

_QUIT_SECONDS = 0.5
"""What a key that ends the dashboard may wait for a command of --on-finding, which then goes on by itself."""

_PATIENCE_SECONDS = 10.0
"""A run links itself within a second of its start; a driver answers within two, or it does not."""


@dataclass(slots=True)
class Session:
    """A monitor and what it is narrowed to; leaving the session stops the monitor."""

    monitor: Monitor
    interval_seconds: float
    virtual: bool = False
    attached: ProcessIdentity | None = None
    read_only: bool = False  # the dashboard sends no signals to processes
    notify: bool = False  # the terminal tells of critical findings and of the ends of runs
    on_finding: OnFinding | None = None  # what runs a command at these

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.monitor.stop()
        if self.on_finding is not None:
            self.on_finding.finish()

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
        from gpuwatch.procfs import read_stat

        stat = read_stat("/proc", self.attached.pid)
        return stat is None or stat.start_ticks != self.attached.start_ticks or stat.has_ended


def open_session(arguments: argparse.Namespace, nvml: TakeNvml | None = None) -> Session:
    """The session that `--simulate`, `--attach`, `--interval`, `--notify` and `--on-finding` ask for.

    Args:
        arguments: as parsed.
        nvml: as for `live_monitor`.
    """
    session = _opened(arguments, nvml)
    session.notify = getattr(arguments, "notify", False)
    command = getattr(arguments, "on_finding", None)
    if command is not None:
        from gpuwatch.cli.alerts import OnFinding

        on_problem = partial(session.monitor.note, "--on-finding")
        patience = {"patience_seconds": _QUIT_SECONDS} if arguments.command == "dashboard" else {}
        session.on_finding = OnFinding(command, on_problem, **patience)
        session.monitor.subscribe(session.on_finding.take)
    if session.notify and arguments.command != "dashboard":  # which has the terminal
        from gpuwatch.cli.alerts import Notifier

        session.monitor.subscribe(Notifier().take)
    return session


def _opened(arguments: argparse.Namespace, nvml: TakeNvml | None) -> Session:
    quiet_log()
    if arguments.simulate is not None:
        if arguments.attach is not None:
            raise GpuwatchError(
                "--simulate and --attach cannot be combined: the processes of a simulated machine do not exist"
            )
        return simulated_session(
            arguments.simulate,
            virtual=arguments.command == "report",
            interval=arguments.interval,
            settings=arguments.config.settings,
        )
    pid = arguments.attach
    if pid == ANY_PROCESS:
        from gpuwatch.cli.attach import pick_candidate

        pid = pick_candidate(arguments.command)
    attached = None if pid is None else _identified(pid)
    if arguments.inject and pid is not None:
        from gpuwatch.cli.attach import inject

        inject(pid, yes=arguments.yes)
    monitor = live_monitor(
        interval_seconds=arguments.interval, attach_pid=pid, settings=arguments.config.settings, nvml=nvml
    )
    return Session(monitor, arguments.interval, attached=attached, read_only=getattr(arguments, "read_only", False))


def simulated_session(
    scenario: str,
    *,
    virtual: bool,
    interval: float = 1.0,
    settings: Settings | None = None,
    lead_seconds: float = _LEAD_SECONDS,
) -> Session:
    """A simulated machine, in passing time or in time that jumps, which has then gone on for `lead_seconds` already."""
    from gpuwatch.sources.simulator.scenarios import SCENARIOS

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


class NothingSeen:
    """Whether there was anything to watch at all; without a GPU and a run there is nothing to report.

    It is never sure with `patient`, where the user asked to wait without an end, nor once something was seen: the only
    run of a machine without GPUs leaves the screen 10 min after its end.
    """

    def __init__(self, *, patient: bool) -> None:
        self._patient = patient
        self.is_sure = False
        self.saw_something = False

    def see(self, snapshot: Snapshot) -> None:
        """Becomes sure once nothing showed up for long enough."""
        waited = (snapshot.time_ns - snapshot.started_ns) / 1e9
        self.saw_something = self.saw_something or not is_empty(snapshot)
        self.is_sure = not self._patient and waited >= _PATIENCE_SECONDS and not self.saw_something

    def refuse(self, snapshot: Snapshot) -> None:
        """Raises what says that nothing could be measured, if that is so."""
        if is_empty(snapshot) and not self.saw_something:
            raise GpuwatchError(explanation(snapshot))


def is_empty(snapshot: Snapshot) -> bool:
    """Neither a GPU nor a run."""
    return not snapshot.gpus and not snapshot.runs


def explanation(snapshot: Snapshot) -> str:
    """What was looked for, and how to get going."""
    nvml = snapshot.nvml
    reason = (nvml.reason or f"NVML is {nvml.status}") if nvml else "the driver has not answered yet"
    many = sum(each.visibility != "exact" for each in snapshot.candidates)
    trains = "1 process trains" if many == 1 else f"{many} processes train"
    others = f"{trains} here without it (`gpuwatch --attach` lists them); " if many else ""
    others += "".join(f"{notice.rstrip('.')}; " for notice in snapshot.notices)
    return (
        f"nothing to measure: no GPU ({reason.rstrip('.')}) and no training run with the hook; {others}"
        "start the training with `gpuwatch run python train.py`, see `gpuwatch doctor`, or try `gpuwatch demo`"
    )


class Progress:
    """A bar on stderr with the time left and what is seen; silent where stderr is a file or a pipe."""

    def __init__(
        self,
        started_ns: int,
        duration_seconds: float | None,
        *,
        doing: str = "watching",
        hint: str = "Ctrl-C: report so far",
    ) -> None:
        self._doing = doing
        self._hint = hint
        self._started_ns = started_ns
        self._duration_seconds = duration_seconds
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        if sys.stderr is not None and sys.stderr.isatty():
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Moves the bar."""
        if self._bar is None or self._task is None:
            return
        counts = ((snapshot.gpus, "GPU"), (snapshot.runs, "run"), (snapshot.findings, "finding"))
        seen = ", ".join(_count(len(things), name) for things, name in counts)
        if snapshot.recording is not None:
            seen = snapshot.recording.problem or f"{seen}, {byte_size(snapshot.recording.bytes)}"
        self._bar.update(self._task, completed=(snapshot.time_ns - self._started_ns) / 1e9, seen=seen)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        timing = TimeElapsedColumn() if self._duration_seconds is None else TimeRemainingColumn()
        self._bar = RichProgress(
            TextColumn(self._doing),
            BarColumn(bar_width=30),
            timing,
            TextColumn("{task.fields[seen]}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self._doing, total=self._duration_seconds, seen=self._hint)
        self._bar.start()


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
