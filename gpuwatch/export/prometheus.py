"""A snapshot as Prometheus metric families.

Families of GPUs, the host and runs follow from the rows of `gpuwatch.metrics`: "gpu.sm_clock_mhz" becomes
`gpuwatch_gpu_sm_clock_hertz`. What is unknown, or no longer measured, has no sample. Labels hold no command line, user
name or path unless `labels` asks for them, and the number of series is bounded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family

from gpuwatch import __version__
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.diagnosis.rules import all_rules
from gpuwatch.metrics import BY_SERIES, GPU, HOST, Metric
from gpuwatch.monitor.monitor import SourceHealth
from gpuwatch.monitor.snapshot import STEPLESS, GpuNow, RankNow, RunNow, Snapshot
from gpuwatch.samples import NvmlState
from gpuwatch.text import printable

Ask = Literal["user", "script", "sentence"]
ASKS: Mapping[Ask, str] = {
    "user": "who has each GPU and each run",
    "script": "the title of each run, such as train.py",
    "sentence": "the sentence of each finding, which may name users, scripts and lines of code",
}
"""What labels may hold if it is asked for."""

STALE_SECONDS = 10.0
"""A snapshot that is older says nothing of now: only gpuwatch's own health is left."""

_STATUS_SECONDS, _HEALTH_SECONDS = 30.0, 120.0  # several polls of the lanes of 5 s and 30 s
_ENDED_SECONDS = 300.0
_MOST = {"gpus": 128, "runs": 64, "ranks": 256, "findings": 128}
_LONGEST_LABEL = 80
_LONGEST_SENTENCE = 240

_UNITS = {
    "%": ("_percent", "_ratio", 1.0, 100.0),
    "share": ("_share", "_ratio", 1.0, 1.0),
    "MHz": ("_mhz", "_hertz", 1e6, 1.0),
    "ns": ("_ns", "_seconds", 1.0, 1e9),
}
"""Unit -> the end of a metric's name, the base unit in its place, and by what values are multiplied and divided."""

_NAMES = {"nvlink_count": "nvlinks", "nvlink_active": "nvlinks_active"}
"""Where the field's name ends as only a histogram's may."""

_BASE_UNITS = ("ratio", "hertz", "seconds", "bytes", "watts", "joules", "celsius")

_THROTTLED = "throttled_"
_NOT_NUMBERS = "mask"

_RUN_ROWS = tuple(BY_SERIES[f"run.{name}"] for name in ("wait_share", "step_seconds", "samples_per_second"))
_PARTS = ("wait", "copy", "forward", "backward", "optimizer", "start", "sync", "other")
_STANDS_STILL = STEPLESS | {"ended", "stopped"}
"""States in which a run's rates are those of before."""

FindingKey = tuple[str, str | None, str | None]


class Sentences:
    """The sentence of each active finding as it read when it began or changed its severity.

    Its numbers change with each evaluation, and every wording would be a new series.
    """

    def __init__(self) -> None:
        self._kept: dict[FindingKey, tuple[object, str]] = {}

    def take(self, snapshot: Snapshot) -> None:
        """Takes a new snapshot."""
        before = self._kept
        now: dict[FindingKey, tuple[object, str]] = {}
        for found in snapshot.findings:
            key = key_of(found)
            known = before.get(key)
            is_same = known is not None and known[0] == (found.severity, found.since_ns)
            now[key] = known if known is not None and is_same else ((found.severity, found.since_ns), found.summary)
        self._kept = now

    def of(self, found: Finding) -> str:
        """The sentence of a finding; from any thread."""
        kept = self._kept.get(key_of(found))
        return found.summary if kept is None else kept[1]


def key_of(found: Finding) -> FindingKey:
    """Its rule and its subject."""
    return found.rule, found.run, found.gpu


class Shape(NamedTuple):
    """What a row of the registry is in Prometheus: a family's name, without `_total`, and its labels."""

    name: str
    labels: tuple[tuple[str, str], ...]
    times: float
    by: float
    is_counter: bool

    def value(self, stored: float) -> float:
        """A value in the base unit."""
        return round(stored * self.times / self.by, 9)  # 53.3 / 100 is 0.5329999999999999


