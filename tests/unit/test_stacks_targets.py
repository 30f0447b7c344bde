"""How a target is followed: tried, read, stopped, denied, gone, and replaced by another process of the same pid."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from stack_samples import BACKWARD, MAIN, NEXT, STDLIB, Place, frame, loader_state, stack

from gpuwatch.reader.loaders import LoaderState
from gpuwatch.reader.refusals import CannotReadError, Reason
from gpuwatch.reader.stacks import Frame, Stack
from gpuwatch.samples import BatchCount, CurrentLine, RunFacts, Sample, StackTally, TrainerEnded
from gpuwatch.sources.stacks import StackTarget
from gpuwatch.sources.stacks.sampler import FollowedTarget
from gpuwatch.sources.stacks.schedule import Agenda, CpuBudget, CpuMeter
from gpuwatch.sources.stacks.session import ProcessFacts, Settings, ranks

PID = 77
SECOND = 1_000_000_000
STEP: tuple[Place, ...] = (*BACKWARD, (MAIN, "train", 4))


class FakeProcess:
    """A process that stands where it is told to."""

    def __init__(self, start_ticks: int = 5000) -> None:
        self.pid, self.start_ticks, self.version = PID, start_ticks, (3, 11)
        self.now: Stack | None = stack(*STEP)
        self.threads: list[Stack] = []
        self.looks = 0
        self.gone = self.closed = False

    def main_stack(self) -> Stack | None:
        if self.gone:
            raise CannotReadError(Reason.GONE, "it ended")
        self.looks += 1
        return self.now

    def stacks(self) -> list[Stack]:
        main = self.main_stack()
        return [*([main] if main is not None else []), *self.threads]

    def close(self) -> None:
        self.closed = True


class FakeCounters:
    def __init__(self) -> None:
        self.batches = 0

    def state(self, stack: Stack) -> LoaderState | None:
        self.batches += 1
        return loader_state(self.batches, len(stack.frames) - 2)

    def recheck(self, state: LoaderState) -> int | None:
        return None

    def integer(self, frame: Frame, name: str) -> int | None:
        return None


class Scene:
    """One target in a /proc that is made up, and a clock that stands until it is moved."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder
        self.now_ns = 1000 * SECOND
        self.samples: list[Sample] = []
        self.process = FakeProcess()
        self.counters = FakeCounters()
        self.refusals: list[CannotReadError] = []
        self.attached = 0
        self.agenda = Agenda(lambda: self.now_ns)
        self.write_stat()
        self.write("cmdline", b"python\0train.py\0")
        self.write("environ", b"RANK=1\0WORLD_SIZE=2\0MASTER_ADDR=node\0MASTER_PORT=29500\0")
        user, group = f"\t{os.geteuid()}" * 4, f"\t{os.getegid()}" * 4
        self.write("status", f"Uid:{user}\nGid:{group}\nCpus_allowed_list:\t0-3,8\n".encode())

    def write(self, name: str, content: bytes) -> None:
        (self.proc / str(PID)).mkdir(exist_ok=True)
        (self.proc / str(PID) / name).write_bytes(content)

    def write_stat(self, state: str = "R", start_ticks: int = 5000, flags: int = 0) -> None:
        words = [state, "1", *["0"] * 4, str(flags), *["0"] * 12, str(start_ticks), "0", "0", *["0"] * 20]
        self.write("stat", f"{PID} (python) {' '.join(words)}\n".encode())

    def end(self) -> None:
        (self.proc / str(PID) / "stat").unlink()

    def follow(self, hooked: bool = False) -> FollowedTarget:
        settings = Settings(
            proc_root=self.proc, attach=self._attach, rate_hz=100.0,
            chance=random.Random(0), agenda=self.agenda, budget=CpuBudget(0.05), meter=CpuMeter(lambda: 0),
            emit=self.samples.append,
        )  # fmt: skip
        return FollowedTarget(StackTarget(PID, hooked), settings, self.now_ns)

    def run(self, seconds: float) -> None:
        until = self.now_ns + int(seconds * SECOND)
        while (due := self.agenda.due_ns) is not None and due <= until:
            self.now_ns = max(self.now_ns, due)
            self.agenda.run_due()
        self.now_ns = until

    def of(self, kind: type[Sample]) -> list[Sample]:
        return [sample for sample in self.samples if isinstance(sample, kind)]

    def told(self) -> set[str]:
        return {type(sample).__name__ for sample in self.samples}

    def _attach(self, pid: int, proc_root: Path) -> tuple[FakeProcess, FakeCounters]:
        assert (pid, proc_root) == (PID, self.proc)
        self.attached += 1
        if self.refusals:
            raise self.refusals.pop(0)
        return self.process, self.counters


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def looks(scene: Scene) -> int:
    return sum(sample.samples for sample in scene.samples if isinstance(sample, StackTally))


