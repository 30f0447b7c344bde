"""What is copied of a thread in one system call: the pointers that lead to its frames, and where they lay last time."""

from __future__ import annotations

from collections.abc import Collection

from gpuwatch.reader.layout import ChunkLayout, Layout
from gpuwatch.reader.memory import Gather, Memory

_MAX_CHUNKS = 64
_MAX_CHUNK_BYTES = 1 << 20
_MAX_SINGLES = 700
_CHUNK = ChunkLayout()


class TornError(Exception):
    """The thread moved on while it was read."""


class Plan:
    """One thread's pieces, in this order: its pointers, its data stack, single frames, and the pointers again.

    `chunks` are the (start, position in the view, last possible offset of a frame) of the data stack, newest first.
    `root_frame` is where the thread's first frame lies in it, `base_frame` the end of each chain; 0: not known.
    """

    def __init__(
        self, memory: Memory, layout: Layout, thread: int, frame_size: int, elsewhere: Collection[int] = ()
    ) -> None:
        self._cframe = layout.cframe_frame
        pointers = [(thread + layout.thread_frame, 8)]
        chunks: list[tuple[int, int]] = []
        self.root_frame = self.base_frame = 0
        if layout.thread_chunk is not None:
            pointers.append((thread + layout.thread_chunk, 8))
            self._chunk = memory.pointer(thread + layout.thread_chunk)
            chunks, complete = _chunks(memory, self._chunk)
            if complete:
                self.root_frame = chunks[-1][0] + _CHUNK.first_frame
        if self._cframe is not None:
            self._cframe_address = memory.pointer(thread + layout.thread_frame)
            pointers.append((self._cframe_address + self._cframe, 8))
        if layout.thread_base_frame is not None:
            self.base_frame = memory.pointer(thread + layout.thread_base_frame)
        outside = [address for address in elsewhere if not any(start <= address < start + n for start, n in chunks)]
        singles = [(address, frame_size) for address in outside[:_MAX_SINGLES]]
        pieces = [*pointers, *chunks, *singles, *pointers]
        if any(not 0 < address < 1 << 63 for address, _ in pieces):
            raise TornError
        self._gather = Gather(memory, pieces)
        self._control = 8 * len(pointers)
        self._moving = (len(pointers) - 1, len(pieces) - 1)
        self._place(chunks, singles, frame_size)

    def read(self) -> tuple[memoryview, int]:
        """All the pieces, and the address of the current frame: 0 where no Python runs.

        Raises:
            TornError: The pointers changed meanwhile, or the data stack has grown or shrunk since it was planned.
            UnreadableAddressError: A piece is not there any more.
            CannotReadError: The process is gone.
        """
        for _ in range(3):
            view = self._gather.read()
            before = bytes(view[: self._control])
            if before != view[-self._control :]:
                raise TornError
            if self._chunks_moved(before):
                raise TornError
            if self._cframe is None:
                return view, int.from_bytes(before[:8], "little")
            cframe = int.from_bytes(before[:8], "little")
            if cframe == self._cframe_address:
                return view, int.from_bytes(before[16:], "little")
            # Each entry into the evaluation loop has a _PyCFrame of its own, so this is no sign of a torn read.
            self._cframe_address = cframe
            for index in self._moving:
                self._gather.move(index, cframe + self._cframe)
        raise TornError

    def position(self, address: int) -> int | None:
        """Where in the view a frame lies, None if it was not planned for."""
        for start, position, last_offset in self.chunks:
            if 0 <= address - start <= last_offset:
                return position + address - start
        return self._singles.get(address)

    def _chunks_moved(self, control: bytes) -> bool:
        return bool(self.chunks) and int.from_bytes(control[8:16], "little") != self._chunk

    def _place(self, chunks: list[tuple[int, int]], singles: list[tuple[int, int]], frame_size: int) -> None:
        position = self._control
        self.chunks: list[tuple[int, int, int]] = []
        for start, size in chunks:
            self.chunks.append((start, position, size - frame_size))
            position += size
        self._singles: dict[int, int] = {}
        for address, size in singles:
            self._singles[address] = position
            position += size


def _chunks(memory: Memory, newest: int) -> tuple[list[tuple[int, int]], bool]:
    """The (address, bytes) of the chunks of a data stack, newest first, and whether that is all of them.

    Raises:
        TornError: They cannot be chunks.
    """
    found: list[tuple[int, int]] = []
    address = newest
    while address and len(found) < _MAX_CHUNKS:
        head = memory.read(address, _CHUNK.header)
        size = int.from_bytes(head[_CHUNK.size : _CHUNK.size + 8], "little")
        if not _CHUNK.header < size <= 1 << 32 or address in dict(found):
            raise TornError
        found.append((address, min(size, _MAX_CHUNK_BYTES)))
        address = int.from_bytes(head[_CHUNK.previous : _CHUNK.previous + 8], "little")
    return found, bool(found) and not address
