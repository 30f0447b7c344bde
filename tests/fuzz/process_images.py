"""What the reader is given by processes: memory, programs, line tables, and files of /proc.

A memory image is what the reader has read of a real Python that stands in a loop over a DataLoader-like iterator; a
mutated one is attached to and looked at again. The reader may refuse it or give any answer, but within its budget and
by `CannotReadError` alone.
"""

from __future__ import annotations

import ctypes
import os
import random
import struct
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType
from typing import Any

from gpuwatch.procfs import Mapping, keyed_int, mapped_files, mapped_paths, parse_stat, shown
from gpuwatch.reader.attach import Interpreter, interpreter_in
from gpuwatch.reader.codes import line_table
from gpuwatch.reader.loaders import LoaderReader
from gpuwatch.reader.memory import Memory, UnreadableAddressError
from gpuwatch.reader.program import NotElfError, file_address, mapped_image
from gpuwatch.reader.refusals import Budget, BudgetExceededError, CannotReadError
from gpuwatch.sources.host.identify import VARIABLES, variable
from gpuwatch.sources.host.machine import parse_cpu_ticks, parse_disks, parse_network

MEMORY, PROGRAM, TABLE, TEXT = b"M", b"P", b"T", b"F"
"""The first byte of an input: what the rest is."""

LOOKS = 2
LONGEST_SECONDS = 4.0
"""CPU time of one input: attaching, and two looks at stacks and loaders, of 0.5 s each at most."""

_GRAIN = 256
_HEAD = struct.Struct("<IQQ")  # bytes of the maps, the number of pieces, the runtime's version
_PIECE = struct.Struct("<QI")

STANDING = """
import sys
SOURCE = '''
class _BaseDataLoaderIter:
    def __init__(self):
        self._dataset, self._index_sampler, self._num_yielded = [1] * 640, [[0] * 64] * 10, 0
        self._num_workers, self._pin_memory, self._drop_last = 0, False, False
    def __iter__(self): return self
    def __next__(self):
        self._num_yielded += 1
        return self._dataset
'''
place = {"__name__": "torch.utils.data.dataloader"}
exec(compile(SOURCE, "/x/torch/utils/data/dataloader.py", "exec"), place)
def inner(depth):
    if depth:
        return inner(depth - 1)
    print("ready", flush=True)
    sys.stdin.read()
    sys.exit()
def train():
    for number, batch in enumerate(place["_BaseDataLoaderIter"]()):
        if number == 300:
            inner(3)
train()
"""


class ImageMemory(Memory):
    """Pieces of a process's memory that are kept in this one; what lies between them is not mapped."""

    def __init__(self, pieces: dict[int, bytes], maps: bytes, pid: int = 4711) -> None:
        self.pid, self.start_ticks = pid, 1
        self.directory, self.proc_root = Path("/nonexistent"), Path("/nonexistent")
        self.budget = Budget()
        self._maps = maps
        self._starts = sorted(pieces)
        self._pieces = pieces

    def transfer(self, arguments: Any) -> int:
        local, remote, count = arguments[1]._obj, arguments[3]._obj, arguments[4]
        done = 0
        for index in range(count):
            found = self._at(remote[index].address or 0, remote[index].size)
            if found is None:
                break
            ctypes.memmove(local.address + done, found, len(found))
            done += len(found)
        return done

    def maps(self) -> list[Mapping]:
        return list(mapped_files(self._maps))

    def close(self) -> None:
        pass

    def _at(self, address: int, size: int) -> bytes | None:
        parts: list[bytes] = []
        while size > 0:
            index = bisect_right(self._starts, address) - 1
            start = self._starts[index] if index >= 0 else 0
            part = self._pieces[start][address - start : address - start + size] if index >= 0 else b""
            if not part:
                return None
            parts.append(part)
            address, size = address + len(part), size - len(part)
        return b"".join(parts)


class _Recorder(Memory):
    """A real process's memory, of which everything that is read is noted."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.read_places: set[int] = set()

    def transfer(self, arguments: Any) -> int:
        remote = arguments[3]._obj
        for index in range(arguments[4]):
            first, size = remote[index].address or 0, min(remote[index].size, 1 << 16)
            self.read_places.update(range(first // _GRAIN, (first + size) // _GRAIN + 1))
        return super().transfer(arguments)


@contextmanager
def standing() -> Iterator[int]:
    """The pid of a Python of this version that stands in a loop over an iterator like a DataLoader's."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", STANDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        while Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b") ")[2][:1] != b"S":
            os.sched_yield()
        yield process.pid
        process.stdin.close()


def capture(pid: int) -> bytes:
    """What attaching to a process and looking at it twice reads."""
    memory = _Recorder(pid)
    try:
        interpreter = interpreter_in(memory)
        look_at(interpreter)
        found: dict[int, bytes] = {}
        for grain in sorted(memory.read_places):
            with suppress(UnreadableAddressError):
                found[grain * _GRAIN] = Memory.read(memory, grain * _GRAIN, _GRAIN)
        maps = b"".join(
            line + b"\n"
            for line in Path(f"/proc/{pid}/maps").read_bytes().split(b"\n")
            if b" 00000000 " in line and b"/" in line
        )
    finally:
        memory.close()
    return pack(found, maps)


