"""The link between a trainer and monitors that come, go, stall and lie; the trainers here need no torch."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hook_listener import Listener, listening
from hook_programs import finished, rendezvous, started

OBEDIENT = """\
import gc, os, sys, time
import gpuwatch

gc.disable()  # pauses would be records too

def sockets():
    names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.readlink(name).startswith("socket:") for name in names if os.path.exists(name))

for line in sys.stdin:
    for _ in range(int(line)):
        gpuwatch.step(7)
    time.sleep(0.11)  # more than the hook waits between two checks for a monitor
    gpuwatch.step(7)
    print(sockets(), flush=True)
"""
"""A trainer that steps when told to, and answers with the number of sockets it holds."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return rendezvous(tmp_path)


class Trainer:
    """The obedient trainer."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin and process.stdout
        self._commands, self._answers = process.stdin, process.stdout

    def steps(self, count: int) -> int:
        """Steps that often, and once more after a flush is due; tells the trainer's sockets."""
        self._commands.write(f"{count}\n")
        self._commands.flush()
        return int(self._answers.readline())


def received(listener: Listener) -> int:
    return sum(len(peer.of("USER_STEP")) for peer in listener.peers)


def test_without_a_monitor_there_is_no_socket(folder: Path) -> None:
    with started(folder, OBEDIENT) as process:
        assert Trainer(process).steps(100) == 0
        assert [path.name for path in folder.iterdir()] == [f"trainer-{process.pid}.json"]


def test_a_monitor_that_comes_late_gets_what_happens_from_then_on(folder: Path) -> None:
    with started(folder, OBEDIENT) as process:
        trainer = Trainer(process)
        trainer.steps(3000)
        with listening(folder) as listener:
            came_ns = time.monotonic_ns()
            assert trainer.steps(20) == 1, "the last of these steps came after a check for a monitor was due"
            trainer.steps(20)
            listener.until(lambda it: received(it) == 1 + 21)
            (peer,) = listener.peers
            assert all(record.start_ns > came_ns for record in peer.records)
            assert peer.dropped == 0, "what was before the connection is not a loss of it"
            assert peer.facts["pid"] == process.pid


def test_between_two_monitors_nothing_is_recorded(folder: Path) -> None:
    with started(folder, OBEDIENT) as process:
        trainer = Trainer(process)
        with listening(folder, "monitor-1.sock") as first:
            trainer.steps(1)
            first.until(lambda it: received(it) >= 1)
        while trainer.steps(1):
            pass
        trainer.steps(100)
        with listening(folder, "monitor-2.sock") as second:
            trainer.steps(0)
            trainer.steps(5)
            second.until(lambda it: received(it) >= 7)
            (peer,) = second.peers
            assert (len(peer.records), peer.dropped) == (7, 0)


def test_a_monitor_that_restarts_is_found_again_and_two_are_served_at_once(folder: Path) -> None:
    with started(folder, OBEDIENT) as process:
        trainer = Trainer(process)
        with listening(folder, "monitor-1.sock") as first:
            assert trainer.steps(1) == 1
            first.until(lambda it: received(it) >= 1)
        while trainer.steps(1):  # a process forked at this moment may hold the monitor's end a little longer
            pass
        with listening(folder, "monitor-2.sock") as second, listening(folder, "monitor-3.sock") as third:
            assert trainer.steps(1) == 2
            for listener in (second, third):
                listener.until(lambda it: received(it) >= 1)


def test_a_stopped_monitor_costs_records_and_the_count_of_them_is_told(folder: Path) -> None:
    with started(folder, OBEDIENT) as process, listening(folder) as listener:
        trainer = Trainer(process)
        for _ in range(30):
            trainer.steps(1024)  # 41 kB a packet: the kernel keeps five of them for a monitor that does not read
        listener.until(lambda it: received(it) >= 4 * 1024)
        trainer.steps(0)
        listener.until(lambda it: received(it) + it.peers[0].dropped == 30 * 1025 + 1)
        assert listener.peers[0].dropped > 20 * 1024


def test_more_than_the_ring_holds_is_dropped_and_counted(folder: Path) -> None:
    with started(folder, OBEDIENT) as process, listening(folder) as listener:
        trainer = Trainer(process)
        trainer.steps(0)
        trainer.steps(20_000)
        trainer.steps(0)
        listener.until(lambda it: received(it) + sum(peer.dropped for peer in it.peers) == 20_003)
        assert listener.peers[0].dropped > 0


def test_a_killed_trainer_says_no_goodbye(folder: Path) -> None:
    with listening(folder) as listener, started(folder, OBEDIENT) as process:
        Trainer(process).steps(1)
        process.send_signal(signal.SIGKILL)
        listener.until_all_closed()
        assert not listener.peers[0].bye
        assert (folder / f"trainer-{process.pid}.json").exists()


