"""What is no training of a step, taken off the parts that it lay in; and no part longer than the training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuwatch.samples import StepEnd
from gpuwatch.timeline.columns import number
from gpuwatch.timeline.tiers import SECOND_NS

PARTS = ("wait_seconds", "copy_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds")


def without_stop(step: StepEnd, usual_seconds: float | None) -> StepEnd:
    """A step that holds a stop, with all beyond a usual step as a pause and off the part that it lay in.

    42 s of a stop made the backward 94 % of the minute after it. Looks at the process are a second apart, so the usual
    step tells the length better than they do; the longest part of the step is the one that held it, unless it is too
    short for that. What is left of the parts was training: a step of 2 s that waited for 1 s took no 0.6 s.
    """
    training = (step.end_ns - step.start_ns) / SECOND_NS - step.phase_seconds
    stopped = training - (usual_seconds or 0.0)
    if stopped <= 0.0:
        return step
    parts: dict[str, float] = {name: getattr(step, name) or 0.0 for name in PARTS}
    longest = max(parts, key=parts.__getitem__)
    changes: dict[str, Any] = {}
    if parts[longest] > 0.5 * stopped:
        parts[longest] = changes[longest] = max(0.0, parts[longest] - stopped)
    stopped = min(stopped, max(0.0, training - sum(parts.values())))
    return replace(step, phase_seconds=step.phase_seconds + stopped, **changes)


def wait_within(wait_seconds: float | None, training: float) -> float | None:
    """The wait of a step, no longer than its training: a peer or a file may claim one that is, a share above 100 %."""
    return training if wait_seconds is not None and wait_seconds > training else wait_seconds


def parts_within(step: StepEnd, training: float) -> list[float]:
    """Copy, forward, backward and optimizer without the pauses inside them, which are no part of `training` either.

    A first backward that compiles for 5 s made the backward 47 % of a minute of which 80 % were waits. Which part a
    pause lay in is not known: all of them give in proportion. So do parts that a peer or a file claims to be longer
    together than the step.
    """
    spans = (step.copy_seconds, step.forward_seconds, step.backward_seconds, step.optimizer_seconds)
    total = sum(seconds for seconds in spans if seconds is not None)
    room = training - (wait_within(step.wait_seconds, training) or 0.0)
    scale = room / total if total > room else 1.0
    return [number(None if seconds is None else seconds * scale) for seconds in spans]
