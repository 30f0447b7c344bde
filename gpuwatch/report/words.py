"""The report's figures as sentences and rows of plain words, the same for every renderer; unknown is "n/a", never 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuwatch import metrics, numbers
from gpuwatch.diagnosis.finding import plan_words
from gpuwatch.monitor.snapshot import ACCUMULATES, ENDS
from gpuwatch.numbers import grouped
from gpuwatch.report import model
from gpuwatch.report.findings import NO_EDIT, NOT_HERE

UNKNOWN = "n/a"
_GIB = 1024**3
_WELL_COVERED = 0.95  # the first and the last second of a window lie before and after a reading
_BLOCKS = "▁▂▃▄▅▆▇█"
_MOST_LINES = 8  # of each kind of thread; the JSON has 20
_CODE_WIDTH = 56

PHASE_WORDS = {
    "wait": "waits for data",
    "start": "starts workers",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "sync": "waits for the device (.item() and the like)",
    "copy": "copies to the device",
    "eval": "evaluation",
    "save": "checkpointing",
    "log": "logging",
    "compile": "compiling",
    "other": "other Python",
}
WORKER_PHASE_WORDS = {
    "item": "makes items",
    "collate": "collates",
    "send": "sends",
    "idle": "idle: waits for work",
    "other": "other",
}
_CALLED = {
    "power_watts.limit": "power limit",
    "memory_bytes": "memory",
    "memory_bytes.total": "memory size",
    "energy_joules": "energy",
    "step_seconds": "step time",
    "data_wait_share": "wait for data",
    "samples_per_second": "samples/s",
    "gpu_idle_from_wait_share": "GPU idle (data wait)",
}
"""Keys of the report in words; the others have the label of their metric, or are words."""
_TIMES = {
    "main thread while waiting": "of the training thread's time",
    "loading thread": "of the loading thread's time",
    "workers": "of the workers' busy time",
}
_SOURCES = {"loader counter": "the loader's own counter", "loop counter": "the variable that the loop counts with"}


@dataclass(frozen=True, slots=True)
class Table:
    """A heading row and rows of as many cells; `notes` say why a figure is missing."""

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A heading, the run and how it was measured, sentences, and a table below them."""

    title: str
    about: str
    sentences: tuple[str, ...]
    table: Table


def banner(report: model.Report) -> list[str]:
    """What a reader must know before the first number: that it is made up, or that it was cut short."""
    about = report.gpuwatch
    lines = []
    if about.source == "simulated":
        lines.append(f"{about.label}: these numbers are not from this machine")
    elif "SIMULATED" in about.label:
        lines.append(f"{about.label}: these numbers are simulated")
    if about.incomplete:
        lines.append(f"INCOMPLETE: stopped after {number(about.duration_seconds, 1)} s; this is what was seen so far")
    return lines + list(about.notes)


def subtitle(report: model.Report) -> str:
    """Where, how long and when."""
    about = report.gpuwatch
    host = report.host.hostname or "this machine"
    return f"{about.label} · {host} · {number(about.duration_seconds)} s, ending {about.ended_at}"


def place(fix: model.Fix | model.VerdictFix) -> str:
    """Where the fix goes, as file:line; empty where that is not known."""
    if not fix.file:
        return ""
    return fix.file if fix.line is None else f"{fix.file}:{fix.line}"


def fix_sentence(fix: model.Fix) -> str:
    """What to change, and where."""
    where = place(fix)
    return f"fix{f' ({where})' if where else ''}: {fix.text}"


def by_hand(fix: model.Fix) -> str | None:
    """Why there is no diff, where the reader can do something about it."""
    return None if fix.no_diff_reason in (NO_EDIT, NOT_HERE) else fix.no_diff_reason


def details(finding: model.Finding) -> Iterator[str]:
    """A finding after its summary, a sentence each: plain text and JUnit. The other renderers set some apart."""
    if finding.numbers:
        yield f"numbers: {'; '.join(finding.numbers)}"
    if finding.ruled_out:
        yield "ruled out: " + "; ".join(f"{each.cause} ({each.reason})" for each in finding.ruled_out)
    yield from remarks(finding)
    yield from promises(finding)
    fix = finding.fix
    if fix is not None and fix.trial:
        yield f"prove it first: {fix.trial}"
    if finding.verify:
        yield f"verify: {finding.verify}"
    if fix is not None:
        yield fix_sentence(fix)
        reason = by_hand(fix)
        if reason:
            yield f"by hand: {reason}"


