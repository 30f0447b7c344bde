"""Whether a run still moves, and of a silent one the line that each rank is at, and since when."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.lines import place, quoted
from gpuwatch.diagnosis.advice.sampled import is_sampled
from gpuwatch.diagnosis.finding import Measure
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import listed, seconds
from gpuwatch.samples import CurrentLine
from gpuwatch.timeline.trainer import FRESH_NS
from gpuwatch.timeline.windows import RankWindow

LEAST_SILENCE_SECONDS = 60.0
STEPS_OF_SILENCE = 10.0
STEPS_BEFORE_JUDGING = 10
MOST_NAMED = 8
"""Ranks that one sentence names."""
PHASE_SECONDS = 300.0
"""An evaluation, a save or a compilation in which nothing has moved for so long is no longer one."""
UNSEEN_SECONDS = 900.0
PHASE_WORDS = {"eval": "evaluating", "checkpoint": "checkpointing", "compile": "compiling"}
PHASES_OF_STACKS = frozenset({"eval", "save", "compile"})
"""The same phases, as samples of stacks name them."""
IN_THE_LOOP = frozenset({"wait", "forward", "backward", "optimizer", "sync", "copy"})
"""Where a training that was attached to while it hung may stand; elsewhere it may not have begun."""

_WAITING_CALL = re.compile(r"\b(sleep|input|breakpoint|set_trace|wait_for_client)\(")
_DEBUGGERS = frozenset({"bdb.py", "pdb.py", "cmd.py", "pydevd.py"})


@dataclass(frozen=True, slots=True)
class SilenceThresholds:
    """What users may set of every rule about a silent run."""

    silence_seconds: float = threshold(
        LEAST_SILENCE_SECONDS,
        "without a step of any rank, and as long as ten slow steps: reported after that",
        least=5.0,
    )


def silent_seconds(case: RunCase, least_seconds: float = LEAST_SILENCE_SECONDS) -> float | None:
    """Seconds since any rank's last step, if that is longer than `least_seconds` and ten of its slow (p99) steps.

    None while the run moves, is in a known phase or in no training loop, sleeps or stands in a debugger by
    its own line, was stopped by a signal, has ended, or has
    made too few steps to know its pace. From outside the pace is not known: the thread must stand on one line for as
    long. A run that was found at its line counts from then on, if it stands in a training loop.
    """
    ranks = [rank for rank in case.run.ranks if rank.ended is None]
    if not ranks or any(rank.open_phase is not None for rank in ranks):
        return None
    if all(rank.outside for rank in ranks):
        return None
    if any(rank.process is not None and rank.process.latest.state == "T" for rank in ranks):
        return None
    if any(stand.is_meant for stand in stands(case)):
        return None
    if all(is_sampled(rank) for rank in ranks):
        return _sampled_silence(case, ranks, least_seconds)
    if max(rank.steps_total for rank in ranks) < STEPS_BEFORE_JUDGING:
        return None
    last = max((rank.last_step_ns or 0) for rank in ranks)
    pace = max((rank.step_p99_session_seconds or 0.0) for rank in ranks)
    silence = (case.now_ns - last) / 1e9
    return silence if silence > max(least_seconds, STEPS_OF_SILENCE * pace) else None


def stuck_phase(case: RunCase) -> tuple[str, float] | None:
    """The phase that a run has been in for more than five minutes, as a word, and its seconds.

    Its stack must have stood in that phase for a minute: an evaluation's iterator that was left in the middle looks
    open too. Whether a core, a GPU or a byte moves, the caller checks.
    """
    ranks = [rank for rank in case.run.ranks if rank.ended is None]
    phases = [rank.open_phase for rank in ranks if rank.open_phase is not None]
    if not phases or any(phase.kind not in PHASE_WORDS for phase in phases):
        return None
    if any(rank.process is not None and rank.process.latest.state == "T" for rank in ranks):
        return None
    found = stands(case)
    if not any(stand.line.phase in PHASES_OF_STACKS for stand in found):
        return None
    if any(stand.seconds < LEAST_SILENCE_SECONDS for stand in found):
        return None
    newest = max(phases, key=lambda phase: phase.start_ns)
    lasts = (case.now_ns - max(newest.start_ns, *(rank.last_step_ns or 0 for rank in ranks))) / 1e9
    return (PHASE_WORDS[newest.kind], lasts) if lasts > PHASE_SECONDS else None


def _sampled_silence(case: RunCase, ranks: list[RankWindow], least_seconds: float) -> float | None:
    found = stands(case)
    if len(found) < len(ranks) or min(stand.seconds for stand in found) <= least_seconds:
        return None
    if max(rank.steps_total for rank in ranks) < STEPS_BEFORE_JUDGING:
        return (
            min(stand.seconds for stand in found) if all(stand.line.phase in IN_THE_LOOP for stand in found) else None
        )
    silence = (case.now_ns - max((rank.last_step_ns or 0) for rank in ranks)) / 1e9
    return silence if silence > least_seconds else None


def silence_measure(case: RunCase, silence: float) -> Measure:
    """The silence as evidence; a run that was silent when first seen has no known last step."""
    known = any(rank.last_step_ns is not None for rank in case.run.ranks)
    text = (
        f"last step {seconds(silence)} ago"
        if known
        else f"no step seen for {seconds(silence)}, since gpuwatch began to watch it"
    )
    return Measure("seconds_since_step", round(silence, 1), text)


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
    """Every living rank whose stack is read, the one that has been at its line longest first."""
    found = [
        Stand(rank, rank.stacks.current_line, _stands_since(rank.stacks.current_line, case.now_ns))
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
    """Ranks at another line than most of them; none where too few are known to say where most are."""
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


def _stands_since(line: CurrentLine, now_ns: int) -> float:
    """Until now where it was just sampled, else until the last sample."""
    until_ns = now_ns if now_ns - line.time_ns <= FRESH_NS else line.time_ns
    return max(0.0, (until_ns - line.since_ns) / 1e9)


def is_unseen_long(silence: float) -> bool:
    """Whether a run whose stack cannot be read is silent for longer than a prompt or an evaluation usually takes."""
    return silence >= UNSEEN_SECONDS
