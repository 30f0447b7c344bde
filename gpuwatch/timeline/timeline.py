"""The one bounded history: samples go in, windows and charts come out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from statistics import quantiles
from typing import Any

from gpuwatch.samples import (
    BatchCount,
    BatchWait,
    Candidate,
    Candidates,
    CurrentLine,
    GpuFacts,
    GpuGap,
    GpuHealth,
    GpuLost,
    GpuSample,
    GpuStatus,
    HostSample,
    LinkLoss,
    MachineFacts,
    NvmlState,
    PhaseSpan,
    ProcessSample,
    RunFacts,
    RunMemory,
    Sample,
    StackTally,
    StepEnd,
    TrainerEnded,
    WorkerFetch,
    XidEvent,
)
from gpuwatch.timeline.charts import Chart, Grid, Series, lines_of
from gpuwatch.timeline.columns import SECOND_NS, Buckets
from gpuwatch.timeline.gpu import GpuHistory, gpu_window, status_of
from gpuwatch.timeline.host import HostHistory, ProcessHistory
from gpuwatch.timeline.runs import (
    Identity,
    Run,
    gpus_of,
    grouped,
    holds,
    newest,
    pauses_of,
    run_window,
    training_start_ns,
    unhooked,
)
from gpuwatch.timeline.times import united
from gpuwatch.timeline.trainer import TrainerHistory
from gpuwatch.timeline.windows import Quality, Scene

RUNS_KEPT = 64
_MOST_TRAINERS = 512
"""Between two prunes. Processes that come, speak and go may be thousands a minute."""
_XIDS_KEPT = 256
_DAY_NS = 24 * 3600 * SECOND_NS
_HALVED_NS = 60 * SECOND_NS
_PROCESS_KEPT_NS = 600 * SECOND_NS
_RECORDS_KEPT_SECONDS = 900
_NVML_STATES_KEPT = 1_024


class Timeline:
    """The history of all GPUs, runs and the host.

    The monitor's thread writes, views read charts from theirs: both under `lock`. Bounded whatever comes: raw samples
    for 10 min, seconds for 2 h, minutes for 24 h, GPUs and runs until their last minute has aged out, 64 runs at most.

    Args:
        started_ns: when watching began; it moves back to the first poll of a GPU or the host that is older.
        interval_seconds: between two polls of a GPU, to tell a late one from a missing one.
    """

    def __init__(self, *, started_ns: int | None = None, interval_seconds: float = 1.0) -> None:
        self.lock = threading.RLock()
        self.interval_seconds = interval_seconds
        self.started_ns = started_ns
        self.gpus: dict[str, GpuHistory] = {}
        self.trainers: dict[str, TrainerHistory] = {}
        self.processes: dict[tuple[int, int], ProcessHistory] = {}
        self.host = HostHistory()
        self.machine: MachineFacts | None = None
        self.nvml: NvmlState | None = None
        self.candidates: tuple[Candidate, ...] = ()
        self.searched = False  # whether the candidates are known
        self._quality = QualityLog(interval_seconds)
        self._xids: deque[XidEvent] = deque(maxlen=_XIDS_KEPT)
        self._takers: dict[type, Callable[[Any], None]] = {
            GpuFacts: lambda sample: self._gpu(sample.uuid).add_facts(sample),
            GpuSample: self._add_poll,
            GpuStatus: self._add_gpu_status,
            GpuHealth: self._add_gpu_health,
            GpuLost: self._add_gpu_lost,
            XidEvent: self._add_xid,
            NvmlState: self._add_nvml,
            MachineFacts: self._add_machine,
            HostSample: self._add_host,
            ProcessSample: self._add_process,
            RunFacts: lambda sample: self._trainer(sample.trainer).add_facts(sample),
            StepEnd: self._add_step,
            BatchWait: self._add_wait,
            GpuGap: lambda sample: self._trainer(sample.trainer).add_gap(sample),
            PhaseSpan: lambda sample: self._trainer(sample.trainer).add_phase(sample),
            WorkerFetch: self._add_fetch,
            RunMemory: lambda sample: self._trainer(sample.trainer).add_memory(sample),
            TrainerEnded: self._add_end,
            LinkLoss: self._add_loss,
            StackTally: lambda sample: self._trainer(sample.trainer).add_tally(sample),
            CurrentLine: lambda sample: self._trainer(sample.trainer).see_standing(sample),
            BatchCount: lambda sample: self._trainer(sample.trainer).add_count(sample),
            Candidates: self._add_candidates,
        }

    def add(self, sample: Sample) -> None:
        """Takes up one sample, in any order of time within its own subject."""
        with self.lock:
            self._takers[type(sample)](sample)

    def extend(self, samples: Iterable[Sample]) -> None:
        """Takes up several at once, so that a reader sees all of them or none."""
        with self.lock:
            for sample in samples:
                self._takers[type(sample)](sample)

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
            training_ns = {uuid: training_start_ns(run, now_ns, window_ns) for run in runs for uuid in used[run.id]}
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
                            for span in pauses_of(run, training_ns[gpu.uuid], now_ns)
                        ),
                        training_ns.get(gpu.uuid, start_ns),
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
        grid = Grid(start_ns, end_ns, buckets)
        with self.lock:
            lines = lines_of(series, grid, self.gpus, self.trainers.values(), self.host, self.interval_seconds)
        return Chart(series, start_ns, end_ns, lines.mean, lines.min, lines.max)

    def runs(self, now_ns: int, window_ns: int, only_pids: frozenset[int] | None = None) -> list[Run]:
        """The runs that lived in the window, those that still do first, the older the earlier.

        Those without a hook are left out once they are no longer watched. Where only some processes are asked for and
        nothing trains among them, as far as is known, each is a run with visibility "process".
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
            return sorted(known, key=lambda gpu: gpu.facts.place if gpu.facts else (0, -1, gpu.uuid))

    def trainers_with_steps(self, count: int) -> frozenset[str]:
        """The trainers of which at least this many steps are known, one by one or counted from outside."""
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
        """All hooked trainers that have not ended: what is sampled without being asked."""
        with self.lock:
            return [
                (each.facts.pid, each.facts.start_ticks)
                for each in self.trainers.values()
                if each.facts is not None and each.is_exact and each.ended is None
            ]

    def gpus_by_pid(self) -> dict[int, tuple[str, ...]]:
        """The UUIDs of the GPUs that each process computes on, as far as its pid here is known."""
        with self.lock:
            found: dict[int, tuple[str, ...]] = {}
            for gpu in self.gpus_in_order():
                for process in (gpu.latest_status.processes or ()) if gpu.latest_status else ():
                    if process.pid is not None:
                        found[process.pid] = (*found.get(process.pid, ()), gpu.uuid)
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

    def _gpu(self, uuid: str) -> GpuHistory:
        gpu = self.gpus.get(uuid)
        if gpu is None:
            gpu = self.gpus[uuid] = GpuHistory(uuid)
        return gpu

    def _trainer(self, name: str) -> TrainerHistory:
        trainer = self.trainers.get(name)
        if trainer is None:
            if len(self.trainers) >= _MOST_TRAINERS:
                del self.trainers[min(self.trainers.values(), key=_worth).trainer]
            trainer = self.trainers[name] = TrainerHistory(name)
        return trainer

    def _add_poll(self, sample: GpuSample) -> None:
        self._begin(sample.time_ns)
        self._gpu(sample.uuid).add_poll(sample)

    def _add_host(self, sample: HostSample) -> None:
        self._begin(sample.time_ns)
        self.host.add(sample)

    def _begin(self, time_ns: int) -> None:
        if self.started_ns is None or time_ns < self.started_ns:
            self.started_ns = time_ns

    def _add_gpu_status(self, sample: GpuStatus) -> None:
        self._gpu(sample.uuid).latest_status = sample

    def _add_gpu_health(self, sample: GpuHealth) -> None:
        self._gpu(sample.uuid).add_health(sample)

    def _add_gpu_lost(self, sample: GpuLost) -> None:
        gpu = self._gpu(sample.uuid)
        gpu.lost = gpu.lost or sample

    def _add_xid(self, event: XidEvent) -> None:
        (self._xids if event.uuid is None else self._gpu(event.uuid).xids).append(event)

    def _add_nvml(self, state: NvmlState) -> None:
        self.nvml = state
        self._quality.nvml(state)

    def _add_machine(self, facts: MachineFacts) -> None:
        if facts.cpu_count > 0:  # a damaged recording may say otherwise
            self.machine = facts

    def _add_candidates(self, found: Candidates) -> None:
        self.candidates = found.processes
        self.searched = True

    def _add_process(self, sample: ProcessSample) -> None:
        key = (sample.pid, sample.start_ticks)
        if key not in self.processes:
            self.processes[key] = ProcessHistory()
        others: set[int] = set()
        for each in self.trainers.values():
            if each.facts is not None and (each.facts.pid, each.facts.start_ticks) == key:
                each.see_process(sample)
                others |= each.other_workers()
        self.processes[key].add(sample, others)

    def _add_step(self, step: StepEnd) -> None:
        self._quality.received(step.end_ns)
        self._trainer(step.trainer).add_step(step)

    def _add_wait(self, wait: BatchWait) -> None:
        self._quality.received(wait.end_ns)
        self._trainer(wait.trainer).add_wait(wait)

    def _add_fetch(self, fetch: WorkerFetch) -> None:
        self._quality.received(fetch.end_ns)
        self._trainer(fetch.trainer).add_fetch(fetch)

    def _add_end(self, ended: TrainerEnded) -> None:
        if ended.trainer in self.trainers:
            self.trainers[ended.trainer].end(ended)

    def _add_loss(self, loss: LinkLoss) -> None:
        self._quality.lost(loss)
        if loss.trainer is not None:
            self._trainer(loss.trainer).add_loss(loss)

    def _xids_of(self, gpu: GpuHistory, gpu_count: int) -> tuple[XidEvent, ...]:
        """Its own; and those without a GPU, where it is the only one they can mean."""
        return (*gpu.xids, *(self._xids if gpu_count == 1 else ()))


