"""The driver reported a GPU error that belongs to none of the GPUs that gpuwatch sees.

Means:
    The kernel log names a GPU by its place on the bus. One that has fallen off it, is hidden from this container, or
    was lost before gpuwatch started is in no list, and its error must be reported all the same.
Evidence:
    An XID in the kernel log whose bus address no watched GPU has.
Fires:
    At once.
Clears:
    With a new session; events that need no action (43, 45, 63) after ten minutes.
Not when:
    The machine has one GPU: the error belongs to it, and xid-error reports it.
Causes:
    As for xid-error, by the number; the GPU was gone or not yet known when the event came.
Fix:
    NVIDIA's action for that number, on the GPU at the address that the message names; nvidia-smi -L shows which GPUs
    still answer.
Gain:
    None in speed: it keeps the other jobs of the machine alive.
Verify:
    No new XID, and as many GPUs as the machine has.
Source:
    NVIDIA's XID catalogue, as vendored in gpud@4a8de33a; NVML gave no event for XID 79, 119 and 120 in DCGM#162.
"""

from __future__ import annotations

from dataclasses import replace

from gpuwatch.diagnosis.finding import Draft, Level
from gpuwatch.diagnosis.rule import MachineCase, rule
from gpuwatch.diagnosis.rules.xid_error import draft_of


@rule("xid-unplaced", family="health", subject="machine", level=Level.E0, gated=False, fire_after=1)
def xid_unplaced(case: MachineCase) -> Draft | None:
    if len(case.scene.gpus) == 1:
        return None
    draft = draft_of("A GPU that is not among those seen", case.scene.xids, case.now_ns)
    if draft is None or draft.fix is None:
        return draft
    return replace(
        draft, fix=replace(draft.fix, code="nvidia-smi -L"), verify="No new XID, and all GPUs of the machine answer"
    )
