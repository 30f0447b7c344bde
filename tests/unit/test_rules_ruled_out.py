"""The decision trees name what else could be the cause and is not, and rule out nothing that they do not know."""

from __future__ import annotations

from typing import Any

import pytest
from scene_builder import (
    START_NS,
    check,
    findings,
    gpu,
    host,
    loader,
    phase,
    process,
    rank,
    run,
    run_case,
    scene,
    workers,
)

from gpuwatch.diagnosis.advice.rivals import CAUSE_OF, idle_rivals
from gpuwatch.diagnosis.rule import gpu_case_of
from gpuwatch.diagnosis.rules import all_rules
from gpuwatch.samples import GpuHealth, GpuProcess, GpuStatus
from gpuwatch.timeline.windows import Scene
from tests.rule_pages.pages import FOLDER

STARVATION = (
    "data-starvation",
    "workers-zero",
    "slow-samples",
    "slow-worker",
    "pin-thread-bound",
    "io-bound",
    "cpu-quota-throttled",
    "worker-affinity-pinned",
    "thread-oversubscription",
    "too-many-workers",
    "host-cpu-exhausted",
    "workers-too-few",
    "worker-cpu-bound",
    "slow-collate-ipc",
    "bursty-prefetch",
    "epoch-start-stall",
)
IDLE = (
    "low-util",
    "util-fluctuation",
    "collective-hang",
    "step-stalled",
    "checkpoint-stall",
    "log-stall",
    "gc-stall",
    "eval-stall",
    "launch-bound",
    "sync-per-step",
    "noisy-neighbour",
    "pageable-transfer",
    "pcie-degraded",
    "h2d-bound",
    "straggler-rank",
    "comm-bound",
    "low-power-high-util",
    "amp-off",
    "tf32-off",
    "compile-off",
    "batch-headroom",
)
CONFOUNDERS = ("another process", "heat and power", "hardware errors", "phases")


@pytest.mark.parametrize("rule_id", [*STARVATION, *IDLE])
def test_a_finding_of_the_trees_names_what_it_is_not(rule_id: str) -> None:
    """The example of a rule's page is what the rule said when it was run."""
    example = (FOLDER / f"{rule_id}.md").read_text(encoding="utf-8").split("```text\n")[1]
    assert "ruled out: " in example


def idling(*, of_rank: dict[str, Any] | None = None, **of_gpu: Any) -> Scene:
    """A GPU that idles half of its time, of which everything is known and nothing is the cause."""
    own = GpuProcess(host_pid=4711, pid=4711, memory_bytes=2**30)
    known: dict[str, Any] = {
        "latest_status": GpuStatus(START_NS, "GPU-0", processes=(own,)),
        "latest_health": GpuHealth(START_NS, "GPU-0", ecc_uncorrected_volatile=0),
        "throttle_shares": {"power": 0.0, "sw-thermal": 0.01},
    }
    trained: dict[str, Any] = {
        "gap": 0.004,
        "copy_share": 0.01,
        "phases": {"eval": phase("eval", share=0.02), "gc": phase("gc", share=0.001, longest_seconds=0.01)},
    }
    return scene(run(rank(**(trained | (of_rank or {})))), gpus=[gpu(utilization=50, **(known | of_gpu))])


def ruled_out(moment: Scene, *holding: str) -> dict[str, str]:
    case = gpu_case_of(moment, moment.gpus[0], frozenset(holding))
    return {rival.cause: rival.reason for rival in idle_rivals(case)}


def test_every_explanation_comes_with_its_number() -> None:
    assert ruled_out(idling()) == {
        "waiting for data": "it takes 2% of the training time",
        "phases": "of the time evaluation 2% and garbage collection 0.1%",
        "transfer": "copies to the GPU take 1%",
        "launches": "the training thread keeps 0.5 of a core busy",
        "another process": "no other process computes on this GPU",
        "heat and power": "they hold the clocks back 1% of the time",
        "hardware errors": "the driver counts no uncorrected memory error and reported no XID",
    }


@pytest.mark.parametrize(
    ("cause", "moment"),
    [
        ("waiting for data", idling(of_rank={"gap": None, "settled_wait_share": None})),
        ("phases", idling(of_rank={"phases": {}})),
        ("transfer", idling(of_rank={"copy_share": None})),
        ("launches", idling(of_rank={"process": process(main_thread_cores=None)})),
        ("another process", idling(latest_status=None)),
        ("heat and power", idling(throttle_shares={})),
        ("hardware errors", idling(latest_health=GpuHealth(START_NS, "GPU-0"))),
    ],
)
def test_what_is_not_known_rules_out_nothing(cause: str, moment: Scene) -> None:
    assert cause in ruled_out(idling()) and cause not in ruled_out(moment)


@pytest.mark.parametrize(
    ("cause", "moment"),
    [
        ("waiting for data", idling(of_rank={"gap": 0.04})),
        ("phases", idling(of_rank={"phases": {"eval": phase("eval", share=0.2)}})),
        ("transfer", idling(of_rank={"copy_share": 0.2})),
        ("launches", idling(of_rank={"process": process(main_thread_cores=0.99)})),
        ("another process", idling(latest_status=GpuStatus(START_NS, "GPU-0", processes=(GpuProcess(9, pid=9),)))),
        ("heat and power", idling(throttle_shares={"hw-thermal": 0.3})),
        ("hardware errors", idling(latest_health=GpuHealth(START_NS, "GPU-0", ecc_uncorrected_volatile=2))),
    ],
)
def test_what_could_be_the_cause_is_not_ruled_out(cause: str, moment: Scene) -> None:
    assert cause not in ruled_out(moment)


@pytest.mark.parametrize(("rule_id", "cause"), CAUSE_OF.items())
def test_what_a_rule_that_holds_explains_is_not_ruled_out(rule_id: str, cause: str) -> None:
    assert cause not in ruled_out(idling(), rule_id)


def test_the_explanations_are_those_of_rules() -> None:
    assert {rule.id for rule in all_rules()} >= CAUSE_OF.keys()


def test_confounders_are_ruled_out_beside_low_utilization() -> None:
    (low,) = [finding for finding in findings(idling()) if finding.rule == "low-util"]
    assert {rival.cause for rival in low.ruled_out} >= set(CONFOUNDERS)


def test_a_cause_that_is_found_by_itself_rules_out_the_others_when_it_is_that_of_a_wait() -> None:
    few = rank(loader=loader(num_workers=8, batches_per_epoch=10), workers=workers(8, busy_share=0.3, cpu_cores=0.2))
    full = {"shm_total_bytes": 2**30, "shm_used_bytes": int(0.97 * 2**30)}
    short = host(memory_available_share=0.05)
    for rule_id, moment in (
        ("epoch-too-short", scene(run(few))),
        ("shm-pressure", scene(run(rank(process=process(latest=full))))),
        ("host-memory-pressure", scene(run(rank()), host=short)),
    ):
        alone, waiting = check(rule_id, run_case(moment)), check(rule_id, run_case(moment, holding={"data-starvation"}))
        assert alone is not None and alone.ruled_out == ()
        assert waiting is not None and waiting.ruled_out
