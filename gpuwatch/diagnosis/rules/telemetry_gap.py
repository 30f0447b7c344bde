"""gpuwatch itself missed samples, so conclusions are weaker.

Means:
    Polls came late or records were dropped: a busy machine, a slow driver or a suspended laptop.
Evidence:
    The 95th percentile of the time between polls above twice the interval, more than 1% of the hook's records
    dropped, or malformed packets.
Fires:
    Any of the three.
Clears:
    A clean minute.
Not when:
    Fewer than one poll in twenty is late. A clock that jumps or a suspended machine shows only as late polls.
Causes:
    A loaded or suspended machine, a driver that answers late, or records that the trainer sent faster than they were
    read.
Fix:
    A longer --interval, or less load on the machine.
Gain:
    None in speed: figures that can be trusted.
Verify:
    The report's data quality shows no drops and a gap near the interval.
Source:
    gpuwatch's own counters.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import MachineCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent, seconds

A_CLEAN_MINUTE = 12  # evaluations, 5 s apart
LONGER = 2
MOST_SECONDS = 60.0
"""What `--interval` takes at most."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    late_polls: float = threshold(
        2.0, "intervals between two polls (95th percentile): reported above this", least=1.0, most=1000.0
    )
    dropped_share: float = threshold(0.01, "of the records lost: reported above this")


@rule(
    "telemetry-gap",
    family="sharing",
    subject="machine",
    level=Level.E0,
    gated=False,
    clear_after=A_CLEAN_MINUTE,
    thresholds=Thresholds,
)
def telemetry_gap(case: MachineCase, limits: Thresholds) -> Draft | None:
    quality = case.scene.quality
    troubles: list[Measure] = []
    gap = quality.poll_gap_p95_seconds
    if gap is not None and gap > limits.late_polls * quality.poll_interval_seconds:
        troubles.append(
            Measure(
                "poll_gap_p95_seconds",
                round(gap, 2),
                f"polls {seconds(gap)} apart, asked every {seconds(quality.poll_interval_seconds)}",
            )
        )
    sent = quality.received_records + quality.dropped_records
    if sent and quality.dropped_records > limits.dropped_share * sent:
        share = quality.dropped_records / sent
        troubles.append(
            Measure("dropped_records", quality.dropped_records, f"{percent(share)} of the hook's records dropped")
        )
    malformed = quality.malformed_packets
    if malformed:
        text = f"{malformed} malformed packet{'' if malformed == 1 else 's'}"
        troubles.append(Measure("malformed_packets", malformed, text))
    if not troubles:
        return None
    longer = min(LONGER * quality.poll_interval_seconds, MOST_SECONDS)
    return Draft(
        summary=f"gpuwatch measured with gaps: {troubles[0].text}",
        severity=Severity.INFO,
        level=Level.E0,
        evidence=tuple(troubles),
        fix=Fix(
            text="Poll less often, or reduce the load on the machine",
            code=f"gpuwatch --interval {longer:g}",
            value=longer,
        ),
        verify="One minute without a gap",
    )