def remarks(finding: model.Finding) -> Iterator[str]:
    """What limits a finding, a sentence each, for every renderer."""
    yield from finding.confidence_notes
    if finding.behind:
        yield f"fix {finding.behind} first"


def promises(finding: model.Finding) -> Iterator[str]:
    """The gain and its step of the plan, or the hint where no gain was measured."""
    gain = finding.gain
    if gain is not None:
        yield f"gain: {numbers.faster(gain.low, gain.high)}" + (f", {gain.cap}" if gain.cap else "")
        planned = plan_text(finding.plan)
        if planned:
            yield planned
    elif finding.hint:
        yield f"hint: {finding.hint}"


def plan_text(plan: model.PlanStep | None) -> str | None:
    """A finding's step in the plan of its run; None where that is the only one."""
    if plan is None or plan.of < 2:
        return None
    then, together = plan.then, plan.together
    return plan_words(plan.number, plan.of, (then.low, then.high), (together.low, together.high))


def verdict_lines(report: model.Report) -> list[tuple[str, str, str]]:
    """Per sentence of the verdict: its word, itself, and the line to change, as far as there is one."""
    lines = []
    for line in report.verdict:
        fix = line.fix
        code = "" if fix is None or "\n" in (fix.code or "") else fix.code  # of several lines the place will do
        change = "" if fix is None else "  ".join(part for part in (place(fix), code) if part)
        lines.append((_severity_word(line), line.sentence, change))
    return lines


def finding_behind(report: model.Report, line: model.VerdictLine) -> model.Finding | None:
    """The finding that a line of the verdict speaks of."""
    same = [each for each in report.findings if (each.rule, each.gpu) == (line.rule, line.gpu)]
    return next((each for each in same if each.run in (line.run, None)), None)


def before_after(report: model.Report) -> Table:
    """The figures of the run that the verdict begins with; below them those to expect, where a gain was computed."""
    line = report.verdict[0]
    run = next((run for run in report.runs if run.id == line.run), report.runs[0] if report.runs else None)
    if run is None:
        return Table((), ())
    gpus = [gpu for gpu in report.gpus if gpu.uuid in run.gpus]
    use = [gpu.utilization_percent.mean for gpu in gpus if gpu.utilization_percent is not None]
    step = run.step_seconds
    before = (
        f"measured, {number(report.data_quality.window_seconds)} s",
        seconds(None if step is None else step.p50),
        rate(run.samples_per_second),
        share(sum(use) / len(use) / 100) if use and len(use) == len(gpus) else UNKNOWN,
        share(run.gpu_idle_from_wait_share),
        _energy(run.energy),
    )
    rows = [before]
    if line.gain is not None and line.run == run.id:
        low, high = line.gain.low, line.gain.high
        quick, slow = (None, None) if step is None else (step.p50 / high, step.p50 / low)
        pace = None if run.samples_per_second is None else run.samples_per_second
        rows.append(
            (
                "expected after the change",
                _span(seconds(quick), seconds(slow)),
                UNKNOWN if pace is None else _span(rate(pace * low), rate(pace * high)),
                *("not predicted",) * 3,
            )
        )
    heading = ("", "step time (p50)", "samples/s", "GPU utilization", "GPU idle (data wait)", "energy")
    return Table(heading, tuple(rows))


def _energy(energy: model.Energy | None) -> str:
    """Kilowatt-hours, what limits the figure, and the cost: "0.42 kWh (80% of the time), cost 0.13"."""
    if energy is None:
        return UNKNOWN
    limits = _energy_limits(energy)
    cost = "" if energy.cost is None else f", cost {energy.cost:.3g}"
    return f"{energy.kilowatt_hours:.3g} kWh" + (f" ({', '.join(limits)})" if limits else "") + cost


def _energy_limits(energy: model.Energy) -> list[str]:
    limits = ["from power samples"] if energy.source == "power samples" else []
    if energy.covered_share < _WELL_COVERED:
        limits.append(f"of {share(energy.covered_share)} of the time")
    return limits


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _severity_word(line: model.VerdictLine) -> str:
    """The word before a sentence; OK only where everything was judged and nothing is wrong."""
    if line.severity:
        return "TRY" if line.severity == "hint" and line.judged else str(line.severity).upper()
    return "OK" if line.judged else "NOT JUDGED"


