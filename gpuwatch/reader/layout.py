"""Where CPython keeps its threads, frames, code and objects: offsets by minor version, for 64-bit builds with a GIL.

The numbers are offsetof() on the headers of 3.8 to 3.13, and what 3.14.10 and 3.15.2 were found to have. Within one
minor version CPython does not move them: C extensions compiled against its headers rely on that. The structures hold
only pointers, longs and ints, so x86-64 and aarch64 lay them out alike.

From 3.13 on the interpreter describes most of its layout itself, at the start of `_PyRuntime` (`_Py_DebugOffsets`): a
row of 64-bit numbers in sections. Which sections and fields there are, and in what order, changes with the minor
version only: Include/internal/pycore_runtime.h in 3.13, pycore_debug_offsets.h after.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

OBJECT_TYPE = 8  # PyObject.ob_type
TYPE_NAME = 24  # PyTypeObject.tp_name
OBJECT_SIZE = 16  # PyVarObject.ob_size
BYTES_DATA = 32  # PyBytesObject.ob_sval
TEXT_HEAD = 24  # bytes of a str from OBJECT_SIZE on that say where its characters are
TEXT_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}  # by the bytes of a character
CHUNK_PREVIOUS, CHUNK_SIZE, CHUNK_HEADER = 0, 8, 24  # _PyStackChunk: the data stack that holds frames since 3.11
CHUNK_FIRST_FRAME = 32  # the root chunk leaves its first slot empty
FIRST_FOREIGN_OWNER = 3
"""From this `owner` on a frame belongs to C code and shows no line: FRAME_OWNED_BY_CSTACK in 3.12 and 3.13,
FRAME_OWNED_BY_INTERPRETER and _BY_CSTACK after."""
OWNED_BY_THREAD = 0
"""A frame with this `owner` lies in the data stack."""


class InstanceDict(Enum):
    """How an instance of a Python class finds its attributes."""

    OFFSET = "tp_dictoffset"  # 3.8 to 3.10: a pointer inside the object
    VALUES_BEFORE = "values and dict before the object"  # 3.11: two pointers in front of it, one of them NULL
    TAGGED = "values or dict before the object"  # 3.12: one pointer in front of it, odd where it leads to values
    INLINE = "values behind the object"  # 3.13 and later: the values follow, the dict's pointer stands in front


@dataclass(frozen=True, slots=True)
class Layout:
    """The offsets of one minor version; None where it has no such field, which is also the default."""

    version: tuple[int, int]
    interpreters_head: int
    interpreter_id: int
    interpreter_next: int
    threads_head: int
    thread_next: int
    thread_id: int
    thread_frame: int  # leads to the current frame: directly, or by way of `cframe_frame`
    frame_code: int
    frame_previous: int
    frame_instruction: int  # f_lasti up to 3.10, a pointer into the bytecode after
    frame_locals: int
    frame_globals: int
    code_file: int
    code_name: int
    code_first_line: int
    code_line_table: int
    code_bytecode: int  # up to 3.10 a pointer to bytes, after that the bytecode itself
    code_locals: int  # co_nlocalsplus, co_nlocals before 3.11
    code_stack: int  # co_stacksize
    code_names: int  # co_localsplusnames, co_varnames before 3.11
    text_header: int  # sizeof(PyASCIIObject)
    wide_text_header: int  # sizeof(PyCompactUnicodeObject)
    instance_dict: InstanceDict
    cached_keys: int  # PyHeapTypeObject.ht_cached_keys
    generator_frame: int
    interpreters_main: int | None = None  # None: the main interpreter is the one with id 0
    runtime_main_thread: int | None = None  # the main thread's pthread id
    threads_main: int | None = None
    thread_native_id: int | None = None
    thread_chunk: int | None = None
    thread_base_frame: int | None = None  # 3.15: the end of each chain
    cframe_frame: int | None = None  # 3.11 and 3.12: _PyCFrame.current_frame
    frame_owner: int | None = None
    frame_top: int | None = None  # where the number of used slots stands
    code_qualified_name: int | None = None
    code_cells: tuple[int, ...] = ()  # the tuples whose lengths come on top of co_nlocals before 3.11
    code_frame_words: tuple[int, ...] = ()  # ints whose sum is the room a frame takes of the data stack, in words
    code_frame_words_more: int = 0  # to be added to them
    tuple_items: int = 24
    values_header: int = 0  # before the first of an object's values
    refcount_bits: int = 64  # of the first word
    tagged_int: bool = False  # lv_tag instead of a signed ob_size
    compact_keys: bool = False  # a dict's keys know their kind, and need no hash where all are str
    generator_frame_inline: bool = False
    frame_top_pointer: bool = False  # a pointer behind the last used slot instead of their number
    tagged_references: bool = False  # borrowed references are marked in a slot's low bits

    @property
    def heap_frames(self) -> bool:
        """Whether each frame is an object of its own, as up to 3.10."""
        return self.thread_chunk is None

    def text_shape(self, address: int, head: bytes) -> tuple[int, int, int] | None:
        """Where the characters of a str lie, how many they are, and the bytes of each.

        From the TEXT_HEAD bytes behind the object's header. None for what is no str, and for one that is kept in the
        form that 3.12 dropped.
        """
        length, _, state = struct.unpack_from("<qqI", head)
        kind, is_compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
        if not is_compact or kind not in TEXT_ENCODINGS or length < 0:
            return None
        return address + (self.text_header if is_ascii else self.wide_text_header), length, kind


_3_8 = Layout(
    version=(3, 8),
    interpreters_head=32,
    interpreters_main=40,
    runtime_main_thread=72,
    interpreter_id=16,
    interpreter_next=0,
    threads_head=8,
    thread_next=8,
    thread_id=176,
    thread_frame=24,
    frame_code=32,
    frame_previous=24,
    frame_instruction=104,
    frame_locals=360,
    frame_globals=48,
    code_file=104,
    code_name=112,
    code_first_line=40,
    code_line_table=120,
    code_bytecode=48,
    code_locals=28,
    code_cells=(88, 80),
    code_stack=32,
    code_names=72,
    text_header=48,
    wide_text_header=72,
    instance_dict=InstanceDict.OFFSET,
    cached_keys=872,
    generator_frame=16,
)
_3_9 = replace(_3_8, version=(3, 9), interpreter_id=24, cached_keys=864)
_3_10 = replace(_3_9, version=(3, 10), frame_instruction=96, frame_locals=352, cached_keys=872)
_3_11 = Layout(
    version=(3, 11),
    interpreters_head=40,
    interpreters_main=48,
    runtime_main_thread=80,
    interpreter_id=48,
    interpreter_next=0,
    threads_head=16,
    thread_next=8,
    thread_id=152,
    thread_native_id=160,
    thread_frame=56,
    cframe_frame=8,
    thread_chunk=296,
    frame_code=32,
    frame_previous=48,
    frame_instruction=56,
    frame_owner=69,
    frame_locals=72,
    frame_globals=8,
    frame_top=64,
    code_file=112,
    code_name=120,
    code_qualified_name=128,
    code_first_line=72,
    code_line_table=136,
    code_bytecode=184,
    code_frame_words=(68, 76),  # co_stacksize, co_nlocalsplus
    code_frame_words_more=9,  # FRAME_SPECIALS_SIZE
    code_locals=76,
    code_stack=68,
    code_names=96,
    text_header=48,
    wide_text_header=72,
    instance_dict=InstanceDict.VALUES_BEFORE,
    cached_keys=872,
    compact_keys=True,
    generator_frame=80,
    generator_frame_inline=True,
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
    frame_globals=24,
    code_first_line=68,
    code_frame_words=(76,),  # co_framesize
    code_frame_words_more=0,
    code_bytecode=192,
    code_locals=72,
    code_stack=64,
    text_header=40,
    wide_text_header=56,
    instance_dict=InstanceDict.TAGGED,
    cached_keys=880,
    tagged_int=True,
    refcount_bits=32,
    generator_frame=72,
)
_3_13 = replace(
    _3_12,
    version=(3, 13),
    interpreters_main=None,
    runtime_main_thread=None,
    cframe_frame=None,
    instance_dict=InstanceDict.INLINE,
    values_header=8,
)
"""From here on a row holds what the interpreter does not describe; `layout_from` overwrites the rest."""
_3_14 = replace(_3_13, version=(3, 14), tuple_items=32, frame_locals=80, frame_top_pointer=True, tagged_references=True)
_3_15 = replace(_3_14, version=(3, 15), cached_keys=888)
TABLES = {table.version: table for table in (_3_8, _3_9, _3_10, _3_11, _3_12, _3_13, _3_14, _3_15)}
OLDEST, FIRST_SELF_DESCRIBING, NEWEST = min(TABLES), (3, 13), max(TABLES)

COOKIE = b"xdebugpy"
_RELEASE_CANDIDATE = 0xC  # the level in PY_VERSION_HEX from which on the layout stands still

_Sections = dict[str, str]
"""The fields of each section, in their order."""

_SECTIONS_3_13: _Sections = {
    "runtime": "size finalizing interpreters_head",
    "interpreter": "size id next threads_head gc imports_modules sysdict builtins ceval_gil gil_state gil_enabled "
    "gil_locked gil_holder",
    "thread": "size prev next interp current_frame thread_id native_thread_id datastack_chunk status",
    "frame": "size previous executable instr_ptr localsplus owner",
    "code": "size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds "
    "co_code_adaptive",
    "object": "size ob_type",
    "type": "size tp_name tp_repr tp_flags",
    "tuple": "size ob_item ob_size",
    "list": "size ob_item ob_size",
    "dict": "size ma_keys ma_values",
    "float": "size ob_fval",
    "int": "size lv_tag ob_digit",
    "bytes": "size ob_size ob_sval",
    "text": "size state length asciiobject_size",
}


def _changed(sections: _Sections, changed: _Sections, inserted: Mapping[str, tuple[str, str]]) -> _Sections:
    """The sections of the next version; the `inserted` ones each by the one it stands behind."""
    found: _Sections = {}
    for name, fields in sections.items():
        found[name] = changed.get(name, fields)
        if name in inserted:
            found.update((inserted[name],))
    return found


_SECTIONS_3_14 = _changed(
    _SECTIONS_3_13,
    {
        "interpreter": "size id next threads_head threads_main gc imports_modules sysdict builtins ceval_gil gil_state "
        "gil_enabled gil_locked gil_holder code_object_generation tlbc_generation",
        "frame": f"{_SECTIONS_3_13['frame']} stackpointer tlbc_index",
        "code": f"{_SECTIONS_3_13['code']} co_tlbc",
    },
    {"list": ("set", "size used table mask")},
) | {
    "gc": "size collecting",
    "generator": "size gi_name gi_iframe gi_frame_state",
    "llist_node": "next prev",
    "debugger": "eval_breaker remote_debugger_support remote_debugging_enabled debugger_pending_call "
    "debugger_script_path debugger_script_path_size",
}
_SECTIONS_3_15 = _changed(
    _SECTIONS_3_14,
    {
        "thread": "size prev next interp current_frame base_frame last_profiled_frame last_profiled_frame_seq "
        "thread_id native_thread_id datastack_chunk status holds_gil gil_requested current_exception exc_state",
        "type": "size tp_name tp_repr tp_flags tp_basicsize tp_dictoffset",
        "text": "size state length asciiobject_size compactunicodeobject_size",
        "gc": "size collecting frame generation_stats_size generation_stats",
    },
    {"thread": ("error", "exc_value"), "type": ("heap_type", "size ht_cached_keys")},
)
_SECTIONS = {(3, 13): _SECTIONS_3_13, (3, 14): _SECTIONS_3_14, (3, 15): _SECTIONS_3_15}
SIZE = max(24 + 8 * sum(len(fields.split()) for fields in sections.values()) for sections in _SECTIONS.values())
"""Bytes from the start of `_PyRuntime` that hold all that is used."""


class OffsetsError(Exception):
    """The interpreter's description of itself cannot be used."""


