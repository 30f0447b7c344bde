"""No view shows a figure that cannot be, whatever a machine does and however little of it is seen."""

from __future__ import annotations

import html
import itertools
import json
import math
import re
from array import array
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from gpuwatch.cli.stacks import collapsed, speedscope, tree
from gpuwatch.cli.watch import watch_line
from gpuwatch.dashboard.lines import plain
from gpuwatch.dashboard.panels.charts import Grid, History, Trace, values_per_cell
from gpuwatch.dashboard.panels.hardware import gpu_row, host_row
from gpuwatch.dashboard.panels.layout import columns
from gpuwatch.dashboard.panels.run import RunTraces, run_panel
from gpuwatch.dashboard.panels.verdict import verdict_box, verdicts
from gpuwatch.dashboard.screens.finding import finding_page
from gpuwatch.dashboard.screens.gpu import gpu_page
from gpuwatch.dashboard.screens.processes import process_line, process_rows
from gpuwatch.dashboard.screens.timeline import timeline_grid, timeline_page, timeline_series
from gpuwatch.dashboard.themes import look
from gpuwatch.dashboard.view import WINDOWS_SECONDS, View
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.metrics import charted
from gpuwatch.monitor.build import Evaluation, build_snapshot
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.report.build import build_report
from gpuwatch.report.html import HEIGHT, WIDTH, chart_plan, lanes, render_html
from gpuwatch.report.junit import render_junit
from gpuwatch.report.model import as_json
from gpuwatch.report.observation import Observation, fine_curves, phase_stretches, short_history
from gpuwatch.report.text import render_markdown, render_text
from gpuwatch.samples import Sample
from gpuwatch.sources.simulator.scenarios import SCENARIOS
from gpuwatch.sources.simulator.source import SimulatorSource
from gpuwatch.sources.stacks.capture import Lane, Profile
from gpuwatch.timeline.charts import Series
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.trial.changes import arms_of
from gpuwatch.trial.render import document as trial_document
from gpuwatch.trial.render import render_markdown as trial_markdown
from gpuwatch.trial.render import render_text as trial_text
from gpuwatch.trial.results import ArmResult, Judgement, TrialResult, judge
from tests.unit.made_up_machine import MINUTES, SECOND_NS, SHAPES, START_NS, Machine, Shape
from tests.unit.trial_runs import run as trial_run

LOOK = look()
WALL_TIME = 1_795_183_200.0
JUDGED_EVERY = 5  # seconds, as by the monitor
_WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)


@dataclass(frozen=True)
class Seen:
    """What was known of a machine at one moment."""

    timeline: Timeline
    snapshot: Snapshot
    observation: Observation


def seen(batches: Iterable[tuple[int, list[Sample]]], seconds: Collection[int], jump_at_ns: int = 0) -> Iterator[Seen]:
    """What is known at each of these seconds, judged as often as live; the wall clock jumps by 8 h at one moment."""
    timeline, engine, evaluation = Timeline(started_ns=START_NS), Engine(), Evaluation()
    for now_ns, batch in batches:
        timeline.extend(batch)
        if now_ns // SECOND_NS % JUDGED_EVERY == 0:
            scene = timeline.scene(now_ns, 60.0)
            evaluation = Evaluation(scene, tuple(engine.evaluate(scene)))
        if (now_ns - START_NS) // SECOND_NS in seconds:
            yield seen_at(now_ns, timeline, evaluation, jump_at_ns)


