"""NVIDIA's driver: whether it answers, and what each answer costs."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch.cli.doctor_checks.check import Check, State
from gpuwatch.sources.nvml import reasons
from gpuwatch.sources.nvml.process import NvmlAnswer, NvmlSurvey

_SLOW_MICROSECONDS = 5000.0  # above this the NVML source asks less often
_CURES = {
    reasons.reason_of(reasons.NO_PERMISSION): "Ask as root (sudo gpuwatch), or start the container that owns the GPU "
    "as a whole.",
    reasons.reason_of(reasons.FUNCTION_NOT_FOUND): "Update NVIDIA's driver.",
    reasons.reason_of(reasons.NOT_IN_WHEEL): "Update the bindings: `pip install -U nvidia-ml-py`.",
}
_BASIC = ("utilization", "memory")


def check_driver(found: NvmlSurvey) -> Check:
    """Does the driver answer at all, and for how many GPUs?"""
    gpus = {answer.uuid for answer in found.answers}
    details = {"driver": found.driver_version, "cuda": found.cuda_version, "gpus": len(gpus)}
    versions = f"The driver {found.driver_version or 'of unknown version'} (CUDA {found.cuda_version or 'unknown'})"
    if found.complete and gpus:
        many = f"{len(gpus)} GPUs" if len(gpus) > 1 else "1 GPU"
        return Check("driver", State.OK, f"{versions} answers for {many}.", None, details)
    if found.complete:
        return Check(
            "driver",
            State.PROBLEM,
            f"{versions} answers, but lists no GPU.",
            "Look for its complaint with `sudo dmesg | grep NVRM`; in a container ask for the GPUs (`--gpus all`).",
            details,
        )
    state = State.WARNING if gpus else State.PROBLEM
    return Check("driver", state, found.reason or "The driver did not answer.", None, details)


def check_nvml_calls(found: NvmlSurvey) -> Check:
    """Which readings there are, on how many GPUs, and at what price."""
    by_reading: dict[tuple[str, str], list[NvmlAnswer]] = {}
    for answer in found.answers:
        by_reading.setdefault((answer.tells, answer.function), []).append(answer)
    if not by_reading:
        return Check("nvml-calls", State.UNKNOWN, "No reading could be tried.")
    costs = [(answer.microseconds, answer.tells) for answer in found.answers if answer.microseconds is not None]
    answered = sum(all(answer.error is None for answer in answers) for answers in by_reading.values())
    slowest = max(costs, default=(0.0, ""))
    sentence = f"{answered} of {len(by_reading)} readings are given by every GPU"
    if costs:
        mean = sum(cost for cost, _ in costs) / len(costs)
        sentence += f"; a call costs {mean:.0f} us in the mean, {slowest[0]:.0f} us for {slowest[1]}"
    cure, limited = _shortcoming(found.answers, slowest[0])
    return Check(
        "nvml-calls",
        State.WARNING if limited else State.OK,
        f"{sentence}.",
        cure,
        {"readings": len(by_reading), "answered": answered, "slowest_microseconds": slowest[0] if costs else None},
        (("us", "reading", "function", "not given because"), *(_row(key, by_reading[key]) for key in by_reading)),
    )


def _shortcoming(answers: Sequence[NvmlAnswer], slowest_microseconds: float) -> tuple[str | None, bool]:
    """(cure, whether it is a shortcoming): what a GPU was never built to tell is none."""
    errors = {answer.error for answer in answers if answer.error}
    cures = [cure for error, cure in _CURES.items() if error in errors]
    if slowest_microseconds > _SLOW_MICROSECONDS:
        cures.append("Nothing needs doing about the slow call: it is made every 5 s only.")
    if any(answer.tells in _BASIC and answer.error for answer in answers):
        cures.append("Start the training with `gpuwatch run`: its steps are measured without the driver's help.")
    return " ".join(cures) or None, bool(cures)


def _row(reading: tuple[str, str], answers: Sequence[NvmlAnswer]) -> tuple[str, ...]:
    tells, function = reading
    costs = [answer.microseconds for answer in answers if answer.microseconds is not None]
    refused = [answer for answer in answers if answer.error]
    why = "; ".join(sorted({answer.error for answer in refused if answer.error}))
    if refused and len(refused) < len(answers):
        why = f"GPU {', '.join(str(answer.index) for answer in refused)}: {why}"
    return f"{max(costs):.1f}" if costs else "-", tells, function, why
