"""Recorded streams: written, read back and replayed, they say what the watch said."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu.replay import replayed_findings
from benchmarks.gpu.seen import FindingLog
from benchmarks.gpu.stream import RecordingTimeline, Stream, StreamError, nameless, read, write
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.monitor.clock import VirtualClock
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import Origin
from gpuwatch.samples import Candidates, MachineFacts
from gpuwatch.sources.simulator.scenarios import SCENARIOS
from gpuwatch.sources.simulator.source import SimulatorSource

START_NS = 86_400_000_000_000
SECONDS = 60


def watched(scenario: str, seconds: int = SECONDS) -> tuple[Stream, FindingLog]:
    """A simulated watch, recorded."""
    clock = VirtualClock(START_NS)
    timeline = RecordingTimeline(clock.now_ns)
    source = SimulatorSource(scenario, start_ns=START_NS)
    monitor = Monitor([source], origin=Origin("simulated", scenario), clock=clock, engine=Engine(), timeline=timeline)
    log = FindingLog()
    monitor.run_until(START_NS + seconds * 1_000_000_000, on_tick=log.take)
    monitor.stop()
    return timeline.stream(about={"case": scenario, "must": sorted(SCENARIOS[scenario].must)}), log


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_file_holds_the_same_samples_and_gives_the_same_findings(scenario: str, tmp_path: Path) -> None:
    stream, log = watched(scenario)
    path = tmp_path / "stream.jsonl.gz"
    assert write(path, stream, most_bytes=10_000_000) == pytest.approx(SECONDS, abs=0.2)
    again = read(path)
    assert again == stream
    assert replayed_findings(again).seen == log.seen


def test_a_replay_brings_the_findings_of_a_starved_run(tmp_path: Path) -> None:
    stream, _ = watched("starved")
    write(tmp_path / "stream.jsonl.gz", stream)
    assert {"data-starvation", "workers-zero"} <= replayed_findings(read(tmp_path / "stream.jsonl.gz")).rules()


def test_what_is_too_much_is_cut_off_at_the_end(tmp_path: Path) -> None:
    stream, _ = watched("healthy")
    path = tmp_path / "stream.jsonl.gz"
    seconds = write(path, stream, most_bytes=20_000)
    assert path.stat().st_size <= 20_000
    kept = read(path)
    assert 5 < seconds < SECONDS / 2
    assert (kept.ended_ns - kept.started_ns) / 1e9 == pytest.approx(seconds)
    assert kept.arrivals == stream.arrivals[: len(kept.arrivals)]


def test_the_same_watch_gives_the_same_bytes(tmp_path: Path) -> None:
    stream, _ = watched("starved", 10)
    for name in ("one", "two"):
        write(tmp_path / name, stream)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_other_processes_of_the_machine_are_not_recorded() -> None:
    timeline = RecordingTimeline(lambda: 7)
    timeline.add(Candidates(7, ()))
    timeline.extend([Candidates(8, ())])
    assert timeline.stream().arrivals == ()


def test_what_is_published_names_neither_the_machine_nor_its_folders() -> None:
    stream, _ = watched("starved", 10)
    named = replace(stream, arrivals=(*stream.arrivals, (START_NS, (MachineFacts(START_NS, "secret", "6.1", 4),))))
    text = repr(nameless(named, {"/simulated/": ""}))
    assert "secret" not in text
    assert "/simulated/" not in text
    assert "train.py" in text


@pytest.mark.parametrize(
    "content",
    [
        b"no gzip",
        gzip.compress(b""),
        gzip.compress(b"[]"),
        gzip.compress(b'{"format": "other"}'),
        gzip.compress(b'{"format": "gpuwatch sample stream", "version": 2}'),
        gzip.compress(b"\xff\xfe"),
    ],
    ids=["no gzip", "empty", "a list", "another format", "a later version", "no text"],
)
def test_a_file_that_is_none_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "stream.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(StreamError, match=r"stream\.jsonl\.gz"):
        read(path)


def test_a_broken_off_file_is_no_stream(tmp_path: Path) -> None:
    stream, _ = watched("starved", 10)
    path = tmp_path / "stream.jsonl.gz"
    write(path, stream)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StreamError):
        read(path)


def test_fields_that_a_later_version_dropped_are_left_out(tmp_path: Path) -> None:
    stream, _ = watched("starved", 5)
    path = tmp_path / "stream.jsonl.gz"
    write(path, stream)
    header, *lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    rows = [json.loads(line) for line in lines]
    for _, samples in rows:
        for _, found in samples:
            found["gone_since"] = 1
    path.write_bytes(gzip.compress("\n".join([header, *map(json.dumps, rows)]).encode()))
    assert read(path).arrivals == stream.arrivals
