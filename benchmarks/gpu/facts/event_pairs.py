"""CUDA event pairs of the hook: do they tell the idle time a wait caused, and what do they cost."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.facts.answer import Answer, ask, attempt
from gpuwatch.hook.cuda import Gaps

_TURNS = 3000
_IDLE = -1  # place of the idle nanoseconds in a GAP record
_START = -2


def answer(args: argparse.Namespace) -> Answer:
    if args.device == "cpu":
        return {"asked": "nothing: there are no events without CUDA"}
    import torch

    torch.zeros(1, device="cuda")
    per_ms = cycles_per_millisecond(torch)
    return {
        "cycles_per_ms": round(per_ms),
        "cost_us": {
            "nothing queued": attempt(lambda: cost(torch, lambda: None)),
            "a kernel of 50 us queued": attempt(lambda: cost(torch, lambda: torch.cuda._sleep(round(per_ms / 20)))),
        },
        "gap_ms": {
            "wait 5, nothing queued": attempt(lambda: gap(torch, 0, 5)),
            "wait 20, nothing queued": attempt(lambda: gap(torch, 0, 20)),
            "wait 50, nothing queued": attempt(lambda: gap(torch, 0, 50)),
            "wait 30 behind 100 (hidden: 0)": attempt(lambda: gap(torch, round(100 * per_ms), 30)),
            "wait 50 behind 20 (30 left)": attempt(lambda: gap(torch, round(20 * per_ms), 50)),
        },
        "while a graph is captured": attempt(lambda: captured(torch)),
    }


def cycles_per_millisecond(torch: Any) -> float:
    """Of the kernel that only spins, at the clock under load."""
    torch.cuda._sleep(200_000_000)
    first, second = (torch.cuda.Event(enable_timing=True) for _ in "ab")
    first.record()
    torch.cuda._sleep(100_000_000)
    second.record()
    torch.cuda.synchronize()
    return 100_000_000 / float(first.elapsed_time(second))


def cost(torch: Any, work: Callable[[], object]) -> dict[str, float]:
    """Microseconds of CPU time of the training thread per `next`, reading the earlier pairs included."""
    gaps = Gaps(torch.cuda, lambda record: None)
    enter, leave, took = [], [], []
    for turn in range(_TURNS):
        work()
        began = time.perf_counter_ns()
        pair = gaps.enter(began, 1)
        entered = time.perf_counter_ns()
        if pair is not None:
            gaps.leave(pair)
        left = time.perf_counter_ns()
        if turn >= 100:
            enter.append(entered - began)
            leave.append(left - entered)
            took.append(left - began)
        if turn % 500 == 0:
            torch.cuda.synchronize()
    return {
        "enter": round(statistics.median(enter) / 1e3, 2),
        "leave": round(statistics.median(leave) / 1e3, 2),
        "both": round(statistics.median(took) / 1e3, 2),
        "both, mean": round(statistics.fmean(took) / 1e3, 2),
    }


def gap(torch: Any, queued_cycles: int, wait_ms: float, times: int = 8) -> dict[str, float]:
    """Milliseconds told for a wait behind so much queued work."""
    records: list[Any] = []
    gaps = Gaps(torch.cuda, records.append)
    starts = []
    for _ in range(times):
        torch.cuda.synchronize()
        if queued_cycles:
            torch.cuda._sleep(queued_cycles)
        starts.append(time.monotonic_ns())
        pair = gaps.enter(starts[-1], 1)
        time.sleep(wait_ms / 1e3)
        if pair is not None:
            gaps.leave(pair)
    torch.cuda.synchronize()
    for _ in range(4):
        pair = gaps.enter(time.monotonic_ns(), 1)
        if pair is not None:
            gaps.leave(pair)
        torch.cuda.synchronize()
    told = [record[_IDLE] / 1e6 for record in records if record[_START] in starts]
    return {"told": round(statistics.median(told), 3), "least": round(min(told), 3), "most": round(max(told), 3)}


def captured(torch: Any) -> str:
    """A capture with the hook's calls in it must come out whole."""
    gaps = Gaps(torch.cuda, lambda record: None)
    inputs = torch.ones(64, device="cuda")
    before = gaps.enter(time.monotonic_ns(), 1)
    if before is not None:
        gaps.leave(before)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pair = gaps.enter(time.monotonic_ns(), 1)
        doubled = inputs * 2
        if pair is not None:
            gaps.leave(pair)
    graph.replay()
    total = float(doubled.sum())
    return f"{'no' if pair is None else 'A'} pair, replay {'right' if total == 128 else 'WRONG'}, usable {gaps.usable}"


if __name__ == "__main__":
    raise SystemExit(ask(__doc__, answer))
