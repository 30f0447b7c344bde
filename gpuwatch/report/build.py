"""Builds the report, a JSON document; every renderer shows this and nothing else.

Its verdict is one sentence per run, worst first, then one per GPU or machine with a problem of its own. The figures of
a run are those of the rank all others wait for; what stacks say of it comes as shares with their intervals, lines of
code, and the line on which it stands. The curves of a page with charts are no part of the report that everybody reads:
1,500 points of least, mean and greatest for each of 50 curves.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import asdict

from gpuwatch import __version__
from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.metrics import BY_SERIES, GPU
from gpuwatch.monitor.snapshot import ENDS, RunNow, Snapshot
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
from gpuwatch.numbers import faster, grouped, percent, seconds
from gpuwatch.report import model
from gpuwatch.report.findings import finding_section, iso_time, rule_section
from gpuwatch.report.observation import Observation, Stretch
from gpuwatch.report.words import short_gpu_name
from gpuwatch.samples import CurrentLine, ModelFacts
from gpuwatch.text import encodable
from gpuwatch.timeline.charts import Chart
from gpuwatch.timeline.figures import joules_per_sample
from gpuwatch.timeline.stacks import hot_line
from gpuwatch.timeline.times import JUMP_SECONDS
from gpuwatch.timeline.windows import GpuWindow, LineShare, RankWindow, RunWindow, Scene, Share, StackWindow, Stats

_NOT_REPORTED = "not reported by the driver"
_SAMPLED_AS = {"memory_bytes": "memory_used_bytes"}
"""Key of the report -> the metric, where that has another name: under it a device gives its reason."""
_FORMAT = "%.4g "
_NAN = math.nan

STANDS_FROM_SECONDS = 5.0
"""On one line for less is no news: a slow backward pass stands there for a second or two."""

LONGEST_CODE = 400
"""Generated code has lines of megabytes."""


def build_report(seen: Observation, *, with_series: bool = False, price_per_kwh: float | None = None) -> model.Report:
    """The whole report.

    Args:
        seen: the session.
        with_series: whether the curves of its charts are asked for.
        price_per_kwh: of a kilowatt-hour, in the user's currency.
    """
    energies = {gpu.facts.uuid: _energy(gpu, seen.scene.window_seconds, price_per_kwh) for gpu in seen.scene.gpus}
    report: model.Report = model.cleaned(
        model.Report(
            schema_version=model.SCHEMA_VERSION,
            gpuwatch=_about(seen),
            verdict=verdict(seen),
            findings=finding_section(seen),
            rules=rule_section(seen),
            checklist=checklist(seen.scene),
            gpus=[msgspec.structs.replace(_gpu(gpu), energy=energies[gpu.facts.uuid]) for gpu in seen.scene.gpus],
            runs=[
                msgspec.structs.replace(run, energy=_sum([energies.get(uuid) for uuid in run.gpus]))
                for run in run_section(seen)
            ],
            history=_history(seen.charts),
            data_quality=_data_quality(seen),
            host=_host(seen),
        )
    )
    if not with_series:
        return report
    return msgspec.structs.replace(
        report,
        series=[_curve(seen, chart) for chart in seen.curves],
        clock=_clock(seen),
        spans=[_span(seen, each) for each in seen.stretches],
    )


def _about(seen: Observation) -> model.About:
    snapshot = seen.snapshot
    return model.About(
        version=__version__,
        source=snapshot.origin.kind,
        label=snapshot.origin.label,
        started_at=iso_time(snapshot.wall_time_at(snapshot.started_ns)),
        ended_at=iso_time(snapshot.wall_time),
        duration_seconds=(snapshot.time_ns - snapshot.started_ns) / 1e9,
        incomplete=seen.interrupted,
        notes=list(seen.notes),
    )


def _host(seen: Observation) -> model.Host:
    machine, scene_host, nvml = seen.snapshot.machine, seen.scene.host, seen.snapshot.nvml
    latest = seen.snapshot.host
    return model.Host(
        hostname=(machine.hostname if machine else seen.hostname) or None,
        kernel=machine.kernel if machine else None,
        cpu_model=(machine.cpu_model or None) if machine else None,
        cpu_count=machine.cpu_count if machine else None,
        cpu_quota_cores=machine.cpu_quota_cores if machine else None,
        memory_total_bytes=machine.memory_total_bytes if machine else None,
        memory_available_bytes=latest.memory_available_bytes if latest else None,
        container=machine.container if machine else None,
        wsl=machine.wsl if machine else None,
        cpu_percent=scene_host.cpu_percent if scene_host else None,
        pressure_cpu_percent=scene_host.pressure_cpu_percent if scene_host else None,
        pressure_io_percent=scene_host.pressure_io_percent if scene_host else None,
        pressure_memory_percent=scene_host.pressure_memory_percent if scene_host else None,
        driver_version=nvml.driver_version if nvml else None,
        cuda_version=nvml.cuda_version if nvml else None,
    )


def _history(charts: Sequence[Chart]) -> list[model.History]:
    return [
        model.History(
            series=chart.series.name,
            key=chart.series.key,
            bucket_seconds=(chart.end_ns - chart.start_ns) / 1e9 / max(1, len(chart.mean)),
            mean=list(chart.mean),
        )
        for chart in charts
    ]


def _clock_jump(seen: Observation) -> tuple[str, ...]:
    jump = seen.clock_jump_seconds
    if abs(jump) <= JUMP_SECONDS:
        return ()
    return (
        f"the machine's clock jumped {seconds(abs(jump))} {'ahead' if jump > 0 else 'back'} (it was set, or the "
        "machine slept): times of day are as the clock showed them; durations leave out the jump",
    )


def _data_quality(seen: Observation) -> model.DataQuality:
    quality = seen.scene.quality
    nvml = quality.nvml or seen.snapshot.nvml
    judged = seen.snapshot.scene
    return model.DataQuality(
        problems=[*seen.problems, *_clock_jump(seen)],
        window_seconds=seen.scene.window_seconds,
        findings_window_seconds=judged.window_seconds if judged else None,
        poll_interval_seconds=quality.poll_interval_seconds,
        gpu_samples=quality.gpu_samples,
        poll_gap_p95_seconds=quality.poll_gap_p95_seconds,
        longest_gap_seconds=quality.longest_gap_seconds,
        received_records=quality.received_records,
        dropped_records=quality.dropped_records,
        malformed_packets=quality.malformed_packets,
        nvml=None if nvml is None else model.like(model.Nvml, nvml),
        nvml_calls_per_gpu_second=quality.nvml_calls_per_gpu_second,
        own_cpu_share=quality.own_cpu_share,
    )


def _gpu(gpu: GpuWindow) -> model.Gpu:
    power, memory = _level(gpu.power_watts), _level(gpu.memory_used_bytes)
    limit, total = gpu.power_limit_watts, gpu.facts.memory_total_bytes
    section = model.Gpu(
        index=gpu.facts.index,
        uuid=gpu.facts.uuid,
        name=gpu.facts.name,
        status=gpu.status,
        status_reason=gpu.status_reason,
        utilization_percent=_swing(gpu.utilization),
        train_utilization_percent=_swing(gpu.train_utilization),
        power_watts=None if power is None else model.Power(power.mean, power.max, limit),
        memory_bytes=None if memory is None else model.Memory(memory.mean, memory.max, total),
        temperature_celsius=_level(gpu.temperature_celsius),
        sm_clock_mhz=_level(gpu.sm_clock_mhz),
        energy_joules=model.figure(gpu.energy_joules),
        throttled_share=dict(gpu.throttle_shares),
        sensor_window_seconds=gpu.sensor_window_seconds,
        unavailable={},
    )
    for name in section.__struct_fields__:
        metric = _SAMPLED_AS.get(name, name)
        if metric in GPU and getattr(section, name) is None:
            section.unavailable[name] = gpu.unavailable.get(metric, "not measured in this window")
    if power is not None and limit is None:
        section.unavailable["power_watts.limit"] = gpu.unavailable.get("power_limit_watts", _NOT_REPORTED)
    if memory is not None and total is None:
        section.unavailable["memory_bytes.total"] = gpu.unavailable.get("memory_total_bytes", _NOT_REPORTED)
    return section


_COVERED_FROM_SECONDS = 1.0
"""Of less no energy is claimed: the counters move a few times a second."""


def _energy(gpu: GpuWindow, window_seconds: float, price: float | None) -> model.Energy | None:
    """From the counter, else from the mean of the power samples; None where neither is known."""
    source: model.EnergySource = "energy counter"
    joules, covered = gpu.energy_joules, gpu.energy_seconds
    if joules is None or covered is None or joules < 0:  # a driver that was loaded again counts from zero
        if gpu.power_watts is None:
            return None
        source, covered = "power samples", gpu.window_seconds
        joules = gpu.power_watts.mean * covered
    if covered < _COVERED_FROM_SECONDS:
        return None
    hours = joules / 3.6e6
    share = min(1.0, covered / window_seconds) if window_seconds > 0 else 1.0
    return model.Energy(hours, source, share, None if price is None else hours * price)


def _sum(energies: Sequence[model.Energy | None]) -> model.Energy | None:
    """Of all GPUs of a run; as well covered as the one of them that is covered worst."""
    known = [energy for energy in energies if energy is not None]
    if not known or len(known) < len(energies):
        return None
    costs = [energy.cost for energy in known if energy.cost is not None]
    return model.Energy(
        sum(energy.kilowatt_hours for energy in known),
        "power samples" if any(energy.source == "power samples" for energy in known) else "energy counter",
        min(energy.covered_share for energy in known),
        sum(costs) if costs else None,
    )


def _swing(stats: Stats | None) -> model.Swing | None:
    return None if stats is None else model.like(model.Swing, stats)


def _level(stats: Stats | None) -> model.Level | None:
    return None if stats is None else model.like(model.Level, stats)


@dataclass(frozen=True, slots=True)
class _Value:
    """A measured value, or None; `where` names the GPU that decides."""

    value: float | None
    where: str | None = None
    incomplete: bool = False
    """Some GPU could not answer: the others may fail the target, but they cannot meet it alone."""


def checklist(scene: Scene) -> list[model.Target]:
    """The targets. Of several GPUs the worst decides; GPUs that no run uses do not count while others are used."""
    used = {uuid for run in scene.runs for uuid in run.gpu_uuids}
    gpus = [gpu for gpu in scene.gpus if not used or gpu.facts.uuid in used]
    ranks = [rank for run in scene.runs for rank in run.ranks]
    busy = _of_gpus(gpus, lambda gpu: gpu.utilization.mean if gpu.utilization else None, min)
    swing = _of_gpus(gpus, lambda gpu: gpu.utilization.sigma if gpu.utilization else None, max)
    heat = _of_gpus(gpus, lambda gpu: gpu.temperature_celsius.max if gpu.temperature_celsius else None, max)
    cpu = _Value(scene.host.cpu_percent if scene.host else None)
    return [
        _target("mean utilization >= 85%", "%", busy, lambda value: value >= 85),
        _target("fluctuation (sigma of utilization) < 10 points", "points", swing, lambda value: value < 10),
        _target("CPU <= 90%", "%", cpu, lambda value: value <= 90),
        _target("temperature < 85 °C", "°C", heat, lambda value: value < 85),
        _target("no out-of-memory error", "errors", _out_of_memory(ranks), lambda value: value == 0),
    ]


def _of_gpus(
    gpus: Sequence[GpuWindow],
    read: Callable[[GpuWindow], float | None],
    worst: Callable[[list[tuple[float, int]]], tuple[float, int]],
) -> _Value:
    values = [(value, gpu.facts.index) for gpu in gpus if (value := read(gpu)) is not None]
    if not values:
        return _Value(None)
    value, index = worst(values)
    return _Value(value, f"GPU {index}" if len(gpus) > 1 else None, incomplete=len(values) < len(gpus))


def _out_of_memory(ranks: Sequence[RankWindow]) -> _Value:
    counts = [
        rank.memory.out_of_memory for rank in ranks if rank.memory is not None and rank.memory.out_of_memory is not None
    ]
    return _Value(float(sum(counts)) if counts else None, incomplete=len(counts) < len(ranks))


def _target(text: str, unit: str, measured: _Value, meets: Callable[[float], bool]) -> model.Target:
    status: model.TargetStatus
    if measured.value is None:
        status = "not known"
    elif not meets(measured.value):
        status = "not met"
    else:
        status = "not known" if measured.incomplete else "met"
    return model.Target(
        target=text,
        status=status,
        value=measured.value,
        unit=unit,
        where=measured.where,
    )


def _clock(seen: Observation) -> list[model.WallTime]:
    """What the clock on the wall showed at the beginning, and behind each of its jumps."""
    snapshot = seen.snapshot
    start_ns, end_ns = snapshot.started_ns, snapshot.time_ns
    jumps = [anchor for anchor in snapshot.wall_anchors if start_ns < anchor[0] <= end_ns]
    return [
        model.WallTime(_seconds(seen, time_ns), round(wall_time, 3))
        for time_ns, wall_time in ((start_ns, snapshot.wall_time_at(start_ns)), *jumps)
    ]


def _curve(seen: Observation, chart: Chart) -> model.Curve:
    mean, least, greatest = map(_short, (chart.mean, chart.min, chart.max))
    return model.Curve(
        series=chart.series.name,
        key=chart.series.key,
        subject=_subject(seen, chart.series.key),
        unit=BY_SERIES[chart.series.name].unit,
        start_seconds=_seconds(seen, chart.start_ns),
        bucket_seconds=round((chart.end_ns - chart.start_ns) / 1e9 / max(1, len(chart.mean)), 6),
        mean=mean,
        min=None if least == mean else least,
        max=None if greatest == mean else greatest,  # all of it is the mean: buckets of one value
    )


def _subject(seen: Observation, key: str) -> str:
    for gpu in seen.scene.gpus:
        if gpu.facts.uuid == key:
            return f"GPU {gpu.facts.label} {short_gpu_name(encodable(gpu.facts.name))}"
    for run in seen.scene.runs:
        if run.id == key:
            return encodable(f"{run.title} ({run.critical.facts.pid})")
    return "host"


def _short(values: Sequence[float | None]) -> list[float | None]:
    """To four digits, all of them at once: a page has 300,000 values, and mostly all of a curve's are known."""
    if None in values:
        values = [_NAN if value is None else value for value in values]
    text = _FORMAT * len(values) % tuple(values)
    rounded = map(float, text.split())
    return [None if value != value else value for value in rounded] if "nan" in text else list(rounded)


