"""The bytes of docs/protocol.md."""

from __future__ import annotations

import json
import struct
import sys
from importlib import import_module
from pathlib import Path

from gpuwatch import __version__
from gpuwatch.hook import facts, wire


def test_a_records_packet_is_a_header_and_forty_bytes_a_record() -> None:
    records = [(1, 2, 3, 4, 5, 6, -1, 1 << 40), (2, 0, 65535, 2**32 - 1, 0, 2**63, 7, -(1 << 62))]
    packet = wire.records_packet([wire.RECORD.pack(*record) for record in records], 2, dropped=9)
    assert struct.unpack_from("<2sBBIQ", packet) == (b"GW", 1, 2, 2, 9)
    assert [struct.unpack_from("<BBHIQQqq", packet, 16 + 40 * at) for at in range(2)] == records
    assert len(packet) == 16 + 2 * 40


def test_a_json_packet_tells_its_length() -> None:
    packet = wire.json_packet(wire.HELLO, {"command": ["train.py", "\udcff"], "cwd": None}, dropped=0)
    magic, protocol, kind, length, dropped = struct.unpack_from("<2sBBIQ", packet)
    assert (magic, protocol, kind, dropped) == (b"GW", 1, wire.HELLO, 0)
    assert len(packet) == 16 + length
    assert json.loads(packet[16:]) == {"command": ["train.py", "\udcff"], "cwd": None}


def test_what_would_not_fit_into_a_packet_is_not_one() -> None:
    assert wire.json_packet(wire.FACTS, {"loaders": "x" * wire.PACKET_LIMIT}, 0) == b""
    assert len(wire.records_packet([wire.RECORD.pack(*[1] * 8)] * 1024, 1024, 0)) < wire.PACKET_LIMIT


def test_the_hook_and_gpuwatch_have_one_version() -> None:
    assert __version__ == facts.HOOK_VERSION


def test_the_monitor_may_import_the_wire_and_the_folder_of_the_hook_alone() -> None:
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = Path(__file__).parents[2]
    contracts = toml.loads((project / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (contract,) = [each for each in contracts if "gpuwatch.hook.api" in each.get("forbidden_modules", ())]
    modules = {path.stem for path in Path(wire.__file__).parent.glob("*.py")} - {"__init__", "folder", "wire"}
    assert {name.removeprefix("gpuwatch.hook.") for name in contract["forbidden_modules"]} == modules
