"""What is asked of the looks: at which processes, how often, at which cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StackTarget:
    """A process to look at. Of a hooked one only what the hook cannot know is reported: lines and phases."""

    pid: int
    hooked: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """The rates that are asked for, and what they may cost."""

    rate_hz: float
    hooked_rate_hz: float
    worker_rate_hz: float
    cpu_share_limit: float
    lone_cpu_share_limit: float