def checklist_table(report: model.Report) -> Table:
    """Target, met or not, and the value."""
    rows = []
    for target in report.checklist:
        value = UNKNOWN if target.value is None else f"{numbers.rate(target.value)} {target.unit}"
        rows.append((target.status, target.target, value + (f" ({target.where})" if target.where else "")))
    return Table(("", "target", "measured"), tuple(rows))


def gpu_table(report: model.Report) -> Table:
    """One row per GPU."""
    heading = (
        "GPU",
        "util %",
        "sigma",
        "p5-p95",
        "power W: mean, peak / limit",
        "memory GiB: mean, peak / total",
        "°C: mean, max",
        "SM MHz",
        "energy kWh",
    )
    return Table(heading, tuple(_gpu_row(gpu) for gpu in report.gpus), tuple(_gpu_notes(report.gpus)))


def _gpu_row(gpu: model.Gpu) -> tuple[str, ...]:
    use, power, memory = gpu.utilization_percent, gpu.power_watts, gpu.memory_bytes
    heat, clock = gpu.temperature_celsius, gpu.sm_clock_mhz
    lost = f" {gpu.status.upper()}" if gpu.status != "live" else ""
    return (
        f"{gpu.index} {short_gpu_name(gpu.name)}{lost}",
        number(use and use.mean),
        number(use and use.sigma),
        f"{number(use.p5)}-{number(use.p95)}" if use else UNKNOWN,
        f"{number(power.mean)}, {number(power.max)} / {number(power.limit)}" if power else UNKNOWN,
        f"{gibibytes(memory.mean)}, {gibibytes(memory.max)} / {gibibytes(memory.total)}" if memory else UNKNOWN,
        f"{number(heat.mean)}, {number(heat.max)}" if heat else UNKNOWN,
        number(clock and clock.mean),
        UNKNOWN if gpu.energy is None else f"{gpu.energy.kilowatt_hours:.3g}",
    )


def short_gpu_name(name: str) -> str:
    """The name without its maker's."""
    return name.removeprefix("NVIDIA ")


def _gpu_notes(gpus: Sequence[model.Gpu]) -> list[str]:
    """One line per reason, with the GPUs it is true for."""
    reasons: dict[str, list[int]] = {}
    for gpu in gpus:
        if gpu.status != "live" and gpu.status_reason:
            reasons.setdefault(f"{gpu.status}: {gpu.status_reason}", []).append(gpu.index)
        limits = "" if gpu.energy is None else ", ".join(_energy_limits(gpu.energy))
        if limits:
            reasons.setdefault(f"energy: {limits}", []).append(gpu.index)
        for metric, reason in gpu.unavailable.items():
            reasons.setdefault(f"{_called(metric)} {UNKNOWN}: {reason}", []).append(gpu.index)
    return [f"GPU {', '.join(map(str, indices))}: {reason}" for reason, indices in reasons.items()]


def _called(key: str) -> str:
    label = metrics.GPU[key].label if key in metrics.GPU else ""
    return _CALLED.get(key) or label or key.replace("_", " ")


def runs(report: model.Report) -> Table:
    """The table of runs; below it the pace with its source, the hot line, where a run stands, how to see more."""
    table = run_table(report)
    said = [f"{run.title} ({run.pid}): {line}" for run in report.runs for line in _sentences(run)]
    return replace(table, notes=(*said, *table.notes))


def run_table(report: model.Report) -> Table:
    """One row per run."""
    heading = (
        "run",
        "steps",
        "samples/s",
        "step p50, p95",
        "wait for data",
        "GPU idle (data wait)",
        "phases",
    )
    rows, notes = [], []
    for run in report.runs:
        step = run.step_seconds
        phases = [f"{kind} {share(phase.share)} ({grouped(phase.count)}x)" for kind, phase in run.phases.items()]
        ranks = f", {len(run.ranks)} ranks" if len(run.ranks) > 1 else ""
        rows.append(
            (
                f"{run.title} ({run.pid}{ranks}, {run.visibility}{_ended(run)})",
                UNKNOWN if run.steps is None else grouped(run.steps),
                rate(run.samples_per_second),
                f"{seconds(step.p50)}, {seconds(step.p95)}{_accumulated(run)}" if step else UNKNOWN,
                share(run.data_wait_share) + _wait_error(run),
                share(run.gpu_idle_from_wait_share),
                ", ".join(phases) or "none seen",
            )
        )
        missing = run.unavailable.items()
        notes += [f"{run.title} ({run.pid}): {_called(key)} {UNKNOWN}: {why}" for key, why in missing]
    return Table(heading, tuple(rows), tuple(notes))


