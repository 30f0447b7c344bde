"""For each rule a finding of it, made by really running the rules: over a simulated stream, or over a scene."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.clock import Clock, VirtualClock
from gpuwatch.monitor.monitor import Monitor, Source
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.report.build import build_report
from gpuwatch.report.observation import Observation
from gpuwatch.report.text import render_text
from gpuwatch.sources.simulator.scenarios import SCENARIOS as DEMOS
from gpuwatch.sources.simulator.source import SimulatorSource
from gpuwatch.timeline.windows import Scene
from tests.rule_pages.scenes import SCENES
from tests.scenarios.catalogue import SCENARIOS
from tests.scenarios.stream import SECOND_NS, StreamSource
from tests.unit.scene_builder import later

START_NS = 86_400 * SECOND_NS
SETTLED_SECONDS = 70
"""From here on the window is full: the figures are those of a run that goes on."""
MOST_SECONDS = 460
WALL_TIME = 1_770_000_000.0
EVALUATIONS = 130
"""As many as the most patient rule asks for: ten minutes, 5 s apart."""

STREAMS = {
    "data-starvation": "01-w0-heavy",
    "workers-zero": "01-w0-heavy",
    "low-util": "01-w0-heavy",
    "util-fluctuation": "02-w0-moderate",
    "workers-too-few": "04-few-3of16",
    "host-cpu-exhausted": "06-cpu-exhausted",
    "too-many-workers": "07-too-many-28on8",
    "cpu-quota-throttled": "08-quota",
    "io-bound": "09-io-bound",
    "thread-oversubscription": "10-threads",
    "slow-samples": "11-slow-samples",
    "slow-worker": "35-slow-worker",
    "epoch-start-stall": "12-epoch-short",
    "checkpoint-stall": "13-ckpt-stall",
    "log-stall": "14-log-stall",
    "gc-stall": "15-gc-stall",
    "periodic-dips": "15-gc-stall",
    "eval-stall": "16-eval-cpu-heavy",
    "launch-bound": "17-launch-bound",
    "loop-code": "36-loop-code",
    "sync-per-step": "18-sync-exposes-load",
    "low-power-high-util": "19-fp32-small",
    "amp-off": "19-fp32-small",
    "tf32-off": "19-fp32-small",
    "compile-off": "19-fp32-small",
    "optimizer-unfused": "19-fp32-small",
    "pageable-transfer": "21-pageable",
    "step-stalled": "22-step-stalled",
    "thermal-throttle": "23-thermal",
    "hw-slowdown": "24-power-brake",
    "gpu-imbalance": "25-imbalance",
    "shared-gpu": "27-shared",
    "gpu-memory-creep": "28-creep",
    "shm-pressure": "29-shm",
    "recompile-storm": "31-recompile",
    "xid-error": "32-xid79",
    "ecc-or-remap": "32-ecc",
    "step-time-regression": "33-regression",
    "metrics-limited": "34-mig-no-util",
    "worker-cpu-bound": "augmentation",
    "straggler-rank": "eight-gpus",
    "collective-hang": "hang",
}
"""By rule, the stream of the suite or of the demo that it speaks on."""


@dataclass(frozen=True, slots=True)
class Example:
    """A finding as the text report shows it, and where it comes from."""

    origin: str
    text: str


def example(rule_id: str) -> Example:
    """The example of a rule.

    Raises:
        LookupError: the rule is silent on the scene or stream that is meant for it.
    """
    if rule_id in SCENES:
        return _of_scene(rule_id)
    name = STREAMS[rule_id]
    source: Source
    if name in DEMOS:
        origin, source = f"`gpuwatch demo {name}`", SimulatorSource(name, seed=0, start_ns=START_NS)
    else:
        scenario = SCENARIOS[name]
        origin = f"the simulated stream `{name}` ({scenario.title})"
        source = StreamSource(scenario.job, name, START_NS)
    return _of_stream(rule_id, origin, source)


def _of_scene(rule_id: str) -> Example:
    engine, moment = Engine(), SCENES[rule_id]()
    for number in range(EVALUATIONS):
        seen = later(moment, 5.0 * number)
        for finding in engine.evaluate(seen):
            if finding.rule == rule_id:
                return Example("a made-up window", _shown(_snapshot(seen, finding), seen))
    raise LookupError(f"{rule_id} says nothing of its scene")


def _of_stream(rule_id: str, origin: str, source: Source) -> Example:
    clock: Clock = VirtualClock(START_NS)
    monitor = Monitor([source], origin=Origin("simulated", "example"), clock=clock, engine=Engine())

    def speaks() -> bool:
        snapshot = monitor.snapshot()
        is_settled = snapshot.time_ns - START_NS >= SETTLED_SECONDS * SECOND_NS
        return is_settled and any(found.rule == rule_id and found.state == "firing" for found in snapshot.findings)

    try:
        monitor.run_until(START_NS + MOST_SECONDS * SECOND_NS, stop=speaks)
        snapshot = monitor.snapshot()
    finally:
        monitor.stop()
    for finding in snapshot.findings:
        if finding.rule == rule_id and snapshot.scene is not None:
            return Example(origin, _shown(_snapshot(snapshot.scene, finding), snapshot.scene))
    raise LookupError(f"{rule_id} says nothing of {origin}")


def _snapshot(seen: Scene, finding: Finding) -> Snapshot:
    return Snapshot(
        time_ns=seen.now_ns,
        wall_time=WALL_TIME,
        started_ns=seen.started_ns,
        origin=Origin("simulated", "example"),
        machine=seen.machine,
        nvml=None,
        host=seen.host.latest if seen.host else None,
        gpus=(),
        runs=(),
        findings=(finding,),
        scene=seen,
    )


def _shown(snapshot: Snapshot, seen: Scene) -> str:
    """The block of findings of the text report."""
    text = render_text(build_report(Observation(snapshot=snapshot, scene=seen)))
    block = text.split("\nFINDINGS\n", 1)[1].split("\n\n", 1)[0]
    return "\n".join(line.removeprefix("  ") for line in block.splitlines())
