"""The samples of a part of a recording, with what stood when it began."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwatch.recording.reader import Recording


def samples_of(recording: Recording, start_ns: int, end_ns: int) -> Iterator[Any]:
    """The standing facts, the samples in the order in which they came, then the findings.

    Facts keep the time they were read at, which may lie before the stretch.
    """
    yield from recording.standing_facts(start_ns)
    yield from recording.samples(start_ns, end_ns)
    yield from recording.findings(start_ns, end_ns)