def _seconds(seen: Observation, time_ns: int) -> float:
    return round((time_ns - seen.zero_ns) / 1e9, 3)


def _span(seen: Observation, each: Stretch) -> model.Span:
    return model.Span(
        kind=each.kind,
        name=each.name,
        run=each.run,
        gpu=each.gpu,
        severity=each.severity.value if each.severity else None,
        series=list(each.series),
        start_seconds=_seconds(seen, each.start_ns),
        end_seconds=_seconds(seen, each.end_ns),
    )


def verdict(seen: Observation) -> list[model.VerdictLine]:
    """What a reader needs if they read nothing else."""
    findings = seen.snapshot.findings
    own = {run.id: own_findings(run, findings, seen.snapshot) for run in seen.scene.runs}
    lines = [_verdict_of(run, seen, own[run.id]) for run in seen.scene.runs]
    lines += [
        _verdict_line(None, finding, _sentence(finding.summary, finding))
        for finding in other_faults(findings, (each for several in own.values() for each in several))
    ]
    if not lines:
        lines = [_verdict_line(None, None, _without_runs(seen), judged=False)]
    return sorted(lines, key=lambda line: _ORDER[line.severity])


_ORDER = {severity.value: severity.order for severity in Severity} | {None: len(Severity)}


def _verdict_of(run: RunWindow, seen: Observation, findings: list[Finding]) -> model.VerdictLine:
    pid = run.ranks[0].facts.pid
    judged = verdict_on(run, findings, seen.snapshot, was_judged=run.id in seen.judged)
    finding = judged.finding
    if judged.kind == "fault" and finding is not None:
        return _verdict_line(run, finding, named(run.title, pid, _sentence(finding.summary, finding)))
    words = [f"{run.title} ({pid}): {_state_words(judged.kind, run, seen.snapshot)}{_at_its_end(run, seen.snapshot)}"]
    if finding is not None:
        words.append(_sentence(finding.summary, finding))
    return _verdict_line(run, finding, ". ".join(words), judged=judged.kind in ("remark", "fine"))


def _state_words(kind: Kind, run: RunWindow, snapshot: Snapshot) -> str:
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


def _verdict_line(
    run: RunWindow | None, finding: Finding | None, sentence: str, *, judged: bool = True
) -> model.VerdictLine:
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


_UNSEEN_STEPS = {
    "sampled": "neither a working loader nor a loop counter was found",
    "process": _UNREAD,
    "hardware": _UNREAD,
}


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
        lines=[_code_line(line) for line in stacks.lines],
        workers=stacks.workers,
        worker_samples=stacks.worker_samples,
        worker_phases=_shares(stacks.worker_phases),
        worker_lines=[_code_line(line) for line in stacks.worker_lines],
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
        **asdict(_code_line(found.line)),
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


def _code_line(line: LineShare) -> model.Line:
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
