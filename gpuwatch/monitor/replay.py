"""Plays a recording as if it were live, with what a player has: hold, seek, speed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.thresholds import Settings
from gpuwatch.metrics import charted
from gpuwatch.monitor.clock import ReplayClock
from gpuwatch.monitor.monitor import Judge, Lead, Monitor, Subscriber
from gpuwatch.monitor.recorded_findings import RecordedFindings, RecordedJudge
from gpuwatch.monitor.snapshot import Origin, RecordingNow, ReplayNow, Snapshot
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.rollups import HOUR_NS, NO_MINUTES, MinuteColumns
from gpuwatch.recording.schema import RecordingMeta
from gpuwatch.recording.stretch import RUN_METRICS, tier_columns
from gpuwatch.samples import Sample
from gpuwatch.timeline.columns import MINUTE_NS, MINUTES_KEPT, ValueTiers
from gpuwatch.timeline.runs import ProcessSet
from gpuwatch.timeline.timeline import Timeline

_STRETCH_NS = 60_000_000_000  # what is read at once: as much as it seals into one chunk
_LEAD_STRIDE_NS = 5_000_000_000


class ReplaySource:
    """Streams a recording, from one moment on.

    Args:
        recording: to read. The replay's thread alone reads it.
        start_ns: samples after this moment.
        paced_from_ns: up to here samples are handed over in stretches of 5 s, at whose ends the rules are asked.
    """

    name = "recording"

    def __init__(self, recording: Recording, start_ns: int, paced_from_ns: int) -> None:
        self._recording = recording
        self._start_ns = start_ns
        self._paced_from_ns = paced_from_ns
        self._read_to_ns = start_ns
        self._at_ns = start_ns
        self._samples: Iterator[tuple[int, Sample]] = iter(())
        self._ahead: Sample | None = None
        self._is_closed = False

    def fileno(self) -> int | None:
        """No file: the recording is read as its time comes."""
        return None

    def due_ns(self) -> int | None:
        """When the next sample came; None at the end."""
        if self._is_closed or not self._look_ahead():
            return None
        if self._at_ns >= self._paced_from_ns:
            return self._at_ns
        strides = -((self._start_ns - self._at_ns) // _LEAD_STRIDE_NS)
        return min(self._start_ns + strides * _LEAD_STRIDE_NS, self._paced_from_ns)

    def collect(self, now_ns: int) -> Iterable[Sample]:
        """All samples up to `now_ns`."""
        while self._look_ahead() and self._at_ns <= now_ns and self._ahead is not None:
            yield self._ahead
            self._ahead = None

    def close(self) -> None:
        """Ends it; the caller closes the recording."""
        self._is_closed = True
        self._samples, self._ahead = iter(()), None

    def _look_ahead(self) -> bool:
        """Reads the next sample ahead; False where there is none (yet)."""
        while self._ahead is None and not self._is_closed:
            self._at_ns, self._ahead = next(self._samples, (self._at_ns, None))
            if self._ahead is not None:
                return True
            if self._read_to_ns >= self._recording.end_ns:
                return False
            start_ns = self._read_to_ns
            self._read_to_ns = min(start_ns + _STRETCH_NS, self._recording.end_ns)
            self._samples = self._recording.arrivals(start_ns, self._read_to_ns)
        return self._ahead is not None


def fill_past(
    timeline: Timeline, recording: Recording, until_ns: int, stop: Callable[[], bool] = lambda: False
) -> int | None:
    """Fills the minutes before a moment, for a day at most, of all GPUs, runs and the host that the timeline knows.

    Stopped, it returns the moment to go on before; else None.

    An hour at a time, as they are written, the newest first: a day of eight ranks is half a million figures.

    The minute that holds the moment is left out: samples will fill the rest of it, and half of it counted twice would
    be a lie. Its seconds are marked as not reaching back, so that charts take the minutes where they begin earlier.
    """
    start_ns = max(recording.start_ns, until_ns - MINUTES_KEPT * MINUTE_NS)
    last_ns = until_ns // MINUTE_NS * MINUTE_NS
    metrics = {*RUN_METRICS, *(metric.name for subject in ("gpu", "host") for metric in charted(subject))}
    while start_ns < last_ns and not stop():
        hour_ns = max(start_ns, (last_ns - 1) // HOUR_NS * HOUR_NS)
        found = recording.minutes(hour_ns, last_ns - 1, metrics=metrics)
        with timeline.lock:
            _put(timeline, found)
        last_ns = hour_ns
    return last_ns if start_ns < last_ns else None


def _put(timeline: Timeline, found: Mapping[tuple[str, str], MinuteColumns]) -> None:
    for (subject, metric), minutes in found.items():
        tiers = _value_tiers(timeline, subject, metric)
        if tiers is not None:
            figures = {name: minutes.column(name) for name in ("count", "mean", "min", "max")}
            tiers.minutes.fill(minutes.column("minute_ns"), figures)
            tiers.seconds.trimmed = True
    for subject in dict.fromkeys(subject for subject, _ in found):
        trainer = timeline.trainers.get(subject)
        if trainer is not None:
            own = partial(_own, found, subject)
            times_ns, columns = tier_columns(own, trainer.train_loader(), is_exact=trainer.is_exact)
            if times_ns:
                trainer.tiers.fill_minutes(times_ns, columns)


def _value_tiers(timeline: Timeline, subject: str, metric: str) -> ValueTiers | None:
    if subject == "host":
        return timeline.host.tiers.get(metric)
    gpu = timeline.gpus.get(subject)
    return gpu.tiers.get(metric) if gpu is not None else None


def _own(found: Mapping[tuple[str, str], MinuteColumns], subject: str, metric: str) -> MinuteColumns:
    return found.get((subject, metric), NO_MINUTES)


_EVALUATION_NS = 5_000_000_000
_LEAD_NS = 150_000_000_000
"""What is lived through before the requested moment: the charts' two minutes, of which the rules judge the last."""
_SHORT_LEAD_NS = 75_000_000_000
_MANY_STEPS = 1_200
"""Steps per minute of all ranks, above which only the rules' minute is lived through: a seek takes 0.2 s at most."""
_ALL_EVALUATIONS_NS = 30_000_000_000
"""So soon after the beginning all are made, as they were when it was live."""
_EVALUATIONS = 3
"""Evaluations of the rules before the moment: two make a finding. What takes more of them comes from the recording."""


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
    """Whether only one process tree was watched: one attached to, or that of the command that was recorded."""
    return meta.attached_pid is not None or bool(meta.command)


