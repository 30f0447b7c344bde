"""The monitor under strace: nothing it asks of the kernel stops, signals, traces or writes the training."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.attached import needs_training, training
from tests.integration.command_line import PATIENCE_SECONDS, lonely_environment

FORBIDDEN = ("ptrace", "process_vm_writev", "process_madvise", "pidfd_getfd")
SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal")
FILES = ("open", "openat", "openat2", "creat")
BIRTHS = ("fork", "vfork", "clone", "clone3")

CALL = re.compile(r"^(?P<caller>\d+) +(?P<name>\w+)\((?P<arguments>.*)")
BIRTH = re.compile(rf"\b(?:{'|'.join(BIRTHS)})\b.* = (?P<child>\d+)$")
OF_PROCESS = re.compile(r'"/proc/(?P<pid>\d+)/(?P<file>[^"]*)"')


def tracer() -> tuple[str, ...]:
    """strace, stopping the command at the traced calls only where the kernel can choose them; nothing without it."""
    for command in (("strace", "-f", "--seccomp-bpf"), ("strace", "-f")):
        probe = [*command, "-e", "trace=openat", "-o", "/dev/null", "true"]
        if shutil.which("strace") and not subprocess.run(probe, capture_output=True).returncode:
            return command
    return ()


needs_strace = pytest.mark.skipif(
    not tracer(), reason="the monitor's system calls are seen with strace, where it may trace: apt-get install strace"
)


class Traced:
    """The calls of one command and all it started."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        log = folder / "calls"
        # A call that this machine's kernel or strace does not know is left out with a question mark.
        calls = ",".join(f"?{name}" for name in ("process_vm_readv", *FORBIDDEN, *SIGNALS, *FILES, *BIRTHS))
        strace = [*tracer(), "-qq", "-s", "256", "-e", f"trace={calls}", "-e", "signal=none", "-o", str(log)]
        self.result = subprocess.run(
            [*strace, sys.executable, "-m", "gpuwatch", *arguments],
            env=lonely_environment(folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        lines = log.read_text(errors="replace").splitlines()
        self.calls = [match.group("caller", "name", "arguments") for line in lines if (match := CALL.match(line))]
        self.own_processes = {int(caller) for caller, _, _ in self.calls}
        self.own_processes |= {int(match["child"]) for line in lines if (match := BIRTH.search(line))}

    def of(self, *names: str) -> list[str]:
        """These calls, as strace writes them."""
        return [f"{name}({arguments}" for _, name, arguments in self.calls if name in names]

    def signals_to_others(self) -> list[str]:
        """Signals to any process or thread that is not the command's own."""
        return [
            call for call in self.of(*SIGNALS) if int(call.partition("(")[2].split(",")[0]) not in self.own_processes
        ]

    def opened(self, pid: int) -> list[tuple[str, str]]:
        """Files of one process's /proc folder, and how each was opened."""
        found = [(match, call) for call in self.of(*FILES) if (match := OF_PROCESS.search(call))]
        return [(match["file"], call) for match, call in found if int(match["pid"]) == pid]


@needs_strace
@needs_training
@pytest.mark.parametrize("workers", [0, 2])
def test_report_asks_nothing_of_the_kernel_that_could_reach_into_the_training(tmp_path: Path, workers: int) -> None:
    with training(tmp_path, "--workers", str(workers)) as target:
        traced = Traced(tmp_path, "report", "--attach", str(target.pid), "--duration", "5", "--format", "json")
        assert target.poll() is None
    assert traced.result.returncode == 0, traced.result.stderr
    (run,) = json.loads(traced.result.stdout)["runs"]
    assert run["visibility"] == "sampled", run["how_to_see_more"]
    assert any(f"process_vm_readv({target.pid}," in call for call in traced.of("process_vm_readv"))
    assert traced.of(*FORBIDDEN) == []
    assert traced.signals_to_others() == []
    opened = traced.opened(target.pid)
    assert [call for _, call in opened if not re.search(r"\bO_RDONLY\b", call)] == []
    assert [call for file, call in opened if re.fullmatch(r"(task/\d+/)?(mem|fd/.*|syscall|stack)", file)] == []
