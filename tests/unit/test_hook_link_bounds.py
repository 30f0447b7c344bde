"""What a hostile peer can make the monitor keep or compute: little, whatever it sends and for how long."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.hook import wire
from gpuwatch.samples import LinkLoss, PhaseSpan, RunFacts, StepEnd
from gpuwatch.sources.hook_link.facts import BadFactsError, known_facts, merge, trainer_facts
from gpuwatch.sources.hook_link.rendezvous import born_ns
from gpuwatch.sources.hook_link.run import RunDerivation
from gpuwatch.sources.hook_link.server import Limits
from gpuwatch.sources.hook_link.source import TrainerSession, parse_packet
from gpuwatch.sources.hook_link.steps import GapLedger
from gpuwatch.timeline.phases import PhaseLog
from gpuwatch.timeline.timeline import Timeline

SECOND = 1_000_000_000
NOW = 1000 * SECOND
NAMES: dict[str, Any] = {"trainer": "7.8", "pid": 7, "start_ticks": 8, "time_ns": 9}


def deep_bytes(value: Any) -> int:
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(deep_bytes(key) + deep_bytes(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return sys.getsizeof(value) + sum(map(deep_bytes, value))
    return sys.getsizeof(value)


def keep_saying(*contents: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a peer's FACTS, one after the other; it is hung up on when it says too much."""
    kept: dict[str, Any] = {}
    with suppress(BadFactsError):
        for content in contents:
            kept = merge(kept, content)
    return kept


def test_keys_that_the_protocol_does_not_have_are_not_kept() -> None:
    assert known_facts({"pid": 1, "cwd": "/", "new": 1, "x" * 9000: "y" * 9000}) == {"cwd": "/"}
    kept = keep_saying(*({f"key {number}": "x" * 60_000, "cwd": "/"} for number in range(100)))
    assert kept == {"cwd": "/"}


FLOODS: dict[str, list[dict[str, Any]]] = {
    "model": [{"model": {f"key {number}": "x" * 60_000}} for number in range(60)],
    "keys of loaders": [{"loaders": [{"loader": 1, f"key {number}": "x" * 60_000}]} for number in range(60)],
    "loaders": [{"loaders": [{"loader": number, "file": "x" * 60_000}]} for number in range(60)],
    "loaders without number": [{"loaders": [{"file": "x" * 3000}] * 20} for _ in range(60)],
    "nested values": [{"rank": [[["x" * 60_000]]], "model": {"compiled": {"a": "x" * 60_000}}} for _ in range(60)],
    "environment": [{"env": {f"NAME{number}": "x" * 4000 for number in range(15 * at)}} for at in range(60)],
    "words": [{name: ["x" * 3000] * 20} for name in ("command", "phases", "unhooked", "debug", "overrides")] * 9,
    "places": [{"save_places": [{"file": "x" * 200, "line": 1, "extra": ["x" * 900]}] * 400}] * 9,
    "numbers": [{"rank": 10**4000, "affinity": -(10**4000)}] * 9,
}


@pytest.mark.parametrize("contents", FLOODS.values(), ids=FLOODS)
def test_all_facts_of_a_peer_take_bounded_memory(contents: list[dict[str, Any]]) -> None:
    kept = keep_saying(*contents)
    assert deep_bytes(kept) < 2 << 20
    facts = trainer_facts(kept, **NAMES)
    assert deep_bytes([facts.run.command, facts.phases, facts.run.notes, facts.save_places]) < 1 << 20


def test_wrong_values_are_still_counted_after_they_were_cut() -> None:
    wrong = {"cwd": ["x"], "rank": 10**30, "command": "x", "loaders": {"a": 1}, "phases": ["a"] * 999, "model": [1]}
    assert trainer_facts(known_facts(wrong), **NAMES).wrong == len(wrong)


def test_a_rank_beyond_its_world_is_no_rank() -> None:
    facts = trainer_facts({"rank": 3, "world_size": 2}, **NAMES)
    assert (facts.run.rank, facts.run.world_size, facts.wrong) == (None, None, 1)


