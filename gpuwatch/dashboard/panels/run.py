"""A run's panel: the step's bar, its speed and steps, its ranks, and its history under the GPUs' charts."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from rich.segment import Segment
from rich.style import Style

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.lines import Line, LineWriter
from gpuwatch.dashboard.panels.charts import Grid, Trace, area, band_fill, phase_runs, put_axis, round_up
from gpuwatch.dashboard.panels.layout import RANK_FIELD, WIDE_RANK_FIELD, Columns
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.words import (
    VISIBILITIES,
    costly_line,
    current_line_of,
    current_line_words,
    gpus_of,
    line_place,
    place,
    run_name,
)
from gpuwatch.monitor.snapshot import ACCUMULATES, STEPLESS, GpuNow, RankNow, RunNow, Snapshot
from gpuwatch.monitor.verdict import STEPS_COUNTED, window_of
from gpuwatch.numbers import rate as rate_words

LEAST = 0.0005
"""A smaller share reads as 0.0%."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the bar; `kind` names its colour."""

    kind: str
    label: str
    short: str
    share: float


def parts_of(run: RunNow) -> list[Part]:
    """The measured parts of training time, and what is left of it; empty where not even the wait is measured."""
    if run.wait_share is None:
        return []
    forward, backward = run.forward_share, run.backward_share
    parts = [Part("wait", "DataLoader wait" if run.batches_of_loader else "data wait", "wait", run.wait_share)]
    if run.start_share is not None:
        parts.append(Part("wait", "starts workers", "start", run.start_share))
    if run.copy_share is not None:
        parts.append(Part("copy", "copy", "copy", run.copy_share))
    if forward is not None or backward is not None:
        names = [name for name, known in (("forward", forward), ("backward", backward)) if known is not None]
        short = "fwd+bwd" if len(names) == 2 else names[0]
        parts.append(Part("compute", "+".join(names), short, (forward or 0.0) + (backward or 0.0)))
    if run.sync_share is not None:
        parts.append(Part("sync", "waits for the device", "sync", run.sync_share))
    if run.optimizer_share is not None:
        parts.append(Part("optimizer", "optimizer", "opt", run.optimizer_share))
    rest = 1.0 - sum(part.share for part in parts)
    if rest > LEAST:
        split = any(part.kind == "compute" for part in parts)
        unsplit = Part("compute", "compute and other", "comp+other", rest)
        parts.append(Part("other", "other", "other", rest) if split else unsplit)
    return [part for part in parts if part.share >= LEAST]


def stacked_bar(parts: list[Part], width: int, look: Look) -> Line:
    """The bar, every part with the longest label that fits into it."""
    cells = _cells(parts, width)
    segments = []
    for index, (part, room) in enumerate(zip(parts, cells, strict=True)):
        if room:
            segments.append(Segment(_part_label(part, room, index > 0, look), look.fills[part.kind]))
    return tuple(segments)


def legend(parts: list[Part], width: int, look: Look) -> list[tuple[str, Style]]:
    """The parts in short words, each with its swatch, as many as fit."""
    out: list[tuple[str, Style]] = []
    used = 0
    for part in parts:
        text = f" {part.short} {say.share(part.share)}  "
        if used + 1 + len(text) > width:
            break
        out += [(look.glyphs.bar, getattr(look, part.kind)), (text, look.text)]
        used += 1 + len(text)
    return out


def _cells(parts: list[Part], width: int) -> list[int]:
    """Whole cells per part, together exactly `width`: the largest remainders get the cells that rounding left."""
    total = sum(part.share for part in parts) or 1.0
    exact = [part.share / total * width for part in parts]
    cells = [int(value) for value in exact]
    by_remainder = sorted(range(len(parts)), key=lambda index: exact[index] - cells[index], reverse=True)
    for index in by_remainder[: width - sum(cells)]:
        cells[index] += 1
    return cells


def _part_label(part: Part, room: int, edged: bool, look: Look) -> str:
    edge = look.glyphs.edge if edged else ""
    inner = room - len(edge)
    amount = say.share(part.share)
    for text in (f" {part.label} {amount} ", f" {part.short} {amount} ", f"{amount}", ""):
        if len(text) <= inner:
            return (edge + text).ljust(room)
    return edge


NOTABLE_WAIT = 0.1
"""Where data starvation begins to be judged a fault."""


def words(parts: list[tuple[str, Style]], width: int, look: Look) -> Line:
    """One line of differently styled words."""
    writer = LineWriter(width, look)
    for text, style in parts:
        writer.put(text, style)
    return writer.line()


