"""One figure, one value: the steps themselves, the timeline's minutes and a recording's minutes give the same."""

from __future__ import annotations

import json
import math
import tempfile
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from gpuwatch.compare.comparison import compare, measured, measured_report
from gpuwatch.compare.document import document, render_markdown, render_text, tables
from gpuwatch.export.samples import Axis, json_lines, samples_of
from gpuwatch.export.tables import TABLES, RowMaker
from gpuwatch.export.trace import chrome_trace
from gpuwatch.monitor.build import run_now
from gpuwatch.monitor.replay import fill_past
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.stretch import LongStretch, summarize
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.report.build import build_report
from gpuwatch.report.model import as_json
from gpuwatch.report.recorded import observe
from gpuwatch.samples import (
    GpuFacts,
    GpuSample,
    RunFacts,
    Sample,
    StepEnd,
)
from gpuwatch.timeline.figures import PARTS, StepSums, rank_figures
from gpuwatch.timeline.steps import STEP_SUMS
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.windows import GPU_DISTRIBUTIONS, RankWindow, Scene
from tests.integration.recorded_files import META, of_minutes, wall_at
from tests.unit.made_up_machine import (
    ATTACHED_SHAPES,
    BATCH,
    MINUTES,
    SECOND_NS,
    SHAPES,
    START_NS,
    AttachedMachine,
    AttachedShape,
    Machine,
    Shape,
)
from tests.unit.test_figures_possible import check_text

_WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
"""A recording takes half a second to make, and its shape says enough."""
_ROUNDING = {"rel": 1e-5, "abs": 1e-6}
"""Samples and minutes are kept in single precision."""


def recorded(machine: Machine | AttachedMachine, path: Path) -> Timeline:
    """Writes the file, and gives the timeline that has seen the same."""
    timeline = Timeline(started_ns=START_NS)
    writer = RecordingWriter(path, replace(META, command=()))
    for second in range(MINUTES * 60):
        now_ns, batch = START_NS + second * SECOND_NS, machine.by_second.get(second, [])
        timeline.extend(batch)
        writer.add(batch, now_ns, wall_at(now_ns) + (3_600.0 if second >= _CLOCK_SET_AT else 0.0))
    writer.close()
    return timeline


_CLOCK_SET_AT = 100
"""The second from which on the wall clock is an hour ahead: no figure may notice."""
_OF_RANK = (
    *("steps", "train_seconds", "wait_share", "wait_seconds_per_batch", "settled_wait_share", "gap_share"),
    *("samples_per_second", "batches_per_step", "copy_share", "forward_share", "backward_share", "optimizer_share"),
)
_OF_GPU = ("utilization", "power_watts", *GPU_DISTRIBUTIONS)


_TIED = AttachedShape(
    seed=49219, ranks=2, loaders=2, counts_iterations=False, batch_size=8, waits=True, pauses=0.0, missed=0.0,
    begins_over=0.0, stopped=False,
)  # fmt: skip
"""Two ranks that wait exactly as long: rounding decides which of them is the critical one."""


def _same(found: Any, expected: Any, what: str) -> None:
    assert (found is None) == (expected is None), (what, found, expected)
    if found is not None:
        assert found == pytest.approx(expected, **_ROUNDING), what


def _same_rank(found: RankWindow, expected: RankWindow) -> None:
    for name in _OF_RANK:
        _same(getattr(found, name), getattr(expected, name), name)
    for name in ("count", "mean", "sigma", "min", "max"):
        _same(getattr(found.step_seconds, name), getattr(expected.step_seconds, name), f"step_seconds.{name}")
    assert found.phases.keys() == expected.phases.keys()
    for kind, totals in expected.phases.items():
        edges = 2.0 if kind == "stopped" else 1e-5  # as far as /proc shows them, once a second
        assert found.phases[kind].count == totals.count, kind
        assert found.phases[kind].seconds == pytest.approx(totals.seconds, abs=edges), kind
        assert found.phases[kind].longest_seconds == pytest.approx(totals.longest_seconds, abs=edges), kind


def _same_gpus(found: Scene, expected: Scene) -> None:
    for gpu, raw in zip(found.gpus, expected.gpus, strict=True):
        for name in _OF_GPU:
            for part in ("count", "mean", "sigma", "min", "max"):
                _same(getattr(getattr(gpu, name), part), getattr(getattr(raw, name), part), f"{name}.{part}")
        _same(gpu.energy_joules, raw.energy_joules, "energy_joules")
        assert gpu.throttle_shares == pytest.approx(raw.throttle_shares, abs=2 / (MINUTES * 60))  # to the second


