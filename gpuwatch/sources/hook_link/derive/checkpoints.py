"""Checkpoints from saves: one checkpoint writes several files, some of them from within another save."""

from __future__ import annotations

from gpuwatch.samples import PhaseSpan

ADJACENT_NS = 1_000_000_000
_MAX_PARTS = 256

Place = tuple[str | None, int | None]
"""A file and a line in it, as far as they are known."""


class Checkpoints:
    """Merges saves that contain each other, or follow within a second with no training in between."""

    def __init__(self, trainer: str) -> None:
        self._trainer = trainer
        self._start = 0
        self.end = 0  # of the one that waits for the next event to be complete, 0: none
        self._parts: list[tuple[int, int]] = []  # (start, bytes) of the saves merged so far
        self._raised = False
        self.places: tuple[Place, ...] = ()  # of the lines that save, as the facts number them from 1
        self._place = 0
        self._begun = 0  # of the outermost save that is not known to have ended, 0: none

    def begin(self, start: int, place: int = 0) -> PhaseSpan | None:
        """Takes the beginning of a save; the open span, unless a checkpoint is open that this one belongs to."""
        if self._begun or (self.end and start - self.end <= ADJACENT_NS):
            self._begun = self._begun or start
            return None
        self._begun = start
        file, line = self._line(place)
        return PhaseSpan(self._trainer, "checkpoint", start, None, file=file, line=line)

    def save(self, start: int, end: int, size: int, *, raised: bool = False, place: int = 0) -> PhaseSpan | None:
        """Takes one save; an earlier checkpoint that this one does not belong to."""
        if start <= self._begun:
            self._begun = 0
        done = self.flush() if self.end and start - self.end > ADJACENT_NS else None
        parts = self._parts
        if size >= 0:
            while parts and parts[-1][0] >= start:
                parts.pop()
            parts.append((start, size))
            if len(parts) > _MAX_PARTS:
                parts[:] = [(parts[0][0], sum(part for _, part in parts))]
        self._start = min(self._start, start) if self.end else start
        self.end = max(self.end, end)
        self._raised |= raised
        self._place = place or self._place
        return done

    def flush(self, before: int | None = None) -> PhaseSpan | None:
        """The checkpoint, if there is one and it ended before `before`."""
        if before is not None and before > self._begun:
            self._begun = 0  # the thread trains on: the record of that save's end was lost
        if not self.end or self._begun or (before is not None and before < self.end):
            return None
        file, line = self._line(self._place)
        span = PhaseSpan(
            self._trainer,
            "checkpoint",
            self._start,
            self.end,
            bytes=sum(size for _, size in self._parts) if self._parts else None,
            file=file,
            line=line,
            detail="raised" if self._raised else "",
        )
        self._start = self.end = 0
        self._parts = []
        self._raised = False
        self._place = 0
        return span

    def lose(self) -> None:
        """Forgets the save that has begun: the record of its end may be lost."""
        self._begun = 0

    def _line(self, place: int) -> Place:
        return self.places[place - 1] if 0 < place <= len(self.places) else (None, None)
