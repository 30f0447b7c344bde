"""What the timeline tells the rules and the views: aggregates over a window, frozen.

Shares are 0..1 of the window's training time (`train_seconds`: steps less their phases) unless the name says
otherwise. `None` means not measured in this window.
"""

from __future__ import annotations

from gpuwatch.timeline.windows.gpu import GpuWindow, LinkErrors, Stats
from gpuwatch.timeline.windows.process import MemoryGrowth, MemoryTotals, PeakGrowth, ProcessTotals, WorkerTotals
from gpuwatch.timeline.windows.run import RankWindow, RunWindow
from gpuwatch.timeline.windows.scene import HostWindow, Quality, Scene
from gpuwatch.timeline.windows.stacks import LineShare, Share, StackWindow
from gpuwatch.timeline.windows.steps import EpochTotals, Pace, PaceBlock, PhaseTotals, Recompiles, StepColumns

__all__ = [
    "EpochTotals",
    "GpuWindow",
    "HostWindow",
    "LineShare",
    "LinkErrors",
    "MemoryGrowth",
    "MemoryTotals",
    "Pace",
    "PaceBlock",
    "PeakGrowth",
    "PhaseTotals",
    "ProcessTotals",
    "Quality",
    "RankWindow",
    "Recompiles",
    "RunWindow",
    "Scene",
    "Share",
    "StackWindow",
    "Stats",
    "StepColumns",
    "WorkerTotals",
]