def shape_of(metric: Metric) -> Shape:
    """How a row is exported."""
    end, unit, times, by = _UNITS.get(metric.unit, ("", "", 1.0, 1.0))
    name = _NAMES.get(metric.name, metric.name.removesuffix(end) + unit)
    labels: tuple[tuple[str, str], ...] = ()
    if metric.name.startswith(_THROTTLED):
        labels = (("reason", metric.name.removeprefix(_THROTTLED).removesuffix(end)),)
        name = _THROTTLED.removesuffix("_") + unit
    return Shape(f"gpuwatch_{metric.subject}_{name}", labels, times, by, metric.kind == "counter")


class _Families:
    """Families in the order in which they were first named; those without a sample are left out."""

    def __init__(self, more: Mapping[str, str]) -> None:
        self._more = more
        self._found: dict[str, Family] = {}

    def add(
        self, name: str, help: str, value: float | None, labels: Mapping[str, str], *, counter: bool = False
    ) -> None:
        """A sample; None and what is no number are left out."""
        if value is None or not math.isfinite(value):
            return
        family = self._found.get(name)
        if family is None:
            unit = next((unit for unit in _BASE_UNITS if name.endswith(f"_{unit}")), "")
            family = (CounterMetricFamily if counter else GaugeMetricFamily)(name, help, unit=unit)
            self._found[name] = family
        family.add_sample(f"{name}_total" if counter else name, {**labels, **self._more}, value)

    def info(self, name: str, help: str, labels: Mapping[str, str | None]) -> None:
        """An info sample of the labels that are known."""
        family = self._found.get(name)
        if family is None:
            family = self._found[name] = InfoMetricFamily(name, help)
        known = {label: _text(value) for label, value in labels.items() if value}
        family.add_sample(f"{name}_info", {**known, **self._more}, 1.0)

    def row(self, metric: Metric, value: float | None, labels: Mapping[str, str]) -> None:
        """A sample of a row of the registry."""
        shape = _SHAPES[metric.series]
        scaled = None if value is None else shape.value(value)
        help = _THROTTLED_HELP if shape.labels else metric.help
        self.add(shape.name, help, scaled, {**labels, **dict(shape.labels)}, counter=shape.is_counter)

    def all(self) -> list[Family]:
        return list(self._found.values())


_SHAPES = {series: shape_of(metric) for series, metric in BY_SERIES.items()}
_THROTTLED_HELP = "Time in which the GPU was slowed down, by reason; reasons may overlap."


def families(
    snapshot: Snapshot,
    *,
    now_ns: int,
    sources: Sequence[SourceHealth] = (),
    labels: frozenset[Ask] = frozenset(),
    sentences: Sentences | None = None,
) -> list[Family]:
    """All that a snapshot says.

    Args:
        snapshot: the newest one.
        now_ns: the monitor's time now; readings of a snapshot that is older than STALE_SECONDS are left out.
        sources: how the monitor's sources do.
        labels: what labels may name beyond numbers and rules.
        sentences: those of the findings, for "sentence"; without it the newest ones.
    """
    made_up = snapshot.origin.kind == "simulated"
    found = _Families({"simulated": snapshot.origin.label.partition(" ")[2]} if made_up else {})
    _health(found, snapshot, now_ns, sources)
    if (now_ns - snapshot.time_ns) / 1e9 <= STALE_SECONDS:
        runs = _shown_runs(snapshot)
        names = {run.id: name_of(run) for run in snapshot.runs}
        _gpus(found, snapshot, now_ns, labels)
        _host(found, snapshot)
        _runs(found, runs[: _MOST["runs"]], snapshot, names, labels)
        _ranks(found, runs[: _MOST["runs"]], names)
        _findings(found, snapshot, names, labels, sentences or Sentences())
        _left_out(found, snapshot, runs)
    return found.all()


