"""Why a run waits for data, and why a GPU idles: the causes in the order in which they are asked.

The first cause that fires is the one that a waiting run's starvation names. Faults that stop a run come first, then
what a setting fixes, then what is short (storage, cores, workers), then what is expensive. A cause further down is not
judged while one of those in `unless` holds, because that one explains the same wait and is fixed first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SYMPTOM = "data-starvation"

_ONE_THREAD = ("slow-worker", "pin-thread-bound")
_STORAGE = ("io-bound",)
_FEW_CORES = ("cpu-quota-throttled", "worker-affinity-pinned", "thread-oversubscription", "too-many-workers")
_SHORT = (*_ONE_THREAD, *_STORAGE, *_FEW_CORES, "host-cpu-exhausted", "workers-too-few")


@dataclass(frozen=True, slots=True)
class Cause:
    """A rule's place in the tree.

    Attributes:
        rule: its id.
        unless: the causes that explain what it would see.
        needs_wait: whether it is silent where data-starvation is: the others mean something to a fast run too.
    """

    rule: str
    unless: tuple[str, ...] = ()
    needs_wait: bool = True


WAITS = (
    Cause("workers-zero"),
    Cause("shm-pressure", needs_wait=False),
    Cause("epoch-too-short", needs_wait=False),
    Cause("slow-worker"),
    Cause("pin-thread-bound"),
    Cause("slow-samples", needs_wait=False),
    Cause("host-memory-pressure", needs_wait=False),
    Cause("io-bound"),
    Cause("cpu-quota-throttled", needs_wait=False),
    Cause("worker-affinity-pinned", unless=("slow-samples", *_STORAGE, "cpu-quota-throttled")),
    Cause(
        "thread-oversubscription",
        unless=(*_STORAGE, "cpu-quota-throttled", "worker-affinity-pinned"),
        needs_wait=False,
    ),
    Cause(
        "too-many-workers",
        unless=(*_STORAGE, "cpu-quota-throttled", "worker-affinity-pinned", "thread-oversubscription"),
        needs_wait=False,
    ),
    Cause("host-cpu-exhausted", unless=(*_ONE_THREAD, *_STORAGE, *_FEW_CORES)),
    Cause(
        "workers-too-few",
        unless=(
            *_ONE_THREAD,
            "slow-samples",
            *_STORAGE,
            *_FEW_CORES,
            "host-cpu-exhausted",
            "loader-overhead-floor",
        ),
    ),
    Cause("slow-collate-ipc", unless=_SHORT),
    Cause("worker-cpu-bound", unless=_SHORT),
    Cause(
        "bursty-prefetch",
        unless=(
            "epoch-too-short",
            "slow-samples",
            "host-memory-pressure",
            *_SHORT,
            "slow-collate-ipc",
        ),
        needs_wait=False,
    ),
)

IDLE_GPU = (
    SYMPTOM,
    "launch-bound",
    "loop-code",
    "eval-stall",
    "checkpoint-stall",
    "gc-stall",
    "log-stall",
    "sync-per-step",
    "epoch-start-stall",
    "h2d-bound",
    "recompile-storm",
    "shared-gpu",
)
"""What makes a GPU idle or its load swing; several may at once."""

_BY_RULE = {cause.rule: cause for cause in WAITS}


def cause_of_rule(rule_id: str) -> Cause | None:
    """The rule's place among the causes of waits; None where it is none of them."""
    return _BY_RULE.get(rule_id)


def judged_before(rule_id: str) -> Iterator[str]:
    """The rules whose verdict a cause of waits reads."""
    cause = _BY_RULE.get(rule_id)
    if cause is not None:
        yield SYMPTOM
        yield from cause.unless
