"""The monitor: one thread that moves samples from the sources to the timeline, evaluates, and hands out snapshots."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.build import Evaluation, build_snapshot
from gpuwatch.monitor.clock import Clock, Waker
from gpuwatch.monitor.recorder import Recorder
from gpuwatch.monitor.snapshot import Origin, RecordingNow, Snapshot
from gpuwatch.procfs import read_all, read_stat
from gpuwatch.samples import GpuSample, Sample
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.times import Anchor, WallTimes
from gpuwatch.timeline.windows import Scene

_log = logging.getLogger(__name__)


class Source(Protocol):
    """A source of samples: something that is polled by one thread and never blocks it.

    The monitor's one thread sleeps in `select` over all sources' files until input arrives or the earliest
    `due_ns` passes, then calls `collect`. Clock, /proc root, folders and seeds are constructor parameters.
    """

    name: str

    def fileno(self) -> int | None:
        """The file to wait for input on (an epoll's, where there are several), or None."""

    def due_ns(self) -> int | None:
        """When `collect` wants to be called although no input came (CLOCK_MONOTONIC), or None."""

    def collect(self, now_ns: int) -> Iterable[Sample]:
        """All samples that are there by `now_ns`, without waiting for more.

        A failing device, peer or file is a sample that says so, never an exception.
        """

    def close(self) -> None:
        """Ends children and removes files, within a second whatever state they are in. Idempotent."""


class Guard:
    """Turns the failure of a part into a notice that stays until the part works again."""

    def __init__(self) -> None:
        self._notices: dict[str, str] = {}
        self._logged: set[str] = set()

    @property
    def notices(self) -> tuple[str, ...]:
        """One sentence for each part that fails now."""
        return tuple(self._notices.values())

    def note(self, name: str, sentence: str | None) -> None:
        """Has a sentence stay until another one, or None, takes its place."""
        if sentence is None:
            self._notices.pop(name, None)
        else:
            self._notices[name] = sentence

    def fails(self, name: str) -> bool:
        """Whether a part fails now."""
        return name in self._notices

    @contextmanager
    def part(self, name: str, *, proves: bool = True) -> Iterator[None]:
        """Runs a block as one part of the watch.

        Args:
            name: of the part. Its traceback is logged once, not at every turn.
            proves: whether to get through this block shows that the part works again.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - sources, rules and views are many; none may end the others
            if name not in self._logged:
                self._logged.add(name)
                _log.warning("%s failed", name, exc_info=True)
            self._notices[name] = f"The {name} failed, so its data are missing here ({type(error).__name__}: {error})."
        else:
            if proves:
                self._notices.pop(name, None)


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """How one source does: whether its last `collect` worked, and how many seconds that took; None before the first."""

    name: str
    works: bool
    seconds: float | None


_REST_NS = 100_000_000
_LEAST_REST_NS = 1_000_000
_RETRY_NS = 5_000_000_000


class _Outlet:
    """One source, and what it said last of when to ask it."""

    __slots__ = ("due_ns", "file", "has_failed", "part", "rest_until_ns", "seconds", "source")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.part = f"source {source.name}"
        self.file: int | None = None
        self.due_ns: int | None = None
        self.rest_until_ns = 0
        self.has_failed = False
        self.seconds: float | None = None

    def is_out(self, now_ns: int) -> bool:
        """Whether it failed so recently that it is not asked yet."""
        return self.has_failed and now_ns < self.rest_until_ns


class Feed:
    """Asks each source when it has something, and not more than ten times a second.

    Eight ranks with eight workers each send over a thousand packets a second; taken one by one, the waking alone would
    cost a tenth of a core. Their sockets hold what comes within 100 ms. Until `may_rest` they rest for only 1 ms, so
    that the first screen is not late, and yet none can spin the thread. A source that fails is asked again after 5 s.
    """

    def __init__(self, sources: Sequence[Source], guard: Guard) -> None:
        self._outlets = [_Outlet(source) for source in sources]
        self._guard = guard
        self.may_rest = False

    @property
    def problems(self) -> tuple[str, ...]:
        """What sources cannot do here, with the cure, as far as they say."""
        found = (getattr(outlet.source, "problem", None) for outlet in self._outlets)
        return tuple(problem for problem in found if problem)

    @property
    def health(self) -> tuple[SourceHealth, ...]:
        """How each source does; from any thread."""
        return tuple(SourceHealth(each.source.name, not each.has_failed, each.seconds) for each in self._outlets)

    def plan(self, now_ns: int) -> tuple[list[int], int | None]:
        """The files to wait for input on, and until when at most."""
        files: list[int] = []
        moments: list[int] = []
        for outlet in self._outlets:
            if not outlet.is_out(now_ns):
                self._ask(outlet, now_ns)
            if outlet.rest_until_ns > now_ns and (outlet.has_failed or outlet.file is not None):
                moments.append(outlet.rest_until_ns)
            elif outlet.file is not None:
                files.append(outlet.file)
            if outlet.due_ns is not None:
                moments.append(max(outlet.due_ns, outlet.rest_until_ns))
        return files, min(moments, default=None)

    def collect(self, now_ns: int, ready: Collection[int]) -> Iterator[tuple[str, Sequence[Sample]]]:
        """What the sources have that are due or have input, each with its part's name."""
        for outlet in self._outlets:
            is_due = outlet.due_ns is not None and outlet.due_ns <= now_ns
            if outlet.rest_until_ns > now_ns or not (is_due or outlet.file in ready):
                continue
            samples: Sequence[Sample] = ()
            outlet.rest_until_ns, has_failed, began = now_ns + _RETRY_NS, True, time.perf_counter()
            with self._guard.part(outlet.part):
                samples = tuple(outlet.source.collect(now_ns))
                rest_ns = _REST_NS if self.may_rest else _LEAST_REST_NS
                outlet.rest_until_ns, has_failed = now_ns + rest_ns, False
            outlet.has_failed, outlet.seconds = has_failed, time.perf_counter() - began
            yield outlet.part, samples

    def _ask(self, outlet: _Outlet, now_ns: int) -> None:
        """What the source waits for. Its word is not proof that `collect` works again."""
        outlet.file = outlet.due_ns = None
        with self._guard.part(outlet.part, proves=False):
            outlet.file, outlet.due_ns = outlet.source.fileno(), outlet.source.due_ns()
            return
        outlet.has_failed, outlet.rest_until_ns = True, now_ns + _RETRY_NS

    def close(self) -> None:
        """Closes every source, whatever the others do."""
        for outlet in self._outlets:
            with self._guard.part(outlet.part):
                outlet.source.close()


@dataclass(frozen=True, slots=True)
class Lead:
    """What a monitor lives through before it is shown: no snapshots until its end, no evaluation before its time.

    Attributes:
        until_ns: the moment of the first snapshot.
        evaluate_from_ns: of the first evaluation; those after it follow at the usual distance.
        wall_anchors: what the clock on the wall showed in all of the time that it knows of.
    """

    until_ns: int
    evaluate_from_ns: int
    wall_anchors: tuple[Anchor, ...] = ()


class Judge(Protocol):
    """What evaluates scenes: the diagnosis engine."""

    def evaluate(self, scene: Scene) -> tuple[Finding, ...]:
        """The findings after this scene."""


class Focus(Protocol):
    """What a monitor watches, where that can be chosen."""

    @property
    def attached_pid(self) -> int | None:
        """The root of the watched process tree; None where everything is watched."""

    def attach(self, pid: int | None) -> None:
        """Narrows it to one tree; None widens it again."""

    def pids(self) -> frozenset[int] | None:
        """The processes that are shown; None for all."""


_KEPT_NS = 60_000_000_000


def cpu_seconds(proc_root: Path = Path("/proc")) -> float:
    """CPU time of this process and its living children so far; only its own where /proc does not list them.

    The children files cost 20 us; a scan of all processes took 260 ms on a machine with 3,000.
    """
    listings = (read_all(str(path)) or b"" for path in (proc_root / "self/task").glob("*/children"))
    stats = (read_stat(proc_root, int(pid)) for listing in listings for pid in listing.split())
    return time.process_time() + sum(stat.own_ticks for stat in stats if stat is not None) / os.sysconf("SC_CLK_TCK")


class OwnCost:
    """CPU seconds per second of the last minute.

    Args:
        read_seconds: CPU seconds so far; smaller once a child has ended.
    """

    def __init__(self, read_seconds: Callable[[], float] = cpu_seconds) -> None:
        self._read_seconds = read_seconds
        self._readings: deque[tuple[int, float]] = deque()

    def share(self, now_ns: int) -> float | None:
        """The share of one core since the oldest reading within a minute; None at the first."""
        seconds = self._read_seconds()
        if self._readings and seconds < self._readings[-1][1]:
            self._readings.clear()
        self._readings.append((now_ns, seconds))
        while now_ns - self._readings[0][0] > _KEPT_NS:
            self._readings.popleft()
        began_ns, began = self._readings[0]
        return (seconds - began) / ((now_ns - began_ns) / 1e9) if now_ns > began_ns else None


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
        timeline: to feed, where a source needs to read it too.
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
        self._evaluation_took: float | None = None
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

    def sources(self) -> tuple[SourceHealth, ...]:
        """How each source does, and the diagnosis as one more; from any thread."""
        return (
            *self._feed.health,
            SourceHealth("diagnosis", not self._guard.fails("diagnosis"), self._evaluation_took),
        )

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

    def note(self, name: str, sentence: str | None) -> None:
        """Shows a sentence about a part of gpuwatch with every snapshot from now on; None takes it back."""
        self._guard.note(name, sentence)

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
        """Watches in the caller's thread up to a moment, forever where it is None, or until it is asked to stop.

        Args:
            deadline_ns: by the monitor's clock.
            on_tick: called with each new snapshot.
            stop: checked after each input, about once a second at least.
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
        """The scene of the last `window_seconds`."""
        return self._scene(self._clock.now_ns(), window_seconds)

    def _turn(self, deadline_ns: int | None) -> None:
        """Waits for whatever comes first, and does all that is due then."""
        now_ns = self._clock.now_ns()
        files, due_ns = self._feed.plan(now_ns)
        # What is not to be shown yet must not be waited for either: its moment would be past, forever.
        show_ns = max(self._published_ns + self._snapshot_pause_ns(), self._quiet_until_ns)
        moments = (due_ns, deadline_ns, self._evaluation_due_ns, show_ns)
        ready = self._clock.wait(
            (*files, self._waker.fileno()), min(moment for moment in moments if moment is not None)
        )
        if self._waker.fileno() in ready:
            self._waker.drain()
        now_ns = self._clock.now_ns()
        self._wall_times.see(now_ns, self._clock.wall_time())
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
        began = time.perf_counter()
        with self._guard.part("diagnosis"):
            scene = self._scene(now_ns, self._window_seconds)
            findings = self._engine.evaluate(scene) if self._engine is not None else ()
        self._evaluation = Evaluation(scene, findings)
        self._evaluation_took = time.perf_counter() - began
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
