"""Batches come from ordinary (pageable) memory, so each copy blocks the Python thread.

Means:
    From pageable memory the driver first copies to a buffer of its own, and the call returns only then. Pinned
    memory is copied by the GPU itself while Python goes on to launch work.
Evidence:
    The loader does not pin its batches, and copying them takes 5% of the step or more on the training thread: the
    hook times it; without one it is the share of samples of its stack, with the line that copies.
Fires:
    5% of the step.
Clears:
    Below 3%.
Not when:
    Training runs on the CPU; batches are made on the GPU; the machine's memory is nearly full (pinned pages cannot
    be swapped). Calling .pin_memory() in the loop makes it slower, not faster.
Causes:
    pin_memory is missing, non_blocking is missing, or both.
Fix:
    Both together: pin_memory=True in the DataLoader and non_blocking=True in the copy. A batch class of your own
    needs a pin_memory method. In a copy benchmark on A100: 0.646 s with neither, 0.658 with non_blocking alone,
    0.522 with pin_memory alone, 0.459 with both.
Gain:
    At most 1 / (1 - i), i being the smaller of the copies' share and the GPU's idle time without the waits for data:
    the rest of a copy's time is work that the GPU had queued. The pinned copy's own time stays: the batch's bytes over
    what the link carries. Without event pairs the GPU may have worked through the waits, so that its idle time may all
    be due to the copies. Where the GPU's use is not known there is no promise.
Verify:
    Copies below 3% of the step.
Source:
    ml-engineering's benchmark, PyTorch's pinned memory tutorial.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwatch.diagnosis.advice.fixes import loader_fix, transfer_edit
from gpuwatch.diagnosis.advice.gains import within_loader, without
from gpuwatch.diagnosis.advice.lines import hottest_of_thread, phase_measure
from gpuwatch.diagnosis.advice.sampled import enough, is_sampled, rests_on, trains_on
from gpuwatch.diagnosis.advice.transfer import copies_gain, exposed_copies
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import megabytes, percent


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.05, "of the training thread's time goes into copies: reported from here on")
    clear_share: float = threshold(0.03, "until less does", bounded_by="fire_share")
    free_memory_share: float = threshold(0.20, "of the memory: with less free, pinning is not advised")


@rule("pageable-transfer", family="transfer", subject="run", level=Level.E2, thresholds=Thresholds)
def pageable_transfer(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    loader, share = rank.train_loader, rank.copy_share
    if trains_on(case) != "cuda" or loader is None or loader.pin_memory is not False:
        return None
    if is_sampled(rank) and enough(rank) is None:
        return None
    line = hottest_of_thread(rank.stacks, "copy")
    available = case.host.memory_available_share if case.host else None
    exposed = None if share is None else exposed_copies(case, share)
    if share is None or share < limits.clear_share or (available is not None and available < limits.free_memory_share):
        return None
    return Draft(
        summary=f"Copying batches to the GPU holds up the training thread {percent(share)} of the time",
        severity=Severity.INFO,
        level=rests_on(rank, Level.E2),
        evidence=(
            phase_measure(rank, "copy_share", share, "copies to the GPU"),
            *((line.measure("hot_line", "the copying"),) if line is not None else ()),
            *_exposed(exposed),
            Measure("pin_memory", "False", "pin_memory=False"),
            Measure("batch_bytes", loader.batch_bytes, _batch_words(loader.batch_bytes)),
        ),
        fires=share >= limits.fire_share,
        fix=_fix(case),
        gain=None if exposed is None else within_loader(case, copies_gain(case, exposed)),
        hint=None if exposed is not None else _unknown(share),
        ruled_out=(RuledOut("memory too short to pin", f"{percent(available)} is free"),) if available else (),
        verify="Copies below 3% of the step",
        chart=("run.step_seconds", "gpu.utilization_percent"),
    )


def _batch_words(size: int | None) -> str:
    return "the batch's size is not known" if size is None else f"a batch has {megabytes(size)}"


def _exposed(exposed: tuple[float, float] | None) -> tuple[Measure, ...]:
    if exposed is None:
        return ()
    return (share_measure("exposed_copy_share", exposed[1], "of it with the GPU idle, at most"),)


def _unknown(share: float) -> str:
    return f"at most {without(share):.2f}x, and nothing where the GPU is busy in the meantime, which is not known here"


def _fix(case: RunCase) -> Fix:
    rank = case.run.critical
    line = hottest_of_thread(rank.stacks, "copy")
    copying = transfer_edit(line)
    keywords = {"pin_memory": "True"}
    where = f" at {line.words}" if line is not None else ""
    text = f"Pin the loader's batches and copy them{where} without blocking: only both together help"
    fix = loader_fix(rank.train_loader, keywords, text, "True")
    own = rank.train_loader is None or rank.train_loader.library is None
    return replace(
        fix,
        code=f"{fix.code}\nbatch = batch.to(device, non_blocking=True)" if own else fix.code,
        edit=fix.edit or copying,
        also=(copying,) if copying is not None and fix.edit is not None else (),
    )
