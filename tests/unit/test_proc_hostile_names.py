"""One corpus of hostile names, fed to every parser of a file of /proc: a name never forges a line or a field."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded_proc import RecordedHost

from gpuwatch.procfs import keyed_int, mapped_files, mapped_paths, parse_stat
from gpuwatch.recording.file import filesystem_of
from gpuwatch.sources.census import mapped_library
from gpuwatch.sources.host.identify import carries_hook, is_python, read_environment, variable
from gpuwatch.sources.host.machine import Cgroups, parse_network
from gpuwatch.sources.nvml.readings import PidMap

CUTS = [
    b"\r", b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x85", "\x85".encode(), "\u2028".encode(), "\u2029".encode(),
    b"\t", b"\xff\xfe", b"\x1b[2J", b" (deleted)", b") R 1 1 1", b"\\012", b"\\n", b":", b" - cgroup2 ", b"=",
]  # fmt: skip
"""What the kernel leaves as it is in one file or another; the line feed it always escapes."""


def line(path: bytes, start: int = 0x1000) -> bytes:
    return b"%x-%x r-xp 00000000 08:01 77                      %b\n" % (start, start + 0x1000, path)


@pytest.fixture
def host(tmp_path: Path) -> RecordedHost:
    return RecordedHost(tmp_path)


@pytest.mark.parametrize("cut", CUTS)
def test_names_of_mapped_files_stay_in_their_lines(host: RecordedHost, cut: bytes) -> None:
    name = b"/home/a" + cut + b"7f0000000000-7f0000001000 r-xp 00000000 08:01 9 /usr/lib/libpython3.11.so"
    raw = line(name) + line(b"/bin/true", 0x9000)
    found = list(mapped_files(raw))
    assert [(one.start, os.fsencode(one.path)) for one in found] == [(0x1000, name), (0x9000, b"/bin/true")]
    assert mapped_paths(raw) == {name.removesuffix(b" (deleted)"), b"/bin/true"}
    host.write(
        "7/maps", line(b"/tmp/x" + cut + b"y") + b"ffffffffff600000-ffffffffff601000 --xp 0 00:00 0 [vsyscall]\n"
    )
    host.write("7/cmdline", b"/bin/true\0")
    assert mapped_library(host.proc, 7) is None
    assert not is_python(7, host.proc)


@pytest.mark.parametrize("cut", CUTS)
def test_a_process_name_forges_no_field(host: RecordedHost, cut: bytes) -> None:
    name = b"x" + cut + b"NSpid:\t1"
    fields = b"S 5 " + b" ".join(b"%d" % number for number in range(5, 45))
    stat = parse_stat(b"7 (" + name[:15] + b") " + fields + b"\n")
    assert stat is not None
    assert (stat.state, stat.parent) == ("S", 5)
    assert stat.command_name.isprintable()
    status = (
        b"Name:\t" + name + cut + b"nonvoluntary_ctxt_switches:\t99\nNSpid:\t7\t3\nnonvoluntary_ctxt_switches:\t4\n"
    )
    assert keyed_int(status, b"nonvoluntary_ctxt_switches:") == 4
    host.write("self/status", status)
    host.write("7/status", status)
    assert PidMap(str(host.proc)).pid(7) == 3


@pytest.mark.parametrize(
    "cut", [cut for cut in CUTS if cut not in (b"\t", b"\\012", b" (deleted)", b" - cgroup2 ", b") R 1 1 1")]
)
def test_a_mount_point_forges_no_cgroup_hierarchy_and_no_file_system(
    host: RecordedHost, cut: bytes, tmp_path: Path
) -> None:
    device = tmp_path.stat().st_dev
    here = b"%d:%d" % (os.major(device), os.minor(device))
    forged = b"9 9 " + here + b" / /x rw - nfs4 nfs rw"
    escaped = forged.replace(b" ", b"\\040")
    host.write("self/mountinfo", b"31 23 9:9 / /home/a" + cut + escaped + b" rw - fuse f rw\n")
    host.write("7/cgroup", b"0::/a" + cut + b"b\n")
    assert filesystem_of(tmp_path, host.proc / "self/mountinfo") is None
    assert Cgroups(host.proc, host.cgroup).cpu_limit(7).quota_cores is None
    name = os.fsdecode(b"a" + cut + b"b")
    host.write("self/mountinfo", b"31 23 0:26 / /sys/fs/cgroup/a" + cut + b"b rw - cgroup2 cgroup2 rw\n")
    assert [mount.folder.name for mount in Cgroups(host.proc, host.cgroup)._mounts] == [name]


@pytest.mark.parametrize("cut", CUTS)
def test_values_of_the_environment_are_no_variables(host: RecordedHost, cut: bytes) -> None:
    raw = b"A=x" + cut + b"OMP_NUM_THREADS=9\0OMP_NUM_THREADS=4\0OMP_NUM_THREADS=8\0"
    assert variable(raw, "OMP_NUM_THREADS") == b"4"
    assert variable(raw, "NUM_THREADS") is None
    host.write("7/environ", raw + b"PYTHONPATH=/a" + cut + b":/b/gpuwatch/hook/site\0")
    assert read_environment(host.proc, 7) == (("OMP_NUM_THREADS", "4"),)
    assert carries_hook(host.proc, 7)


def test_an_interface_is_a_line() -> None:
    counters = b" 5 0 0 0 0 0 0 0 6 0 0 0 0 0 0 0\n"
    assert parse_network(b"a\x0cb:" + counters + b"eth0:" + counters) == {"a\x0cb": (5, 6), "eth0": (5, 6)}


def test_maps_made_to_be_slow_are_searched_in_linear_time(host: RecordedHost) -> None:
    """A bound against patterns with two open ends: each of these took minutes for one line of 200 KiB."""
    parts = (b" /torch", b"/jaxlib", b"/tensorflow", b"/libpython3", b"/torch/lib/libtorch", b"/lib/libtorch_python.s")
    raw = b"".join(line(part * (200_000 // len(part)) + b"/x.s", 0x1000 * n) for n, part in enumerate(parts, 1))
    host.write("7/maps", raw + line(b"/x/libtorch_cpu.so"))
    host.write("7/cmdline", b"/bin/true\0")
    found = mapped_library(host.proc, 7)
    assert found is not None
    assert found.folder is None
    assert not is_python(7, host.proc)