def _accumulated(run: model.Run) -> str:
    """Of how many batches its steps are, where of more than one."""
    batches = run.batches_per_step
    return f" (steps of {batches:.3g} batches)" if batches and batches >= ACCUMULATES else ""


def _wait_error(run: model.Run) -> str:
    """Half the width of the 95% interval in points, where the wait was sampled."""
    if run.data_wait_share is None or run.stacks is None or run.visibility != "sampled":
        return ""
    wait = run.stacks.train_phases.get("wait")
    return "" if wait is None else f" ±{(wait.high - wait.low) * 50:.1f}"


def _ended(run: model.Run) -> str:
    how = run.ended
    if how is None:
        return ""
    return f", ended ({ENDS[how]})" if how in ENDS else ", ended"


def _sentences(run: model.Run) -> Iterator[str]:
    if run.steps_per_second is not None and run.steps_source != "hook":
        source = _SOURCES.get(run.steps_source or "", run.steps_source)
        yield f"{pace(run)} (from {source}, {_window(run)})"
    if run.energy is not None:
        yield f"energy of its GPUs: {_energy(run.energy)}"
    hot = run.hot_line
    if hot is not None:
        of = _TIMES[hot.where]
        code = f": {_shortened(hot.text)}" if hot.text else ""
        what = f"loading line: {_place(hot, run)}"
        if hot.callee is not None:
            what = f"loading function: {hot.callee}(), called in {_place(hot, run)}"
        yield f"slowest {what}, {_with_error(hot)} {of}{code}"
    stands: list[tuple[model.CurrentLine | None, int | None]] = [(run.current_line, None)]
    if len(run.ranks) > 1:
        stands += [(rank.current_line, rank.rank) for rank in run.ranks]
    yield from (_current_line(current_line, run, rank) for current_line, rank in stands if current_line is not None)
    if run.how_to_see_more:
        yield run.how_to_see_more


def pace(run: model.Run) -> str:
    """Steps per second with their unit: a loader's counter counts batches, a loop's its iterations."""
    value = run.steps_per_second
    unit = {"hook": "steps/s", "loop counter": "iterations/s"}.get(run.steps_source or "", "batches/s")
    return UNKNOWN if value is None else f"{rate(value)} {unit}"


def loader_lines(report: model.Report) -> list[str]:
    """The loaders of all runs, with the line that built each."""
    lines = []
    for run in report.runs:
        for loader in run.loaders:
            place = f"{loader.file}:{loader.line}" if loader.file else "place not known"
            settings = [
                f"{name}={value}"
                for name in ("num_workers", "batch_size", "pin_memory", "persistent_workers", "prefetch_factor")
                if (value := getattr(loader, name)) is not None
            ] or ["settings not known"]
            lines.append(f"{run.title} ({run.pid}) {loader.role} loader, {place}: {', '.join(settings)}")
    return lines


def stack_blocks(report: model.Report) -> list[Block]:
    """Of every run whose stacks were read: its phases, its lines, its workers' lines."""
    return [block for run in report.runs if run.stacks for block in _of_run(run, run.stacks)]


def _of_run(run: model.Run, stacks: model.Stacks) -> Iterator[Block]:
    name = f"{run.title} ({run.pid})"
    about = f"{name}, sampled, {grouped(stacks.samples)} samples over {number(stacks.seconds)} s"
    if stacks.phases:
        table = Table(("the training thread", "share of its time", "± points"), _phase_rows(stacks.phases))
        yield Block("Where the time goes", about, (), table)
    heading = ("share", "± points", "phase", "line", "code")
    if stacks.lines:
        yield Block("Lines of the training thread", about, (), Table(heading, _line_rows(run, stacks.lines)))
    if stacks.worker_samples:
        crew = f"{stacks.workers} worker{'' if stacks.workers == 1 else 's'}"
        if any(loader.role == "eval" and loader.num_workers for loader in run.loaders):
            crew += " (those of evaluation included)"
        busy = f"{name}, {crew}, {grouped(stacks.worker_samples)} samples, shares of their busy time"
        spent = ", ".join(
            f"{WORKER_PHASE_WORDS.get(phase, phase)} {_with_error(part)}"
            for phase, part in _by_share(stacks.worker_phases)
        )
        table = Table(heading, _line_rows(run, stacks.worker_lines))
        yield Block("Lines of the workers", busy, (f"all their time: {spent}",) if spent else (), table)


