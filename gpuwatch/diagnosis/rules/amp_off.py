"""Training runs in 32-bit although the GPU has much faster 16-bit units.

Means:
    From compute capability 7.0 (8.0 for bfloat16) matrix multiplications and convolutions in 16 bits run on tensor
    cores, several times as fast, and activations take half the memory.
Evidence:
    Hook: no autocast region in the last 50 steps, at least 90% of the floating-point parameters in float32, and
    layers that tensor cores can speed up.
Fires:
    After 50 steps.
Clears:
    Autocast becomes active or the weights are 16-bit.
Not when:
    Compute capability below 7.0 (a GTX 1080 has no tensor cores); the run waits for data (that comes first). Whether
    a config asks for AMP is not read, so this stays information where it does.
Causes:
    Autocast is never entered; it is switched on in a config in a form that the code does not recognise (amp: true
    compared with "bf16"); or it is used in evaluation only.
Fix:
    with torch.autocast("cuda", dtype=torch.bfloat16): around forward and loss; on capability 7.x float16 with a
    torch.amp.GradScaler("cuda").
Gain:
    A hint, to be proven: NVIDIA's own examples on A100 range from 1.00x (SSD) to 2.6x (ResNet-50), and only the
    computing share of the run gains.
Verify:
    autocast is seen active, samples per second rise, and the loss stays what it was.
Source:
    DeepLearningExamples@729963dd; kineto's tensor-core advice (capability 7 and later).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.compute import capability, hinted_range, trains_in_float32
from gpuwatch.diagnosis.advice.fixes import autocast_edit
from gpuwatch.diagnosis.advice.precision import BF16_FROM, TENSOR_CORES_FROM
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped, percent

RESNET50_A100 = 2.6


@dataclass(frozen=True, slots=True)
class Thresholds:
    steps: int = threshold(50, "before anything is reported")


@rule("amp-off", family="precision", subject="run", level=Level.E2, behind=("data-starvation",), thresholds=Thresholds)
def amp_off(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    model = rank.facts.model
    generation = capability(case.gpus)
    suited = (model.matmul_share or 0.0) + (model.conv_share or 0.0)
    if generation is None or generation < TENSOR_CORES_FROM or rank.steps_total < limits.steps:
        return None
    if not trains_in_float32(model) or suited <= 0.0:
        return None
    bfloat16 = generation >= BF16_FROM
    dtype = "torch.bfloat16" if bfloat16 else "torch.float16"
    scaler = "" if bfloat16 else "  # and scale the loss: scaler = torch.amp.GradScaler('cuda')"
    return Draft(
        summary=f"{case.run.title} trains in 32-bit floats on a GPU whose 16-bit units are far faster",
        severity=Severity.INFO,
        level=Level.E2,
        evidence=(
            Measure(
                "float32_share",
                model.float32_share,
                f"{percent(model.float32_share or 0)} of the parameters are float32",
            ),
            Measure("autocast", "off", f"no autocast in {grouped(rank.steps_total)} steps"),
            Measure(
                "compute_capability", f"{generation[0]}.{generation[1]}", f"capability {generation[0]}.{generation[1]}"
            ),
            Measure(
                "matmul_and_conv_share", round(suited, 3), f"{percent(suited)} of the parameters in matmul and conv"
            ),
        ),
        fix=Fix(
            text=f"Run forward and loss under autocast in {dtype.split('.')[1]}",
            code=f'with torch.autocast("cuda", dtype={dtype}):{scaler}\n    loss = criterion(model(x), y)',
            file=model.backward_file,
            line=model.backward_line,
            value=dtype,
            edit=autocast_edit(model, dtype) if bfloat16 else None,  # float16 needs a scaler around the backward, too
        ),
        hint=f"{hinted_range(case.run, RESNET50_A100)} for this run, from NVIDIA's A100 examples (SSD to ResNet-50)",
        ruled_out=(RuledOut("no tensor cores", f"compute capability {generation[0]}.{generation[1]} has them"),),
        verify="autocast active, samples per second up, the loss curve unchanged",
        chart=("gpu.power_watts", "run.samples_per_second"),
    )