def line_lines(run: RunNow, snapshot: Snapshot, width: int, look: Look) -> list[Line]:
    """The line of the user's code that costs most of what can be had back, if there is one."""
    window = window_of(run.id, snapshot) if run.state not in STEPLESS else None
    found = costly_line(window.critical, NOTABLE_WAIT) if window is not None else None
    if found is None:
        return []
    share = f"{say.share(found.line.share.value)} {found.of}"
    named = "hot line " if found.line.callee is None else f"hot function {say.escape(found.line.callee)}() at "
    parts = [(named, look.dim), (line_place(found.line), look.accent), (f"  {share}  ", look.wait)]
    return [words([*parts, (say.escape((found.line.text or "").strip()), look.text)], width, look)]


def current_line_lines(run: RunNow, snapshot: Snapshot, width: int, look: Look) -> list[Line]:
    """Where a run that makes no steps stands, and since when."""
    current_line = current_line_of(run, snapshot) if run.state in STEPLESS else None
    if current_line is None:
        return []
    code = say.escape((current_line.text or "").strip())
    return [words([(f"{current_line_words(current_line)}  ", look.warning), (code, look.text)], width, look)]


def how_to_see_more_lines(run: RunNow, width: int, most: int, style: Style, look: Look) -> list[Line]:
    """How to see more of it, where it is not seen exactly."""
    if not run.how_to_see_more:
        return []
    parts = say.wrap(say.escape(run.how_to_see_more), width)
    shown = [*parts[: most - 1], " ".join(parts[most - 1 :])] if len(parts) > most else parts
    return [words([(part, style)], width, look) for part in shown]


def wait_error(run: RunNow, snapshot: Snapshot) -> str:
    """Half the 95% interval of a sampled wait, in points: " ±2.4"."""
    window = window_of(run.id, snapshot)
    stacks = window.critical.stacks if window is not None and run.visibility == "sampled" else None
    wait = stacks.train_phases.get("wait") if stacks is not None else None
    return "" if wait is None else f" ±{say.points(wait)}"


def about(run: RunNow) -> list[str]:
    """What runs: the command, the loader it trains from, the model's precision."""
    texts = [say.command_line(run.command)]
    facts = run.ranks[0].facts if run.ranks else None
    if facts is None:
        return texts
    for loader in facts.loaders:
        if loader.role != "train":
            continue
        where = "not known where" if not loader.file or loader.line is None else place(loader.file, loader.line)
        settings = (
            ("num_workers", loader.num_workers),
            ("batch_size", loader.batch_size),
            ("prefetch_factor", loader.prefetch_factor),
            ("pin_memory", loader.pin_memory),
        )
        said = ", ".join(f"{name}={value}" for name, value in settings if value is not None)
        text = say.escape(f"loader {where}  {said}")
        if text not in texts:  # one that every epoch makes again is said once
            texts.append(text)
    model = facts.model
    words = []
    if model.parameters is not None:
        words.append(f"{_parameters(model.parameters)} parameters")
    if model.autocast is not None:
        words.append(f"autocast {model.autocast_dtype or 'on'}" if model.autocast else "no autocast")
    if model.compiled is not None:
        words.append("compiled" if model.compiled else "not compiled")
    if model.optimizer is not None:
        words.append(model.optimizer + (" fused" if model.optimizer_fused else ""))
    return [*texts, say.escape(f"model {', '.join(words)}")] if words else texts


def band_legend(run: RunNow, look: Look) -> list[tuple[str, Style]]:
    """What the band under the charts is made of, as far as it occurs."""
    kinds = {phase.kind for phase in run.phases}
    legend: list[tuple[str, Style]] = []
    for kind, word in (("eval", "evaluation"), ("checkpoint", "checkpoint")):
        if kind in kinds:
            legend += [(band_fill(kind, look), look.phase), (f" {word}   ", look.dim)]
    if kinds - {"eval", "checkpoint"}:
        legend += [(band_fill("", look), look.phase), (" other pauses", look.dim)]
    return legend


def _parameters(number: int) -> str:
    """In millions from where they are not 0.0 of them."""
    return f"{number / 1e6:.1f} M" if number >= 1e5 else say.count(number)


NOTABLY_SLOWER = 1.05
"""A rank is marked when it is this much slower than the median; in step, ranks differ by their clocks' noise."""
AXIS_FROM = 12
"""Lines below a panel's title from which on its charts have times of day below them."""
LONG_PAUSE_SECONDS = 10.0
"""From here on a pause is said with how long it lasts."""


