"""The catalogue of rules that gpuwatch was built from: each is there, with its level, severities and thresholds."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.cli.explain import sections
from gpuwatch.diagnosis.finding import Severity
from gpuwatch.diagnosis.rules import all_rules, rule_by_id
from gpuwatch.diagnosis.thresholds import declared

CRITICAL, WARNING, INFO, HINT = "critical", "warning", "info", "hint"

CATALOGUE: dict[str, tuple[str, set[str], dict[str, float]]] = {
    "data-starvation": (
        "E3",
        {CRITICAL, WARNING, INFO},
        {"fire_share": 0.10, "clear_share": 0.06, "critical_share": 0.20},
    ),
    "workers-zero": ("E1", {WARNING}, {}),
    "workers-too-few": ("E2", {WARNING}, {"busy_share": 0.85, "free_cores": 2, "room_share": 0.7, "comb": 0.6}),
    "worker-cpu-bound": ("E1", {WARNING}, {"worker_cores": 0.85}),
    "host-cpu-exhausted": ("E1", {WARNING, INFO}, {"cpu_percent": 90, "clear_cpu_percent": 80, "pressure_percent": 40}),
    "too-many-workers": ("E1", {WARNING, INFO}, {"workers_per_core": 1.2, "pressure_percent": 20, "lost_share": 0.05}),
    "thread-oversubscription": (
        "E1",
        {WARNING, INFO},
        {"threads_per_core": 2, "clear_threads_per_core": 1.2, "system_share": 0.25, "load_per_core": 2},
    ),
    "cpu-quota-throttled": ("E1", {WARNING}, {"fire_share": 0.25, "clear_share": 0.10, "lost_share": 0.05}),
    "worker-affinity-pinned": ("E1", {WARNING}, {"pinned_cores": 2, "own_cores": 4}),
    "io-bound": (
        "E1",
        {WARNING},
        {"blocked_share": 0.3, "clear_blocked_share": 0.15, "pressure_percent": 20, "clear_pressure_percent": 10},
    ),
    "slow-samples": ("E2", {WARNING}, {"fire_share": 0.05, "clear_share": 0.03, "steps": 200, "held_share": 0.75}),
    "bursty-prefetch": ("E2", {INFO}, {"fire_share": 0.05, "clear_share": 0.03, "busy_share": 0.85}),
    "epoch-start-stall": ("E2", {WARNING}, {"fire_share": 0.05, "clear_share": 0.03}),
    "epoch-too-short": ("E1", {INFO}, {"batches_per_worker": 2}),
    "slow-collate-ipc": ("E1", {WARNING}, {"collate_share": 0.30, "receiving_share": 0.10}),
    "shm-pressure": ("E1", {CRITICAL, WARNING}, {"fire_share": 0.80, "clear_share": 0.60, "critical_share": 0.95}),
    "worker-memory-growth": ("E1", {WARNING}, {"fit": 0.8, "fire_seconds": 7200, "full_share": 0.90}),
    "loader-overhead-floor": ("E2", {INFO}, {"step_seconds": 0.020, "wait_seconds": 0.005}),
    "noisy-neighbour": (
        "E1",
        {WARNING, INFO},
        {"fire_share": 0.10, "clear_share": 0.05, "pressure_percent": 20, "cpu_percent": 80, "in_line_share": 0.05},
    ),
    "host-memory-pressure": (
        "E0",
        {WARNING},
        {"free_share": 0.10, "clear_free_share": 0.20, "used_share": 0.90, "faults_per_second": 500},
    ),
    "numa-misplaced": ("E1", {INFO}, {"fire_share": 0.80, "clear_share": 0.50}),
    "h2d-bound": (
        "E3",
        {CRITICAL, WARNING, HINT},
        {"fire_share": 0.10, "critical_share": 0.20, "clear_share": 0.06, "link_share": 0.70},
    ),
    "pageable-transfer": ("E2", {INFO}, {"fire_share": 0.05, "clear_share": 0.03, "free_memory_share": 0.20}),
    "pcie-degraded": ("E0", {WARNING}, {"loaded_percent": 50}),
    "sync-per-step": ("E3", {WARNING, INFO, HINT}, {"fire_share": 0.05, "clear_share": 0.03, "warning_share": 0.10}),
    "launch-bound": ("E2", {WARNING}, {"fire_share": 0.15, "clear_share": 0.08, "thread_cores": 0.85}),
    "debug-mode-on": ("E1", {WARNING, INFO}, {"session_seconds": 300}),
    "low-power-high-util": ("E0", {INFO}, {"fire_share": 0.60, "clear_share": 0.70}),
    "amp-off": ("E2", {INFO}, {"steps": 50}),
    "tf32-off": ("E2", {HINT}, {"matmul_share": 0.20}),
    "compile-off": ("E2", {HINT}, {}),
    "recompile-storm": ("E2", {CRITICAL, WARNING}, {"compiles": 3, "fire_share": 0.05}),
    "cudnn-benchmark": ("E2", {HINT}, {"shapes": 8}),
    "channels-last-off": ("E2", {HINT}, {}),
    "optimizer-unfused": ("E2", {HINT}, {"fire_share": 0.10, "clear_share": 0.05}),
    "shape-misaligned": ("E2", {HINT}, {"parameter_share": 0.05}),
    "gpu-unused": ("E0", {WARNING}, {"cores": 1, "age_seconds": 120}),
    "batch-headroom": ("E2", {HINT}, {"fire_share": 0.50, "clear_share": 0.65, "steps": 200}),
    "memory-near-limit": ("E0", {WARNING, INFO}, {"fire_share": 0.92, "warning_share": 0.97, "clear_share": 0.88}),
    "alloc-retries": ("E2", {WARNING}, {"retries_per_step": 0.01}),
    "gpu-memory-creep": (
        "E2",
        {WARNING},
        {"steps": 800, "grown_bytes": 512 * 2**20, "grown_share": 0.06, "share_per_100_steps": 0.015},
    ),
    "low-util": ("E0", {INFO}, {"fire_percent": 85, "clear_percent": 88, "hardly_percent": 30}),
    "util-fluctuation": (
        "E0",
        {INFO},
        {
            "sigma_points": 10, "clear_sigma_points": 7, "swing_points": 20, "clear_swing_points": 15,
            "lost_points": 8, "clear_lost_points": 5,
        },
    ),
    "eval-stall": ("E1", {WARNING, INFO}, {"fire_share": 0.25, "clear_share": 0.15, "starved_share": 0.05}),
    "checkpoint-stall": ("E1", {WARNING}, {"fire_share": 0.05, "clear_share": 0.03, "checkpoints": 2}),
    "log-stall": ("E1", {WARNING, HINT}, {"fire_share": 0.05, "clear_share": 0.03}),
    "gc-stall": ("E2", {WARNING, INFO}, {"fire_share": 0.02, "clear_share": 0.01, "fire_seconds": 0.5}),
    "periodic-dips": ("E0", {INFO}, {"dips": 4, "spread": 0.25, "starved_share": 0.05}),
    "step-time-regression": ("E2", {WARNING}, {"fire_ratio": 1.08, "clear_ratio": 1.04}),
    "warmup-long": ("E1", {WARNING, INFO}, {"fire_seconds": 600, "warning_seconds": 1200}),
    "thermal-throttle": ("E0", {CRITICAL, WARNING}, {"fire_share": 0.05, "critical_share": 0.25, "clear_share": 0.01}),
    "hw-slowdown": ("E0", {CRITICAL}, {"events": 6}),
    "power-capped": ("E0", {WARNING, INFO}, {"capped_share": 0.5, "busy_percent": 90, "power_share": 0.95}),
    "clocks-locked-low": (
        "E0",
        {WARNING},
        {"fire_share": 0.8, "busy_percent": 90, "power_share": 0.9, "hot_celsius": 80},
    ),
    "gpu-imbalance": (
        "E0",
        {WARNING},
        {
            "utilization_points": 20, "clear_utilization_points": 10, "memory_share": 0.2, "memory_full_share": 0.3,
            "power_variation": 0.15,
        },
    ),
    "straggler-rank": ("E2", {CRITICAL, WARNING}, {"fire_share": 0.10, "critical_share": 0.20, "clear_share": 0.06}),
    "comm-bound": ("E3", {HINT}, {"fire_share": 0.10, "clear_share": 0.06}),
    "ddp-misconfig": ("E1", {HINT}, {}),
    "collective-hang": (
        "E1",
        {CRITICAL, WARNING, INFO},
        {"silence_seconds": 60, "busy_percent": 95, "power_share": 0.45, "usual_power_share": 0.60},
    ),
    "step-stalled": ("E1", {CRITICAL, WARNING, INFO}, {"silence_seconds": 60, "idle_percent": 5}),
    "idle-gpu-allocated": ("E0", {INFO}, {"used_percent": 5}),
    "shared-gpu": ("E0", {INFO}, {"sm_percent": 5, "memory_share": 0.05}),
    "metrics-limited": ("E0", {INFO}, {}),
    "telemetry-gap": ("E0", {INFO}, {"late_polls": 2, "dropped_share": 0.01}),
    "xid-error": ("E0", {"info", "warning", "critical"}, {}),
    "ecc-or-remap": (
        "E0",
        {CRITICAL, INFO},
        {
            "critical_retired_pages": 63, "retired_pages": 10, "critical_remapped_rows": 512,
            "corrected_errors": 50_000_000,
        },
    ),
    "link-errors": ("E0", {WARNING, INFO}, {"crc_errors_per_second": 100, "repeats": 1}),
}  # fmt: skip
"""Evidence level, severities and thresholds by rule."""

SOFTER = {
    "h2d-bound": "a hint from 70% of the link",
    "comm-bound": "this is a hint only",
    "log-stall": "as a hint",
    "sync-per-step": "a hint from 10% of the samples",
    "amp-off": "Whether a config asks for AMP is not read",
    "link-errors": "Information: some links are up and others never were",
    "debug-mode-on": "information only",
    "gc-stall": "A warning with several ranks",
}
"""Rules that say less, at times, than the catalogue has them say, and the words of their pages that tell when."""
UNLISTED = {"xid-unplaced", "slow-worker", "pin-thread-bound", "loop-code"}
"""Of the code's own making: the errors of GPUs that are not seen, a worker and a thread that batches wait for, and the
script's own work in its loop."""


def test_the_catalogue_is_complete() -> None:
    assert {rule.id for rule in all_rules()} == CATALOGUE.keys() | UNLISTED
    assert len(CATALOGUE) == 67


@pytest.mark.parametrize("rule_id", CATALOGUE)
def test_a_rule_is_what_the_catalogue_says(rule_id: str) -> None:
    level, severities, thresholds = CATALOGUE[rule_id]
    rule: Any = rule_by_id(rule_id)
    assert rule.level.name == level
    source = Path(str(sys.modules[rule.check.__module__].__file__)).read_text(encoding="utf-8")
    assert {Severity[name].value for name in re.findall(r"\bSeverity\.([A-Z]+)\b", source)} == severities
    defaults = {each.name: each.default for each in declared(rule.thresholds)}
    assert {name: defaults.get(name) for name in thresholds} == thresholds


@pytest.mark.parametrize("rule_id", SOFTER)
def test_the_page_says_where_a_rule_says_less(rule_id: str) -> None:
    assert SOFTER[rule_id] in " ".join(section.text for section in sections(rule_by_id(rule_id)))
