"""cuDNN could pick faster convolution algorithms (or is wasting time re-picking them).

Means:
    With torch.backends.cudnn.benchmark cuDNN tries its algorithms on the first batch of each shape and keeps the
    fastest. Where shapes stay the same that is done once; where they vary it is done again and again.
Evidence:
    Hook: the flag, the share of parameters in convolutions, and how many different shapes the sampled batches had (the
    first ones, then about one in 30 s).
Fires:
    Off, and five or more sampled batches have one shape: switch it on. On, with at least 8 shapes, at least half as
    many as sampled batches, and steps that stand out: switch it off.
Clears:
    The flag changes.
Not when:
    Deterministic algorithms are asked for; the model is compiled; convolutions hold less than 20% of the parameters;
    training on the CPU; too few batches were sampled.
Causes:
    Off, which is the default, with inputs of one shape; or on with inputs of many shapes.
Fix:
    torch.backends.cudnn.benchmark = True (or False), once, before training.
Gain:
    A hint without a figure: nothing where cuDNN's first choice was the best already.
Verify:
    Time per step, after the first batches.
Source:
    PyTorch's tuning guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from gpuwatch.diagnosis.advice.fixes import setup_edit
from gpuwatch.diagnosis.advice.sampled import trains_on
from gpuwatch.diagnosis.advice.stream import robust_sigma, settled
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent
from gpuwatch.samples import LoaderFacts
from gpuwatch.timeline.windows import RankWindow

FEWEST_BATCHES = 5
NEW_SHARE = 0.5
SIGMAS = 8.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    conv_share: float = threshold(0.2, "of the parameters that are of convolutions at least")
    shapes: int = threshold(8, "of batches that count as varying", least=2)
    spike_share: float = threshold(0.01, "of the steps that stand out where shapes vary at least")


@rule(
    "cudnn-benchmark",
    family="precision",
    subject="run",
    level=Level.E2,
    behind=("data-starvation",),
    thresholds=Thresholds,
)
def cudnn_benchmark(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    model, loader = rank.facts.model, rank.train_loader
    if trains_on(case) != "cuda" or model.conv_share is None or model.conv_share < limits.conv_share:
        return None
    if model.deterministic is not False or model.compiled is not False or loader is None:
        return None
    if model.cudnn_benchmark is False and _is_steady(loader):
        return _draft(case, loader, True)
    if model.cudnn_benchmark is True and _varies(loader, limits) and _spikes(rank) >= limits.spike_share:
        return _draft(case, loader, False)
    return None


def _is_steady(loader: LoaderFacts) -> bool:
    return (loader.batches_inspected or 0) >= FEWEST_BATCHES and loader.batch_shapes == 1


def _varies(loader: LoaderFacts, limits: Thresholds) -> bool:
    inspected, shapes = loader.batches_inspected or 0, loader.batch_shapes or 0
    return shapes >= limits.shapes and shapes >= NEW_SHARE * inspected


def _spikes(rank: RankWindow) -> float:
    """The share of settled steps that stand out by eight robust sigmas."""
    periods = [period for (period,) in settled(rank, rank.columns.period_seconds)]
    if not periods:
        return 0.0
    limit = median(periods) + SIGMAS * robust_sigma(periods)
    return sum(period > limit for period in periods) / len(periods)


def _draft(case: RunCase, loader: LoaderFacts, wanted: bool) -> Draft:
    rank = case.run.critical
    model = rank.facts.model
    statement = f"torch.backends.cudnn.benchmark = {wanted}"
    shapes = "one shape" if loader.batch_shapes == 1 else f"{loader.batch_shapes} shapes"
    return Draft(
        summary=(
            f"cuDNN may try its algorithms for the convolutions of {case.run.title}: its batches keep their shape"
            if wanted
            else f"cuDNN tries its algorithms for each new shape of {case.run.title}, and its shapes keep changing"
        ),
        severity=Severity.HINT,
        level=Level.E2,
        evidence=(
            Measure("cudnn_benchmark", str(model.cudnn_benchmark), f"cudnn.benchmark is {model.cudnn_benchmark}"),
            Measure("batch_shapes", loader.batch_shapes, f"{shapes} in {loader.batches_inspected} inspected batches"),
            Measure("conv_share", model.conv_share, f"{percent(model.conv_share or 0)} of the parameters in conv"),
            *(
                ()
                if wanted
                else (Measure("spike_share", round(_spikes(rank), 4), f"{percent(_spikes(rank))} of steps stand out"),)
            ),
        ),
        fix=Fix(
            text=f"Switch it {'on' if wanted else 'off'} once, before training",
            code=statement,
            file=model.optimizer_file,
            line=model.optimizer_line,
            value=str(wanted),
            edit=setup_edit(rank.facts, statement),
        ),
        hint="no figure: nothing where cuDNN's first choice was the best already",
        ruled_out=(RuledOut("deterministic algorithms wanted", "neither cuDNN nor torch is asked for them"),),
        verify="Time per step after the first batches",
        chart=("run.step_seconds",),
    )
