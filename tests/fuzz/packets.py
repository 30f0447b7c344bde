"""Packets of the hook link, through the real socket, server, session, derivation, timeline, rules and recorder.

An input is a sequence of operations, each `<BBH`: what is done, to which of four connections, and the length of the
data that follows. So a mutation changes packets, their order, their borders and the time between them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.monitor.build import Evaluation, build_snapshot
from gpuwatch.monitor.snapshot import Origin
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import RecordingMeta
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.samples import Sample
from gpuwatch.sources.hook_link.source import HookLinkSource
from gpuwatch.timeline.timeline import Timeline

_OPERATION = struct.Struct("<BBH")
_HEADER = struct.Struct("<2sBBIQ")
_RECORD = struct.Struct("<BBHIQQqq")
_SEND, _CLOSE, _ADVANCE, _CONNECT = range(4)
_CONNECTIONS = 4
_MS = 1_000_000
_SECOND = 1_000_000_000
_NOW_NS = 100_000 * _SECOND
_WALL_TIME = 1_700_000_000.0
_MOST_OPERATIONS = 256
# In inputs: the identities of whichever process runs them, and of its parent, for which it speaks as a worker.
_PID, _START, _PARENT, _PARENT_START = b"400000001", b"400000002", b"400000003", b"400000004"
_INTERESTING = (0, 1, 2, 255, 256, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def seeds() -> list[bytes]:
    """A trainer as the hook speaks for it, a worker, late facts, a user's loop, and two trainers at once."""
    facts = {
        "command": ["python", "train.py", "--config", "base.yaml"],
        "cwd": "/home/user",
        "python": "3.11.7",
        "torch": "2.13.0",
        "rank": 0,
        "world_size": 2,
        "group": "job",
        "device": "cuda",
        "gpu_uuids": ["GPU-1"],
        "gpu_memory_total": 80 << 30,
        "affinity": 8,
        "phases": ["data", "eval", "checkpoint", "rollout"],
        "save_places": [{"file": "train.py", "line": 9}],
        "gap": True,
        "loaders": [
            {"loader": 1, "file": "train.py", "line": 3, "num_workers": 4, "batch_size": 8, "pin_memory": False},
            {"loader": 2, "file": "train.py", "line": 4, "num_workers": 0, "batch_size": 8},
        ],
        "model": {"parameters": 10**6, "float32_share": 1.0, "optimizer": "AdamW", "optimizer_fused": False},
        "env": {"CUDA_LAUNCH_BLOCKING": "1"},
        "debug": ["anomaly"],
        "unhooked": ["torch.save: not found"],
    }
    hello = _send(0, 1, _json(**facts))
    epoch = _records(0, [*_steps(40), *_evaluation(), *_steps(10, 1)])
    extras = _records(
        0,
        [
            (kind, 0, 1, 7, _NOW_NS + 500 * _MS, _NOW_NS + 600 * _MS, 2**33, 2**30)
            for kind in (5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16)
        ],
    )
    worker = _send(
        1, 4, b'{"pid":1,"parent":%s,"parent_start_ticks":%s,"worker":0,"loader":1}' % (_PARENT, _PARENT_START)
    )
    fetches = _records(1, [(8, 0, 1, 7, _NOW_NS + n * 10 * _MS, _NOW_NS + n * 10 * _MS + 5, 0, 9) for n in range(20)])
    later = _send(0, 3, json.dumps({"model": {"compiled": True}, "loaders": [{"loader": 3, "batch_size": 4}]}).encode())
    user = _records(0, [(9, 0, 0, 7, _NOW_NS + n * 50 * _MS, _NOW_NS + n * 50 * _MS, 8, 0) for n in range(30)])
    bye = _send(0, 5, b'{"reason":"exit"}')
    again = _operation(_CLOSE, 0) + _advance(3000) + _operation(_CONNECT, 0) + hello + epoch
    return [
        hello + epoch + _advance(3000) + bye,
        hello + epoch + extras + later + _advance(1000) + _records(0, _steps(20, 2)),
        worker + fetches + hello + user + _advance(60_000) + again + bye,
        hello + again + _advance(10_000) + extras + _operation(_CLOSE, 0),
    ]


