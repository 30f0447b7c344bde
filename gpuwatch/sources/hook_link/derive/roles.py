"""Which of the iterators that were read in one step feed the training.

Grad mode at `next()` is no sign: the Hugging Face Trainer evaluates with grad mode on. What shows it is how the
reads lie between the backwards: training reads come back in step after step, an evaluation begins and ends
between two of them. So an iterator is judged by its whole life, and by what its loader was for before.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch.sources.hook_link.derive.iterators import IteratorState

_ASLEEP_STEPS = 8


def judge(read: Sequence[IteratorState], step: int, steps_without_loader: int, progress: int) -> None:
    """Sets `trains` of the iterators read in `step`; those that it leaves False are evaluations.

    Args:
        read: the iterators in the order of their first read in the step.
        step: the number of the step, as in `IteratorState.step`.
        steps_without_loader: how many steps before this one took no batch from any loader.
        progress: backwards and optimizer steps so far.
    """
    for i in read:
        i.trains |= 0 < i.longest_run < i.batches  # a backward came between its reads
    known = [i for i in read if i.trains and i.batches]
    if len(known) > 1:
        known = _drop_sleepers(known, step)
    last = max(read, key=_last_start)
    if last.trains and last.loader.queue and last not in known:
        known.append(last)  # it is exhausted, but a batch read ahead is still to be trained on
    unknown = [i for i in read if not i.trains and i.batches]
    if not unknown:
        return
    alive = [i for i in unknown if not _came_and_went(i, step, progress)]
    if known:
        _judge_beside(known, alive, step)
        return
    next_epochs = [i for i in alive if i.loader.fed_lately(step)]
    if next_epochs:
        for last in {i.loader.loader: i for i in sorted(next_epochs, key=_last_start)}.values():
            last.trains = True
    elif steps_without_loader >= 2:
        # The training reads its data elsewhere; only what comes back in step after step belongs to it.
        for i in alive:
            i.trains = 0 <= i.previous_step == step - 1
    elif alive:
        _judge_first(alive)
    else:
        # accelerate reads one batch ahead: an epoch of one batch has ended before it is trained on.
        single = [i for i in unknown if i.batches == 1]
        if single:
            single[-1].trains = True


def _drop_sleepers(known: list[IteratorState], step: int) -> list[IteratorState]:
    """Takes back the role of one that slept while another one trained: a kept evaluation iterator."""
    if not any(i.previous_step == step - 1 for i in known):
        return known
    for i in known:
        i.trains = i.previous_step < 0 or step - i.previous_step <= _ASLEEP_STEPS
    return [i for i in known if i.trains]


def _came_and_went(iterator: IteratorState, step: int, progress: int) -> bool:
    """Whether it began and was exhausted in this step without a backward in between."""
    begun_here = iterator.previous_step < 0
    return (
        begun_here
        and iterator.finished
        and iterator.longest_run == iterator.batches
        and (iterator.run_progress == iterator.first_progress)
    )


def _judge_beside(known: list[IteratorState], alive: list[IteratorState], step: int) -> None:
    """Next epochs and siblings of iterators that are known to train.

    An accumulation may begin in one epoch and end in the next. A sibling is read in turn with a known one (zip),
    or belongs to a shorter loader that started over.
    """
    newest = {i.loader: i for i in sorted([*known, *alive], key=_last_start)}
    for i in alive:
        ended = any(k.finished and k.loader is i.loader and k.last_start < i.first_start for k in known)
        i.trains = ended and i is newest[i.loader]
    training = [*known, *(i for i in alive if i.trains)]
    most = max(i.batches for i in training)
    for i in alive:
        read_on = any(k.loader is i.loader and k.last_start > i.first_start for k in training)
        if i.trains or read_on or i.batches > most:
            continue
        in_turn = i.batches == 1 or any(i.last_start > k.first_start and k.last_start > i.first_start for k in training)
        fed = i.loader.fed_lately(step) or any(k.loader is i.loader for k in known)
        i.trains = in_turn and (fed or 0 <= i.previous_step == step - 1)


def _judge_first(alive: list[IteratorState]) -> None:
    """Nothing is known yet: the last one read before the backward trains, and what alternates with it."""
    anchor = max(alive, key=_last_start)
    for i in alive:
        alternates = i.batches == anchor.batches and i.last_start > anchor.first_start
        i.trains = i is anchor or alternates or i.batches == anchor.batches == 1


def _last_start(iterator: IteratorState) -> int:
    return iterator.last_start
