"""The command that proves a fix before anything is edited, where the trial can make the same change."""

from __future__ import annotations

import re
import shlex

from gpuwatch.diagnosis.finding import CallEdit, Edit, Fix, LoopEdit, SettingsEdit, SetupEdit, TransferEdit
from gpuwatch.timeline.windows import RunWindow

_SETTINGS = frozenset({"num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "in_order"})
_STATEMENTS = {
    'torch.set_float32_matmul_precision("high")': "tf32=true",
    "torch.backends.cudnn.benchmark = True": "cudnn_benchmark=true",
}


def trial_command(fix: Fix, run: RunWindow | None) -> str | None:
    """`gpuwatch trial num_workers=3 -- python train.py`; None where no trial makes this change of this run.

    Of several ranks it is not known how they were launched.
    """
    if run is None or len(run.ranks) != 1 or not run.critical.facts.command or fix.edit is None:
        return None
    changes: list[str] = []
    for edit in (fix.edit, *fix.also):
        found = _changes(edit)
        if found is None:
            return None
        changes += found
    return f"gpuwatch trial {' '.join(dict.fromkeys(changes))} -- {shlex.join(run.critical.facts.command)}"


def _changes(edit: Edit) -> list[str] | None:
    if isinstance(edit, TransferEdit):
        return ["non_blocking=true"]
    if isinstance(edit, SetupEdit):
        change = _STATEMENTS.get(edit.statement)
        return None if change is None else [change]
    if not isinstance(edit, CallEdit | LoopEdit | SettingsEdit) or edit.call != "DataLoader":
        return None
    if not edit.keywords.keys() <= _SETTINGS:
        return None
    if not all(re.fullmatch(r"\d+|True|False", value) for value in edit.keywords.values()):
        return None
    return [f"{name}={value.lower()}" for name, value in edit.keywords.items()]
