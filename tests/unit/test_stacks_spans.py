"""Stretches of evaluation and saving, and the tallies of looks."""

from __future__ import annotations

import pytest
from stack_samples import MAIN

from gpuwatch.samples import PhaseSpan
from gpuwatch.sources.stacks.classify import Culprit, Reading
from gpuwatch.sources.stacks.loops import LoopRole, Site
from gpuwatch.sources.stacks.tally import Spans, StackSample, TallyBuilder

LINE = Culprit(MAIN, 7, "train", "loss.backward()", None)


def site(role: LoopRole, number: int = 1, line: int = 30) -> Site:
    return Site(number, (MAIN, "validate", 28), line, 0, None, role=role, number=number)


def look(
    milliseconds: int, phase: str = "forward", where: Site | None = None, waits: bool = False, **rest: object
) -> StackSample:
    reading = Reading("wait" if waits else phase, LINE, waits=waits)  # type: ignore[arg-type]
    return StackSample(milliseconds * 1_000_000, reading, where, **rest)  # type: ignore[arg-type]


def spans_of(looks: list[StackSample]) -> list[PhaseSpan]:
    spans = Spans("1.1")
    return [span for each in looks for span in spans.see(each)]


def test_an_evaluation_opens_and_closes_at_the_midpoints_around_its_looks() -> None:
    validation = site("eval", number=2)
    told = spans_of([look(10), look(20, where=validation), look(30, where=validation), look(40), look(50)])
    assert [(span.start_ns, span.end_ns) for span in told] == [(15_000_000, None), (15_000_000, 35_000_000)]
    assert {(span.kind, span.loader, span.file, span.line) for span in told} == {("eval", 2, MAIN, 30)}


def test_an_evaluation_tells_its_batches_and_its_waits() -> None:
    validation = site("eval")
    inside = [look(10 * n, where=validation, waits=n % 2 == 0, iterator=1, yielded=n) for n in range(1, 11)]
    closed = spans_of([look(0), *inside, look(110), look(120)])[-1]
    assert closed.batches == 10
    assert closed.wait_seconds == pytest.approx(0.05)


def test_one_look_outside_does_not_cut_an_evaluation_in_two() -> None:
    validation = site("eval")
    inside = [look(10 * n, where=validation) for n in (1, 2, 4, 5)]
    told = spans_of([look(0), *inside[:2], look(30), *inside[2:], look(60), look(70)])
    assert [(span.start_ns, span.end_ns) for span in told] == [(5_000_000, None), (5_000_000, 55_000_000)]


def test_saving_is_a_checkpoint_at_the_users_line() -> None:
    told = spans_of([look(0), look(10, "save"), look(20), look(30)])
    assert [(span.kind, span.line, span.end_ns) for span in told] == [
        ("checkpoint", 7, None),
        ("checkpoint", 7, 15_000_000),
    ]


def test_saving_right_after_an_evaluation_ends_it() -> None:
    told = spans_of([look(0), look(10, where=site("eval")), look(20, "save"), look(30), look(40)])
    assert [(span.kind, span.start_ns, span.end_ns) for span in told] == [
        ("eval", 5_000_000, None),
        ("eval", 5_000_000, 15_000_000),
        ("checkpoint", 15_000_000, None),
        ("checkpoint", 15_000_000, 25_000_000),
    ]


def test_a_span_that_is_open_at_the_end_is_closed() -> None:
    spans = Spans("1.1")
    opened = list(spans.see(look(10, where=site("eval"))))
    closed = list(spans.end(50_000_000))
    assert opened[0].end_ns is None
    assert closed[0].start_ns == opened[0].start_ns
    assert closed[0].end_ns is not None


def test_a_tally_adds_up_and_starts_over() -> None:
    tally = TallyBuilder("1.1", 0)
    for each in (look(1), look(2, waits=True, first_wait=True), look(3, waits=True, where=site("eval"))):
        tally.add(each)
    tally.add_worker(7, "item", LINE)
    tally.add_worker(8, "idle", None)
    tally.reject()
    tally.spend(1_000_000)
    taken = tally.take(1_000_000_000, workers=2)
    assert taken is not None
    assert taken.samples == sum(taken.phases.values()) == 3
    assert taken.phases == {"forward": 1, "wait": 1, "eval": 1}
    assert (taken.eval_waiting_samples, taken.first_wait_samples, taken.rejected) == (1, 1, 1)
    assert (taken.workers, taken.worker_samples, taken.worker_phases) == (2, 2, {"item": 1, "idle": 1})
    assert [(line.phase, line.line, line.samples) for line in taken.worker_lines] == [("item", 7, 1)]
    assert taken.cpu_seconds == pytest.approx(0.001)
    assert tally.take(2_000_000_000, workers=2) is None
