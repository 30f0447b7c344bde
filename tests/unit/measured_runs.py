"""Measured runs as a comparison takes them, with every figure given or usual."""

from __future__ import annotations

from gpuwatch.compare.measured import Measured, MeasuredFinding, Subject

USUAL: dict[str, float | None] = {
    "samples_per_second": 400.0,
    "utilization_percent": 41.0,
    "utilization_sigma": 14.0,
    "wait_ms_per_batch": 95.0,
    "wait_share_percent": 59.0,
    "step_p50_ms": 160.0,
    "step_p95_ms": 240.0,
    "power_watts": 210.0,
    "memory_peak_gib": 21.5,
    "energy_joules_per_sample": 0.52,
}
SUBJECT = Subject(
    title="train.py",
    gpu_names=("NVIDIA H200",),
    batch_size=64,
    model_parameters=25_557_032,
    parameter_bits=32,
    autocast="",
    torch="2.13.0",
)


def run(
    name: str = "run.gpuwatch",
    *,
    subject: Subject = SUBJECT,
    findings: tuple[MeasuredFinding, ...] = (),
    label: str = "LIVE",
    notes: tuple[str, ...] = (),
    **values: float | None,
) -> Measured:
    """One run; values given by name take the place of the usual ones."""
    return Measured(name, label, 300.0, subject, {**USUAL, **values}, findings, notes)
