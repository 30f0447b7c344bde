"""The source that a replay is fed from: a recording's samples, each at the moment at which it came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuwatch.recording.reader import Recording
from gpuwatch.samples import Sample

_STRETCH_NS = 60_000_000_000  # what the reader is asked for at once: as much as it seals into one chunk
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
        """Has the next sample at hand; False where there is none (yet)."""
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
