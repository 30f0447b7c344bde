"""The monitor: one thread that moves samples from the sources to the timeline, evaluates, and hands out snapshots."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.clock import Clock
from gpuwatch.monitor.feed import Feed
from gpuwatch.monitor.guard import Guard
from gpuwatch.monitor.own_cost import OwnCost
from gpuwatch.monitor.parts import Focus, Judge, Lead
from gpuwatch.monitor.recorder import Recorder
from gpuwatch.monitor.snapshot import Origin, RecordingNow, Snapshot
from gpuwatch.monitor.snapshots import Evaluation, build_snapshot
from gpuwatch.monitor.waker import Waker
from gpuwatch.samples import GpuSample
from gpuwatch.sources.base import Source
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.wall_times import WallTimes
from gpuwatch.timeline.windows import Scene

_SECOND_NS = 1_000_000_000
_STOP_SECONDS = 1.0
_PRUNE_NS = 60 * _SECOND_NS
_HURRY_NS = 2 * _SECOND_NS  # at the start, until the first GPU data at the latest, every input is taken at once
_SNAPSHOT_NS = 1_000_000_000
_SNAPSHOT_PATIENCE_NS = 1_300_000_000  # for the GPUs' polls, which snapshots follow: it covers their jitter
_SNAPSHOT_LEAST_NS = 500_000_000
_FIRST_STEPS = 30  # the gate of the rules

Subscriber = Callable[[Snapshot], None]


class Monitor:
    """Watches through its sources, in a thread of its own or in the caller's.

    Args:
        sources: the monitor closes them when it stops.
        origin: shown with everything at all times.
        clock: the machine's, or one that jumps.
        evaluate_every_seconds: between two evaluations of the rules.
        window_seconds: of the scenes that are evaluated.
        engine: judges scenes; without one there are no findings.
        only_pids: narrows snapshots and scenes to these processes and their GPUs, for good.
        focus: narrows them to what `attach` chooses; None where nothing can be attached to.
        interval_seconds: between two polls of a GPU.
        timeline: to feed, where a source needs to look into it too.
        own_cost: measures gpuwatch itself; None under a clock that jumps.
        lead: what comes before the moment that is to be seen first, where it is not the first of all.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        origin: Origin,
        clock: Clock,
        evaluate_every_seconds: float = 5.0,
        window_seconds: float = 60.0,
        engine: Judge | None = None,
        only_pids: Callable[[], frozenset[int]] | frozenset[int] | None = None,
        focus: Focus | None = None,
        interval_seconds: float = 1.0,
        timeline: Timeline | None = None,
        own_cost: OwnCost | None = None,
        lead: Lead | None = None,
    ) -> None:
        now_ns = clock.now_ns()
        self.timeline = timeline or Timeline(started_ns=now_ns, interval_seconds=interval_seconds)
        self._guard = Guard()
        self._feed = Feed(sources, self._guard)
        self._origin = origin
        self._clock = clock
        self._evaluate_every_ns = round(evaluate_every_seconds * _SECOND_NS)
        self._window_seconds = window_seconds
        self._engine = engine
        self._only_pids = only_pids
        self._focus = focus
        self._has_refocused = threading.Event()
        self._recorder = Recorder(self.timeline, clock, pids=self._asked_pids)
        self._own_cost = own_cost
        self._own_cpu_share = own_cost.share(now_ns) if own_cost else None
        self._wall_times = WallTimes(lead.wall_anchors if lead else ())
        self._evaluation = Evaluation()
        self._subscribers: list[Subscriber] = []
        self._thread: threading.Thread | None = None
        self._waker = Waker()
        self._stopping = threading.Event()
        self._turning = threading.Lock()
        self._hurry_until_ns = now_ns + _HURRY_NS
        self._evaluated_ns = now_ns
        self._evaluation_due_ns = lead.evaluate_from_ns if lead else now_ns + self._evaluate_every_ns
        self._prune_due_ns = now_ns + _PRUNE_NS
        self._quiet_until_ns = lead.until_ns if lead else now_ns
        self._published_ns = lead.until_ns - _SNAPSHOT_PATIENCE_NS if lead else now_ns
        self._polls_shown_ns = now_ns - _SNAPSHOT_LEAST_NS
        self._has_gpu_data = False
        self._stepped: frozenset[str] = frozenset()
        self._snapshot = self._build(now_ns)

    def start(self) -> None:
        """Begins to watch in a thread of its own."""
        self._thread = threading.Thread(target=self.run_until, args=(None,), name="gpuwatch-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch and closes the sources, within about a second whatever they do.

        From a signal handler or another thread it ends a `run_until`, whose caller then stops the monitor. A thread
        that a source holds is left behind: it dies with the process. Idempotent.
        """
        self._stopping.set()
        self._waker.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._recorder.end()  # first: a source that hangs must not cost the recording its end
            self._thread.join(_STOP_SECONDS)
        if self._turning.acquire(blocking=False):
            try:
                self._recorder.end()
                self._feed.close()
                self._waker.close()
            finally:
                self._turning.release()

    def snapshot(self) -> Snapshot:
        """The newest snapshot; from any thread."""
        return self._snapshot

    def attach(self, pid: int | None) -> None:
        """Narrows the watch to one process tree and its GPUs, or widens it to everything again; from any thread.

        The next snapshot is of the new choice, and without findings until the rules have seen it.

        Raises:
            ValueError: where the machine is made up.
        """
        if self._focus is None:
            raise ValueError(f"There are no processes to attach to: this machine is {self._origin.label}.")
        self._focus.attach(pid)
        self._has_refocused.set()
        self._waker.wake()

    def record(self, path: Path, *, command: Sequence[str] = (), max_bytes: int | None = None) -> None:
        """Records into a file from now on; from any thread. Arguments as for `Recorder.begin`.

        Raises:
            CannotRecordError: it cannot be written; one sentence with the cure.
            ValueError: another one is being written.
        """
        self._recorder.begin(path, self._snapshot, command, max_bytes)
        self._snapshot = replace(self._snapshot, recording=self._recorder.now(self._clock.now_ns()))

    def stop_recording(self) -> RecordingNow | None:
        """Ends the recording and says what has become of it; None where there is none. From any thread."""
        ended = self._recorder.end()
        self._snapshot = replace(self._snapshot, recording=None)
        return ended

    def subscribe(self, callback: Subscriber) -> None:
        """Calls `callback` with each new snapshot, in the monitor's thread: it must hand it on and return."""
        self._subscribers.append(callback)

    def judge_with(self, engine: Judge) -> None:
        """Has other rules judge from now on."""
        self._engine = engine

    def run_until(
        self,
        deadline_ns: int | None,
        *,
        on_tick: Subscriber | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        """Watches in the caller's thread up to a moment, for ever where it is None, or until it is asked to stop.

        Args:
            deadline_ns: by the monitor's clock.
            on_tick: called with each new snapshot.
            stop: looked at after each input, about once a second at least.
        """
        with self._turning:
            while not self._stopping.is_set() and not (stop is not None and stop()):
                if deadline_ns is not None and self._clock.now_ns() >= deadline_ns:
                    break
                before = self._snapshot
                self._turn(deadline_ns)
                if on_tick is not None and self._snapshot is not before:
                    on_tick(self._snapshot)

    def final_scene(self, window_seconds: float) -> Scene:
        """The scene of the last so many seconds."""
        return self._scene(self._clock.now_ns(), window_seconds)

    def _turn(self, deadline_ns: int | None) -> None:
        """Waits for whatever comes first, and does all that is due then."""
        now_ns = self._clock.now_ns()
        files, due_ns = self._feed.plan(now_ns)
        # What is not to be shown yet must not be waited for either: its moment would be past, for ever.
        show_ns = max(self._published_ns + self._snapshot_pause_ns(), self._quiet_until_ns)
        moments = (due_ns, deadline_ns, self._evaluation_due_ns, show_ns)
        ready = self._clock.wait(
            (*files, self._waker.fileno()), min(moment for moment in moments if moment is not None)
        )
        if self._waker.fileno() in ready:
            self._waker.drain()
        now_ns = self._clock.now_ns()
        self._wall_times.told(now_ns, self._clock.wall_time())
        has_polls = False
        for part, samples in self._feed.collect(now_ns, ready):
            with self._guard.part(f"timeline of {part}"):
                self._recorder.feed(samples)
            has_polls |= any(type(sample) is GpuSample for sample in samples)
        self._has_gpu_data |= has_polls
        self._feed.may_rest = self._has_gpu_data or now_ns >= self._hurry_until_ns
        self._do_what_is_due(now_ns, has_polls)

    def _do_what_is_due(self, now_ns: int, has_polls: bool) -> None:
        """Evaluates and publishes; new polls are shown at once, even right after an evaluation's snapshot."""
        has_refocused = self._has_refocused.is_set()
        if has_refocused:
            self._has_refocused.clear()
            self._evaluation = Evaluation()
            self._hurry_evaluation(now_ns)
        self._bring_forward(now_ns)
        is_evaluation = now_ns >= self._evaluation_due_ns
        if is_evaluation:
            self._evaluate(now_ns)
        shows_polls = has_polls and now_ns - self._polls_shown_ns >= _SNAPSHOT_LEAST_NS
        if shows_polls:
            self._polls_shown_ns = now_ns
        is_due = now_ns - self._published_ns >= self._snapshot_pause_ns()
        if now_ns >= self._quiet_until_ns and (shows_polls or is_evaluation or has_refocused or is_due):
            self._publish(now_ns)
        if now_ns >= self._prune_due_ns:
            self._prune_due_ns = now_ns + _PRUNE_NS
            self.timeline.prune(now_ns)

    def _snapshot_pause_ns(self) -> int:
        return _SNAPSHOT_PATIENCE_NS if self._has_gpu_data else _SNAPSHOT_NS

    def _bring_forward(self, now_ns: int) -> None:
        """Lets a run that has just made enough steps be judged now."""
        stepped = self.timeline.trainers_with_steps(_FIRST_STEPS)
        if not stepped <= self._stepped and now_ns >= self._quiet_until_ns:
            self._hurry_evaluation(now_ns)
        self._stepped = stepped

    def _hurry_evaluation(self, now_ns: int) -> None:
        """Brings the next evaluation forward; not to twice in a row, for two make a finding."""
        earliest_ns = self._evaluated_ns + self._evaluate_every_ns // 2
        self._evaluation_due_ns = min(self._evaluation_due_ns, max(now_ns, earliest_ns))

    def _evaluate(self, now_ns: int) -> None:
        """Has the rules judge the scene."""
        self._evaluated_ns = now_ns
        self._evaluation_due_ns = now_ns + self._evaluate_every_ns
        if self._own_cost is not None:
            self._own_cpu_share = self._own_cost.share(now_ns)
        scene = self._evaluation.scene
        findings: tuple[Finding, ...] = ()
        with self._guard.part("diagnosis"):
            scene = self._scene(now_ns, self._window_seconds)
            findings = self._engine.evaluate(scene) if self._engine is not None else ()
        self._evaluation = Evaluation(scene, findings)
        self._recorder.judged(now_ns, findings)

    def _publish(self, now_ns: int) -> None:
        self._published_ns = now_ns
        self._snapshot = replace(self._snapshot, time_ns=now_ns, notices=self._guard.notices)
        with self._guard.part("snapshot"):
            self._snapshot = self._build(now_ns)
        for subscriber in self._subscribers:
            with self._guard.part("view"):
                subscriber(self._snapshot)

    def _build(self, now_ns: int) -> Snapshot:
        return build_snapshot(
            self.timeline,
            now_ns=now_ns,
            wall_time=self._clock.wall_time(),
            origin=self._origin,
            evaluation=self._evaluation,
            next_evaluation_ns=self._evaluation_due_ns if self._engine is not None else None,
            only_pids=self._asked_pids(),
            attached_pid=self._focus.attached_pid if self._focus is not None else None,
            notices=(*self._feed.problems, *self._guard.notices),
            recording=self._recorder.now(now_ns),
            wall_anchors=self._wall_times.anchors,
        )

    def _scene(self, now_ns: int, window_seconds: float) -> Scene:
        return self.timeline.scene(
            now_ns, window_seconds, only_pids=self._asked_pids(), own_cpu_share=self._own_cpu_share
        )

    def _asked_pids(self) -> frozenset[int] | None:
        if self._focus is not None:
            return self._focus.pids()
        return self._only_pids() if callable(self._only_pids) else self._only_pids
