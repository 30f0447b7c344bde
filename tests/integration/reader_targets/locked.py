"""A Python whose memory is locked for ever: `locked.py FOLDER`.

One thread reads its own memory by /proc/self/mem at a page of a file system that never answers, which holds the lock
for reading; another maps memory, waits for the lock, and keeps all later readers waiting behind it. It maps a file
with the name of torch's library, as a training does, and says "ready SERVER" with the pid of the file system's server,
or why it cannot be done here.
"""

import ctypes
import mmap
import os
import struct
import sys
import threading
from pathlib import Path

LOOKUP, GETATTR, OPEN, READ, INIT = 1, 3, 14, 15, 26
FORGET, BATCH_FORGET = 2, 42
SIZE = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)


def must(result):
    if result:
        print("refused", os.strerror(ctypes.get_errno()), flush=True)
        os._exit(0)


def attributes(node):
    mode = 0o40755 if node == 1 else 0o100644
    return struct.pack("<6Q10I", node, SIZE, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def serve(device):
    """One folder with one file, whose content is never given."""
    while True:
        request = os.read(device, 1 << 18)
        _, kind, number, node = struct.unpack_from("<IIQQ", request)
        if kind in (READ, FORGET, BATCH_FORGET):
            continue
        answers = {
            INIT: struct.pack("<4I2H2I", 7, 31, 1 << 17, 0, 12, 12, 1 << 17, 1).ljust(64, b"\0"),
            LOOKUP: struct.pack("<4Q2I", 2, 0, 3600, 3600, 0, 0) + attributes(2),
            GETATTR: struct.pack("<Q2I", 3600, 0, 0) + attributes(node),
            OPEN: struct.pack("<Q2I", 1, 0, 0),
        }
        answer = answers.get(kind, b"")
        error = 0 if kind in answers else 38  # ENOSYS
        os.write(device, struct.pack("<IiQ", 16 + len(answer), -error, number) + answer)


def main(folder):
    place = Path(folder, "mounted")
    place.mkdir()
    must(libc.unshare(0x20000))  # CLONE_NEWNS: what is mounted goes with this process
    must(libc.mount(None, b"/", None, 0x44000, None))  # MS_REC | MS_PRIVATE
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        ctypes.set_errno(error.errno)
        must(1)
    must(libc.mount(b"fuse", os.fsencode(place), b"fuse", 0, b"fd=%d,rootmode=40000,user_id=0,group_id=0" % device))
    server = os.fork()
    if not server:
        libc.prctl(1, 9)  # PR_SET_PDEATHSIG
        serve(device)
    os.close(device)
    library = Path(folder, "torch/lib/libtorch_cpu.so")
    library.parent.mkdir(parents=True)
    library.write_bytes(bytes(4096))
    with library.open("rb") as file:
        kept = mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
    withheld = mmap.mmap(os.open(place / "file", os.O_RDONLY), SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(withheld))
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    print("ready", server, flush=True)
    threading.Thread(target=os.pread, args=(memory, 8, address), daemon=True).start()
    while not kept.closed:
        mmap.mmap(-1, mmap.PAGESIZE).close()  # never returns once the other thread has the lock


main(sys.argv[1])
