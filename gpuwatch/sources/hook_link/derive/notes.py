"""What the reader of a run must know about its figures."""

from __future__ import annotations

from gpuwatch.sources.hook_link.derive.steps import StepMachine


def notes_of(machine: StepMachine) -> tuple[str, ...]:
    """Says that waits are not seen, once enough steps came without a loader."""
    if not machine.reads_no_loader:
        return ()
    if any(state.background for state in machine.loaders.loaders.values()):
        return (
            "the DataLoader is read by a background thread, so the training's wait for it is not seen; "
            "wrap what the loop iterates: for batch in gpuwatch.loader(iterator)",
        )
    return (
        "the training reads no DataLoader, so its wait for data is not seen; "
        "wrap what the loop iterates: for batch in gpuwatch.loader(iterator)",
    )
