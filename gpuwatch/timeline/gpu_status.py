"""Whether a GPU still answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuwatch.samples import NvmlState
from gpuwatch.timeline.gpu_history import GpuHistory
from gpuwatch.timeline.tiers import SECOND_NS


@dataclass(frozen=True, slots=True)
class Status:
    """How a GPU stands. `waiting`: it was found and not yet polled."""

    word: Literal["live", "stale", "lost", "waiting"]
    reason: str | None = None
    since_ns: int | None = None


def status_of(history: GpuHistory, now_ns: int, interval_seconds: float, nvml: NvmlState | None) -> Status:
    """Live, or why not and since when.

    A poll is late by up to a tenth (its jitter) plus a slow call: a second and a half interval of silence are a fault.
    Where NVML itself says that it is silent, the first missed poll is.
    """
    if history.lost is not None:
        return Status("lost", history.lost.reason, history.lost.time_ns)
    heard_ns = history.latest.time_ns if history.latest else history.seen_ns
    silence = (now_ns - heard_ns) / SECOND_NS
    is_nvml_down = nvml is not None and nvml.status not in ("ok", "absent")
    patience = 1.25 * interval_seconds if is_nvml_down else 1.0 + 1.5 * interval_seconds
    if silence > patience:
        reason = nvml.reason if nvml is not None and is_nvml_down and nvml.reason else f"silent for {silence:.0f} s"
        return Status("stale", reason, heard_ns)
    return Status("live") if history.latest else Status("waiting")
