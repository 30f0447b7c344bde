"""Packets as docs/protocol.md lays them down."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.hook import wire
from gpuwatch.sources.hook_link.source import MalformedPacketError, parse_packet

PROTOCOL = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")


def test_formats_and_numbers_are_those_of_the_protocol_page() -> None:
    assert f"`{wire.HEADER.format}`" in PROTOCOL
    assert f"{wire.HEADER.size} bytes" in PROTOCOL
    assert f"### Record, {wire.RECORD.size} bytes, `{wire.RECORD.format}`" in PROTOCOL
    packets = dict(re.findall(r"^\| (\d+) \| ([A-Z]+) \|", PROTOCOL, re.MULTILINE))
    records = dict(re.findall(r"^\| (\d+) \| ([A-Z_]+)[: |]", PROTOCOL.partition("### Record")[2], re.MULTILINE))
    assert {name: getattr(wire, name) for name in packets.values()} == {n: int(k) for k, n in packets.items()}
    assert len(records) == 16
    for number, name in records.items():
        assert getattr(wire, name) == int(number)


def test_records_come_out_as_they_went_in() -> None:
    sent = [(1, 3, 65535, 2**32 - 1, 2**64 - 1, 5, -(2**63), 2**63 - 1), (15, 0, 0, 1, 2, 3, 4, 5)]
    body = b"".join(wire.RECORD.pack(*record) for record in sent)
    packet = parse_packet(wire.HEADER.pack(b"GW", 1, wire.RECORDS, 2, 99) + body)
    assert list(packet.records()) == sent
    assert (packet.kind, packet.dropped) == (wire.RECORDS, 99)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "shorter than its header"),
        (b"GW\x01\x02", "shorter than its header"),
        (wire.HEADER.pack(b"XX", 1, 2, 0, 0), "magic"),
        (wire.HEADER.pack(b"GW", 7, 2, 0, 0), "version 7"),
    ],
)
def test_what_no_trainer_sends_is_refused_with_its_reason(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedPacketError, match=reason):
        parse_packet(data)


@pytest.mark.parametrize("count", [0, 1, 3, 2**32 - 1])
def test_announced_count_must_be_what_came(count: int) -> None:
    packet = parse_packet(wire.HEADER.pack(b"GW", 1, wire.RECORDS, count, 0) + bytes(80))
    with pytest.raises(MalformedPacketError, match="announced"):
        packet.records()


def test_announced_length_of_json_must_be_what_came() -> None:
    packet = parse_packet(wire.HEADER.pack(b"GW", 1, wire.HELLO, 9, 0) + b"{}")
    with pytest.raises(MalformedPacketError, match="9 bytes announced, 2 came"):
        packet.json()


@given(st.binary(max_size=200))
def test_any_bytes_give_a_packet_or_a_reason(data: bytes) -> None:
    try:
        packet = parse_packet(data)
        list(packet.records())
    except MalformedPacketError as error:
        assert str(error)
