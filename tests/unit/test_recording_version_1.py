"""A recording that gpuwatch 0.1.0 made still opens, and holds what it held: all kinds of samples, figures, findings.

The file is a minute of the simulated starved run, then two samples of every kind with odd values, in a segment of their
own. The JSON next to it is what 0.1.0 read from it. A field that is dropped shows here; renamed ones are in
RENAMED.
"""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.recording.reader import Recording
from gpuwatch.recording.stretch import summarize

MADE = Path(__file__).parent / "recordings" / "version-1"
RENAMED = {
    "rung": "visibility",
    "climb": "how_to_see_more",
    "batch_looks": "batches_inspected",
    "feeder_looks": "feeder_rounds",
    "Standing": "CurrentLine",
}
MINUTE_NS = 60_000_000_000
BEGAN_NS = 86_400_000_000_000


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    path = tmp_path / "version-1.gpuwatch"
    path.write_bytes(lzma.decompress(MADE.with_suffix(".gpuwatch.xz").read_bytes()))
    with Recording(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def held() -> dict[str, Any]:
    held: dict[str, Any] = json.loads(MADE.with_suffix(".json").read_text(encoding="utf-8"))
    return held


def renamed(value: Any) -> Any:
    """What 0.1.0 read, under today's names."""
    if isinstance(value, list):
        return [renamed(each) for each in value]
    if isinstance(value, dict):
        now = {RENAMED.get(name, name): renamed(each) for name, each in value.items()}
        return now | {"visibility": "process"} if now.get("visibility") == "proc" else now
    return value


def of_then(now: Any, then: Any) -> Any:
    """What is there now of the fields that there were then; records within records may have got more as well."""
    if isinstance(then, dict) and isinstance(now, dict):
        return {field: of_then(now.get(field, "gone"), value) for field, value in then.items()}
    if isinstance(then, list) and isinstance(now, list) and len(now) == len(then):
        return [of_then(*each) for each in zip(now, then, strict=True)]
    return now


def test_it_opens_whole(recording: Recording, held: dict[str, Any]) -> None:
    minute = recording.samples(recording.start_ns, BEGAN_NS + MINUTE_NS)
    assert dict(Counter(type(sample).__name__ for sample in minute)) == renamed(held["counts"])
    assert [gpu.uuid for gpu in recording.gpus()] == held["gpus"]
    assert recording.meta.problem is None
    assert (recording.meta.version, recording.meta.ended) == ("0.1.0", True)


def test_every_kind_of_sample_has_its_values(recording: Recording, held: dict[str, Any]) -> None:
    samples = list(recording.samples(recording.end_ns - 1, recording.end_ns))
    assert len(samples) == len(held["every_kind"])
    for sample, (name, fields) in zip(samples, held["every_kind"], strict=True):
        now = json.loads(json.dumps(asdict(sample)))
        then = renamed(fields)
        assert (type(sample).__name__, of_then(now, then)) == (RENAMED.get(name, name), then)


def test_its_minutes_and_findings_are_as_they_were(recording: Recording, held: dict[str, Any]) -> None:
    metrics = {row[2] for row in held["rollups"]}
    rows = recording.rollups(BEGAN_NS, BEGAN_NS + MINUTE_NS - 1_000_000_000, metrics=metrics)
    assert [list(row) for row in rows] == held["rollups"]
    found = recording.findings(recording.start_ns, recording.end_ns)
    assert [asdict(span) | {"blob": span.blob.decode()} for span in found] == held["findings"]


def test_its_run_is_summarized(recording: Recording) -> None:
    summary = summarize(recording, recording.start_ns, BEGAN_NS + MINUTE_NS)
    assert summary.basis == "samples" and len(summary.runs) == 1
    assert summary.runs[0].steps > 10 and summary.runs[0].wait_share is not None
