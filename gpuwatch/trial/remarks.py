"""What a reader of the result has to know about the conditions it was measured under."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from gpuwatch.trial.results import ArmResult, Metric, RunResult, drift

WARMER_CELSIUS = 3.0


def remarks(arms: Sequence[ArmResult], metric: Metric) -> list[str]:
    """Sentences, the gravest first."""
    return [*_metric(arms, metric), *_heat(arms), *_drift(arms, metric), *_workers(arms)]


def _metric(arms: Sequence[ArmResult], metric: Metric) -> Iterator[str]:
    if metric == "steps_per_second":
        yield "steps per second are compared: how many samples a step takes is not known"
    sizes = {each.arm.label: size for each in arms if (size := _batch_size(each)) is not None}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{size} with {label}" for label, size in sizes.items())
        yield f"the batch sizes differ ({listed}): this compares speed, not how much is learned per sample"


def _batch_size(each: ArmResult) -> int | None:
    return next((run.steady.batch_size for run in each.runs if run.counts and run.steady is not None), None)


def _heat(arms: Sequence[ArmResult]) -> Iterator[str]:
    means = {each.arm.label: mean for each in arms if (mean := _celsius(each)) is not None}
    if len(means) > 1 and max(means.values()) - min(means.values()) > WARMER_CELSIUS:
        listed = ", ".join(f"{mean:.0f} °C with {label}" for label, mean in means.items())
        yield f"the GPUs were not equally warm ({listed}): a warmer GPU may clock lower"
    for each in arms:
        slowed = [run.warmth for run in each.runs if run.counts and run.warmth is not None and run.warmth.slowed_polls]
        if slowed:
            reasons = sorted({reason for warmth in slowed for reason in warmth.slowed_by})
            yield (
                f"{' and '.join(reasons)} slowed the GPU down in {len(slowed)} of {len(_counting(each))} runs"
                f" with {each.arm.label}"
            )


def _celsius(each: ArmResult) -> float | None:
    known = [run.warmth.celsius for run in _counting(each) if run.warmth is not None]
    warm = [celsius for celsius in known if celsius is not None]
    return fmean(warm) if warm else None


def _counting(each: ArmResult) -> list[RunResult]:
    return [run for run in each.runs if run.counts]


def _drift(arms: Sequence[ArmResult], metric: Metric) -> Iterator[str]:
    points = [
        [(run.place, rate) for run in _counting(each) if (rate := getattr(run.steady, metric)) is not None]
        for each in arms
    ]
    found = drift(points)
    if found is not None:
        way = "quicker" if found > 0 else "slower"
        yield (
            f"from the first run to the last everything became {100 * abs(found):.0f} % {way}: the arms took turns, so "
            "the ratios stand, but the intervals are wider for it"
        )


def _workers(arms: Sequence[ArmResult]) -> Iterator[str]:
    loader = next((run.loader for each in arms for run in each.runs if run.loader is not None), None)
    changed = any(change.name == "num_workers" and change.value for each in arms for change in each.arm.changes)
    if not changed or loader is None:
        return
    if loader.iterable or (loader.iterable is None and loader.batches_per_epoch is None):
        name = loader.dataset or "the dataset"
        who = f"{name} is an IterableDataset and" if loader.iterable else f"if {name} is an IterableDataset, it"
        yield (
            f"{who} must split its items by get_worker_info(), or every worker yields all of them and the samples are "
            "the same ones again"
        )
