"""The best arm as a patch of the user's files, and what of it no patch can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuwatch.diagnosis.advice.code import loader_fix
from gpuwatch.diagnosis.advice.edits import model_edit, setup_edit
from gpuwatch.diagnosis.finding import Edit
from gpuwatch.edits.source import process_started
from gpuwatch.samples import LoaderFacts
from gpuwatch.trial.changes import LOADER, Arm
from gpuwatch.trial.results import RunResult


@dataclass(frozen=True, slots=True)
class ArmPatch:
    """For `git apply`, and one sentence for each thing that is to be done by hand."""

    data: bytes
    by_hand: tuple[str, ...]


def patch_of(arm: Arm, probe: RunResult, folder: Path, read: Callable[[Path, float | None], bytes]) -> ArmPatch:
    """The changes that the hook made for an arm, as edits.

    Args:
        arm: the best one.
        probe: the run of the program as it is.
        folder: that the user works in.
        read: gives a file as it was when a process started.
    """
    # Here, not above: only for a trial that has something to change.
    from gpuwatch.edits.editor import combined_patch
    from gpuwatch.edits.workspace import Origin

    facts = probe.facts
    edits = list(_edits(arm, probe))
    words = [sentence for sentence, edit in edits if edit is None]
    named = [(sentence, edit) for sentence, edit in edits if edit is not None]
    started = process_started(facts.start_ticks) if facts is not None else None
    origin = Origin(lambda path: read(folder / path, started), folder, facts.command if facts is not None else ())
    patch = combined_patch([(edit, origin) for _, edit in named])
    failed = [
        f"{sentence} (not in the patch: {reason})"
        for (sentence, _), reason in zip(named, patch.reasons, strict=True)
        if reason is not None
    ]
    return ArmPatch(patch.data, tuple(dict.fromkeys([*failed, *words])))


def _edits(arm: Arm, probe: RunResult) -> Iterator[tuple[str, Edit | None]]:
    """What each change is in words, and as an edit where it can be one."""
    keywords = arm.of(LOADER)
    if keywords:
        texts = {name: repr(value) for name, value in keywords.items()}
        if probe.loader is not None and keywords.get("num_workers") == 0:
            texts |= _without_workers(probe.loader)
        fix = loader_fix(probe.loader, texts, "set these in the training's DataLoader", None)
        yield f"DataLoader(..., {', '.join(f'{name}={text}' for name, text in texts.items())})", fix.edit
    for name, value in arm.of(frozenset({"tf32", "cudnn_benchmark", "compile", "non_blocking"})).items():
        yield _switch(name, bool(value), probe)
    for name, value in arm.below("env.").items():
        yield f"export {name}={value}", None
    for name, value in arm.below("arg.").items():
        yield f"start it with --{name}{'' if value is None else f' {value}'}", None


def _without_workers(loader: LoaderFacts) -> dict[str, str]:
    """What the hook left out of the call because it cannot hold without workers."""
    left: dict[str, str] = {}
    if loader.persistent_workers:
        left["persistent_workers"] = "False"
    if loader.prefetch_factor is not None:
        left["prefetch_factor"] = "None"
    return left


def _switch(name: str, value: bool, probe: RunResult) -> tuple[str, Edit | None]:
    facts = probe.facts
    if name == "tf32":
        statement = f'torch.set_float32_matmul_precision("{"high" if value else "highest"}")'
        return statement, setup_edit(facts, statement) if facts is not None else None
    if name == "cudnn_benchmark":
        statement = f"torch.backends.cudnn.benchmark = {value}"
        return statement, setup_edit(facts, statement) if facts is not None else None
    if name == "compile":
        if not value:
            return "leave torch.compile out, or export TORCH_COMPILE_DISABLE=1", None
        return "model.compile(), before the optimizer", model_edit(facts.model, "{model}.compile()") if facts else None
    return f"{'' if value else 'no '}non_blocking=True where batches are copied to the GPU", None
