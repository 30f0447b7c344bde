"""Decoding of the hook link's packets (docs/protocol.md).

Records stay plain tuples: a run of 1 000 steps a second sends some 4 000 of them, and a dataclass per record
would cost more than all of its derivation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MAX_PACKET_BYTES: Final = 64 * 1024
MAGIC: Final = b"GW"
VERSION: Final = 1

HEADER: Final = struct.Struct("<2sBBIQ")
RECORD: Final = struct.Struct("<BBHIQQqq")

HELLO: Final = 1
RECORDS: Final = 2
FACTS: Final = 3
WORKER: Final = 4
BYE: Final = 5

NEXT: Final = 1
ITER: Final = 2
BACKWARD: Final = 3
OPTIMIZER: Final = 4
SAVE: Final = 5
GC: Final = 6
GAP: Final = 7
FETCH: Final = 8
USER_STEP: Final = 9
USER_PHASE: Final = 10
COPY: Final = 11
WAIT_CPU: Final = 12
MEMORY: Final = 13
RETRIES: Final = 14
COMPILE: Final = 15
BEGUN: Final = 16

STOP: Final = 1
GRAD: Final = 2
RAISED: Final = 4

RawRecord = tuple[int, int, int, int, int, int, int, int]
"""kind, flags, id, thread, start_ns, end_ns, a, b."""


class MalformedPacketError(ValueError):
    """A packet that no speaker of the protocol sends; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet without its header. `dropped` is the sender's count of records lost so far."""

    kind: int
    count: int
    dropped: int
    body: memoryview

    def records(self) -> Iterable[RawRecord]:
        """The records of a RECORDS packet, decoded as they are asked for."""
        if self.count * RECORD.size != len(self.body):
            raise MalformedPacketError(f"{self.count} records announced, {len(self.body)} bytes came")
        return RECORD.iter_unpack(self.body)

    def json(self) -> bytes:
        """The text of a packet that carries JSON."""
        if self.count != len(self.body):
            raise MalformedPacketError(f"{self.count} bytes announced, {len(self.body)} came")
        return bytes(self.body)


def parse(data: bytes | memoryview) -> Packet:
    """Splits a packet from its header.

    Raises:
        MalformedPacketError: too short, wrong magic or wrong version.
    """
    if len(data) < HEADER.size:
        raise MalformedPacketError(f"a packet of {len(data)} bytes is shorter than its header")
    magic, version, kind, count, dropped = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise MalformedPacketError("wrong magic")
    if version != VERSION:
        raise MalformedPacketError(f"protocol version {version}, this monitor speaks {VERSION}")
    return Packet(kind, count, dropped, memoryview(data)[HEADER.size :])
