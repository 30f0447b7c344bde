"""Where CPython keeps its threads, frames and code objects: offsets by minor version.

Up to 3.12 they are constants of this file, offsetof() on the headers of each minor version: within one, CPython
does not move them. The structures hold only pointers, longs and ints, so x86-64 and aarch64 lay them out alike.
From 3.13 on the interpreter describes itself (`debug_offsets`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

OBJECT_TYPE = 8  # PyObject.ob_type
TYPE_NAME = 24  # PyTypeObject.tp_name
OBJECT_SIZE = 16  # PyVarObject.ob_size
BYTES_DATA = 32  # PyBytesObject.ob_sval


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """The data stack that holds frames since 3.11: `_PyStackChunk`, and where its first frame may begin."""

    previous: int = 0
    size: int = 8
    header: int = 24
    first_frame: int = 32  # the root chunk leaves its first slot empty


@dataclass(frozen=True, slots=True)
class Layout:
    """The offsets of one minor version; None where it has no such field."""

    version: tuple[int, int]
    interpreters_head: int
    interpreters_main: int | None  # None: the main interpreter is the one with id 0
    runtime_main_thread: int | None  # the main thread's pthread id
    interpreter_id: int
    interpreter_next: int
    threads_head: int
    threads_main: int | None
    thread_next: int
    thread_id: int
    thread_native_id: int | None
    thread_frame: int  # leads to the current frame: directly, or by way of `cframe_frame`
    cframe_frame: int | None  # 3.11 and 3.12: _PyCFrame.current_frame
    thread_chunk: int | None
    thread_base_frame: int | None  # 3.15: the end of each chain
    frame_code: int
    frame_previous: int
    frame_instruction: int  # f_lasti up to 3.10, a pointer into the bytecode after
    frame_owner: int | None
    frame_locals: int
    code_file: int
    code_name: int
    code_qualified_name: int | None
    code_first_line: int
    code_line_table: int
    code_frame_words: tuple[int, ...]  # ints whose sum is the room a frame of it takes of the data stack, in words
    code_frame_words_more: int  # to be added to them
    code_bytecode: int  # up to 3.10 a pointer to bytes, after that the bytecode itself
    text_header: int  # sizeof(PyASCIIObject)
    wide_text_header: int  # sizeof(PyCompactUnicodeObject)

    @property
    def heap_frames(self) -> bool:
        """Whether each frame is an object of its own, as up to 3.10."""
        return self.thread_chunk is None


FIRST_FOREIGN_OWNER = 3
"""From this `owner` on a frame belongs to C code and shows no line: FRAME_OWNED_BY_CSTACK in 3.12 and 3.13,
FRAME_OWNED_BY_INTERPRETER and _BY_CSTACK after."""
OWNED_BY_THREAD = 0
"""A frame with this `owner` lies in the data stack."""

_3_8 = Layout(
    version=(3, 8),
    interpreters_head=32,
    interpreters_main=40,
    runtime_main_thread=72,
    interpreter_id=16,
    interpreter_next=0,
    threads_head=8,
    threads_main=None,
    thread_next=8,
    thread_id=176,
    thread_native_id=None,
    thread_frame=24,
    cframe_frame=None,
    thread_chunk=None,
    thread_base_frame=None,
    frame_code=32,
    frame_previous=24,
    frame_instruction=104,
    frame_owner=None,
    frame_locals=360,
    code_file=104,
    code_name=112,
    code_qualified_name=None,
    code_first_line=40,
    code_line_table=120,
    code_frame_words=(),
    code_frame_words_more=0,
    code_bytecode=48,
    text_header=48,
    wide_text_header=72,
)

_3_9 = replace(_3_8, version=(3, 9), interpreter_id=24)

_3_10 = replace(_3_9, version=(3, 10), frame_instruction=96, frame_locals=352)

_3_11 = Layout(
    version=(3, 11),
    interpreters_head=40,
    interpreters_main=48,
    runtime_main_thread=80,
    interpreter_id=48,
    interpreter_next=0,
    threads_head=16,
    threads_main=None,
    thread_next=8,
    thread_id=152,
    thread_native_id=160,
    thread_frame=56,
    cframe_frame=8,
    thread_chunk=296,
    thread_base_frame=None,
    frame_code=32,
    frame_previous=48,
    frame_instruction=56,
    frame_owner=69,
    frame_locals=72,
    code_file=112,
    code_name=120,
    code_qualified_name=128,
    code_first_line=72,
    code_line_table=136,
    code_frame_words=(68, 76),  # co_stacksize, co_nlocalsplus
    code_frame_words_more=9,  # FRAME_SPECIALS_SIZE
    code_bytecode=184,
    text_header=48,
    wide_text_header=72,
)

_3_12 = replace(
    _3_11,
    version=(3, 12),
    runtime_main_thread=64,
    interpreter_id=8,
    threads_head=72,
    thread_id=136,
    thread_native_id=144,
    cframe_frame=0,
    thread_chunk=232,
    frame_code=0,
    frame_previous=8,
    frame_owner=70,
    code_first_line=68,
    code_frame_words=(76,),  # co_framesize
    code_frame_words_more=0,
    code_bytecode=192,
    text_header=40,
    wide_text_header=56,
)

TABLES = {table.version: table for table in (_3_8, _3_9, _3_10, _3_11, _3_12)}
FIRST_SELF_DESCRIBING = (3, 13)