class PrereleaseError(OffsetsError):
    """It is of an alpha or beta release, whose layout may differ from the final one's."""


class FreeThreadedError(OffsetsError):
    """It is of a build without GIL."""


class UnknownMinorError(OffsetsError):
    """It is of a minor version that is not known yet."""


def version_of(raw: bytes) -> tuple[int, int] | None:
    """The version the interpreter gives itself, None where there is no such description."""
    if raw[:8] != COOKIE:
        return None
    value = int.from_bytes(raw[8:16], "little")
    return value >> 24, value >> 16 & 0xFF


def layout_from(raw: bytes) -> Layout:
    """The layout that the first `SIZE` bytes of a runtime describe.

    Raises:
        OffsetsError: They describe none that is known; the kind says why.
    """
    version = version_of(raw)
    if version is None:
        raise OffsetsError("it does not start with a description of itself")
    if version not in _SECTIONS:
        raise UnknownMinorError(f"{version[0]}.{version[1]}")
    hex_version, free_threaded = struct.unpack_from("<QQ", raw, 8)
    if hex_version >> 4 & 0xF < _RELEASE_CANDIDATE:
        raise PrereleaseError(f"{version[0]}.{version[1]}")
    if free_threaded:
        raise FreeThreadedError(f"{version[0]}.{version[1]}")
    fields = _fields(raw, _SECTIONS[version])
    _check(fields)
    thread, frame, code = fields["thread"], fields["frame"], fields["code"]
    text_header = fields["text"]["asciiobject_size"]
    return replace(
        TABLES[version],
        interpreters_head=fields["runtime"]["interpreters_head"],
        interpreter_id=fields["interpreter"]["id"],
        interpreter_next=fields["interpreter"]["next"],
        threads_head=fields["interpreter"]["threads_head"],
        threads_main=fields["interpreter"].get("threads_main"),
        thread_next=thread["next"],
        thread_id=thread["thread_id"],
        thread_native_id=thread["native_thread_id"],
        thread_frame=thread["current_frame"],
        thread_chunk=thread["datastack_chunk"],
        thread_base_frame=thread.get("base_frame"),
        frame_code=frame["executable"],
        frame_previous=frame["previous"],
        frame_instruction=frame["instr_ptr"],
        frame_owner=frame["owner"],
        frame_locals=frame["localsplus"],
        code_file=code["filename"],
        code_name=code["name"],
        code_qualified_name=code["qualname"],
        code_first_line=code["firstlineno"],
        code_line_table=code["linetable"],
        code_frame_words=(code["firstlineno"] + 8,),  # co_framesize, in all of 3.12 to 3.15
        code_bytecode=code["co_code_adaptive"],
        text_header=text_header,
        wide_text_header=text_header + 16,  # utf8_length and utf8
    )


