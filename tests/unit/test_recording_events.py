"""What is kept in addition to the samples: reported once, written once, whatever a trainer floods the monitor with."""

from __future__ import annotations

from dataclasses import replace

from gpuwatch.recording.writer import Events
from gpuwatch.samples import (
    Candidate,
    Candidates,
    GpuLost,
    GpuSample,
    HostSample,
    PhaseSpan,
    RunFacts,
    Sample,
    TrainerEnded,
    XidEvent,
)

FACTS = RunFacts(1, "4711.99", 4711, 99, ("train.py",))
CANDIDATE = Candidate(4711, 99, ("train.py",), "me", 5.0, "exact", "hooked")


def kinds(events: Events, *samples: Sample) -> list[str]:
    return [str(values[1]) for statement, values in events.of(samples, 7) if statement.startswith("INSERT")]


def test_facts_are_written_when_they_say_something_new() -> None:
    events = Events()
    again = replace(FACTS, time_ns=2)
    assert (
        kinds(events, FACTS, again, replace(FACTS, time_ns=3, rank=1), replace(FACTS, trainer="1.1"))
        == ["RunFacts"] * 3
    )


def test_what_an_ended_trainer_said_is_not_kept() -> None:
    """Facts that come after its end are new again, which they are only to one that has forgotten the old ones."""
    events = Events()
    ended = TrainerEnded(FACTS.trainer, 5, "exited")
    assert kinds(events, FACTS, FACTS, ended, FACTS) == ["RunFacts", "TrainerEnded", "RunFacts"]


def test_an_ended_trainer_is_forgotten_in_a_minute_without_room_too() -> None:
    events = Events()
    flood = [PhaseSpan(FACTS.trainer, "checkpoint", start, start + 1) for start in range(600)]
    assert kinds(events, FACTS, *flood, TrainerEnded(FACTS.trainer, 5, "exited"))[-1] == "PhaseSpan"
    events.begin_minute()
    assert kinds(events, FACTS) == ["RunFacts"]


def test_candidates_that_only_grow_older_are_not_written_again() -> None:
    events = Events()
    older = replace(CANDIDATE, age_seconds=10.0)
    assert kinds(events, Candidates(1, (CANDIDATE,)), Candidates(2, (older,))) == ["Candidates"]
    assert kinds(events, Candidates(3, (replace(older, visibility="process"),))) == ["Candidates"]


def test_the_same_error_twice_is_two_events() -> None:
    events = Events()
    assert kinds(events, XidEvent(1, "G", 31), XidEvent(2, "G", 31), TrainerEnded("1.1", 3, "killed")) == [
        "XidEvent",
        "XidEvent",
        "TrainerEnded",
    ]


def test_what_comes_every_step_or_every_second_is_no_event() -> None:
    spans: list[Sample] = [PhaseSpan("1.1", "gc", 0, 1), PhaseSpan("1.1", "user", 0, 1)]
    assert kinds(Events(), *spans, HostSample(1), GpuSample(1, "G")) == []


def test_a_flood_of_phases_has_a_limit_a_minute() -> None:
    events = Events()
    flood = [PhaseSpan("1.1", "eval", number, number + 1) for number in range(10_000)]
    written = len(kinds(events, *flood))
    assert 0 < written < 1_000
    events.begin_minute()
    assert len(kinds(events, *flood)) == written


def test_a_gpu_that_answers_again_is_no_longer_lost() -> None:
    events = Events()
    assert kinds(events, GpuSample(1, "G"), GpuLost(2, "G", "gone")) == ["GpuLost"]
    updates = [
        values
        for statement, values in events.of([GpuSample(3, "other"), GpuSample(4, "G")], 9)
        if "UPDATE" in statement
    ]
    assert updates == [(9, "G")]
    assert not list(events.of([GpuSample(5, "G")], 10))
