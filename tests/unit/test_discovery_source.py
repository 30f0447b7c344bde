"""Discovery over time: what it emits when, how well each candidate can be seen, and that it looks seldom."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from recorded_proc import TICKS, Clock
from recorded_trainers import TORCH, UPTIME_SECONDS, RecordedTrainers

from gpuwatch.reader.refusals import CannotReadError, Reason
from gpuwatch.samples import Candidate
from gpuwatch.sources.discovery import DiscoverySource

SECOND_NS = 1_000_000_000
DENIED = CannotReadError(Reason.PERMISSION, "only root may read other processes", "use sudo")


@pytest.fixture
def host(tmp_path: Path) -> RecordedTrainers:
    return RecordedTrainers(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Watch:
    """A source over a recorded machine, asked as the monitor asks it."""

    def __init__(self, host: RecordedTrainers, clock: Clock, **changed: Any) -> None:
        self._clock = clock
        self.tries: list[int] = []
        self.refusals: dict[int, CannotReadError] = {}
        settings = {"user": os.getuid(), "can_read": self._can_read, "clock": clock}
        self.source = DiscoverySource(proc_root=host.proc, **{**settings, **changed})

    def _can_read(self, pid: int) -> CannotReadError | None:
        self.tries.append(pid)
        return self.refusals.get(pid)

    def after(self, seconds: float) -> dict[int, Candidate]:
        """Lets time pass, in steps as small as the source asks for; the candidates it told of last, by pid."""
        end_ns = self._clock.now_ns + round(seconds * SECOND_NS)
        found: dict[int, Candidate] = {}
        while (due_ns := self.source.due_ns()) is not None and due_ns <= end_ns:
            self._clock.now_ns = max(self._clock.now_ns, due_ns)
            for sample in self.source.collect(self._clock.now_ns):
                found = {each.pid: each for each in sample.processes}
        self._clock.now_ns = end_ns
        return found


def test_first_list_comes_at_once_and_the_next_three_seconds_later(host: RecordedTrainers, clock: Clock) -> None:
    host.torch(100)
    source = Watch(host, clock).source
    assert source.fileno() is None
    assert source.due_ns() is not None
    assert source.due_ns() <= clock.now_ns
    (first,) = source.collect(clock.now_ns)
    assert [each.pid for each in first.processes] == [100]
    assert first.time_ns == clock.now_ns
    assert source.due_ns() == clock.now_ns + 3 * SECOND_NS
    assert source.collect(clock.advance(1.0)) == []
    assert len(source.collect(clock.advance(2.0))) == 1


def test_nothing_that_trains_is_an_empty_list_and_not_silence(host: RecordedTrainers, clock: Clock) -> None:
    (nothing,) = Watch(host, clock).source.collect(clock.now_ns)
    assert nothing.processes == ()


def test_candidate_says_who_what_and_since_when(host: RecordedTrainers, clock: Clock) -> None:
    host.torch(
        100,
        start_ticks=round((UPTIME_SECONDS - 90) * TICKS),
        arguments=(b"/opt/env/bin/python", b"train.py", b"--name", b"\x1b]0;owned\x07\xff"),
    )
    found = Watch(host, clock).after(0)[100]
    assert found.start_ticks == round((UPTIME_SECONDS - 90) * TICKS)
    assert found.age_seconds == pytest.approx(90, abs=0.1)
    assert found.command == ("/opt/env/bin/python", "train.py", "--name", r"\x1b]0;owned\x07\xff")
    assert (found.visibility, found.refusal) == ("sampled", None)
    assert found.how_to_see_more is not None
    assert "gpuwatch run" in found.how_to_see_more


def test_a_spawned_trainer_is_shown_as_the_program_it_belongs_to(host: RecordedTrainers, clock: Clock) -> None:
    spawned = (b"python", b"-c", b"spawn_main()", b"--multiprocessing-fork")
    host.python(100, program=sys.executable, arguments=(b"python", b"ddp.py"), children={100: (101,)})
    host.torch(101, program=sys.executable, parent=100, arguments=spawned)
    assert Watch(host, clock, hooked=lambda: [101]).after(0)[101].command == ("python", "ddp.py")


def test_hooked_process_is_seen_exactly_and_comes_first(host: RecordedTrainers, clock: Clock) -> None:
    host.torch(100, start_ticks=1)
    host.torch(101, start_ticks=2)
    watch = Watch(host, clock, hooked=lambda: [101])
    found = watch.after(0)
    assert list(found) == [101, 100]
    assert (found[101].visibility, found[101].how_to_see_more) == ("exact", None)
    assert "hook" in found[101].why
    assert watch.tries == [100]


def test_process_whose_hook_has_not_spoken_yet_is_not_reported_as_one_without_a_hook(
    host: RecordedTrainers, clock: Clock
) -> None:
    hooked = b"PYTHONPATH=/venv/lib/python3.11/site-packages/gpuwatch/hook/site:/home/me/lib"
    host.torch(100, environment=[b"HOME=/home/me", hooked])
    host.torch(101, environment=[hooked, b"GPUWATCH_DISABLE=1"])
    host.torch(102, environment=[b"PYTHONPATH=/home/me/lib"])
    host.torch(103, environment=[hooked])
    host.worker(104, parent=103)
    watch = Watch(host, clock)
    assert sorted(watch.after(0)) == [101, 102, 103]
    assert "worker" in watch.after(3)[103].why  # it trains, and its hook is silent


def test_hooked_process_counts_whatever_its_program_is_named(host: RecordedTrainers, clock: Clock) -> None:
    host.python(100, "/usr/lib/libpython3.11.so.1.0", program="/opt/trainer/bin/train")
    assert list(Watch(host, clock, hooked=lambda: [100]).after(0)) == [100]


def test_denied_process_stands_lower_with_cause_and_cure(host: RecordedTrainers, clock: Clock) -> None:
    host.torch(100)
    watch = Watch(host, clock)
    watch.refusals[100] = DENIED
    found = watch.after(0)[100]
    assert (found.visibility, found.refusal, found.how_to_see_more) == ("process", DENIED.sentence, DENIED.cure)


def test_denied_process_is_tried_again_now_and_then_and_a_readable_one_never(
    host: RecordedTrainers, clock: Clock
) -> None:
    host.torch(100)
    host.torch(101)
    watch = Watch(host, clock)
    watch.refusals[100] = DENIED
    watch.after(15)
    assert sorted(watch.tries) == [100, 101]
    del watch.refusals[100]
    assert watch.after(30)[100].visibility == "sampled"
    assert watch.tries.count(101) == 1


def test_process_that_ended_while_it_was_tried_is_left_out(host: RecordedTrainers, clock: Clock) -> None:
    host.torch(100)
    watch = Watch(host, clock)
    watch.refusals[100] = CannotReadError(Reason.GONE, "it is gone")
    assert watch.after(0) == {}


def test_interpreter_that_still_starts_is_tried_again_at_once(host: RecordedTrainers, clock: Clock) -> None:
    host.torch(100)
    watch = Watch(host, clock)
    watch.refusals[100] = CannotReadError(Reason.NOT_READY, "the interpreter is still starting")
    assert watch.after(0)[100].visibility == "process"
    watch.refusals.clear()
    assert watch.after(3)[100].visibility == "sampled"


def test_other_users_processes_are_left_out_unless_they_use_a_gpu(host: RecordedTrainers, clock: Clock) -> None:
    host.torch(100)
    host.torch(101)
    watch = Watch(host, clock, user=os.getuid() + 1, gpu_processes=lambda: {101: ("GPU-a",)})
    found = watch.after(0)
    assert list(found) == [101]
    assert found[101].visibility == "hardware"
    assert (found[101].refusal or "").startswith("belongs to ")
    assert "root" in (found[101].how_to_see_more or "")
    assert watch.tries == []


def test_own_process_whose_files_are_roots_is_tried_and_not_called_foreign(
    host: RecordedTrainers, clock: Clock
) -> None:
    me = os.getuid() + 1  # so that its folder belongs to somebody else, as that of a process that is not dumpable
    host.python(100, uid=me)
    watch = Watch(host, clock, user=me, gpu_processes=lambda: {100: ("GPU-a",)})
    watch.refusals[100] = DENIED
    assert watch.after(0)[100].refusal == DENIED.sentence


def test_root_sees_everybodys(host: RecordedTrainers, clock: Clock) -> None:
    host.torch(100)
    assert list(Watch(host, clock, user=0).after(0)) == [100]


@pytest.mark.parametrize(
    ("library", "why"),
    [
        ("/opt/jaxlib/xla_extension.so", "holds memory on 2 GPUs with JAX"),
        ("/opt/tensorflow/libtensorflow_framework.so.2", "holds memory on 2 GPUs with TensorFlow"),
        (f"{TORCH}/lib/libtorch_cpu.so", "holds memory on 2 GPUs with torch"),
        ("/opt/lib/other.so", "holds memory on 2 GPUs"),
    ],
)
def test_python_on_a_gpu_trains_whatever_its_framework(
    host: RecordedTrainers, clock: Clock, library: str, why: str
) -> None:
    host.python(100, library)
    host.python(101, library)
    found = Watch(host, clock, gpu_processes=lambda: {100: ("GPU-a", "GPU-b")}).after(0)
    assert found[100].why == why
    assert found[100].gpu_uuids == ("GPU-a", "GPU-b")
    assert (101 in found) == (why == "holds memory on 2 GPUs with torch")


def test_program_on_a_gpu_that_is_no_python_is_left_out(host: RecordedTrainers, clock: Clock) -> None:
    host.python(100, "/usr/lib/libcuda.so", program="/usr/bin/Xorg", arguments=(b"/usr/bin/Xorg",))
    assert Watch(host, clock, gpu_processes=lambda: {100: ("GPU-a",)}).after(0) == {}


def test_script_that_imports_later_is_found_later(host: RecordedTrainers, clock: Clock) -> None:
    host.python(100, cpu_seconds=0.1)
    watch = Watch(host, clock)
    assert watch.after(0) == {}
    host.torch(100, cpu_seconds=2.0)
    assert list(watch.after(3)) == [100]


def test_shell_that_becomes_a_training_is_found(host: RecordedTrainers, clock: Clock) -> None:
    host.python(100, program="/bin/bash", arguments=(b"bash", b"-c", b"exec python train.py"))
    watch = Watch(host, clock)
    assert watch.after(0) == {}
    host.torch(100)
    assert list(watch.after(3)) == [100]


def test_maps_of_a_process_that_did_not_compute_are_not_read_again(host: RecordedTrainers, clock: Clock) -> None:
    host.python(100)
    watch = Watch(host, clock)
    watch.after(0)
    host.map(100, f"{TORCH}/lib/libtorch_cpu.so")
    assert watch.after(200) == {}


def test_pid_of_another_process_is_not_taken_for_the_old_one(host: RecordedTrainers, clock: Clock) -> None:
    host.torch(100, start_ticks=5000)
    watch = Watch(host, clock)
    assert watch.after(0)[100].start_ticks == 5000
    host.python(100, start_ticks=9000)
    assert watch.after(3) == {}
    host.torch(100, start_ticks=9500)
    assert watch.after(60)[100].start_ticks == 9500
    assert watch.tries == [100, 100]


def test_process_that_ended_is_gone_from_the_next_list(host: RecordedTrainers, clock: Clock) -> None:
    host.torch(100)
    host.torch(101)
    watch = Watch(host, clock)
    watch.after(0)
    host.end(100)
    assert list(watch.after(3)) == [101]


def test_use_of_the_processors_is_that_of_the_last_seconds(host: RecordedTrainers, clock: Clock) -> None:
    host.torch(100, cpu_seconds=475.0)
    watch = Watch(host, clock)
    assert watch.after(0)[100].why == "has torch loaded and used 0.5 cores on average since its start"
    assert watch.after(3)[100].why == "has torch loaded"
    host.torch(100, cpu_seconds=481.0)
    assert watch.after(3)[100].why == "has torch loaded and uses 2.0 cores"
    host.torch(100, cpu_seconds=481.12)
    assert watch.after(3)[100].why == "has torch loaded and uses 0.04 cores"


def test_crowd_is_looked_at_a_piece_at_a_time_and_reported_once_whole(host: RecordedTrainers) -> None:
    for pid in range(100, 160):
        host.torch(pid)
    clock = TickingClock()
    source = DiscoverySource(proc_root=host.proc, clock=clock, can_read=lambda pid: None, user=os.getuid())
    calls, now_ns = 0, 0
    while not (samples := source.collect(now_ns)):
        calls += 1
        assert source.due_ns() is not None
        assert source.due_ns() > now_ns
        now_ns = source.due_ns() or 0
    assert len(samples[0].processes) == 60
    assert calls > 5


class TickingClock:
    """Half a millisecond passes with each question."""

    def __init__(self) -> None:
        self._now_ns = 0

    def __call__(self) -> int:
        self._now_ns += 500_000
        return self._now_ns


def test_look_now_gives_the_whole_list_in_one_call(host: RecordedTrainers) -> None:
    for pid in range(100, 130):
        host.torch(pid)
    source = DiscoverySource(proc_root=host.proc, clock=TickingClock(), can_read=lambda pid: None, user=os.getuid())
    assert len(source.look_now().processes) == 30


def test_gpus_that_come_later_are_reported_from_then_on(host: RecordedTrainers, clock: Clock) -> None:
    gpus: Mapping[int, tuple[str, ...]] = {}
    host.torch(100)
    watch = Watch(host, clock, gpu_processes=lambda: gpus)
    assert watch.after(0)[100].gpu_uuids == ()
    gpus = {100: ("GPU-a",)}
    assert watch.after(3)[100].gpu_uuids == ("GPU-a",)


def test_closed_source_asks_for_nothing_more(host: RecordedTrainers, clock: Clock) -> None:
    source = Watch(host, clock).source
    source.close()
    source.close()
    assert source.due_ns() is None
    assert source.collect(clock.now_ns) == []


def test_proc_that_cannot_be_read_is_no_failure(tmp_path: Path, clock: Clock) -> None:
    source = DiscoverySource(proc_root=tmp_path / "none", clock=clock, can_read=lambda pid: None)
    (nothing,) = source.collect(clock.now_ns)
    assert nothing.processes == ()