def _worth(trainer: TrainerHistory) -> tuple[bool, bool, int]:
    """What is forgotten first: those that never introduced themselves, then those that ended, the longest ago."""
    return (trainer.facts is not None, trainer.ended is None, trainer.seen_ns)


class QualityLog:
    """Counts what arrives and what is known to be lost."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        counts = dict.fromkeys(("received", "dropped", "malformed"), ("Q", 0))
        self._records = Buckets(SECOND_NS, _RECORDS_KEPT_SECONDS, counts)
        self._states: deque[NvmlState] = deque(maxlen=_NVML_STATES_KEPT)

    def received(self, time_ns: int) -> None:
        """One sample that came of a training process's records."""
        place = self._records.place(time_ns)
        if place >= 0:
            self._records.arrays["received"][place] += 1

    def lost(self, loss: LinkLoss) -> None:
        """Records that did not arrive."""
        place = self._records.place(loss.time_ns)
        if place >= 0:
            self._records.arrays["dropped"][place] += loss.dropped
            self._records.arrays["malformed"][place] += loss.malformed

    def nvml(self, state: NvmlState) -> None:
        """What NVML has cost so far."""
        self._states.append(state)

    def window(self, gpus: Iterable[GpuHistory], start_ns: int, now_ns: int, own_cpu_share: float | None) -> Quality:
        """The figures over (start, now]. `received_records` counts what was derived, so it is a lower bound."""
        histories = [each for each in gpus if each.lost is None]
        slices = [each.polls.times[each.polls.since(start_ns) : each.polls.until(now_ns)] for each in histories]
        nvml = self._states[-1] if self._states else None
        gaps = [(after - before) / SECOND_NS for times in slices for before, after in pairwise(times)]
        waiting = [(now_ns - times[-1]) / SECOND_NS for times in slices if times]
        return Quality(
            poll_interval_seconds=self._interval_seconds,
            gpu_samples=sum(map(len, slices)),
            poll_gap_p95_seconds=quantiles(gaps, n=20, method="inclusive")[18] if len(gaps) > 1 else None,
            longest_gap_seconds=max((*gaps, *waiting), default=None),
            dropped_records=self._records.total("dropped", start_ns, now_ns),
            received_records=self._records.total("received", start_ns, now_ns),
            malformed_packets=self._records.total("malformed", start_ns, now_ns),
            nvml=nvml,
            nvml_calls_per_gpu_second=self._call_rate(start_ns),
            own_cpu_share=own_cpu_share,
            dropped_values=sum(each.dropped_values for each in histories) + (nvml.dropped_values if nvml else 0),
            counter_resets=sum(each.counter_resets for each in histories),
        )

    def _call_rate(self, start_ns: int) -> float | None:
        """Over the polls of one child: a new one counts from zero."""
        states = [state for state in self._states if state.time_ns > start_ns and state.gpu_count]
        calls = seconds = 0.0
        for before, after in pairwise(states):
            if after.calls >= before.calls:
                calls += (after.calls - before.calls) / (after.gpu_count or 1)
                seconds += (after.time_ns - before.time_ns) / SECOND_NS
        return calls / seconds if seconds > 0 else None
