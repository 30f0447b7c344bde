"""A run that stands, seen from outside: the line of each rank, and since when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from scene_builder import START_NS, check, gpu, process, rank, run, run_case, scene
from stack_windows import current_line, line, sampled, watched

from gpuwatch.diagnosis.finding import Draft, Level
from gpuwatch.samples import PhaseSpan, WorkerSample
from gpuwatch.timeline.windows import GpuWindow, RankWindow

NOW = 200.0
SECOND = 1_000_000_000
ALIVE = process(latest={"workers": tuple(WorkerSample(pid, state="S") for pid in range(4))}, tree_cores=0.01)


def stood(number: int = 60, since: float = 30.0, phase: str = "wait", **fields: Any) -> RankWindow:
    where = {key: fields.pop(key) for key in ("text", "leaf", "until") if key in fields}
    seen = watched(
        {phase: 1.0}, batches_per_second=None, current_line=current_line(number, since=since, phase=phase, **where)
    )
    usual: dict[str, Any] = {
        "steps": 0,
        "steps_total": 500,
        "last_step_ns": START_NS + 30 * SECOND,
        "warm": True,
        "process": ALIVE,
    }
    return sampled(seen, **(usual | fields))


def idle(index: int = 0) -> GpuWindow:
    return gpu(index, utilization=0, power=80, latest={"utilization_percent": 0.0, "power_watts": 80.0})


def spinning(index: int) -> GpuWindow:
    return gpu(index, utilization=100, power=120, latest={"utilization_percent": 100.0, "power_watts": 120.0})


def stalled(*ranks: RankWindow, gpus: Iterable[GpuWindow] | None = None) -> Draft | None:
    moment = scene(run(*ranks), gpus=list(gpus) if gpus is not None else [idle()], at=NOW)
    return check("step-stalled", run_case(moment))


def hung(lines: tuple[int, ...], **fields: Any) -> Draft | None:
    members = [
        stood(number, phase="backward", pid=10 + index, gpus=(index,), facts={"rank": index}, **fields)
        for index, number in enumerate(lines)
    ]
    moment = scene(run(*members), gpus=[spinning(index) for index in range(len(lines))], at=NOW)
    return check("collective-hang", run_case(moment))


class TestStalled:
    def test_the_line_it_stands_on_and_since_when(self) -> None:
        draft = stalled(stood(text="for x, y in loader:", leaf="queue.py:get"))
        assert draft is not None and draft.level is Level.E1
        assert draft.summary == "train.py has made no step for 2.8 min and does nothing: it is at train.py:60"
        assert draft.fix is not None and draft.fix.line == 60
        assert draft.fix.text == (
            "See what that line waits for: train.py:60 `for x, y in loader:` for 2.8 min (in queue.py:get)"
        )
        assert draft.fix.code == "DataLoader(..., timeout=120)"
        place = next(measure for measure in draft.evidence if measure.name.startswith("current_line"))
        assert place.value == "/home/user/train.py:60"

    def test_workers_that_do_not_get_past_a_line_are_named(self) -> None:
        seen = watched(
            {"wait": 1.0},
            batches_per_second=0.0,
            current_line=current_line(60, since=30, text="for x, y in loader:"),
            worker_phases={"item": 1.0},
            worker_lines=[line("item", 31, 0.95, text="item = queue.get()")],
        )
        draft = stalled(replace(stood(), stacks=seen))
        assert draft is not None and draft.fix is not None
        assert draft.summary.endswith("it is at train.py:60 and waits for workers that are at train.py:31")
        assert (draft.fix.line, draft.fix.code) == (31, "DataLoader(..., timeout=120)")
        assert "train.py:31 `item = queue.get()`; the training thread is at train.py:60" in draft.fix.text

    def test_missing_workers_are_the_cause_and_the_line_is_added(self) -> None:
        dead = process(latest={"workers": (WorkerSample(1, state="S"), WorkerSample(2, state="Z"))}, tree_cores=0.01)
        draft = stalled(stood(process=dead))
        assert draft is not None and "1 of its 4 DataLoader workers is gone" in draft.summary
        assert draft.fix is not None and "it is at train.py:60 for 2.8 min" in draft.fix.text

    def test_a_line_that_does_not_wait_for_data_gets_no_timeout(self) -> None:
        draft = stalled(stood(70, phase="other", text="lock.acquire()"))
        assert draft is not None and draft.fix is not None and (draft.fix.code, draft.fix.line) == (None, 70)

    @pytest.mark.parametrize(
        "member",
        [
            pytest.param(stood(since=150.0), id="it came to this line 50 s ago"),
            pytest.param(stood(last_step_ns=START_NS + 160 * SECOND), id="a batch 40 s ago"),
            pytest.param(stood(until=60.0), id="not looked at for long"),
            pytest.param(stood(open_phase=PhaseSpan("1.1", "eval", 1, None)), id="an evaluation"),
            pytest.param(stood(steps_total=0, last_step_ns=None, phase="other"), id="it may not have begun to train"),
            pytest.param(stood(ended="exited"), id="it has ended"),
        ],
    )
    def test_not_stalled(self, member: RankWindow) -> None:
        assert stalled(member) is None

    def test_a_run_found_standing_in_its_loop_counts_from_then_on(self) -> None:
        draft = stalled(stood(steps_total=0, last_step_ns=None, since=90.0))
        assert draft is not None and "no step for 110 s" in draft.summary
        assert any(
            measure.text == "no step seen for 110 s, since gpuwatch began to watch it" for measure in draft.evidence
        )

    def test_every_rank_must_stand(self) -> None:
        moving = stood(since=195.0, pid=12, facts={"rank": 1})
        assert stalled(stood(facts={"rank": 0}), moving) is None
        assert stalled(stood(facts={"rank": 0}), stood(pid=12, facts={"rank": 1})) is not None

    def test_on_the_cpu_the_cores_must_be_idle_too(self) -> None:
        assert stalled(stood(device="cpu"), gpus=()) is not None
        assert stalled(stood(device="cpu", process=process(tree_cores=1.5)), gpus=()) is None

    def test_beside_a_hook_the_line_is_added(self) -> None:
        seen = watched({"wait": 1.0}, batches_per_second=None, current_line=current_line(60, since=30))
        draft = stalled(rank(step=0.2, gap=0.0, window=30, process=ALIVE, stacks=seen))
        assert draft is not None and draft.level is Level.E2 and draft.summary.endswith("it is at train.py:60")

    def test_without_stacks_the_way_to_them_is_named(self) -> None:
        draft = stalled(rank(step=0.2, gap=0.0, window=30, process=ALIVE))
        assert draft is not None and draft.fix is not None and "gpuwatch stacks 4711" in draft.fix.text


class TestHang:
    def test_each_rank_is_named_with_its_line(self) -> None:
        draft = hung((63, 63, 63))
        assert draft is not None and draft.level is Level.E1 and draft.fix is not None
        assert "No rank stands out" in draft.fix.text
        assert all(f"ank {index} is at train.py:63 for 2.8 min" in draft.fix.text for index in range(3))
        assert len([measure for measure in draft.evidence if measure.name.startswith("current_line")]) == 3

    def test_the_rank_that_stands_elsewhere_is_to_be_looked_at_first(self) -> None:
        draft = hung((63, 63, 71))
        assert draft is not None and draft.fix is not None
        assert draft.fix.text.startswith("Rank 2 (train.py:71) is at another line than the others: look there first")
        assert draft.fix.line == 71

    def test_of_two_ranks_neither_is_the_usual(self) -> None:
        draft = hung((63, 71))
        assert draft is not None and draft.fix is not None and "No rank stands out" in draft.fix.text

    def test_counts_of_batches_since_watching_began_are_not_compared(self) -> None:
        members = [
            stood(63, phase="backward", pid=10 + i, gpus=(i,), facts={"rank": i}, steps_total=100 * (i + 1))
            for i in range(3)
        ]
        moment = scene(run(*members), gpus=[spinning(i) for i in range(3)], at=NOW)
        draft = check("collective-hang", run_case(moment))
        assert draft is not None and draft.fix is not None and "behind" not in draft.fix.text

    def test_ranks_that_move_do_not_hang(self) -> None:
        assert hung((63, 63), since=170.0) is None

    @pytest.mark.parametrize(("since", "hangs"), [(40.0, True), (195.0, False)])
    def test_beside_a_hook_threads_that_move_on_generate_or_evaluate(self, since: float, hangs: bool) -> None:
        members = [
            rank(
                window=30,
                gpus=(index,),
                pid=10 + index,
                facts={"rank": index},
                stacks=watched({"other": 1.0}, current_line=current_line(63, since=since, phase="other")),
            )
            for index in range(2)
        ]
        moment = scene(run(*members), gpus=[spinning(0), spinning(1)], at=NOW)
        assert (check("collective-hang", run_case(moment)) is not None) is hangs

    def test_no_text_sends_to_another_tool(self) -> None:
        for draft in (hung((63, 63)), stalled(stood())):
            assert draft is not None and draft.fix is not None and "py-spy" not in draft.fix.text
