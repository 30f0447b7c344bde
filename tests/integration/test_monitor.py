"""The live monitor over real processes: a hooked training on the CPU, and simulated GPUs."""

from __future__ import annotations

import gc
import os
import queue
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from nvml_sim import SimulatedDriver

from gpuwatch.monitor.clock import SystemClock
from gpuwatch.monitor.monitor import Monitor, Source
from gpuwatch.monitor.snapshot import Origin, RunNow, Snapshot
from gpuwatch.monitor.wiring import simulated_monitor
from gpuwatch.reader.refusals import CannotReadError, Reason
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import CannotRecordError
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.samples import GpuFacts, GpuSample, HostSample, MachineFacts, RunFacts, Sample, StepEnd
from gpuwatch.sources.stacks import workers
from gpuwatch.timeline.charts import Series
from gpuwatch.timeline.windows import LineShare
from tests.integration.command_line import PATIENCE_SECONDS
from tests.integration.hook_programs import PREAMBLE, rendezvous, started
from tests.integration.live_watch import Watch, needs_reading

SLOW_TRAINING = (
    PREAMBLE
    + """
import time

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.01)
        return data[index % 32]

for batch in DataLoader(Slow(), batch_size=4):
    train_on(batch)
    time.sleep(0.01)
"""
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the monitor and the trainers of one test meet, and nobody else."""
    made = rendezvous(tmp_path)
    monkeypatch.setenv("GPUWATCH_DIR", str(made))
    return made


def test_hooked_training_is_followed_from_its_steps_to_its_end(folder: Path) -> None:
    with started(folder, SLOW_TRAINING, forked=True) as training:
        watch = Watch()
        try:
            # A machine that holds the training elsewhere for seconds outweighs the first waits, not those of a minute.
            run = watch.run_until(
                lambda run: run.state == "training" and run.steps_total >= 20 and (run.wait_share or 0.0) > 0.3
            )
            assert (run.title, run.pid, run.visibility, run.how_to_see_more) == (
                "train.py",
                training.pid,
                "exact",
                None,
            )
            training.send_signal(signal.SIGSTOP)
            watch.run_until(lambda run: run.state == "stopped")
            training.send_signal(signal.SIGCONT)
            again = watch.run_until(lambda found: found.state == "training" and found.steps_total > run.steps_total)
            training.kill()
            ended = watch.run_until(lambda run: run.state == "ended")
            assert ended.steps_total >= again.steps_total
            assert watch.monitor.final_scene(60).runs[0].critical.ended == "killed"
        finally:
            watch.monitor.stop()
    assert watch.monitor.snapshot().notices == ()


def test_starved_training_is_named_with_its_line(folder: Path) -> None:
    line = next(n for n, text in enumerate(SLOW_TRAINING.splitlines(), 1) if "DataLoader(Slow()" in text)
    with started(folder, SLOW_TRAINING, forked=True) as training:
        watch = Watch(training.pid)
        try:
            snapshot = watch.until(lambda snapshot: any(each.rule == "workers-zero" for each in snapshot.findings))
        finally:
            watch.monitor.stop()
    finding = next(each for each in snapshot.findings if each.rule == "workers-zero")
    assert finding.run == snapshot.runs[0].id
    assert finding.fix is not None
    assert (Path(finding.fix.file or "").name, finding.fix.line) == ("train.py", line)
    assert snapshot.scene is not None
    assert snapshot.scene.quality.own_cpu_share is not None


def place_of(line: LineShare | None) -> tuple[str, int, str] | None:
    return None if line is None else (Path(line.file).name, line.line, line.phase)


def test_hooked_training_says_where_it_stands_and_which_line_costs(folder: Path) -> None:
    line = next(n for n, text in enumerate(SLOW_TRAINING.splitlines(), 1) if "time.sleep(0.01)" in text)
    hot = ("train.py", line, "wait")
    with started(folder, SLOW_TRAINING, forked=True) as training:
        needs_reading(training.pid)
        watch = Watch()
        try:
            run = watch.run_until(
                lambda run: run.current_line is not None and run.samples >= 100 and place_of(run.top_line) == hot
            )
        finally:
            watch.monitor.stop()
    assert run.visibility == "exact"


def test_gpus_are_polled_while_nothing_trains(
    folder: Path, simulated_driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated_driver.write("wave 0 utilization square 5 95 0.5 0.5", "wave 1 utilization constant 40", gpus=2)
    for name, value in simulated_driver.env.items():
        monkeypatch.setenv(name, value)
    watch = Watch()
    try:
        snapshot = watch.until(
            lambda snapshot: (
                snapshot.nvml is not None
                and snapshot.nvml.status == "ok"
                and [gpu.status for gpu in snapshot.gpus] == ["live", "live"]
                and (snapshot.gpus[0].utilization_sigma_percent or 0.0) > 20
            )
        )
        steady = snapshot.gpus[1]
        assert steady.utilization_mean_percent == pytest.approx(40, abs=1)
    finally:
        watch.monitor.stop()


TRAINING = (
    PREAMBLE
    + """
import time

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.01)
        return data[index % 32]

