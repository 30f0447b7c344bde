"""The one bounded history: samples go in, windows and charts come out."""

from __future__ import annotations

from functools import partial

from gpuwatch.samples import XidEvent
from gpuwatch.timeline import charts
from gpuwatch.timeline.gpu_history import GpuHistory
from gpuwatch.timeline.gpu_status import status_of
from gpuwatch.timeline.gpu_window import gpu_window
from gpuwatch.timeline.intake import Intake
from gpuwatch.timeline.run_window import pauses_of, run_window
from gpuwatch.timeline.runs import Identity, Run, gpus_of, grouped, holds, newest, unhooked
from gpuwatch.timeline.series import Chart, Series
from gpuwatch.timeline.spans import united
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.windows import Scene

RUNS_KEPT = 64
_DAY_NS = 24 * 3600 * SECOND_NS
_HALVED_NS = 60 * SECOND_NS
_PROCESS_KEPT_NS = 600 * SECOND_NS


class Timeline(Intake):
    """The history of all GPUs, runs and the host.

    The monitor's thread writes, views read charts from theirs: both under `lock`. Bounded whatever comes: raw samples
    for 10 min, seconds for 2 h, minutes for 24 h, GPUs and runs until their last minute has aged out, 64 runs at most.

    Args:
        started_ns: when watching began; it moves back to the first poll of a GPU or the host that is older.
        interval_seconds: between two polls of a GPU, to tell a late one from a missing one.
    """

    def __init__(self, *, started_ns: int | None = None, interval_seconds: float = 1.0) -> None:
        super().__init__(started_ns, interval_seconds)

    def scene(
        self,
        now_ns: int,
        window_seconds: float,
        *,
        only_pids: frozenset[int] | None = None,
        own_cpu_share: float | None = None,
    ) -> Scene:
        """Everything over (now - window, now], frozen.

        Args:
            now_ns: the end of the window.
            window_seconds: its length; the scene's is shorter while less has been seen.
            only_pids: narrows it to the runs of these processes and their GPUs.
            own_cpu_share: what gpuwatch itself costs, of one core.
        """
        with self.lock:
            window_ns = round(window_seconds * SECOND_NS)
            start_ns = now_ns - window_ns
            started_ns = now_ns if self.started_ns is None else self.started_ns
            runs = self.runs(now_ns, window_ns, only_pids)
            used = {run.id: gpus_of(run, self.gpus, self.processes) for run in runs}
            gpus = self.gpus_in_order({uuid for uuids in used.values() for uuid in uuids} if only_pids else None)
            return Scene(
                now_ns=now_ns,
                started_ns=started_ns,
                window_seconds=min(window_ns, now_ns - started_ns) / SECOND_NS,
                machine=self.machine,
                host=self.host.window(start_ns, now_ns),
                gpus=tuple(
                    gpu_window(
                        gpu,
                        now_ns,
                        window_ns,
                        status_of(gpu, now_ns, self.interval_seconds, self.nvml),
                        united(
                            span
                            for run in runs
                            if gpu.uuid in used[run.id]
                            for span in pauses_of(run, start_ns, now_ns)
                        ),
                        self._xids_of(gpu, len(self.gpus)),
                    )
                    for gpu in gpus
                ),
                runs=tuple(run_window(run, self.gpus, used[run.id], self.processes, now_ns, window_ns) for run in runs),
                quality=self._quality.window(gpus, start_ns, now_ns, own_cpu_share),
                xids=() if len(self.gpus) == 1 else tuple(self._xids),
                candidates=self.candidates,
                newest_half=partial(
                    self.scene, now_ns, window_seconds / 2.0, only_pids=only_pids, own_cpu_share=own_cpu_share
                )
                if window_ns >= _HALVED_NS <= now_ns - started_ns
                else None,
            )

    def chart(self, series: Series, start_ns: int, end_ns: int, buckets: int) -> Chart:
        """One series in equal buckets.

        A view that scrolls does well to ask for bounds that are multiples of the bucket's width: else the same samples
        fall into other buckets at each call, and the line shimmers.
        """
        grid = charts.Grid(start_ns, end_ns, buckets)
        with self.lock:
            lines = charts.lines_of(series, grid, self.gpus, self.trainers.values(), self.host, self.interval_seconds)
        return Chart(series, start_ns, end_ns, lines.mean, lines.min, lines.max)

    def runs(self, now_ns: int, window_ns: int, only_pids: frozenset[int] | None = None) -> list[Run]:
        """The runs that lived in the window, those that still do first, the older the earlier.

        Those without a hook are left out once they are no longer watched. Where only some processes are asked for and
        nothing trains among them, as far as is known, each stands as a run of the rung "proc".
        """
        with self.lock:
            runs = [
                run for run in grouped(self.trainers.values()) if not run.has_ended or run.seen_ns > now_ns - window_ns
            ]
            runs.sort(key=lambda run: run.has_ended)
            watched = [run for run in runs if run.is_watched(now_ns)]
            if only_pids is None:
                return watched
            asked = [run for run in watched if run.is_of(only_pids)] or [run for run in runs if run.is_of(only_pids)]
            return asked or [
                unhooked(pid, start_ticks, process, self.host.latest)
                for (pid, start_ticks), process in self.processes.items()
                if holds(only_pids, pid, start_ticks)
            ]

    def gpus_in_order(self, only: set[str] | None = None) -> list[GpuHistory]:
        """The GPUs that have introduced themselves, by index; all of them where `only` names none."""
        with self.lock:
            known = [gpu for gpu in self.gpus.values() if gpu.facts is not None and (not only or gpu.uuid in only)]
            return sorted(known, key=lambda gpu: (gpu.facts.index if gpu.facts else 0, gpu.uuid))

    def trainers_with_steps(self, count: int) -> frozenset[str]:
        """The trainers of which at least so many steps are known, one by one or counted from outside."""
        return frozenset(
            name
            for name, each in self.trainers.items()
            if len(each.steps) >= count or (not each.is_exact and each.steps_total >= count)
        )

    def trainer_identities(self) -> list[Identity]:
        """All trainers that are remembered."""
        with self.lock:
            return [
                (each.facts.pid, each.facts.start_ticks) for each in self.trainers.values() if each.facts is not None
            ]

    def live_trainer_pids(self) -> list[int]:
        """As `live_trainers`, the pids alone."""
        return [pid for pid, _ in self.live_trainers()]

    def live_trainers(self) -> list[Identity]:
        """All hooked trainers that have not ended: what is looked at without being asked."""
        with self.lock:
            return [
                (each.facts.pid, each.facts.start_ticks)
                for each in self.trainers.values()
                if each.facts is not None and each.is_exact and each.ended is None
            ]

    def gpus_by_host_pid(self) -> dict[int, tuple[str, ...]]:
        """The UUIDs of the GPUs that each process computes on, as NVML reports them: by the host's pids."""
        with self.lock:
            found: dict[int, tuple[str, ...]] = {}
            for gpu in self.gpus_in_order():
                for process in (gpu.latest_status.processes or ()) if gpu.latest_status else ():
                    found[process.host_pid] = (*found.get(process.host_pid, ()), gpu.uuid)
            return found

    def worker_pids(self, trainer_pid: int) -> set[int]:
        """The DataLoader workers that made a batch for this trainer lately, as they say themselves."""
        with self.lock:
            return {
                pid
                for each in self.trainers.values()
                if each.facts is not None and each.facts.pid == trainer_pid and each.ended is None
                for pid in each.fetches.pids(each.seen_ns - 60 * SECOND_NS)
            }

    def prune(self, now_ns: int) -> None:
        """Forgets what has aged out: to be called about once a minute."""
        with self.lock:
            for gpu in self.gpus.values():
                gpu.prune(now_ns)
            for trainer in self.trainers.values():
                trainer.prune(now_ns)
            self.gpus = {uuid: gpu for uuid, gpu in self.gpus.items() if now_ns - gpu.seen_ns <= _DAY_NS}
            self.processes = {
                key: process
                for key, process in self.processes.items()
                if process.latest and now_ns - process.latest.time_ns <= _PROCESS_KEPT_NS
            }
            self.trainers = {name: each for name, each in self.trainers.items() if now_ns - each.seen_ns <= _DAY_NS}
            kept = newest(self.trainers.values(), RUNS_KEPT)
            self.trainers = {name: each for name, each in self.trainers.items() if name in kept}

    def _xids_of(self, gpu: GpuHistory, gpu_count: int) -> tuple[XidEvent, ...]:
        """Its own; and those without a GPU, where it is the only one they can mean."""
        return (*gpu.xids, *(self._xids if gpu_count == 1 else ()))