@dataclass(frozen=True, slots=True)
class RemoteControl:
    """Where an interpreter takes the name of a script to run (PEP 768); all but the first are of a thread's state."""

    enabled: int  # in the interpreter's state, an int: 1 where it was not switched off
    eval_breaker: int
    pending: int
    path: int
    path_bytes: int


def remote_control_from(raw: bytes) -> RemoteControl:
    """The offsets of PEP 768 that the first `SIZE` bytes of a runtime describe, which `layout_from` has accepted.

    Raises:
        OffsetsError: They describe none, or none that can be right.
    """
    sections = _SECTIONS[version_of(raw) or NEWEST]
    if "debugger" not in sections:
        raise OffsetsError("it takes no scripts")
    fields = _fields(raw, sections)
    debugger, thread_bytes = fields["debugger"], fields["thread"]["size"]
    support = debugger["remote_debugger_support"]
    found = RemoteControl(
        debugger["remote_debugging_enabled"],
        debugger["eval_breaker"],
        support + debugger["debugger_pending_call"],
        support + debugger["debugger_script_path"],
        debugger["debugger_script_path_size"],
    )
    if (
        not 0 < found.enabled <= fields["interpreter"]["size"] - 4
        or not 0 < found.eval_breaker <= thread_bytes - 8
        or not support <= found.pending <= found.path - 4
        or not 0 < found.path_bytes <= thread_bytes - found.path
    ):
        raise OffsetsError("its place for scripts cannot be right")
    return found