def run(data: bytes) -> None:
    """Feeds the operations; a peer's nonsense must end in samples, losses or a hang-up, never in an exception."""
    folder = Path(tempfile.mkdtemp(prefix="gwf-", dir="/dev/shm"))
    source = HookLinkSource(folder / "g")
    try:
        now_ns, samples = _perform(source, folder / "g", data)
        _use(samples, now_ns, folder / "fuzz.gpuwatch" if len(data) % 8 == 0 else None)
    finally:
        source.close()
        shutil.rmtree(folder, ignore_errors=True)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Changes fields of records, values of facts, and the order of operations."""
    operations = list(_operations(data))
    for _ in range(1 << rng.randrange(4)):
        if not operations:
            return data
        at = rng.randrange(len(operations))
        what, peer, body = operations[at]
        choice = rng.random()
        if choice < 0.1:
            operations.insert(rng.randrange(len(operations)), operations[at])
        elif choice < 0.2:
            del operations[at]
        elif choice < 0.25:
            operations.insert(at, (_ADVANCE, peer, struct.pack("<I", rng.choice((1, 1000, 60_000, 2**32 - 1)))))
        elif what == _SEND and len(body) > _HEADER.size:
            kind = body[3]
            changed = _changed_records(body, rng) if kind == 2 else _changed_facts(body, rng)
            operations[at] = (what, peer, changed)
    return b"".join(_operation(what, peer, body) for what, peer, body in operations)


def _perform(source: HookLinkSource, folder: Path, data: bytes) -> tuple[int, list[Sample]]:
    own, parent = os.getpid(), os.getppid()
    known = {_PID: b"%d" % own, _START: _start(own), _PARENT: b"%d" % parent, _PARENT_START: _start(parent)}
    address = str(next(folder.glob("monitor-*.sock")))
    peers: dict[int, socket.socket] = {}
    now_ns = _NOW_NS + 2 * _SECOND
    samples: list[Sample] = []
    try:
        for what, peer, body in _operations(data):
            if what == _ADVANCE:
                now_ns += (int.from_bytes(body[:4], "little") % 86_400_000) * _MS
            elif what in (_CLOSE, _CONNECT):
                if peer in peers:
                    peers.pop(peer).close()
            else:
                if peer not in peers:
                    peers[peer] = _connected(address)
                try:
                    peers[peer].send(_personal(body, known))
                except OSError:  # it was hung up on, or its packet is too long for the socket
                    peers.pop(peer).close()
            samples += source.collect(now_ns)
        samples += source.collect(now_ns + _SECOND)
    finally:
        for each in peers.values():
            each.close()
    samples += source.collect(now_ns + 15 * _SECOND)
    return now_ns + 15 * _SECOND, samples


def _use(samples: list[Sample], now_ns: int, path: Path | None) -> None:
    timeline = Timeline(started_ns=_NOW_NS)
    timeline.extend(samples)
    scene = timeline.scene(now_ns, 60.0)
    findings = Engine().evaluate(scene)
    build_snapshot(
        timeline,
        now_ns=now_ns,
        wall_time=_WALL_TIME,
        origin=Origin("live", "fuzz"),
        evaluation=Evaluation(scene, findings),
    )
    timeline.prune(now_ns)
    if path is not None:
        writer = RecordingWriter(path, RecordingMeta("fuzz", "0", started_wall=_WALL_TIME))
        writer.add(samples, now_ns, _WALL_TIME)
        writer.close()
        with Recording(path) as recording:
            read = list(recording.samples(recording.start_ns, recording.end_ns))
            assert recording.meta.problem is None or "beyond 64 bits" in recording.meta.problem
            assert len(read) <= len(samples)


def _start(pid: int) -> bytes:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]


def _personal(body: bytes, known: dict[bytes, bytes]) -> bytes:
    """A packet with the identities put in; its length follows if it was right."""
    sent = body
    for placeholder, value in known.items():
        sent = sent.replace(placeholder, value)
    if len(sent) != len(body) and int.from_bytes(body[4:8], "little") == len(body) - _HEADER.size:
        sent = sent[:4] + (len(sent) - _HEADER.size).to_bytes(4, "little") + sent[8:]
    return sent


def _connected(address: str) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    peer.connect(address)
    return peer


def _operations(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    for _ in range(_MOST_OPERATIONS):
        if at + _OPERATION.size > len(data):
            return
        what, peer, length = _OPERATION.unpack_from(data, at)
        at += _OPERATION.size
        yield what % 4, peer % _CONNECTIONS, data[at : at + length]
        at += length


def _operation(what: int, peer: int, body: bytes = b"") -> bytes:
    return _OPERATION.pack(what, peer, min(len(body), 65535)) + body[:65535]


def _advance(milliseconds: int) -> bytes:
    return _operation(_ADVANCE, 0, struct.pack("<I", milliseconds))


def _send(peer: int, kind: int, body: bytes, count: int | None = None) -> bytes:
    return _operation(_SEND, peer, _HEADER.pack(b"GW", 1, kind, len(body) if count is None else count, 0) + body)


def _records(peer: int, records: list[tuple[int, ...]]) -> bytes:
    return _send(peer, 2, b"".join(_RECORD.pack(*each) for each in records), len(records))


def _json(**facts: object) -> bytes:
    return json.dumps({"pid": int(_PID), "start_ticks": int(_START), **facts}).encode()


def _steps(count: int, iterator: int = 0) -> list[tuple[int, ...]]:
    records: list[tuple[int, ...]] = []
    for index in range(count):
        begun = _NOW_NS + (iterator * 50 + index) * 10 * _MS
        records.append((1, 2, 1, 7, begun, begun + 4 * _MS, iterator, 8))
        records.append((3, 0, 0, 7, begun + 5 * _MS, begun + 8 * _MS, 0, 0))
        records.append((4, 0, 1, 7, begun + 8 * _MS, begun + 10 * _MS, 0, 0))
    return records


def _evaluation() -> list[tuple[int, ...]]:
    begun = _NOW_NS + 400 * _MS
    reads = [(1, 0, 2, 7, begun + n * 5 * _MS, begun + n * 5 * _MS + _MS, 9, 8) for n in range(10)]
    return [(2, 0, 2, 7, begun, begun, 9, 0), *reads, (1, 1, 2, 7, begun + 60 * _MS, begun + 61 * _MS, 9, -1)]


def _changed_records(body: bytes, rng: random.Random) -> bytes:
    head, records = body[: _HEADER.size], [*_RECORD.iter_unpack(body[_HEADER.size :][: (len(body) - 16) // 40 * 40])]
    if not records:
        return body
    for _ in range(1 << rng.randrange(5)):
        at = rng.randrange(len(records))
        fields, place = list(records[at]), rng.randrange(8)
        limit = (8, 8, 16, 32, 64, 64, 63, 63)[place]
        near = fields[place] + rng.choice((-1, 1)) * rng.choice((1, 256, _MS, _SECOND, 3600 * _SECOND))
        value = rng.choice((near, near, rng.choice(_INTERESTING), rng.getrandbits(limit), -rng.getrandbits(62)))
        fields[place] = value % (1 << limit) if place < 6 else max(-(2**63), min(2**63 - 1, value))
        if place == 0 and rng.random() < 0.9:
            fields[0] %= 17
        records[at] = tuple(fields)
    if rng.random() < 0.2:
        rng.shuffle(records)
    if rng.random() < 0.2:
        records = records[: rng.randrange(len(records)) + 1] * rng.choice((1, 2, 16))
    records = records[:1600]
    return head[:4] + len(records).to_bytes(4, "little") + head[8:] + b"".join(_RECORD.pack(*each) for each in records)


def _changed_facts(body: bytes, rng: random.Random) -> bytes:
    try:
        content = json.loads(body[_HEADER.size :])
    except ValueError:
        return body
    for _ in range(1 << rng.randrange(4)):
        _change(content, rng)
    text = json.dumps(content).encode()[:65000]
    return body[:4] + len(text).to_bytes(4, "little") + body[8 : _HEADER.size] + text


def _change(content: object, rng: random.Random) -> None:
    """Replaces, adds or removes a value somewhere in the JSON."""
    if isinstance(content, list) and content:
        at = rng.randrange(len(content))
        if isinstance(content[at], (dict, list)) and rng.random() < 0.7:
            _change(content[at], rng)
        elif rng.random() < 0.3 and len(content) < 1000:
            content.extend(content * rng.choice((1, 10)))
        else:
            content[at] = _value(rng)
    elif isinstance(content, dict) and content:
        key = rng.choice([*content])
        if key in ("pid", "start_ticks") and rng.random() < 0.95:
            return
        if isinstance(content[key], (dict, list)) and content[key] and rng.random() < 0.8:
            _change(content[key], rng)
        elif rng.random() < 0.1:
            content[f"new {rng.random()}"] = _value(rng)
        else:
            content[key] = _value(rng)


def _value(rng: random.Random) -> object:
    return rng.choice(
        (
            None,
            True,
            0,
            1,
            -1,
            2**63 - 1,
            2**63,
            -(2**63),
            10**400,
            0.5,
            1e308,
            "",
            "x" * 5000,
            "\x1b[2J\u202e\ud800",
            "nan",
            [],
            {},
            [1],
            [[]],
            ["a"] * 300,
            {"loader": 1},
            [{"loader": n} for n in range(300)],
        )
    )
