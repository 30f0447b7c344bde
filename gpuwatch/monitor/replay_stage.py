"""One stretch of a replay: a timeline, an engine and a monitor, brought to the moment that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.settings import Settings
from gpuwatch.monitor.monitor import Monitor, Subscriber
from gpuwatch.monitor.parts import Judge, Lead
from gpuwatch.monitor.recorded_findings import RecordedFindings, RecordedJudge
from gpuwatch.monitor.replay_clock import ReplayClock
from gpuwatch.monitor.replay_past import fill_past
from gpuwatch.monitor.replay_source import ReplaySource
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.types import RecordingMeta
from gpuwatch.timeline.runs import ProcessSet
from gpuwatch.timeline.tiers import MINUTE_NS
from gpuwatch.timeline.timeline import Timeline

_EVALUATION_NS = 5_000_000_000
_LEAD_NS = 150_000_000_000
"""What is lived through before the moment asked for: the charts' two minutes, of which the rules judge the last."""
_SHORT_LEAD_NS = 75_000_000_000
_MANY_STEPS = 1_200
"""Steps per minute of all ranks, above which only the rules' minute is lived through: a seek takes 0.2 s at most."""
_ALL_EVALUATIONS_NS = 30_000_000_000
"""So soon after the beginning all are made, as they were when it was live."""
_EVALUATIONS = 3
"""So many of the rules before the moment: two make a finding. What takes more of them the recording tells."""


class Stage:
    """From a recorded moment on; rebuilt at each seek, because histories only grow forwards.

    Args:
        recording: to play.
        recorded: its findings.
        at_ns: the moment to be shown first.
        origin: as the screen shows it.
        speed: recorded seconds per second.
        subscriber: gets the snapshots, the first of them that of `at_ns`.
        since_ns: everything since this moment is lived through, though it be long before `at_ns`.
        with_past: whether charts reach further back from the start; else once `fill_past` is called.
        settings: which rules judge, and by which thresholds.
    """

    def __init__(
        self,
        recording: Recording,
        recorded: RecordedFindings,
        at_ns: int,
        origin: Origin,
        speed: float,
        subscriber: Subscriber | None = None,
        since_ns: int | None = None,
        with_past: bool = True,
        settings: Settings | None = None,
    ) -> None:
        self._recording = recording
        first_ns = recording.start_ns + 1  # of a recording, the start lies before the first sample
        at_ns = max(first_ns, at_ns)
        lead_ns = _SHORT_LEAD_NS if since_ns is None and _is_dense(recording, at_ns) else _LEAD_NS
        start_ns = lead_start(first_ns, at_ns if since_ns is None else min(at_ns, since_ns), lead_ns)
        interval = recording.meta.interval_seconds
        self._past_until_ns: int | None = start_ns if start_ns > first_ns else None
        self.is_shown = False
        self.timeline = Timeline(started_ns=first_ns, interval_seconds=interval)
        lead = Lead(at_ns, start_ns + _EVALUATION_NS, recording.wall_anchors)
        if start_ns > first_ns:
            self.timeline.extend(recording.facts_at(start_ns))
            if with_past:
                self.fill_past()
        skips = since_ns is None and at_ns - start_ns > _ALL_EVALUATIONS_NS
        if skips:
            known_ns = recorded.evaluation_known(at_ns) or first_ns
            judged_ns = known_ns + (at_ns - known_ns) // _EVALUATION_NS * _EVALUATION_NS
            lead = replace(lead, evaluate_from_ns=judged_ns - (_EVALUATIONS - 1) * _EVALUATION_NS)
        engine: Judge = Engine(settings=settings)
        if skips or start_ns > first_ns:
            engine = RecordedJudge(engine, recorded, at_ns - _EVALUATION_NS, start_ns)
        self.clock = ReplayClock(start_ns, at_ns, recording.wall_time, speed)
        self.monitor = Monitor(
            [ReplaySource(recording, start_ns if start_ns > first_ns else recording.start_ns, at_ns)],
            origin=origin,
            clock=self.clock,
            engine=engine,
            only_pids=self._attached_pids if is_narrowed(recording.meta) else None,
            interval_seconds=interval,
            timeline=self.timeline,
            lead=lead,
        )
        self.monitor.subscribe(self._note)
        if subscriber is not None:
            self.monitor.subscribe(subscriber)

    @property
    def lacks_past(self) -> bool:
        """Whether there is more to show than its samples."""
        return self._past_until_ns is not None

    def fill_past(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Has charts reach back as far as the recording does, a day at most; stopped, it goes on when called again."""
        if self._past_until_ns is not None:
            self._past_until_ns = fill_past(self.timeline, self._recording, self._past_until_ns, stop)

    def close(self) -> None:
        """Ends it; the recording stays open."""
        self.monitor.stop()
        self.clock.close()

    def _note(self, snapshot: Snapshot) -> None:
        self.is_shown = True

    def _attached_pids(self) -> frozenset[int]:
        """The tree that the recording was narrowed to: /proc was read of its processes and of no others."""
        root = self._recording.meta.attached_pid
        return ProcessSet.of(self.timeline.processes, unknown=() if root is None else (root,))


def is_narrowed(meta: RecordingMeta) -> bool:
    """Whether only one process tree was looked at: one attached to, or that of the command that was recorded."""
    return meta.attached_pid is not None or bool(meta.command)


def lead_start(start_ns: int, at_ns: int, lead_ns: int = _LEAD_NS) -> int:
    """Where to begin so that everything stands at `at_ns`: a moment at which the rules were asked from the start on."""
    return start_ns + max(0, at_ns - lead_ns - start_ns) // _EVALUATION_NS * _EVALUATION_NS


def _is_dense(recording: Recording, at_ns: int) -> bool:
    steps = recording.rollups(at_ns - MINUTE_NS, at_ns, metrics={"step_seconds"})
    return sum(row.count for row in steps) > 2 * _MANY_STEPS  # of the two minutes that this touches