def pack(pieces: dict[int, bytes], maps: bytes) -> bytes:
    body = b"".join(_PIECE.pack(start, len(data)) + data for start, data in _joined(pieces).items())
    return MEMORY + _HEAD.pack(len(maps), len(_joined(pieces)), 0) + maps + body


def unpack(data: bytes) -> ImageMemory:
    """The image of `pack`; what a mutation has cut short is what is there."""
    maps_size, count, _ = _HEAD.unpack(data[1 : 1 + _HEAD.size].ljust(_HEAD.size, b"\0"))
    position = 1 + _HEAD.size
    maps = data[position : position + maps_size]
    position += len(maps)
    pieces: dict[int, bytes] = {}
    for _ in range(min(count, 100_000)):
        if position + _PIECE.size > len(data):
            break
        start, size = _PIECE.unpack_from(data, position)
        position += _PIECE.size
        pieces[start] = data[position : position + size]
        position += len(pieces[start])
    return ImageMemory(pieces, maps)


def _joined(pieces: dict[int, bytes]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    last = end = -1
    for start in sorted(pieces):
        if start == end:
            found[last] += pieces[start]
        else:
            last = start
            found[last] = pieces[start]
        end = start + len(pieces[start])
    return found


def look_at(interpreter: Interpreter) -> None:
    """All that the product asks of an interpreter."""
    loaders = LoaderReader(interpreter)
    for _ in range(LOOKS):
        for stack in (interpreter.main_stack(), *interpreter.stacks()):
            if stack is None:
                continue
            for frame in stack.frames:
                assert frame.line is None or 0 <= frame.line < 1 << 31
                assert len(frame.code.file) <= 4096 and len(frame.code.name) <= 4096
            state = loaders.state(stack)
            if state is not None:
                assert 0 <= state.batches_yielded < 1 << 61
                loaders.recheck(state)


def run(data: bytes) -> None:
    """One input."""
    began = time.thread_time()
    kind, rest = data[:1], data[1:]
    if kind == PROGRAM:
        _run_program(rest)
    elif kind == TABLE:
        _run_table(rest)
    elif kind == TEXT:
        _run_text(rest)
    else:
        try:
            look_at(interpreter_in(unpack(data)))
        except CannotReadError as refused:
            assert refused.sentence.isprintable(), ascii(refused.sentence)
    spent = time.thread_time() - began
    assert spent < LONGEST_SECONDS, f"{spent:.1f} s of CPU time"


def _run_program(data: bytes) -> None:
    """A program as it is mapped, and as a file."""
    base = 0x400000
    memory = ImageMemory({base: data}, b"")
    memory.budget.begin()
    descriptor = os.memfd_create("program")
    with os.fdopen(descriptor, "w+b") as file:
        file.write(data)
        file.flush()
        try:
            image = mapped_image(memory, base, "/bin/python3")
            for name in ("_PyRuntime", "Py_Version", "pypy_main_startup"):
                image.exported(name)
                file.seek(0)
                file_address(file, image, name, ".PyRuntime")
            image.needs("libpython")
        except (NotElfError, BudgetExceededError):
            return


def _run_table(data: bytes) -> None:
    for version in ((3, 8), (3, 10), (3, 11)):
        table = line_table(version, data, 1)
        for offset in (*range(-2, 64, 2), 1 << 20):
            line = table.line(offset)
            assert line is None or 0 <= line < 1 << 31


def _run_text(data: bytes) -> None:
    for mapping in mapped_files(data):
        assert "\n" not in mapping.path
        assert mapping.path.startswith("/")
    assert all(b"\n" not in path for path in mapped_paths(data))
    parse_stat(data)
    parse_cpu_ticks(data)
    parse_disks(data)
    parse_network(data)
    keyed_int(data, b"NSpid:")
    assert all(b"\0" not in (variable(data, name) or b"") for name in VARIABLES)
    assert shown(data[:4096]).isprintable()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Changes words of a memory image to what a hostile process would put there: sizes, pointers, other objects."""
    if data[:1] != MEMORY or len(data) < 64:
        return data
    changed = bytearray(data)
    begin = 1 + _HEAD.size + min(_HEAD.unpack_from(data, 1)[0], len(data) // 2)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        place = rng.randrange(begin, len(changed) - 8)
        word = rng.choice((0, 1, -1, 1 << 31, 1 << 62, -(1 << 63), 0x7F, rng.getrandbits(63)))
        if rng.random() < 0.5:
            other = rng.randrange(begin, len(changed) - 8)
            word = struct.unpack_from("<q", changed, other)[0]
        struct.pack_into("<q", changed, place, word)
    return bytes(changed)


def seeds() -> list[bytes]:
    """Images of this Python, small programs, line tables, and /proc's texts of this process."""
    with standing() as pid:
        images = [capture(pid)]
        texts = [
            Path(f"/proc/{pid}/{name}").read_bytes() for name in ("maps", "stat", "status", "environ", "mountinfo")
        ]
    codes: list[CodeType] = [run.__code__, mutate.__code__, compile(STANDING, "x", "exec")]
    tables = [code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab for code in codes]
    program = Path("/proc/self/exe").read_bytes()
    small = Path("/bin/true").read_bytes()
    return [
        *images,
        *(TABLE + table for table in tables),
        *(TEXT + text for text in texts),
        *(PROGRAM + one for one in (small, program[: 1 << 16])),
    ]
