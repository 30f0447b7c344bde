"""Layer sizes are not multiples of 8, so tensor cores are used badly.

Means:
    Tensor cores multiply 16-bit matrices in tiles of 8 and more. A side that is no multiple of that leaves tiles half
    empty, or makes cuBLAS take another kernel.
Evidence:
    Hook: matrices with a side that is no multiple of 8 hold at least 5% of the parameters, and training runs in 16
    bits on a GPU with tensor cores.
Fires:
    After 50 steps.
Clears:
    The sides are multiples of 8.
Not when:
    32-bit training; small output layers (a classifier of 10 classes is below the 5%). From version 11 on cuBLAS uses
    tensor cores for any size, at a lower rate.
Causes:
    The size of a vocabulary, of a hidden layer or of a head: the evidence names the sides.
Fix:
    Round the side up: a vocabulary to a multiple of 64, other sides to a multiple of 8. What is added is never used.
Gain:
    A hint: nanoGPT became about 25% faster with a vocabulary of 50304 instead of 50257; usually it is far less.
Verify:
    Samples per second.
Source:
    NVIDIA's matrix multiplication guide (tile and wave quantization); nanoGPT's vocabulary padding.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.compute import capability, hinted_range, trains_in_16_bits
from gpuwatch.diagnosis.advice.precision import TENSOR_CORES_FROM
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent

TILE = 8
VOCABULARY, VOCABULARY_TILE = 4096, 64
NANOGPT = 1.25


@dataclass(frozen=True, slots=True)
class Thresholds:
    parameter_share: float = threshold(0.05, "of the parameters in layers of such sizes: reported from here on")
    steps: int = threshold(50, "before anything is reported")


@rule(
    "shape-misaligned",
    family="precision",
    subject="run",
    level=Level.E2,
    behind=("data-starvation", "amp-off"),
    thresholds=Thresholds,
)
def shape_misaligned(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    model, generation = rank.facts.model, capability(case.gpus)
    share = model.misaligned_share
    if generation is None or generation < TENSOR_CORES_FROM:
        return None
    if rank.steps_total < limits.steps or not trains_in_16_bits(model):
        return None
    sides = _sides(model.misaligned_shape)
    if share is None or share < limits.parameter_share or not sides:
        return None
    odd = [side for side in sides if side % TILE]
    wanted = [_rounded(side) for side in odd]
    return Draft(
        summary=(
            f"{percent(share)} of the parameters of {case.run.title} are in matrices with a side that is not a "
            f"multiple of 8, the largest {model.misaligned_shape}"
        ),
        severity=Severity.HINT,
        level=Level.E2,
        evidence=(
            Measure("misaligned_share", round(share, 4), f"{percent(share)} of the parameters"),
            Measure("misaligned_shape", model.misaligned_shape, f"the largest is {model.misaligned_shape}"),
        ),
        fix=Fix(
            text="Round up: " + ", ".join(f"{side} to {better}" for side, better in zip(odd, wanted, strict=True)),
            code=f"vocab_size = {wanted[0]}" if odd[0] >= VOCABULARY else None,
            value=wanted[0],
        ),
        hint=(
            f"{hinted_range(case.run, NANOGPT)} for this run, by the 1.25x that nanoGPT gained from 50257 to 50304; "
            "cuBLAS 11 and later lose less"
        ),
        ruled_out=(
            RuledOut(
                "small output layers", f"together they would not be {percent(limits.parameter_share)} of the parameters"
            ),
        ),
        verify="Samples per second up",
        chart=("run.samples_per_second", "gpu.power_watts"),
    )


def _sides(shape: str | None) -> list[int]:
    """Both sides of "50257x768"; nothing where one is no number or all are multiples of 8."""
    sides = (shape or "").split("x")
    if not all(side.isdigit() and int(side) > 0 for side in sides):
        return []
    numbers = [int(side) for side in sides]
    return numbers if any(number % TILE for number in numbers) else []


def _rounded(side: int) -> int:
    tile = VOCABULARY_TILE if side >= VOCABULARY else TILE
    return -(-side // tile) * tile
