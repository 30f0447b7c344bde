"""Capturing whole stacks for a flame graph, over processes that are made up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuwatch.reader.codes import Code
from gpuwatch.reader.refusals import CannotReadError, Reason
from gpuwatch.reader.stacks import Frame, Stack
from gpuwatch.sources.stacks.capture import Capture, Profile

MAIN, WORKER = 4711, 4712


def stack_of(*places: tuple[str, str, int], thread: int = 1, is_main: bool = True) -> Stack:
    """A stack, innermost place first."""
    frames = tuple(
        Frame(Code(number, file, name, None, 1), line, number, number)
        for number, (name, file, line) in enumerate(places)
    )
    return Stack(thread, is_main, frames)


class FakeProcess:
    """Gives the looks in order, then says that the process is gone."""

    def __init__(self, looks: Sequence[Stack | None]) -> None:
        self._looks = list(looks)
        self.closed = False

    def main_stack(self) -> Stack | None:
        if not self._looks:
            raise CannotReadError(Reason.GONE, "it ended")
        return self._looks.pop(0)

    def stacks(self) -> list[Stack]:
        stack = self.main_stack()
        helper = stack_of(("run", "/usr/lib/python3.11/threading.py", 5), thread=77, is_main=False)
        return [*([stack] if stack else []), helper]

    def close(self) -> None:
        self.closed = True


class FakeTime:
    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


STEP = stack_of(("forward", "/home/ada/net.py", 12), ("<module>", "/home/ada/train.py", 40))
WAIT = stack_of(
    ("__next__", "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 7), ("<module>", "t.py", 9)
)


def captured(
    processes: dict[int, FakeProcess | CannotReadError], seconds: float = 1.0, *, threads: bool = False
) -> Profile:
    def attach(pid: int) -> FakeProcess:
        found = processes[pid]
        if isinstance(found, CannotReadError):
            raise found
        return found

    time = FakeTime()
    capture = Capture(
        MAIN,
        rate_hz=100.0,
        all_threads=threads,
        attach=attach,
        workers=lambda pid: [other for other in processes if other != pid],
        clock=time.clock,
        sleep=time.sleep,
    )
    return capture.run(seconds)


def test_each_look_is_kept_in_order_and_equal_stacks_are_stored_once() -> None:
    profile = captured({MAIN: FakeProcess([STEP, WAIT, STEP, STEP])})
    (lane,) = profile.lanes
    assert list(lane.samples) == [0, 1, 0, 0]
    assert lane.stacks[0] == (("<module>", "/home/ada/train.py", 40), ("forward", "/home/ada/net.py", 12))
    assert len(lane.stacks) == 2


def test_a_torn_look_is_counted_apart() -> None:
    profile = captured({MAIN: FakeProcess([STEP, None, STEP])})
    assert profile.rejected == 1
    assert len(profile.lanes[0].samples) == 2


def test_the_capture_ends_with_the_process_and_says_so() -> None:
    profile = captured({MAIN: FakeProcess([STEP])}, seconds=60.0)
    assert profile.ended
    assert profile.seconds < 1.0


def test_workers_have_lanes_of_their_own_behind_the_process() -> None:
    profile = captured({WORKER: FakeProcess([WAIT] * 500), MAIN: FakeProcess([STEP] * 500)}, seconds=1.0)
    assert [lane.name for lane in profile.lanes] == [f"process {MAIN}", f"worker {WORKER}"]
    assert not profile.ended
    assert all(60 < len(lane.samples) < 140 for lane in profile.lanes)


def test_a_worker_that_ends_does_not_end_the_capture() -> None:
    profile = captured({MAIN: FakeProcess([STEP] * 500), WORKER: FakeProcess([WAIT] * 3)})
    assert [len(lane.samples) for lane in profile.lanes][1] == 3
    assert not profile.ended


def test_a_worker_that_cannot_be_read_is_reported_once() -> None:
    refusal = CannotReadError(Reason.PERMISSION, "worker 4712 may not be read")
    profile = captured({MAIN: FakeProcess([STEP] * 500), WORKER: refusal})
    assert profile.unreadable == ("worker 4712 may not be read",)


def test_all_threads_are_looked_at_when_asked_for() -> None:
    profile = captured({MAIN: FakeProcess([STEP, STEP])}, threads=True)
    assert [lane.name for lane in profile.lanes] == [f"process {MAIN}", f"process {MAIN} thread 77"]


def test_a_process_that_cannot_be_read_is_the_callers_to_explain() -> None:
    with pytest.raises(CannotReadError):
        captured({MAIN: CannotReadError(Reason.PERMISSION, "no")})


def test_everything_opened_is_closed() -> None:
    processes: dict[int, FakeProcess | CannotReadError] = {MAIN: FakeProcess([STEP] * 500), WORKER: FakeProcess([WAIT])}
    captured(processes)
    assert all(isinstance(each, FakeProcess) and each.closed for each in processes.values())
