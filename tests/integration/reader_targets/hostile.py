"""A Python that was made to mislead whoever reads it: `hostile.py KIND FOLDER`.

It maps a file with the name of torch's library, as a training does, says "ready" and obeys lines of Python on stdin.
"""

import ctypes
import fcntl
import mmap
import os
import struct
import sys
import threading
from pathlib import Path

NAMES = (b"\x0c", b"\n", b"\r", b"\xff\xfe", b" (deleted)", b"\x85", b"\x1c", b"\x0c7f00-7f01 r-xp 00000000 08:01 9 ")

kept = []


def map_file(name, size=4096):
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, size)
    kept.append(mmap.mmap(descriptor, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ))
    os.close(descriptor)


def map_deleted(name, size=4096):
    map_file(name, size)
    Path(name).unlink()


def poke(address, value):
    ctypes.c_uint64.from_address(address).value = value & 0xFFFFFFFFFFFFFFFF


def withhold(address, size):
    """Takes pages away, and lets whoever touches them wait for an answer that never comes (userfaultfd(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall({"x86_64": 323}.get(os.uname().machine, 282), 0)
    start = address & -mmap.PAGESIZE
    asked = struct.pack("QQQ", 0xAA, 0, 0)  # UFFD_API
    if descriptor < 0 or fcntl.ioctl(descriptor, 0xC018AA3F, bytearray(asked)):
        print("refused", os.strerror(ctypes.get_errno()), flush=True)
        os._exit(0)
    fcntl.ioctl(descriptor, 0xC020AA00, bytearray(struct.pack("QQQQ", start, size, 1, 0)))  # UFFDIO_REGISTER, missing
    libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), 4)  # MADV_DONTNEED
    kept.append((descriptor, start, size))


def answer():
    """Gives the pages back, and lets those go on that wait for them."""
    for descriptor, start, size in kept[-1:]:
        fcntl.ioctl(descriptor, 0x8010AA01, bytearray(struct.pack("QQ", start, size)))  # UFFDIO_UNREGISTER
        fcntl.ioctl(descriptor, 0x8010AA02, bytearray(struct.pack("QQ", start, size)))  # UFFDIO_WAKE


def obey():
    print("ready", flush=True)
    while True:
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        exec(line, globals())
        print("done", flush=True)


def obey_as(**changes):
    """Runs `obey` by another code object."""
    obey.__code__ = obey.__code__.replace(**changes)
    obey()


def main(kind, folder):
    Path(folder, "torch/lib").mkdir(parents=True)
    map_file(folder + "/torch/lib/libtorch_cpu.so")
    table = "co_linetable" if sys.version_info >= (3, 10) else "co_lnotab"
    if kind == "names":
        for number, name in enumerate(NAMES):
            map_file(os.fsencode(folder) + b"/a" + name + b"b%d.so" % number)
        map_deleted(folder + "/libpython3.11.so.1.0", 1 << 42)
    elif kind == "many maps":
        for number in range(2000):
            map_deleted(folder + "/libpython" + "x" * 200 + str(number))
    elif kind == "digits":
        obey_as(**{table: bytes([0x80, 0, 0x80 | 13 << 3]) + b"\x7f" * 900000 + b"\x3f"})
    elif kind == "long table":
        obey_as(**{table: b"\x80\x7e" * 500000})
    elif kind == "long names":
        obey_as(co_name="\U0001f600\x1b[2J" * 3000000, co_filename="/\r\n\x1b" * 5000000)
    elif kind == "userfault":
        lines = bytes(1 << 20)
        withhold(id(lines) + 2 * mmap.PAGESIZE, 16 * mmap.PAGESIZE)
        obey_as(**{table: lines})
    elif kind == "threads":
        threading.stack_size(1 << 16)
        for _ in range(1500):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
    elif kind == "source":
        name = folder + "/train.py"
        Path(name).write_text("a\n" * 500000)
        os.utime(name, (0, 0))
        obey_as(co_filename=name)
    obey()


main(*sys.argv[1:])