@settings(max_examples=15, phases=_WITHOUT_SHRINKING)
@given(SHAPES)
def test_steps_minutes_and_long_reports_give_the_same_figures(shape: Shape) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.gpuwatch"
        timeline = recorded(Machine(shape), path)
        end_ns = START_NS + (MINUTES * 60 - 1) * SECOND_NS
        raw = timeline.scene(end_ns, (end_ns - START_NS) / 1e9 + 1)
        with Recording(path) as recording:
            long = LongStretch(recording, recording.start_ns, recording.end_ns).scene(raw)
    (run,), (long_run,) = raw.runs, long.runs
    for found, expected in zip(long_run.ranks, run.ranks, strict=True):
        _same_rank(found, expected)
        minutes = timeline.trainers[expected.trainer].tiers.minutes
        sums = {name: float(sum(minutes.arrays[name])) for name in STEP_SUMS}
        tiers: Any = rank_figures(StepSums(**sums, steps_train=sums["train"]))
        for name in set(_OF_RANK) - {f"{part}_share" for part in PARTS}:
            _same(tiers[name], getattr(expected, name), f"{name} of the timeline's minutes")
    _same(long_run.samples_per_second, run.samples_per_second, "samples/s of all ranks")
    _same_gpus(long, raw)


@settings(max_examples=15, phases=_WITHOUT_SHRINKING)
@given(ATTACHED_SHAPES)
@example(_TIED)
def test_stacks_minutes_and_long_reports_of_attached_runs_give_the_same_figures(shape: AttachedShape) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.gpuwatch"
        timeline = recorded(AttachedMachine(shape), path)
        end_ns = START_NS + (MINUTES * 60 - 1) * SECOND_NS
        raw = timeline.scene(end_ns, (end_ns - START_NS) / 1e9 + 1)
        with Recording(path) as recording:
            long = LongStretch(recording, recording.start_ns, recording.end_ns).scene(raw)
    (run,), (long_run,) = raw.runs, long.runs
    waits = {rank.trainer: rank.wait_share for rank in run.ranks}
    _same(waits[long_run.critical.trainer], run.critical.wait_share, "wait of the critical rank")
    for found, expected in zip(long_run.ranks, run.ranks, strict=True):
        for name in _OF_RANK:
            _same(getattr(found, name), getattr(expected, name), name)
        sums = timeline.trainers[expected.trainer].tiers.sums(START_NS - SECOND_NS, end_ns)
        tiers = {"train_seconds": sums.train, "steps": sums.steps, "wait_share": sums.wait_share}
        if shape.counts_iterations:
            del tiers["wait_share"]  # charts of a loop without a loader know its waits from the first one on
        for name, figure in tiers.items():
            _same(figure, getattr(expected, name), f"{name} of the timeline's seconds")
    _same(long_run.samples_per_second, run.samples_per_second, "samples/s of all ranks")


@settings(max_examples=10, phases=_WITHOUT_SHRINKING)
@given(st.one_of(SHAPES.map(Machine), ATTACHED_SHAPES.map(AttachedMachine)))
def test_minutes_that_a_replay_fills_in_are_those_of_the_live_timeline(machine: Machine | AttachedMachine) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.gpuwatch"
        live = recorded(machine, path)
        end_ns = START_NS + MINUTES * 60 * SECOND_NS
        with Recording(path) as recording:
            filled = Timeline(started_ns=START_NS)
            filled.extend(recording.facts_at(end_ns))
            fill_past(filled, recording, end_ns)
    for name, trainer in live.trainers.items():
        sums, expected = (each.trainers[name].tiers.sums(START_NS - 120 * SECOND_NS, end_ns) for each in (filled, live))
        assert expected.train > 0
        amounts = ["steps", "train", "samples", "samples_train", "settled_wait", "settled_gap"]
        if trainer.train_loader() is not None or trainer.is_exact:
            amounts += ["wait", "wait_train"]  # of a loop without a loader, minutes without a wait say nothing of it
        for amount in amounts:
            _same(getattr(sums, amount), getattr(expected, amount), amount)


_OF_REPORT = (
    *("steps", "train_seconds", "samples_per_second", "data_wait_share", "wait_seconds_per_batch"),
    *("gpu_idle_from_wait_share", "energy_joules_per_sample", "batches_per_step", "steps_per_second", "batch_size"),
)