def test_a_process_that_can_be_read_is_reported_with_facts_counts_and_tallies(scene: Scene) -> None:
    scene.follow()
    scene.run(5.1)
    assert scene.told() == {"RunFacts", "BatchCount", "StackTally", "CurrentLine"}
    facts = scene.of(RunFacts)[-1]
    assert isinstance(facts, RunFacts)
    assert (facts.trainer, facts.visibility, facts.command, facts.python) == (
        "77.5000",
        "sampled",
        ("python", "train.py"),
        "3.11",
    )
    assert (facts.rank, facts.world_size, facts.cpu_affinity) == (1, 2, 5)
    assert [(loader.loader, loader.role, loader.batch_size) for loader in facts.loaders] == [(1, "train", 8)]
    assert 480 <= scene.process.looks <= 520
    count = scene.of(BatchCount)[-1]
    assert isinstance(count, BatchCount)
    assert count.batches == pytest.approx(scene.counters.batches, abs=60)


def test_a_process_that_is_killed_right_after_the_first_samples_was_sampled(scene: Scene) -> None:
    scene.follow()
    scene.run(0.1)
    scene.process.gone = True
    scene.end()
    scene.run(1.0)
    assert [facts.visibility for facts in scene.of(RunFacts) if isinstance(facts, RunFacts)] == ["sampled"]
    assert looks(scene) > 0
    assert isinstance(scene.samples[-1], TrainerEnded)


def test_a_process_that_the_kernel_takes_apart_has_ended(scene: Scene) -> None:
    scene.follow()
    scene.run(10.1)  # long enough for "not a Python program" to be believed
    scene.process.gone = True
    scene.write_stat(flags=0x4)
    scene.refusals = [CannotReadError(Reason.NOT_PYTHON, "no Python", "none")] * 10
    scene.run(5.0)
    assert {facts.visibility for facts in scene.of(RunFacts) if isinstance(facts, RunFacts)} == {"sampled"}
    assert isinstance(scene.samples[-1], TrainerEnded)
    assert scene.attached == 1


def test_a_hooked_process_is_looked_at_less_and_only_its_looks_are_reported(scene: Scene) -> None:
    scene.follow(hooked=True)
    scene.run(5.1)
    assert scene.told() == {"StackTally", "CurrentLine"}
    assert 120 <= scene.process.looks <= 130


def test_the_time_a_process_stands_stopped_is_not_counted(scene: Scene) -> None:
    scene.follow()
    scene.run(2.0)
    scene.write_stat("T")
    scene.run(0.5)
    at_stop, told_at_stop = scene.process.looks, looks(scene)
    scene.run(10.0)
    assert scene.process.looks == at_stop
    assert looks(scene) <= told_at_stop + 100
    assert looks(scene) <= 205
    scene.write_stat("S")
    scene.run(2.0)
    assert scene.process.looks > at_stop + 150


def test_a_process_that_stands_on_one_line_is_reported_since_when(scene: Scene) -> None:
    scene.counters.state = lambda stack: loader_state(7, len(stack.frames) - 2)  # type: ignore[method-assign]
    scene.follow()
    scene.run(8.1)
    current_line = scene.of(CurrentLine)[-1]
    assert isinstance(current_line, CurrentLine)
    assert (current_line.file, current_line.line, current_line.phase) == (MAIN, 4, "backward")
    assert current_line.time_ns - current_line.since_ns > 7 * SECOND


