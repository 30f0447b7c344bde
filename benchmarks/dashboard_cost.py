"""What the dashboard costs beside nvitop: CPU, time to the first frame, memory, on the same simulated driver.

    python -m benchmarks.dashboard_cost [--seconds 60] [--gpus 8] [--columns 120] [--rows 36] [--rounds 3]

Both run at the same time in pseudo-terminals of the same size, poll once a second and are read as a terminal reads,
so that whatever else the machine does hits both alike. CPU is that of the process and all its children after start-up;
memory is what is resident of all of them, where a page of a library that several of them map counts once. Their
resident sets added up, as a list of processes shows them, count it as often as there are processes; both are printed.
First frame: from exec to the first screen. nvitop's has the numbers already; gpuwatch paints its heads first and fills
them in, so the time to the first number read from a GPU is given beside it. Exits 1 beyond the budget: CPU 1.0 and
first frame 1.2 times nvitop's, the first number after 0.35 s, or where nvitop takes longer after as long as it takes,
60 MB of memory.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests import nvml_sim

ROOT = Path(__file__).parents[1]
MOST_CPU_RATIO, MOST_FIRST_FRAME_RATIO, MOST_FIRST_NUMBER_SECONDS, MOST_MEGABYTES = 1.0, 1.2, 0.35, 60.0
SETTLING_SECONDS = 8.0

# A starved training on every GPU: what changes all the time costs most to draw. The processes are real ones, because
# both programs look them up.
LOAD = (
    "wave * utilization square 5 98 0.9 0.55",
    "wave * power square 140 610 0.9 0.55",
    "wave * memory constant 65000000000",
)


@dataclass
class Program:
    """One of the two, with the text that proves its first frame and its first number."""

    name: str
    command: list[str]
    frame: re.Pattern[bytes]
    number: re.Pattern[bytes]
    cpu_seconds: list[float] = field(default_factory=list)
    frame_seconds: list[float] = field(default_factory=list)
    number_seconds: list[float] = field(default_factory=list)
    rss_megabytes: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)


class Screen:
    """A program in a pseudo-terminal, read by a thread that notes when its frames come."""

    def __init__(self, program: Program, environ: dict[str, str], size: tuple[int, int]) -> None:
        self.program = program
        self.began = time.monotonic()
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
            os.chdir(ROOT)
            os.execvpe(program.command[0], program.command, environ)
        self.frame_seconds: float | None = None
        self.number_seconds: float | None = None
        self.has_number = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        seen = b""
        while select.select([self.master], [], [])[0]:
            try:
                seen = (seen + os.read(self.master, 65536))[-200_000:]
            except OSError:  # the program has ended
                return
            passed = time.monotonic() - self.began
            if self.frame_seconds is None and self.program.frame.search(seen):
                self.frame_seconds = passed
            if self.number_seconds is None and self.program.number.search(seen):
                self.number_seconds = passed
                self.has_number.set()
            if self.has_number.is_set():
                seen = b""

    @property
    def family(self) -> list[psutil.Process]:
        """The process and its children."""
        parent = psutil.Process(self.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """CPU seconds of all of them so far, to the nanosecond."""
        total = 0
        for process in self.family:
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                total += int((task / "schedstat").read_text(encoding="ascii").split()[0])
        return total / 1e9

    def megabytes(self) -> tuple[float, float]:
        """Resident sets added up, and with the unchanged pages of each file once."""
        added, own, files = 0, 0, dict[str, int]()
        for process in self.family:
            for mapped in process.memory_maps():
                changed = mapped.private_dirty if mapped.path.startswith("/") else mapped.rss
                added, own = added + mapped.rss, own + changed
                files[mapped.path] = max(files.get(mapped.path, 0), mapped.rss - changed)
        return added / 1e6, (own + sum(files.values())) / 1e6

    def end(self) -> None:
        """Quits it as a user would, and makes sure."""
        os.write(self.master, b"q")
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                break
            time.sleep(0.02)
        else:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.master)


def first_frames(programs: list[Program], environ: dict[str, str], size: tuple[int, int], rounds: int) -> None:
    """Starts each alone, alternating."""
    for _ in range(rounds):
        for program in programs:
            screen = Screen(program, environ, size)
            if not screen.has_number.wait(20):
                raise SystemExit(f"{program.name} never showed a number of a GPU")
            assert screen.frame_seconds is not None and screen.number_seconds is not None
            program.frame_seconds.append(screen.frame_seconds)
            program.number_seconds.append(screen.number_seconds)
            screen.end()


def running_cost(programs: list[Program], environ: dict[str, str], size: tuple[int, int], seconds: float) -> None:
    """Runs them together."""
    screens = [Screen(program, environ, size) for program in programs]
    time.sleep(SETTLING_SECONDS)
    before = [screen.cpu_seconds() for screen in screens]
    began = time.monotonic()
    time.sleep(seconds)
    after = [screen.cpu_seconds() for screen in screens]
    minutes = (time.monotonic() - began) / 60
    for screen, least, most in zip(screens, before, after, strict=True):
        screen.program.cpu_seconds.append((most - least) / minutes)
        added, once = screen.megabytes()
        screen.program.rss_megabytes.append(added)
        screen.program.megabytes.append(once)
        screen.end()


def main() -> int:
    """Prints the table and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--columns", type=int, default=120)
    parser.add_argument("--rows", type=int, default=36)
    parser.add_argument("--rounds", type=int, default=5, help="starts of each for the first frame")
    arguments = parser.parse_args()
    nvitop = shutil.which("nvitop") or str(Path(sys.executable).with_name("nvitop"))
    programs = [
        Program("gpuwatch", [sys.executable, "-m", "gpuwatch"], re.compile(rb"gpuwatch"), re.compile(rb"\d+/700 W")),
        Program("nvitop", [nvitop, "--interval", "1"], re.compile(rb"NVITOP"), re.compile(rb"\d+W / 700W|\d+W")),
    ]
    with tempfile.TemporaryDirectory() as folder:
        library = nvml_sim.build(Path(folder))
        driver = nvml_sim.SimulatedDriver(Path(folder), library)
        idlers = [subprocess.Popen(["sleep", "3600"]) for _ in range(arguments.gpus)]
        owners = (f"process {gpu} {idler.pid} 60000000000 57" for gpu, idler in enumerate(idlers))
        driver.write(*LOAD, *owners, gpus=arguments.gpus)
        rendezvous = Path(folder, "gpuwatch")
        rendezvous.mkdir(mode=0o700)
        terminal = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8"}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its byte code
        environ = {**os.environ, **driver.env, **terminal, "GPUWATCH_DIR": str(rendezvous), "PYTHONPATH": str(ROOT)}
        size = (arguments.columns, arguments.rows)
        try:
            first_frames(programs, environ, size, arguments.rounds)
            running_cost(programs, environ, size, arguments.seconds)
        finally:
            for idler in idlers:
                idler.kill()
                idler.wait()
    return report(programs, arguments)