def name_of(run: RunNow) -> str:
    """The `run` label: of a job of several ranks its first one's, since the name of a group is any text."""
    if not run.ranks:
        return _text(run.id)
    first = min(run.ranks, key=lambda rank: (rank.facts.rank is None, rank.facts.rank or 0, rank.trainer))
    return _text(first.trainer)


def _health(found: _Families, snapshot: Snapshot, now_ns: int, sources: Sequence[SourceHealth]) -> None:
    """The exporter's own: what works, how old the readings are, what the driver is asked."""
    found.info("gpuwatch_build", "The gpuwatch that answers.", {"version": __version__})
    for source in sources:
        is_nvml = source.name == "nvml"
        works = source.works and not (is_nvml and (snapshot.nvml is None or snapshot.nvml.status != "ok"))
        label = {"collector": source.name}
        found.add("gpuwatch_collector_up", "Whether a part of gpuwatch works, 0 or 1.", float(works), label)
        found.add("gpuwatch_collector_duration_seconds", "How long its last collection took.", source.seconds, label)
    ages: dict[str, int | None] = {
        "snapshot": snapshot.time_ns,
        "gpu": max((gpu.latest.time_ns for gpu in snapshot.gpus if gpu.latest is not None), default=None),
        "host": None if snapshot.host is None else snapshot.host.time_ns,
        "diagnosis": None if snapshot.scene is None else snapshot.scene.now_ns,
    }
    for name, time_ns in ages.items():
        age = None if time_ns is None else max(0, now_ns - time_ns) / 1e9
        found.add("gpuwatch_sample_age_seconds", "How old the newest data of each kind are.", age, {"of": name})
    if snapshot.nvml is not None:
        _nvml(found, snapshot.nvml)


def _nvml(found: _Families, nvml: NvmlState) -> None:
    found.info(
        "gpuwatch_driver",
        "The NVIDIA driver.",
        {"driver_version": nvml.driver_version, "cuda_version": nvml.cuda_version},
    )
    for name, help, count in (
        ("calls", "Calls of the driver library.", nvml.calls),
        ("call_seconds", "Time spent in the driver library.", nvml.call_seconds),
        ("missed_polls", "Polls that the driver did not answer in time.", nvml.missed_polls),
        ("restarts", "Restarts of the child process that asks the driver.", nvml.restarts),
    ):
        found.add(f"gpuwatch_nvml_{name}", help, float(count), {}, counter=True)


def _gpus(found: _Families, snapshot: Snapshot, now_ns: int, labels: frozenset[Ask]) -> None:
    gpus = snapshot.gpus[: _MOST["gpus"]]
    for gpu in gpus:
        label, facts = _gpu_label(gpu), gpu.facts
        found.info(
            "gpuwatch_gpu",
            "A GPU, or a MIG instance of one.",
            {**label, "name": facts.name, "pci_bus_id": facts.pci_bus_id, "mig_profile": facts.mig_profile},
        )
        found.add("gpuwatch_gpu_up", "Whether it answers, 0 or 1.", float(gpu.status == "live"), label)
        heard_ns = None if gpu.latest is None else gpu.latest.time_ns
        age = None if heard_ns is None else max(0, now_ns - heard_ns) / 1e9
        found.add("gpuwatch_gpu_sample_age_seconds", "How old its newest reading is.", age, label)
    live = [gpu for gpu in gpus if gpu.status == "live"]
    lanes = [(gpu, _gpu_label(gpu), _fresh(gpu, now_ns)) for gpu in live]
    for metric in GPU.values():
        if metric.kind == _NOT_NUMBERS:
            continue
        for _, label, fresh in lanes:
            values = (getattr(lane, metric.name, None) for lane in fresh)
            found.row(metric, next((value for value in values if value is not None), None), label)
    for gpu, label, _ in lanes:
        _use(found, gpu, label, snapshot.time_ns, labels)


def _gpu_label(gpu: GpuNow) -> dict[str, str]:
    return {"gpu": gpu.facts.label, "UUID": _text(gpu.facts.uuid)}