def _phase_rows(shares: Mapping[str, model.Share]) -> tuple[tuple[str, ...], ...]:
    return tuple((PHASE_WORDS.get(phase, phase), share(part.share), _error(part)) for phase, part in _by_share(shares))


def _by_share(shares: Mapping[str, model.Share]) -> list[tuple[str, model.Share]]:
    return sorted(((phase, part) for phase, part in shares.items() if part.share > 0), key=lambda item: -item[1].share)


def _line_rows(run: model.Run, lines: Sequence[model.Line]) -> tuple[tuple[str, ...], ...]:
    rows = []
    for line in lines[:_MOST_LINES]:
        code = _shortened(line.text) if line.text else f"in {line.function}()"
        rows.append((share(line.share), _error(line), line.phase, _place(line, run), code))
    return tuple(rows)


def _current_line(current_line: model.CurrentLine, run: model.Run, rank: int | None) -> str:
    who = "" if rank is None else f"rank {rank} "
    code = f": {_shortened(current_line.text)}" if current_line.text else ""
    below = f", in {current_line.leaf}" if current_line.leaf else ""
    return f"{who}has been at {_place(current_line, run)} for {number(current_line.seconds)} s{below}{code}"


def _place(line: model.Line | model.CurrentLine, run: model.Run) -> str:
    """file:line, from the training's folder where the file lies below it."""
    folder = f"{run.cwd.rstrip('/')}/" if run.cwd else None
    file = line.file
    return f"{file.removeprefix(folder) if folder else file}:{line.line}"


def _window(run: model.Run) -> str:
    return f"{number(run.stacks.seconds)} s" if run.stacks else "the whole time"


def _with_error(part: model.Share | model.Line) -> str:
    return f"{share(part.share)} ±{_error(part)}"


def _error(part: model.Share | model.Line) -> str:
    """Half the width of the 95% interval, in points."""
    return f"{(part.high - part.low) * 50:.1f}"


def _shortened(code: str) -> str:
    return code if len(code) <= _CODE_WIDTH else f"{code[: _CODE_WIDTH - 1]}…"


@dataclass(frozen=True, slots=True)
class Spark:
    """A labelled line of blocks with its range in words."""

    label: str
    blocks: str
    scale: str


def sparks(report: model.Report) -> list[Spark]:
    """Utilization and power of each GPU, waits and step time of each run, over the same time."""
    found = []
    for history in report.history:
        values = history.mean
        known = [value for value in values if value is not None]
        if not known:
            continue
        label, top, unit = _scale(report, history.series, history.key, max(known))
        if label:
            found.append(Spark(label, sparkline(values, top), f"0-{unit}, {seconds(history.bucket_seconds)} each"))
    return found


def _scale(report: model.Report, series: str, key: str, highest: float) -> tuple[str, float, str]:
    gpu = next((gpu for gpu in report.gpus if gpu.uuid == key), None)
    run = next((run for run in report.runs if run.id == key), None)
    if gpu and series == "gpu.utilization_percent":
        return f"GPU {gpu.index} utilization", 100.0, "100%"
    if gpu and series == "gpu.power_watts":
        limit = (gpu.power_watts and gpu.power_watts.limit) or highest
        return f"GPU {gpu.index} power", limit, f"{number(limit)} W"
    if run and series == "run.wait_share":
        return f"{run.title} wait for data", 1.0, "100%"
    if run and series == "run.step_seconds":
        return f"{run.title} step time", highest, seconds(highest)
    return "", 1.0, ""


def sparkline(values: Sequence[float | None], top: float, *, bottom: float = 0.0) -> str:
    """One character per value between `bottom` and `top`; a blank where nothing was measured."""
    span = top - bottom
    if span <= 0:
        return ""
    return "".join(" " if value is None else _block((value - bottom) / span) for value in values)


def _block(share: float) -> str:
    return _BLOCKS[max(0, min(len(_BLOCKS) - 1, int(share * len(_BLOCKS))))]


