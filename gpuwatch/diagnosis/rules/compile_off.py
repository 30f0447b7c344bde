"""The model is not compiled; PyTorch 2 could fuse its small operations.

Means:
    torch.compile merges chains of small operations into few kernels: fewer launches and fewer trips to memory.
Evidence:
    Hook: no compiled model was seen, torch is 2.0 or later, and either the GPU idles between kernels (launch-bound)
    or is busy at low power (low-power-high-util).
Fires:
    All of that holds in two evaluations.
Clears:
    A compiled model is seen, or neither symptom holds.
Not when:
    Shapes change from step to step (each new shape compiles again); short runs: a cold compile takes seconds to
    minutes; the run waits for data.
Causes:
    torch.compile is configured but never called, or not used at all.
Fix:
    model.compile() before the optimizer is built, with mode="reduce-overhead" where launches are the problem. Unlike
    torch.compile(model) it leaves the names in a checkpoint as they are.
Gain:
    A hint: 1.0-1.9x of the computing share (nanoGPT on A100: 250 to 135 ms per step).
Verify:
    Samples per second after the warm-up.
Source:
    nanoGPT@3adf61e1 README; PyTorch compile documentation.
"""

from __future__ import annotations

from gpuwatch.diagnosis.advice.compute import hinted_range, torch_version, works_lightly
from gpuwatch.diagnosis.advice.fixes import model_edit
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule

NANOGPT_A100 = 1.85


@rule(
    "compile-off",
    family="precision",
    subject="run",
    level=Level.E2,
    after=("launch-bound",),
    behind=("data-starvation",),
)
def compile_off(case: RunCase) -> Draft | None:
    facts = case.run.critical.facts
    launch_bound = "launch-bound" in case.holding
    light = bool(case.gpus) and all(works_lightly(gpu) for gpu in case.gpus)
    if facts.model.compiled is not False or not _has_compile(facts.torch) or not (launch_bound or light):
        return None
    symptom = "the GPU waits for kernel launches" if launch_bound else "the GPU is busy at low power"
    mode = 'mode="reduce-overhead"' if launch_bound else ""
    return Draft(
        summary=f"The model of {case.run.title} is not compiled, and {symptom}",
        severity=Severity.HINT,
        level=Level.E2,
        evidence=(
            Measure("compiled", "no", "no compiled model seen"),
            Measure("torch", facts.torch, f"torch {facts.torch}"),
            Measure("symptom", "launch-bound" if launch_bound else "low-power-high-util", symptom),
        ),
        fix=Fix(
            text="Compile the model once, after it is on the GPU",
            code=f"model.compile({mode})",
            file=facts.model.optimizer_file,
            line=facts.model.optimizer_line,
            edit=model_edit(facts.model, f"{{model}}.compile({mode})") if _compiles_in_place(facts.torch) else None,
        ),
        hint=f"{hinted_range(case.run, NANOGPT_A100)} for this run, by nanoGPT's 1.85x on A100",
        ruled_out=(RuledOut("an old torch", f"{facts.torch} has torch.compile"),),
        verify="Samples per second after the first compiled steps",
        chart=("run.step_seconds", "gpu.utilization_percent"),
    )


def _compiles_in_place(version: str | None) -> bool:
    """Whether modules have a method for it: since torch 2.2."""
    known = torch_version(version)
    return known is not None and known >= (2, 2)


def _has_compile(version: str | None) -> bool:
    major = (version or "").split(".", 1)[0]
    return major.isdigit() and int(major) >= 2
