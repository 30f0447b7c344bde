"""Batches come from ordinary (pageable) memory, so each copy blocks the Python thread.

Means:
    From pageable memory the driver first copies to a buffer of its own, and the call returns only then. Pinned
    memory is copied by the GPU itself while Python goes on to launch work.
Evidence:
    The loader does not pin its batches, and copying them takes 5 % of the step or more on the training thread: the
    hook times it; without one it is the share of samples of its stack, with the line that copies.
Fires:
    5 % of the step.
Clears:
    Below 3 %.
Not when:
    Training runs on the CPU; batches are made on the GPU; the machine's memory is nearly full (pinned pages cannot
    be swapped). Calling .pin_memory() in the loop makes it slower, not faster.
Fix:
    Both together: pin_memory=True in the DataLoader and non_blocking=True in the copy. A batch class of your own
    needs a pin_memory method.
Gain:
    At most 1 / (1 - share). In a copy benchmark on A100: 0.646 s with neither, 0.658 with non_blocking alone, 0.522
    with pin_memory alone, 0.459 with both.
Verify:
    Copies below 3 % of the step.
Source:
    ml-engineering's benchmark, PyTorch's pinned memory tutorial.
"""

from __future__ import annotations

from gpuwatch.diagnosis.advice.code import call_code, loader_fix
from gpuwatch.diagnosis.advice.gains import from_share
from gpuwatch.diagnosis.advice.lines import hottest_of_thread, phase_measure
from gpuwatch.diagnosis.advice.sampled import enough, is_sampled, rests_on, trains_on
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.wording import percent

FIRE_SHARE = 0.05
CLEAR_SHARE = 0.03
MEMORY_FREE_SHARE = 0.20
BENCHMARK_SAVING = 1.0 - 0.459 / 0.646


@rule("pageable-transfer", subject="run", level=Level.E2)
def pageable_transfer(case: RunCase) -> Draft | None:
    """Fires on a run whose copies from unpinned memory hold up its thread."""
    rank = case.run.critical
    loader, share = rank.train_loader, rank.copy_share
    if trains_on(case) != "cuda" or loader is None or loader.pin_memory is not False:
        return None
    if is_sampled(rank) and enough(rank) is None:
        return None
    line = hottest_of_thread(rank.stacks, "copy")
    available = case.host.memory_available_share if case.host else None
    if share is None or share < CLEAR_SHARE or (available is not None and available < MEMORY_FREE_SHARE):
        return None
    return Draft(
        summary=f"Copying batches to the GPU holds up the training thread {percent(share)} of the time",
        severity=Severity.INFO,
        level=rests_on(rank, Level.E2),
        evidence=(
            phase_measure(rank, "copy_share", share, "copies to the GPU"),
            *((line.measure("hot_line", "the copying"),) if line is not None else ()),
            Measure("pin_memory", "False", "pin_memory=False"),
            Measure("batch_bytes", loader.batch_bytes, _batch_words(loader.batch_bytes)),
        ),
        fires=share >= FIRE_SHARE,
        fix=_fix(case),
        gain=from_share(BENCHMARK_SAVING * share, share, "the copies themselves"),
        ruled_out=(RuledOut("memory too short to pin", f"{percent(available)} is free"),) if available else (),
        verify="Copies below 3 % of the step",
        chart=("run.step_seconds", "gpu.utilization_percent"),
    )


def _batch_words(size: int | None) -> str:
    return "the batch's size is not known" if size is None else f"a batch has {size / 1e6:.3g} MB"


def _fix(case: RunCase) -> Fix:
    loader = case.run.critical.train_loader
    keywords = {"pin_memory": "True"}
    fix = loader_fix(
        loader, keywords, "Pin the loader's batches and copy them without blocking: only both together help", "True"
    )
    code = f"{call_code(keywords)}\nbatch = batch.to(device, non_blocking=True)"
    return Fix(text=fix.text, code=code, file=fix.file, line=fix.line, value=fix.value, edit=fix.edit)
