"""What trains on a recorded machine, and what only looks as if it did."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded_trainers import COMPILE_WORKER, FORKSERVER, SPAWNED, TORCH, TRACKER, TRAIN, RecordedTrainers

from gpuwatch.procfs import TreeWalker, read_stat
from gpuwatch.sources.census import Role, TreeTrainers, role_of
from gpuwatch.sources.nvml.source import default_command

IDLE = {"cpu_seconds": 5.0}
NOTEBOOK = (b"python", b"-m", b"ipykernel_launcher", b"-f", b"/run/kernel.json")


@pytest.fixture
def host(tmp_path: Path) -> RecordedTrainers:
    return RecordedTrainers(tmp_path)


def trainers_below(root: int, proc_root: Path) -> list[int]:
    """The training processes at and below `root`, surest first."""
    return TreeTrainers(proc_root).among((root, *TreeWalker(proc_root).descendants(root)))


def looks_like_training(pid: int, proc_root: Path) -> str | None:
    """What gives a process away as one that trains, with its parent and all below it in sight."""
    stat = read_stat(proc_root, pid)
    if stat is None:
        return None
    around = (stat.parent, pid, *TreeWalker(proc_root).descendants(pid))
    return next((each.why for each in TreeTrainers(proc_root).judged(around) if each.process.pid == pid), None)


def below(host: RecordedTrainers, *pids: int) -> list[int]:
    """The trainers among these processes, however they are related."""
    return TreeTrainers(host.proc, clock=lambda: 0).among(pids)


def test_python_with_torch_is_found_and_said_to_compute(host: RecordedTrainers) -> None:
    host.torch(100)
    host.python(101)
    assert below(host, 100, 101) == [100]
    assert looks_like_training(100, host.proc) == "has torch loaded and used 0.5 cores on average since its start"
    assert looks_like_training(101, host.proc) is None


def test_program_that_is_no_python_is_not_looked_into(host: RecordedTrainers) -> None:
    host.torch(100, program="/usr/bin/blender")
    assert below(host, 100) == []


def test_interpreter_that_an_upgrade_replaced_is_still_python(host: RecordedTrainers) -> None:
    host.torch(100, program="/usr/bin/python3.11 (deleted)")
    assert below(host, 100) == [100]


def test_named_workers_belong_to_their_parent(host: RecordedTrainers) -> None:
    host.torch(100)
    host.worker(101, parent=100)
    host.worker(102, parent=100)
    assert below(host, 100, 101, 102) == [100]


def test_workers_are_counted_in_the_reason(host: RecordedTrainers) -> None:
    host.torch(100, children={100: (101,), 107: (102,)})
    host.worker(101, parent=100)
    host.worker(102, parent=100)
    assert looks_like_training(100, host.proc) == "has 2 DataLoader workers"
    assert looks_like_training(101, host.proc) is None
    assert trainers_below(100, host.proc) == [100]


def test_workers_behind_a_forkserver_belong_to_who_started_it(host: RecordedTrainers) -> None:
    host.torch(100, children={100: (101, 102)})
    host.python(101, arguments=TRACKER, parent=100)
    host.torch(102, arguments=FORKSERVER, parent=100, children={102: (103, 104)})
    for worker in (103, 104):
        host.worker(worker, parent=102, arguments=FORKSERVER)
    assert trainers_below(100, host.proc) == [100]
    assert looks_like_training(100, host.proc) == "has 2 DataLoader workers"


@pytest.mark.parametrize("arguments", [TRAIN, SPAWNED])
def test_children_that_an_old_torch_did_not_name_are_workers(
    host: RecordedTrainers, arguments: tuple[bytes, ...]
) -> None:
    host.torch(100, version="2.4.1+cu121", children={100: (101, 102)}, **IDLE)
    for worker in (101, 102):
        host.torch(worker, version="2.4.1+cu121", parent=100, arguments=arguments)
    assert trainers_below(100, host.proc) == [100]
    assert looks_like_training(100, host.proc) == "has 2 DataLoader workers"


def test_children_of_a_torch_of_unknown_version_are_workers_too(host: RecordedTrainers) -> None:
    host.torch(100, version="unknown", children={100: (101,)})
    host.torch(101, version="unknown", parent=100)
    assert trainers_below(100, host.proc) == [100]


def test_version_file_that_is_a_pipe_holds_nobody_up(host: RecordedTrainers, tmp_path: Path) -> None:
    host.torch(100, children={100: (101,)})
    host.torch(101, parent=100)
    version = host.proc / f"100/root{TORCH}/version.py"
    version.unlink()
    os.mkfifo(version)
    assert trainers_below(100, host.proc) == [100]


def test_pool_of_a_new_torch_is_not_reported_as_workers(host: RecordedTrainers) -> None:
    host.torch(100, children={100: (101, 102)})
    for child in (101, 102):
        host.torch(child, parent=100)
    assert trainers_below(100, host.proc) == [100]
    assert looks_like_training(100, host.proc) == "has torch loaded and used 0.5 cores on average since its start"


def test_ranks_that_talk_to_each_other_are_found_and_who_spawned_them_is_not(host: RecordedTrainers) -> None:
    host.torch(100, children={100: (101, 102)})
    for rank in (101, 102):
        host.torch(rank, parent=100, arguments=SPAWNED)
        host.thread(rank, rank + 100, "pt_gloo_runloop")
    assert trainers_below(100, host.proc) == [101, 102]
    assert looks_like_training(101, host.proc) == "is one of the processes of a torch job"


def test_ranks_with_workers_of_their_own_are_found_and_who_spawned_them_is_not(host: RecordedTrainers) -> None:
    host.torch(100, children={100: (101,)}, **IDLE)
    host.torch(101, parent=100, arguments=SPAWNED, children={101: (103,)})
    host.worker(103, parent=101, arguments=SPAWNED)
    assert trainers_below(100, host.proc) == [101]


def test_busy_children_of_an_idle_parent_are_ranks(host: RecordedTrainers) -> None:
    host.torch(100, children={100: (101, 102)}, **IDLE)
    for rank in (101, 102):
        host.torch(rank, parent=100)
    assert trainers_below(100, host.proc) == [101, 102]


@pytest.mark.parametrize(
    "launcher",
    [
        (b"python", b"/opt/env/bin/torchrun", b"--nproc-per-node", b"2", b"train.py"),
        (b"python", b"-m", b"torch.distributed.run", b"train.py"),
        (b"python", b"/opt/env/bin/accelerate", b"launch", b"train.py"),
    ],
)
def test_launcher_does_not_train_but_its_ranks_do(host: RecordedTrainers, launcher: tuple[bytes, ...]) -> None:
    host.torch(100, arguments=launcher, children={100: (101, 102)})
    for rank in (101, 102):
        host.torch(rank, parent=100, children={rank: (rank + 10,)})
        host.worker(rank + 10, parent=rank)
    assert trainers_below(100, host.proc) == [101, 102]
    assert looks_like_training(100, host.proc) is None
    assert looks_like_training(101, host.proc) == "has 1 DataLoader worker"


def test_compile_workers_are_not_trainers(host: RecordedTrainers) -> None:
    host.torch(100, children={100: (101,)})
    host.torch(101, parent=100, arguments=COMPILE_WORKER, children={101: (102,)})
    host.torch(102, parent=101, arguments=COMPILE_WORKER)
    assert trainers_below(100, host.proc) == [100]


def test_notebook_kernel_counts_once_it_has_torch(host: RecordedTrainers) -> None:
    host.python(100, arguments=NOTEBOOK)
    host.torch(101, arguments=NOTEBOOK, **IDLE)
    assert looks_like_training(100, host.proc) is None
    assert looks_like_training(101, host.proc) == "is a notebook kernel that has torch loaded"


def test_idle_ones_come_last_and_older_ones_first(host: RecordedTrainers) -> None:
    host.torch(100, start_ticks=10, **IDLE)
    host.torch(101, start_ticks=30)
    host.torch(102, start_ticks=20)
    host.torch(103, start_ticks=40)
    host.worker(104, parent=103)
    assert below(host, 100, 101, 102, 103, 104) == [103, 102, 101, 100]


def test_zombies_are_no_trainers(host: RecordedTrainers) -> None:
    host.torch(100, state="Z")
    assert below(host, 100) == []


def test_stopped_training_is_still_one(host: RecordedTrainers) -> None:
    host.torch(100, state="T")
    assert below(host, 100) == [100]


def test_worker_whose_parent_is_gone_is_nobody(host: RecordedTrainers) -> None:
    host.worker(101, parent=1)
    assert below(host, 101) == []


def test_forkservers_that_claim_each_other_as_parents_end_the_search(host: RecordedTrainers) -> None:
    host.torch(100, arguments=FORKSERVER, parent=101)
    host.torch(101, arguments=FORKSERVER, parent=100)
    host.worker(102, parent=101)
    assert below(host, 100, 101, 102) == [100, 101]


def test_shell_that_calls_itself_a_worker_is_none(host: RecordedTrainers) -> None:
    host.torch(100)
    host.worker(101, parent=100, program="/bin/sh")
    assert looks_like_training(100, host.proc) == "has torch loaded and used 0.5 cores on average since its start"


def test_name_with_brackets_and_line_breaks_is_read_to_its_end(host: RecordedTrainers) -> None:
    host.torch(100, name="a) R 1 (b\n", children={100: (101,)})
    host.worker(101, parent=100)
    assert looks_like_training(100, host.proc) == "has 1 DataLoader worker"


def test_library_that_only_resembles_torch_is_not_torch(host: RecordedTrainers) -> None:
    host.python(100, "/opt/lib/libtorch_cpu.so.notes", "/opt/lib/old-libtorch_cpu.so")
    assert looks_like_training(100, host.proc) is None


def test_torch_in_a_folder_with_spaces_behind_thousands_of_mappings_is_found(host: RecordedTrainers) -> None:
    many = [f"/opt/lib/{number:05}.so" for number in range(5000)]
    host.python(100, *many, "/home/ada lovelace/torch/lib/libtorch_cpu.so")
    assert looks_like_training(100, host.proc) is not None


def test_torch_whose_libraries_lie_outside_its_package_still_tells_its_version(host: RecordedTrainers) -> None:
    for pid, parent in ((100, 1), (101, 100)):
        host.torch(pid, version="2.1.0", parent=parent, children={pid: (101,) if pid == 100 else ()})
        host.map(pid, "/opt/env/lib/libtorch_cpu.so", f"{TORCH}/_C.cpython-311-x86_64-linux-gnu.so")
    assert looks_like_training(100, host.proc) == "has 1 DataLoader worker"
    host.write(f"100/root{TORCH}/version.py", "__version__ = '2.13.0'\n")
    assert looks_like_training(100, host.proc) == "has torch loaded and used 0.5 cores on average since its start"


def test_nothing_at_all_is_no_training(host: RecordedTrainers) -> None:
    assert looks_like_training(4711, host.proc) is None
    assert trainers_below(4711, host.proc) == []


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("python train.py --lr 0.1", Role.PROGRAM),
        ("python -u -W ignore -X importtime train.py", Role.PROGRAM),
        ("python -uWignore train.py", Role.PROGRAM),
        ("python -m my.training", Role.PROGRAM),
        ("python", Role.PROGRAM),
        ("python -", Role.PROGRAM),
        ("python -c print(1)", Role.PROGRAM),
        ("python train.py -m torch.distributed.run", Role.PROGRAM),
        ("python tools/torchrun_like.py", Role.PROGRAM),
        ("python /opt/env/bin/torchrun --nproc-per-node 8 train.py", Role.LAUNCHER),
        ("python -m torch.distributed.run train.py", Role.LAUNCHER),
        ("python -um torch.distributed.launch train.py", Role.LAUNCHER),
        ("python /opt/env/bin/accelerate launch train.py", Role.LAUNCHER),
        ("python -mdeepspeed.launcher.launch train.py", Role.LAUNCHER),
        ("python -m ipykernel_launcher -f /run/kernel-1.json", Role.NOTEBOOK),
        ("python /opt/env/lib/python3.11/site-packages/ipykernel_launcher.py -f x.json", Role.NOTEBOOK),
        ("python -m gpuwatch report", Role.HELPER),
        ("python -m gpuwatch.sources.nvml.child", Role.HELPER),
        ("python /opt/env/bin/gpuwatch --attach 4711", Role.HELPER),
        ("python /x/torch/_inductor/compile_worker/__main__.py --workers=32", Role.HELPER),
    ],
)
def test_command_line_tells_the_role(command: str, role: Role) -> None:
    assert role_of("python", command.split()) is role


@pytest.mark.parametrize(
    ("code", "role"),
    [
        ("from multiprocessing.resource_tracker import main;main(5)", Role.HELPER),
        (default_command()[-1], Role.HELPER),
        ("from multiprocessing.forkserver import main; main(8, 9)", Role.FORKSERVER),
        ("from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=6)", Role.SPAWNED),
        ("import torch; torch.ones(1)", Role.PROGRAM),
    ],
)
def test_code_that_multiprocessing_starts_is_known(code: str, role: Role) -> None:
    assert role_of("python", ("/usr/bin/python3", "-B", "-c", code, "--multiprocessing-fork")) is role


def test_names_that_torch_gives_go_before_command_lines() -> None:
    assert role_of("pt_data_worker", ("python", "train.py")) is Role.WORKER
    assert role_of("pt_elastic", ("python", "my_launcher.py")) is Role.LAUNCHER


def test_no_command_line_is_a_program() -> None:
    assert role_of("python", ()) is Role.PROGRAM
