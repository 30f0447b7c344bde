"""The line or the function of the user's own code that makes the batches slow, as far as stacks say.

A function that spends its time on many lines, or in others that it calls, may cost more than the line with the most
samples: what is named is found from the outermost call inwards, by samples with all that lies below them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

from gpuwatch.timeline.feeding import is_fed
from gpuwatch.timeline.stats import wilson
from gpuwatch.timeline.windows import LineShare, RankWindow

HotPlace = Literal["main thread while waiting", "loading thread", "workers"]
_MOST_LINES = 4  # of a function; more say nothing that its name does not


@dataclass(frozen=True, slots=True)
class HotLine:
    """The line and who runs it. Its share is of that thread's time, or of the workers' busy time."""

    line: LineShare
    where: HotPlace


def hot_line(rank: RankWindow) -> HotLine | None:
    """The top line of loading; None where the threads that load were not read.

    With workers, the training thread's own top line while it waits is the `for` statement, which says nothing.
    """
    stacks = rank.stacks
    if stacks is None:
        return None
    if is_fed(stacks):
        in_thread = hottest(stacks.feeder_lines, stacks.feeder_calls, ("make",))
        return HotLine(in_thread, "loading thread") if in_thread is not None else None
    in_workers = hottest(stacks.worker_lines, stacks.worker_calls, ("item",))
    if in_workers is not None:
        return HotLine(in_workers, "workers")
    loader = rank.train_loader
    known = loader.num_workers if loader is not None and loader.num_workers is not None else stacks.workers
    while_waiting = hottest(stacks.lines, stacks.calls, ("wait",)) if known == 0 else None
    return HotLine(while_waiting, "main thread while waiting") if while_waiting is not None else None


def hottest(lines: Iterable[LineShare], calls: Iterable[LineShare], phases: Collection[str]) -> LineShare | None:
    """Where most samples of these phases were taken: a line, or a call of a function that has no such line.

    From the outermost functions inwards the line or call with the most samples is followed, into a function only as
    long as one line or call in it has half of its samples. None without samples.
    """
    found = _merged([each for each in (*lines, *calls) if each.phase in phases])
    if not found:
        return None
    called = Counter[tuple[str | None, str | None]]()
    for each in found:
        if each.callee is not None:
            called[each.callee_file, each.callee] += each.samples
    outermost = [each for each in found if (each.file, each.function) not in called]
    chosen = max(outermost or found, key=attrgetter("samples"))
    passed = set[tuple[str | None, str | None]]()
    while chosen.callee is not None:
        callee = chosen.callee_file, chosen.callee
        inside = [each for each in found if (each.file, each.function) == callee]
        top = max(inside, key=attrgetter("samples"), default=None)
        if top is None or 2 * top.samples < called[callee] or callee in passed:
            return _as_function(chosen, inside, called[callee])
        passed.add(callee)
        chosen = top
    return chosen


def _merged(found: Sequence[LineShare]) -> list[LineShare]:
    """Each line and each call once, whatever phase it was seen in most."""
    groups: dict[tuple[str, int, str, str | None, str | None], list[LineShare]] = {}
    for each in found:
        groups.setdefault((each.file, each.line, each.function, each.callee_file, each.callee), []).append(each)
    merged = []
    for group in groups.values():
        chief = max(group, key=attrgetter("samples"))
        if len(group) > 1:
            samples = sum(each.samples for each in group)
            of = round(chief.samples / chief.share.value) if chief.share.value > 0.0 else samples
            text = next((each.text for each in group if each.text), None)
            chief = replace(chief, samples=samples, share=wilson(min(samples, of), of), text=text)
        merged.append(chief)
    return merged


def _as_function(call: LineShare, inside: Iterable[LineShare], samples: int) -> LineShare:
    """The call, with the few lines that have most of the function's samples; of a comprehension its line."""
    by_line, below = Counter[int](), Counter[str]()
    for each in inside:
        by_line[each.line] += each.samples
        if each.leaf is not None:
            below[each.leaf] += each.samples
    most = by_line.most_common(_MOST_LINES)
    lines: tuple[int, ...] = ()
    for count in range(1, len(most) + 1):
        if 2 * sum(each for _, each in most[:count]) >= samples:
            lines = tuple(sorted(line for line, _ in most[:count]))
            break
    leaf = below.most_common(1)[0][0] if below else None
    if call.callee is not None and call.callee.endswith(">"):
        return replace(call, callee=None, callee_file=None, leaf=leaf)
    return replace(call, callee_lines=lines, leaf=leaf)