def quality_lines(report: model.Report) -> list[str]:
    """How well this was measured."""
    quality = report.data_quality
    lines = [
        *quality.problems,
        f"figures over {number(quality.window_seconds)} s; "
        + (
            "no rule was evaluated"
            if quality.findings_window_seconds is None
            else f"findings over the last {number(quality.findings_window_seconds)} s"
        ),
        f"{grouped(quality.gpu_samples)} GPU polls, every {seconds(quality.poll_interval_seconds)} "
        f"(gap p95 {seconds(quality.poll_gap_p95_seconds)}, longest {seconds(quality.longest_gap_seconds)})",
        f"{grouped(quality.received_records)} records of training processes, "
        f"{grouped(quality.dropped_records)} dropped, {grouped(quality.malformed_packets)} malformed packets",
    ]
    windows = {gpu.sensor_window_seconds for gpu in report.gpus if gpu.sensor_window_seconds is not None}
    if windows:
        lines.append(f"utilization sensor averages over {' or '.join(seconds(each) for each in sorted(windows))}")
        steps = [run.step_seconds.p50 for run in report.runs if run.step_seconds]
        if steps and min(steps) < 2 * max(windows):
            lines.append(
                f"a step of {seconds(min(steps))} is shorter than twice that window: fluctuation from step to step "
                "cannot be seen in the utilization"
            )
    cost = [] if quality.own_cpu_share is None else [f"{share(quality.own_cpu_share)} of one core"]
    if quality.nvml_calls_per_gpu_second:
        cost.append(f"{number(quality.nvml_calls_per_gpu_second, 1)} NVML calls per GPU and second")
    lines.append(f"gpuwatch's own cost: {', '.join(cost) or 'not measured'}")
    lines.append(rules_line(report))
    nvml = quality.nvml
    if nvml and (nvml.status != "ok" or nvml.restarts or nvml.missed_polls):
        reason = f" ({nvml.reason.rstrip('.')})" if nvml.reason else ""
        lines.append(f"NVML {nvml.status}{reason}, {nvml.missed_polls} missed polls, {nvml.restarts} restarts")
    return lines


def rules_line(report: model.Report) -> str:
    """How many rules could judge, and why the others could not."""
    rules = report.rules
    reasons: dict[str, int] = {}
    for rule in rules:
        if rule.reason is not None:
            reasons[rule.reason] = reasons.get(rule.reason, 0) + 1
    said = "; ".join(f"{count}: {reason}" for reason, count in sorted(reasons.items(), key=lambda each: -each[1]))
    judged = sum(rule.judged for rule in rules)
    return f"{judged} of {len(rules)} rules could judge" + (f"; the others could not ({said})" if said else "")


def environment_lines(report: model.Report) -> list[str]:
    """The machine and the software."""
    host = report.host
    quota = f", quota {number(host.cpu_quota_cores, 1)} cores" if host.cpu_quota_cores else ""
    kind = "".join(f", {word}" for word in ("container", "wsl") if getattr(host, word))
    lines = [
        f"gpuwatch {report.gpuwatch.version}",
        f"host {host.hostname or UNKNOWN}, kernel {host.kernel or UNKNOWN}{kind}",
        f"CPU {host.cpu_model or UNKNOWN}, {host.cpu_count or UNKNOWN} cores{quota}, {number(host.cpu_percent)}% busy",
        f"memory {gibibytes(host.memory_available_bytes)} of {gibibytes(host.memory_total_bytes)} GiB available",
        f"driver {host.driver_version or UNKNOWN}, CUDA {host.cuda_version or UNKNOWN}",
    ]
    lines += [
        f"{run.title} ({run.pid}): torch {run.torch or UNKNOWN}, Python {run.python or UNKNOWN}, command {run.command}"
        for run in report.runs
    ]
    return lines


def number(value: Any, digits: int = 0) -> str:
    """A number with a fixed count of digits behind the point."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def share(value: float | None) -> str:
    """0.413 -> "41%"."""
    return UNKNOWN if value is None else numbers.percent(value)


def seconds(value: float | None) -> str:
    """A duration with its unit: "312 ms", "4.2 s", "3.5 min"."""
    return UNKNOWN if value is None else numbers.seconds(value)


def rate(value: float | None) -> str:
    """A number per second: three digits where it is small, so that little does not read as none."""
    return UNKNOWN if value is None else numbers.rate(value)


def gibibytes(value: float | None) -> str:
    """Bytes as GiB with one decimal, without the unit."""
    return UNKNOWN if value is None else f"{value / _GIB:.1f}"
