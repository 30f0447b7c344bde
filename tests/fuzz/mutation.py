"""Inputs of a fuzz run: each follows from the seed and its number alone, so that any one can be made again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

_MAX_BYTES = 1 << 20
_INTERESTING = (0, 1, 2, 7, 16, 64, 127, 128, 255, 256, 1024, 4096, 32767, 32768, 65535, 65536, 2**31 - 1, 2**31)
_WIDE = (2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_TOKENS = (
    b"\0",
    b"\xff",
    b"\n",
    b"\r",
    b"\x0c",
    b"\x85",
    b"\x1b[",
    b"\xe2\x80\xae",
    b"NaN",
    b"1e999",
    b"-1",
    b"[" * 500,
    b'{"a":' * 99,
)


class Target(Protocol):
    """A module of this folder, besides its optional `mutate`."""

    @staticmethod
    def seeds() -> list[bytes]:
        """Valid inputs."""

    @staticmethod
    def run(data: bytes) -> None:
        """Feeds one input to the product; raises only what is a fault."""


def make_input(target: Target, corpus: Sequence[bytes], seed: int, number: int) -> bytes:
    """Input `number` of a run; the first ones are the corpus itself."""
    if number < len(corpus):
        return corpus[number]
    rng = random.Random(f"{seed}/{number}")
    data = rng.choice(corpus)
    if len(corpus) > 1 and rng.random() < 0.1:
        data = _splice(data, rng.choice(corpus), rng)
    mutate: Callable[[bytes, random.Random], bytes] | None = getattr(target, "mutate", None)
    if mutate is not None and rng.random() < 0.6:
        data = mutate(data, rng)
        if rng.random() < 0.7:
            return data
    for _ in range(1 << rng.randrange(5)):
        data = rng.choice(_MUTATIONS)(data, rng)[:_MAX_BYTES]
    return data


def _place(data: bytes | bytearray, rng: random.Random) -> int:
    return rng.randrange(len(data) + 1)


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    begin = _place(data, rng)
    return begin, min(len(data), begin + (1 << rng.randrange(13)))


def _flip_bits(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _overwrite_bytes(data: bytes, rng: random.Random) -> bytes:
    begin, end = _span(data, rng)
    filler = rng.randbytes(end - begin) if rng.random() < 0.5 else bytes([rng.choice((0, 255, 65))]) * (end - begin)
    return data[:begin] + filler + data[end:]


def _write_integer(data: bytes, rng: random.Random) -> bytes:
    """An interesting or a slightly changed integer of 1 to 8 bytes in either byte order."""
    size, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    at = rng.randrange(max(1, len(data) - size + 1))
    old = int.from_bytes(data[at : at + size], order)
    length = len(data) - at
    value = rng.choice((*_INTERESTING, *_WIDE, length, len(data), old + 1, old - 1, old * 2, old ^ 0x80, -old))
    return data[:at] + (value % (1 << 8 * size)).to_bytes(size, order) + data[at + size :]


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: _place(data, rng)]


def _delete(data: bytes, rng: random.Random) -> bytes:
    begin, end = _span(data, rng)
    return data[:begin] + data[end:]


def _duplicate(data: bytes, rng: random.Random) -> bytes:
    begin, end = _span(data, rng)
    return data[:end] + data[begin:end] * (1 << rng.randrange(6)) + data[end:]


def _move(data: bytes, rng: random.Random) -> bytes:
    begin, end = _span(data, rng)
    at = _place(data, rng)
    return data[:at] + data[begin:end] + data[at:]


def _insert_token(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.choice(_TOKENS) + data[at:]


def _change_digits(data: bytes, rng: random.Random) -> bytes:
    """A number in text becomes another one."""
    places = [at for at, byte in enumerate(data[:65536]) if 48 <= byte <= 57]
    if not places:
        return _flip_bits(data, rng)
    at = rng.choice(places)
    value = rng.choice((*_INTERESTING, *_WIDE, 10**30, -1, 0.5, float("nan"), float("inf"), 1e308))
    return data[:at] + str(value).encode() + data[at + 1 :]


def _splice(data: bytes, other: bytes, rng: random.Random) -> bytes:
    return data[: _place(data, rng)] + other[_place(other, rng) :]


_MUTATIONS = (
    _flip_bits,
    _overwrite_bytes,
    _write_integer,
    _write_integer,
    _truncate,
    _delete,
    _duplicate,
    _move,
    _insert_token,
    _change_digits,
)
