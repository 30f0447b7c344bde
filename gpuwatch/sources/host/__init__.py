"""The host: CPU, memory, pressure, cgroups, and the processes and DataLoader workers of runs."""

from __future__ import annotations

from gpuwatch.sources.host.source import HostSource

__all__ = ["HostSource"]