@dataclass(frozen=True, slots=True)
class RunTraces:
    """A run's history on the shared grid."""

    grid: Grid
    wait: Trace
    step: Trace


def run_panel(
    run: RunNow, view: View, height: int, columns: Columns, look: Look, traces: RunTraces | None
) -> list[Line]:
    """The panel in `height` lines: a title, then words on the left and charts on the right."""
    snapshot = view.snapshot
    assert snapshot is not None, "a run came with a snapshot"
    if height < 2:
        return [_one_line(run, snapshot, columns, look)][:height]
    scale = step_scale(run, traces)
    lines = [_title(run, scale, columns, look)]
    width = columns.left_width - 1
    left = _left(run, view, snapshot, width, height - 1, look)
    right = _right(run, snapshot, scale, height - 1, columns, look, traces)
    edge, gap = Segment(" ", look.text), Segment(" " * columns.gap, look.text)
    nothing = (Segment(" " * width, look.text),)
    left += [nothing] * (height - 1 - len(left))
    lines += [(edge, *words, gap, *charts) for words, charts in zip(left, right, strict=True)]
    return lines


def step_scale(run: RunNow, traces: RunTraces | None) -> float:
    """The top of the step-time chart in seconds: a round number above the slow steps, so that it rarely moves."""
    largest = run.step_seconds_p95 or run.step_seconds_p50 or 0.0
    if not largest and traces is not None:
        largest = traces.step.largest or 0.0
    if largest <= 0:
        return 1.0
    return round_up(largest, "s")


def _title(run: RunNow, scale: float, columns: Columns, look: Look) -> Line:
    """The heading: who it is and how well it is seen, over the charts what they show."""
    mark = look.glyphs.rule
    writer = _who(run, columns, look)
    writer.put(mark * max(0, columns.chart_1 - 1 - writer.cells), look.faint).put(" ", look.text)
    end = columns.chart_1 + columns.chart_width
    step = run.step_names[0]
    if columns.chart_2 is None:
        _label(writer, f"wait, {step} {say.seconds(scale)}", end, look)
    else:
        _label(writer, "wait 0-100%", end, look)
        writer.to(columns.chart_2)
        _label(writer, f"{step} 0-{say.seconds(scale)}", columns.chart_2 + columns.chart_width, look)
    return writer.line()


def _one_line(run: RunNow, snapshot: Snapshot, columns: Columns, look: Look) -> Line:
    """All that fits where a run has but one line: how fast it is, of one that ended how far it came and when."""
    writer = _who(run, columns, look)
    if run.state == "ended":
        steps = f"{say.count(run.steps_total)} {run.step_names[1]}" if run.steps_total else ""
        ago = f"{say.age(snapshot.time_ns - run.ended_ns)} ago" if run.ended_ns is not None else ""
        return writer.put(", ".join(word for word in (ago, steps) if word), look.dim).line()
    speed = f"{say.seconds(run.step_seconds_p50 or run.step_seconds)} wait {say.share(run.wait_share)}"
    return writer.to(columns.chart_1).put(speed, look.text).line()


def _who(run: RunNow, columns: Columns, look: Look) -> LineWriter:
    dot = f" {look.glyphs.dot} "
    ranks = f"{len(run.ranks)} ranks" if len(run.ranks) > 1 else ""
    rest = dot.join(word for word in (ranks, gpus_of(run), VISIBILITIES.get(run.visibility, run.visibility)) if word)
    writer = LineWriter(columns.width, look)
    writer.put(look.glyphs.rule, look.faint).put(f" {run_name(run)} ", look.title, columns.left_width - 3)
    writer.put(f"{look.glyphs.dot} {rest}{dot}", look.dim, columns.left_width - 1 - writer.cells)
    state = look.good if run.state in ("training", "evaluating", "saving") else look.warning
    paused = run.pause_seconds or 0.0
    lasts = f" for {say.age(round(paused * 1e9))}" if paused >= LONG_PAUSE_SECONDS else ""
    return writer.put(run.state_words + lasts, state, columns.left_width - 1 - writer.cells).put(" ", look.text)


def _label(writer: LineWriter, text: str, end: int, look: Look) -> None:
    writer.put(text, look.dim, end - writer.cells)
    writer.put(f" {look.glyphs.rule * max(0, end - writer.cells - 1)}", look.faint, end - writer.cells)


