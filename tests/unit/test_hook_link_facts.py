"""Facts that are more than one packet can hold."""

from __future__ import annotations

import json
import socket
from typing import Any

from gpuwatch.hook import wire
from gpuwatch.hook.session import Link

COMMAND = ["x" * 500] * 64
LOADERS = [{"loader": number, "file": "y" * 900} for number in range(32)]
PLACES = [{"file": "z" * 900, "line": number} for number in range(64)]


def packets(connection: socket.socket) -> list[tuple[int, dict[str, Any]]]:
    found: list[tuple[int, dict[str, Any]]] = []
    connection.setblocking(False)
    while True:
        try:
            packet = connection.recv(wire.PACKET_LIMIT)
        except BlockingIOError:
            return found
        found.append((packet[3], json.loads(packet[wire.HEADER.size :])))


def test_what_a_hello_leaves_out_follows() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    facts = {"pid": 7, "command": COMMAND, "loaders": LOADERS, "save_places": PLACES}
    with ours, theirs:
        link = Link(ours, 1, 0, 0)
        link.greet(wire.HELLO, facts)
        assert packets(theirs) == [(wire.HELLO, {"pid": 7})]
        assert link.send_facts(facts)
        follow = packets(theirs)
        assert {kind for kind, _ in follow} == {wire.FACTS}
        assert {key: value for _, part in follow for key, value in part.items()} == {
            key: value for key, value in facts.items() if key != "pid"
        }
        assert link.send_facts(facts)
        assert not packets(theirs), "what was told is not told again"


def test_what_no_packet_can_hold_keeps_nothing_else_back() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        link = Link(ours, 1, 0, 0)
        link.greet(wire.HELLO, {"pid": 7})
        assert link.send_facts({"pid": 7, "phases": ["p" * wire.PACKET_LIMIT], "torch": "2.13"})
        assert packets(theirs) == [(wire.HELLO, {"pid": 7}), (wire.FACTS, {"torch": "2.13"})]
