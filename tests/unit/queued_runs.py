"""A run behind a DataLoader whose batches take its workers so long, played as torch's own code hands them out."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import Any

from scene_builder import loader, rank, run, scene, workers

from gpuwatch.timeline.windows import Scene


def waits(
    making: Sequence[float], compute: float, *, count: int = 4, prefetch: int = 2, in_order: bool = True
) -> list[float]:
    """The seconds for which `next()` blocks, batch by batch.

    Follows `_try_put_index` and `_next_data` of torch/utils/data/dataloader.py name by name, in virtual time.
    """
    worker_queue_idx_cycle = itertools.cycle(range(count))
    workers_num_tasks, free = [0] * count, [0.0] * count
    data_queue: list[tuple[float, int, int]] = []
    task_info: dict[int, int] = {}
    blocked: list[float] = []
    send_idx, now = 0, 0.0

    def try_put_index() -> None:
        nonlocal send_idx
        if send_idx == len(making):
            return
        for _ in range(count):
            worker = next(worker_queue_idx_cycle)
            if in_order or workers_num_tasks[worker] < prefetch:
                break
        else:
            return
        free[worker] = max(now, free[worker]) + making[send_idx]
        heapq.heappush(data_queue, (free[worker], send_idx, worker))
        workers_num_tasks[worker] += 1
        send_idx += 1

    for _ in range(prefetch * count):
        try_put_index()
    for rcvd_idx in range(len(making)):
        wanted = now
        while rcvd_idx not in task_info:
            done, idx, worker = heapq.heappop(data_queue)
            now = max(now, done)
            task_info[idx if in_order else rcvd_idx] = worker
        blocked.append(now - wanted)
        workers_num_tasks[task_info.pop(rcvd_idx)] -= 1
        try_put_index()
        now += compute
    return blocked


def queued(
    making: Sequence[float],
    compute: float,
    *,
    count: int = 4,
    prefetch: int = 2,
    in_order: bool = True,
    busy_share: float = 0.5,
    **fields: Any,
) -> Scene:
    """What is seen of it once the queue was full: its steps, and the time each batch took."""
    blocked = waits(making, compute, count=count, prefetch=prefetch, in_order=in_order)[count * prefetch :]
    mean = sum(making) / len(making)
    made = workers(
        count,
        cpu_cores=0.05,
        busy_share=busy_share,
        batch_seconds=mean,
        batch_cpu_seconds=0.02 * mean,
        batch_seconds_sigma=(sum((each - mean) ** 2 for each in making) / len(making)) ** 0.5,
        newest_batch_seconds=tuple(making[count * prefetch :][-1024:]),
    )
    queue = loader(num_workers=count, prefetch_factor=prefetch, in_order=in_order, batch_bytes=1_000_000)
    step = [compute + wait for wait in blocked]
    usual: dict[str, Any] = {"loader": queue, "workers": made}
    return scene(run(rank(step=step, wait=blocked, gap=blocked, steps=len(step), **(usual | fields))))
