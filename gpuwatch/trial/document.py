"""The result of a trial as JSON: what every other form of it is made from."""

from __future__ import annotations

from typing import Any

from gpuwatch.statistics.interval import Interval, geometric_mean
from gpuwatch.trial import wording
from gpuwatch.trial.results import ArmResult, Failure, Metric, RunResult, TrialResult, scatter

SCHEMA_VERSION = 1
Json = dict[str, Any]


def document(result: TrialResult, version: str) -> Json:
    """All of it.

    Args:
        result: of the trial.
        version: of gpuwatch.
    """
    best = result.best
    return {
        "gpuwatch": {"version": version, "schema": SCHEMA_VERSION, "incomplete": result.interrupted},
        "trial": {
            "command": list(result.command),
            "metric": result.metric,
            "unit": wording.UNITS[result.metric],
            "runs_per_arm": result.runs_per_arm,
            "steady_seconds": result.seconds,
            "steady_steps": result.steps,
            "min_effect": result.min_effect,
            "scratch": result.scratch,
        },
        "arms": [_arm(each, result.metric) for each in result.arms],
        "best": None if best is None else best.arm.label,
        "like_best": [each.arm.label for each in result.like_best],
        "patch": result.patch.decode("utf-8", "backslashreplace") or None,
        "by_hand": list(result.by_hand),
        "notes": list(result.notes),
    }


def _arm(each: ArmResult, metric: Metric) -> Json:
    rates = each.rates(metric)
    judgement = each.judgement
    gain = each.predicted
    return {
        "label": each.arm.label,
        "changes": {change.name: change.value for change in each.arm.changes},
        "runs": [_run(run, metric) for run in each.runs],
        "mean": geometric_mean(rates),
        "scatter": scatter(rates),
        "verdict": judgement.verdict,
        "verdict_words": wording.verdict(judgement),
        "change": judgement.ratio,
        "interval": _interval(judgement.interval),
        "detectable": judgement.detectable,
        "predicted": None if gain is None else {"low": gain.low, "high": gain.high, "rule": each.predicted_by},
        "ineffective": list(each.ineffective),
        "failure": _failure(each.failure),
    }


def _interval(interval: Interval | None) -> Json | None:
    if interval is None:
        return None
    return {
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.confidence,
        "p_value": interval.p_value,
        "runs_before": interval.runs_before,
        "runs_after": interval.runs_after,
    }


def _run(run: RunResult, metric: Metric) -> Json:
    steady, warmth = run.steady, run.warmth
    return {
        "place": run.place,
        "counts": run.counts,
        metric: getattr(steady, metric) if steady is not None else None,
        "steps": steady.steps if steady is not None else 0,
        "seconds": round(steady.seconds, 3) if steady is not None else 0.0,
        "gpu_celsius": warmth.celsius if warmth is not None else None,
        "gpu_slowed_by": list(warmth.slowed_by) if warmth is not None else [],
    }


def _failure(failure: Failure | None) -> Json | None:
    if failure is None:
        return None
    return {"reason": failure.reason, "exit_code": failure.exit_code, "last_lines": list(failure.last_lines)}
