"""The driver reported a GPU error.

Means:
    An XID is the driver's number for what went wrong, from a program's bad pointer (31) to a GPU that fell off the bus
    (79). It is an event at one moment, not a state.
Evidence:
    NVML's event, or the kernel log where it can be read.
Fires:
    At once.
Clears:
    The GPU answers with a newer session; events that need no action (43, 45, 63) after ten minutes.
Not when:
    13, 31, 43 and 45 are usually the application's own bug.
Causes:
    The number says: the application (13, 31, 43, 45), memory (48, 63, 64, 94, 95), the bus (79), the GPU's processor
    (119, 120), NVLink (74).
Fix:
    NVIDIA's action for that number. gpuwatch never resets anything; it prints the action.
Gain:
    None in speed: it keeps the job alive, or says why it died.
Verify:
    No new XID.
Source:
    NVIDIA's XID catalogue, as vendored in gpud@4a8de33a.
"""

from __future__ import annotations

from gpuwatch.diagnosis.advice.xids import draft_of
from gpuwatch.diagnosis.finding import Draft, Level
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule


@rule("xid-error", family="health", subject="gpu", level=Level.E0, gated=False, fire_after=1)
def xid_error(case: GpuCase) -> Draft | None:
    """Fires on the worst error of the session that still matters."""
    return draft_of(gpu_name(case.gpu), case.gpu.xids, case.now_ns)
