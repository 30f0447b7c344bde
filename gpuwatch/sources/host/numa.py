"""NUMA nodes: which cores and which GPUs belong together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from gpuwatch.sources.host.procfs import read_int, read_once

_NODE = re.compile(r"node(\d+)")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_MOST_CORES = 1 << 16


class NumaNodes:
    """The node of each core, read once: cores that come later belong to none that is known."""

    def __init__(self, sys_root: Path) -> None:
        self._sys_root = sys_root
        self._by_core: dict[int, int] = {}
        for name in _listed(f"{sys_root}/devices/system/node"):
            node = _NODE.fullmatch(name)
            if node is not None:
                cores = core_list(read_once(f"{sys_root}/devices/system/node/{name}/cpulist", 4096))
                self._by_core.update(dict.fromkeys(cores, int(node[1])))
        self.count = len(set(self._by_core.values())) or None

    def node_of(self, core: int | None) -> int | None:
        """The node of a core."""
        return None if core is None else self._by_core.get(core)

    def by_node(self, used: Iterable[tuple[int | None, float | None]]) -> tuple[float, ...]:
        """(core it ran on, cores it used) of several, added up by node.

        Empty where there is one node only, or a core or its use is not known.
        """
        if self.count is None or self.count < 2:
            return ()
        totals = [0.0] * (max(self._by_core.values()) + 1)
        for core, cores in used:
            node = self.node_of(core)
            if node is None or cores is None:
                return ()
            totals[node] += cores
        return tuple(totals)

    def of_gpus(self) -> tuple[tuple[str, int], ...]:
        """The node of each NVIDIA GPU by its PCI address; a GPU without one (-1) is left out."""
        folder = f"{self._sys_root}/bus/pci/drivers/nvidia"
        found = ((name, read_int(f"{folder}/{name}/numa_node")) for name in sorted(_listed(folder)) if _is_pci(name))
        return tuple((name.lower(), node) for name, node in found if node is not None and node >= 0)


def core_list(raw: bytes | None) -> list[int]:
    """0-3,8 -> [0, 1, 2, 3, 8]; what is no list of cores is none."""
    cores: list[int] = []
    for part in (raw or b"").decode("ascii", "replace").strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            cores.extend(range(int(first), min(int(last or first), _MOST_CORES) + 1))
    return cores


def _is_pci(name: str) -> bool:
    return _PCI_ADDRESS.fullmatch(name) is not None


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names only
    except OSError:
        return []