def test_a_line_that_is_passed_again_and_again_does_not_stand(scene: Scene) -> None:
    scene.follow()
    scene.run(8.1)
    current_line = scene.of(CurrentLine)[-1]
    assert isinstance(current_line, CurrentLine)
    assert current_line.time_ns == current_line.since_ns


def test_a_framework_that_moves_on_below_one_line_of_the_users_does_not_stand(scene: Scene) -> None:
    scene.counters.state = lambda stack: None  # type: ignore[method-assign,assignment,return-value]
    main: Place = (MAIN, "main", 9)
    waits: Place = ("torch/distributed/distributed_c10d.py", "barrier", 5)
    hangs = [stack(waits, ("transformers/trainer.py", "_save", line), main) for line in (100, 200)]
    scene.process.now = hangs[0]
    scene.follow()
    scene.run(4.0)
    scene.process.now = hangs[1]
    scene.run(4.0)
    current_line = scene.of(CurrentLine)[-1]
    assert isinstance(current_line, CurrentLine)
    assert (current_line.file, current_line.line) == (MAIN, 9)
    assert 3 * SECOND < current_line.time_ns - current_line.since_ns < 5 * SECOND


def test_a_process_that_ends_is_reported_once(scene: Scene) -> None:
    followed = scene.follow()
    scene.run(2.0)
    scene.process.gone = True
    scene.end()
    scene.run(5.0)
    assert [(s.trainer, s.how) for s in scene.samples if isinstance(s, TrainerEnded)] == [("77.5000", "exited")]
    assert followed.ended
    assert scene.process.closed


def test_a_process_that_ended_before_it_was_let_go_is_reported_as_ended(scene: Scene) -> None:
    followed = scene.follow()
    scene.run(2.0)
    scene.end()
    followed.let_go(scene.now_ns)
    followed.let_go(scene.now_ns)
    assert [s.trainer for s in scene.samples if isinstance(s, TrainerEnded)] == ["77.5000"]
    assert scene.process.closed


def test_a_process_that_is_let_go_has_not_ended(scene: Scene) -> None:
    followed = scene.follow()
    scene.run(2.0)
    followed.let_go(scene.now_ns)
    assert not scene.of(TrainerEnded)
    assert scene.process.closed


