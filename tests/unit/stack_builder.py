"""Builds what stacks say of a trainer, for tests of views and rules, from counts of samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpuwatch.samples import CurrentLine
from gpuwatch.timeline.windows import LineShare, RankWindow, Share, StackWindow
from tests.unit import scene_builder as build

PHASES = {"wait": 1000, "forward": 170, "backward": 300, "optimizer": 50, "sync": 80, "other": 40}
AUGMENT = "/home/user/augment.py"


def interval(count: int, of: int) -> Share:
    """A share with its Wilson interval."""
    value, z2 = count / of, 1.96**2
    middle = (value + z2 / (2 * of)) / (1 + z2 / of)
    half = 1.96 * math.sqrt(value * (1 - value) / of + z2 / (4 * of * of)) / (1 + z2 / of)
    return Share(value, middle - half, middle + half)


def line(
    phase: str, number: int, samples: int, *, of: int = 1640, text: str | None = "pass", **fields: Any
) -> LineShare:
    """A line of augment.py."""
    usual: dict[str, Any] = {"file": AUGMENT, "function": "__getitem__", "leaf": None}
    return LineShare(phase, line=number, samples=samples, share=interval(samples, of), text=text, **(usual | fields))


def stacks(phases: Mapping[str, int] | None = None, **fields: Any) -> StackWindow:
    """20 s of looks at a run without workers that waits for its own augmentation."""
    counts = PHASES if phases is None else phases
    total = sum(counts.values())
    training = {phase: count for phase, count in counts.items() if phase not in ("eval", "save", "compile")}
    usual: dict[str, Any] = {
        "seconds": 20.0,
        "samples": total,
        "rejected": 3,
        "phases": {phase: interval(count, total) for phase, count in counts.items()},
        "train_phases": {phase: interval(count, sum(training.values())) for phase, count in training.items()},
        "lines": (
            line("wait", 41, 700, text="image = image.filter(GaussianBlur(5))", leaf="PIL/ImageFilter.py:filter"),
            line("backward", 131, 300, file=build.SCRIPT, function="main", text="loss.backward()"),
            line("wait", 44, 200, text="array = numpy.asarray(image)"),
            line("sync", 133, 80, file=build.SCRIPT, function="main", text="total += loss.item()"),
        ),
        "batches_per_second": 12.34,
        "batches": 247,
        "epochs": 1,
        "cpu_share": 0.021,
    }
    return StackWindow(**(usual | fields))


def worker_stacks(**fields: Any) -> StackWindow:
    """The same with two workers, whose augmentation costs."""
    usual: dict[str, Any] = {
        "lines": (line("wait", 120, 1000, file=build.SCRIPT, function="main", text="for x, y in loader:"),),
        "workers": 2,
        "worker_samples": 800,
        "worker_phases": {phase: interval(n, 800) for phase, n in {"item": 640, "collate": 80, "idle": 80}.items()},
        "worker_lines": (
            line("collate", 60, 300, of=720, text="return torch.stack(batch)", function="collate"),
            line(
                "item", 41, 280, of=720, text="image = image.filter(GaussianBlur(5))", leaf="PIL/ImageFilter.py:filter"
            ),
        ),
    }
    return stacks(**(usual | fields))


def current_line(seconds: float, at: float = 120.0, **fields: Any) -> CurrentLine:
    """The main thread on train.py:140 for so long, seen `at` seconds after the scene's start."""
    now_ns = build.START_NS + round(at * build.SECOND)
    usual: dict[str, Any] = {
        "trainer": "4711.1",
        "time_ns": now_ns,
        "since_ns": now_ns - round(seconds * build.SECOND),
        "phase": "other",
        "file": build.SCRIPT,
        "line": 140,
        "function": "main",
        "text": "dist.barrier()",
        "leaf": "torch/distributed/distributed_c10d.py:barrier",
    }
    return CurrentLine(**(usual | fields))


def sampled_rank(seen: StackWindow | None = None, *, num_workers: int | None = 0, **fields: Any) -> RankWindow:
    """A trainer without a hook, seen through its stacks."""
    window = seen if seen is not None else stacks()
    facts = {
        "visibility": "sampled",
        "how_to_see_more": "`gpuwatch run COMMAND` measures steps and waits exactly",
        "cwd": "/home/user",
    }
    wait = window.train_phases.get("wait")
    usual: dict[str, Any] = {
        "steps": window.batches,
        "window": 20.0,
        "loader": build.loader(num_workers=num_workers),
        "steps_per_second": window.batches_per_second,
        "step_seconds": None,
        "step_p99_session_seconds": None,
        "settled_wait_share": None,
        "gap_share": None,
        "wait_share": wait.value if wait else None,
        "stacks": window,
        "facts": facts | fields.pop("facts", {}),
    }
    return build.rank(**(usual | fields))