def test_runs_of_a_trainer_that_claims_such_a_rank_can_still_be_shown() -> None:
    timeline = Timeline(started_ns=0)
    timeline.add(RunFacts(NOW, "7.8", 7, 8, ("python",), rank=5, world_size=2))
    assert [run.id for run in timeline.runs(NOW, SECOND)] == ["7.8"]
    timeline.prune(NOW)
    assert timeline.scene(NOW, 60.0).runs


def record(kind: int, start: int, end: int, ident: int = 1, thread: int = 7, a: int = 0) -> wire.Record:
    return (kind, 2, ident, thread, start, end, a, 8)


def test_records_from_before_the_process_was_there_are_malformed() -> None:
    derivation = RunDerivation("7.8", born_ns=NOW)
    steps = [record(wire.OPTIMIZER, start, start + 5) for start in (0, NOW - 1, NOW + 10, NOW + 20, NOW + 30)]
    found = derivation.feed([*steps, record(wire.SAVE, 0, NOW + 40)], NOW + SECOND)
    assert derivation.malformed == 3
    assert all(step.start_ns >= NOW for step in found if isinstance(step, (StepEnd, PhaseSpan)))


def test_a_process_is_not_born_after_it_can_record() -> None:
    own = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
    assert 0 <= born_ns(own) < time.monotonic_ns()
    assert born_ns(0) == 0


def test_sessions_leave_such_records_out_and_say_so() -> None:
    session = TrainerSession("7.8", 7, 8, born_ns=NOW)
    session.learn({"command": ["python"]}, NOW)
    body = wire.RECORD.pack(*record(wire.SAVE, 5, NOW + 1))
    packet = parse_packet(wire.HEADER.pack(wire.MAGIC, wire.VERSION, wire.RECORDS, 1, 0) + body)
    (loss,) = session.records(packet, NOW + SECOND)
    assert isinstance(loss, LinkLoss)
    assert loss.malformed == 1


def test_identities_that_never_end_are_forgotten() -> None:
    derivation = RunDerivation("7.8")
    for number in range(1_000):
        at = NOW + number * 100
        derivation.feed(
            [
                record(wire.ITER, at, at + 1, number % 65_536, 7, number),
                record(wire.NEXT, at + 2, at + 3, number % 65_536, 7, number),
                record(wire.BACKWARD, at + 4, at + 5, thread=number),
                record(wire.GAP, at + 6, at + 7, a=number),
                record(wire.WAIT_CPU, at + 6, at + 7, a=number),
            ],
            at,
        )
    loaders = derivation._machine.loaders
    assert len(loaders.loaders) <= 256 >= len(loaders._iterators)
    assert len(derivation._threads._run_backward) <= 64
    assert len(derivation.roles()) <= 256


def test_waits_whose_gaps_never_come_are_forgotten() -> None:
    ledger = GapLedger("7.8")
    for step in range(100):
        ledger.step(step, range(step * 10_000, step * 10_000 + 500))
    assert len(ledger._step_of) <= 17_000 and len(ledger._steps) <= 1024


def test_phases_that_never_end_are_forgotten() -> None:
    log = PhaseLog()
    for number in range(600):
        log.add(PhaseSpan("7.8", "eval", number, None), 0)
    assert len(log._open) <= 256


def test_trainers_that_come_and_go_by_the_thousand_are_forgotten_living_ones_last() -> None:
    timeline = Timeline(started_ns=0)
    timeline.add(RunFacts(NOW, "1.1", 1, 1, ("python", "mine.py")))
    for number in range(2, 800):
        timeline.add(LinkLoss(f"{number}.{number}", NOW + number, malformed=1))
    assert len(timeline.trainers) <= 512
    assert "1.1" in timeline.trainers


def test_a_packet_is_charged_what_it_took_to_decode() -> None:
    limits = Limits()
    assert limits.charge(100, 0) == 100 + limits.bytes_per_packet
    a_second = limits.charge(0, 1_000_000_000) - limits.bytes_per_packet
    assert a_second / limits.bytes_per_second == pytest.approx(1 / limits.cpu_share), "seconds until it is read again"
