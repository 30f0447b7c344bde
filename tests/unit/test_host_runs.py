"""Training processes and their DataLoader workers, over recorded /proc trees."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_proc import Clock, RecordedHost

from gpuwatch.samples import ProcessSample
from gpuwatch.sources.host.procfs import TreeCpu, TreeWalker, parse_stat, read_arguments, read_program, tree_cpu_ticks
from gpuwatch.sources.host.source import HostSource

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
