"""What is read of workers one after the other, and once of a run: threads, own memory, nodes, variables, libraries."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from recorded_proc import Clock, RecordedHost

from gpuwatch.samples import MachineFacts, ProcessSample
from gpuwatch.sources.host.machine import core_list
from gpuwatch.sources.host.source import HostSource

WORKER = "pt_data_worker"


class Polled:
    """A host source over a recorded machine, polled second by second."""

    def __init__(self, host: RecordedHost) -> None:
        self.host = host
        self.clock = Clock()
        host.machine()
        self.source = HostSource(
            1.0,
            host.proc,
            host.cgroup,
            self.clock,
            lambda: [100],
            affinity_cores=lambda pid: 8,
            cpu_clock=lambda: 0,
            sys_root=host.sys,
        )

    def poll(self, seconds: float = 1.0) -> ProcessSample:
        samples = self.source.collect(self.clock.advance(seconds))
        (sample,) = [each for each in samples if isinstance(each, ProcessSample)]
        return sample


@pytest.fixture
def host(tmp_path: Path) -> RecordedHost:
    return RecordedHost(tmp_path)


def worker(host: RecordedHost, pid: int, **fields: object) -> None:
    host.process(pid, name=WORKER, parent=100, **fields)  # type: ignore[arg-type]


def test_threads_of_a_worker_count_only_where_they_ran_as_the_others_did(host: RecordedHost) -> None:
    host.process(100, children={100: [201]})
    worker(host, 201, cpu_seconds=1, thread_seconds={301: 5, 302: 5, 303: 9})
    polled = Polled(host)
    assert polled.poll().workers[0].active_threads is None
    worker(host, 201, cpu_seconds=1.5, thread_seconds={301: 5.02, 302: 5, 303: 9.4, 304: 0.1})
    assert polled.poll().workers[0].active_threads == 3
    worker(host, 201, cpu_seconds=9, thread_seconds={301: 9, 302: 9, 303: 10, 304: 0.1})
    assert polled.poll().workers[0].active_threads == 3


def test_threads_that_cannot_be_listed_are_unknown_and_not_none(host: RecordedHost) -> None:
    host.process(100, children={100: [201]})
    worker(host, 201, cpu_seconds=1, thread_seconds={301: 5})
    polled = Polled(host)
    polled.poll()
    shutil.rmtree(host.proc / "201" / "task")
    assert polled.poll().workers[0].active_threads is None


def test_workers_take_turns(host: RecordedHost) -> None:
    host.process(100, children={100: [201, 202]})
    for pid in (201, 202):
        worker(host, pid)
    polled = Polled(host)
    polled.poll()
    worker(host, 201, cpu_seconds=1)
    worker(host, 202, cpu_seconds=1)
    assert [each.active_threads for each in polled.poll().workers] == [1, None]
    polled.poll(5.0)
    worker(host, 202, cpu_seconds=2)
    assert [each.active_threads for each in polled.poll().workers] == [1, 1]


def test_a_worker_with_a_reused_pid_is_another_one(host: RecordedHost) -> None:
    host.process(100, children={100: [201]})
    worker(host, 201, cpu_seconds=1)
    polled = Polled(host)
    polled.poll()
    worker(host, 201, cpu_seconds=9, start_ticks=9000)
    assert polled.poll().workers[0].active_threads is None


def test_own_memory_is_that_of_two_workers_in_turn_and_seldom_read(host: RecordedHost) -> None:
    pids = [201, 202, 203]
    host.process(100, children={100: pids})
    for pid in pids:
        worker(host, pid, private_dirty_kb=pid)
    polled = Polled(host)
    assert [each.private_dirty_bytes for each in polled.poll().workers] == [201 * 1024, None, None]
    worker(host, 201, private_dirty_kb=9)
    assert polled.poll(6.0).workers[0].private_dirty_bytes == 201 * 1024
    assert [each.private_dirty_bytes for each in polled.poll(25.0).workers] == [201 * 1024, 202 * 1024, None]
    assert [each.private_dirty_bytes for each in polled.poll(30.0).workers] == [9 * 1024, 202 * 1024, None]


def test_a_large_worker_is_not_walked_through(host: RecordedHost) -> None:
    host.process(100, children={100: [201]})
    worker(host, 201, private_dirty_kb=5, rss_pages=(4 << 30) // 4096 + 1)
    assert Polled(host).poll().workers[0].private_dirty_bytes is None


def test_the_kernels_part_of_a_workers_time(host: RecordedHost) -> None:
    host.process(100, children={100: [201]})
    worker(host, 201, cpu_seconds=1, system_seconds=0.5)
    polled = Polled(host)
    polled.poll()
    worker(host, 201, cpu_seconds=1.8, system_seconds=0.7)
    sample = polled.poll().workers[0]
    assert sample.cpu_cores == pytest.approx(0.8)
    assert sample.system_cores == pytest.approx(0.2)


def test_a_workers_time_in_line_is_read_every_few_seconds(host: RecordedHost) -> None:
    def poll(schedstat: tuple[int, int, int] | None, seconds: float) -> float | None:
        worker(host, 201, schedstat=schedstat)
        return polled.poll(seconds).workers[0].run_delay_share

    host.process(100, children={100: [201]})
    polled = Polled(host)
    assert poll((1, 1_000_000_000, 1), 1.0) is None
    assert poll((1, 5_000_000_000, 2), 5.0) == pytest.approx(0.8)
    assert poll((1, 6_000_000_000, 3), 1.0) == pytest.approx(0.8)
    assert poll((0, 0, 0), 5.0) is None


def test_cores_are_added_up_by_node(host: RecordedHost) -> None:
    def step(seconds: float) -> None:
        host.process(100, last_core=1, schedstat=(int(seconds * 1e9), 1, 1), children={100: [201]}, cpu_seconds=seconds)
        worker(host, 201, last_core=5, cpu_seconds=2 * seconds)

    host.nodes("0-3", "4-7", gpus={"0000:3b:00.0": 1, "0000:af:00.0": -1})
    step(1.0)
    polled = Polled(host)
    polled.poll()
    step(1.4)
    assert polled.poll().node_cores == pytest.approx((0.4, 0.8))


@pytest.mark.parametrize("cores", [("0-7",), ()], ids=["one node", "nodes not told"])
def test_without_several_nodes_nothing_is_said_of_them(host: RecordedHost, cores: Iterable[str]) -> None:
    host.nodes(*cores)
    host.process(100, schedstat=(1, 1, 1))
    polled = Polled(host)
    polled.poll()
    assert polled.poll().node_cores == ()


def test_the_machine_tells_its_nodes_and_those_of_its_gpus(host: RecordedHost) -> None:
    host.nodes("0-3,8", "4-7", gpus={"0000:3b:00.0": 1, "0000:AF:00.0": 0, "0000:d8:00.0": -1})
    host.process(100)
    polled = Polled(host)
    (facts,) = [each for each in polled.source.collect(polled.clock.advance(1.0)) if isinstance(each, MachineFacts)]
    assert facts.numa_nodes == 2
    assert facts.gpu_numa_nodes == (("0000:3b:00.0", 1), ("0000:af:00.0", 0))


def test_of_the_environment_only_the_named_variables_are_kept(host: RecordedHost) -> None:
    environment = [b"SECRET=1", b"CUDA_LAUNCH_BLOCKING=1", b"OMP_NUM_THREADS=\x1b[1m", b"NO_VALUE"]
    host.process(100, environment=environment)
    assert Polled(host).poll().environment == (("CUDA_LAUNCH_BLOCKING", "1"), ("OMP_NUM_THREADS", r"\x1b[1m"))


def test_an_environment_that_may_not_be_read_is_unknown(host: RecordedHost) -> None:
    host.process(100)
    (host.proc / "100/environ").unlink()
    assert Polled(host).poll().environment is None


def test_what_a_launcher_executes_brings_its_own_environment(host: RecordedHost) -> None:
    host.process(100)
    polled = Polled(host)
    assert polled.poll().environment == ()
    host.process(100, environment=[b"CUDA_LAUNCH_BLOCKING=1"])
    assert polled.poll(61.0).environment == (("CUDA_LAUNCH_BLOCKING", "1"),)


def test_libraries_are_known_by_what_is_mapped(host: RecordedHost) -> None:
    maps = "".join(
        f"7f00-7f01 r-xp 00000000 08:01 12 {path}\n"
        for path in (
            "/usr/lib/libc.so.6",
            "/opt/venv/lib/python3.11/site-packages/cv2/cv2.abi3.so",
            "/opt/venv/lib/python3.11/site-packages/numpy.libs/libopenblas64_p-r0-0cf96a72.3.23.dev.so",
            "/opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so",
            "/opt/venv/lib/python3.11/site-packages/torch/lib/libgomp-a34b3233.so.1",
        )
    )
    host.process(100, maps=maps)
    assert Polled(host).poll().libraries == ("cv2", "openblas", "openmp", "torch_cuda")


def test_libraries_that_may_not_be_read_are_unknown(host: RecordedHost) -> None:
    host.process(100)
    assert Polled(host).poll().libraries is None


def test_the_age_is_the_time_since_the_start(host: RecordedHost) -> None:
    host.process(100, start_ticks=5000)
    assert Polled(host).poll().age_seconds == pytest.approx(1000.0 - 50.0)


@pytest.mark.parametrize(
    ("raw", "cores"),
    [(b"0-2,5\n", [0, 1, 2, 5]), (b"\n", []), (b"x-3", []), (None, []), (b"3", [3])],
)
def test_a_list_of_cores(raw: bytes | None, cores: list[int]) -> None:
    assert core_list(raw) == cores
