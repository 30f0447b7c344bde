"""The report's `runs`: one object per training run; its figures are those of the rank all others wait for.

What stacks say of it comes as shares with their intervals, lines of code, and the line on which it stands.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from msgspec.structs import asdict

from gpuwatch.monitor.snapshot import ENDS, RunNow
from gpuwatch.report import model
from gpuwatch.report.observation import Observation
from gpuwatch.samples import CurrentLine, ModelFacts
from gpuwatch.text import encodable
from gpuwatch.timeline.figures import joules_per_sample
from gpuwatch.timeline.stacks import hot_line
from gpuwatch.timeline.windows import LineShare, RankWindow, RunWindow, Scene, Share, StackWindow

STANDS_FROM_SECONDS = 5.0
"""On one line for less is no news: a slow backward pass stands there for a second or two."""

LONGEST_CODE = 400
"""Generated code has lines of megabytes."""


def run_section(seen: Observation) -> list[model.Run]:
    """All runs."""
    shown = {run.id: run for run in seen.snapshot.runs}
    return [_run(run, shown.get(run.id), seen.scene) for run in seen.scene.runs]


def _run(run: RunWindow, shown: RunNow | None, scene: Scene) -> model.Run:
    rank = run.critical
    steps = rank.step_seconds
    pace = rank.steps_per_second if rank.steps or rank.facts.visibility != "exact" else None
    hint = rank.facts.how_to_see_more or (shown.how_to_see_more if shown else None)
    return model.Run(
        id=run.id,
        title=run.title,
        pid=run.ranks[0].facts.pid,
        command=shlex.join(rank.facts.command),
        cwd=rank.facts.cwd,
        visibility=rank.facts.visibility,
        how_to_see_more=None if rank.facts.visibility == "exact" else hint,
        state=shown.state_words if shown else _ended(run),
        device=rank.facts.device,
        gpus=list(run.gpu_uuids),
        steps=rank.steps if steps_known(rank) else None,
        steps_total=rank.steps_total if steps_known(rank) else None,
        step_seconds=None if steps is None else model.StepSeconds(steps.p50, steps.p95),
        batches_per_step=rank.batches_per_step,
        steps_per_second=pace,
        steps_source=None if pace is None else _steps_source(rank),
        train_seconds=rank.train_seconds,
        batch_size=rank.train_loader.batch_size if rank.train_loader else None,
        model=_model(rank.facts.model),
        samples_per_second=run.samples_per_second,
        data_wait_share=rank.wait_share,
        wait_seconds_per_batch=rank.wait_seconds_per_batch,
        gpu_idle_from_wait_share=rank.gap_share,
        energy_joules_per_sample=joules_per_sample(run, {gpu.facts.uuid: gpu for gpu in scene.gpus}),
        step_shares=model.StepShares(
            copy=rank.copy_share,
            forward=rank.forward_share,
            backward=rank.backward_share,
            optimizer=rank.optimizer_share,
        ),
        phases={kind: model.like(model.Phase, totals) for kind, totals in rank.phases.items()},
        hot_line=hot_line_section(rank),
        current_line=current_line_section(rank, scene.now_ns),
        stacks=stack_section(rank.stacks),
        loaders=[model.like(model.Loader, loader) for loader in rank.facts.loaders],
        ranks=[_rank(each, scene.now_ns) for each in run.ranks],
        ended=rank.ended,
        torch=rank.facts.torch,
        python=rank.facts.python,
        unavailable=_unavailable(run),
    )


def _ended(run: RunWindow) -> str | None:
    """The state of a run that a screen no longer shows."""
    ends = {rank.ended for rank in run.ranks}
    worst = next((how for how in ENDS if how in ends), None)
    return None if None in ends else "ended" if worst is None else f"ended ({ENDS[worst]})"


def _model(facts: ModelFacts) -> model.Model:
    return model.Model(
        parameters=facts.parameters,
        parameter_bits=facts.parameter_bits,
        autocast=facts.autocast_name,
    )


def steps_known(rank: RankWindow) -> bool:
    """Whether the steps of this process are seen; 0 of them is a figure only then."""
    return rank.facts.visibility == "exact" or rank.steps_total > 0


def _unavailable(run: RunWindow) -> dict[str, str]:
    rank = run.critical
    exact = rank.facts.visibility == "exact"
    reasons: dict[str, str] = {}
    if not steps_known(rank):
        reasons["steps"] = _UNSEEN_STEPS.get(rank.facts.visibility, _HOOK_ONLY)
    if rank.step_seconds is None:
        reasons["step_seconds"] = _NO_STEP if exact else _HOOK_ONLY
    if rank.wait_share is None:
        if exact and rank.step_seconds is not None:
            reasons["data_wait_share"] = "the hook does not see the loop's waits for data"
        elif rank.facts.visibility == "sampled" and not steps_known(rank):
            reasons["data_wait_share"] = reasons["steps"]
        else:
            reasons["data_wait_share"] = _UNSEEN_WAITS.get(rank.facts.visibility, _NO_STEP)
    if run.samples_per_second is None:
        reasons["samples_per_second"] = reasons.get("steps") or _why_no_rate(rank)
    if rank.gap_share is None:
        reasons["gpu_idle_from_wait_share"] = _why_no_gap(rank)
    return reasons


_NO_STEP = "no step was seen in this window"
_HOOK_ONLY = "measured only with the hook"
_UNREAD = "seen only with the hook or in stacks, and neither is available"
_UNSEEN_STEPS = {"sampled": "no loader was seen working", "process": _UNREAD, "hardware": _UNREAD}
_UNSEEN_WAITS = {"sampled": "too little was seen in this window", "process": _UNREAD, "hardware": _UNREAD}


def _why_no_rate(rank: RankWindow) -> str:
    return _NO_STEP if rank.facts.visibility == "exact" and rank.step_seconds is None else "the batch size is not known"


def _why_no_gap(rank: RankWindow) -> str:
    if rank.facts.device == "cpu":
        return "the model computes on the CPU"
    if rank.facts.visibility != "exact":
        return _HOOK_ONLY
    if not rank.facts.gpu_gap_measured:
        return "no CUDA events are read in this run"
    return "no settled step was seen in this window"


def _rank(rank: RankWindow, now_ns: int) -> model.Rank:
    return model.Rank(
        pid=rank.facts.pid,
        rank=rank.facts.rank,
        gpus=list(rank.facts.gpu_uuids),
        steps=rank.steps if steps_known(rank) else None,
        step_seconds_p50=rank.step_seconds.p50 if rank.step_seconds else None,
        data_wait_share=rank.wait_share,
        gpu_idle_from_wait_share=rank.gap_share,
        current_line=current_line_section(rank, now_ns),
    )


def stack_section(stacks: StackWindow | None) -> model.Stacks | None:
    """All that was sampled of one trainer in the window."""
    if stacks is None:
        return None
    return model.Stacks(
        seconds=stacks.seconds,
        samples=stacks.samples,
        rejected_samples=stacks.rejected,
        phases=_shares(stacks.phases),
        train_phases=_shares(stacks.train_phases),
        eval_wait_share=stacks.eval_wait_share,
        first_wait_share=stacks.first_wait_share,
        receiving_share=stacks.receiving_share,
        lines=[_line(line) for line in stacks.lines],
        workers=stacks.workers,
        worker_samples=stacks.worker_samples,
        worker_phases=_shares(stacks.worker_phases),
        worker_lines=[_line(line) for line in stacks.worker_lines],
        batches=stacks.batches,
        batches_exact=stacks.batches_exact,
        epochs_started=stacks.epochs,
        cpu_share=stacks.cpu_share,
    )


def hot_line_section(rank: RankWindow) -> model.HotLine | None:
    """The line that makes the batches slow, or calls the function that does."""
    found = hot_line(rank)
    if found is None:
        return None
    return model.HotLine(
        **asdict(_line(found.line)),
        where=found.where,
        callee=found.line.callee,
        callee_lines=list(found.line.callee_lines),
    )


def current_line_section(rank: RankWindow, now_ns: int) -> model.CurrentLine | None:
    """Where a trainer has stood on one line for long."""
    current_line = rank.stacks.current_line if rank.stacks is not None else None
    if current_line is None or rank.ended is not None:
        return None
    seconds = (current_line.time_ns - current_line.since_ns) / 1e9
    return _current_line(current_line, seconds, now_ns) if seconds >= STANDS_FROM_SECONDS else None


def _steps_source(rank: RankWindow) -> model.StepsSource | None:
    """Where the pace over all of the window comes from."""
    if rank.facts.visibility == "exact":
        return "hook"
    stacks = rank.stacks
    if stacks is not None and not stacks.batches_of_loader:
        return "loop counter"
    return "loader counter" if stacks is None or stacks.batches_exact else "estimated from stacks"


def _current_line(current_line: CurrentLine, seconds: float, now_ns: int) -> model.CurrentLine:
    return model.CurrentLine(
        file=current_line.file,
        line=current_line.line,
        function=current_line.function,
        text=_code(current_line.text),
        leaf=current_line.leaf,
        phase=current_line.phase,
        seconds=seconds,
        seen_seconds_ago=max(0, now_ns - current_line.time_ns) / 1e9,
    )


def _shares(shares: Mapping[str, Share]) -> dict[str, model.Share]:
    return {phase: model.Share(share.value, share.low, share.high) for phase, share in shares.items()}


def _line(line: LineShare) -> model.Line:
    return model.Line(
        file=line.file,
        line=line.line,
        function=line.function,
        text=_code(line.text),
        phase=line.phase,
        leaf=line.leaf,
        samples=line.samples,
        share=line.share.value,
        low=line.share.low,
        high=line.share.high,
    )


def _code(text: str | None) -> str | None:
    if text is None:
        return None
    text = encodable(text.strip())
    return text if len(text) <= LONGEST_CODE else f"{text[:LONGEST_CODE]}…"
