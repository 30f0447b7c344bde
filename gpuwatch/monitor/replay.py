"""Plays a recording as if it were live, with what a player has: hold, seek, speed."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Literal

from gpuwatch.diagnosis.settings import Settings
from gpuwatch.monitor.monitor import Subscriber
from gpuwatch.monitor.recorded_findings import RecordedFindings
from gpuwatch.monitor.replay_stage import Stage
from gpuwatch.monitor.snapshot import Origin, RecordingNow, ReplayNow, Snapshot
from gpuwatch.recording.reader import Recording
from gpuwatch.timeline.timeline import Timeline

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)

_DEFAULTS = Settings()
_STOP_SECONDS = 1.0
_GROWTH_SECONDS = 1.0
_REFUSED = "This is a recording: {what}. Run gpuwatch without a file to watch this machine."


class ReplayMonitor:
    """A monitor over a recording: same snapshots, findings and charts as when it was live, at the recorded times.

    Nothing of this machine is looked at: no process, driver or file but the recording. All methods are for any thread.

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
        """The recorded state of everything, with where the replay stands."""
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
        """Jumps by so many recorded seconds; keys that come faster than it can add up."""
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
        """Begins a new stage where one was asked for."""
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