def _fields(raw: bytes, sections: _Sections) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    position = 24
    for name, fields in sections.items():
        names = fields.split()
        found[name] = dict(zip(names, struct.unpack_from(f"<{len(names)}Q", raw, position), strict=True))
        position += 8 * len(names)
    return found


def _check(fields: Mapping[str, Mapping[str, int]]) -> None:
    """Whether the numbers can be offsets at all.

    Raises:
        OffsetsError: They cannot: the fields stand in another order than this minor version's.
    """
    for name, largest in _LARGEST.items():
        section = fields[name]
        size = section["size"]
        if not 0 < size <= largest:
            raise OffsetsError(f"{name} would have {size} bytes")
        for field, offset in section.items():
            if field in _OFFSETS[name] and offset >= size:
                raise OffsetsError(f"{name}.{field} would lie behind its end")
    fixed = (fields["object"]["ob_type"], fields["type"]["tp_name"], fields["bytes"]["ob_sval"])
    if fixed != (OBJECT_TYPE, TYPE_NAME, BYTES_DATA):
        raise OffsetsError("objects are laid out in an unknown way")
    frame = fields["frame"]
    ways = [frame[name] for name in ("executable", "previous", "instr_ptr", "owner")]
    if any(second - first < 8 for first, second in pairwise(ways)):
        raise OffsetsError("frames are laid out in an unknown way")
    if not _TEXT_STATE < fields["text"]["asciiobject_size"] <= fields["text"]["size"]:
        raise OffsetsError("strings are laid out in an unknown way")


_TEXT_STATE = 32
_LARGEST = {
    "runtime": 1 << 24,
    "interpreter": 1 << 24,
    "thread": 1 << 16,
    "frame": 1 << 10,
    "code": 1 << 12,
    "object": 1 << 8,
    "type": 1 << 12,
    "bytes": 1 << 8,
    "text": 1 << 8,
}
"""Bytes above which a structure is none of CPython's: frames have 80 to 96, thread states up to 6 000 (3.15)."""
_OFFSETS = {
    "runtime": {"finalizing", "interpreters_head"},
    "interpreter": {"id", "next", "threads_head", "threads_main"},
    "thread": {"next", "current_frame", "thread_id", "native_thread_id", "datastack_chunk", "base_frame"},
    "frame": {"previous", "executable", "instr_ptr", "localsplus", "owner"},
    "code": {"filename", "name", "qualname", "linetable", "firstlineno", "co_code_adaptive"},
    "object": {"ob_type"},
    "type": {"tp_name"},
    "bytes": {"ob_sval"},
    "text": {"state", "length"},
}
