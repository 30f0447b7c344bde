"""The verdict in words: one sentence per run, worst first; then one per GPU or machine with a problem of its own."""

from __future__ import annotations

from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.monitor.verdict import (
    AT_ITS_END,
    DATA_PHASE,
    Kind,
    named,
    other_faults,
    own_findings,
    state_sentence,
    still_needed,
    unhooked,
    verdict_on,
)
from gpuwatch.numbers import faster, grouped, percent
from gpuwatch.report import model
from gpuwatch.report.observation import Observation
from gpuwatch.timeline.windows import RankWindow, RunWindow


def verdict(seen: Observation) -> list[model.VerdictLine]:
    """What a reader needs if they read nothing else."""
    findings = seen.snapshot.findings
    own = {run.id: own_findings(run, findings, seen.snapshot) for run in seen.scene.runs}
    lines = [_of_run(run, seen, own[run.id]) for run in seen.scene.runs]
    lines += [
        _line(None, finding, _sentence(finding.summary, finding))
        for finding in other_faults(findings, (each for several in own.values() for each in several))
    ]
    if not lines:
        lines = [_line(None, None, _without_runs(seen), judged=False)]
    return sorted(lines, key=lambda line: _ORDER[line.severity])


_ORDER = {severity.value: severity.order for severity in Severity} | {None: len(Severity)}


def _of_run(run: RunWindow, seen: Observation, findings: list[Finding]) -> model.VerdictLine:
    pid = run.ranks[0].facts.pid
    judged = verdict_on(run, findings, seen.snapshot, was_judged=run.id in seen.judged)
    finding = judged.finding
    if judged.kind == "fault" and finding is not None:
        return _line(run, finding, named(run.title, pid, _sentence(finding.summary, finding)))
    words = [f"{run.title} ({pid}): {_words(judged.kind, run, seen.snapshot)}{_at_its_end(run, seen.snapshot)}"]
    if finding is not None:
        words.append(_sentence(finding.summary, finding))
    return _line(run, finding, ". ".join(words), judged=judged.kind in ("remark", "fine"))


def _words(kind: Kind, run: RunWindow, snapshot: Snapshot) -> str:
    rank = run.critical
    match kind:
        case "unseen":
            hint = rank.facts.how_to_see_more or "start it with gpuwatch run to see its steps"
            return f"no warning from hardware and host; {hint}"
        case "unjudged":
            return f"too little was seen to judge ({still_needed(rank, snapshot)})"
        case "unmeasured":
            return f"no warning, but its waits for data are not measured ({_basis(rank)}): {DATA_PHASE}"
        case "remark":
            return f"no warning ({_basis(rank)})"
    return f"nothing to change ({_basis(rank)})"


def _basis(rank: RankWindow) -> str:
    """What a run's figures rest on."""
    if rank.facts.visibility != "sampled":
        return f"exact, {grouped(rank.steps)} steps"
    samples = rank.stacks.samples if rank.stacks is not None else 0
    return f"sampled, {grouped(samples)} samples, {grouped(rank.steps)} batches"


def _at_its_end(run: RunWindow, snapshot: Snapshot) -> str:
    """That it made no steps when the report ended."""
    now = next((each for each in snapshot.runs if each.id == run.id), None)
    if now is None or now.state not in AT_ITS_END:
        return ""
    return f"; at the end: {state_sentence(now, snapshot)}"


def _sentence(summary: str, finding: Finding) -> str:
    gain = finding.gain
    return summary if gain is None else f"{summary} ({faster(gain.low, gain.high)})"


def _line(run: RunWindow | None, finding: Finding | None, sentence: str, *, judged: bool = True) -> model.VerdictLine:
    gain = finding.gain if finding else None
    fix = finding.fix if finding else None
    return model.VerdictLine(
        run=run.id if run else None,
        gpu=finding.gpu if finding else None,
        rule=finding.rule if finding else None,
        severity=finding.severity.value if finding else None,
        judged=judged,
        sentence=sentence,
        fix=None if fix is None else model.like(model.VerdictFix, fix),
        gain=None if gain is None else model.like(model.Gain, gain),
    )


def _without_runs(seen: Observation) -> str:
    used = [gpu.utilization.mean for gpu in seen.scene.gpus if gpu.utilization]
    unseen = unhooked(seen.snapshot) if seen.snapshot.origin.kind != "recording" else ()
    more = ""
    if unseen:
        trains = "1 process trains" if len(unseen) == 1 else f"{len(unseen)} processes train"
        more = f"; {trains} here without a hook: gpuwatch report --attach {unseen[0].pid}"
    if not used:
        return f"no training run and no GPU figure was seen{more}"
    mean = sum(used) / len(used)
    all_gpus = len(seen.scene.gpus)
    who = "the GPUs" if len(used) == all_gpus else f"the {len(used)} of {all_gpus} GPUs that report it"
    return f"no training run was seen; {who} were busy {percent(mean / 100)} of the time on average{more}"
