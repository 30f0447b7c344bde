"""One trainer whose stacks can be read: its facts, the samples of its threads and workers, and what follows from them.

Of a trainer that has no hook the facts are known by /proc, and by the loaders that its loops read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, Literal

from gpuwatch.foreign import read_program, whereabouts
from gpuwatch.procfs import link_target, listed, read_status
from gpuwatch.reader.attach import Interpreter
from gpuwatch.reader.loaders import LoaderReader, LoaderState
from gpuwatch.reader.refusals import CannotReadError, Reason, expensive
from gpuwatch.reader.stacks import Stack
from gpuwatch.samples import NO_LOADER, BatchCount, LoaderFacts, Role, RunFacts, Sample
from gpuwatch.sources.census import mapped_library, torch_version
from gpuwatch.sources.hook_link.rendezvous import Processes
from gpuwatch.sources.host.identify import HOOK_SILENT, carries_hook
from gpuwatch.sources.host.machine import core_list
from gpuwatch.sources.stacks.classify import Classifier, CodeKey, Owner, Places, Reading, code_key
from gpuwatch.sources.stacks.loops import (
    BatchCounter,
    Iterations,
    Loops,
    Site,
    SteadyCounters,
    TrainingLoops,
    first_round,
)
from gpuwatch.sources.stacks.schedule import Agenda, CpuBudget, CpuMeter, Jitter, Ration
from gpuwatch.sources.stacks.source_text import SourceText
from gpuwatch.sources.stacks.tally import HeldSamples, LineTracker, Spans, StackSample, TallyBuilder
from gpuwatch.sources.stacks.workers import Attach, Feeders, TrainingThread, Worker, WorkerClassifier, Workers

_GPU_DEVICES: Final = re.compile(r"/dev/(?:nvidia\d+|nvidia-uvm|dxg)")
_MOST_DESCRIPTORS: Final = 65_536  # 0.1 s
_RANKS: Final = ("rank", "local_rank", "world_size", "local_world_size")


class ProcessFacts:
    """The facts of one process that hold as long as it runs, and its device."""

    def __init__(self, pid: int, start_ticks: int, proc_root: Path) -> None:
        self.pid = pid
        self.start_ticks = start_ticks
        self.trainer = f"{pid}.{start_ticks}"
        self._proc_root = proc_root
        self._whereabouts = whereabouts(pid, proc_root)
        self._folder = f"{proc_root}/{pid}"
        self.command = read_program(proc_root, pid)
        environment = Processes(proc_root).environment(pid) or {}
        self._group, self._ranks = ranks(environment)
        self._how_to_see_more = HOOK_SILENT if carries_hook(proc_root, pid) else None
        self._cwd = link_target(f"{self._folder}/cwd")
        self.device: str | None = None
        self.torch: str | None = None
        self._torch_mapped = False

    def refresh(self) -> bool:
        """Reads what may still change; whether it did."""
        before = self.device, self.torch
        if not self._torch_mapped:
            self._find_torch()
        if self.device != "cuda":
            self.device = "cuda" if self._holds_gpu() else "cpu" if self._torch_mapped else None
        return before != (self.device, self.torch)

    def sampled(
        self, now_ns: int, version: tuple[int, int], loaders: tuple[LoaderFacts, ...], notes: tuple[str, ...] = ()
    ) -> RunFacts:
        """The facts of a process whose stacks are read."""
        python = f"{version[0]}.{version[1]}"
        return self._facts(now_ns, python, loaders, "sampled", self._how_to_see_more, notes)

    def unreadable(self, now_ns: int, error: CannotReadError) -> RunFacts:
        """The facts of a process whose stacks cannot be read, and how they could."""
        hint = error.with_cure if error.is_lasting else error.cure  # no cure of those says what is wrong
        if error.reason is Reason.PERMISSION and self._how_to_see_more is not None:
            hint = self._how_to_see_more
        return self._facts(now_ns, None, (), "process", hint, (error.sentence,))

    def _facts(
        self,
        now_ns: int,
        python: str | None,
        loaders: tuple[LoaderFacts, ...],
        visibility: Literal["sampled", "process"],
        how_to_see_more: str | None,
        notes: tuple[str, ...],
    ) -> RunFacts:
        return RunFacts(
            time_ns=now_ns,
            trainer=self.trainer,
            pid=self.pid,
            start_ticks=self.start_ticks,
            command=self.command,
            cwd=self._cwd,
            python=python,
            torch=self.torch,
            group=self._group,
            rank=self._ranks["rank"],
            local_rank=self._ranks["local_rank"],
            world_size=self._ranks["world_size"],
            local_world_size=self._ranks["local_world_size"],
            device=self.device,
            cpu_affinity=self._affinity(),
            loaders=loaders,
            user=self._whereabouts.user,
            mount_namespace=self._whereabouts.mount_namespace,
            boot=self._whereabouts.boot,
            visibility=visibility,
            how_to_see_more=how_to_see_more,
            notes=notes,
        )

    def _find_torch(self) -> None:
        library = mapped_library(self._proc_root, self.pid)
        if library is not None and library.is_torch:
            self._torch_mapped = True
            self.torch = torch_version(self._proc_root, self.pid, library)

    def _holds_gpu(self) -> bool:
        folder = f"{self._folder}/fd"
        opened = (link_target(f"{folder}/{descriptor}") for descriptor in listed(folder)[:_MOST_DESCRIPTORS])
        return any(_GPU_DEVICES.fullmatch(path) for path in opened if path is not None)

    def _affinity(self) -> int | None:
        cores = read_status(self.pid, self._proc_root).get("Cpus_allowed_list")
        return None if cores is None else len(core_list(cores.encode()))


def ranks(environment: Mapping[str, str]) -> tuple[str | None, dict[str, int | None]]:
    """The group and the ranks, formed as the hook forms them so that hooked and unhooked ranks join in one run."""
    numbers = {field: _number(environment.get(field.upper())) for field in _RANKS}
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if not address or not port:
        return None, numbers
    import hashlib  # loads OpenSSL, 4 MB: only for distributed jobs

    job = ":".join(filter(None, (address, port, environment.get("TORCHELASTIC_RUN_ID"))))
    return hashlib.sha256(job.encode("utf-8", "surrogateescape")).hexdigest()[:16], numbers


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


_CallSite = tuple["str | None", "int | None"]


class LoaderCatalogue:
    """Describes loops' loaders; where one was built is looked up once per place, again if there was no answer."""

    def __init__(self, text: SourceText, places: Places) -> None:
        self._text = text
        self._places = places
        self._call_sites: dict[tuple[str, int | None, str | None], _CallSite] = {}

    def facts(self, sites: Sequence[Site], main_file: str | None) -> tuple[LoaderFacts, ...]:
        """All loaders as they are now."""
        return tuple(self._describe(site, main_file) for site in sites)

    def _describe(self, site: Site, main_file: str | None) -> LoaderFacts:
        key = site.code[0], site.line, main_file
        unanswered = self._text.unanswered
        file, line = self._call_sites.get(key) or self._find(site.code[0], site.line, main_file)
        if self._text.unanswered == unanswered:
            self._call_sites[key] = file, line
        settings = LoaderFacts(0) if site.state is None else site.state.settings
        return replace(
            settings,
            loader=site.number or 0,
            file=file,
            line=line,
            role=site.reported_role,
            loop_file=site.code[0],
            loop_line=site.line,
        )

    def _find(self, loop_file: str, loop_line: int | None, main_file: str | None) -> _CallSite:
        for file, line in ((loop_file, loop_line), (main_file, None)):
            if file is None or self._places.of(file).owner is not Owner.USER:
                continue
            found = self._text.loader_line(file, line)
            if found is not None:
                return file, found
        return None, None


