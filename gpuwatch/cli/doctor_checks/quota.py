"""How many of the machine's cores may be used here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gpuwatch.cli.doctor_checks.check import Check, State
from gpuwatch.sources.host.cgroup import Cgroups, read_throttling
from gpuwatch.sources.host.source import affinity_core_count

_NAME = "cpu-quota"


def check_quota(
    proc_root: Path = Path("/proc"),
    cgroup_root: Path = Path("/sys/fs/cgroup"),
    affinity_cores: Callable[[int], int | None] = affinity_core_count,
    cpu_count: int | None = None,
) -> Check:
    """A quota below the core count makes `num_workers=os.cpu_count()` too many; PyTorch warns by affinity only."""
    cores = cpu_count or os.cpu_count() or 1
    allowed = affinity_cores(0)
    limit = Cgroups(proc_root, cgroup_root).cpu_limit("self")
    throttling = read_throttling(limit)
    details = {
        "cores": cores,
        "affinity_cores": allowed,
        "quota_cores": limit.quota_cores,
        "periods": throttling.periods,
        "throttled_periods": throttling.throttled_periods,
    }
    usable = cores if allowed is None else min(cores, allowed)
    if limit.quota_cores is not None and limit.quota_cores < usable:
        stopped = ""
        if throttling.periods and throttling.throttled_periods is not None:
            share = 100.0 * throttling.throttled_periods / throttling.periods
            stopped = f", and stopped in {share:.0f} % of its periods so far"
        workers = max(1, int(limit.quota_cores) - 1)
        return Check(
            _NAME,
            State.WARNING,
            f"A cgroup quota allows {limit.quota_cores:g} of {cores} cores{stopped}.",
            f"Count workers by the quota (at most num_workers={workers} per node), or raise it: `docker --cpus`, "
            "Kubernetes limits.cpu.",
            details,
        )
    if not limit.known:
        return Check(
            _NAME,
            State.UNKNOWN,
            f"{usable} of {cores} cores may be used, unless a cgroup quota holds that cannot be seen from here.",
            "Mount the cgroup hierarchy at /sys/fs/cgroup in this container.",
            details,
        )
    if usable < cores:
        sentence = f"{usable} of {cores} cores may be used (CPU affinity or cpuset), without a quota."
    else:
        sentence = f"All {cores} cores may be used, without a quota."
    return Check(_NAME, State.OK, sentence, None, details)
