"""What a screen shows at one moment: the snapshot, and how the user chose to see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.snapshot import GpuNow, RunNow, Snapshot

FindingKey = tuple[str, str | None, str | None]
"""Rule, run and GPU: what stays the same while a finding comes and goes."""

WINDOWS_SECONDS = (30, 60, 120, 300, 900, 3600, 4 * 3600, 24 * 3600)
"""The zoom steps of every time axis; the longest is what the timeline keeps."""

DEFAULT_WINDOW_SECONDS = 120

HOLD_INTERVALS = 2.5
"""A chart's value holds for this many polls or steps until the next one; later is a gap."""

OLD_STATUS_NS = 30_000_000_000
"""A GPU's status (processes, link, fan) is read every 10 s at most: one this old says what was, not what is."""


ENDED_NS = 600 * 10**9
"""How long an ended run stays among the others."""


def key_of(finding: Finding) -> FindingKey:
    """The identity of a finding across snapshots."""
    return (finding.rule, finding.run, finding.gpu)


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot and the way to show it.

    `silent_seconds` is set when the monitor itself has sent nothing for longer than it should; `paused_seconds`
    while the user holds the picture.
    """

    snapshot: Snapshot | None = None
    window_seconds: float = DEFAULT_WINDOW_SECONDS
    paused_seconds: float | None = None
    silent_seconds: float | None = None
    filter: str = ""
    snoozed: frozenset[FindingKey] = frozenset()
    cleared: frozenset[str] = frozenset()  # ended runs that the user is done with
    narrowed_to: str | None = None
    planned_interval_seconds: float | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings to list: those neither snoozed nor filtered away, worst first; those of ended runs last."""
        if self.snapshot is None:
            return ()
        wanted = self.filter.casefold()
        ended = {run.id for run in self.snapshot.runs if run.state == "ended"}
        gone = {run.id for run in self.snapshot.runs} - {run.id for run in self.all_runs}
        return tuple(
            finding
            for finding in sorted(self.snapshot.findings, key=lambda each: each.run in ended)
            if finding.run not in gone
            and key_of(finding) not in self.snoozed
            and (not wanted or wanted in searchable(finding))
        )

    @property
    def all_runs(self) -> tuple[RunNow, ...]:
        """The living runs, then those that ended in the last ten minutes; where none of them is left, the last one."""
        if self.snapshot is None:
            return ()
        runs = [run for run in self.snapshot.runs if run.id not in self.cleared]
        living = [run for run in runs if run.state != "ended"]
        ended = sorted((run for run in runs if run.state == "ended"), key=lambda run: -(run.ended_ns or 0))
        now_ns = self.snapshot.time_ns
        fresh = [run for run in ended if run.ended_ns is None or now_ns - run.ended_ns <= ENDED_NS]
        return (*living, *(fresh or (() if living else ended[:1])))

    @property
    def runs(self) -> tuple[RunNow, ...]:
        """The runs to show: where the filter names some of them, only those."""
        runs = self.all_runs
        wanted = self.filter.casefold()
        named = tuple(run for run in runs if wanted in " ".join((run.title, *run.command)).casefold())
        return named or runs

    @property
    def snoozed_count(self) -> int:
        """How many of the current findings are hidden by a snooze."""
        if self.snapshot is None:
            return 0
        return sum(key_of(finding) in self.snoozed for finding in self.snapshot.findings)

    @property
    def interval_seconds(self) -> float | None:
        """The poll interval: as measured with, else as planned."""
        if self.snapshot is None or self.snapshot.scene is None:
            return self.planned_interval_seconds
        return self.snapshot.scene.quality.poll_interval_seconds

    def gpu(self, uuid: str | None) -> GpuNow | None:
        """The GPU of that UUID."""
        gpus = self.snapshot.gpus if self.snapshot else ()
        return next((gpu for gpu in gpus if gpu.facts.uuid == uuid), None)

    def run(self, run_id: str | None) -> RunNow | None:
        """The run of that id."""
        runs = self.snapshot.runs if self.snapshot else ()
        return next((run for run in runs if run.id == run_id), None)

    def hold_ns(self, run: RunNow | None = None) -> int:
        """For how long a chart's value holds until the next one, of the run's steps where one is given: then a gap."""
        polls = self.interval_seconds or 1.0
        steps = (run.step_seconds_p50 or run.step_seconds or 0.0) if run is not None else 0.0
        return round(HOLD_INTERVALS * 1e9 * max(polls, steps))

    def is_old(self, sample_ns: int) -> bool:
        """Whether a reading is older than two polls, so that its age has to be said."""
        interval = self.interval_seconds or 1.0
        return self.snapshot is not None and self.snapshot.time_ns - sample_ns > 2 * interval * 1e9


