"""The fix as code: which keywords of which call, and the line as one would write it."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwatch.diagnosis.advice.lines import place
from gpuwatch.diagnosis.finding import CallEdit, Fix, LoopEdit, SettingsEdit
from gpuwatch.samples import LoaderFacts

CALL = "DataLoader"

SETTINGS_OF: dict[str, tuple[str, str, frozenset[str]]] = {
    "transformers": (
        "TrainingArguments",
        "dataloader_",
        frozenset({"num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "drop_last"}),
    ),
}
"""Libraries that build the loader themselves: the user's call that takes its settings, their prefix, their names."""


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
        edit = CallEdit(CALL, file, line, keywords, _present(loader, keywords))
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
