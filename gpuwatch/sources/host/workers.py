"""The DataLoader workers of one run: how busy, how blocked, and whether they are the same ones as before."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuwatch.samples import WorkerSample
from gpuwatch.sources.host.process import ProcessKey, ProcessStat, read_state
from gpuwatch.sources.host.procfs import keyed_int, rate, read_once, to_int
from gpuwatch.sources.host.turns import Turns

WORKER_NAME = "pt_data_worker"  # set by torch/utils/data/_utils/worker.py

_LOOKS_KEPT = 10
_FEWEST_LOOKS = 5


class _Worker:
    """What is remembered of one worker between polls."""

    __slots__ = (
        "affinity_cores",
        "blocked",
        "delay_ns",
        "delay_share",
        "own_ticks",
        "read_ns",
        "switch_rate",
        "switches",
        "switches_ns",
        "system_ticks",
    )

    def __init__(self) -> None:
        self.blocked: deque[bool] = deque(maxlen=_LOOKS_KEPT)
        self.own_ticks: int | None = None
        self.system_ticks: int | None = None
        self.read_ns = 0
        self.affinity_cores: int | None = None
        self.switches: int | None = None
        self.switches_ns = 0
        self.switch_rate: float | None = None
        self.delay_ns: int | None = None
        self.delay_share: float | None = None


class Workers:
    """Follows the workers of one run from poll to poll."""

    def __init__(
        self, proc_root: Path | str, ticks_per_second: int, affinity_cores: Callable[[int], int | None]
    ) -> None:
        self._proc_root = proc_root
        self._ticks_per_second = ticks_per_second
        self._affinity_cores = affinity_cores
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._known: dict[ProcessKey, _Worker] = {}
        self._ever_seen: set[ProcessKey] = set()
        self._turns = Turns(proc_root)
        self.changed = False
        self.involuntary_switches_per_second: float | None = None

    def __len__(self) -> int:
        return len(self._known)

    def pids(self) -> set[int]:
        """The workers of the last poll."""
        return {pid for pid, _ in self._known}

    def look(self) -> None:
        """One quick look at each worker's state, in between polls: D shows only while it lasts."""
        for (pid, _), worker in self._known.items():
            state = read_state(self._proc_root, pid)
            if state is not None:
                worker.blocked.append(state == "D")

    def poll(self, stats: Mapping[int, ProcessStat], now_ns: int, thorough: bool) -> tuple[WorkerSample, ...]:
        """The workers among `stats` now; sets `changed` and `involuntary_switches_per_second` for this poll.

        `changed`: a worker is new although others were seen before, so workers are started again and again.
        """
        keys = {(pid, stat.start_ticks) for pid, stat in stats.items()}
        self.changed = bool(self._ever_seen) and not self._ever_seen.issuperset(keys)
        # Of those that ended only the latest generation is kept: a month of epochs must not grow this set.
        if keys:
            self._ever_seen = keys if self.changed else self._ever_seen | keys
        known, self._known = self._known, {}
        self._turns.take(stats, now_ns, thorough)
        samples = []
        for pid, stat in sorted(stats.items()):
            key = pid, stat.start_ticks
            worker = self._known[key] = known.get(key) or _Worker()
            if thorough or key not in known:
                self._read_slow(pid, worker, now_ns)
            samples.append(self._sample(pid, stat, worker, now_ns))
        rates = [worker.switch_rate for worker in self._known.values() if worker.switch_rate is not None]
        self.involuntary_switches_per_second = sum(rates) if rates else None
        return tuple(samples)

    def _read_slow(self, pid: int, worker: _Worker, now_ns: int) -> None:
        """What is renewed every few seconds only: status is the dearest of a process's files, 11 us."""
        status = read_once(f"{self._proc_root}/{pid}/status") or b""
        switches = keyed_int(status, b"nonvoluntary_ctxt_switches:")
        worker.switch_rate = rate(switches, worker.switches, (now_ns - worker.switches_ns) / 1e9)
        delay_ns = run_delay_ns(self._proc_root, pid)
        worker.delay_share = rate(delay_ns, worker.delay_ns, now_ns - worker.switches_ns)
        worker.delay_ns, worker.switches, worker.switches_ns = delay_ns, switches, now_ns
        worker.affinity_cores = self._affinity_cores(pid)

    def _sample(self, pid: int, stat: ProcessStat, worker: _Worker, now_ns: int) -> WorkerSample:
        worker.blocked.append(stat.state == "D")
        seconds, key = (now_ns - worker.read_ns) / 1e9, (pid, stat.start_ticks)
        ticks_rate = rate(stat.own_ticks, worker.own_ticks, seconds)
        system_rate = rate(stat.system_ticks, worker.system_ticks, seconds)
        worker.own_ticks, worker.system_ticks, worker.read_ns = stat.own_ticks, stat.system_ticks, now_ns
        looks = len(worker.blocked)
        return WorkerSample(
            pid=pid,
            cpu_cores=None if ticks_rate is None else ticks_rate / self._ticks_per_second,
            state=stat.state,
            blocked_share=sum(worker.blocked) / looks if looks >= _FEWEST_LOOKS else None,
            threads=stat.threads,
            rss_bytes=stat.rss_pages * self._page_bytes,
            affinity_cores=worker.affinity_cores,
            system_cores=None if system_rate is None else system_rate / self._ticks_per_second,
            last_core=stat.last_core,
            active_threads=self._turns.active_threads(key),
            private_dirty_bytes=self._turns.private_dirty_bytes(key),
            run_delay_share=worker.delay_share,
        )


def run_delay_ns(proc_root: Path | str, pid: int) -> int | None:
    """How long the main thread could run and did not, since it started; None where the kernel keeps no such account."""
    words = (read_once(f"{proc_root}/{pid}/schedstat", 128) or b"").split()
    has_account = len(words) == 3 and to_int(words[2])  # all zeros where it was built or booted without it
    return to_int(words[1]) if has_account else None