def _left(run: RunNow, view: View, snapshot: Snapshot, width: int, height: int, look: Look) -> list[Line]:
    """The words: the bar first, then as many facts as there are lines."""
    lines: list[Line] = []
    parts = parts_of(run)
    if parts:
        lines.append(stacked_bar(parts, width, look))
    elif run.how_to_see_more:
        lines += how_to_see_more_lines(run, width, 2, look.warning, look)
    lines += current_line_lines(run, snapshot, width, look)
    lines.append(_speed(run, snapshot, width, look))
    lines += line_lines(run, snapshot, width, look)
    lines.append(_steps(run, snapshot, width, look))
    room = height - len(lines) - (1 if height >= 4 else 0)
    lines += _ranks(run, snapshot, width, room, look)
    if parts:
        lines.append(words(legend(parts, width, look), width, look))
        lines += how_to_see_more_lines(run, width, 1, look.dim, look)
    lines += [words([(text, look.dim)], width, look) for text in about(run)]
    lines = lines[: height if height < 4 else height - 1]
    if height >= 4:
        lines += [LineWriter(width, look).line()] * (height - 1 - len(lines))
        lines.append(words(band_legend(run, look), width, look))
    return lines


def _speed(run: RunNow, snapshot: Snapshot, width: int, look: Look) -> Line:
    writer = LineWriter(width, look)
    if run.visibility == "sampled":
        rate = say.UNKNOWN if run.batches_per_second is None else rate_words(run.batches_per_second)
        writer.put("" if run.batches_exact else "about ", look.dim).put(rate, look.step)
        writer.put(f" {run.step_names[1]}/s", look.dim)
    else:
        writer.put("step ", look.dim).put(say.seconds(run.step_seconds_p50), look.step)
        writer.put("  p95 ", look.dim).put(say.seconds(run.step_seconds_p95), look.text)
    writer.put(f"   {say.count(run.samples_per_second)}", look.strong).put(" samples/s", look.dim)
    if run.gap_share is not None:
        name = "GPU idle (data wait)" if width >= 70 else "GPU idle"
        writer.put(f"   {name} ", look.dim).put(say.share(run.gap_share), _waiting(run.gap_share, look))
    elif run.wait_share is not None:
        writer.put("   wait ", look.dim).put(say.share(run.wait_share), _waiting(run.wait_share, look))
        writer.put(wait_error(run, snapshot), look.dim)
    return writer.line()


def _waiting(share: float, look: Look) -> Style:
    return look.wait if share >= NOTABLE_WAIT else look.good


def _steps(run: RunNow, snapshot: Snapshot, width: int, look: Look) -> Line:
    writer = LineWriter(width, look)
    sampled = run.visibility == "sampled"
    # A loop without a loader has no count.
    is_counted = run.visibility in STEPS_COUNTED and (run.steps_total > 0 or not sampled)
    steps = say.count(run.steps_total) if is_counted else say.UNKNOWN
    writer.put(f"{run.step_names[1]} ", look.dim).put(steps, look.text)
    if run.batches_per_step is not None and run.batches_per_step >= ACCUMULATES:
        writer.put(f" of {run.batches_per_step:.3g} batches", look.dim)
    if run.phase_share is not None and run.phase_share >= LEAST:
        writer.put("   pauses ", look.dim).put(say.share(run.phase_share), look.phase)
    if run.last_step_ns is not None:
        late = run.state == "silent"
        writer.put("   last ", look.dim)
        writer.put(f"{_ago(snapshot.time_ns - run.last_step_ns)} ago", look.warning if late else look.text)
    samples = f"{say.count(run.samples)} samples " if sampled and run.samples else ""
    if run.seconds:
        writer.put(f"   {samples}over {say.span(run.seconds)}", look.dim)
    return writer.line()


def _ago(value_ns: int) -> str:
    """An age; a fresh one with a decimal, because steps are often shorter than a second."""
    return f"{max(0, value_ns) / 1e9:.1f} s" if value_ns < 9.95e9 else say.age(value_ns)