def report(programs: list[Program], arguments: argparse.Namespace) -> int:
    """The table, and 1 where the budget is exceeded."""
    print(f"{arguments.gpus} simulated GPUs, {arguments.columns}x{arguments.rows}, polls every second; ", end="")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}, ", end="")
    print(
        subprocess.run([sys.executable, "-m", "pip", "show", "textual"], capture_output=True, text=True, check=False)
        .stdout.split("\n")[1]
        .replace("Version:", "Textual")
    )
    print(f"{'':10} {'CPU s/min':>10} {'first frame s':>14} {'first number s':>15} {'MB':>8} {'RSS MB':>8}")
    for program in programs:
        frame, number = statistics.median(program.frame_seconds), statistics.median(program.number_seconds)
        print(
            f"{program.name:10} {program.cpu_seconds[0]:10.2f} {frame:14.2f} {number:15.2f} "
            f"{program.megabytes[0]:8.1f} {program.rss_megabytes[0]:8.1f}"
        )
    ours, theirs = programs
    cpu = ours.cpu_seconds[0] / theirs.cpu_seconds[0]
    frame = statistics.median(ours.frame_seconds) / statistics.median(theirs.frame_seconds)
    number = statistics.median(ours.number_seconds)
    most_number = max(MOST_FIRST_NUMBER_SECONDS, statistics.median(theirs.number_seconds))
    megabytes = ours.megabytes[0]
    print(f"CPU {cpu:.2f} times nvitop's (at most {MOST_CPU_RATIO})")
    print(f"first frame {frame:.2f} times nvitop's (at most {MOST_FIRST_FRAME_RATIO})")
    print(f"first number after {number:.2f} s (at most {most_number:.2f} s)")
    print(f"memory {megabytes:.1f} MB (at most {MOST_MEGABYTES:.0f})")
    is_quick = frame <= MOST_FIRST_FRAME_RATIO and number <= most_number
    return 0 if cpu <= MOST_CPU_RATIO and is_quick and megabytes <= MOST_MEGABYTES else 1


if __name__ == "__main__":
    sys.exit(main())
