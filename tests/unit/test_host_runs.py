"""Training processes and their DataLoader workers over recorded /proc trees."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_proc import Clock, RecordedHost

from gpuwatch.foreign import read_arguments, read_program
from gpuwatch.procfs import TreeWalker, parse_stat
from gpuwatch.samples import MachineFacts, ProcessSample
from gpuwatch.sources.host.machine import core_list
from gpuwatch.sources.host.source import HostSource, TreeCpu, tree_cpu_ticks

WORKER = "pt_data_worker"


class Watched:
    """A host source over a recorded machine, polled second by second."""

    def __init__(self, host: RecordedHost, known_workers: Callable[[int], Collection[int]] = lambda pid: ()) -> None:
        self.host = host
        self.clock = Clock()
        self.uptime_seconds = 1000.0
        self.targets: Iterable[int] = [100]
        host.machine()
        self.source = HostSource(
            1.0,
            host.proc,
            host.cgroup,
            self.clock,
            lambda: self.targets,
            known_workers=known_workers,
            affinity_cores={100: 8, 201: 2}.get,
            cpu_clock=lambda: 0,
        )

    def poll(self, seconds: float = 1.0) -> list[ProcessSample]:
        now_ns = self.clock.advance(seconds)
        self.uptime_seconds += seconds
        self.host.write("uptime", f"{self.uptime_seconds:.2f} 1.00\n")
        return [s for s in self.source.collect(now_ns) if isinstance(s, ProcessSample)]

    def poll_one(self, seconds: float = 1.0) -> ProcessSample:
        (sample,) = self.poll(seconds)
        return sample


@pytest.fixture
def host(tmp_path: Path) -> RecordedHost:
    return RecordedHost(tmp_path)


@pytest.fixture
def watched(host: RecordedHost) -> Watched:
    return Watched(host)


def test_cores_are_cpu_seconds_per_second_of_main_thread_and_of_the_whole_tree(
    host: RecordedHost, watched: Watched
) -> None:
    children = {100: [201]}
    host.process(100, cpu_seconds=10, schedstat=(5_000_000_000, 1_000_000_000, 9), children=children)
    host.process(201, name=WORKER, parent=100, cpu_seconds=3)
    assert watched.poll_one().tree_cores is None
    host.process(100, cpu_seconds=11, schedstat=(5_800_000_000, 1_200_000_000, 12), children=children)
    host.process(201, name=WORKER, parent=100, cpu_seconds=4.5)
    sample = watched.poll_one(2.0)
    assert sample.main_thread_cores == pytest.approx(0.4)
    assert sample.run_delay_share == pytest.approx(0.1)
    assert sample.tree_cores == pytest.approx(1.25)
    assert [worker.cpu_cores for worker in sample.workers] == [pytest.approx(0.75)]


def test_without_scheduler_accounts_the_main_threads_ticks_are_used_and_the_delay_is_unknown(
    host: RecordedHost, watched: Watched
) -> None:
    host.process(100, cpu_seconds=1, schedstat=(0, 0, 0))
    watched.poll()
    host.process(100, cpu_seconds=1.5, schedstat=(0, 0, 0))
    sample = watched.poll_one()
    assert sample.main_thread_cores == pytest.approx(0.5)
    assert sample.run_delay_share is None


def test_workers_are_known_by_their_name_anywhere_below_the_run(host: RecordedHost, watched: Watched) -> None:
    host.process(100, children={100: [150], 117: [201]}, threads=2)
    host.process(150, name="python", parent=100, children={150: [202]})  # a forkserver
    host.process(201, name=WORKER, parent=100, state="R", threads=3, rss_pages=7)
    host.process(202, name=WORKER, parent=150)
    sample = watched.poll_one()
    assert [worker.pid for worker in sample.workers] == [201, 202]
    first, second = sample.workers
    assert (first.state, first.threads, first.affinity_cores) == ("R", 3, 2)
    assert first.rss_bytes == 7 * os.sysconf("SC_PAGE_SIZE")
    assert second.affinity_cores is None


def test_workers_without_the_name_are_known_from_the_runs_own_hook(host: RecordedHost) -> None:
    watched = Watched(host, known_workers={100: {201}}.__getitem__)
    host.process(100, children={100: [201, 202]})
    host.process(201, parent=100)
    host.process(202, parent=100)
    assert [worker.pid for worker in watched.poll_one().workers] == [201]


def test_what_a_worker_forks_inherits_its_name_and_is_no_worker(host: RecordedHost, watched: Watched) -> None:
    host.process(100, children={100: [201]})
    host.process(201, name=WORKER, parent=100, children={201: [202]})
    host.process(202, name=WORKER, parent=201)
    assert [worker.pid for worker in watched.poll_one().workers] == [201]


def test_a_run_started_by_another_run_keeps_its_own_workers(host: RecordedHost, watched: Watched) -> None:
    watched.targets = [100, 300]
    host.process(100, children={100: [300, 201]})
    host.process(201, name=WORKER, parent=100)
    host.process(300, parent=100, children={300: [301]})
    host.process(301, name=WORKER, parent=300)
    workers = {sample.pid: [w.pid for w in sample.workers] for sample in watched.poll()}
    assert workers == {100: [201], 300: [301]}


def test_blocked_share_is_the_share_of_looks_that_saw_state_d(host: RecordedHost, watched: Watched) -> None:
    host.process(100, children={100: [201]})
    host.process(201, name=WORKER, parent=100, state="S")
    assert watched.poll_one().workers[0].blocked_share is None
    states = ["S"]
    while (due := watched.source.due_ns()) is not None and due < watched.clock() + 900_000_000:
        states.append("D" if len(states) % 3 else "S")
        host.process(201, name=WORKER, parent=100, state=states[-1])
        assert list(watched.source.collect(due)) == []
    states.append(states[-1])  # the next poll looks too
    assert len(states) >= 5
    assert watched.poll_one().workers[0].blocked_share == states.count("D") / len(states)


def test_many_workers_are_looked_at_less_often(host: RecordedHost, watched: Watched) -> None:
    pids = list(range(201, 601))
    host.process(100, children={100: pids})
    for pid in pids:
        host.process(pid, name=WORKER, parent=100)
    watched.poll()
    due = watched.source.due_ns()
    assert due is not None
    assert due - watched.clock() == 1_000_000_000


def test_no_looks_are_asked_for_without_workers(host: RecordedHost, watched: Watched) -> None:
    host.process(100)
    watched.poll()
    assert watched.source.due_ns() == watched.clock() + 1_000_000_000


def test_involuntary_switches_are_summed_over_the_workers(host: RecordedHost, watched: Watched) -> None:
    host.process(100, children={100: [201, 202]}, involuntary_switches=9)
    for pid in (201, 202):
        host.process(pid, name=WORKER, parent=100, involuntary_switches=10)
    assert watched.poll_one().involuntary_switches_per_second is None
    host.process(100, children={100: [201, 202]}, involuntary_switches=9999)
    for pid in (201, 202):
        host.process(pid, name=WORKER, parent=100, involuntary_switches=210)
    assert watched.poll_one(8.0).involuntary_switches_per_second == 50.0
    assert watched.poll_one(1.0).involuntary_switches_per_second == 50.0


def test_workers_that_are_restarted_each_epoch_are_reported(host: RecordedHost, watched: Watched) -> None:
    def epoch(pids: list[int]) -> bool:
        host.process(100, children={100: pids})
        for pid in pids:
            host.process(pid, name=WORKER, parent=100)
        return watched.poll_one().worker_pids_changed

    assert not epoch([201, 202])
    assert not epoch([201, 202])
    assert not epoch([])
    assert epoch([203, 204])
    assert not epoch([203, 204])
    assert not epoch([203])


def test_persistent_workers_that_pause_are_not_taken_for_new_ones(host: RecordedHost, watched: Watched) -> None:
    host.process(100, children={100: [201]})
    host.process(201, name=WORKER, parent=100)
    watched.poll()
    host.process(100, children={100: []})
    watched.poll()
    host.process(100, children={100: [201]})
    assert not watched.poll_one().worker_pids_changed


def test_a_worker_whose_pid_was_reused_is_a_new_worker(host: RecordedHost, watched: Watched) -> None:
    host.process(100, children={100: [201]})
    host.process(201, name=WORKER, parent=100, cpu_seconds=50, start_ticks=6000)
    watched.poll()
    host.process(201, name=WORKER, parent=100, cpu_seconds=51, start_ticks=7000)
    sample = watched.poll_one()
    assert sample.worker_pids_changed
    assert sample.workers[0].cpu_cores is None


def test_a_reused_pid_of_a_run_starts_from_nothing(host: RecordedHost, watched: Watched) -> None:
    host.process(100, cpu_seconds=50, start_ticks=6000)
    watched.poll()
    host.process(100, cpu_seconds=51, start_ticks=7000, arguments=[b"other"])
    sample = watched.poll_one()
    assert (sample.start_ticks, sample.command, sample.tree_cores) == (7000, "other", None)


def test_an_ended_run_gives_no_sample_and_disturbs_no_other(host: RecordedHost, watched: Watched) -> None:
    watched.targets = [100, 300]
    host.process(100)
    host.process(300)
    assert [sample.pid for sample in watched.poll()] == [100, 300]
    host.end(100)
    assert [sample.pid for sample in watched.poll()] == [300]


def test_stopped_and_zombie_states_are_reported_as_they_are(host: RecordedHost, watched: Watched) -> None:
    for state in "TZ":
        host.process(100, state=state)
        assert watched.poll_one().state == state


def test_capacity_is_the_smaller_of_affinity_and_quota(host: RecordedHost) -> None:
    host.mount_v2()
    host.group("job", cpu__max="250000 100000\n", cpu__stat="nr_periods 8\nnr_throttled 2\nthrottled_usec 500000\n")
    watched = Watched(host)
    host.process(100, cgroup="0::/job\n")
    sample = watched.poll_one()
    assert (sample.affinity_cores, sample.cpu_quota_cores, sample.cpu_capacity_cores) == (8, 2.5, 2.5)
    assert (sample.cgroup_periods, sample.cgroup_throttled_periods) == (8, 2)
    assert sample.cgroup_throttled_seconds == 0.5


def test_capacity_without_quota_is_the_affinity(host: RecordedHost) -> None:
    host.mount_v2()
    host.group("job", cpu__max="max 100000\n")
    watched = Watched(host)
    host.process(100, cgroup="0::/job\n")
    sample = watched.poll_one()
    assert (sample.cpu_quota_cores, sample.cpu_capacity_cores, sample.cgroup_periods) == (None, 8.0, None)


def test_capacity_is_unknown_where_the_quota_cannot_be_seen(host: RecordedHost, watched: Watched) -> None:
    host.process(100, cgroup="0::/../elsewhere\n")
    assert watched.poll_one().cpu_capacity_cores is None


def test_a_changed_quota_is_noticed_within_seconds(host: RecordedHost) -> None:
    host.mount_v2()
    host.group("job", cpu__max="200000 100000\n")
    watched = Watched(host)
    host.process(100, cgroup="0::/job\n")
    assert watched.poll_one().cpu_quota_cores == 2.0
    host.group("job", cpu__max="400000 100000\n")
    assert watched.poll_one(6.0).cpu_quota_cores == 4.0


def test_storage_rates_hold_the_workers_and_are_unknown_while_workers_change(
    host: RecordedHost, watched: Watched
) -> None:
    def poll(read_bytes: int, workers: list[int]) -> float | None:
        host.process(100, read_bytes=read_bytes, children={100: workers})
        for pid in workers:
            host.process(pid, name=WORKER, parent=100, read_bytes=read_bytes)
        return watched.poll_one().read_bytes_per_second

    assert poll(0, [201]) is None
    assert poll(1000, [201]) == 2000.0
    assert poll(2000, [201, 202]) is None
    assert poll(3000, [201, 202]) == 3000.0


def test_what_may_not_be_read_is_unknown(host: RecordedHost, watched: Watched) -> None:
    host.process(100)
    (host.proc / "100/io").unlink()
    watched.poll()
    sample = watched.poll_one()
    assert sample.read_bytes_per_second is None
    assert sample.shm_total_bytes is None
    assert sample.main_thread_cores is not None


def test_the_poll_of_runs_slows_down_before_it_costs_a_percent_of_a_core(host: RecordedHost) -> None:
    host.machine()
    host.process(100)
    clock = Clock()
    cpu_ns = iter([0, 120_000_000])
    source = HostSource(
        1.0, host.proc, host.cgroup, clock, lambda: [100], affinity_cores=lambda pid: 1, cpu_clock=lambda: next(cpu_ns)
    )
    source.collect(clock())
    source.collect(clock.advance(1.0))
    assert not [s for s in source.collect(clock.advance(1.0)) if isinstance(s, ProcessSample)]
    cpu_ns = iter([0, 0])
    assert [s for s in source.collect(clock.advance(10.0)) if isinstance(s, ProcessSample)]


def test_time_of_an_ended_child_is_counted_once() -> None:
    before = {(1, 10): TreeCpu(100, 0), (2, 20): TreeCpu(400, 0)}
    after = {(1, 10): TreeCpu(110, 450)}
    assert tree_cpu_ticks(after, before, 30) == 10 + 50


def test_a_child_that_nobody_waited_for_does_not_pull_the_tree_below_what_it_spent() -> None:
    before = {(1, 10): TreeCpu(100, 0), (2, 20): TreeCpu(400, 0)}
    assert tree_cpu_ticks({(1, 10): TreeCpu(110, 0)}, before, 30) == 10


def test_a_process_that_is_only_found_late_brings_no_burst() -> None:
    late, young = TreeCpu(9000, 0), TreeCpu(7, 0)
    assert tree_cpu_ticks({(2, 20): late, (3, 31): young}, {}, 30) == 7


def test_all_threads_are_asked_when_the_process_is_new_and_only_the_forking_ones_after(host: RecordedHost) -> None:
    walker = TreeWalker(host.proc)
    host.process(100, children={117: [201], 118: []})
    host.process(201)
    host.process(202)
    assert walker.descendants(100) == [201]
    host.process(100, children={117: [201], 118: [202]})
    assert walker.descendants(100) == [201]
    assert walker.descendants(100, thorough=True) == [201, 202]
    assert walker.descendants(100) == [201, 202]


def test_a_child_that_is_handed_to_another_thread_is_not_lost(host: RecordedHost) -> None:
    walker = TreeWalker(host.proc)
    host.process(100, children={117: [201]})
    host.process(201)
    walker.descendants(100)
    host.process(100, children={117: [], 118: [201]})
    assert walker.descendants(100) == [201]


def test_a_walk_ends_in_a_fork_bomb_and_in_a_circle(host: RecordedHost) -> None:
    host.process(100, children={100: range(200, 300)})
    host.process(200, children={200: [100]})
    assert len(TreeWalker(host.proc).descendants(100)) == 100
    assert len(TreeWalker(host.proc, process_limit=7).descendants(100)) == 7


def test_a_name_may_hold_parentheses_and_blanks() -> None:
    fields = b" S 1 1 1 0 -1 0 0 0 0 0 7 3 0 0 20 0 1 0 55 0 9 0\n"
    stat = parse_stat(b"12 (a) R (b" + b")" + fields)
    assert stat is not None
    assert (stat.command_name, stat.state, stat.own_ticks, stat.start_ticks) == ("a) R (b", "S", 10, 55)


def test_bytes_of_a_command_line_that_are_no_text_are_shown_as_such(host: RecordedHost) -> None:
    host.process(100, arguments=[b"python", b"daten\xfc.py", b"\x1b[31m"])
    assert read_arguments(host.proc, 100) == ("python", r"daten\xfc.py", r"\x1b[31m")


def test_zeros_behind_a_command_line_that_was_written_over_a_longer_one_are_no_arguments(host: RecordedHost) -> None:
    host.write("100/cmdline", b"ray::train\0" + bytes(40))
    assert read_arguments(host.proc, 100) == ("ray::train",)
    host.write("100/cmdline", bytes(40))
    assert read_arguments(host.proc, 100) == ()


def test_a_process_that_multiprocessing_started_belongs_to_its_program(host: RecordedHost) -> None:
    program, spawned = [b"python", b"train.py"], [b"python", b"-c", b"spawn_main()", b"--multiprocessing-fork"]
    host.process(100, arguments=program)
    host.process(201, parent=100, arguments=spawned)
    orphan = ("python", "-c", "spawn_main()", "--multiprocessing-fork")
    assert read_program(host.proc, 201) == orphan, "nobody knows whether its parent runs the same interpreter"
    for pid in (100, 201):
        (host.proc / str(pid) / "exe").symlink_to(sys.executable)
    assert read_program(host.proc, 201) == read_program(host.proc, 100) == ("python", "train.py")
    (host.proc / "100/exe").unlink()
    (host.proc / "100/exe").symlink_to("/bin/sh")
    assert read_program(host.proc, 201) == orphan


FILES = ("stat", "status", "io", "schedstat", "cgroup", "cmdline", "environ", "maps", "task/100/children")
WORKER_FILES = ("201/stat", "201/smaps_rollup", "201/task/201/stat")
MACHINE_FILES = ("stat", "loadavg", "meminfo", "vmstat", "diskstats", "net/dev", "pressure/io", "uptime")


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(
        [*(f"100/{name}" for name in FILES), *MACHINE_FILES, "self/mountinfo", "self/cgroup", *WORKER_FILES]
    ),
    content=st.one_of(
        st.binary(max_size=200),
        st.text("0123456789 -:./()\n\tSDcpu", max_size=200).map(str.encode),
    ),
)
def test_no_content_of_any_file_raises(tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes) -> None:
    host = RecordedHost(tmp_path_factory.mktemp("host"))
    host.mount_v2()
    watched = Watched(host)
    host.process(100, children={100: [201]})
    host.process(201, name=WORKER, parent=100)
    watched.poll()
    host.write(name, content)
    samples = [*watched.poll(), *watched.poll(6.0)]
    assert {sample.pid for sample in samples} <= {100}


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