@settings(max_examples=6, phases=_WITHOUT_SHRINKING)
@given(st.one_of(SHAPES.map(Machine), ATTACHED_SHAPES.map(AttachedMachine)))
def test_live_short_and_long_reports_and_comparisons_of_them_have_the_same_figures(
    machine: Machine | AttachedMachine,
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "run.gpuwatch"
        timeline = recorded(machine, path)
        with Recording(path) as recording:
            span = recording.start_ns, recording.end_ns
            short = build_report(observe(recording, *span, with_curves=False))
            patch.setattr("gpuwatch.report.recorded.LONGEST_NS", 0)
            long = build_report(observe(recording, *span, with_curves=False))
    (live,) = timeline.scene(span[1], (span[1] - span[0]) / 1e9).runs
    rank = live.critical
    (run,), (long_run,) = short.runs, long.runs
    _same(run.samples_per_second, live.samples_per_second, "samples/s of a played recording")
    for name, figure in (
        ("steps", rank.steps),
        ("train_seconds", rank.train_seconds),
        ("data_wait_share", rank.wait_share),
    ):
        _same(getattr(run, name), figure, f"{name} of a played recording")
    for name in _OF_REPORT:
        _same(getattr(long_run, name), getattr(run, name), name)
    for part in PARTS:
        _same(getattr(long_run.step_shares, part), getattr(run.step_shares, part), part)
    for found, expected in zip(long_run.ranks, run.ranks, strict=True):
        for name in ("steps", "data_wait_share", "gpu_idle_from_wait_share"):
            _same(getattr(found, name), getattr(expected, name), f"{name} of a rank")
    compared = [measured_report("x", msgspec.json.encode(each)).values for each in (short, long)]
    for name in ("samples_per_second", "wait_ms_per_batch", "wait_share_percent", "energy_joules_per_sample"):
        _same(compared[1][name], compared[0][name], f"{name} of a comparison")


@settings(max_examples=15, phases=_WITHOUT_SHRINKING)
@given(st.one_of(SHAPES.map(Machine), ATTACHED_SHAPES.map(AttachedMachine)))
def test_the_panel_of_a_run_has_the_figures_of_its_window(machine: Machine | AttachedMachine) -> None:
    timeline = Timeline(started_ns=START_NS)
    for second in range(MINUTES * 60):
        timeline.extend(machine.by_second.get(second, []))
    end_ns = START_NS + (MINUTES * 60 - 1) * SECOND_NS
    if any(trainer.is_exact for trainer in timeline.trainers.values()):  # the panel ends with the last step
        end_ns = min(trainer.last_step_ns or end_ns for trainer in timeline.trainers.values())
    (run,) = timeline.runs(end_ns, 60 * SECOND_NS)
    now = run_now(run, (), timeline.processes, end_ns)
    (window,) = timeline.scene(end_ns, 60.0).runs
    rank = window.critical
    for name in ("wait_share", "gap_share", "batches_per_step"):
        _same(getattr(now, name), getattr(rank, name), name)
    _same(now.samples_per_second, window.samples_per_second, "samples/s of all ranks")
    for found, expected in zip(now.ranks, window.ranks, strict=True):
        _same(found.wait_share, expected.wait_share, "wait share of a rank")


@settings(max_examples=15, phases=_WITHOUT_SHRINKING)
@given(SHAPES)
def test_a_comparison_of_minutes_has_the_figures_of_their_steps(shape: Shape) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.gpuwatch"
        timeline = recorded(Machine(shape), path)
        with Recording(path) as recording:
            (found,) = of_minutes(recording).runs
    # The first minute is left out as warm-up. What arrives at its end is of the second before.
    begin_ns, end_ns = START_NS + 59 * SECOND_NS, START_NS + (MINUTES * 60 - 1) * SECOND_NS
    (run,) = timeline.scene(end_ns, (end_ns - begin_ns) / 1e9).runs
    rank = run.critical
    assert found.facts.trainer == rank.trainer
    for name in ("steps", "train_seconds", "wait_share", "wait_seconds_per_batch"):
        _same(getattr(found, name), getattr(rank, name), name)
    _same(found.samples_per_second, run.samples_per_second, "samples_per_second")


def test_the_last_minute_of_a_recording_counts_as_long_as_it_is(tmp_path: Path) -> None:
    path, timeline = tmp_path / "run.gpuwatch", Timeline(started_ns=START_NS)
    writer = RecordingWriter(path, replace(META, command=()))
    for second in range(131):
        now_ns, slowed_ns = START_NS + second * SECOND_NS, max(0, second - 120) * SECOND_NS
        batch: list[Sample] = [] if second else [GpuFacts(now_ns, "GPU-0", 0, "H100")]
        batch.append(GpuSample(now_ns, "GPU-0", throttled_power_ns=slowed_ns))
        timeline.extend(batch)
        writer.add(batch, now_ns, wall_at(now_ns))
    writer.close()
    raw = timeline.scene(now_ns, 131.0)
    with Recording(path) as recording:
        (gpu,) = LongStretch(recording, recording.start_ns, recording.end_ns).scene(raw).gpus
    assert raw.gpus[0].throttle_shares["power"] == pytest.approx(10 / 130)
    assert gpu.throttle_shares["power"] == pytest.approx(10 / 130)


def _check_comparison(before: Recording, after: Recording) -> None:
    sides = [measured(each.path.name, summarize(each, each.start_ns, each.end_ns)) for each in (before, after)]
    comparison = compare(sides[:1], sides[1:])
    for metric in json.loads(json.dumps(document(comparison, []), allow_nan=False))["metrics"]:
        for side in ("before", "after"):
            value = metric[side]
            assert value is None or value >= 0, metric
            if value is not None and metric["name"].endswith("_percent"):
                assert value <= 100, metric
    for side in sides:
        p50, p95 = side.values["step_p50_ms"], side.values["step_p95_ms"]
        assert p50 is None or p95 is None or p50 <= p95
    shown = tables(comparison, [])
    for row in shown.rows:
        check_text("\n".join(row[:3]))  # a ratio may be over 100%
    assert "nan" not in render_text(shown) + render_markdown(shown)


def _check_export(recording: Recording) -> None:
    """Its times lie in the recording, its lengths are not negative, and its steps do not overlap."""
    start_ns, end_ns = recording.start_ns, recording.end_ns
    axis, seconds = Axis(start_ns + 1, recording.wall_time), (end_ns - start_ns) / SECOND_NS
    lines = [json.loads(line) for line in json_lines(samples_of(recording, start_ns, end_ns), axis)]
    trace = json.loads("".join(chrome_trace(samples_of(recording, start_ns, end_ns), axis, end_ns, {})))
    slices: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] != "M":
            assert 0 <= event["ts"] <= event["ts"] + event.get("dur", 0) <= seconds * 1e6 + 1, event
        if event["ph"] == "X" and event["name"].startswith("step "):
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for track in slices.values():
        for (_, ended), (started, _) in pairwise(track):
            assert started >= ended - 1e-3  # of a microsecond
    maker = RowMaker(axis, {gpu.uuid: gpu.index for gpu in recording.gpus()}, TABLES)
    rows: defaultdict[str, int] = defaultdict(int)
    for sample in samples_of(recording, start_ns, end_ns):
        for name, row in maker.rows(sample):
            rows[name] += 1
            assert row.keys() == {column for column, _ in TABLES[name].header()}
            for column, cell in row.items():
                if column == "time_seconds" and cell is not None:
                    assert -1e-9 <= cell <= seconds, (name, row)
                if isinstance(cell, float):
                    assert math.isfinite(cell), (name, column)
    for name, kind in (("step", "step_end"), ("gpu", "gpu_sample"), ("phase", "phase_span")):
        assert rows[name] == sum(line["type"] == kind for line in lines), name


