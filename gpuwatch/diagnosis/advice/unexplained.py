"""What to do about a wait for data that no cause of the tree explains: what is not known, and what tells it."""

from __future__ import annotations

from gpuwatch.diagnosis.advice.code import loader_fix, place_of
from gpuwatch.diagnosis.advice.edges import EPOCHS
from gpuwatch.diagnosis.advice.lines import HotLine, loading_line
from gpuwatch.diagnosis.advice.sampled import worker_busy
from gpuwatch.diagnosis.advice.worker_loads import worker_loads
from gpuwatch.diagnosis.finding import Fix
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.diagnosis.wording import percent, seconds
from gpuwatch.timeline.windows import RankWindow

BUSY_SHARE = 0.85
SHORT_SECONDS = 2.0
"""Workers are attached to once they are 0.1 s old, 6 a second: of shorter lives little is sampled."""


def how_to_find_out(case: RunCase, *, is_complete: bool = True) -> Fix:
    """The next step: the line that loading spends its time in, where stacks name it.

    `is_complete`: whether all causes were asked; of those that the user ignores nothing is said.
    """
    rank = case.run.critical
    line, lived = loading_line(rank), _lifetime_seconds(rank)
    if is_complete and lived is not None and lived < SHORT_SECONDS:
        text = (
            f"Its workers live for {seconds(lived)}, one epoch: they start, make a few batches and end, too soon to be "
            "sampled often. Keep them, and join short epochs into longer ones with a repeating sampler"
        )
        if line is not None:
            text += f"; {_where(line)}"
        return loader_fix(rank.train_loader, {"persistent_workers": "True"}, text, "True")
    unknown = _unknown(rank) if is_complete else "No enabled rule explains it; some rules are ignored"
    file, number = place_of(rank.train_loader)
    if line is not None:
        return Fix(text=f"{unknown}; {_where(line)}", file=line.file, line=line.line)
    look = "" if rank.stacks is not None else f": look at its stacks for a minute (gpuwatch stacks {rank.facts.pid})"
    return Fix(text=f"{unknown}{look}", file=file, line=number)


def _lifetime_seconds(rank: RankWindow) -> float | None:
    """How long workers live that are started for each epoch: about as long as one takes; None of those that persist."""
    loader, stacks, epochs = rank.train_loader, rank.stacks, rank.epochs
    if loader is None or not loader.num_workers or loader.persistent_workers is not False:
        return None
    if epochs is not None:
        long = rank.watched_seconds
        return long / epochs.count if long is not None and epochs.count >= EPOCHS else None
    return stacks.seconds / stacks.epochs if stacks is not None and stacks.epochs >= EPOCHS else None


def _unknown(rank: RankWindow) -> str:
    loader, busy = rank.train_loader, worker_busy(rank)
    if loader is None and rank.facts.visibility == "exact":
        return "Its batches come from no DataLoader that the hook sees, but from what the loop does before each step"
    if loader is not None and loader.num_workers is None and rank.facts.visibility == "exact":
        return (
            "Its batches come from an iterator that is no DataLoader: if it makes each batch only on request, "
            "have the workers of a DataLoader, or a thread, make them ahead"
        )
    if loader is None or loader.num_workers is None:
        return "Its loader's settings are not known: start the script with gpuwatch run, so that the hook sees them"
    if loader.num_workers == 0:
        return (
            "Loading in workers would not be faster here, because training needs the same CPU cores: "
            "make an item cheaper (decode smaller, cache, precompute)"
        )
    if busy is None:
        return "It is not known what its workers do"
    loads = sorted(worker_loads(rank), key=lambda each: each.busy)
    if loads and loads[-1].busy >= BUSY_SHARE > 2.0 * loads[-2].busy:
        return (
            f"One worker, process {loads[-1].pid}, is busy {percent(loads[-1].busy)} of the time and the others at "
            f"most {percent(loads[-2].busy)}: it is slow, or it got the slow items, and the others wait for it"
        )
    if busy.value < BUSY_SHARE:
        return (
            f"Its workers are busy only {percent(busy.value)} of the time, so the time goes into collating or "
            "shipping batches, or into bursts"
        )
    return "Its workers are busy, and no limit of the machine explains the wait"


def _where(line: HotLine) -> str:
    return (
        f"{percent(line.share.value)} of {line.whose} {'are' if line.phase == 'wait' else 'is'} spent in {line.words}"
    )
