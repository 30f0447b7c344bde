"""The CUDA caching allocator's two kinds of record, joined into one sample."""

from __future__ import annotations

from dataclasses import replace

from gpuwatch.samples import RunMemory


class Allocator:
    """Keeps the newest of both; -1 is unknown."""

    def __init__(self, trainer: str) -> None:
        self.total_bytes: int | None = None
        self._newest = RunMemory(trainer, 0)

    def peaks(self, time_ns: int, allocated: int, reserved: int) -> RunMemory:
        """Takes the peaks of allocated and reserved bytes."""
        self._newest = replace(
            self._newest,
            time_ns=time_ns,
            total_bytes=self.total_bytes,
            allocated_peak_bytes=_known(allocated),
            reserved_peak_bytes=_known(reserved),
        )
        return self._newest

    def retries(self, time_ns: int, retries: int, out_of_memory: int) -> RunMemory:
        """Takes the counts of retried and of failed allocations."""
        self._newest = replace(
            self._newest,
            time_ns=time_ns,
            total_bytes=self.total_bytes,
            alloc_retries=_known(retries),
            out_of_memory=_known(out_of_memory),
        )
        return self._newest


def _known(count: int) -> int | None:
    return count if count >= 0 else None
