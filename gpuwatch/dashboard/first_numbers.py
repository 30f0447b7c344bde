"""The GPUs' first numbers, on the splash: the child that asks NVML answers long before Textual is imported."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Mapping

from gpuwatch.dashboard.terminal import show_on_splash
from gpuwatch.monitor.clock import Waker
from gpuwatch.samples import GpuFacts, GpuSample, Sample
from gpuwatch.sources.nvml.source import NvmlSource
from gpuwatch.text import printable

_FIRST_LINE = 4
"""Of the terminal, from 0: where the main screen has its table of GPUs."""


class FirstNumbers:
    """Starts the source of the GPUs, and shows what it says until the monitor takes it over.

    Making one starts the child. Entering it starts a thread that reads the source, as the main thread imports the
    monitor meanwhile; leaving it closes a source that was not taken.

    Args:
        interval_seconds: between two polls of a GPU.
        environ: the child's.
    """

    def __init__(self, interval_seconds: float, environ: Mapping[str, str] = os.environ) -> None:
        self._source = NvmlSource(interval_seconds, env=environ)
        self._samples: list[Sample] = []
        self._waker = Waker()
        self._is_taken = threading.Event()
        self._read()
        self._thread = threading.Thread(target=self._watch, name="gpuwatch-first-numbers", daemon=True)

    def __enter__(self) -> FirstNumbers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_taken.is_set():
            self.take()[0].close()

    def take(self) -> tuple[NvmlSource, list[Sample]]:
        """The source, for another thread to read from now on, and what it has said so far."""
        self._is_taken.set()
        self._waker.wake()
        self._thread.join()
        self._waker.close()
        return self._source, self._samples

    def _watch(self) -> None:
        files = [file for file in (self._source.fileno(), self._waker.fileno()) if file is not None]
        while not self._is_taken.is_set():
            due_ns = self._source.due_ns()
            wait = None if due_ns is None else max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
            select.select(files, [], [], wait)
            if not self._is_taken.is_set() and self._read():
                show_gpus(self._samples)

    def _read(self) -> bool:
        """Takes what the source has; whether there is a GPU's sample in it."""
        new = list(self._source.collect(time.monotonic_ns()))
        self._samples += new
        return any(isinstance(sample, GpuSample) for sample in new)


def show_gpus(samples: list[Sample]) -> None:
    """Paints the newest numbers of each GPU that has introduced itself, in the order of their indices."""
    facts = {sample.uuid: sample for sample in samples if isinstance(sample, GpuFacts)}
    newest = {sample.uuid: sample for sample in samples if isinstance(sample, GpuSample)}
    known = sorted((facts[uuid] for uuid in newest if uuid in facts), key=lambda each: (each.index, each.uuid))
    show_on_splash(_FIRST_LINE, [gpu_line(each, newest[each.uuid]) for each in known])


def gpu_line(facts: GpuFacts, sample: GpuSample) -> str:
    """One GPU's numbers, those that are known."""
    name = printable(facts.name).removeprefix("NVIDIA ")
    gib = 1024**3
    return (
        f" {facts.index} {name:14.14} {_of(sample.utilization_percent, None, '%'):>6}"
        f" {_of(sample.power_watts, facts.power_limit_watts, ' W'):>12}"
        f" {_of(sample.memory_used_bytes, facts.memory_total_bytes, ' GiB', gib):>12}"
    )


def _of(value: float | None, limit: float | None, unit: str, scale: float = 1) -> str:
    """The value with its limit, as far as they are known: "310/700 W"."""
    if value is None:
        return "-"
    return f"{value / scale:.0f}{unit}" if limit is None else f"{value / scale:.0f}/{limit / scale:.0f}{unit}"
