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

from collections.abc import Iterable

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.numbers import seconds
from gpuwatch.samples import XidEvent

RESTART_APP = "Restart the training; the cause is usually the application itself"
RESET_GPU = "Stop all work on this GPU, then reset it (nvidia-smi --gpu-reset) or restart the machine"
RESTART_MACHINE = "Restart the machine; if the error comes back, have the GPU replaced"
NVLINK = "Check the NVLink connections; run NVIDIA's link diagnostics"
NOTHING = "No action for this error itself; look for an error before it"

TABLE: dict[int, tuple[str, Severity, str]] = {
    13: ("graphics exception", Severity.WARNING, RESTART_APP),
    31: ("GPU memory page fault", Severity.WARNING, RESTART_APP),
    69: ("graphics engine class error", Severity.WARNING, RESTART_APP),
    80: ("corrupted data sent to the GPU", Severity.WARNING, RESTART_APP),
    94: ("contained memory error", Severity.WARNING, RESTART_APP),
    43: ("GPU stopped processing", Severity.INFO, NOTHING),
    45: ("cleanup after an earlier error", Severity.INFO, NOTHING),
    63: ("row remapping recorded", Severity.INFO, "Reset the GPU at the next opportunity; the row is then replaced"),
    46: ("GPU timeout", Severity.CRITICAL, RESET_GPU),
    62: ("internal micro-controller halt", Severity.CRITICAL, RESET_GPU),
    109: ("context switch timeout", Severity.CRITICAL, RESET_GPU),
    119: ("GSP firmware timeout", Severity.CRITICAL, RESET_GPU),
    120: ("GSP firmware error", Severity.CRITICAL, RESET_GPU),
    143: ("GPU initialization error", Severity.CRITICAL, RESET_GPU),
    158: ("fatal timeout", Severity.CRITICAL, RESET_GPU),
    48: ("double-bit memory error", Severity.CRITICAL, RESET_GPU),
    140: ("unrecovered memory error", Severity.CRITICAL, RESET_GPU),
    64: ("row remapping failed", Severity.CRITICAL, RESET_GPU),
    95: ("uncontained memory error", Severity.CRITICAL, RESET_GPU),
    74: ("NVLink error", Severity.CRITICAL, NVLINK),
    144: ("NVLink error", Severity.CRITICAL, NVLINK),
    145: ("NVLink error", Severity.CRITICAL, NVLINK),
    149: ("NVLink error", Severity.CRITICAL, NVLINK),
    79: ("GPU has fallen off the bus", Severity.CRITICAL, RESTART_MACHINE),
    92: ("high rate of single-bit memory errors", Severity.WARNING, "Watch it; contact the vendor if it stays"),
    154: ("recovery action changed", Severity.WARNING, "Follow the action that the driver names"),
}
UNKNOWN = ("unknown error", Severity.WARNING, "Look the number up in NVIDIA's XID catalogue")
FORGET_SECONDS = 600.0


@rule("xid-error", family="health", subject="gpu", level=Level.E0, gated=False, fire_after=1)
def xid_error(case: GpuCase) -> Draft | None:
    return draft_of(gpu_name(case.gpu), case.gpu.xids, case.now_ns)


def draft_of(subject: str, events: Iterable[XidEvent], now_ns: int) -> Draft | None:
    """The worst error of the session that still matters; None where there is none."""
    events = [event for event in events if _matters(event, now_ns)]
    if not events:
        return None
    worst = min(events, key=lambda event: (_entry(event)[1].order, -event.time_ns))
    name, severity, action = _entry(worst)
    age = (now_ns - worst.time_ns) / 1e9
    return Draft(
        summary=f"{subject} reported XID {worst.xid}: {name}, {seconds(age)} ago",
        severity=severity,
        level=Level.E0,
        evidence=tuple(
            Measure(
                f"xid_{event.xid}",
                event.text or _entry(event)[0],
                f"XID {event.xid} ({_entry(event)[0]}) {seconds((now_ns - event.time_ns) / 1e9)} ago",
            )
            for event in sorted(events, key=lambda event: -event.time_ns)[:8]
        ),
        fix=Fix(text=action, value=worst.xid),
        verify="No new XID",
    )


def _entry(event: XidEvent) -> tuple[str, Severity, str]:
    return TABLE.get(event.xid, UNKNOWN)


def _matters(event: XidEvent, now_ns: int) -> bool:
    return _entry(event)[1] is not Severity.INFO or now_ns - event.time_ns < FORGET_SECONDS * 1e9
