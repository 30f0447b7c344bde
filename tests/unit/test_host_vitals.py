from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from gpuwatch.sources.host.vitals import VitalsReader, details_of, homes_of, launch_of, send, shown_variables


def test_what_a_process_uses_is_read_and_its_cpu_from_the_second_reading_on() -> None:
    reader = VitalsReader()
    first = reader.read([os.getpid(), 2**22 + 1])
    assert first.keys() == {os.getpid()}
    assert first[os.getpid()].cpu_percent is None and (first[os.getpid()].rss_bytes or 0) > 2**20
    second = reader.read([os.getpid()])[os.getpid()]
    assert second.cpu_percent is not None and second.state == "running"


def test_all_that_is_known_of_a_process() -> None:
    details = details_of(os.getpid())
    assert details is not None
    assert details.cwd == str(Path.cwd()) and (details.open_files or 0) > 2 and details.most_open_files is not None
    assert details.ancestors and details.ancestors[0].startswith(f"{os.getppid()} ")
    assert details_of(2**22 + 1) is None


def test_only_variables_of_the_launch_are_shown_and_no_secret() -> None:
    environ = {
        "RANK": "0",
        "NCCL_DEBUG": "INFO",
        "NCCL_P2P_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "2",
        "SLURM_JOB_ID": "77",
        "OMP_NUM_THREADS": "4",
        "HF_TOKEN": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HOME": "/root",
        "NCCL_AUTH_TOKEN": "x",
        "TORCH_HUB_PASSPHRASE": "x",
        "SLURM_JOB_KEY": "x",
    }
    assert shown_variables(environ).keys() == {
        "RANK", "NCCL_DEBUG", "NCCL_P2P_DISABLE", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "OMP_NUM_THREADS"
    }  # fmt: skip


def test_the_pod_has_its_host_name_and_other_variables_stay_hidden() -> None:
    environ = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "HOSTNAME": "bert-worker-0",
        "SLURM_JOB_ID": "77",
        "HF_TOKEN": "x",
    }
    assert launch_of(environ, "0a1b") == {
        "pod": "bert-worker-0 (0a1b)",
        "slurm_job": "77",
        "variables": {"SLURM_JOB_ID": "77"},
    }
    assert "pod" not in launch_of({"HOSTNAME": "desk"})


def test_descendants_are_listed_below_their_parents_and_limits_are_read() -> None:
    with subprocess.Popen(["sh", "-c", "sh -c 'cat; :'; :"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        assert child.stdin is not None
        while True:  # until the second shell has started its own child
            details = details_of(os.getpid())
            assert details is not None
            names = [(depth, name.split()[1]) for depth, name in details.children]
            if (2, "cat") in names:
                break
        assert names.index((1, "sh")) == names.index((2, "cat")) - 1
        child.stdin.close()
    assert details.affinity_cores == len(os.sched_getaffinity(0)) and details.cpu_limit is not None
    assert details.is_locking_unlimited or details.most_locked_bytes is not None


def test_homes_are_read_off_control_groups() -> None:
    container = "a" * 64
    assert homes_of(f"0::/system.slice/docker-{container}.scope\n") == {"container": f"docker {'a' * 12}"}
    assert homes_of("0::/slurm/uid_1000/job_4242/step_0\n") == {"slurm_job": "4242"}
    pod = "0::/kubepods.slice/kubepods-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-" + container
    assert homes_of(pod) == {"pod": "0a1b2c3d-1111-2222-3333-444455556666", "container": f"cri-containerd {'a' * 12}"}
    assert homes_of("0::/user.slice\n") == {}


def test_a_signal_reaches_only_the_process_that_was_meant() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started = psutil.Process(child.pid).create_time()
        assert "belongs to another one now" in (send(child.pid, started - 60, signal.SIGKILL) or "")
        assert child.poll() is None
        assert send(child.pid, started, signal.SIGTERM) is None
        assert child.wait() == -signal.SIGTERM
    assert send(child.pid, started, signal.SIGTERM) == f"Process {child.pid} is gone."
