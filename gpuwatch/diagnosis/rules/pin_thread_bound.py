"""The one thread that pins the loader's batches is busy all the time, while the workers wait for it.

Means:
    With pin_memory=True a thread of the training process receives each batch that a worker sends, and copies it into
    pinned memory. It handles one after the other, and shares the interpreter with the training thread.
Evidence:
    Samples of that thread's stack: how much of its time it receives, copies or passes on batches instead of waiting for
    the workers. How busy the workers are.
Fires:
    data-starvation holds, the thread is busy at least 85% of the time and the workers less than that.
Clears:
    Below 70%, or the wait is gone.
Not when:
    Stacks cannot be read. The workers are just as busy: then they are the limit. The loader does not pin.
Causes:
    Thousands of small tensors or Python objects in a batch, each pinned separately; large float32 batches; batches of
    sizes that change, for which pinned memory is allocated again and again; a pin_memory() method of the batch's own
    that is slow.
Fix:
    Fewer objects and fewer bytes: one tensor of one size per field, uint8 until after the copy, padding to few sizes.
Gain:
    At most what is lost to waits.
Verify:
    The thread is busy less than half of the time, and the wait is below 6%.
Source:
    torch/utils/data/_utils/pin_memory.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.fixes import place_of
from gpuwatch.diagnosis.advice.gains import from_share
from gpuwatch.diagnosis.advice.lines import with_interval
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.sampled import worker_busy
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped, megabytes, percent
from gpuwatch.timeline.stacks import pinning

LEAST_SAMPLES = 200
"""For a threshold of 85%: it is then 79 to 89%."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    busy_share: float = threshold(0.85, "of its time the thread is busy: reported from here on")
    clear_share: float = threshold(0.70, "until it is less busy", bounded_by="busy_share")


@rule("pin-thread-bound", family="data", subject="run", level=Level.E1, thresholds=Thresholds)
def pin_thread_bound(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    stacks, workers, starvation = rank.stacks, worker_busy(rank), starvation_of(case)
    busy = pinning(stacks) if stacks is not None else None
    if starvation is None or stacks is None or busy is None:
        return None
    is_limit = workers is not None and workers.value < min(busy.value, limits.busy_share)
    if stacks.feeder_rounds < LEAST_SAMPLES or busy.value < limits.clear_share or workers is None or not is_limit:
        return None
    loader = rank.train_loader
    file, line = place_of(loader)
    size = loader.batch_bytes if loader is not None else None
    text = f"the thread that pins is busy {with_interval(busy)} ({grouped(stacks.feeder_rounds)} samples of its stack)"
    return Draft(
        summary=(
            f"The one thread that pins the loader's batches cannot keep up: it is busy {percent(busy.value)} of the "
            f"time, the workers {percent(workers.value)}"
        ),
        severity=Severity.WARNING,
        level=Level.E1,
        evidence=(
            Measure("pinning_share", round(busy.value, 4), text),
            share_measure("worker_busy_share", workers.value, "workers busy"),
            *(() if size is None else (Measure("batch_bytes", size, f"a batch has {megabytes(size)}"),)),
        ),
        fires=busy.value >= limits.busy_share,
        fix=Fix(
            text=(
                "Give that thread fewer objects and fewer bytes: one tensor of one size per field of a batch, uint8 "
                "until after the copy, padding to few sizes; it pins each tensor by itself, one batch after the other"
            ),
            file=file,
            line=line,
        ),
        gain=from_share(0.0, starvation.share, "then limited by the workers or by the training itself"),
        ruled_out=rivals(case, "cpu"),
        verify="The thread that pins is busy less than half of the time, and the wait is below 6%",
        chart=("run.wait_share",),
    )
