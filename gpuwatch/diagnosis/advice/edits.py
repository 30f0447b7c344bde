"""The edits that rules ask for, where the hook or the stacks know the line; else None."""

from __future__ import annotations

from typing import Literal

from gpuwatch.diagnosis.advice.lines import HotLine, is_installed
from gpuwatch.diagnosis.advice.traffic import batches_per_step
from gpuwatch.diagnosis.finding import AutocastEdit, CallEdit, IntervalEdit, ModelEdit, SetupEdit, TransferEdit
from gpuwatch.samples import LoaderFacts, ModelFacts, RunFacts
from gpuwatch.timeline.windows import PhaseTotals, RankWindow


def autocast_edit(model: ModelFacts, dtype: str) -> AutocastEdit | None:
    """Forward and loss under autocast; the hook saw where the backward is called."""
    if model.backward_file is None or model.backward_line is None:
        return None
    return AutocastEdit(model.backward_file, model.backward_line, dtype)


def optimizer_edit(model: ModelFacts, **keywords: str) -> CallEdit | None:
    """Keywords of the optimizer's own call: `fused="True"`."""
    if model.optimizer is None or model.optimizer_file is None or model.optimizer_line is None:
        return None
    return CallEdit(model.optimizer, model.optimizer_file, model.optimizer_line, keywords)


def model_edit(model: ModelFacts, statement: str) -> ModelEdit | None:
    """A statement about `{model}` before its optimizer is built.

    `{model}.compile()` leaves the names in a checkpoint as they are, and holds wherever the model is used;
    `torch.compile(model)` prefixes them with `_orig_mod.` (torch 2.13).
    """
    if model.optimizer_file is None or model.optimizer_line is None:
        return None
    return ModelEdit(model.optimizer_file, model.optimizer_line, statement)


def setup_edit(facts: RunFacts, statement: str) -> SetupEdit | None:
    """A statement behind the imports of the main script, or of the file that builds the optimizer."""
    script = next((argument for argument in facts.command[1:] if argument.endswith(".py")), None)
    file = script or facts.model.optimizer_file or facts.model.backward_file
    return None if file is None else SetupEdit(file, statement)


def transfer_edit(line: HotLine | None) -> TransferEdit | None:
    """Copies that do not block, on the line where most of the copying was seen."""
    return None if line is None or is_installed(line) else TransferEdit(line.file, line.line)


def logging_edit(line: HotLine | None, times: int, loader: LoaderFacts | None = None) -> IntervalEdit | None:
    """The line that logs or asks for a number, n times as rarely."""
    if line is None:
        return None
    file, number = _own_place(line.file, line.line, loader)
    return None if file is None or number is None else IntervalEdit(file, number, times, times=times)


def rarer_edit(
    rank: RankWindow, what: Literal["evaluate", "save"], total: PhaseTotals, line: HotLine | None, times: int
) -> IntervalEdit | None:
    """Evaluating or saving n times as rarely, where the hook or the stacks saw it happen."""
    file, number = total.file, total.line
    if file is None and line is not None:
        file, number = line.file, line.line
    file, number = _own_place(file, number, rank.train_loader)
    if file is None or number is None:
        return None
    return IntervalEdit(file, number, times, "epoch", times, _seen_intervals(rank, total), what)


def _own_place(file: str | None, line: int | None, loader: LoaderFacts | None) -> tuple[str | None, int | None]:
    """The place, or where a library's own loop was called from: from there it made its loader."""
    if file is not None and "-packages/" in file and loader is not None and loader.library is not None:
        return loader.file, loader.line
    return file, line


def _seen_intervals(rank: RankWindow, total: PhaseTotals) -> tuple[int, ...]:
    """What lies between two of them in steps, in batches and in epochs, as far as it is known and whole."""
    if not total.every_steps:
        return ()
    steps, batches = total.every_steps, total.every_steps * batches_per_step(rank)
    of_epoch = rank.train_loader.batches_per_epoch if rank.train_loader is not None else None
    epochs = batches / of_epoch if of_epoch else 0.0
    whole = (round(epochs),) if epochs >= 0.9 and abs(epochs - round(epochs)) < 0.1 else ()
    return tuple(dict.fromkeys((round(steps), round(batches), *whole)))
