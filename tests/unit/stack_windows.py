"""Builds what stacks show of a run: a StackWindow in words, and the rank of a run that nothing else tells of.

    seen = watched({"wait": 0.4, "forward": 0.6}, lines=[line("wait", 31, 0.3, text="img.filter(2)")])
    moment = scene(run(sampled(seen, loader=loader(num_workers=0))))

Shares are of all samples of the training thread; of workers, of all samples of theirs, idle ones too. What the
phases leave of the whole is "other" (workers: "idle").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from gpuwatch.samples import CurrentLine, LoaderFacts, StackPhase, WorkerPhase
from gpuwatch.timeline.windows import LineShare, RankWindow, Share, StackWindow, StepColumns
from tests.unit.scene_builder import SCRIPT, START_NS, rank
from tests.unit.scene_builder import loader as a_loader

NOT_TRAINING = ("eval", "save", "compile")


def share(value: float, samples: int) -> Share:
    """A share with Wilson's interval."""
    if not samples:
        return Share(0.0, 0.0, 1.0)
    square = 1.96**2
    middle = (value + square / (2 * samples)) / (1 + square / samples)
    half = 1.96 * math.sqrt(value * (1 - value) / samples + square / (4 * samples**2)) / (1 + square / samples)
    return Share(value, middle - half, middle + half)


def line(phase: str, number: int, of_all: float, *, file: str = SCRIPT, **fields: Any) -> tuple[float, dict[str, Any]]:
    """A line with its share of all samples of its kind of thread."""
    usual = {"phase": phase, "file": file, "line": number, "function": "main", **fields}
    return of_all, usual


def watched(
    phases: dict[str, float],
    *,
    samples: int = 1500,
    seconds: float = 30.0,
    lines: Sequence[tuple[float, dict[str, Any]]] = (),
    worker_phases: dict[str, float] | None = None,
    worker_samples: int = 1200,
    worker_lines: Sequence[tuple[float, dict[str, Any]]] = (),
    worker_calls: Sequence[tuple[float, dict[str, Any]]] = (),
    calls: Sequence[tuple[float, dict[str, Any]]] = (),
    batches_per_second: float | None = 5.0,
    **fields: Any,
) -> StackWindow:
    """Stacks over this many seconds, and the loader's counter."""
    rest = 1.0 - sum(phases.values())
    all_phases = {**dict.fromkeys(get_args(StackPhase), 0.0), **phases}
    all_phases["other"] += max(0.0, rest)
    training = {name: value for name, value in all_phases.items() if name not in NOT_TRAINING}
    in_training = sum(training.values())
    busy = sum(value for name, value in (worker_phases or {}).items() if name != "idle")
    looks = worker_samples if worker_phases else 0
    by_worker = (
        {**dict.fromkeys(get_args(WorkerPhase), 0.0), **worker_phases, "idle": 1.0 - busy} if worker_phases else {}
    )
    usual: dict[str, Any] = {
        "seconds": seconds,
        "samples": samples,
        "rejected": 0,
        "phases": {name: share(value, samples) for name, value in all_phases.items()},
        "train_phases": {
            name: share(value / in_training, round(samples * in_training)) for name, value in training.items()
        }
        if in_training > 1e-9
        else {},
        "lines": tuple(_line(each, samples, samples) for each in lines),
        "calls": tuple(_line(each, samples, samples) for each in calls),
        "workers": 4 if worker_phases else 0,
        "worker_samples": looks,
        "worker_phases": {name: share(value, looks) for name, value in by_worker.items()},
        "worker_lines": tuple(_line(each, looks, round(looks * busy)) for each in worker_lines),
        "worker_calls": tuple(_line(each, looks, round(looks * busy)) for each in worker_calls),
        "batches_per_second": batches_per_second,
        "batches": round((batches_per_second or 0.0) * seconds),
        "cpu_share": 0.02,
    }
    return StackWindow(**(usual | fields))


def sampled(
    stacks: StackWindow, *, loader: LoaderFacts | None = None, device: str | None = "cuda", **fields: Any
) -> RankWindow:
    """A rank without a hook: no columns and no step times, only what stacks, counter and /proc show."""
    given = loader if loader is not None else from_outside(num_workers=4)
    facts = {
        "visibility": "sampled",
        "torch_threads": None,
        "cpu_affinity": None,
        "gpu_gap_measured": False,
        **fields.pop("facts", {}),
    }
    usual: dict[str, Any] = {
        "columns": StepColumns((), (), (), (), (), (), (), ()),
        "step_seconds": None,
        "step_p99_session_seconds": None,
        "wait_share": stacks.train_phases["wait"].value if stacks.train_phases else None,
        "settled_wait_share": None,
        "steps": stacks.batches,
        "steps_total": stacks.batches,
        "warm": stacks.batches >= 10,
        "epochs": None,
        "train_seconds": stacks.seconds,
        "samples_per_second": None,
        "stacks": stacks,
        "window_seconds": stacks.seconds,
    }
    built = {key: fields.pop(key) for key in ("pid", "gpus") if key in fields}
    hooked = rank(loader=given, device=device, facts=facts, **built)
    if hooked.workers is not None:
        usual["workers"] = replace(hooked.workers, busy_share=None, batch_seconds=None, batch_cpu_seconds=None)
    return replace(hooked, **(usual | fields))


def from_outside(**fields: Any) -> LoaderFacts:
    """A loader as its live object tells of it: the loop over it at train.py:60, not the line that built it."""
    usual: dict[str, Any] = {"file": None, "line": None, "loop_file": SCRIPT, "loop_line": 60, "batch_bytes": None}
    return a_loader(**(usual | fields))


def current_line(number: int, *, since: float, until: float = 200.0, phase: str = "wait", **fields: Any) -> CurrentLine:
    """The training thread on one line of train.py, from this many seconds after the start to the last look."""
    since_ns, until_ns = (START_NS + int(seconds * 1e9) for seconds in (since, until))
    usual: dict[str, Any] = {
        "trainer": "4711.1",
        "time_ns": until_ns,
        "since_ns": since_ns,
        "phase": phase,
        "file": SCRIPT,
        "line": number,
        "function": "main",
    }
    return CurrentLine(**(usual | fields))


def _line(given: tuple[float, dict[str, Any]], samples: int, of: int) -> LineShare:
    of_all, fields = given
    count = round(of_all * samples)
    return LineShare(samples=count, share=share(count / of if of else 0.0, of), **fields)
