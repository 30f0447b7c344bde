"""Convolutions with 16-bit numbers run faster in channels-last layout.

Means:
    Tensor cores read the channels of one pixel together. From the usual layout (NCHW) cuDNN has to transpose each
    convolution's input and output, in kernels of their own.
Evidence:
    Hook: convolutions hold at least 20% of the parameters, their kernels lie in the usual layout, and training runs in
    16 bits on a GPU with tensor cores.
Fires:
    After 50 steps.
Clears:
    The kernels lie channels last, or training is no longer in 16 bits.
Not when:
    The model is compiled (Inductor chooses the layout itself); models without convolutions; 32-bit training, which
    gains little; compute capability below 7.0; the run waits for data.
Causes:
    PyTorch's default layout; nothing in the script changes it.
Fix:
    model.to(memory_format=torch.channels_last) before the optimizer is built, and each batch of images like it.
Gain:
    A hint: 1.08-1.35x of the computing share, as PyTorch's tutorial saw it on Volta with AMP.
Verify:
    Samples per second rise; the kernels' layout is seen as channels last.
Source:
    PyTorch's channels-last tutorial (8 to 35% on Volta) and tuning guide.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.compute import capability, hinted_range, trains_in_16_bits
from gpuwatch.diagnosis.advice.fixes import model_edit
from gpuwatch.diagnosis.advice.precision import TENSOR_CORES_FROM
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent

VOLTA = 1.35
STATEMENT = "{model}.to(memory_format=torch.channels_last)"
"""A module turns itself, so no name has to be rebound."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    conv_share: float = threshold(0.2, "of the parameters that are of convolutions at least")
    steps: int = threshold(50, "before anything is reported")


@rule(
    "channels-last-off",
    family="precision",
    subject="run",
    level=Level.E2,
    behind=("data-starvation", "amp-off"),
    thresholds=Thresholds,
)
def channels_last_off(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    model, generation = rank.facts.model, capability(case.gpus)
    if model.channels_last is not False or model.compiled is not False or not trains_in_16_bits(model):
        return None
    if generation is None or generation < TENSOR_CORES_FROM or rank.steps_total < limits.steps:
        return None
    if model.conv_share is None or model.conv_share < limits.conv_share:
        return None
    return Draft(
        summary=f"The convolutions of {case.run.title} run in 16 bits but not in channels-last layout",
        severity=Severity.HINT,
        level=Level.E2,
        evidence=(
            Measure("channels_last", "no", "kernels lie in the usual layout (NCHW)"),
            Measure("conv_share", round(model.conv_share, 3), f"{percent(model.conv_share)} of the parameters in conv"),
            Measure("autocast_dtype", model.autocast_dtype, f"trains in {model.autocast_dtype or '16 bits'}"),
        ),
        fix=Fix(
            text="Convert the model to channels-last before the optimizer is built, and each batch of images likewise",
            code=(STATEMENT.replace("{model}", "model") + "\nimages = images.to(memory_format=torch.channels_last)"),
            file=model.optimizer_file,
            line=model.optimizer_line,
            value="torch.channels_last",
            edit=model_edit(model, STATEMENT),
        ),
        hint=f"{hinted_range(case.run, VOLTA)} for this run, from the 8 to 35% that PyTorch's tutorial saw with AMP",
        ruled_out=(RuledOut("a compiled model", "none was seen; Inductor would choose the layout itself"),),
        verify="Samples per second up, kernels seen channels last",
        chart=("run.samples_per_second", "gpu.power_watts"),
    )
