"""What is copied of a thread in one system call: the pointers that lead to its frames, and where they lay last time."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from gpuwatch.reader.layout import ChunkLayout, Layout
from gpuwatch.reader.memory import Gather, Memory

_MAX_CHUNKS = 64
_MAX_CHUNK_BYTES = 1 << 20
_MAX_STACK_BYTES = 4 << 20  # of all chunks, which are copied at each look; 64 of the usual size are 1 MiB
_FIRST_REACH = 4096  # a page; few stacks reach further, and each page more costs up to 5 us a look
_FIRST_CFRAMES, _MORE_CFRAMES, _MAX_CFRAMES = 4, 4, 16
"""Evaluation loops whose current frame is copied: those a thread was seen in last. Each costs 0.4 us a look."""
_CHUNK = ChunkLayout()


class TornError(Exception):
    """The thread moved on while it was read."""


class StalePlanError(TornError):
    """The thread's data stack has grown or shrunk by a chunk since the plan was made."""


class Plan:
    """One thread's pieces, in this order: its pointers, its data stack, single frames, and the pointers again.

    `chunks` are the (start, position in the view, last possible offset of a frame) of the data stack, newest first.
    `root_frame` is where the thread's first frame lies in it, `base_frame` the end of each chain; 0: not known.
    """

    def __init__(self, memory: Memory, layout: Layout, thread: int, frame_size: int) -> None:
        self._memory = memory
        self._frame_size = frame_size
        self._cframe_frame = layout.cframe_frame
        self._pointers = [(thread + layout.thread_frame, 8)]
        self._pieces: list[tuple[int, int]] = []
        self._chunk = self.root_frame = self.base_frame = 0
        self._cframes: list[int] = []
        self._next_cframe = 0
        self._reach = _FIRST_REACH
        if layout.thread_chunk is not None:
            self._pointers.append((thread + layout.thread_chunk, 8))
            self._chunk = memory.pointer(thread + layout.thread_chunk)
            self._pieces, complete = _chunks(memory, self._chunk)
            if complete:
                self.root_frame = self._pieces[-1][0] + _CHUNK.first_frame
        if layout.thread_base_frame is not None:
            self.base_frame = memory.pointer(thread + layout.thread_base_frame)
        if layout.cframe_frame is not None:
            self._cframes = [memory.pointer(thread + layout.thread_frame)]
        self.set_singles(())

    def set_singles(self, addresses: Iterable[int]) -> None:
        """Copies these frames too from now on."""
        cframes = [(address + (self._cframe_frame or 0), 8) for address in self._cframes]
        singles = [(address, self._frame_size) for address in addresses]
        pointers = [*self._pointers, *cframes]
        stack = [
            (start, min(size, self._reach if not index else size)) for index, (start, size) in enumerate(self._pieces)
        ]
        pieces = [*pointers, *stack, *singles, *pointers]
        if any(not 0 < address < 1 << 63 for address, _ in pieces):
            raise TornError
        self._gather = Gather(self._memory, pieces)
        self._count = len(pieces)
        self._words = struct.Struct(f"<{len(pointers)}Q")
        position = self._words.size
        self.chunks: list[tuple[int, int, int]] = []
        for start, size in stack:
            self.chunks.append((start, position, size - self._frame_size))
            position += size
        self._singles = {address: position + index * self._frame_size for index, (address, _) in enumerate(singles)}

    def read(self, *, moving: bool = False) -> tuple[memoryview, int]:
        """All the pieces, and the address of the current frame: 0 where no Python runs.

        With `moving` that is the frame that was current when the copying began, whether or not it still is; only the
        evaluation loop has to be the same, for what lay on the C stack is soon overwritten.

        Raises:
            StalePlanError: The thread's frames lie elsewhere now.
            TornError: The thread went on meanwhile, or is in an evaluation loop that was not known yet.
            UnreadableAddressError: A piece is not there any more.
            CannotReadError: The process is gone.
        """
        view = self._gather.read()
        before = self._words.unpack_from(view)
        if self._chunk and before[1] != self._chunk:
            raise StalePlanError
        number = 0
        if self._cframe_frame is not None:
            if before[0] not in self._cframes:
                self._learn(before[0], moving=moving)
                raise TornError
            number = 2 + self._cframes.index(before[0])
        after = self._words.unpack_from(view, len(view) - self._words.size)
        if before[number] != after[number] and not moving:
            raise TornError
        if number and before[0] != after[0]:
            raise TornError
        return view, before[number]

    @property
    def view(self) -> memoryview:
        """What the last read copied."""
        return self._gather.view

    def position(self, address: int) -> int | None:
        """Where in the view a frame lies, None if it was not planned for."""
        for start, position, last_offset in self.chunks:
            if 0 <= address - start <= last_offset:
                return position + address - start
        return self._singles.get(address)

    def extend_to(self, address: int) -> None:
        """Copies more of the newest chunk from now on if that is where a frame lies that was not copied.

        Raises:
            TornError: It was; look again.
        """
        if not self._pieces:
            return
        start, size = self._pieces[0]
        offset = address - start
        if self._reach < size and 0 <= offset <= size - self._frame_size:
            while self._reach < offset + self._frame_size:
                self._reach *= 2
            self.set_singles(list(self._singles))
            raise TornError

    def neighbours(self, address: int, other: int) -> bool:
        """Whether both lie in the same chunk of the data stack."""
        return any(
            0 <= address - start <= last_offset and 0 <= other - start <= last_offset
            for start, _, last_offset in self.chunks
        )

    def _learn(self, cframe: int, *, moving: bool) -> None:
        """Copies the current frame of this evaluation loop too from now on, in the place of another one.

        Up to 3.12 each entry into the loop has a _PyCFrame of its own on the C stack, and the thread only points to it.
        """
        count = len(self._cframes)
        if count < _FIRST_CFRAMES or (moving and count < _MAX_CFRAMES):
            self._cframes += [cframe] * (1 if count < _FIRST_CFRAMES else _MORE_CFRAMES)
            self.set_singles(list(self._singles))
            return
        slot = self._next_cframe % count
        self._next_cframe = slot + 1
        self._cframes[slot] = cframe
        for index in (2 + slot, self._count - count + slot):
            self._gather.move(index, cframe + (self._cframe_frame or 0))


def _chunks(memory: Memory, newest: int) -> tuple[list[tuple[int, int]], bool]:
    """The (address, bytes) of the chunks of a data stack, newest first, and whether that is all of them.

    Raises:
        TornError: They cannot be chunks.
    """
    found: list[tuple[int, int]] = []
    address, total = newest, 0
    while address and len(found) < _MAX_CHUNKS and total < _MAX_STACK_BYTES:
        head = memory.read(address, _CHUNK.header)
        size = int.from_bytes(head[_CHUNK.size : _CHUNK.size + 8], "little")
        if not _CHUNK.header < size <= 1 << 32 or address in dict(found):
            raise TornError
        found.append((address, min(size, _MAX_CHUNK_BYTES)))
        total += found[-1][1]
        address = int.from_bytes(head[_CHUNK.previous : _CHUNK.previous + 8], "little")
    return found, bool(found) and not address
