"""Files by the names of other processes: real links, pipes, devices, users and roots."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwatch import foreign
from gpuwatch.foreign import (
    Rights,
    exists_for,
    read_foreign,
    read_named,
    rights_of,
    rights_of_user,
    use_foreign,
    use_mapped,
)
from gpuwatch.procfs import Mapping, read_stat, status_fields
from gpuwatch.reader.attach import own_id
from gpuwatch.reader.memory import Memory
from gpuwatch.reader.program import _from_file
from gpuwatch.reader.refusals import access_to
from gpuwatch.sources.hook_link.rendezvous import Processes

NOBODY = 65534
LIMIT = 1 << 16
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process of another user")


@pytest.fixture(params=["openat2", "part by part"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to open a name: the kernel's, and the one for kernels and sandboxes without it."""
    if request.param == "part by part":
        monkeypatch.setattr(foreign, "_OPENAT2", 100_000)  # no such system call: ENOSYS


@contextmanager
def process(prepare: Callable[[], object]) -> Iterator[int]:
    """A child that has prepared itself and waits."""
    ready, told = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            prepare()
            os.write(told, b"!")
            signal.pause()
        finally:
            os._exit(1)
    os.close(told)
    try:
        assert os.read(ready, 1) == b"!", "the child could not prepare itself"
        yield pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def become(user: int, groups: list[int]) -> Callable[[], None]:
    def change() -> None:
        os.setgroups(groups)
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)

    return change


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that every user may enter: pytest's own are closed to others."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    return tmp_path


@pytest.mark.usefixtures("way")
def test_a_regular_file_is_read_through_links_and_relative_to_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "train.py").write_text("step()\n")
    (tmp_path / "link.py").symlink_to("inner/../inner/train.py")
    with process(lambda: os.chdir(tmp_path / "inner")) as pid:
        for name in ("train.py", "../link.py", str(tmp_path / "link.py"), f"/../..{tmp_path}//./link.py"):
            assert read_foreign(pid, name, LIMIT).content == b"step()\n"
            assert use_foreign(pid, name, LIMIT, lambda file: file.read(4)) == b"step"
            assert exists_for(pid, name)
        assert not exists_for(pid, "absent.py")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "name",
    [
        *("/proc/self/environ", "/proc/self/mem", "/proc/self/status", "/proc/1/environ", "/proc/self/exe"),
        *("/dev/zero", "/dev/tty", "/dev/stdin", "/dev/fd/0", "/dev/null", "/sys/kernel/uevent_seqnum", "/tmp", "/"),
        *("pipe", "large", "loop", "a\0b", "a" * 5000, "inside/self/environ", "\udc80"),
    ],
)
def test_what_is_no_regular_file_of_bounded_size_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(LIMIT + 1))
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "inside").symlink_to("/proc")
    with process(lambda: os.chdir(tmp_path)) as pid, pytest.raises(OSError):
        read_foreign(pid, name, LIMIT)


@AS_ROOT
@pytest.mark.usefixtures("way")
def test_root_reads_no_file_that_the_process_itself_could_not(shared: Path) -> None:
    for name, owner, mode in (("root", 0, 0o600), ("group", 0, 0o640), ("theirs", NOBODY, 0o600)):
        (shared / name).write_text(name)
        os.chown(shared / name, owner, 4711)
        (shared / name).chmod(mode)
    with process(become(NOBODY, [])) as outside, process(become(NOBODY, [4711])) as inside:
        for pid in (outside, inside):
            assert read_foreign(pid, str(shared / "theirs"), LIMIT).content == b"theirs"
            with pytest.raises(PermissionError):
                read_foreign(pid, str(shared / "root"), LIMIT)
        assert read_foreign(inside, str(shared / "group"), LIMIT).content == b"group"
        with pytest.raises(PermissionError):
            read_foreign(outside, str(shared / "group"), LIMIT)
    assert (shared / "root").read_text() == "root", "this process has its own rights still"
    assert os.getgroups() == rights_of(os.getpid()).groups or sorted(os.getgroups()) == sorted(
        rights_of(os.getpid()).groups
    )


