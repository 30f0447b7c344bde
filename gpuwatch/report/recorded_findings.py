"""The findings of a recording: those that stand at its end, and those that stood before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.monitor.finding_records import from_blob, severity_of
from gpuwatch.recording.reader import Recording
from gpuwatch.report.durations import duration_words
from gpuwatch.report.stretches import Key, Stood, Stretch, finding_stretches, longest, total_seconds

_STANDS = ("firing", "clearing")
_LEAST_SECONDS = 60.0


def stood_in(recording: Recording, start_ns: int, end_ns: int) -> list[Stood]:
    """All findings of a stretch, those that stood longest first."""
    spans: dict[Key, list[Stretch]] = {}
    last: dict[Key, tuple[int, bytes]] = {}
    for span in recording.findings(start_ns, end_ns):
        if span.state not in _STANDS:
            continue
        key = (span.rule, span.run, span.gpu)
        until_ns = end_ns if span.end_ns is None else min(span.end_ns, end_ns)
        spans.setdefault(key, []).append(Stretch("finding", span.rule, max(start_ns, span.start_ns), until_ns))
        last[key] = max(last.get(key, (0, b"")), (until_ns, span.blob))
    found = [Stood(key, total_seconds(spans[key]), last[key][0] < end_ns, last[key][1]) for key in spans]
    return sorted(found, key=lambda each: (-each.seconds, each.key[0]))


def merged(standing: Sequence[Finding], stood: Iterable[Stood], start_ns: int, end_ns: int) -> tuple[Finding, ...]:
    """Those that stand and those that did, each saying for how long; worst first, brief ones behind lasting ones."""
    total = (end_ns - start_ns) / 1e9
    now = {key_of(finding): finding for finding in standing}
    told: list[tuple[float, Finding]] = []
    for each in stood:
        finding = now.pop(each.key, None) or known(each.blob)
        if finding is None:
            continue
        is_brief = each.is_over and each.seconds < _LEAST_SECONDS and finding.severity is not Severity.CRITICAL
        if not is_brief:
            told.append((each.seconds, _with_length(finding, each, total)))
    told += [(0.0, finding) for finding in now.values()]
    return tuple(
        finding
        for seconds, finding in sorted(
            told,
            key=lambda entry: (
                entry[1].behind is not None,
                entry[0] < total / 20 and entry[1].severity is not Severity.CRITICAL,
                entry[1].severity.order,
                -entry[0],
            ),
        )
    )


def finding_spans(recording: Recording, standing: Sequence[Finding], start_ns: int, end_ns: int) -> tuple[Stretch, ...]:
    """When findings stood, for the page's lanes; as the rules say it now, where nothing was written down."""
    series = {key_of(finding): finding.chart for finding in standing}
    found: dict[tuple[Key, Severity], list[Stretch]] = {}
    for span in recording.findings(start_ns, end_ns):
        key, severity = (span.rule, span.run, span.gpu), severity_of(span)
        if span.state not in _STANDS or severity is None:
            continue
        if key not in series:
            finding = known(span.blob)
            series[key] = () if finding is None else finding.chart
        first_ns = max(start_ns, span.start_ns)
        until_ns = end_ns if span.end_ns is None else min(end_ns, span.end_ns)
        same = found.setdefault((key, severity), [])
        if same and first_ns <= same[-1].end_ns:  # it wavered between firing and clearing
            same[-1] = replace(same[-1], end_ns=max(until_ns, same[-1].end_ns))
        else:
            same.append(Stretch("finding", span.rule, first_ns, until_ns, span.run, span.gpu, severity, series[key]))
    every = [each for same in found.values() for each in same]
    return longest(every, end_ns - start_ns) if every else finding_stretches(standing, start_ns, end_ns)


def key_of(finding: Finding) -> Key:
    """What tells a finding from all others that stand at the same time."""
    return (finding.rule, finding.run, finding.gpu)


def known(blob: bytes) -> Finding | None:
    """A finding as it was written down; None where another version did so in words that this one does not know."""
    try:
        return from_blob(blob)
    except ValueError:
        return None


def _with_length(finding: Finding, stood: Stood, total: float) -> Finding:
    """Its sentence is of when it stood: one that is over says that it is."""
    length = f"{duration_words(stood.seconds)} of {duration_words(total)}"
    told = f"it stood for {length} and is over" if stood.is_over else f"so for {length}"
    return replace(finding, summary=f"{finding.summary}; {told}")
