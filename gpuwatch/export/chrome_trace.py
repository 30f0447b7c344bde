"""A recording as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: everything on one time axis."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

from gpuwatch.export.axis import Axis
from gpuwatch.export.trace_events import TraceEvents
from gpuwatch.export.tracks import Tracks
from gpuwatch.text.escape import json_text


def chrome_trace(samples: Iterable[Any], axis: Axis, end_ns: int, about: dict[str, Any]) -> Iterator[str]:
    """The trace as pieces of JSON: metadata, then all events in order of time, what encloses before what is within.

    A slice is known when it ends and sorted by when it began, so the events go through a temporary database, which
    keeps memory small; SQLite deletes its file by itself.

    Args:
        samples: in time order, findings last.
        axis: of time.
        end_ns: when the stretch ends; what still lasts ends then.
        about: what the trace is of, as its `otherData`.
    """
    tracks = Tracks(end_ns)
    with closing(sqlite3.connect("")) as database:
        database.execute("CREATE TABLE event (ts REAL, dur REAL, json TEXT)")
        database.executemany("INSERT INTO event VALUES (?, ?, ?)", _rows(TraceEvents(axis, tracks), samples, end_ns))
        yield f'{{"displayTimeUnit":"ms","otherData":{_json(about)},"traceEvents":[\n'
        lead = ""
        for event in tracks.metadata():
            yield lead + _json(event)
            lead = ",\n"
        for (text,) in database.execute("SELECT json FROM event ORDER BY ts, dur DESC, rowid"):
            yield lead + text
            lead = ",\n"
        yield "\n]}\n"


def _rows(maker: TraceEvents, samples: Iterable[Any], end_ns: int) -> Iterator[tuple[float, float, str]]:
    for sample in samples:
        for event in maker.events(sample):
            if event["ph"] == "X" and event["ts"] == event["dur"] == 0.0:  # of the hook's past: over before the start
                continue
            yield event["ts"], event.get("dur", 0.0), _json(event)
    for event in maker.close(end_ns):
        yield event["ts"], event.get("dur", 0.0), _json(event)


def _json(value: Any) -> str:
    return json_text(value, compact=True)