@settings(max_examples=6, phases=_WITHOUT_SHRINKING)
@given(SHAPES, SHAPES)
def test_comparisons_and_exports_hold_no_impossible_figure(shape: Shape, other: Shape) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder) / "before.gpuwatch", Path(folder) / "after.gpuwatch"
        for path, each in zip(paths, (shape, other), strict=True):
            recorded(Machine(each), path)
        with Recording(paths[0]) as before, Recording(paths[1]) as after:
            _check_comparison(before, after)
            _check_export(before)


@pytest.mark.parametrize("minutes", [10, 20])
def test_where_every_second_wait_is_unseen_all_views_say_the_share_of_those_that_were_seen(
    tmp_path: Path, minutes: int
) -> None:
    path = tmp_path / "run.gpuwatch"
    writer = RecordingWriter(path, replace(META, command=()))
    for second in range(minutes * 60):
        now_ns = START_NS + second * SECOND_NS
        wait = 0.5 if second % 2 else None
        batch: list[Sample] = [StepEnd("4711.99", second, now_ns - SECOND_NS, now_ns, wait, samples=BATCH)]
        if not second:
            batch.insert(0, RunFacts(now_ns, "4711.99", 4711, 99, ("python", "train.py")))
        writer.add(batch, now_ns, wall_at(now_ns))
    writer.close()
    with Recording(path) as recording:
        document = build_report(observe(recording, recording.start_ns, recording.end_ns, with_curves=False))
        (run,) = as_json(document)["runs"]
        (compared,) = summarize(recording, recording.start_ns, recording.end_ns).runs
    assert run["data_wait_share"] == pytest.approx(0.5) == run["ranks"][0]["data_wait_share"]
    assert compared.wait_share == pytest.approx(0.5)
    assert run["wait_seconds_per_batch"] == pytest.approx(0.5) == compared.wait_seconds_per_batch
    assert math.isclose(run["samples_per_second"], BATCH, rel_tol=1e-6)
