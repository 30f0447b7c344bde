"""A function that each DataLoader worker runs first, as a fix."""

from __future__ import annotations

from gpuwatch.diagnosis.advice.code import place_of
from gpuwatch.diagnosis.finding import Fix, WorkerInitEdit
from gpuwatch.samples import LoaderFacts


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
