"""The fix as code: which keywords of which call, and the line as one would write it."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwatch.diagnosis.finding import CallEdit, Fix
from gpuwatch.samples import LoaderFacts

CALL = "DataLoader"


def call_code(keywords: Mapping[str, str], call: str = CALL) -> str:
    """DataLoader(..., num_workers=6, pin_memory=True)."""
    return f"{call}(..., {', '.join(f'{name}={value}' for name, value in keywords.items())})"


def loader_fix(loader: LoaderFacts | None, keywords: Mapping[str, str], text: str, value: int | str | None) -> Fix:
    """A change of a loader's keywords, at its file and line where the hook saw them."""
    edit = None
    if loader is not None and loader.file is not None and loader.line is not None:
        edit = CallEdit(CALL, loader.file, loader.line, keywords)
    return Fix(
        text=text,
        code=call_code(keywords),
        file=loader.file if loader else None,
        line=loader.line if loader else None,
        value=value,
        edit=edit,
    )


def worker_keywords(loader: LoaderFacts | None, count: int, *, on_gpu: bool) -> dict[str, str]:
    """Keywords for `count` workers: kept alive between epochs, and with pinned memory where there is a GPU."""
    keywords = {"num_workers": str(count)}
    if loader is None or not loader.persistent_workers:
        keywords["persistent_workers"] = "True"
    if on_gpu and (loader is None or not loader.pin_memory):
        keywords["pin_memory"] = "True"
    return keywords
