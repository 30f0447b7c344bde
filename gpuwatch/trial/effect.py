"""Whether what an arm asked for was there in its run: a change that never came has nothing to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwatch.samples import LoaderFacts, ModelFacts, RunFacts
from gpuwatch.trial.changes import LOADER, Arm, Change, command_of
from gpuwatch.trial.results import RunResult

_TF32 = ("high", "medium")


def ineffective(arm: Arm, run: RunResult) -> tuple[tuple[Change, str], ...]:
    """The changes that did not take effect in the run, each with the reason."""
    found = [(change, _missing(change, run)) for change in arm.changes]
    return tuple((change, reason) for change, reason in found if reason is not None)


def already_so(arm: Arm, look: RunResult, command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the program as it is does all that the arm asks for."""
    return all(_is_so(change, look, command, environment) for change in arm.changes)


def _missing(change: Change, run: RunResult) -> str | None:
    facts = run.facts
    if facts is None or change.name.startswith(("env.", "arg.")):
        return None  # given to every process that starts: whether it respects them is its own affair
    if change.name in LOADER:
        return _missing_of_loader(change, facts, run.loader)
    if change.name == "compile":
        wanted, seen = change.value, facts.model.compiled
        return None if seen is wanted else ("nothing was compiled" if wanted else "something was compiled all the same")
    if facts.device == "cpu":
        return "it trained on the CPU"
    if change.name == "non_blocking":
        return None if "non_blocking" in facts.overrides else "no copy of pinned memory to the GPU was seen"
    return None if _switch_is(change, facts.model) else "the program sets it otherwise after its optimizer is built"


def _missing_of_loader(change: Change, facts: RunFacts, loader: LoaderFacts | None) -> str | None:
    if loader is None:
        return "no DataLoader was read in training"
    if change.name in ("prefetch_factor", "persistent_workers") and not loader.num_workers and change.value:
        return "there are no workers"
    if change.name not in facts.overrides:
        return "the training's DataLoader is not built where it was seen to be built"
    live = getattr(loader, change.name)
    if live != change.value:
        had = "has no such setting in this version of torch" if live is None else f"has {change.name}={live}"
        return f"the training's DataLoader {had}"
    if change.name == "pin_memory" and change.value and facts.device == "cpu":
        return "it trained on the CPU, which pins nothing"
    return None


def _is_so(change: Change, look: RunResult, command: Sequence[str], environment: Mapping[str, str]) -> bool:
    kind, _, rest = change.name.partition(".")
    if kind == "env":
        return environment.get(rest) == str(change.value)
    if kind == "arg":
        return command_of(Arm((change,)), command) == list(command)
    if change.name in LOADER:
        loader = look.loader
        return loader is not None and getattr(loader, change.name) == change.value
    if look.facts is None or change.name == "non_blocking":
        return False
    if change.name == "compile":
        return look.facts.model.compiled is change.value
    return _switch_is(change, look.facts.model)


def _switch_is(change: Change, model: ModelFacts) -> bool:
    if change.name == "tf32":
        return model.float32_matmul_precision is not None and (
            (model.float32_matmul_precision in _TF32) is change.value
        )
    return model.cudnn_benchmark is change.value
