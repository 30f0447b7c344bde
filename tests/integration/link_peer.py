"""A trainer in a few lines that speaks the link's protocol, well or badly; also a script.

As a script: `link_peer.py FOLDER ENDING`, which says hello, sends five steps, prints "sent" and ends as told: "bye",
"hang" (until killed), "close" (the link only) or "worker" (as a DataLoader worker of its own parent).
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HEADER = struct.Struct("<2sBBIQ")
RECORD = struct.Struct("<BBHIQQqq")
HELLO, RECORDS, FACTS, WORKER, BYE = range(1, 6)
MS = 1_000_000


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def packet(kind: int, body: bytes, count: int | None = None, dropped: int = 0) -> bytes:
    return HEADER.pack(b"GW", 1, kind, len(body) if count is None else count, dropped) + body


def steps(count: int, end_ns: int, iterator: int = 0) -> list[tuple[int, ...]]:
    """Plain steps of 10 ms with 4 ms wait, the last of which ends at `end_ns`."""
    records = []
    for index in range(count):
        begun = end_ns - (count - index) * 10 * MS
        records.append((1, 2, 0, 7, begun, begun + 4 * MS, iterator, 8))
        records.append((3, 0, 0, 7, begun + 5 * MS, begun + 8 * MS, 0, 0))
        records.append((4, 0, 0, 7, begun + 8 * MS, begun + 10 * MS, 0, 0))
    return records


class Peer:
    """One connection to the first monitor in a folder."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(next(folder.glob("monitor-*.sock"))))

    def send(self, kind: int, content: dict[str, Any], **header: int) -> None:
        self.socket.send(packet(kind, json.dumps(content).encode(), **header))

    def hello(self, **facts: Any) -> None:
        pid = os.getpid()
        own = {"pid": pid, "start_ticks": start_ticks(pid), "command": ["python", "train.py"]}
        self.send(HELLO, {**own, **facts})

    def records(self, records: Iterable[tuple[int, ...]], dropped: int = 0) -> None:
        packed = [RECORD.pack(*record) for record in records]
        self.socket.send(packet(RECORDS, b"".join(packed), len(packed), dropped))

    def worker(self, parent: int) -> None:
        own = {"pid": os.getpid(), "worker": 3, "loader": 1}
        self.send(WORKER, {**own, "parent": parent, "parent_start_ticks": start_ticks(parent)})

    def bye(self) -> None:
        self.send(BYE, {"reason": "exit"})
        self.close()

    def close(self) -> None:
        self.socket.close()


def main(folder: str, ending: str) -> None:
    peer = Peer(Path(folder))
    if ending == "worker":
        peer.worker(os.getppid())
        now = time.monotonic_ns()
        peer.records([(8, 0, 1, 7, now - 30 * MS, now - 10 * MS, 3, 15 * MS)])
    else:
        peer.hello()
        peer.records(steps(5, time.monotonic_ns()))
    print("sent", flush=True)
    if ending == "bye":
        peer.bye()
    elif ending == "close":
        peer.close()
    if ending != "bye":
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
