"""32-bit matrix multiplies are done at full precision although the GPU has a faster TF32 mode.

Means:
    From compute capability 8.0 a float32 matmul may round its inputs to 10 bits of mantissa (TF32) and run on tensor
    cores. PyTorch leaves this off for matmul, and on for convolutions.
Evidence:
    Hook: float32 parameters, no autocast, float32 matmul precision "highest", and at least 20% of the parameters in
    linear or attention layers.
Fires:
    All of that holds in two evaluations.
Clears:
    The precision is "high" or "medium", or autocast is active.
Not when:
    Models of convolutions only: cuDNN's TF32 is on by default. Scientific code that needs all 24 bits.
Causes:
    PyTorch's default since 1.12; nothing in the script changes it.
Fix:
    torch.set_float32_matmul_precision("high") before the first step.
Gain:
    A hint: one 10240^3 matmul on A100 took 0.016 s instead of 0.11 s (7x); the whole model gains only its matmul
    share.
Verify:
    The precision reads "high" and samples per second rise.
Source:
    PyTorch notes/cuda.rst (off for matmul since 1.12).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.compute import capability, hinted_range, trains_in_float32
from gpuwatch.diagnosis.advice.fixes import setup_edit
from gpuwatch.diagnosis.advice.precision import BF16_FROM
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent

MATMUL_FACTOR_A100 = 7.0
STATEMENT = 'torch.set_float32_matmul_precision("high")'


@dataclass(frozen=True, slots=True)
class Thresholds:
    matmul_share: float = threshold(0.2, "of the parameters that are of matrix multiplications at least")


@rule(
    "tf32-off",
    family="precision",
    subject="run",
    level=Level.E2,
    behind=("data-starvation", "amp-off"),
    thresholds=Thresholds,
)
def tf32_off(case: RunCase, limits: Thresholds) -> Draft | None:
    model = case.run.critical.facts.model
    generation = capability(case.gpus)
    if generation is None or generation < BF16_FROM or not trains_in_float32(model):
        return None
    matmul = model.matmul_share or 0.0
    if model.float32_matmul_precision != "highest" or matmul < limits.matmul_share:
        return None
    kernel_factor = 1.0 / ((1.0 - matmul) + matmul / MATMUL_FACTOR_A100)
    return Draft(
        summary=f"{case.run.title} multiplies matrices in full 32-bit precision; TF32 is off",
        severity=Severity.HINT,
        level=Level.E2,
        evidence=(
            Measure("float32_matmul_precision", "highest", 'float32 matmul precision is "highest"'),
            Measure("matmul_share", round(matmul, 3), f"{percent(matmul)} of the parameters in matrix multiplies"),
        ),
        fix=Fix(
            text="Allow TF32 for matrix multiplies, once, before training",
            code=STATEMENT,
            value="high",
            edit=setup_edit(case.run.critical.facts, STATEMENT),
        ),
        hint=f"{hinted_range(case.run, kernel_factor)} at most, if time follows parameters (one A100 matmul: 7x)",
        ruled_out=(
            RuledOut("convolutions only", f"{percent(matmul)} of the parameters are in linear or attention layers"),
        ),
        verify='torch.get_float32_matmul_precision() is "high", samples per second up',
        chart=("gpu.power_watts", "run.samples_per_second"),
    )
