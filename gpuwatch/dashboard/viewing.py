"""How the user looks at the snapshots: pause, zoom, filter, snoozes. Forms the view that screens draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuwatch.dashboard.view import WINDOWS_SECONDS, FindingKey, View
from gpuwatch.monitor.snapshot import Snapshot

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

    def undo_snooze(self) -> bool:
        """Brings the last snoozed finding back; whether there was one."""
        if self._snoozed:
            self._snoozed.popitem()
            return True
        return False
