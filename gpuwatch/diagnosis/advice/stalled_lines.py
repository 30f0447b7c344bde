"""The line each rank of a silent run stands on, and since when."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.lines import place, quoted
from gpuwatch.diagnosis.finding import Measure
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.diagnosis.wording import listed, seconds
from gpuwatch.samples import CurrentLine
from gpuwatch.timeline.trainer import FRESH_NS
from gpuwatch.timeline.windows import RankWindow

_WAITING_CALL = re.compile(r"\b(sleep|input|breakpoint|set_trace|wait_for_client)\(")
_DEBUGGERS = frozenset({"bdb.py", "pdb.py", "cmd.py", "pydevd.py"})


@dataclass(frozen=True, slots=True)
class Stand:
    """One rank's training thread, on one line for so long."""

    rank: RankWindow
    line: CurrentLine
    seconds: float

    @property
    def who(self) -> str:
        """Rank 3, or the process where ranks are not known."""
        return process_words(self.rank)

    @property
    def is_meant(self) -> bool:
        """Whether its line asks to stand still: a sleep, a prompt, a debugger."""
        called = _WAITING_CALL.search(self.line.text or "") is not None
        return called or (self.line.leaf or "").split(":")[0].rsplit("/", 1)[-1] in _DEBUGGERS

    @property
    def words(self) -> str:
        """train.py:88 `loss.backward()` for 2.8 min (in torch/autograd/graph.py:_engine_run_backward)."""
        below = f" (in {self.line.leaf})" if self.line.leaf else ""
        return f"{quoted(self.line.file, self.line.line, self.line.text)} for {seconds(self.seconds)}{below}"


def process_words(rank: RankWindow) -> str:
    """How a sentence names one process of a run."""
    return f"process {rank.facts.pid}" if rank.facts.rank is None else f"rank {rank.facts.rank}"


def stands(case: RunCase) -> tuple[Stand, ...]:
    """Every living rank whose stack is read, the one that stands longest first."""
    found = [
        Stand(rank, rank.stacks.current_line, _stood_seconds(rank.stacks.current_line, case.now_ns))
        for rank in case.run.ranks
        if rank.ended is None and rank.stacks is not None and rank.stacks.current_line is not None
    ]
    return tuple(sorted(found, key=lambda stand: -stand.seconds))


def current_line_measures(found: tuple[Stand, ...]) -> tuple[Measure, ...]:
    """Where each rank stands, as evidence."""
    return tuple(
        Measure(
            f"current_line_{stand.rank.trainer}",
            f"{stand.line.file}:{stand.line.line}",
            f"{stand.who} is at {stand.words}",
        )
        for stand in found
    )


def apart(found: tuple[Stand, ...]) -> tuple[Stand, ...]:
    """Those who stand elsewhere than most of the ranks; none where too few are known to say who is most."""
    places: dict[tuple[str, int], list[Stand]] = {}
    for stand in found:
        places.setdefault((stand.line.file, stand.line.line), []).append(stand)
    if not places:
        return ()
    usual = max(places.values(), key=len)
    return tuple(stand for stand in found if stand not in usual) if 2 * len(usual) > len(found) else ()


def apart_words(others: tuple[Stand, ...]) -> str:
    """Rank 2 (train.py:71) is at another line than the others."""
    who = listed(f"{stand.who} ({place(stand.line.file, stand.line.line)})" for stand in others)
    return f"{who[0].upper()}{who[1:]} {'is' if len(others) == 1 else 'are'} at another line than the others"


def _stood_seconds(line: CurrentLine, now_ns: int) -> float:
    """Until now where it was just sampled, else until the last sample."""
    until_ns = now_ns if now_ns - line.time_ns <= FRESH_NS else line.time_ns
    return max(0.0, (until_ns - line.since_ns) / 1e9)
