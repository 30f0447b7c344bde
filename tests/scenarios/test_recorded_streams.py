"""What today's rules say about trainings that were recorded on a real GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import DEFAULT_OUT
from benchmarks.gpu.replay import replayed_findings
from benchmarks.gpu.seen import WARNED
from benchmarks.gpu.stream import MOST_BYTES, SUFFIX, read
from gpuwatch.diagnosis.rules import all_rules

STREAMS = sorted((DEFAULT_OUT / "streams").glob(f"*{SUFFIX}"))
NONE_YET = pytest.param(
    None,
    id="none",
    marks=pytest.mark.skip("no stream is in the repository: `python -m benchmarks.gpu` records them on an NVIDIA GPU"),
)


@pytest.mark.parametrize("path", STREAMS or [NONE_YET], ids=lambda path: path.name.removesuffix(SUFFIX))
def test_recorded_training_is_diagnosed_as_its_label_says(path: Path) -> None:
    assert path.stat().st_size <= MOST_BYTES
    stream = read(path)
    label = {name: frozenset(stream.about[name]) for name in ("must", "may", "never")}
    known = frozenset(rule.id for rule in all_rules())
    seen = replayed_findings(stream).seen
    recorded_seconds = (stream.ended_ns - stream.started_ns) / 1e9
    # A stream that was cut off ends before some of its findings came.
    late = {rule for rule, found in stream.about["found"].items() if found["seconds"] > recorded_seconds}
    assert (label["must"] & known) - late <= frozenset(seen)
    assert not label["never"] & frozenset(seen)
    warned = {rule for rule, found in seen.items() if found.severity in WARNED}
    assert warned <= label["must"] | label["may"]