@AS_ROOT
@pytest.mark.usefixtures("way")
def test_a_link_stays_inside_the_root_of_the_process(shared: Path) -> None:
    (shared / "jail").mkdir()
    (shared / "secret").write_text("of the host")
    for name, target in (("absolute", shared / "secret"), ("up", "../secret"), ("far", f"../../../../../..{shared}")):
        (shared / "jail" / name).symlink_to(target)
    (shared / "jail" / "train.py").write_text("inside")

    def prepare() -> None:
        os.chroot(shared / "jail")
        os.chdir("/")

    with process(prepare) as pid:
        assert read_foreign(pid, "/train.py", LIMIT).content == b"inside"
        assert read_foreign(pid, "train.py", LIMIT).content == b"inside"
        for name in ("/absolute", "/up", "/far/secret", "/../secret", "../secret", str(shared / "secret")):
            with pytest.raises(FileNotFoundError):
                read_foreign(pid, name, LIMIT)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may take the rights of any process")
def test_a_process_of_another_user_is_refused_to_a_user() -> None:
    with pytest.raises(PermissionError):
        read_foreign(1, "/etc/hostname", LIMIT)


@AS_ROOT
@pytest.mark.parametrize(("user", "groups", "may"), [(NOBODY, [], True), (NOBODY, [4711], True), (1000, [], False)])
def test_without_root_only_processes_of_the_same_user_are_read_for(
    shared: Path, user: int, groups: list[int], may: bool
) -> None:
    (shared / "train.py").write_text("step()\n")

    def attempt() -> None:
        become(user, groups)()
        try:
            assert read_foreign(target, str(shared / "train.py"), LIMIT).content == b"step()\n"
        except PermissionError:
            assert not may
        else:
            assert may

    # Started by exec: a process that only changed its user is not dumpable, and only root may look at its files.
    sleeper = subprocess.Popen(["sleep", "600"], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/")
    try:
        target = sleeper.pid
        with process(attempt):
            pass
    finally:
        sleeper.kill()
        sleeper.wait()


@AS_ROOT
def test_after_its_end_a_process_has_the_rights_of_its_user(shared: Path) -> None:
    (shared / "root").write_text("root")
    (shared / "root").chmod(0o600)
    assert read_named(str(shared / "root"), LIMIT, rights_of_user(0)).content == b"root"
    with pytest.raises(PermissionError):
        read_named(str(shared / "root"), LIMIT, rights_of_user(NOBODY))
    assert rights_of_user(4_000_000) == Rights(4_000_000, 65534, ())


def test_a_pid_that_was_given_on_is_not_read() -> None:
    with process(lambda: None) as pid:
        ticks = read_stat("/proc", pid).start_ticks
        assert read_foreign(pid, "/etc/passwd", LIMIT, start_ticks=ticks).content
        with pytest.raises(ProcessLookupError):
            read_foreign(pid, "/etc/passwd", LIMIT, start_ticks=ticks + 1)


def test_a_file_system_that_never_answers_costs_its_process_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("step()\n")
    answer, stuck = threading.Event(), threading.Event()
    opened = foreign._opened

    def hanging(root: int, name: bytes) -> int:
        if name.endswith(b"hangs.py"):
            stuck.set()
            answer.wait()
        return opened(root, name)

    monkeypatch.setattr(foreign, "_opened", hanging)
    monkeypatch.setattr(foreign, "_ANSWER_SECONDS", 0.05)
    with process(lambda: None) as hostile, process(lambda: None) as other:
        with pytest.raises(TimeoutError):
            read_foreign(hostile, "/hangs.py", LIMIT)
        assert stuck.wait(30.0)
        monkeypatch.setattr(foreign, "_ANSWER_SECONDS", 60.0)
        with pytest.raises(TimeoutError, match="does not answer"):
            read_foreign(hostile, str(tmp_path / "train.py"), LIMIT)
        assert read_foreign(other, str(tmp_path / "train.py"), LIMIT).content == b"step()\n"
        answer.set()
        for thread in threading.enumerate():
            if thread.name == "gpuwatch-foreign-file":
                thread.join()
        assert read_foreign(hostile, str(tmp_path / "train.py"), LIMIT).content == b"step()\n"


@pytest.mark.parametrize("name", [b"a\rNSpid:\t77", b") S 1 (", b"a\rUid:\t0", b"\x0bNSpid: 77", b")\n) R 2"])
def test_a_process_cannot_write_fields_of_its_own_by_its_name(name: bytes) -> None:
    with process(lambda: ctypes.CDLL(None).prctl(15, name, 0, 0, 0)) as pid:  # PR_SET_NAME
        fields = status_fields(Path(f"/proc/{pid}/status").read_bytes())
        assert fields["NSpid"].split()[0] == str(pid)
        assert fields["Uid"].split() == [str(os.geteuid())] * 4
        processes = Processes(Path("/proc"))
        assert processes.own_number(pid) == int(fields["NSpid"].split()[-1])
        assert not processes.is_known_as(pid, 77)
        assert processes.ancestor_known_as(pid, os.getpid()) == os.getpid()
        assert access_to(pid, Path("/proc")).target_uid == os.geteuid()
        memory = Memory(pid)
        assert own_id(memory) == pid
        memory.close()


def mapping_of(path: Path) -> Mapping:
    """As a line of /proc/PID/maps would name it, at an address where the kernel has no mapping."""
    return Mapping(0, 1, "r--p", 0, 1, str(path), "0-1")


@AS_ROOT
def test_the_symbols_of_a_program_are_looked_for_with_the_rights_of_its_process(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, program = shared / "secret", shared / "python3"
    secret.write_bytes(b"root's")
    secret.chmod(0o600)
    program.write_bytes(b"theirs")
    program.chmod(0o644)
    read: list[bytes] = []
    monkeypatch.setattr("gpuwatch.reader.program.file_address", lambda file, *_: read.append(file.read()))
    with process(become(NOBODY, [])) as pid:
        memory = Memory(pid)
        for path in (secret, program):
            _from_file(memory, None, mapping_of(path), "_PyRuntime", None)  # type: ignore[arg-type] # only handed on
    assert read == [b"theirs"]


@AS_ROOT
def test_the_symbols_of_a_program_are_looked_for_in_the_root_of_its_process(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / "host").write_bytes(b"the host's")
    (shared / "root").mkdir()
    (shared / "root" / "python3").write_bytes(b"theirs")
    (shared / "root" / "link").symlink_to(shared / "host")
    read: list[bytes] = []
    monkeypatch.setattr("gpuwatch.reader.program.file_address", lambda file, *_: read.append(file.read()))
    with process(lambda: os.chroot(shared / "root")) as pid:
        memory = Memory(pid)
        for path in (shared / "host", shared / "root" / "link", shared / "root" / "python3", Path("/python3")):
            _from_file(memory, None, mapping_of(path), "_PyRuntime", None)  # type: ignore[arg-type] # only handed on
    assert read == [b"theirs", b"theirs"]


def test_a_mapped_file_is_only_used_of_the_process_that_was_asked_about() -> None:
    with process(lambda: None) as pid:
        start_ticks = Memory(pid).start_ticks
        assert use_mapped(pid, "exe", 1 << 40, lambda file: file.read(4), start_ticks=start_ticks) == b"\x7fELF"
        for link, most, ticks in (("exe", 1 << 40, start_ticks - 1), ("exe", 1, start_ticks), ("cwd", 1, start_ticks)):
            with pytest.raises(OSError, match=r"ended|larger|regular"):
                use_mapped(pid, link, most, lambda file: file.read(4), start_ticks=ticks)


def test_a_file_that_blocks_its_reader_costs_a_bounded_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    release = threading.Event()
    with process(lambda: None) as pid:
        try:
            for _ in range(2):
                with pytest.raises(TimeoutError, match="does not answer"):
                    use_foreign(pid, str(tmp_path / "file"), 1, lambda _: release.wait(60.0))
        finally:
            release.set()