def _fresh(gpu: GpuNow, now_ns: int) -> tuple[object, ...]:
    """What holds its readings, newest lane first, without what is too old to speak of now."""
    lanes = ((gpu.latest, math.inf), (gpu.latest_status, _STATUS_SECONDS), (gpu.latest_health, _HEALTH_SECONDS))
    fresh = [lane for lane, most in lanes if lane is not None and (now_ns - lane.time_ns) / 1e9 <= most]
    return (*fresh, gpu.facts)


def _use(found: _Families, gpu: GpuNow, label: Mapping[str, str], now_ns: int, labels: frozenset[Ask]) -> None:
    for word in gpu.throttled_by:
        found.add("gpuwatch_gpu_slowed", "1 for each reason that slows it down now.", 1.0, {**label, "reason": word})
    if gpu.use != "unknown":
        found.add(
            "gpuwatch_gpu_use",
            "1 for what it is used for: busy; held, that is idle while processes have it; free.",
            1.0,
            {**label, "use": gpu.use},
        )
    idle = None if gpu.idle_since_ns is None else max(0, now_ns - gpu.idle_since_ns) / 1e9
    found.add("gpuwatch_gpu_idle_seconds", "For how long it has done nothing, at least.", idle, label)
    processes = gpu.processes
    if processes is None:
        return
    found.add("gpuwatch_gpu_processes", "Processes on it.", float(len(processes)), label)
    if "user" in labels:
        held: dict[str, float] = defaultdict(float)
        for process in processes:
            if process.user and process.memory_bytes is not None:
                held[_text(process.user)] += process.memory_bytes
        for user, held_bytes in sorted(held.items(), key=lambda each: -each[1])[:32]:
            found.add("gpuwatch_gpu_user_memory_bytes", "Device memory by user.", held_bytes, {**label, "user": user})


def _host(found: _Families, snapshot: Snapshot) -> None:
    if snapshot.host is None or (snapshot.time_ns - snapshot.host.time_ns) / 1e9 > STALE_SECONDS:
        return
    for metric in HOST.values():
        found.row(metric, getattr(snapshot.host, metric.name), {})


def _shown_runs(snapshot: Snapshot) -> list[RunNow]:
    """The living ones first, without those that ended 5 min ago: their series end."""
    kept = [
        run
        for run in snapshot.runs
        if run.ended_ns is None or (snapshot.time_ns - run.ended_ns) / 1e9 <= _ENDED_SECONDS
    ]
    return sorted(kept, key=lambda run: run.state == "ended")


def _runs(
    found: _Families, runs: Sequence[RunNow], snapshot: Snapshot, names: Mapping[str, str], labels: frozenset[Ask]
) -> None:
    users = {
        process.pid: process.user for gpu in snapshot.gpus for process in gpu.processes or () if process.pid is not None
    }
    for run in runs:
        label = {"run": names[run.id]}
        asked: dict[str, str | None] = {}
        if "script" in labels:
            asked["script"] = run.title
        if "user" in labels:
            asked["user"] = _user(run, users)
        found.info(
            "gpuwatch_run",
            "A training run, and how well it is seen.",
            {**label, "visibility": run.visibility, "gpus": ",".join(map(str, run.gpu_indices)), **asked},
        )
        found.add("gpuwatch_run_state", "1 for what it does now.", 1.0, {**label, "state": run.state_words})
        found.add("gpuwatch_run_ranks", "Processes that train.", float(len(run.ranks)), label)
        found.add(
            "gpuwatch_run_steps",
            "Steps made; of a sampled run, batches.",
            float(run.steps_total) if run.last_step_ns is not None else None,
            label,
            counter=True,
        )
        silent = None if run.last_step_ns is None else max(0, snapshot.time_ns - run.last_step_ns) / 1e9
        found.add("gpuwatch_run_last_step_age_seconds", "How long ago the last step ended.", silent, label)
        if run.state not in _STANDS_STILL:
            _rates(found, run, label)


