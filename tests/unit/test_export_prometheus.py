"""Snapshots as Prometheus metric families: what is in them, and what is not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric as Family

from gpuwatch.diagnosis.rules import all_rules
from gpuwatch.export.prometheus import STALE_SECONDS, Ask, families, shape_of
from gpuwatch.metrics import BY_SERIES, GPU, HOST
from gpuwatch.monitor.snapshot import Snapshot
from tests.dashboard import situations


def of(snapshot: Snapshot, later_seconds: float = 0.5, labels: frozenset[Ask] = frozenset()) -> dict[str, Family]:
    now_ns = snapshot.time_ns + round(later_seconds * 1e9)
    return {family.name: family for family in families(snapshot, now_ns=now_ns, labels=labels)}


def test_every_row_has_a_sentence_and_a_name_of_its_own_in_base_units() -> None:
    rows = [metric for metric in (*GPU.values(), *HOST.values()) if metric.kind != "mask"]
    shapes = [shape_of(metric) for metric in rows]
    assert all(metric.help.endswith(".") for metric in rows)
    assert len({(shape.name, shape.labels) for shape in shapes}) == len(rows)
    assert not [shape.name for shape in shapes if shape.name.endswith(("_percent", "_mhz", "_ns", "_share"))]
    assert not [shape.name for shape in shapes if shape.name.endswith(("_count", "_sum", "_bucket", "_total", "_info"))]
    assert shape_of(BY_SERIES["gpu.sm_clock_mhz"]).value(1410) == 1.41e9
    assert shape_of(BY_SERIES["gpu.utilization_percent"]).value(47) == 0.47


RULES = Path(__file__).parents[2] / "docs/fleet/rules.yml"


def test_alerts_ask_for_metrics_that_there_are() -> None:
    snapshots = (situations.straggler(), situations.shared(), situations.lost(), situations.starved())
    known = {sample.name for each in snapshots for family in of(each).values() for sample in family.samples}
    known |= {shape_of(metric).name + "_total" for metric in GPU.values() if metric.kind == "counter"}
    asked = set(re.findall(r"(?<![:\w])gpuwatch_\w+", RULES.read_text()))
    assert asked and not asked - known
    rules = {rule.id for rule in all_rules()}
    named = re.findall(r'rule=~?"([^"]+)"', RULES.read_text())
    assert named and all(any(re.fullmatch(name, rule) for rule in rules) for name in named)


def test_what_is_unknown_has_no_sample() -> None:
    usual = situations.starved()
    (gpu,) = usual.gpus
    assert gpu.latest is not None
    unknown = replace(usual, gpus=(replace(gpu, latest=replace(gpu.latest, power_watts=None)),))
    assert len(of(usual)["gpuwatch_gpu_power_watts"].samples) == 1
    assert "gpuwatch_gpu_power_watts" not in of(unknown)


def test_a_lost_gpu_is_down_and_has_no_readings() -> None:
    found = of(situations.lost())
    up = {sample.labels["gpu"]: sample.value for sample in found["gpuwatch_gpu_up"].samples}
    power = {sample.labels["gpu"] for sample in found["gpuwatch_gpu_power_watts"].samples}
    assert power == {gpu for gpu, is_up in up.items() if is_up} != set(up)


def test_an_old_snapshot_says_nothing_of_now() -> None:
    found = of(situations.starved(), later_seconds=STALE_SECONDS + 1)
    assert "gpuwatch_sample_age_seconds" in found
    assert not [name for name in found if name.startswith(("gpuwatch_gpu_", "gpuwatch_run", "gpuwatch_finding"))]


def test_runs_that_ended_five_minutes_ago_are_gone() -> None:
    snapshot = situations.with_ended()
    shown = {sample.labels["run"] for sample in of(snapshot)["gpuwatch_run_state"].samples}
    old = [run for run in snapshot.runs if run.ended_ns and (snapshot.time_ns - run.ended_ns) > 300e9]
    assert old and len(shown) == len(snapshot.runs) - len(old)


@pytest.mark.parametrize("ask", [(), ("user", "script", "sentence")], ids=str)
def test_names_are_in_labels_only_where_they_are_asked_for(ask: tuple[Ask, ...]) -> None:
    snapshot = situations.shared()
    found = of(snapshot, labels=frozenset(ask))
    labels = {label for family in found.values() for sample in family.samples for label in sample.labels}
    assert {"user", "script"} <= labels if ask else not labels & {"user", "script", "sentence"}


def test_hostile_names_are_printable_and_short() -> None:
    found = of(situations.hostile_names(), labels=frozenset({"user", "script", "sentence"}))
    values = [value for family in found.values() for sample in family.samples for value in sample.labels.values()]
    assert all(value.isprintable() for value in values)
    assert max(map(len, values)) <= 240


def test_findings_lead_to_their_gpu_or_run() -> None:
    found = of(situations.straggler())["gpuwatch_finding_active"]
    (straggler,) = (sample for sample in found.samples if sample.labels["rule"] == "straggler-rank")
    assert straggler.labels["severity"] == "critical" and straggler.labels["run"]
