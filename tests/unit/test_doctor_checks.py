"""What the doctor says of recorded machines."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from recorded_proc import RecordedHost

from gpuwatch.cli import doctor
from gpuwatch.cli.checks import Check, State, as_json, as_lines, usable
from gpuwatch.cli.doctor import (
    Terminal,
    check_device_nodes,
    check_driver,
    check_link,
    check_nvml_calls,
    check_open_files,
    check_other_processes,
    check_permissions,
    check_pressure,
    check_quota,
    check_shared_memory,
    check_surroundings,
    check_system,
    check_terminal,
    check_torch,
    own_memory_problem,
    read_cores,
)
from gpuwatch.procfs import read_stat
from gpuwatch.reader.refusals import CannotReadError, Reason
from gpuwatch.sources.hook_link import rendezvous as link_processes
from gpuwatch.sources.host.machine import SharedMemory
from gpuwatch.sources.nvml.source import NvmlAnswer, NvmlSurvey


@pytest.fixture
def host(tmp_path: Path) -> RecordedHost:
    host = RecordedHost(tmp_path)
    host.machine()
    host.write("self/stat", "1 (python) R")
    return host


def cured(check: Check, state: State) -> str:
    """The cure of a check that must be in `state`."""
    assert check.state is state
    assert check.sentence.endswith(".")
    assert check.cure is not None
    assert check.cure.endswith(".")
    return check.cure


def test_linux_with_proc_is_fine(host: RecordedHost) -> None:
    host.write("thread-self/children", "")
    assert check_system(host.proc, "linux").state is State.OK


def test_a_kernel_that_lists_no_children_and_a_missing_proc_are_named(host: RecordedHost, tmp_path: Path) -> None:
    assert "CONFIG_PROC_CHILDREN" in cured(check_system(host.proc, "linux"), State.WARNING)
    assert "mount" in cured(check_system(tmp_path / "none", "linux"), State.PROBLEM)


def test_elsewhere_than_on_linux_runs_are_said_not_to_be_watched(host: RecordedHost) -> None:
    assert "Linux" in cured(check_system(host.proc, "darwin"), State.WARNING)


def test_a_container_with_pids_of_its_own_is_advised_to_share_the_hosts(host: RecordedHost) -> None:
    (host.proc / "self/ns").mkdir()
    (host.proc / "self/ns/pid").symlink_to("pid:[4026532999]")
    assert "--pid=host" in cured(check_surroundings(host.proc), State.WARNING)


def test_a_container_that_shares_the_hosts_pids_is_fine(host: RecordedHost) -> None:
    (host.proc / "self/ns").mkdir()
    (host.proc / "self/ns/pid").symlink_to("pid:[4026531836]")
    host.write("self/root/.dockerenv", "")
    check = check_surroundings(host.proc)
    assert check.state is State.OK
    assert check.details["container"] is True


def test_on_wsl_it_is_said_what_its_driver_hides(host: RecordedHost) -> None:
    host.write("sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n")
    assert "hook" in cured(check_surroundings(host.proc), State.WARNING)


@pytest.mark.parametrize(("container", "cure"), [(False, "driver"), (True, "--gpus all")])
def test_missing_gpu_files_have_the_cure_of_where_we_are(
    host: RecordedHost, tmp_path: Path, container: bool, cure: str
) -> None:
    if container:
        host.write("self/root/.dockerenv", "")
    assert cure in cured(check_device_nodes(tmp_path, host.proc), State.WARNING)


def test_gpu_files_that_may_be_opened_are_counted(host: RecordedHost, tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    check = check_device_nodes(tmp_path, host.proc)
    assert check.state is State.OK
    assert check.details["gpus"] == 2


READABLE = {"try_own_memory": lambda: None}


def with_rights(host: RecordedHost, *, scope: int | None = None, capable: bool = False) -> Path:
    """A machine with this Yama level, where gpuwatch has CAP_SYS_PTRACE or not."""
    if scope is not None:
        host.write("sys/kernel/yama/ptrace_scope", f"{scope}\n")
    host.write("self/status", f"Name:\tgpuwatch\nCapEff:\t{(1 << 19) * capable:016x}\n")
    return host.proc


@pytest.mark.parametrize(
    ("scope", "capable", "state"),
    [
        (None, False, State.OK),
        (0, False, State.OK),
        (1, False, State.WARNING),
        (1, True, State.OK),
        (2, False, State.WARNING),
        (2, True, State.OK),
        (3, True, State.WARNING),
    ],
)
def test_yama_decides_whose_stacks_may_be_read(
    host: RecordedHost, scope: int | None, capable: bool, state: State
) -> None:
    check = check_other_processes(with_rights(host, scope=scope, capable=capable), 1000, **READABLE)
    assert check.details["ptrace_scope"] == scope
    if state is State.OK:
        assert check.state is state
    else:
        cure = cured(check, state)
        assert "gpuwatch run" in cure
        assert ("sudo" in cure) == (scope != 3)
        assert ("gpuwatch record" in cure) == (scope == 1), "whoever starts a run may read it, until level 2"
        assert "without the hook" not in check.sentence, "the hook gives no right to read"


def test_container_without_the_capability_is_advised_how_to_start_with_it(host: RecordedHost) -> None:
    proc = with_rights(host, scope=1)
    host.write("self/root/.dockerenv", "")
    assert "--cap-add SYS_PTRACE" in cured(check_other_processes(proc, 0, **READABLE), State.WARNING)
    (host.proc / "sys/kernel/yama/ptrace_scope").unlink()
    check = check_other_processes(proc, 0, **READABLE)
    assert check.state is State.OK
    assert "--cap-add SYS_PTRACE" in (check.cure or "")


def test_filtered_system_call_is_named_before_all_rights(host: RecordedHost) -> None:
    def forbidden() -> CannotReadError:
        return CannotReadError(Reason.PERMISSION, "the kernel denies it")

    check = check_other_processes(with_rights(host, capable=True), 0, forbidden)
    assert "seccomp" in check.sentence
    assert "gpuwatch run" in cured(check, State.WARNING)
    assert check.details["process_vm_readv"] is False


def test_system_without_the_call_is_advised_what_needs_none(host: RecordedHost) -> None:
    def missing() -> CannotReadError:
        return CannotReadError(Reason.PLATFORM, "this C library has no process_vm_readv")

    check = check_other_processes(with_rights(host), 1000, missing)
    assert "no process_vm_readv" in check.sentence
    assert "gpuwatch run" in cured(check, State.WARNING)


def test_own_memory_can_be_read_or_the_reason_is_given() -> None:
    problem = own_memory_problem()
    assert problem is None or problem.sentence


def test_hidden_processes_of_other_users_are_named_but_not_to_root(host: RecordedHost) -> None:
    host.write("self/mountinfo", "24 30 0:22 / /proc rw,nosuid shared:13 - proc proc rw,gid=999,hidepid=invisible\n")
    assert "root" in cured(check_permissions(host.proc, 1000), State.WARNING)
    assert check_permissions(host.proc, 0).state is State.OK


def test_pressure_is_shown_or_the_boot_option_that_gives_it(host: RecordedHost) -> None:
    assert "psi=1" in cured(check_pressure(host.proc), State.WARNING)
    host.machine(pressure={"cpu": 12.0, "io": 3.0, "memory": 0.0})
    check = check_pressure(host.proc)
    assert check.state is State.OK
    assert "CPU 12%, storage 3%, memory 0%" in check.sentence


def quota(host: RecordedHost, affinity: int = 16) -> Check:
    return check_quota(read_cores(host.proc, host.cgroup, lambda pid: affinity, cpu_count=16))


def test_a_quota_below_the_cores_is_named_with_the_workers_that_fit(host: RecordedHost) -> None:
    host.mount_v2()
    host.write("self/cgroup", "0::/job\n")
    host.group("job", cpu__max="450000 100000\n", cpu__stat="nr_periods 200\nnr_throttled 100\n")
    check = quota(host)
    assert "num_workers=3" in cured(check, State.WARNING)
    assert "4.5 of 16 cores" in check.sentence
    assert "50%" in check.sentence


def test_a_quota_above_the_cores_holds_nobody_back(host: RecordedHost) -> None:
    host.mount_v2()
    host.write("self/cgroup", "0::/job\n")
    host.group("job", cpu__max="6400000 100000\n")
    assert quota(host).state is State.OK


def test_a_quota_that_cannot_be_seen_is_unknown(host: RecordedHost) -> None:
    host.write("self/cgroup", "0::/job\n")
    assert "cgroup" in cured(quota(host), State.UNKNOWN)


def test_an_affinity_below_the_cores_is_named(host: RecordedHost) -> None:
    assert "4 of 16 cores" in quota(host, affinity=4).sentence


@pytest.mark.parametrize(
    ("total", "used", "state"),
    [
        (None, None, State.PROBLEM),
        (64 << 20, 0, State.WARNING),
        (32 << 30, 0, State.OK),
        (32 << 30, 28 << 30, State.WARNING),
        (32 << 30, 31 << 30, State.PROBLEM),
    ],
)
def test_shared_memory_that_is_missing_small_or_full_is_named(
    host: RecordedHost, monkeypatch: pytest.MonkeyPatch, total: int | None, used: int | None, state: State
) -> None:
    monkeypatch.setattr(doctor, "read_shared_memory", lambda root, pid: SharedMemory(total, used))
    check = check_shared_memory(host.proc)
    assert check.state is state
    if state is not State.OK:
        assert "--shm-size" in cured(check, state)


def test_few_open_files_are_named() -> None:
    assert "ulimit" in cured(check_open_files(64), State.WARNING)
    assert check_open_files(1024).state is State.OK


def terminal(**changed: object) -> Check:
    usual = {
        "is_terminal": True,
        "kind": "xterm-256color",
        "columns": 120,
        "rows": 36,
        "colors": "truecolor",
        "encoding": "utf-8",
    }
    return check_terminal(Terminal(**{**usual, **changed}))


def test_a_usual_terminal_is_fine_also_without_colours() -> None:
    assert terminal().state is State.OK
    assert terminal(colors=None).state is State.OK


@pytest.mark.parametrize(
    ("changed", "cure"),
    [
        ({"kind": "dumb"}, "TERM"),
        ({"kind": ""}, "TERM"),
        ({"columns": 60}, "window"),
        ({"rows": 20}, "window"),
        ({"encoding": "ANSI_X3.4-1968"}, "UTF-8"),
    ],
)
def test_what_a_terminal_lacks_is_named(changed: dict[str, object], cure: str) -> None:
    assert cure in cured(terminal(**changed), State.WARNING)


def test_without_a_terminal_nothing_is_claimed_of_it() -> None:
    assert "terminal" in cured(terminal(is_terminal=False), State.UNKNOWN)


def python_with_torch(tmp_path: Path, version_file: str) -> str:
    """An interpreter that finds the given torch/version.py and would fail if torch were imported."""
    package = tmp_path / "packages/torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('torch was imported')")
    (package / "version.py").write_text(version_file)
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/packages exec "{sys.executable}" -S "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_torch_is_found_without_importing_it(tmp_path: Path) -> None:
    python = python_with_torch(tmp_path, "__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nhip = None\n")
    check = check_torch(gpu_present=True, interpreters=[python])
    assert check.state is State.OK
    assert check.details["version"] == "2.13.0+cu130"
    assert "CUDA 13.0" in check.sentence


def test_a_torch_for_the_cpu_is_a_shortcoming_only_beside_a_gpu(tmp_path: Path) -> None:
    python = python_with_torch(tmp_path, "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n")
    assert "CUDA" in cured(check_torch(gpu_present=True, interpreters=[python]), State.WARNING)
    assert check_torch(gpu_present=False, interpreters=[python]).state is State.OK


def test_of_a_torch_for_amd_it_is_said_what_is_not_read(tmp_path: Path) -> None:
    python = python_with_torch(tmp_path, "__version__ = '2.13.0+rocm7'\ncuda = None\nhip: Optional[str] = '7.0'\n")
    assert "amd-smi" in cured(check_torch(gpu_present=False, interpreters=[python]), State.WARNING)


@pytest.mark.parametrize("files", [["torch/__init__.py"], ["torch.py"], ["torch/lib/left_behind.so"]], ids=str)
def test_a_torch_without_a_version_is_incomplete_and_not_missing(tmp_path: Path, files: list[str]) -> None:
    python = python_with_torch(tmp_path, "")
    shutil.rmtree(tmp_path / "packages")
    for file in files:
        (tmp_path / "packages" / file).parent.mkdir(parents=True)
        (tmp_path / "packages" / file).touch()
    check = check_torch(gpu_present=True, interpreters=[python])
    assert "--force-reinstall" in cured(check, State.WARNING)
    assert "is incomplete" in check.sentence and f"{tmp_path}/packages/torch" in check.sentence


def test_a_whole_torch_is_named_before_one_that_is_incomplete(tmp_path: Path) -> None:
    broken = python_with_torch(tmp_path / "broken", "")
    whole = python_with_torch(tmp_path / "whole", "__version__ = '2.13.0'\ncuda = '13.0'\n")
    assert check_torch(gpu_present=True, interpreters=[broken, whole]).details["interpreter"] == whole


def test_an_interpreter_that_does_not_answer_has_no_torch(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho nonsense; exit 3\n")
    broken.chmod(0o755)
    missing = str(tmp_path / "missing")
    assert "torch" in cured(check_torch(gpu_present=True, interpreters=[str(broken), missing]), State.WARNING)


def survey(*answers: NvmlAnswer, complete: bool = True, reason: str | None = None) -> NvmlSurvey:
    return NvmlSurvey(answers, "580.95.05", "13.0", complete, reason)


def answer(tells: str, gpu: int = 0, microseconds: float | None = 3.0, error: str | None = None) -> NvmlAnswer:
    return NvmlAnswer(f"GPU-{gpu}", gpu, f"nvmlGet{tells.title()}", tells, microseconds, error)


def test_a_driver_that_answers_is_counted_by_its_gpus() -> None:
    check = check_driver(survey(answer("utilization"), answer("utilization", 1)))
    assert check.state is State.OK
    assert check.sentence == "The driver 580.95.05 (CUDA 13.0) answers for 2 GPUs."


def test_a_driver_without_gpus_is_a_problem_with_a_cure() -> None:
    assert "NVRM" in cured(check_driver(survey()), State.PROBLEM)


def test_a_driver_that_does_not_answer_gives_its_own_sentence() -> None:
    why = "The NVIDIA kernel driver is not loaded: try `sudo modprobe nvidia`."
    assert check_driver(NvmlSurvey(reason=why)) == Check(
        "driver", State.PROBLEM, why, None, {"driver": None, "cuda": None, "gpus": 0}
    )


def test_a_survey_that_ended_early_keeps_what_was_answered_before() -> None:
    check = check_driver(survey(answer("utilization"), complete=False, reason="It hung in nvmlDeviceGetFanSpeed."))
    assert (check.state, check.sentence) == (State.WARNING, "It hung in nvmlDeviceGetFanSpeed.")


def test_readings_that_this_gpu_was_not_built_for_are_listed_but_no_shortcoming() -> None:
    check = check_nvml_calls(
        survey(answer("utilization"), answer("fan", microseconds=None, error="not supported by this GPU"))
    )
    assert check.state is State.OK
    assert check.sentence.startswith("1 of 2 readings are provided by every GPU")
    assert check.rows[2] == ("-", "fan", "nvmlGetFan", "not supported by this GPU")


def test_a_reading_that_only_some_gpus_refuse_names_them() -> None:
    check = check_nvml_calls(
        survey(answer("fan"), answer("fan", 1), answer("fan", 2, None, "not supported by this GPU"))
    )
    assert check.rows[1] == ("3.0", "fan", "nvmlGetFan", "GPU 2: not supported by this GPU")
    assert check.details["answered"] == 0


@pytest.mark.parametrize(
    ("given", "cure"),
    [
        (answer("processes", microseconds=None, error="no permission"), "sudo"),
        (answer("processes", microseconds=None, error="this driver is too old for it"), "Update NVIDIA's driver"),
        (answer("utilization", microseconds=None, error="not supported by this GPU"), "gpuwatch run"),
        (answer("processes", microseconds=9000.0), "every 5 s"),
    ],
)
def test_readings_that_can_be_had_or_replaced_have_their_cure(given: NvmlAnswer, cure: str) -> None:
    assert cure in cured(check_nvml_calls(survey(answer("memory"), given)), State.WARNING)


def test_without_any_answer_nothing_is_said_of_readings() -> None:
    assert check_nvml_calls(NvmlSurvey()).state is State.UNKNOWN


CHECKS = [
    Check(
        "driver", State.WARNING, "The driver is old.", "Update it.", {"version": "470"}, (("us", "call"), ("9.5", "a"))
    ),
    Check("link", State.OK, "word " * 40 + "end."),
    Check("shared-memory", State.PROBLEM, "None.", "More."),
]


def test_lines_carry_the_state_as_a_word_and_fit_the_width() -> None:
    lines = as_lines(CHECKS, 60)
    assert all(len(line) <= 60 for _, line in lines[:-1])
    assert lines[0] == (State.WARNING, "warning  driver         The driver is old.")
    assert [line.strip() for _, line in lines[1:4]] == ["fix: Update it.", "us   call", "9.5  a"]
    assert lines[-1][1] == "gpuwatch can measure here; 1 warning, 1 problem."


def test_the_json_report_holds_every_check_and_can_be_written() -> None:
    report = as_json(CHECKS)
    assert json.loads(json.dumps(report)) == report
    assert report["usable"] is True
    assert [check["state"] for check in report["checks"]] == ["warning", "ok", "problem"]


@pytest.mark.parametrize(
    ("driver", "link", "can_measure"),
    [
        (State.OK, State.PROBLEM, True),
        (State.PROBLEM, State.OK, True),
        (State.PROBLEM, State.PROBLEM, False),
        (State.UNKNOWN, State.PROBLEM, False),
    ],
)
def test_a_machine_is_usable_with_a_gpu_or_with_a_run_that_can_be_linked(
    driver: State, link: State, can_measure: bool
) -> None:
    assert usable([Check("driver", driver, "."), Check("link", link, ".")]) is can_measure


def test_this_process_has_a_limit_of_open_files() -> None:
    assert check_open_files().details["limit"] == os.sysconf("SC_OPEN_MAX")


def test_a_folder_that_can_be_made_is_fine_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "meet"
    check = check_link({"GPUWATCH_DIR": str(folder)})
    assert check.state is State.OK
    assert check.details == {"folder": str(folder), "runs": 0, "passed_over": None}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == []


def test_runs_that_left_word_are_counted_and_ended_ones_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "meet"
    folder.mkdir(mode=0o700)
    me = read_stat(Path("/proc"), os.getpid())
    assert me is not None
    for pid, start_ticks in ((os.getpid(), me.start_ticks), (1, me.start_ticks + 1)):
        words = {"version": 1, "pid": pid, "start_ticks": start_ticks, "command": ["python"], "cwd": "/"}
        (folder / f"trainer-{pid}.json").write_text(json.dumps(words))
    assert check_link({"GPUWATCH_DIR": str(folder)}).details["runs"] == 1


def test_a_folder_that_others_can_reach_is_refused_with_the_cure(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    check = check_link({"GPUWATCH_DIR": str(tmp_path)})
    assert check.state is State.PROBLEM
    assert "755" in check.sentence
    assert check.cure == f"Run: chmod 700 {tmp_path}."


def test_a_link_or_a_missing_parent_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (tmp_path / "link", tmp_path / "none/meet"):
        check = check_link({"GPUWATCH_DIR": str(path)})
        assert check.state is State.PROBLEM
        assert str(path) in check.sentence
        assert check.cure


def test_a_variable_that_names_a_folder_of_a_file_server_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, local = tmp_path / "remote", tmp_path / "local"
    local.mkdir()
    monkeypatch.setattr(link_processes, "mounts_of", lambda root: {"/": "ext4", str(remote): "nfs4"})
    check = check_link({"XDG_RUNTIME_DIR": str(remote), "TMPDIR": str(remote), "TEMP": str(local)})
    assert check.state is State.OK
    assert check.details["folder"] == str(local / f"gpuwatch-{os.geteuid()}")
    assert check.details["passed_over"] == "XDG_RUNTIME_DIR TMPDIR"
    assert "the folder of XDG_RUNTIME_DIR and TMPDIR is not used" in check.sentence