def _rates(found: _Families, run: RunNow, label: Mapping[str, str]) -> None:
    for metric in _RUN_ROWS:
        found.row(metric, getattr(run, metric.name), label)
    for name, help, value in (
        ("step_p50_seconds", "Median duration of a step.", run.step_seconds_p50),
        ("step_p95_seconds", "95th percentile of the duration of a step.", run.step_seconds_p95),
        ("gpu_idle_ratio", "Share of training time in which the GPU idled because of a wait.", run.gap_share),
        ("pause_ratio", "Share of all time in evaluation, checkpoints and the like.", run.phase_share),
        ("batches_per_second", "Batches counted from outside.", run.batches_per_second),
    ):
        found.add(f"gpuwatch_run_{name}", help, value, label)
    for part in _PARTS[1:]:
        value = getattr(run, f"{part}_share")
        found.add("gpuwatch_run_part_ratio", "Share of training time of a part.", value, {**label, "part": part})


def _user(run: RunNow, users: Mapping[int, str | None]) -> str | None:
    name = users.get(run.pid)
    if name is None and run.ranks and run.ranks[0].facts.user is not None:
        name = str(run.ranks[0].facts.user)
    return name


def _ranks(found: _Families, runs: Sequence[RunNow], names: Mapping[str, str]) -> None:
    for run, rank in _shown_ranks(runs)[: _MOST["ranks"]]:
        label = {"run": names[run.id], "rank": str(rank.facts.rank)}
        if rank.last_step_ns is not None:
            found.add("gpuwatch_rank_steps", "Steps of a rank.", float(rank.steps_total), label, counter=True)
        if rank.state not in _STANDS_STILL:
            found.add("gpuwatch_rank_step_seconds", "Mean training time of its steps.", rank.step_seconds, label)
            found.add("gpuwatch_rank_wait_ratio", "Share of its time that waits for data.", rank.wait_share, label)


def _shown_ranks(runs: Iterable[RunNow]) -> list[tuple[RunNow, RankNow]]:
    """Those that say which one they are, of runs of several: of one alone the run says all."""
    return [(run, rank) for run in runs if len(run.ranks) > 1 for rank in run.ranks if rank.facts.rank is not None]


def _findings(
    found: _Families,
    snapshot: Snapshot,
    names: Mapping[str, str],
    labels: frozenset[Ask],
    sentences: Sentences,
) -> None:
    index = {gpu.facts.uuid: gpu.facts.label for gpu in snapshot.gpus}
    titles = {rule.id: rule.title for rule in all_rules()} if snapshot.findings else {}
    for finding in snapshot.findings[: _MOST["findings"]]:
        label = {
            "rule": finding.rule,
            "gpu": index.get(finding.gpu, "") if finding.gpu else "",
            "run": names.get(finding.run, "") if finding.run else "",
        }
        severity = finding.severity.value
        found.add("gpuwatch_finding_active", "1 for each finding.", 1.0, {**label, "severity": severity})
        said = {"title": titles.get(finding.rule)}
        if "sentence" in labels:
            said["sentence"] = shortened(printable(sentences.of(finding)), _LONGEST_SENTENCE)
        family = "gpuwatch_finding"
        found.info(family, "What each finding means; its sentence is of when it began.", {**label, **said})
        if finding.gain is not None:
            for bound, factor in (("low", finding.gain.low), ("high", finding.gain.high)):
                found.add(
                    "gpuwatch_finding_speedup_ratio",
                    "How many times as fast the fix should make the run.",
                    factor,
                    {**label, "bound": bound},
                )


def _left_out(found: _Families, snapshot: Snapshot, runs: Sequence[RunNow]) -> None:
    counts = {
        "gpus": len(snapshot.gpus),
        "runs": len(runs),
        "ranks": len(_shown_ranks(runs)),
        "findings": len(snapshot.findings),
    }
    for what, count in counts.items():
        over = float(max(0, count - _MOST[what]))
        found.add("gpuwatch_exporter_left_out", "How many there are beyond those that are shown.", over, {"of": what})


def _text(value: str) -> str:
    return shortened(printable(value), _LONGEST_LABEL)


def shortened(text: str, most: int) -> str:
    """The text, with an ellipsis in the place of what is longer."""
    return text if len(text) <= most else text[: most - 1] + "…"