train_on(data[:4])  # what the first step of all imports is no part of the loop
print("ready", flush=True)
for batch in DataLoader(Slow(), batch_size=4):
    train_on(batch)
    time.sleep(0.01)
"""
)


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(TRAINING.splitlines(), 1) if text in line)


def waits_most(run: RunNow) -> bool:
    """What the script does, once any moment in which the machine held it elsewhere is a small part of the window."""
    if run.wait_share is None or run.step_seconds is None or run.top_line is None:
        return False
    hot = Path(run.top_line.file).name, run.top_line.line
    return run.wait_share > 0.3 and run.step_seconds > 0.04 and hot == ("train.py", line_of("time.sleep(0.01)"))


def test_training_without_a_hook_is_followed_from_attaching_to_its_end(folder: Path) -> None:
    with started(folder, TRAINING, hooked=False) as training:
        assert training.stdout is not None and training.stdout.readline() == "ready\n"
        needs_reading(training.pid)
        watch = Watch()
        try:
            listed = watch.until(lambda snapshot: training.pid in {each.pid for each in snapshot.candidates})
            assert (listed.attached_pid, listed.runs) == (None, ())
            watch.monitor.attach(training.pid)
            run = watch.run_until(lambda run: run.state == "training" and run.samples >= 100 and waits_most(run))
            assert watch.monitor.snapshot().attached_pid == training.pid
            assert (run.visibility, run.title, run.pid) == ("sampled", "train.py", training.pid)
            assert run.steps_total >= 10 and run.batches_exact
            assert run.samples_per_second is not None and run.batches_per_second is not None
            assert run.samples_per_second == pytest.approx(4 * run.batches_per_second)
            assert run.current_line is not None and run.how_to_see_more is not None
            window = watch.monitor.final_scene(60).runs[0].critical
            assert window.stacks is not None and window.stacks.cpu_share is not None
            assert window.process is not None and window.process.latest.pid == training.pid
            assert window.wait_share == window.stacks.train_phases["wait"].value

            watch.monitor.attach(None)
            watch.until(lambda snapshot: snapshot.attached_pid is None and snapshot.runs == ())
            watch.monitor.attach(training.pid)
            again = watch.run_until(lambda found: found.steps_total > run.steps_total)
            assert again.id == run.id

            training.send_signal(signal.SIGSTOP)
            watch.run_until(lambda run: run.state == "stopped")
            training.send_signal(signal.SIGCONT)
            watch.run_until(lambda run: run.state == "training")
            training.kill()
            training.wait()
            watch.run_until(lambda run: run.state == "ended")
        finally:
            watch.monitor.stop()
    assert watch.monitor.snapshot().notices == ()


def test_training_whose_memory_is_denied_is_watched_in_proc(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(pid: int, **_: object) -> None:
        raise CannotReadError(Reason.PERMISSION, f"process {pid} may not be read", "run gpuwatch as root")

    monkeypatch.setattr(workers, "attach_to", denied)
    with started(folder, TRAINING, hooked=False) as training:
        watch = Watch(training.pid)
        try:
            run = watch.run_until(
                lambda run: run.visibility == "process" and run.how_to_see_more == "run gpuwatch as root"
            )
            scene = watch.monitor.final_scene(60)
        finally:
            watch.monitor.stop()
    assert (run.pid, run.title, run.state, run.steps_total) == (training.pid, "train.py", "not hooked", 0)
    assert (run.wait_share, run.samples, run.current_line) == (None, 0, None)
    assert scene.runs[0].critical.process is not None


SECOND_NS = 1_000_000_000


def test_a_recording_begun_later_still_knows_what_was_told_before(tmp_path: Path) -> None:
    path = tmp_path / "late.gpuwatch"
    monitor = simulated_monitor("starved", virtual=True)
    monitor.run_until(monitor.snapshot().time_ns + 30 * SECOND_NS)
    monitor.record(path)
    begun_ns = monitor.snapshot().time_ns
    monitor.run_until(begun_ns + 5 * SECOND_NS)
    monitor.stop()
    with Recording(path) as recording:
        kinds = {type(sample) for sample in recording.samples(recording.start_ns, recording.start_ns + 1)}
        assert {GpuFacts, MachineFacts, RunFacts} <= kinds
        later = list(recording.samples(recording.start_ns + 1, recording.end_ns))
        assert {GpuSample, StepEnd} <= {type(sample) for sample in later}


def test_the_snapshot_says_how_the_recording_stands_until_it_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.gpuwatch"
    monitor = simulated_monitor("starved", virtual=True)
    assert monitor.snapshot().recording is None
    monitor.record(path)
    monitor.run_until(monitor.snapshot().time_ns + 12 * SECOND_NS)
    now = monitor.snapshot().recording
    assert now is not None
    assert (now.path, now.problem) == (path, None)
    assert now.seconds == pytest.approx(12, abs=1.5)
    assert now.bytes > 0
    ended = monitor.stop_recording()
    assert ended is not None and ended.bytes == path.stat().st_size
    assert monitor.snapshot().recording is None
    assert monitor.stop_recording() is None
    with Recording(path) as recording:
        assert recording.meta.ended
    monitor.stop()


def test_one_recording_at_a_time(tmp_path: Path) -> None:
    monitor = simulated_monitor("starved", virtual=True)
    monitor.record(tmp_path / "one.gpuwatch")
    with pytest.raises(ValueError, match=r"one\.gpuwatch is already being recorded"):
        monitor.record(tmp_path / "two.gpuwatch")
    monitor.stop()
    assert not (tmp_path / "two.gpuwatch").exists()


def test_a_place_that_cannot_be_written_is_refused_and_the_watch_goes_on(tmp_path: Path) -> None:
    monitor = simulated_monitor("starved", virtual=True)
    with pytest.raises(CannotRecordError):
        monitor.record(tmp_path / "no such folder" / "run.gpuwatch")
    monitor.run_until(monitor.snapshot().time_ns + 3 * SECOND_NS)
    assert monitor.snapshot().recording is None
    assert monitor.snapshot().gpus[0].latest is not None
    monitor.stop()


def test_a_recorder_with_a_bug_is_reported_and_disturbs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = simulated_monitor("starved", virtual=True)
    monitor.record(tmp_path / "run.gpuwatch")

    def broken(self: RecordingWriter, *arguments: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(RecordingWriter, "add", broken)
    monitor.run_until(monitor.snapshot().time_ns + 40 * SECOND_NS)
    snapshot = monitor.snapshot()
    assert snapshot.recording is not None and "ZeroDivisionError" in (snapshot.recording.problem or "")
    assert snapshot.runs[0].steps_total > 100
    assert {finding.rule for finding in snapshot.findings} >= {"data-starvation"}
    assert snapshot.notices == ()
    ended = monitor.stop_recording()
    assert ended is not None and ended.problem is not None
    assert monitor.snapshot().recording is None
    monitor.stop()


def test_stopping_the_monitor_closes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.gpuwatch"
    monitor = simulated_monitor("starved", virtual=False)
    monitor.record(path)
    monitor.start()
    monitor.stop()
    for thread in threading.enumerate():
        if thread.name in ("gpuwatch-monitor", "gpuwatch-recorder"):
            thread.join(PATIENCE_SECONDS)  # on a busy machine it takes longer than stop() waits for it
    assert [each.name for each in tmp_path.iterdir()] == ["run.gpuwatch"]
    with Recording(path) as recording:
        assert recording.meta.ended


class PipeSource:
    """Makes a GPU sample of every byte that is written to it."""

    name = "pipe"

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self._introduced = False
        self.closed = threading.Event()

    def write(self) -> None:
        os.write(self._write, b"x")

    def fileno(self) -> int | None:
        return self._read

    def due_ns(self) -> int | None:
        return None

    def collect(self, now_ns: int) -> Iterable[Sample]:
        try:
            os.read(self._read, 1)
        except BlockingIOError:
            return
        if not self._introduced:
            self._introduced = True
            yield GpuFacts(now_ns, "GPU-0", 0, "H100")
        yield GpuSample(now_ns, "GPU-0", utilization_percent=50.0)

    def close(self) -> None:
        if not self.closed.is_set():
            self.closed.set()
            os.close(self._read)
            os.close(self._write)


class StuckSource(PipeSource):
    """Never comes back from `collect` until it is released."""

    name = "stuck"

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def collect(self, now_ns: int) -> Iterable[Sample]:
        self.entered.set()
        self.released.wait()
        return [HostSample(now_ns)]


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def live(*sources: Source) -> tuple[Monitor, queue.SimpleQueue[Snapshot]]:
    monitor = Monitor(sources, origin=Origin("live", "LIVE"), clock=SystemClock())
    snapshots: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()
    monitor.subscribe(snapshots.put)
    return monitor, snapshots


@pytest.fixture
def source() -> Iterator[PipeSource]:
    made = PipeSource()
    yield made
    for thread in threads_named("gpuwatch-monitor"):
        thread.join(PATIENCE_SECONDS)
    made.close()


def test_input_is_shown_to_subscribers_from_the_monitors_thread(source: PipeSource) -> None:
    monitor, snapshots = live(source)
    threads: list[str] = []
    monitor.subscribe(lambda snapshot: threads.append(threading.current_thread().name))
    monitor.start()
    source.write()
    shown = snapshots.get(timeout=PATIENCE_SECONDS)
    while not shown.gpus:
        shown = snapshots.get(timeout=PATIENCE_SECONDS)
    monitor.stop()
    assert shown.gpus[0].latest is not None
    assert set(threads) == {"gpuwatch-monitor"}
    assert threading.current_thread().name not in threads


def test_stop_ends_the_thread_and_gives_every_file_back() -> None:
    gc.collect()  # what earlier tests left is given back now, and not in between
    before = len(list(Path("/proc/self/fd").iterdir()))
    source = PipeSource()
    monitor, snapshots = live(source)
    monitor.start()
    snapshots.get(timeout=PATIENCE_SECONDS)
    watching = threads_named("gpuwatch-monitor")
    monitor.stop()
    for thread in watching:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    monitor.stop()  # the first one left behind a thread that a busy machine had held for over a second
    assert source.closed.is_set()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    monitor.stop()


def test_stop_does_not_wait_for_a_source_that_hangs() -> None:
    stuck = StuckSource()
    monitor, _ = live(stuck)
    monitor.start()
    stuck.write()
    assert stuck.entered.wait(PATIENCE_SECONDS)
    monitor.stop()
    assert not stuck.released.is_set()
    assert monitor.snapshot().time_ns > 0
    stuck.released.set()
    for thread in threads_named("gpuwatch-monitor"):
        thread.join(PATIENCE_SECONDS)
    monitor.stop()


def test_view_reads_charts_while_the_monitor_writes(source: PipeSource) -> None:
    monitor, snapshots = live(source)
    monitor.start()
    series = Series("gpu.utilization_percent", "GPU-0")
    mean: Sequence[float | None] = ()
    while 50.0 not in mean:
        source.write()
        now_ns = snapshots.get(timeout=PATIENCE_SECONDS).time_ns
        mean = monitor.timeline.chart(series, now_ns - 10_000_000_000, now_ns + 1_000_000_000, 11).mean
    monitor.stop()
    assert set(mean) <= {None, 50.0}


def test_caller_may_watch_without_a_thread_and_be_stopped_from_another(source: PipeSource) -> None:
    monitor, snapshots = live(source)
    stopper = threading.Thread(target=lambda: (snapshots.get(timeout=PATIENCE_SECONDS), monitor.stop()))
    stopper.start()
    source.write()
    monitor.run_until(None)
    stopper.join(PATIENCE_SECONDS)
    assert not stopper.is_alive()
    monitor.stop()
    assert source.closed.is_set()
