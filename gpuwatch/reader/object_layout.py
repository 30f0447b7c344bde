"""Where the fields of CPython's objects lie, one table per minor version, for 64-bit builds with a GIL.

The numbers are offsetof() on the headers of 3.8 to 3.13, and what 3.14.10 and 3.15.2 were found to have. Within one
minor version CPython does not move them: C extensions compiled against its headers rely on that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class InstanceDict(Enum):
    """How an instance of a Python class finds its attributes."""

    OFFSET = "tp_dictoffset"  # 3.8 to 3.10: a pointer inside the object
    VALUES_BEFORE = "values and dict before the object"  # 3.11: two pointers in front of it, one of them NULL
    TAGGED = "values or dict before the object"  # 3.12: one pointer in front of it, odd where it leads to values
    INLINE = "values behind the object"  # 3.13 and later: the values follow, the dict's pointer stands in front


@dataclass(frozen=True, slots=True)
class ObjectLayout:
    """The offsets of one minor version. What no version moved yet is a constant of the module that reads it."""

    version: tuple[int, int]
    instance_dict: InstanceDict
    cached_keys: int  # PyHeapTypeObject.ht_cached_keys
    tagged_int: bool  # lv_tag instead of a signed ob_size
    refcount_bits: int  # of the first word
    text_header: int  # sizeof(PyASCIIObject)
    wide_text_header: int  # sizeof(PyCompactUnicodeObject)
    compact_keys: bool  # a dict's keys know their kind, and need no hash where all are str
    values_header: int  # before the first of an object's values
    code_locals: int  # co_nlocalsplus, co_nlocals before 3.11
    code_cells: tuple[int, ...]  # the tuples whose lengths come on top of co_nlocals before 3.11
    code_stack: int  # co_stacksize
    code_names: int  # co_localsplusnames, co_varnames before 3.11
    generator_frame: int
    generator_frame_inline: bool
    frame_code: int
    frame_locals: int
    frame_globals: int
    frame_top: int | None  # where the number of used slots stands, None where the version tells it less plainly
    frame_top_pointer: bool = False  # 3.14 and later: a pointer behind the last used slot instead
    tuple_items: int = 24
    tagged_references: bool = False  # 3.14 and later mark borrowed references in a slot's low bits


_PYTHON_3_8 = ObjectLayout(
    version=(3, 8),
    instance_dict=InstanceDict.OFFSET,
    cached_keys=872,
    tagged_int=False,
    refcount_bits=64,
    text_header=48,
    wide_text_header=72,
    compact_keys=False,
    values_header=0,
    code_locals=28,
    code_cells=(88, 80),
    code_stack=32,
    code_names=72,
    generator_frame=16,
    generator_frame_inline=False,
    frame_code=32,
    frame_locals=360,
    frame_globals=48,
    frame_top=None,
)
_PYTHON_3_9 = replace(_PYTHON_3_8, version=(3, 9), cached_keys=864)
_PYTHON_3_10 = replace(_PYTHON_3_8, version=(3, 10), frame_locals=352)
_PYTHON_3_11 = replace(
    _PYTHON_3_8,
    version=(3, 11),
    instance_dict=InstanceDict.VALUES_BEFORE,
    compact_keys=True,
    code_locals=76,
    code_cells=(),
    code_stack=68,
    code_names=96,
    generator_frame=80,
    generator_frame_inline=True,
    frame_locals=72,
    frame_globals=8,
    frame_top=64,
)
_PYTHON_3_12 = replace(
    _PYTHON_3_11,
    version=(3, 12),
    instance_dict=InstanceDict.TAGGED,
    cached_keys=880,
    tagged_int=True,
    refcount_bits=32,
    text_header=40,
    wide_text_header=56,
    code_locals=72,
    code_stack=64,
    generator_frame=72,
    frame_code=0,
    frame_globals=24,
)
_PYTHON_3_13 = replace(
    _PYTHON_3_12,
    version=(3, 13),
    instance_dict=InstanceDict.INLINE,
    values_header=8,
)
_PYTHON_3_14 = replace(
    _PYTHON_3_13,
    version=(3, 14),
    tuple_items=32,
    frame_locals=80,
    frame_top_pointer=True,
    tagged_references=True,
)
_PYTHON_3_15 = replace(_PYTHON_3_14, version=(3, 15), cached_keys=888)
_LAYOUTS = {
    layout.version: layout
    for layout in (
        _PYTHON_3_8,
        _PYTHON_3_9,
        _PYTHON_3_10,
        _PYTHON_3_11,
        _PYTHON_3_12,
        _PYTHON_3_13,
        _PYTHON_3_14,
        _PYTHON_3_15,
    )
}


def object_layout(version: tuple[int, int]) -> ObjectLayout | None:
    """The layout of a minor version, None where it is not known."""
    return _LAYOUTS.get(version)
