"""The verdict: one sentence per run, worst first; then one per GPU or machine that has a problem of its own."""

from __future__ import annotations

from gpuwatch.diagnosis.advice.sampled import SAMPLES
from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.diagnosis.gates import UNHOOKED_SECONDS, have_spoken
from gpuwatch.diagnosis.track import EVALUATION_NS
from gpuwatch.diagnosis.wording import factors, percent
from gpuwatch.report import model
from gpuwatch.report.model import figure
from gpuwatch.report.observation import Observation
from gpuwatch.text.escape import encodable
from gpuwatch.text.numbers import grouped
from gpuwatch.timeline.figures import STEPS
from gpuwatch.timeline.windows import RunWindow


def verdict(seen: Observation) -> list[model.VerdictLine]:
    """What a reader needs if they read nothing else."""
    findings = seen.snapshot.findings
    lines = [
        _of_run(run, seen, [finding for finding in findings if _concerns(finding, run)]) for run in seen.scene.runs
    ]
    told = {id(finding) for run in seen.scene.runs for finding in findings if _concerns(finding, run)}
    lines += [
        _line(None, finding, _sentence(finding))
        for finding in findings
        if id(finding) not in told and finding.severity in (Severity.CRITICAL, Severity.WARNING)
    ]
    if not lines:
        lines = [_line(None, None, _without_runs(seen), judged=False)]
    return sorted(lines, key=lambda line: _ORDER[line.severity])


_ORDER = {severity.value: severity.order for severity in Severity} | {None: len(Severity)}


def _concerns(finding: Finding, run: RunWindow) -> bool:
    return finding.run == run.id or (finding.run is None and finding.gpu in run.gpu_uuids)


def _of_run(run: RunWindow, seen: Observation, findings: list[Finding]) -> model.VerdictLine:
    name = f"{run.title} ({run.critical.facts.pid})"
    worst = min(findings, key=lambda finding: (finding.behind is not None, finding.severity.order), default=None)
    if worst is not None and worst.severity in (Severity.CRITICAL, Severity.WARNING):
        return _line(run, worst, _named(run, name, _sentence(worst)))
    rank = run.critical
    if worst is not None:
        return _line(run, worst, f"{name}: no warning. {_sentence(worst)}")
    if rank.facts.rung == "sampled":
        return _of_sampled(run, name, seen)
    if rank.facts.rung != "exact":
        climb = rank.facts.climb or "start it with gpuwatch run to see its steps"
        return _line(run, None, f"{name}: no warning from hardware and host; {climb}", judged=False)
    if run.id not in seen.judged and not have_spoken(rank, seen.snapshot.time_ns, seen.snapshot.started_ns):
        seconds = (seen.snapshot.time_ns - seen.snapshot.started_ns) / 1e9
        needed = f"{STEPS} after the warm-up are needed, and then {2 * EVALUATION_NS / 1e9:.0f} s more"
        said = f"{name}: too little was seen to judge ({grouped(rank.steps)} steps in {seconds:.0f} s; {needed})"
        return _line(run, None, said, judged=False)
    if rank.wait_share is None:
        said = (
            f"{name}: no warning, but its waits for data are not measured (exact, {grouped(rank.steps)} steps): "
            'its batches come from no DataLoader; put what makes them into `with gpuwatch.phase("data"):`'
        )
        return _line(run, None, said, judged=False)
    return _line(run, None, f"{name}: nothing to change (exact, {grouped(rank.steps)} steps)")


def _of_sampled(run: RunWindow, name: str, seen: Observation) -> model.VerdictLine:
    """A run without a finding that is seen through its stacks."""
    rank = run.critical
    stacks = rank.stacks
    looks = grouped(stacks.samples) if stacks is not None else "0"
    if run.id not in seen.judged and not have_spoken(rank, seen.snapshot.time_ns, seen.snapshot.started_ns):
        seconds = stacks.seconds if stacks is not None else 0.0
        had, needed = f"{looks} stack samples in {seconds:.0f} s", f"{SAMPLES} and {UNHOOKED_SECONDS:.0f} s are needed"
        if rank.steps_total or rank.train_loader is not None:
            had = f"{looks} stack samples and {grouped(rank.steps)} batches in {seconds:.0f} s"
            needed = f"{SAMPLES} and {STEPS} are needed, and then {2 * EVALUATION_NS / 1e9:.0f} s more"
        return _line(run, None, f"{name}: too little was seen to judge ({had}; {needed})", judged=False)
    return _line(run, None, f"{name}: nothing to change (sampled, {looks} samples, {grouped(rank.steps)} batches)")


def _named(run: RunWindow, name: str, sentence: str) -> str:
    """The sentence with the run's full name before it, or in place of its title."""
    if sentence.startswith(f"{run.title} "):
        return name + sentence[len(run.title) :]
    return f"{name}: {sentence}"


def _sentence(finding: Finding) -> str:
    gain = finding.gain
    if gain is None:
        return finding.summary
    return f"{finding.summary} ({gain_text(gain.low, gain.high)})"


def gain_text(low: float, high: float) -> str:
    """The gain as factors: "1.5-1.7x faster"."""
    return f"{factors(low, high)} faster"


_NOTHING = 1.005
"""A factor that is shown as none."""


def plan_text(plan: model.PlanStep | None) -> str | None:
    """A finding's step in the plan of its run; None where that is the only one."""
    if plan is None or plan.of < 2:
        return None
    text = f"step {plan.number} of {plan.of} of the plan"
    if plan.number == 1:
        return f"{text}: change this first"
    then, together = plan.then, plan.together
    if then.high < _NOTHING:
        return f"{text}: then nothing more, those before it win the same time"
    also = gain_text(together.low, together.high)
    return f"{text}: then {gain_text(then.low, then.high)}, {also} together with those before it"


def _line(run: RunWindow | None, finding: Finding | None, sentence: str, *, judged: bool = True) -> model.VerdictLine:
    gain = finding.gain if finding else None
    fix = finding.fix if finding else None
    return model.VerdictLine(
        run=run.id if run else None,
        gpu=finding.gpu if finding else None,
        rule=finding.rule if finding else None,
        severity=finding.severity.value if finding else None,
        judged=judged,
        sentence=encodable(sentence),
        fix=None
        if fix is None
        else model.VerdictFix(
            code=encodable(fix.code),
            file=encodable(fix.file),
            line=fix.line,
        ),
        gain=None if gain is None else model.Gain(figure(gain.low), figure(gain.high), gain.cap),
    )


def _without_runs(seen: Observation) -> str:
    used = [gpu.utilization.mean for gpu in seen.scene.gpus if gpu.utilization]
    unhooked = [each for each in seen.snapshot.candidates or seen.scene.candidates if each.rung != "exact"]
    more = ""
    if unhooked:
        trains = "1 process trains" if len(unhooked) == 1 else f"{len(unhooked)} processes train"
        more = f"; {trains} here without a hook: gpuwatch report --attach {unhooked[0].pid}"
    if not used:
        return f"no training run and no GPU figure was seen{more}"
    mean = sum(used) / len(used)
    all_gpus = len(seen.scene.gpus)
    who = "the GPUs" if len(used) == all_gpus else f"the {len(used)} of {all_gpus} GPUs that report it"
    return f"no training run was seen; {who} were busy {percent(mean / 100)} of the time on average{more}"
