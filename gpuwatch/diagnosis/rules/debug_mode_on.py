"""A debugging switch that slows training is on.

Means:
    Some switches make torch check or wait after every operation. They are for finding an error, and easily stay on.
Evidence:
    The variables the process was started with (of a hooked run, those it has now), and what its hook reads of torch:
    anomaly detection, CUDA sync checks, deterministic algorithms.
Fires:
    One of them is on: CUDA_LAUNCH_BLOCKING, PYTORCH_NO_CUDA_MEMORY_CACHING, TORCH_USE_CUDA_DSA,
    TORCH_DISTRIBUTED_DEBUG=DETAIL, anomaly detection, sync checks, deterministic algorithms.
Clears:
    None is on.
Not when:
    The variable is 0 or empty; it is about CUDA and the run computes on the CPU, or about ranks and there is only one.
    A process younger than five minutes may be a debugging session, and deterministic algorithms are a valid choice:
    information only. A running profiler is not seen.
Causes:
    A variable in the environment, or a switch in the code: the evidence names it.
Fix:
    unset the variable, torch.autograd.set_detect_anomaly(False), torch.cuda.set_sync_debug_mode(0).
Gain:
    A hint. CUDA_LAUNCH_BLOCKING removes all overlap of CPU and GPU.
Verify:
    The switch is off.
Source:
    PyTorch tuning guide ("disable debugging APIs"), torch's cuda.rst.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import listed
from gpuwatch.timeline.windows import RankWindow

NOTE = "environment: "
OFF = frozenset({"", "0", "off", "false", "no"})


@dataclass(frozen=True, slots=True)
class Thresholds:
    session_seconds: float = threshold(300.0, "a younger run may be a debugging session: information only")


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch: what it costs, and what turns it off."""

    name: str
    effect: str
    code: str
    slows: bool = True


_CUDA = {
    "CUDA_LAUNCH_BLOCKING": "Python waits for every kernel, so that CPU and GPU never work at the same time",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor asks the driver for memory and gives it back",
    "TORCH_USE_CUDA_DSA": "kernels check their own assertions",
}
_MODES = {
    "anomaly": Switch(
        "anomaly detection", "every backward is traced and checked", "torch.autograd.set_detect_anomaly(False)"
    ),
    "sync-debug": Switch("CUDA sync checks", "every synchronization is reported", "torch.cuda.set_sync_debug_mode(0)"),
    "deterministic": Switch(
        "deterministic algorithms",
        "slower kernels are chosen where the fast ones are not reproducible",
        "torch.use_deterministic_algorithms(False)",
        slows=False,
    ),
}


@rule("debug-mode-on", family="launch", subject="run", level=Level.E1, gated=False, thresholds=Thresholds)
def debug_mode_on(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    switches = list(_switches(rank))
    if not switches:
        return None
    age = rank.process.latest.age_seconds if rank.process else None
    serious = any(switch.slows for switch in switches) and (age is None or age >= limits.session_seconds)
    first = switches[0]
    are = "is" if len(switches) == 1 else "are"
    return Draft(
        summary=f"{listed(switch.name for switch in switches)} {are} on: {first.effect}",
        severity=Severity.WARNING if serious else Severity.INFO,
        level=Level.E1,
        evidence=tuple(Measure(f"switch_{switch.name}", 1, f"{switch.name}: {switch.effect}") for switch in switches),
        fix=Fix(
            text="Switch it off once the error is found"
            if first.slows
            else "Keep it only where runs must be repeatable",
            code="\n".join(switch.code for switch in switches),
        ),
        hint="no promise: it depends on the model; CUDA_LAUNCH_BLOCKING removes all overlap of CPU and GPU",
        verify="The switch is off, and samples per second are up",
    )


def _switches(rank: RankWindow) -> Iterator[Switch]:
    """Those that are on, slowing ones first."""
    variables = _variables(rank)
    for name, effect in _CUDA.items():
        if rank.facts.device != "cpu" and variables.get(name, "").lower() not in OFF:
            yield Switch(f"{name}={variables[name]}", effect, f"unset {name}")
    name = "TORCH_DISTRIBUTED_DEBUG"
    if (rank.facts.world_size or 1) > 1 and variables.get(name, "").upper() == "DETAIL":
        yield Switch(f"{name}=DETAIL", "every collective is checked against the other ranks'", f"unset {name}")
    for mode, switch in _MODES.items():
        if mode in rank.facts.debug_modes and (mode != "sync-debug" or rank.facts.device != "cpu"):
            yield switch


def _variables(rank: RankWindow) -> dict[str, str]:
    """Of a hooked run as it has them now: a script may set them itself."""
    notes = [note.removeprefix(NOTE).partition("=") for note in rank.facts.notes if note.startswith(NOTE)]
    said = {name: value for name, _, value in notes}
    started = dict((rank.process.latest.environment if rank.process else None) or ())
    return started | said