def lead_start(start_ns: int, at_ns: int, lead_ns: int = _LEAD_NS) -> int:
    """Where to begin so that everything is complete at `at_ns`: one of the moments of evaluations since the start."""
    return start_ns + max(0, at_ns - lead_ns - start_ns) // _EVALUATION_NS * _EVALUATION_NS


def _is_dense(recording: Recording, at_ns: int) -> bool:
    steps = recording.rollups(at_ns - MINUTE_NS, at_ns, metrics={"step_seconds"})
    return sum(row.count for row in steps) > 2 * _MANY_STEPS  # of the two minutes that this touches


SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)

_DEFAULTS = Settings()
_STOP_SECONDS = 1.0
_GROWTH_SECONDS = 1.0
_REFUSED = "This is a recording: {what}. Run gpuwatch without a file to watch this machine."


class ReplayMonitor:
    """A monitor over a recording: same snapshots, findings and charts as when it was live, at the recorded times.

    Nothing of this machine is read: no process, driver or file but the recording. All methods are for any thread.

    Args:
        recording: to play; the caller closes it.
        speed: recorded seconds per second.
        at_ns: the recorded moment to begin with; its start where None.
        settings: which rules judge, and by which thresholds.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        speed: float = 1.0,
        at_ns: int | None = None,
        settings: Settings = _DEFAULTS,
    ) -> None:
        self._recording = recording
        self._origin = origin_of(recording)
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._subscribers: list[Subscriber] = []
        self._thread: threading.Thread | None = None
        self._speed = speed
        self._is_held = False
        self._has_ended = False
        self._is_growing = False
        self._jumps = 0
        self._target_ns: int | None = None
        self._jumping_ns: int | None = None  # the target of the jump that is being made
        self._settings = settings
        self._recorded = RecordedFindings(recording, settings)
        self._marks = self._recorded.marks
        start_ns = recording.start_ns if at_ns is None else at_ns
        self._stage = self._stage_at(start_ns)
        self._base = self._stage.monitor.snapshot()

    @property
    def timeline(self) -> Timeline:
        """Of the stretch that plays now; another one after each jump."""
        return self._stage.timeline

    def start(self) -> None:
        """Begins to play, in a thread of its own."""
        self._thread = threading.Thread(target=self._play, name="gpuwatch-replay", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the replay. Idempotent."""
        self._stopping.set()
        self._wake()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
            if self._thread.is_alive():
                return
        self._stage.close()

    def snapshot(self) -> Snapshot:
        """The recorded state of everything, with the position of the replay."""
        return replace(self._base, replay=self._now())

    def subscribe(self, callback: Subscriber) -> None:
        """Calls back with every new snapshot, and whenever the replay is held, goes on or ends."""
        self._subscribers.append(callback)

    def attach(self, pid: int | None) -> None:
        """There is nothing to attach to.

        Raises:
            ValueError: always; the sentence is for the user.
        """
        raise ValueError(_REFUSED.format(what="there is no process to attach to"))

    def record(self, path: Path) -> None:
        """There is nothing to record that is not recorded.

        Raises:
            ValueError: always; the sentence is for the user.
        """
        raise ValueError(_REFUSED.format(what="there is nothing new to record"))

    def stop_recording(self) -> RecordingNow | None:
        """There is no recording that is being written."""
        return None

    def toggle(self) -> None:
        """Holds the replay or lets it go on; at the end it starts over."""
        with self._lock:
            if self._has_ended and self._target_ns is None:
                self._is_held = False
                self._target_ns = self._recording.start_ns
            else:
                self._is_held = not self._is_held
            self._stage.clock.hold(self._is_held)
        self._wake()
        self._tell()

    def change_speed(self, steps: int) -> None:
        """The next faster or slower speed."""
        with self._lock:
            beyond = [speed for speed in SPEEDS if (speed > self._speed if steps > 0 else speed < self._speed)]
            if beyond:
                self._speed = min(beyond) if steps > 0 else max(beyond)
                self._stage.clock.run(self._speed)
        self._tell()

    def seek(self, seconds: float) -> None:
        """Jumps by this many recorded seconds; keys that come faster than it can add up."""
        with self._lock:
            towards_ns = self._jumping_ns if self._target_ns is None else self._target_ns
            from_ns = self._stage.clock.now_ns() if towards_ns is None else towards_ns
        self.seek_to(from_ns + round(seconds * 1e9))

    def seek_to(self, time_ns: int) -> None:
        """Jumps to a recorded moment; beyond an end, to that end."""
        with self._lock:
            self._target_ns = max(self._recording.start_ns, min(self._recording.end_ns, time_ns))
        self._wake()

    def seek_to_start(self) -> None:
        """Jumps to the beginning."""
        self.seek_to(self._recording.start_ns)

    def seek_to_end(self) -> None:
        """Jumps to the last moment."""
        self.seek_to(self._recording.end_ns)

    def _play(self) -> None:
        while not self._stopping.is_set():
            self._wanted.clear()
            self._jump()
            if self._stage.lacks_past and self._wants_past():
                continue
            self._stage.monitor.run_until(self._recording.end_ns, stop=self._wanted.is_set)
            if not self._wanted.is_set() and not self._stopping.is_set():
                self._rest_at_end()

    def _jump(self) -> None:
        """Begins a new stage where one was requested."""
        with self._lock:
            target_ns = self._jumping_ns = self._target_ns
            self._target_ns = None
        if target_ns is None:
            return
        old = self._stage
        stage = self._stage_at(target_ns)
        with self._lock:
            stage.clock.hold(self._is_held)
            stage.clock.run(self._speed)
            self._stage, self._has_ended, self._jumping_ns = stage, False, None
            self._jumps += 1
            old.close()

    def _wants_past(self) -> bool:
        """Shows the moment first, then completes the charts; whether a wish came in between."""
        stage = self._stage
        stage.monitor.run_until(self._recording.end_ns, stop=lambda: self._wanted.is_set() or stage.is_shown)
        if self._wanted.is_set():
            return True
        stage.fill_past(self._wanted.is_set)
        self._jumps += 1  # charts that were drawn meanwhile do not know it
        self._tell()
        return stage.lacks_past

    def _stage_at(self, at_ns: int) -> Stage:
        return Stage(
            self._recording,
            self._recorded,
            at_ns,
            self._origin,
            self._speed,
            self._show,
            with_past=False,
            settings=self._settings,
        )

    def _rest_at_end(self) -> None:
        """Says that it is over, and waits for a wish; a recording that is still being written may go on."""
        with self._lock:
            self._has_ended = True
        self._tell()
        while not self._wanted.wait(None if self._recording.meta.ended else _GROWTH_SECONDS):
            end_ns = self._recording.end_ns
            self._recording.refresh()
            has_grown = self._recording.end_ns > end_ns
            if has_grown:
                self._recorded.refresh()
                self._marks = self._recorded.marks
            with self._lock:
                self._has_ended = not has_grown
                self._is_growing = not self._recording.meta.ended and (has_grown or self._is_growing)
            if has_grown:
                return
            if self._recording.meta.ended:
                self._tell()

    def _wake(self) -> None:
        with self._lock:  # a stage is closed under it: its pipe's number may be another file's by then
            self._wanted.set()
            self._stage.clock.interrupt()

    def _show(self, snapshot: Snapshot) -> None:
        """Takes a snapshot of the stage, in the thread that plays."""
        self._base = snapshot
        self._tell()

    def _tell(self) -> None:
        snapshot = self.snapshot()
        for subscriber in self._subscribers:
            subscriber(snapshot)

    def _now(self) -> ReplayNow:
        state: Literal["playing", "paused", "ended"] = "ended" if self._has_ended else "playing"
        return ReplayNow(
            start_ns=self._recording.start_ns,
            end_ns=self._recording.end_ns,
            speed=self._speed,
            state="paused" if self._is_held and not self._has_ended else state,
            jumps=self._jumps,
            marks=self._marks,
            is_growing=self._is_growing,
        )


def origin_of(recording: Recording) -> Origin:
    """What is said of it at all times: its name, and that the machine was made up, where it was."""
    label = f"REPLAY {recording.path.name}"
    return Origin("recording", label if recording.meta.label == "LIVE" else f"{label} ({recording.meta.label})")
