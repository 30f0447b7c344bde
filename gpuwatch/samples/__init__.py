"""The vocabulary: everything that crosses from a source into the timeline.

Frozen and slotted, units in the names. Times are CLOCK_MONOTONIC nanoseconds, which all processes and
containers of one host share, so a trainer's spans and a GPU's samples lie on one axis. `None` means
"not known", never zero; where a device cannot answer, `unavailable` holds the reason.
"""

from __future__ import annotations

from gpuwatch.samples.gpu import (
    GpuFacts,
    GpuHealth,
    GpuLost,
    GpuProcess,
    GpuSample,
    GpuStatus,
    NvmlState,
    XidEvent,
)
from gpuwatch.samples.host import HostSample, MachineFacts, ProcessSample, WorkerSample
from gpuwatch.samples.run import (
    BatchWait,
    GpuGap,
    LinkLoss,
    LoaderFacts,
    ModelFacts,
    PhaseKind,
    PhaseSpan,
    Role,
    RunFacts,
    RunMemory,
    StepEnd,
    TrainerEnded,
    WorkerFetch,
)
from gpuwatch.samples.stacks import (
    BatchCount,
    CallCount,
    Candidate,
    Candidates,
    CurrentLine,
    FeederPhase,
    LineCount,
    StackPhase,
    StackTally,
    WorkerCount,
    WorkerPhase,
)

Sample = (
    GpuFacts
    | GpuSample
    | GpuStatus
    | GpuHealth
    | GpuLost
    | NvmlState
    | XidEvent
    | MachineFacts
    | HostSample
    | ProcessSample
    | RunFacts
    | StepEnd
    | BatchWait
    | GpuGap
    | PhaseSpan
    | WorkerFetch
    | RunMemory
    | TrainerEnded
    | LinkLoss
    | StackTally
    | CurrentLine
    | BatchCount
    | Candidates
)
"""Whatever a source may emit."""

__all__ = [
    "BatchCount",
    "BatchWait",
    "CallCount",
    "Candidate",
    "Candidates",
    "CurrentLine",
    "FeederPhase",
    "GpuFacts",
    "GpuGap",
    "GpuHealth",
    "GpuLost",
    "GpuProcess",
    "GpuSample",
    "GpuStatus",
    "HostSample",
    "LineCount",
    "LinkLoss",
    "LoaderFacts",
    "MachineFacts",
    "ModelFacts",
    "NvmlState",
    "PhaseKind",
    "PhaseSpan",
    "ProcessSample",
    "Role",
    "RunFacts",
    "RunMemory",
    "Sample",
    "StackPhase",
    "StackTally",
    "StepEnd",
    "TrainerEnded",
    "WorkerCount",
    "WorkerFetch",
    "WorkerPhase",
    "WorkerSample",
    "XidEvent",
]