def _ranks(run: RunNow, snapshot: Snapshot, width: int, height: int, look: Look) -> list[Line]:
    """The ranks' step times and waits, in equal fields; where one is slow, that one first."""
    if len(run.ranks) < 2 or height < 1:
        return []
    fields = sorted(_rank_fields(run, snapshot), key=lambda field: -field.excess)
    field = WIDE_RANK_FIELD if width >= 2 * WIDE_RANK_FIELD - 1 else RANK_FIELD
    per_line = max(1, (width + 1) // field)
    lines: list[Line] = []
    for start in range(0, min(len(fields), per_line * height), per_line):
        writer = LineWriter(width, look)
        shown = fields[start : start + per_line]
        hidden = len(fields) - start - len(shown) if len(lines) == height - 1 else 0
        for each in shown[: per_line - 1] if hidden and per_line > 1 else shown:
            _rank(writer, each, field, look)
        if hidden:
            writer.put(f"+{hidden + (per_line > 1)} more ranks", look.dim)
        lines.append(writer.line())
    return lines


@dataclass(frozen=True, slots=True)
class _RankField:
    """A rank's figures. `excess` is how much longer it takes than the median one, 0 where it hardly does."""

    rank: RankNow
    seconds: float | None
    own: bool
    excess: float
    gpu: GpuNow | None


def _rank_fields(run: RunNow, snapshot: Snapshot) -> list[_RankField]:
    """Own work where it is known of all; else the step's time, in which the ranks are alike if they keep in step."""
    own = run.own_seconds
    times = [rank.step_seconds if mine is None else mine for mine, rank in zip(own, run.ranks, strict=True)]
    usual = median([seconds for seconds in times if seconds] or [0.0])
    by_uuid = {gpu.facts.uuid: gpu for gpu in snapshot.gpus}
    fields = []
    for rank, seconds in zip(run.ranks, times, strict=True):
        slow = seconds is not None and seconds > usual * NOTABLY_SLOWER
        gpu = next((by_uuid[uuid] for uuid in rank.facts.gpu_uuids if uuid in by_uuid), None)
        fields.append(_RankField(rank, seconds, own[0] is not None, (seconds or 0.0) - usual if slow else 0.0, gpu))
    return fields


def _rank(writer: LineWriter, field: _RankField, width: int, look: Look) -> None:
    end, rank = writer.cells + width, field.rank
    number = "?" if rank.facts.rank is None else str(rank.facts.rank)
    slow = field.excess > 0
    writer.put(f"{look.glyphs.warning} " if slow and width > RANK_FIELD else "", look.warning)
    writer.put("rank ", look.dim).left(number, 3 if len(number) < 3 else 4, look.text)
    writer.put(say.seconds(field.seconds), look.warning if slow else look.text)
    writer.put(" own" if field.own and width > RANK_FIELD else "", look.dim)
    latest = field.gpu.latest if field.gpu is not None else None
    if field.gpu is not None and latest is not None and width > RANK_FIELD and slow:
        at = f"  GPU {field.gpu.facts.label} {say.megahertz(latest.sm_clock_mhz)}"
        writer.put(at, look.warning if field.gpu.throttled_by else look.text, end - writer.cells - 1)
    else:
        writer.put(f" wait {say.share(rank.wait_share)}", look.dim)
    writer.to(end)


def _right(
    run: RunNow,
    snapshot: Snapshot,
    scale: float,
    height: int,
    columns: Columns,
    look: Look,
    traces: RunTraces | None,
) -> list[Line]:
    """The charts' rows and the band of phases, as the ends of the panel's lines."""
    width = columns.width - columns.chart_1
    if traces is None or height < 1:
        return [LineWriter(width, look).line() for _ in range(height)]
    has_axis = height >= AXIS_FROM
    chart_height = max(1, height - 1 - has_axis)
    offset = None if columns.chart_2 is None else columns.chart_2 - columns.chart_1
    unicode = look.glyphs.unicode
    wait_height = chart_height if offset is not None else max(1, chart_height // 2)
    step_height = chart_height if offset is not None else chart_height - wait_height
    wait = area(traces.wait.mean, low=0, high=1, height=wait_height, unicode=unicode)
    step = area(traces.step.mean, low=0, high=scale, height=step_height, unicode=unicode)
    lines = []
    for y in range(chart_height):
        writer = LineWriter(width, look)
        if offset is None:
            writer.chart((wait + step)[y], look.wait if y < wait_height else look.step)
        else:
            writer.chart(wait[y], look.wait).to(offset).chart(step[y], look.step)
        lines.append(writer.line())
    if height > 1:
        now_ns, steps = snapshot.time_ns, traces.step.mean
        band = phase_runs(run.phases, traces.grid, columns.chart_width, now_ns, look, steps)
        writer = LineWriter(width, look)
        for start in (0,) if offset is None else (0, offset):
            writer.to(start)
            for text, style in band:
                writer.chart(text, style)
        lines.append(writer.line())
    if has_axis:
        writer = LineWriter(width, look)
        for start in (0,) if offset is None else (0, offset):
            put_axis(writer.to(start), traces.grid, snapshot.wall_time_at, start, columns.chart_width, look)
        lines.append(writer.line())
    return lines
