"""`_Py_DebugOffsets`, with which CPython 3.13 and later describe their own layout at the start of `_PyRuntime`.

It is a row of 64-bit numbers in sections. Which sections and fields there are, and in what order, changes with the
minor version only: Include/internal/pycore_runtime.h in 3.13, pycore_debug_offsets.h after.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from gpuwatch.reader.layout import BYTES_DATA, OBJECT_TYPE, TYPE_NAME, Layout

COOKIE = b"xdebugpy"
_RELEASE_CANDIDATE = 0xC  # the level in PY_VERSION_HEX from which on the layout stands still

_Sections = tuple[tuple[str, str], ...]

_3_13: _Sections = (
    ("runtime", "size finalizing interpreters_head"),
    (
        "interpreter",
        "size id next threads_head gc imports_modules sysdict builtins ceval_gil gil_state gil_enabled gil_locked "
        "gil_holder",
    ),
    ("thread", "size prev next interp current_frame thread_id native_thread_id datastack_chunk status"),
    ("frame", "size previous executable instr_ptr localsplus owner"),
    (
        "code",
        "size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds co_code_adaptive",
    ),
    ("object", "size ob_type"),
    ("type", "size tp_name tp_repr tp_flags"),
    ("tuple", "size ob_item ob_size"),
    ("list", "size ob_item ob_size"),
    ("dict", "size ma_keys ma_values"),
    ("float", "size ob_fval"),
    ("int", "size lv_tag ob_digit"),
    ("bytes", "size ob_size ob_sval"),
    ("text", "size state length asciiobject_size"),
)

_3_14: _Sections = (
    ("runtime", "size finalizing interpreters_head"),
    (
        "interpreter",
        "size id next threads_head threads_main gc imports_modules sysdict builtins ceval_gil gil_state gil_enabled "
        "gil_locked gil_holder code_object_generation tlbc_generation",
    ),
    ("thread", "size prev next interp current_frame thread_id native_thread_id datastack_chunk status"),
    ("frame", "size previous executable instr_ptr localsplus owner stackpointer tlbc_index"),
    (
        "code",
        "size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds co_code_adaptive "
        "co_tlbc",
    ),
    ("object", "size ob_type"),
    ("type", "size tp_name tp_repr tp_flags"),
    ("tuple", "size ob_item ob_size"),
    ("list", "size ob_item ob_size"),
    ("set", "size used table mask"),
    ("dict", "size ma_keys ma_values"),
    ("float", "size ob_fval"),
    ("int", "size lv_tag ob_digit"),
    ("bytes", "size ob_size ob_sval"),
    ("text", "size state length asciiobject_size"),
    ("gc", "size collecting"),
    ("generator", "size gi_name gi_iframe gi_frame_state"),
    ("llist_node", "next prev"),
    (
        "debugger",
        "eval_breaker remote_debugger_support remote_debugging_enabled debugger_pending_call debugger_script_path "
        "debugger_script_path_size",
    ),
)

_CHANGED_IN_3_15 = {
    "thread": "size prev next interp current_frame base_frame last_profiled_frame last_profiled_frame_seq thread_id "
    "native_thread_id datastack_chunk status holds_gil gil_requested current_exception exc_state",
    "type": "size tp_name tp_repr tp_flags tp_basicsize tp_dictoffset",
    "text": "size state length asciiobject_size compactunicodeobject_size",
    "gc": "size collecting frame generation_stats_size generation_stats",
}
_NEW_IN_3_15 = {"thread": ("error", "exc_value"), "type": ("heap_type", "size ht_cached_keys")}
"""Sections, each by the one it stands behind."""


def _changed(sections: _Sections) -> _Sections:
    found: list[tuple[str, str]] = []
    for name, fields in sections:
        found.append((name, _CHANGED_IN_3_15.get(name, fields)))
        if name in _NEW_IN_3_15:
            found.append(_NEW_IN_3_15[name])
    return tuple(found)


_SECTIONS = {(3, 13): _3_13, (3, 14): _3_14, (3, 15): _changed(_3_14)}
NEWEST = max(_SECTIONS)
SIZE = max(24 + 8 * sum(len(fields.split()) for _, fields in sections) for sections in _SECTIONS.values())
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
    return Layout(
        version=version,
        interpreters_head=fields["runtime"]["interpreters_head"],
        interpreters_main=None,
        runtime_main_thread=None,
        interpreter_id=fields["interpreter"]["id"],
        interpreter_next=fields["interpreter"]["next"],
        threads_head=fields["interpreter"]["threads_head"],
        threads_main=fields["interpreter"].get("threads_main"),
        thread_next=thread["next"],
        thread_id=thread["thread_id"],
        thread_native_id=thread["native_thread_id"],
        thread_frame=thread["current_frame"],
        cframe_frame=None,
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
        code_frame_words_more=0,
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
    if "debugger" not in dict(sections):
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
    for name, fields in sections:
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