def seen_at(now_ns: int, timeline: Timeline, evaluation: Evaluation, jump_at_ns: int) -> Seen:
    """What is known now."""
    wall = WALL_TIME + (now_ns - START_NS) / 1e9 + (8 * 3600 if jump_at_ns else 0)
    anchors = ((START_NS, WALL_TIME),) + (
        ((jump_at_ns, WALL_TIME + (jump_at_ns - START_NS) / 1e9 + 8 * 3600),) if jump_at_ns else ()
    )
    snapshot = build_snapshot(
        timeline, now_ns=now_ns, wall_time=wall, origin=Origin("live", "LIVE"), evaluation=evaluation,
        wall_anchors=anchors,
    )  # fmt: skip
    scene = timeline.scene(now_ns, (now_ns - START_NS) / 1e9)
    of_time = (timeline, scene, START_NS, now_ns, 1.0)
    observation = Observation(
        snapshot,
        scene,
        short_history(*of_time),
        fine_curves(*of_time),
        tuple(phase_stretches(timeline, START_NS, now_ns)),
        process_started=lambda facts: None,
    )
    return Seen(timeline, snapshot, observation)


def screens(about: Seen) -> Iterator[str]:
    """Every page of the dashboard as text, at several widths and windows."""
    snapshot, history = about.snapshot, History(about.timeline)
    for width, window in ((80, 30), (150, 24 * 3600)):
        view, cells = View(snapshot, window_seconds=window), columns(width)
        grid = Grid.ending_at(snapshot.time_ns, window, cells.chart_width * values_per_cell(True))
        yield "\n".join(plain(verdict_box(verdicts(view), width, 8, LOOK, framed=True)))
        for gpu in snapshot.gpus:
            pair = [(Series(metric.series, gpu.facts.uuid), 0) for metric in charted("gpu", only_headline=True)]
            use, power = (history.refresh(grid, pair, snapshot.time_ns) or {}).values()
            yield "\n".join(plain(gpu_row(gpu, view, 5, cells, LOOK, use, power)))
            yield "\n".join(plain(gpu_page(gpu, view, width, LOOK, [])))
        for run in snapshot.runs:
            pair = [(Series("run.wait_share", run.id), 0), (Series("run.step_seconds", run.id), 0)]
            wait, step = (history.refresh(grid, pair, snapshot.time_ns) or {}).values()
            yield "\n".join(plain(run_panel(run, view, 9, cells, LOOK, RunTraces(grid, wait, step))))
        yield "\n".join(plain(host_row(snapshot, 2, cells, LOOK, Trace(), Trace())))
        rows = process_rows(snapshot, "", {})
        yield "\n".join(plain(process_line(row, width, LOOK) for row in rows))
        axis, series = timeline_grid(view, width, LOOK, 0), timeline_series(view, detail=True)
        traces = history.refresh(axis, [(each, 0) for each in series], snapshot.time_ns) or {}
        yield "\n".join(plain(timeline_page(view, width, 60, LOOK, axis, traces, series, 0)))
        for finding in snapshot.findings:
            page = finding_page(finding, view, width, LOOK, still_there=True, source=None, evidence=())
            yield "\n".join(plain(page))


_NO_FIGURE = re.compile(
    r"(?<![\w.])(nan|NaN|inf|Infinity|None(?=%| ?(?:s|ms|W|GiB|steps)\b)|-0(\.0+)?(?=%| ?(points|s|ms|W)))(?!\w)"
)
_PERCENT = re.compile(r"(?<![\d.])(-?\d+(?:\.\d+)?)%")
_NUMBER = r"\d[\d.]*(?:,\d{3})*"
_AMOUNT = rf"<?({_NUMBER})(/s| ?[^\s,\d]+)"
_MEAN = re.compile(rf"mean {_AMOUNT}, <?({_NUMBER})(/s| ?[^\s,\d]+)? to {_AMOUNT}")
_AGO = re.compile(r"(-\d+(?:\.\d+)?) (?:s|min|h) (?:ago|old)")
_SCALE = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_SCALE |= {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "B": 1.0, "%": 1.0, "W": 1.0, "/s": 1.0}
_SCALE |= {"°C": 1.0, "MHz": 1.0}


