"""The fix as code and as an edit: which keywords of which call, and the line as one would write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gpuwatch.diagnosis.advice.lines import HotLine, is_installed, place
from gpuwatch.diagnosis.advice.stream import batches_per_step
from gpuwatch.diagnosis.finding import (
    CALL,
    SETTINGS_OF,
    AutocastEdit,
    CallEdit,
    Fix,
    IntervalEdit,
    LoopEdit,
    ModelEdit,
    SettingsEdit,
    SetupEdit,
    TransferEdit,
    WorkerInitEdit,
)
from gpuwatch.samples import LoaderFacts, ModelFacts, RunFacts
from gpuwatch.timeline.windows import PhaseTotals, RankWindow


def call_code(keywords: Mapping[str, str], call: str = CALL) -> str:
    """DataLoader(..., num_workers=6, pin_memory=True)."""
    return f"{call}(..., {', '.join(f'{name}={value}' for name, value in keywords.items())})"


def place_of(loader: LoaderFacts | None) -> tuple[str | None, int | None]:
    """The line that builds the loader; where only stacks tell of it, the line that loops over it."""
    if loader is None:
        return None, None
    return (loader.file, loader.line) if loader.file is not None else (loader.loop_file, loader.loop_line)


def loader_fix(loader: LoaderFacts | None, keywords: Mapping[str, str], text: str, value: int | str | None) -> Fix:
    """A change of a loader's keywords, at its file and line where the hook saw them, else at the loop over it.

    A loader that a library built has no call of the user's to edit: its settings go to the call that the library
    takes them from, where that is known, and else the fix says where to look.
    """
    if loader is not None and loader.library is not None:
        return _library_fix(loader, loader.library, keywords, text, value)
    if loader is not None and loader.file is None and loader.loop_file is not None:
        return _fix_from_outside(loader, loader.loop_file, keywords, text, value)
    file, line = place_of(loader)
    edit = None
    if loader is not None and file is not None and line is not None:
        edit = CallEdit(CALL, file, line, keywords, _present(loader, keywords), is_for_it_alone=loader.role == "eval")
    return Fix(text=text, code=call_code(keywords), file=file, line=line, value=value, edit=edit)


def _fix_from_outside(
    loader: LoaderFacts, loop_file: str, keywords: Mapping[str, str], text: str, value: int | str | None
) -> Fix:
    """The loader of a loop; where an installed package loops, what its user wrote is in the script that was started."""
    line = loader.loop_line
    call, settings, present = CALL, dict(keywords), _present(loader, keywords)
    installed = loop_file.rpartition("-packages/")
    if installed[0]:
        call, settings, present = _settings(installed[2].split("/")[0], keywords, present)
    edit: LoopEdit | SettingsEdit | None = None
    if installed[0] and settings:
        edit = SettingsEdit(call, None, settings, present)
    elif line is not None:
        edit = LoopEdit(CALL, loop_file, line, settings, present)
    return Fix(
        text=f"{text}; it is the loader that {place(loop_file, line or 0)} loops over",
        code=call_code(settings, call),
        file=loop_file,
        line=line,
        value=value,
        edit=edit,
    )


def _settings(
    library: str, keywords: Mapping[str, str], present: Mapping[str, str]
) -> tuple[str, dict[str, str], dict[str, str]]:
    """The call that a library takes a loader's settings from, and the keywords as that names them."""
    call, prefix, known = SETTINGS_OF.get(library, (CALL, "", frozenset(keywords)))
    named = {f"{prefix}{name}": setting for name, setting in keywords.items() if name in known}
    return call, named, {f"{prefix}{name}": setting for name, setting in present.items()}


def _library_fix(
    loader: LoaderFacts, library: str, keywords: Mapping[str, str], text: str, value: int | str | None
) -> Fix:
    if library not in SETTINGS_OF:
        return _through_library(loader, library, keywords, text, value)
    call, settings, present = _settings(library, keywords, _present(loader, keywords))
    return Fix(
        text=f"{text} (in the {call} given to {library}: it builds the loader, called from this line)",
        code=call_code(settings, call),
        file=loader.file,
        line=loader.line,
        value=value,
        edit=SettingsEdit(call, loader.file, settings, present) if settings and loader.file is not None else None,
    )


def _through_library(
    loader: LoaderFacts, library: str, keywords: Mapping[str, str], text: str, value: int | str | None
) -> Fix:
    """Lightning stands between the user's own DataLoader call and torch: where the line has such a call, it is it."""
    file, line = loader.file, loader.line
    return Fix(
        text=f"{text} (in your own DataLoader call, or in {library}'s settings where {library} builds the loader)",
        code=call_code(keywords),
        file=file,
        line=line,
        value=value,
        edit=None if file is None or line is None else CallEdit(CALL, file, line, keywords, _present(loader, keywords)),
    )


def _present(loader: LoaderFacts, keywords: Mapping[str, str]) -> dict[str, str]:
    """What the live loader has for the keywords, as Python source."""
    known = {name: getattr(loader, name, None) for name in keywords}
    return {name: repr(value) for name, value in known.items() if value is not None}


def worker_keywords(loader: LoaderFacts | None, count: int, *, on_gpu: bool) -> dict[str, str]:
    """Keywords for `count` workers: kept alive between epochs, and with pinned memory where there is a GPU."""
    keywords = {"num_workers": str(count)}
    if loader is None or not loader.persistent_workers:
        keywords["persistent_workers"] = "True"
    if on_gpu and (loader is None or not loader.pin_memory):
        keywords["pin_memory"] = "True"
    return keywords


def worker_init_fix(
    loader: LoaderFacts | None, function: str, statements: tuple[str, ...], text: str, value: int
) -> Fix:
    """The function with these statements, and an edit that hands it over where the user builds the loader."""
    file, line = place_of(loader)
    edit = None
    if loader is not None and loader.library is None and loader.file is not None and loader.line is not None:
        edit = WorkerInitEdit(loader.file, loader.line, function, statements)
    return Fix(
        text=text,
        code="\n".join((f"def {function}(worker_id):", *(f"    {statement}" for statement in statements))),
        file=file,
        line=line,
        value=value,
        edit=edit,
    )


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
