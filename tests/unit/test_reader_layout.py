"""The layout that CPython 3.13 and later describe themselves."""

from __future__ import annotations

import struct

import pytest

from gpuwatch.reader.layout import (
    SIZE,
    FreeThreadedError,
    OffsetsError,
    PrereleaseError,
    UnknownMinorError,
    layout_from,
    version_of,
)

FINAL_3_13 = 0x030D00F0


def described(version: int = FINAL_3_13, free_threaded: int = 0, **changed: int) -> bytes:
    """The description that 3.13.0 gives of itself on x86-64, in the fields that are used."""
    values = {
        "runtime": [1000, 624, 632],
        "interpreter": [9000, 7272, 7264, 7344, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "thread": [320, 0, 8, 16, 72, 152, 160, 232, 40],
        "frame": [80, 8, 0, 56, 72, 70],
        "code": [208, 112, 120, 128, 136, 68, 52, 96, 104, 200],
        "object": [16, 8],
        "type": [416, 24, 88, 168],
        "others": [24, 24, 16, 40, 24, 16, 48, 32, 40, 24, 16, 32, 16, 24],
        "bytes": [40, 16, 32],
        "text": [64, 32, 16, 40],
    }
    for name, value in changed.items():
        section, _, index = name.rpartition("_")
        values[section][int(index)] = value
    numbers = [version, free_threaded, *(number for section in values.values() for number in section)]
    return (b"xdebugpy" + struct.pack(f"<{len(numbers)}Q", *numbers)).ljust(SIZE, b"\0")


def test_layout_is_taken_from_the_description() -> None:
    layout = layout_from(described())
    assert layout.version == (3, 13)
    assert (layout.interpreters_head, layout.threads_head, layout.thread_chunk) == (632, 7344, 232)
    assert (layout.frame_code, layout.frame_previous, layout.frame_instruction) == (0, 8, 56)
    assert (layout.frame_owner, layout.frame_locals) == (70, 72)
    assert (layout.code_file, layout.code_qualified_name, layout.code_bytecode) == (112, 128, 200)
    assert (layout.text_header, layout.wide_text_header) == (40, 56)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (described(free_threaded=1), FreeThreadedError),
        (described(0x031000F0), UnknownMinorError),
        (described(0x030C01F0), UnknownMinorError),
        (described(0x030D00B4), PrereleaseError),
        (described(frame_3=500), OffsetsError),
        (described(frame_2=16), OffsetsError),
        (described(object_1=24), OffsetsError),
        (described(thread_0=0), OffsetsError),
        (bytes(SIZE), OffsetsError),
    ],
    ids=["no GIL", "newer", "3.12 has none", "beta", "outside", "order", "debug objects", "no size", "zeros"],
)
def test_description_that_cannot_be_trusted_is_refused(raw: bytes, kind: type[OffsetsError]) -> None:
    with pytest.raises(kind):
        layout_from(raw)


def test_release_candidate_has_the_final_layout() -> None:
    assert layout_from(described(0x030D00C2)).version == (3, 13)


def test_version_is_read_from_the_description_alone() -> None:
    assert version_of(described(0x030F02F0)) == (3, 15)
    assert version_of(b"no cookie, no version....") is None