CHILD_OF_MULTIPROCESSING = """\
import multiprocessing, sys
import gpuwatch

def train():
    gpuwatch.step(7)

if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=train)
    process.start()
    process.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_trainer_that_multiprocessing_started_says_goodbye(folder: Path, method: str) -> None:
    with listening(folder) as listener, started(folder, CHILD_OF_MULTIPROCESSING, method):
        listener.until_all_closed()
        assert [(peer.bye, len(peer.of("USER_STEP"))) for peer in listener.peers] == [(True, 1)]
        assert not list(folder.glob("trainer-*"))


@pytest.mark.parametrize("spoiled", ["open to others", "a link", "a file"])
def test_a_folder_that_cannot_be_trusted_is_refused(folder: Path, spoiled: str) -> None:
    with listening(folder) as listener:
        if spoiled == "open to others":
            folder.chmod(0o755)
        else:
            moved = folder.rename(folder.with_name("moved"))
            if spoiled == "a link":
                folder.symlink_to(moved)
            else:
                folder.touch()
        with started(folder, OBEDIENT) as process:
            assert Trainer(process).steps(10) == 0
        listener.poll(0)
        assert not listener.peers
        assert not list(folder.parent.rglob("trainer-*"))


def test_a_folder_that_cannot_be_written_leaves_the_program_alone(folder: Path) -> None:
    missing = folder / "no" / "such" / "place"
    result = finished(missing.parent.parent, "import gpuwatch\nfor _ in range(9): gpuwatch.step()\nprint('done')")
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


def test_a_path_longer_than_a_socket_address_is_reached(folder: Path) -> None:
    deep = folder
    for _ in range(4):
        deep = deep / ("long" * 10)
        deep.mkdir(mode=0o700)
    assert len(os.fsencode(deep)) > 108
    with listening(deep) as listener, started(deep, OBEDIENT) as process:
        Trainer(process).steps(1)
        listener.until(lambda it: received(it) >= 1)


def test_the_child_of_a_fork_closes_its_parents_connection_and_opens_its_own(folder: Path) -> None:
    source = """
import os, time
import gpuwatch

def sockets():
    names = os.listdir("/proc/self/fd")
    links = [os.readlink(f"/proc/self/fd/{name}") for name in names if os.path.exists(f"/proc/self/fd/{name}")]
    return [link for link in links if link.startswith("socket:")]

gpuwatch.step(1)
inherited = sockets()
child = os.fork()
if child == 0:
    os._exit(len(sockets()))
assert inherited and os.waitpid(child, 0)[1] == 0, "the child holds a descriptor of its parent's"
child = os.fork()
if child == 0:
    gpuwatch.step(2)
    assert len(sockets()) == 1 and sockets() != inherited
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert sockets() == inherited
time.sleep(0.06)
gpuwatch.step(3)
"""
    with listening(folder) as listener:
        result = finished(folder, source)
        assert (result.returncode, result.stderr) == (0, "")
        listener.until_all_closed()
    samples = sorted([record.a for record in peer.of("USER_STEP")] for peer in listener.peers)
    assert samples == [[1, 3], [2]]
    assert len({peer.facts["pid"] for peer in listener.peers}) == 2


def test_a_program_that_closes_all_descriptors_never_has_ours_written_into_its_own(folder: Path) -> None:
    source = """
import os, socket, time
import gpuwatch

gpuwatch.step()
os.closerange(3, 64)
pairs = [socket.socketpair() for _ in range(8)]
for _ in range(3):
    time.sleep(0.11)  # more than the hook waits between two checks for a monitor
    gpuwatch.step()
for pair in pairs:
    for end in pair:
        end.setblocking(False)
        try:
            raise SystemExit(f"heard {end.recv(64)!r}")
        except BlockingIOError:
            pass
"""
    with listening(folder) as listener:
        result = finished(folder, source)
        assert (result.returncode, result.stderr) == (0, "")
        listener.until(lambda it: received(it) >= 1)


def test_a_program_without_free_descriptors_goes_on(folder: Path) -> None:
    source = """
import os, resource, time
import gpuwatch
gpuwatch.watch()
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1,) * 2)
for _ in range(3):
    gpuwatch.step()
    time.sleep(0.11)  # more than the hook waits between two checks for a monitor
print("done")
"""
    with listening(folder):
        result = finished(folder, source)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


def test_a_signal_that_arrives_in_the_hook_is_the_programs(folder: Path) -> None:
    source = """
import signal
import gpuwatch

class Timeout(Exception):
    pass

def handler(number, frame):
    raise Timeout

signal.signal(signal.SIGALRM, handler)
gpuwatch.step()
caught = 0
for _ in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while True:
            gpuwatch.step()
    except Timeout:
        caught += 1
print(caught)
"""
    with listening(folder):
        result = finished(folder, source)
    assert (result.returncode, result.stdout, result.stderr) == (0, "300\n", "")


def test_a_disabled_hook_announces_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWATCH_DISABLE", "1")
    with listening(folder) as listener, started(folder, OBEDIENT) as process:
        assert Trainer(process).steps(10) == 0
        listener.poll(0)
        assert not listener.peers
        assert not list(folder.glob("trainer-*"))
