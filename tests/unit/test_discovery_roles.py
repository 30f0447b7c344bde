from __future__ import annotations

import pytest

from gpuwatch.sources.discovery.census import Role, role_of
from gpuwatch.sources.nvml.process import default_command


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