def searchable(finding: Finding) -> str:
    """The text that the filter searches."""
    fix = finding.fix
    place = f"{fix.file or ''} {fix.text}" if fix else ""
    return f"{finding.rule} {finding.severity.value} {finding.summary} {place}".casefold()


SNOOZE_NS = 3600 * 10**9


class Viewing:
    """The state behind the view; no Textual in it.

    Args:
        view: What to begin with.
        clock: Monotonic seconds, to notice a monitor that has gone silent.
    """

    def __init__(self, view: View, clock: Callable[[], float]) -> None:
        self.view = view
        self._clock = clock
        self._newest: Snapshot | None = None
        self._newest_at = clock()
        self._paused_at: float | None = None
        self._snoozed: dict[FindingKey, int] = {}
        self._cleared: frozenset[str] = frozenset()

    def take(self, snapshot: Snapshot | None) -> None:
        """Notes the newest snapshot."""
        self._newest = snapshot or self._newest
        self._newest_at = self._clock()

    def form(self) -> View:
        """The view as of now. While it is paused, what is held stays, and only its age grows."""
        held = self._paused_at is not None and self.view.snapshot is not None
        now_ns = self._newest.time_ns if self._newest is not None else 0
        self._snoozed = {key: until for key, until in self._snoozed.items() if until > now_ns}
        self.view = replace(
            self.view,
            snapshot=self.view.snapshot if held else self._newest,
            paused_seconds=None if self._paused_at is None else self._clock() - self._paused_at,
            silent_seconds=self.silence(),
            snoozed=frozenset(self._snoozed),
            cleared=self._cleared,
        )
        return self.view

    def silence(self) -> float | None:
        """Seconds without a snapshot, once that is longer than two polls and a second; a replay may be held or slow."""
        silence = self._clock() - self._newest_at
        replay = self._newest.replay if self._newest is not None else None
        if replay is not None and replay.state != "playing":
            return None
        speed = 1.0 if replay is None else min(1.0, replay.speed)
        return silence if silence > 1.0 + 2 * (self.view.interval_seconds or 1.0) / speed else None

    def toggle_pause(self) -> None:
        """Holds the picture, or lets it go on; collection is never touched."""
        self._paused_at = self._clock() if self._paused_at is None else None

    def zoom(self, steps: int) -> None:
        """Shows less (negative) or more time."""
        index = WINDOWS_SECONDS.index(int(self.view.window_seconds)) + steps
        index = max(0, min(len(WINDOWS_SECONDS) - 1, index))
        self.view = replace(self.view, window_seconds=WINDOWS_SECONDS[index])

    def zoom_to(self, seconds: int) -> None:
        """Shows this much time, if it is one of the steps."""
        if seconds in WINDOWS_SECONDS:
            self.view = replace(self.view, window_seconds=seconds)

    def narrow(self, words: str | None) -> None:
        """Says what the watch is narrowed to."""
        self.view = replace(self.view, narrowed_to=words)

    def filter(self, text: str) -> None:
        """Shows only what holds this text."""
        self.view = replace(self.view, filter=text.strip())

    def snooze(self, key: FindingKey) -> None:
        """Hides a finding for an hour."""
        self._snoozed.pop(key, None)
        self._snoozed[key] = (self._newest.time_ns if self._newest is not None else 0) + SNOOZE_NS

    def clear_ended(self) -> int:
        """Takes the ended runs off the screen; how many there were."""
        ended = {run.id for run in self.view.all_runs if run.state == "ended"}
        self._cleared |= ended
        return len(ended)

    def undo_snooze(self) -> bool:
        """Brings the last snoozed finding back; whether there was one."""
        if self._snoozed:
            self._snoozed.popitem()
            return True
        return False