def test_a_count_has_the_time_at_which_it_was_read_however_long_all_else_took(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_ns: list[int] = []

    def recheck(state: LoaderState) -> int:
        read_ns.append(scene.now_ns)
        return state.batches_yielded

    def slow_check(self: object, now_ns: int) -> None:
        scene.now_ns += SECOND

    scene.counters.recheck = recheck  # type: ignore[method-assign,assignment]
    monkeypatch.setattr("gpuwatch.sources.stacks.workers.TrainingThread.check", slow_check)
    scene.follow()
    scene.run(10.0)
    counts = [sample.time_ns for sample in scene.samples if isinstance(sample, BatchCount)]
    assert counts and set(counts) <= set(read_ns)


def test_a_process_whose_memory_goes_while_it_is_counted_is_let_go_of_and_told_to_have_ended(scene: Scene) -> None:
    def recheck(state: LoaderState) -> int:
        raise CannotReadError(Reason.GONE, "process 77 is gone", "")

    scene.follow()
    scene.run(2.0)
    scene.counters.recheck = recheck  # type: ignore[method-assign,assignment]
    scene.end()
    scene.run(2.0)
    assert scene.process.closed
    assert [s.trainer for s in scene.samples if isinstance(s, TrainerEnded)] == ["77.5000"]


def test_a_process_whose_memory_goes_before_its_pid_is_reported_as_ended(scene: Scene) -> None:
    scene.follow()
    scene.run(2.0)
    scene.process.gone = True
    scene.run(0.5)
    assert not scene.of(TrainerEnded)
    scene.refusals = [CannotReadError(Reason.GONE, "it ended")] * 9
    scene.end()
    scene.run(1.0)
    assert [(s.trainer, s.how) for s in scene.samples if isinstance(s, TrainerEnded)] == [("77.5000", "exited")]


def test_another_process_of_the_same_pid_is_not_followed(scene: Scene) -> None:
    followed = scene.follow()
    scene.run(2.0)
    scene.write_stat(start_ticks=9000)
    scene.run(2.0)
    before = scene.process.looks
    scene.run(5.0)
    assert followed.ended
    assert scene.process.looks == before
    assert scene.attached == 1


def test_a_process_that_becomes_another_program_is_attached_to_anew(scene: Scene) -> None:
    scene.follow()
    scene.run(1.0)
    scene.process.gone = True
    scene.run(1.0)
    scene.process = FakeProcess()
    scene.run(3.0)
    assert scene.attached >= 2
    assert scene.process.looks > 50
    assert "TrainerEnded" not in scene.told()


def test_an_interpreter_that_still_starts_is_tried_again_in_silence(scene: Scene) -> None:
    scene.refusals = [CannotReadError(Reason.NOT_PYTHON, "a shell"), CannotReadError(Reason.NOT_READY, "it starts")]
    scene.follow()
    scene.run(8.0)
    assert scene.attached == 3
    facts = scene.of(RunFacts)
    assert {sample.visibility for sample in facts if isinstance(sample, RunFacts)} == {"sampled"}


def test_a_process_that_may_not_be_read_is_reported_with_its_cure_once(scene: Scene) -> None:
    denied = CannotReadError(Reason.PERMISSION, "Yama forbids it", "sudo gpuwatch --attach 77")
    scene.refusals = [denied] * 3
    scene.follow()
    scene.run(6.0)
    facts = scene.of(RunFacts)
    assert [(f.visibility, f.how_to_see_more, f.notes) for f in facts if isinstance(f, RunFacts)] == [
        ("process", "sudo gpuwatch --attach 77", ("Yama forbids it",))
    ]
    scene.run(30.0)
    newest = scene.of(RunFacts)[-1]
    assert isinstance(newest, RunFacts)
    assert (newest.visibility, newest.how_to_see_more) == ("sampled", None)


def test_what_goes_wrong_in_reading_one_process_is_said_and_does_not_raise(scene: Scene) -> None:
    def broken(pid: int, proc_root: Path) -> tuple[FakeProcess, FakeCounters]:
        raise ValueError("a pointer that is none")

    scene._attach = broken  # type: ignore[method-assign]
    scene.follow()
    scene.run(1.0)
    (facts,) = scene.of(RunFacts)
    assert isinstance(facts, RunFacts)
    assert facts.visibility == "process"
    assert "a pointer that is none" in facts.notes[0]


def test_another_thread_that_trains_is_looked_at_instead_of_an_idle_main_one(scene: Scene) -> None:
    scene.process.now = stack(("threading.py", "join", 3), (MAIN, "main", 9))
    prefetch = Stack(
        5, False, (*(frame(*p) for p in (NEXT, (MAIN, "prefetch", 3))), frame(STDLIB + "threading.py", "run", 1))
    )
    trains = Stack(6, False, (*(frame(*p) for p in STEP), frame(STDLIB + "threading.py", "run", 1)))
    scene.process.threads = [prefetch, trains]
    scene.follow()
    scene.run(5.0)
    newest = [sample for sample in scene.samples if isinstance(sample, StackTally)][-1]
    assert set(newest.phases) == {"backward"}


def test_a_torn_look_is_counted_apart(scene: Scene) -> None:
    scene.process.now = None
    scene.follow()
    scene.run(3.0)
    tallies = [sample for sample in scene.samples if isinstance(sample, StackTally)]
    assert sum(tally.samples for tally in tallies) == 0
    assert sum(tally.rejected for tally in tallies) > 150


def test_ranks_of_one_job_share_the_group_that_the_hook_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from gpuwatch.hook import facts as hook_facts

    job = {"MASTER_ADDR": "node", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "abc", "RANK": "3", "LOCAL_RANK": "1"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    told = hook_facts._ranks(os.environ, None)
    group, numbers = ranks(job)
    assert group == told["group"]
    assert {name: told[name] for name in numbers} == numbers


def test_a_job_of_one_process_has_no_group() -> None:
    assert ranks({"RANK": "x"}) == (
        None,
        {"rank": None, "local_rank": None, "world_size": None, "local_world_size": None},
    )


def test_a_hooked_one_whose_lines_may_not_be_read_says_why_until_they_may(scene: Scene) -> None:
    scene.refusals = [CannotReadError(Reason.PERMISSION, "denied", "start it with gpuwatch run")]
    followed = scene.follow(hooked=True)
    scene.run(0.5)
    assert followed.denied is not None and "gpuwatch run" not in followed.denied
    assert not scene.of(RunFacts), "its hook gives the facts"
    scene.run(5.0)
    assert scene.attached and followed.denied is None


@pytest.mark.parametrize("refusal", [None, CannotReadError(Reason.PERMISSION, "denied", "start it with gpuwatch run")])
def test_one_that_was_started_with_the_hook_is_not_advised_to_be(scene: Scene, refusal: CannotReadError | None) -> None:
    scene.write("environ", b"PYTHONPATH=/env/gpuwatch/hook/site:/lib\0")
    scene.refusals = [refusal] if refusal is not None else []
    scene.follow()
    scene.run(0.5)
    facts = scene.of(RunFacts)[-1]
    assert isinstance(facts, RunFacts)
    assert facts.visibility == ("sampled" if refusal is None else "process")
    assert facts.how_to_see_more is not None and facts.how_to_see_more.startswith("its hook is not reporting yet")


@pytest.mark.parametrize(
    ("maps", "open_file", "device"),
    [
        (b"", "/dev/null", None),
        (b"7f00-7f01 r-xp 00000000 08:01 1 /env/torch/lib/libtorch_python.so\n", "/dev/null", "cpu"),
        (b"7f00-7f01 r-xp 00000000 08:01 1 /env/torch/lib/libtorch_python.so\n", "/dev/nvidia-uvm", "cuda"),
        (b"7f00-7f01 r-xp 00000000 08:01 1 /env/torch/lib/libtorch_python.so\n", "/dev/nvidiactl", "cpu"),
    ],
)
def test_the_device_is_what_the_process_holds(scene: Scene, maps: bytes, open_file: str, device: str | None) -> None:
    scene.write("maps", maps)
    version = scene.proc / str(PID) / "root/env/torch/version.py"
    version.parent.mkdir(parents=True)
    version.write_text("__version__ = '2.9.1+cu128'\n")
    (scene.proc / str(PID) / "fd").mkdir()
    (scene.proc / str(PID) / "fd" / "3").symlink_to(open_file)
    facts = ProcessFacts(PID, 5000, scene.proc)
    facts.refresh()
    assert facts.device == device
    assert facts.torch == ("2.9.1+cu128" if maps else None)


@pytest.mark.parametrize("method", ["main_stack", "stacks", "close"])
def test_whatever_reading_one_process_raises_ends_the_looks_at_that_process_only(scene: Scene, method: str) -> None:
    def broken() -> None:
        raise AttributeError("'NoneType' object has no attribute 'address'")

    followed = scene.follow()
    scene.run(2.0)
    setattr(scene.process, method, broken)
    scene.process.now = None  # nothing trains any more, so that all threads are asked for too
    scene.run(70.0)
    attached = scene.attached
    if method != "close":
        facts = scene.of(RunFacts)[-1]
        assert isinstance(facts, RunFacts)
        assert facts.visibility == "process"
        assert facts.notes == (
            "reading process 77 failed (AttributeError: 'NoneType' object has no attribute 'address')",
        )
        assert "gpuwatch run" in (facts.how_to_see_more or "")
    scene.run(70.0)
    assert scene.attached == attached == 1
    scene.end()
    scene.run(2.0)
    assert followed.ended
    assert isinstance(scene.samples[-1], TrainerEnded)


def test_a_process_that_is_lost_while_what_is_left_of_it_fails_ends_no_other_looks(scene: Scene) -> None:
    def broken() -> None:
        raise AttributeError("'NoneType' object has no attribute 'address'")

    def gone() -> list[Stack]:
        raise CannotReadError(Reason.GONE, "it ended")

    followed = scene.follow()
    scene.run(2.0)
    scene.process.stacks, scene.process.close = gone, broken  # type: ignore[method-assign]
    scene.process.now = stack((MAIN, "main", 9))  # nothing trains any more, so that all threads are asked for
    scene.run(70.0)
    scene.end()
    scene.run(2.0)
    assert followed.ended
