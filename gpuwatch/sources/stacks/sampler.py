"""Who samples: a thread for each target, and one that starts and ends them and hands their samples over.

A read of a process's memory may never return. Each process has a thread of its own, so that neither the samples of the
others nor the end of the program wait for it. It follows its process from the first try to read it to its end.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

from gpuwatch.procfs import PROC, read_stat
from gpuwatch.reader.refusals import CannotReadError, Reason, Watch, access_to, explain, malformed, read_here, silent
from gpuwatch.samples import Sample, TrainerEnded
from gpuwatch.sources.stacks.schedule import Agenda, CpuBudget, CpuMeter
from gpuwatch.sources.stacks.session import ProcessFacts, Session, Settings
from gpuwatch.sources.stacks.workers import AttachReader

if TYPE_CHECKING:
    from gpuwatch.sources.stacks import StackTarget
from gpuwatch.sources.syntax import SHARED

_CPU_SHARE_LIMIT: Final = 0.05
"""What all samples together may cost, of one core."""
_LONE_CPU_SHARE_LIMIT: Final = 0.03
"""The same while one process alone is sampled."""
_IDLE_SECONDS: Final = 0.25
_WAKE_NS: Final = 500_000_000
_MOST_WAITING: Final = 20_000
_SILENT_AFTER: Final = 8
"""Checks of the supervising thread, 2 s: counted and not timed, for this program may have been stopped meanwhile."""
_MOST_SILENT: Final = 16
"""Threads that wait for a process that does not answer; beyond, no new target gets one."""
CLOSE_SECONDS: Final = 0.9


class _Lane:
    """The thread of one target."""

    def __init__(self, target: StackTarget, settings: Settings, clock: Callable[[], int], sampler: Sampler) -> None:
        self.target = target
        self.meter = CpuMeter()
        self.watch = Watch()
        self.followed: FollowedTarget | None = None
        self.is_wanted = True
        self._clock = clock
        self._sampler = sampler
        self._settings = replace(settings, agenda=Agenda(clock), meter=self.meter)
        self._seen_operation = 0
        self._seen_for = 0
        self.thread = threading.Thread(target=self._run, name=f"gpuwatch-stacks-{target.pid}", daemon=True)
        self.thread.start()

    @property
    def is_silent(self) -> bool:
        """Whether its process keeps it waiting."""
        return self._seen_for >= _SILENT_AFTER

    def check(self) -> None:
        """Sees whether it still does the operation that it did before, and says so where that lasts."""
        pid, operation = self.watch.pid, self.watch.operations
        is_same = pid is not None and operation == self._seen_operation
        self._seen_operation, self._seen_for = operation, self._seen_for + 1 if is_same else 0
        if pid is not None and self._seen_for == _SILENT_AFTER and self.followed is not None:
            self.followed.note_silence(pid, self._clock())

    def _run(self) -> None:
        try:
            read_here(self.watch)
            self._follow()
        except Exception as error:  # noqa: BLE001 - what takes the samples raises it: a thread that dies says nothing
            self._sampler.failure = error

    def _follow(self) -> None:
        sampler, agenda = self._sampler, self._settings.agenda
        followed = self.followed = FollowedTarget(self.target, self._settings, self._clock())
        while self.is_wanted and not sampler.closing.is_set():
            agenda.run_due()
            due_ns = agenda.due_ns
            seconds = _IDLE_SECONDS if due_ns is None else (due_ns - self._clock()) / 1e9
            if seconds > 0.0:
                # Half the CPU of Event.wait, 100 times a second; close waits for it.
                time.sleep(min(seconds, _IDLE_SECONDS))
        if sampler.closing.is_set():
            followed.close(self._clock())
        else:
            followed.let_go(self._clock())


class Sampler:
    """Samples all targets, each from a thread of its own; one that hangs in the kernel is left behind at close.

    Args:
        rate_hz: Samples per second of a training thread.
        wake_fd: A non-blocking pipe's write end: a byte is written when samples wait.
    """

    def __init__(self, rate_hz: float, wake_fd: int) -> None:
        self._clock = time.monotonic_ns
        self._wake_fd = wake_fd
        self._woken_ns = 0
        self._lock = threading.Lock()
        self._samples: list[Sample] = []
        self._wanted: frozenset[StackTarget] = frozenset()
        self._lanes: dict[int, _Lane] = {}
        self._leaving: list[_Lane] = []
        self._past_cpu_ns = 0
        self.closing = threading.Event()
        self.failure: Exception | None = None
        self.denied: str | None = None
        """Why the lines of hooked processes are not read, with the cure, of one of them."""
        self._budget = CpuBudget(_CPU_SHARE_LIMIT)
        self._settings = Settings(
            proc_root=PROC,
            attach=AttachReader(),
            rate_hz=rate_hz,
            chance=Random(0),
            agenda=Agenda(self._clock),
            budget=self._budget,
            meter=CpuMeter(),
            emit=self._emit,
        )
        self._thread = threading.Thread(target=self._run, name="gpuwatch-stacks", daemon=True)

    def want(self, targets: Iterable[StackTarget]) -> None:
        """Names the targets to sample from now on; the thread starts with the first."""
        self._wanted = frozenset(targets)
        if self._wanted and not self._thread.ident:
            self._thread.start()

    def take(self) -> list[Sample]:
        """The samples since the last call.

        Raises:
            RuntimeError: the thread has failed: nothing is sampled any more.
        """
        with self._lock:
            samples, self._samples = self._samples, []
        if self.failure is not None and not samples:
            raise RuntimeError(f"sampling stacks has ended: {self.failure!r}") from self.failure
        return samples

    def close(self) -> None:
        """Ends the threads, or leaves those behind whose process keeps them waiting."""
        self.closing.set()
        end = time.monotonic() + CLOSE_SECONDS
        if self._thread.ident:
            self._thread.join(CLOSE_SECONDS)
        for lane in (*self._lanes.values(), *self._leaving):
            lane.thread.join(max(0.0, end - time.monotonic()))
        SHARED.close()

    def _emit(self, sample: Sample) -> None:
        with self._lock:
            # They are not taken: the newest are of no more use than the oldest, and memory is bounded.
            if len(self._samples) < _MOST_WAITING:
                self._samples.append(sample)

    def _run(self) -> None:
        try:
            while not self.closing.is_set():
                self._follow_wanted()
                self._supervise(self._clock())
                self._wake_if_due(self._clock())
                self.closing.wait(_IDLE_SECONDS)
        except Exception as error:  # noqa: BLE001 - as above
            self.failure = error

    def _follow_wanted(self) -> None:
        wanted = self._wanted
        for pid, lane in list(self._lanes.items()):
            if lane.target not in wanted:
                lane.is_wanted = False
                self._leaving.append(self._lanes.pop(pid))
        for lane in [lane for lane in self._leaving if not lane.thread.is_alive()]:
            self._leaving.remove(lane)
            self._past_cpu_ns += lane.meter.used_ns
        leaving = {lane.target.pid for lane in self._leaving}
        for target in wanted:
            # One that ended stays named until it is no longer wanted: its pid may be another's by now.
            if target.pid not in self._lanes and target.pid not in leaving and not self._has_too_many_silent:
                self._lanes[target.pid] = _Lane(target, self._settings, self._clock, self)

    @property
    def _has_too_many_silent(self) -> bool:
        return sum(lane.is_silent for lane in (*self._lanes.values(), *self._leaving)) >= _MOST_SILENT

    def _supervise(self, now_ns: int) -> None:
        lanes = (*self._lanes.values(), *self._leaving)
        for lane in lanes:
            lane.check()
        denials = (lane.followed.denied for lane in self._lanes.values() if lane.followed is not None)
        self.denied = next((denial for denial in denials if denial is not None), None)
        sampled = sum(lane.followed.sampled for lane in lanes if lane.followed is not None)
        self._budget.limit_share = _CPU_SHARE_LIMIT if sampled > 1 else _LONE_CPU_SHARE_LIMIT
        self._budget.note(now_ns, self._past_cpu_ns + sum(lane.meter.used_ns for lane in lanes))

    def _wake_if_due(self, now_ns: int) -> None:
        if self._samples and now_ns - self._woken_ns >= _WAKE_NS:
            self._woken_ns = now_ns
            with suppress(BlockingIOError):  # full: the reader has yet to wake
                os.write(self._wake_fd, b"\0")


UPKEEP_NS: Final = 250_000_000
_FIRST_RETRY_NS: Final = 1_000_000_000
_LAST_RETRY_NS: Final = 30_000_000_000
_FIRST_EXCLUSION_NS: Final = 300_000_000_000
_LAST_EXCLUSION_NS: Final = 3_600_000_000_000
_GRACE_NS: Final = 5_000_000_000
_PASSING: Final = frozenset({Reason.NOT_READY, Reason.GONE})
_MAY_PASS: Final = frozenset({Reason.NOT_PYTHON, Reason.NO_SYMBOLS})


class FollowedTarget:
    """One target. (pid, start_ticks) is settled at the first sample; another process of the same pid is not it."""

    def __init__(self, target: StackTarget, settings: Settings, now_ns: int) -> None:
        self.target = target
        self.ended = False
        self.sampled = 0
        """How many processes are looked at for it: itself and its workers, as far as they can be read."""
        self.denied: str | None = None
        """Why the kernel denies the memory of a hooked process, with the cure: its steps are known, its lines not."""
        self._settings = settings
        self._closed = False
        self._session: Session | None = None
        self._facts: ProcessFacts | None = None
        self._is_other_program = False
        self._exclusion_ns = _FIRST_EXCLUSION_NS
        self._began_ns = self._try_ns = now_ns
        self._retry_ns = _FIRST_RETRY_NS
        self._is_silence_reported = False
        self._reported: tuple[str, str | None] | None = None
        settings.agenda.add(now_ns, self._upkeep)

    def close(self, now_ns: int) -> None:
        """Stops sampling without reporting it."""
        self._closed = True
        self._drop_session(now_ns)

    def let_go(self, now_ns: int) -> None:
        """The same because it is no longer wanted: where it has just ended, that is why, and is still reported."""
        if self._facts is not None and not self.ended:
            stat = read_stat(self._settings.proc_root, self.target.pid)
            if stat is None or stat.has_ended or stat.start_ticks != self._facts.start_ticks:
                self._end(self._facts, now_ns)
        self.close(now_ns)

    def note_silence(self, pid: int, now_ns: int) -> None:
        """Says that the process, or its worker `pid`, keeps its own thread waiting; called from another one."""
        if self._facts is not None and not self.target.hooked and not self._closed:
            self._settings.emit(self._facts.unreadable(now_ns, silent(pid)))
        self._is_silence_reported = True

    def _upkeep(self, now_ns: int) -> int | None:
        if self._closed:
            return None
        try:
            try:
                self._follow(now_ns)
            except CannotReadError as error:
                if error.is_lasting:
                    raise
                self._lose(error, now_ns)
        except Exception as error:  # noqa: BLE001 - what reading one process meets must not end the samples of all others
            self._exclude(error, now_ns)
        finally:
            self.sampled = 0 if self._session is None else self._session.sampled
            self._settings.meter.lap()  # what was not charged to this process is charged to none
        return None if self.ended else now_ns + UPKEEP_NS

    def _follow(self, now_ns: int) -> None:
        if self._is_silence_reported:
            self._is_silence_reported = False
            self._reported = None
            if self._session is not None:
                self._session.emit_facts_again()
        stat = read_stat(self._settings.proc_root, self.target.pid)
        if self._facts is None:
            if stat is None or stat.has_ended:
                self.ended = True
                return
            self._facts = self._read_facts(stat.start_ticks)
        if stat is None or stat.has_ended or stat.start_ticks != self._facts.start_ticks:
            self._end(self._facts, now_ns)
        elif self._is_other_program:
            self._is_other_program = False
            self._facts = self._read_facts(stat.start_ticks)
        elif self._session is not None and self._session.gone:
            # It lives, so it has become another program (exec).
            self._drop_session(now_ns)
            self._is_other_program = True
        elif self._session is not None and self._session.failed is not None:
            raise self._session.failed
        elif self._session is not None:
            self._session.upkeep(now_ns, stopped=stat.state in "Tt")
        elif now_ns >= self._try_ns:
            self._attach(self._facts, now_ns)

    def _read_facts(self, start_ticks: int) -> ProcessFacts:
        facts = ProcessFacts(self.target.pid, start_ticks, self._settings.proc_root)
        facts.refresh()
        return facts

    def _attach(self, facts: ProcessFacts, now_ns: int) -> None:
        settings = self._settings
        process, counters = settings.attach(facts.pid, settings.proc_root)
        if process.start_ticks != facts.start_ticks:
            process.close()
            return
        self._reported = self.denied = None
        self._session = Session(facts, self.target.hooked, process, counters, settings, now_ns)

    def _exclude(self, error: Exception, now_ns: int) -> None:
        """Tries no more for five minutes, then at growing intervals: what failed once would fail again."""
        refusal = error if isinstance(error, CannotReadError) else malformed(self.target.pid, error)
        self._lose(refusal, now_ns)
        self._try_ns = now_ns + self._exclusion_ns
        self._exclusion_ns = min(4 * self._exclusion_ns, _LAST_EXCLUSION_NS)

    def _lose(self, error: CannotReadError, now_ns: int) -> None:
        self._drop_session(now_ns)
        self._try_ns = now_ns + self._retry_ns
        self._retry_ns = min(2 * self._retry_ns, _LAST_RETRY_NS)
        early = now_ns - self._began_ns < _GRACE_NS
        if error.reason in _PASSING or (early and error.reason in _MAY_PASS):
            return
        if self.target.hooked and error.reason is Reason.PERMISSION:
            pid = self.target.pid
            sentence, cure = explain(pid, access_to(pid, self._settings.proc_root), hooked=True)
            self.denied = f"{sentence}: {cure}"
        refusal = error.sentence, error.cure
        if self._facts is not None and not self.target.hooked and refusal != self._reported:
            self._reported = refusal
            with suppress(Exception):  # they may be what failed
                self._facts.refresh()
            self._settings.emit(self._facts.unreadable(now_ns, error))

    def _drop_session(self, now_ns: int) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):  # what is left of it may be what failed
                session.close(now_ns)

    def _end(self, facts: ProcessFacts, now_ns: int) -> None:
        self._drop_session(now_ns)
        self.ended = True
        if not self.target.hooked:
            # How a process that is not our child ended cannot be known.
            self._settings.emit(TrainerEnded(facts.trainer, now_ns, "exited"))