_HOOKED_RATE_HZ: Final = 25.0
"""Samples per second of a training thread with a hook, which knows times better: only lines are wanted."""
_WORKER_RATE_HZ: Final = 20.0
_TALLY_NS: Final = 1_000_000_000
_COUNT_NS: Final = 500_000_000
_FACTS_NS: Final = 5_000_000_000
_WORKERS_SELDOM_NS: Final = 2_000_000_000
_STILL_STARTING_NS: Final = 10_000_000_000
_UNPROVEN_SAMPLES: Final = 20
_MOST_SHARE: Final = 0.15
"""Of a core, for one trainer and its workers. All samples together are kept below a third of it by lowering all rates;
a process made to be expensive must not lower those of the others."""
_MOST_SAVED_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Settings:
    """What all sessions of a source share."""

    proc_root: Path
    attach: Attach
    rate_hz: float
    chance: Random
    agenda: Agenda
    budget: CpuBudget
    meter: CpuMeter
    emit: Callable[[Sample], None]


class Session:
    """Samples one process from the moment it can be read until it is gone."""

    def __init__(
        self,
        facts: ProcessFacts,
        hooked: bool,
        process: Interpreter,
        counters: LoaderReader,
        settings: Settings,
        now_ns: int,
    ) -> None:
        self.facts = facts
        self.hooked = hooked
        self.gone = False
        self.failed: Exception | None = None
        """What a sample met that no process should bring about; what follows the process says so and ends this."""
        self._process = process
        self._counters = SteadyCounters(counters)
        self._loader_in = counters.state
        self._settings = settings
        self._closed = False
        self._stopped = False
        self._confirmed_ns = now_ns
        self._text = SourceText(facts.pid, facts.start_ticks, settings.proc_root)
        places = Places(self._text.exists)
        self._classifier = Classifier(places, self._text)
        self._worker_classifier = WorkerClassifier(places, self._text)
        self._loops = Loops(self._classifier, self._text, counters.recheck)
        self._iterations = Iterations(self._classifier, self._text, counters.integer)
        self._training_loops = TrainingLoops(places, self._text)
        self._held = HeldSamples(self._loops)
        self._tally = TallyBuilder(facts.trainer, now_ns)
        self._spans = Spans(facts.trainer)
        self._current_line = LineTracker(facts.trainer)
        self._thread = TrainingThread(process, self._classifier)
        self._feeders = Feeders(process, self._classifier, self._text)
        self._workers = Workers(
            facts.pid, settings.proc_root, settings.attach, settings.chance, settings.budget.attaching
        )
        self._scheduled: dict[Worker, int] = {}
        self._catalogue = LoaderCatalogue(self._text, places)
        self._sent_loaders: tuple[LoaderFacts, ...] | None = None
        self._sent_notes: tuple[str, ...] = ()
        self._ration = Ration(_MOST_SHARE, _MOST_SAVED_NS)
        self._began_ns = now_ns
        self._facts_ns = self._counts_ns = self._workers_ns = 0
        self._schedule = Jitter(self._main_rate(), now_ns, settings.chance)
        settings.agenda.add(self._schedule.due_ns, self._sample)

    @property
    def sampled(self) -> int:
        """The training process and its workers that can be read."""
        return 1 + len(self._workers.readable())

    def upkeep(self, now_ns: int, stopped: bool) -> None:
        """What is done a few times a second; the caller has just asked whether the process lives and runs."""
        if stopped:
            # It was stopped at some moment since the last question: what was seen since may not be training.
            self._held.drop_since(self._confirmed_ns)
        else:
            self._confirmed_ns = now_ns
        self._stopped = stopped
        self._pass_on(now_ns)
        if not stopped:
            self._find_workers(now_ns)
            self._thread.check(now_ns)
        self._report(now_ns)
        self._charge(now_ns)

    def emit_facts_again(self) -> None:
        """Takes back that the process could not be read: what is known of it is reported at the next upkeep."""
        self._sent_loaders = None

    def close(self, now_ns: int) -> None:
        """Tells what is left and lets go of the process."""
        if self._closed:
            return
        self._closed = True
        for sample in self._held.ready(now_ns, now_ns + (1 << 62)):
            self._take(sample)
        if not self.hooked:
            if self._sent_loaders is None:  # it ended before the first upkeep
                self._settings.emit(self.facts.sampled(now_ns, self._process.version, ()))
            for span in self._spans.end(now_ns):
                self._settings.emit(span)
            self._emit_counts()
        self._emit_tally(now_ns)
        self._workers.close()
        self._process.close()

    def _main_rate(self) -> float:
        settings = self._settings
        return (_HOOKED_RATE_HZ if self.hooked else settings.rate_hz) * settings.budget.main_factor

    def _sample(self, now_ns: int) -> int | None:
        if self._closed or self.gone or self.failed is not None:
            return None
        if not self._stopped:
            try:
                self._sample_training(now_ns)
            except CannotReadError as error:
                self._lose(error)
                return None
            except Exception as error:  # noqa: BLE001 - one process's memory must not end the samples of all others
                self.failed = error
                return None
        self._schedule.rate_hz = self._main_rate()
        self._schedule.advance(now_ns)
        self._charge(now_ns)
        return self._schedule.due_ns

    def _charge(self, now_ns: int) -> None:
        """Counts what the trainer has cost since the last time, and ends this where that is more than one may."""
        spent_ns = self._settings.meter.lap()
        self._tally.spend(spent_ns)
        self._ration.spend(spent_ns)
        if self.failed is None and not self._ration.allows(now_ns):
            self.failed = expensive(self.facts.pid, f"its stacks take more than {_MOST_SHARE:.0%} of a core")

    def _lose(self, error: CannotReadError) -> None:
        if error.is_lasting:
            self.failed = error
        else:
            self.gone = True

    def _sample_training(self, now_ns: int) -> None:
        stack = self._thread.stack()
        if stack is None or not stack.frames:
            self._tally.reject()
            return
        reading = self._classifier.read(stack.frames)
        state = self._counters.state(stack, reading, now_ns)
        self._thread.note(reading, now_ns)
        sample = self._make_sample(stack, state, reading, now_ns)
        in_loop = self._training_loops.hold(stack.frames, reading)
        if in_loop is None and self._loops.infers:
            in_loop = sample.site is not None
        if in_loop or sample.is_pinned:
            self._sample_feeders(stack, now_ns, waits=reading.handed or (reading.waits and sample.is_pinned))
            sample.handed = self._feeders.waited_for if reading.handed else None
        self._held.put(sample)
        if not self.hooked and not self._reads_a_loader():
            self._iterations.see(stack.frames, reading, now_ns)
        self._current_line.see(stack, sample, in_loop)

    def _sample_feeders(self, trainer: Stack, now_ns: int, *, waits: bool) -> None:
        """Samples the threads that the training thread waits for, as often as workers, and counts their batches."""
        rate = _WORKER_RATE_HZ * self._settings.budget.worker_factor
        found = self._feeders.sample(trainer, now_ns) if self._feeders.is_due(now_ns, rate, waits=waits) else None
        if found is None:
            return
        self._tally.add_feeders(found)
        for sample in found:
            state = self._loader_in(sample.stack) if sample.reading.waits and not sample.reading.evaluates else None
            if state is not None:
                self._loops.feed(sample.stack, state, sample.reading, now_ns)

    def _make_sample(self, stack: Stack, state: LoaderState | None, reading: Reading, now_ns: int) -> StackSample:
        if reading.phase == "start":
            # The loop that iter() is called for has no iterator yet; one around it does.
            return StackSample(now_ns, reading, None, starts_in=self._caller(stack, reading))
        site = self._loops.see(stack, state, reading, now_ns, self._counters.counted_ns)
        sample = StackSample(now_ns, reading, site, infers=self._loops.infers)
        if site is None and reading.waits and reading.next_frame is not None:
            sample.starts_in = self._caller(stack, reading)
        if site is not None:
            sample.batches = site.counter.batches
        if state is not None:
            sample.iterator, sample.yielded = state.iterator, state.batches_yielded
            sample.first_wait = reading.waits and state.batches_yielded < first_round(state)
        return sample

    def _caller(self, stack: Stack, reading: Reading) -> CodeKey:
        index = reading.next_frame or 0
        while index < len(stack.frames) - 1 and self._classifier.hands_on(stack.frames[index]):
            index += 1
        return code_key(stack.frames[index])

    def _find_workers(self, now_ns: int) -> None:
        counts = [site.state.settings.num_workers for site in self._loops if site.state is not None]
        needed = any(count != 0 for count in counts) or (not counts and now_ns - self._began_ns < _STILL_STARTING_NS)
        if not needed and now_ns - self._workers_ns < _WORKERS_SELDOM_NS:
            return
        self._workers_ns = now_ns
        rate = _WORKER_RATE_HZ * self._settings.budget.worker_factor
        self._workers.find(now_ns, rate)
        readable = self._workers.readable()
        self._scheduled = {worker: samples for worker, samples in self._scheduled.items() if worker in readable}
        for worker in readable:
            if worker not in self._scheduled:
                self._scheduled[worker] = 0
                self._settings.agenda.add(worker.schedule.due_ns, partial(self._sample_process, worker))

    def _sample_process(self, worker: Worker, now_ns: int) -> int | None:
        if self._closed or self.failed is not None or worker.process is None:
            return None
        if not self._stopped:
            try:
                self._sample_worker(worker, worker.process)
            except CannotReadError as error:
                if error.is_lasting:
                    self._tally.reject_worker()
                    self._workers.exclude(worker)
                else:
                    self._workers.lost(worker)
                return None
            except Exception as error:  # noqa: BLE001 - as above
                self.failed = error
                return None
        worker.schedule.rate_hz = _WORKER_RATE_HZ * self._settings.budget.worker_factor
        worker.schedule.advance(now_ns)
        self._charge(now_ns)
        return worker.schedule.due_ns

    def _sample_worker(self, worker: Worker, process: Interpreter) -> None:
        # One that was idle most likely is: then all its threads are asked for, and once.
        main = process.main_stack() if worker.counts and not worker.idle else None
        reading = self._worker_classifier.read([main]) if main is not None else None
        if reading is not None and reading[0] != "idle":
            self._tally.add_worker(worker.pid, *reading)
            return
        # Idle in its main thread: the queue's own thread may still pickle and send.
        stacks = process.stacks()
        worker.proven = worker.proven or self._worker_classifier.is_worker(stacks)
        if not worker.counts:
            self._scheduled[worker] = samples = self._scheduled.get(worker, 0) + 1
            if samples >= _UNPROVEN_SAMPLES:
                self._workers.refuse(worker)
            return
        reading = self._worker_classifier.read(stacks)
        if reading is None:
            self._tally.reject_worker()
        else:
            worker.idle = reading[0] == "idle"
            self._tally.add_worker(worker.pid, *reading)

    def _pass_on(self, now_ns: int) -> None:
        for sample in self._held.ready(self._confirmed_ns, now_ns):
            self._take(sample)

    def _take(self, sample: StackSample) -> None:
        self._tally.add(sample)
        if not self.hooked:
            for span in self._spans.see(sample):
                self._settings.emit(span)

    def _report(self, now_ns: int) -> None:
        if not self.hooked:
            self._emit_facts(now_ns)
            if now_ns - self._counts_ns >= _COUNT_NS:
                self._counts_ns = now_ns
                self._emit_counts()
        if self._tally.age_ns(now_ns) >= _TALLY_NS:
            self._emit_tally(now_ns)
            current_line = self._current_line.now()
            if current_line is not None and not self._stopped:
                self._settings.emit(current_line)

    def _emit_tally(self, now_ns: int) -> None:
        tally = self._tally.take(now_ns, self._workers.count)
        if tally is not None:
            self._settings.emit(tally)

    def _emit_counts(self) -> None:
        # Asked again: on a busy machine the upkeep before it may have taken seconds, in which the count went on.
        now_ns = self._settings.agenda.now_ns()
        if not self.gone:
            try:
                self._loops.recount(now_ns)
            except CannotReadError as error:
                self._lose(error)
        for site in self._loops.named():
            self._emit_count(now_ns, site.number or NO_LOADER, site.reported_role, site.counter)
        if self._iterations.read_ns is not None and not self._reads_a_loader():
            self._emit_count(self._iterations.read_ns, NO_LOADER, "train", self._iterations.counter)

    def _reads_a_loader(self) -> bool:
        """Whether a loop over a loader was seen that may train: its batches are the steps then."""
        return any(site.role != "eval" for site in self._loops)

    def _emit_count(self, time_ns: int, loader: int, role: Role, count: BatchCounter) -> None:
        trainer = self.facts.trainer
        self._settings.emit(BatchCount(trainer, time_ns, loader, role, count.batches, count.epochs, count.exact))

    def _emit_facts(self, now_ns: int) -> None:
        changed = False
        if now_ns - self._facts_ns >= _FACTS_NS:
            self._facts_ns = now_ns
            changed = self.facts.refresh()
        loaders = self._catalogue.facts(self._loops.named(), self._current_line.main_file)
        notes = (self._text.problem,) if self._text.problem else ()
        if changed or loaders != self._sent_loaders or notes != self._sent_notes:
            self._sent_loaders, self._sent_notes = loaders, notes
            self._settings.emit(self.facts.sampled(now_ns, self._process.version, loaders, notes))