def check_text(text: str) -> None:
    """The figures of a view, as they are printed."""
    assert not _NO_FIGURE.search(text), _NO_FIGURE.findall(text)
    assert not _AGO.search(text)
    for line in text.splitlines():
        for value in _PERCENT.findall(line):
            assert 0 <= float(value) <= 100, line
        for mean, unit, low, low_unit, high, high_unit in _MEAN.findall(line):
            numbers = [
                float(number.replace(",", "")) * _SCALE[its_unit.strip()]
                for number, its_unit in ((low, low_unit or high_unit), (mean, unit), (high, high_unit))
            ]
            assert numbers == sorted(numbers), line


_ORDERED = ("min", "p5", "p50", "p95", "p99", "max")


def check_report(node: Any, seconds: float, path: str = "") -> None:
    """The figures of a report by the names of their keys."""
    if isinstance(node, list):
        for place, each in enumerate(node):
            check_report(each, seconds, f"{path}[{place}]")
    if not isinstance(node, dict):
        return
    known = [node[name] for name in _ORDERED if isinstance(node.get(name), (int, float))]
    assert known == sorted(known), (path, node)
    mean = node.get("mean")
    if isinstance(mean, (int, float)):
        assert node.get("min", -math.inf) <= mean <= node.get("max", math.inf), (path, node)
    for low, value, high in (("low", "share", "high"), ("low", "value", "high")):
        if all(isinstance(node.get(name), (int, float)) for name in (low, value, high)):
            assert node[low] <= node[value] <= node[high], (path, node)
    for name, value in node.items():
        where = f"{path}.{name}"
        if isinstance(value, float):
            assert math.isfinite(value), where
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            check_report(value, seconds, where)
            continue
        if name == "share" or name.endswith("_share"):
            assert 0 <= value <= 1, (where, value)
        if name.endswith("_percent"):
            assert 0 <= value <= 100, (where, value)
        if name.endswith("_seconds") or name in ("seconds", "count", "steps", "batches", "samples"):
            assert value >= 0, (where, value)
        if name in ("seconds", "train_seconds", "longest_seconds", "stood_seconds", "window_seconds"):
            assert value <= seconds + 1e-3, (where, value, seconds)
        if name in ("count", "steps", "steps_total"):
            assert value == int(value), where


_GREATEST = {"run.wait_share": 1.0, "gpu.utilization_percent": 100.0, "host.cpu_percent": 100.0}


def check_curves(report: Any, seconds: float) -> None:
    """Curves lie within the time of the report, and each mean within its range."""
    for curve in report["series"]:
        assert curve["start_seconds"] >= 0, curve["series"]
        end = curve["start_seconds"] + curve["bucket_seconds"] * len(curve["mean"])
        assert end <= seconds + 1e-3, curve["series"]
        for least, mean, most in zip(
            curve["min"] or curve["mean"], curve["mean"], curve["max"] or curve["mean"], strict=True
        ):
            assert mean is None or least * (1 - 1e-3) <= mean <= most * (1 + 1e-3), curve["series"]
            assert most is None or 0 <= least <= most <= _GREATEST.get(curve["series"], math.inf), curve["series"]
    for span in report["spans"]:
        assert 0 <= span["start_seconds"] <= span["end_seconds"] <= seconds + 1e-3, span


