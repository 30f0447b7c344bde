"""The edits that rules ask for, where the hook or the stacks know the line; else None."""

from __future__ import annotations

from gpuwatch.diagnosis.advice.lines import HotLine, is_installed
from gpuwatch.diagnosis.finding import AutocastEdit, CallEdit, IntervalEdit, ModelEdit, SetupEdit, TransferEdit
from gpuwatch.samples import ModelFacts, RunFacts


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


def logging_edit(line: HotLine | None, every: int) -> IntervalEdit | None:
    """The line that asks for a number, every so many steps only."""
    return None if line is None else IntervalEdit(line.file, line.line, every)
