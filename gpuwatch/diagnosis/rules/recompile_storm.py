"""torch.compile keeps recompiling, so steps stall again and again.

Means:
    A compiled function is valid for what was seen when it was compiled: shapes, numbers, modes. When one of these
    changes it is compiled again, for seconds to minutes, until the limit (8 by default) makes it run uncompiled for
    good.
Evidence:
    Hook: compilations after the run's 100th step and outside of evaluation, in the last 10 minutes: how many, and their
    share of that time. The reason and the function are those that Dynamo itself notes.
Fires:
    Three and 5% of the time, seen over a minute; critical from 20%.
Clears:
    None in 10 minutes.
Not when:
    The first epoch, the first evaluation and the last, smaller batch of an epoch: each compiles once or twice. What
    runs uncompiled because the limit was reached is not compiled again, and is not seen here.
Causes:
    By Dynamo's reason: sizes that change, Python numbers that change (a learning rate), or train and eval that
    alternate.
Fix:
    By reason: sizes that change: torch.compile(dynamic=True), torch._dynamo.mark_dynamic, lengths padded to multiples
    of 64, drop_last=True; numbers that change: a tensor in their place.
Gain:
    1 / (1 - c), where c is the share of time spent compiling, give or take one compilation, less what quicker steps
    after it make up for: the GPU works through its queue meanwhile.
Verify:
    No compilation in 10 minutes (TORCH_LOGS=recompiles prints each with its reason).
Source:
    PyTorch's notes on recompilation; torch 2.13: recompile_limit 8, accumulated 256.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.fixes import call_code
from gpuwatch.diagnosis.advice.gains import from_share, pauses_within_loader
from gpuwatch.diagnosis.advice.lines import at
from gpuwatch.diagnosis.advice.pauses import felt
from gpuwatch.diagnosis.finding import CallEdit, Draft, Fix, Level, Measure, RuledOut, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped, percent, seconds
from gpuwatch.samples import LoaderFacts, ModelFacts

SECONDS = 60.0
USUAL = 1
"""What an epoch's last batch, or one more evaluation, may still compile once the fix is in."""
PADDING = 64
LONGEST_REASON = 160


@dataclass(frozen=True, slots=True)
class Thresholds:
    compiles: int = threshold(3, "in the window at least", least=1)
    fire_share: float = threshold(0.05, "of the time passes with compiling: reported from here on")
    critical_share: float = threshold(0.20, "critical from here on", bounded_by="fire_share")


@rule("recompile-storm", family="precision", subject="run", level=Level.E2, gated=False, thresholds=Thresholds)
def recompile_storm(case: RunCase, limits: Thresholds) -> Draft | None:
    known = [rank for rank in case.run.ranks if rank.recompiles is not None and rank.recompiles.count]
    if not known:
        return None
    rank = max(known, key=lambda one: one.recompiles.seconds if one.recompiles else 0.0)
    found, model = rank.recompiles, rank.facts.model
    assert found is not None
    least, most = felt(rank, "compile")
    where = at(model.recompile_file, model.recompile_line)
    return Draft(
        summary=(
            f"torch.compile recompiled {grouped(found.count)} times in {seconds(found.over_seconds)} and took "
            f"{percent(found.share)} of the time{where}"
        ),
        severity=Severity.CRITICAL if found.share >= limits.critical_share else Severity.WARNING,
        level=Level.E2,
        evidence=(
            Measure("recompiles", found.count, f"{grouped(found.count)} compilations after the 100th step"),
            share_measure("recompile_share", found.share, "compiling"),
            Measure("recompile_seconds", round(found.seconds / found.count, 2), _each(found.seconds / found.count)),
            *_reason(model),
        ),
        fires=found.count >= limits.compiles and found.share >= limits.fire_share and found.over_seconds >= SECONDS,
        fix=_fix(model, rank.train_loader),
        gain=pauses_within_loader(
            case,
            from_share(
                found.share * least * max(0.0, 1.0 - USUAL / found.count),
                found.share * most * (1.0 + 1.0 / found.count),
                "the computing itself",
            ),
            found,
        ),
        ruled_out=(RuledOut("the beginning of the run", "compilations before the 100th step are not counted"),),
        verify="No compilation in 10 minutes",
        chart=("run.step_seconds",),
    )


def _each(each: float) -> str:
    return f"{seconds(each)} each"


def _reason(model: ModelFacts) -> tuple[Measure, ...]:
    if model.recompile_reason is None:
        return ()
    said = " ".join(model.recompile_reason.split())
    return (Measure("recompile_reason", said, f"Dynamo's last reason: {said[:LONGEST_REASON]}"),)


def _fix(model: ModelFacts, loader: LoaderFacts | None) -> Fix:
    reason = model.recompile_reason or ""
    if "size mismatch" in reason:
        return _fix_of_sizes(loader)
    if "grad_mode" in reason or "GradMode" in reason or "training" in reason:
        text = "Compile once for training and once for evaluation: two torch.compile calls, each used in one mode only"
    elif "==" in reason:
        text = "A Python number changes from call to call: hand it over as a tensor, or keep it out of what is compiled"
    else:
        text = "See why with TORCH_LOGS=recompiles: sizes that change, or Python numbers that do"
    return Fix(text=text, code="TORCH_LOGS=recompiles", file=model.recompile_file, line=model.recompile_line)


def _fix_of_sizes(loader: LoaderFacts | None) -> Fix:
    """A last batch that is smaller is left out; lengths that vary are compiled for once, or padded."""
    steady = loader is not None and loader.batch_shapes == 1 and loader.drop_last is False
    if steady and loader is not None:
        keywords = {"drop_last": "True"}
        edit = CallEdit("DataLoader", loader.file, loader.line, keywords) if loader.file and loader.line else None
        return Fix(
            text="Only the last batch of an epoch has another size: leave it out, or compile with dynamic=True",
            code=call_code(keywords),
            file=loader.file,
            line=loader.line,
            value="True",
            edit=edit if loader.library is None else None,
        )
    return Fix(
        text=f"Compile for sizes that vary, or pad lengths to multiples of {PADDING} so that few are left",
        code="model = torch.compile(model, dynamic=True)",
        value=PADDING,
    )
