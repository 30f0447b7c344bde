"""The host source and the attach checks on real processes."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from child_processes import BLOCKED, BURNER, BUSY, SLEEPER, THREADED, child, trainer

from gpuwatch.procfs import TreeWalker, is_running
from gpuwatch.samples import HostSample, ProcessSample
from gpuwatch.sources.host.identify import (
    VARIABLES,
    CannotAttachError,
    identify,
)
from gpuwatch.sources.host.source import HostSource, private_dirty_bytes
from tests.integration.command_line import PATIENCE_SECONDS

PROC = Path("/proc")
NO_UID = 4_000_000_000


def run_until(source: HostSource, enough: Callable[[ProcessSample], bool]) -> ProcessSample:
    """Lets a source run on the real clock, as the monitor does, until a sample is as expected."""
    give_up_ns = time.monotonic_ns() + PATIENCE_SECONDS * 1_000_000_000
    last: ProcessSample | None = None
    while time.monotonic_ns() < give_up_ns:
        due_ns = source.due_ns()
        assert due_ns is not None
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        for sample in source.collect(time.monotonic_ns()):
            if isinstance(sample, ProcessSample):
                last = sample
                if enough(sample):
                    return sample
    raise AssertionError(f"not seen within {PATIENCE_SECONDS} s; the last sample was {last}")


def open_files() -> int:
    """How many there are, without those that earlier tests left to the garbage collector."""
    gc.collect()
    return len(list((PROC / "self/fd").iterdir()))


def first_samples(targets: Iterable[int]) -> list[ProcessSample]:
    source = HostSource(0.5, targets=lambda: targets)
    return [s for s in source.collect(time.monotonic_ns()) if isinstance(s, ProcessSample)]


def test_a_busy_process_is_busy_and_its_command_is_reported() -> None:
    with child(BURNER) as (process, _):
        source = HostSource(0.5, targets=lambda: [process.pid])
        sample = run_until(source, lambda s: (s.main_thread_cores or 0) > 0.1)
        assert sample.tree_cores is not None
        assert sample.tree_cores > 0.1
        assert sample.command is not None
        assert sample.command.startswith(sys.executable)
        assert sample.rss_bytes is not None
        assert sample.rss_bytes > 1 << 20
        assert sample.cpu_capacity_cores is None or 0 < sample.cpu_capacity_cores <= (os.cpu_count() or 1)


def test_a_sleeping_process_uses_nothing() -> None:
    with child(SLEEPER) as (process, _):
        source = HostSource(0.5, targets=lambda: [process.pid])
        sample = run_until(source, lambda s: s.tree_cores is not None and s.state == "S")
        assert sample.tree_cores == pytest.approx(0.0, abs=0.1)
        assert sample.workers == ()


def test_threads_at_work_and_own_memory_of_a_worker_are_seen() -> None:
    with child(trainer(workers=1, doing=THREADED)) as (process, _):
        source = HostSource(0.5, targets=lambda: [process.pid])
        sample = run_until(source, lambda s: any((w.active_threads or 0) >= 3 for w in s.workers))
        (worker,) = sample.workers
        assert worker.active_threads is not None and worker.active_threads < 10
        assert worker.threads is not None and worker.threads >= 4
        assert worker.private_dirty_bytes is not None
        hoarded = private_dirty_bytes(PROC, worker.pid)
        assert hoarded is not None and 20 << 20 < hoarded < 60 << 20
        assert worker.last_core in os.sched_getaffinity(process.pid)
        assert worker.system_cores is not None and worker.cpu_cores is not None
        assert worker.system_cores <= worker.cpu_cores


def test_what_a_process_was_started_with_is_known_but_for_other_variables() -> None:
    with child(SLEEPER) as (process, _):
        (sample,) = first_samples([process.pid])
        assert sample.environment is not None
        assert {name for name, _ in sample.environment} <= set(VARIABLES)
        assert sample.libraries == ()
        assert sample.age_seconds is not None and 0 <= sample.age_seconds < 60


def test_workers_are_found_by_the_name_that_torch_gives_them() -> None:
    with child(trainer(workers=3, doing=BUSY)) as (process, workers):
        source = HostSource(0.5, targets=lambda: [process.pid])
        sample = run_until(source, lambda s: len(s.workers) == 3 and sum(w.cpu_cores or 0 for w in s.workers) > 0.2)
        assert [worker.pid for worker in sample.workers] == sorted(workers)
        assert all(worker.threads == 1 for worker in sample.workers)
        assert all(worker.affinity_cores == len(os.sched_getaffinity(process.pid)) for worker in sample.workers)
        looked_at = run_until(source, lambda s: all(w.blocked_share is not None for w in s.workers))
        assert len(looked_at.workers) == 3


TORCH_LOADERS = """
from torch.utils.data import DataLoader
forked = iter(DataLoader(range(64), num_workers=2, multiprocessing_context="fork"))
served = iter(DataLoader(range(64), num_workers=1, multiprocessing_context="forkserver"))
next(forked), next(forked), next(served)  # a worker has its name by its first batch
ready()
until_closed()
"""


def test_torchs_own_workers_are_found_also_below_its_fork_server() -> None:
    with child(TORCH_LOADERS) as (process, _):
        (sample,) = first_samples([process.pid])
        assert len(sample.workers) == 3
        assert all(worker.rss_bytes for worker in sample.workers)


def test_workers_that_the_kernel_holds_are_reported_as_blocked() -> None:
    with child(trainer(workers=2, doing=BLOCKED)) as (process, _):
        source = HostSource(0.5, targets=lambda: [process.pid])
        sample = run_until(
            source, lambda s: len(s.workers) == 2 and all((w.blocked_share or 0) > 0.9 for w in s.workers)
        )
        assert [worker.state for worker in sample.workers] == ["D", "D"]


def test_a_stopped_process_is_in_state_t() -> None:
    with child(SLEEPER) as (process, _):
        process.send_signal(signal.SIGSTOP)
        sample = run_until(HostSource(0.5, targets=lambda: [process.pid]), lambda s: s.state == "T")
        assert sample.pid == process.pid


def test_a_zombie_is_reported_as_one_and_a_collected_process_is_gone() -> None:
    with child(SLEEPER) as (process, _):
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        (sample,) = first_samples([process.pid])
        assert sample.state == "Z"
        process.wait()
        assert first_samples([process.pid]) == []


def test_nothing_is_left_open_and_the_watched_process_gets_no_signal() -> None:
    with child(trainer(workers=2)) as (process, _):
        source = HostSource(0.5, targets=lambda: [process.pid])
        run_until(source, lambda s: len(s.workers) == 2)
        before = open_files()
        run_until(source, lambda s: s.tree_cores is not None)
        assert open_files() == before
        assert process.poll() is None


def test_the_machine_this_runs_on_is_read() -> None:
    source = HostSource(0.5)
    list(source.collect(time.monotonic_ns()))
    due_ns = source.due_ns()
    assert due_ns is not None
    time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
    (sample,) = source.collect(time.monotonic_ns())
    assert isinstance(sample, HostSample)
    assert sample.cpu_percent is not None
    assert 0.0 <= sample.cpu_percent <= 100.0
    assert sample.memory_available_bytes is not None
    assert sample.memory_total_bytes is not None
    assert sample.memory_available_bytes < sample.memory_total_bytes


def test_a_running_python_process_is_identified_for_good() -> None:
    with child(SLEEPER) as (process, _):
        identity = identify(process.pid)
        assert identity.pid == process.pid
        assert identity.uid == os.geteuid()
        assert identity.arguments[1] == "-c"
        assert is_running(process.pid, identity.start_ticks)
        assert not is_running(process.pid, identity.start_ticks + 1)
    assert not is_running(process.pid, identity.start_ticks)


def refusal(pid: int, my_uid: int | None = None) -> CannotAttachError:
    with pytest.raises(CannotAttachError) as refused:
        identify(pid, my_uid=my_uid)
    sentence = refused.value.sentence
    assert str(pid) in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return refused.value


def test_a_pid_that_was_never_given_out_is_refused() -> None:
    beyond = int((PROC / "sys/kernel/pid_max").read_text()) + 1
    assert "there is no process" in refusal(beyond).sentence
    assert "there is no process" in refusal(10**30).sentence
    assert "there is no process" in refusal(-1).sentence


def test_an_ended_process_is_refused() -> None:
    with child(SLEEPER) as (process, _):
        pass
    assert "there is no process" in refusal(process.pid).sentence


def test_a_zombie_is_refused() -> None:
    with child(SLEEPER) as (process, _):
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert "has ended and only waits" in refusal(process.pid).sentence


def test_gpuwatch_itself_is_refused() -> None:
    assert "is this gpuwatch itself" in refusal(os.getpid()).sentence


def test_a_thread_is_refused_with_the_process_to_use_instead() -> None:
    with child(BURNER) as (process, _):
        threads = {int(task.name) for task in (PROC / str(process.pid) / "task").iterdir()}
        thread = (threads - {process.pid}).pop()
        refused = refusal(thread)
        assert "is a thread of process" in refused.sentence
        assert f"--attach {process.pid}" in refused.sentence


def test_another_users_process_is_refused_with_both_users_named() -> None:
    with child(SLEEPER) as (process, _):
        refused = refusal(process.pid, my_uid=NO_UID)
        assert "belongs to" in refused.sentence
        assert f"uid {os.geteuid()}" in refused.sentence
        assert f"uid {NO_UID}" in refused.sentence
        assert refused.sentence.count("root (sudo)") == 1
        assert refused.sentence.count("or as root") == (os.geteuid() != 0)


def test_root_may_watch_everybodys_process() -> None:
    with child(SLEEPER) as (process, _):
        assert identify(process.pid, my_uid=0).pid == process.pid


def test_a_program_that_is_not_python_is_refused() -> None:
    cat = shutil.which("cat")
    assert cat is not None
    with subprocess.Popen([cat], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        refused = refusal(process.pid)
        process.stdin.close()
    assert "is not a Python process" in refused.sentence


def test_a_shell_around_the_training_is_refused_with_the_python_below_it() -> None:
    script = f"{sys.executable} -c 'import sys; print(\"ready\", flush=True); sys.stdin.read()'; true"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        (python,) = TreeWalker(PROC).descendants(process.pid)
        refused = refusal(process.pid)
        process.stdin.close()
    assert "is not a Python process" in refused.sentence
    assert f"--attach {python}" in refused.sentence


def test_python_under_another_name_is_known_by_what_it_is_linked_with(tmp_path: Path) -> None:
    renamed = tmp_path / "trainer"
    shutil.copy(Path(sys.executable).resolve(), renamed)
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    environment = {**os.environ, "PYTHONHOME": sys.base_prefix}
    with subprocess.Popen(
        [renamed, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert identify(process.pid).executable == str(renamed)
        process.stdin.close()