_NO_TEXT = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)
_ISLAND = re.compile(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', re.DOTALL)
_DRAWN = re.compile(r"[ML](-?[\d.]+|nan|inf) (-?[\d.]+|nan|inf)")
_SPARK = re.compile(r'<polyline points="([^"]+)"')
_ROUNDED = 0.06


def check_page(report: Any) -> None:
    """The HTML page: its words, its data, and what it draws without a script."""
    page = render_html(report)
    check_text(html.unescape(_NO_TEXT.sub("\n", page)))
    islands = {name: json.loads(text) for name, text in _ISLAND.findall(page)}
    assert as_json(report) in islands.values() and len(islands) == 2, islands.keys()
    for points in _SPARK.findall(page):
        for point in points.split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 120 and 0 <= y <= 28, points
    for chart in chart_plan(report):
        assert chart.island["low"] <= chart.island["high"], chart.title
        low, high = (float(label.replace(",", "")) for label in (chart.low, chart.high))
        assert low <= high, chart.title
        for line in chart.lines:
            for x, y in _DRAWN.findall(line.path):
                assert -_ROUNDED <= float(x) <= WIDTH + _ROUNDED, (chart.title, x)
                assert -_ROUNDED <= float(y) <= HEIGHT + _ROUNDED, (chart.title, y)
        for start, width, _ in chart.bands:
            assert start >= 0 and width >= 0 and start + width <= WIDTH + 2 * _ROUNDED, chart.title
    for lane in lanes(report):
        for start, width in lane.bars:
            assert start >= 0 and width > 0 and start + width <= 100.02, lane


def check(about: Seen) -> None:
    """All views of one moment."""
    seconds = (about.snapshot.time_ns - START_NS) / 1e9
    report = build_report(about.observation, with_series=True)
    document = as_json(report)
    check_report({name: part for name, part in document.items() if name not in ("series", "history")}, seconds)
    check_curves(document, seconds)
    check_page(report)
    texts = (render_text(report), render_markdown(report), render_junit(report))
    for text in itertools.chain(texts, screens(about), [watch_line(about.snapshot)]):
        check_text(text)
    for run in about.snapshot.runs:
        assert run.last_step_ns is None or run.last_step_ns <= about.snapshot.time_ns
        parts = (run.wait_share, run.copy_share, run.forward_share, run.backward_share, run.optimizer_share)
        assert sum(each or 0.0 for each in parts) <= 1 + 1e-6
        assert 0.0 <= (run.phase_share or 0.0) <= 1.0
        if run.step_seconds_p50 is not None:
            assert run.step_seconds_p50 <= (run.step_seconds_p95 or 0.0)


def check_at(moments: Iterable[Seen], count: int) -> None:
    """All views of so many moments."""
    checked = 0
    for about in moments:
        check(about)
        checked += 1
    assert checked == count


def up_to(machine: Machine, second: int) -> Iterable[tuple[int, list[Sample]]]:
    """What has arrived by then."""
    return ((START_NS + at * SECOND_NS, machine.by_second.get(at, [])) for at in range(second + 1))


@settings(max_examples=25, phases=_WITHOUT_SHRINKING)
@given(SHAPES, st.integers(1, MINUTES * 60 - 1), st.booleans())
@example(
    Shape(
        seed=34,
        loaders=2,
        unknown_samples=0.5,
        unknown_parts=0.5,
        gaps=0.5,
        sent_again=0.1,
        stopped=True,
        silent_seconds=30,
    ),
    184,
    False,
)
def test_no_view_of_any_machine_shows_an_impossible_figure(shape: Shape, second: int, jumps: bool) -> None:
    jump_at_ns = START_NS + second * SECOND_NS // 2 if jumps else 0
    check_at(seen(up_to(Machine(shape), second), [second], jump_at_ns), 1)


@cache
def simulated(scenario: str) -> tuple[tuple[int, list[Sample]], ...]:
    source = SimulatorSource(scenario, start_ns=START_NS)
    moments = [START_NS + second * SECOND_NS for second in range(1, 152)]
    return tuple((now_ns, list(source.collect(now_ns))) for now_ns in moments)


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_no_view_of_a_simulated_machine_shows_an_impossible_figure(scenario: str) -> None:
    check_at(seen(simulated(scenario), [2, 150]), 2)


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_no_view_of_a_machine_that_fell_silent_shows_an_impossible_figure(scenario: str) -> None:
    batches = [(now_ns, batch if place < 90 else []) for place, (now_ns, batch) in enumerate(simulated(scenario))]
    check_at(seen(batches, [95, 151]), 2)


_RATES = st.lists(st.floats(1e-3, 1e7), max_size=4)


@settings(max_examples=60, phases=_WITHOUT_SHRINKING)
@given(_RATES, st.lists(_RATES, min_size=1, max_size=3))
def test_no_trial_shows_an_impossible_figure(before: list[float], others: list[list[float]]) -> None:
    arms = arms_of([], sweeps=[f"num_workers={','.join(map(str, range(1, len(others) + 1)))}"], arms=[])
    judgements = [Judgement("-"), *judge(before, others)]
    results = [
        ArmResult(arm, tuple(trial_run(place, speed) for place, speed in enumerate(rates)), judgement)
        for arm, rates, judgement in zip(arms, [before, *others], judgements, strict=True)
    ]
    result = TrialResult(("python", "train.py"), "samples_per_second", 4, 20.0, None, 0.02, tuple(results))
    report = trial_document(result, "0")
    json.dumps(report, allow_nan=False)
    for arm in report["arms"]:
        interval, change = arm["interval"], arm["change"]
        assert change is None or change > 0
        assert arm["scatter"] is None or arm["scatter"] >= 0
        if interval is not None:
            assert 0 < interval["low"] <= change <= interval["high"] and 0 <= interval["p_value"] <= 1
        if arm["mean"] is not None:
            speeds = [run["samples_per_second"] for run in arm["runs"]]
            assert min(speeds) * (1 - 1e-9) <= arm["mean"] <= max(speeds) * (1 + 1e-9)
    for text in (trial_text(result), trial_markdown(result)):
        assert not _NO_FIGURE.search(text), text
        for mean, low, high in re.findall(r"([+-]?\d[\d.]*)(?: %|x) \[([+-]?\d[\d.]*), ([+-]?\d[\d.]*)\]", text):
            assert float(low) <= float(mean) <= float(high), text


_FRAMES = st.lists(st.sampled_from("abcd").map(lambda name: (name, f"/{name}.py", 1)), max_size=4).map(tuple)
_LANES = st.lists(st.lists(_FRAMES, min_size=1, max_size=30), min_size=1, max_size=3)


@settings(max_examples=60, phases=_WITHOUT_SHRINKING)
@given(_LANES, st.floats(0.0, 60.0))
def test_no_profile_shows_an_impossible_figure(threads: list[list[Any]], seconds: float) -> None:
    lanes_seen = []
    for pid, stacks in enumerate(threads):
        different = list(dict.fromkeys(stacks))
        lanes_seen.append(Lane(f"thread {pid}", pid, different, array("I", map(different.index, stacks))))
    profile = Profile(0, seconds, 0.01, tuple(lanes_seen), 0, ended=False)
    check_text("\n".join(tree(profile, 0.0)))
    assert sum(int(line.rsplit(" ", 1)[1]) for line in collapsed(profile)) == sum(map(len, threads))
    longest = max(map(len, threads))
    for lane, stacks in zip(speedscope(profile)["profiles"], threads, strict=True):
        # A worker that was seen in half of the looks did not last for the whole profile.
        assert sum(lane["weights"]) == pytest.approx(seconds * len(stacks) / longest, abs=1e-9)
        assert lane["endValue"] == pytest.approx(sum(lane["weights"]), abs=1e-9)


def test_the_checks_find_what_they_are_for() -> None:
    for text in ("wait nan %", "-0%", "wait 101%", "mean 263 ms, 250 to 250 ms", "last -3 s ago", "None ms"):
        with pytest.raises(AssertionError):
            check_text(text)
    for report in ({"p50": 2.0, "p95": 1.0}, {"wait_share": 1.2}, {"mean": 3.0, "max": 2.0}, {"train_seconds": 61.0}):
        with pytest.raises(AssertionError):
            check_report(report, 60.0)


def test_windows_of_a_view_are_those_that_are_checked() -> None:
    assert {30, 24 * 3600} <= set(WINDOWS_SECONDS)
