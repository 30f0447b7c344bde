"""How a process is followed from the first try to read it to its end."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from gpuwatch.reader.refusals import CannotReadError, Reason, access_to, explain, malformed, silent
from gpuwatch.samples.run import TrainerEnded
from gpuwatch.sources.host.procfs import read_stat
from gpuwatch.sources.stacks.asked import StackTarget
from gpuwatch.sources.stacks.facts import ProcessFacts
from gpuwatch.sources.stacks.session import Session, Settings

UPKEEP_NS: Final = 250_000_000
_FIRST_RETRY_NS: Final = 1_000_000_000
_LAST_RETRY_NS: Final = 30_000_000_000
_FIRST_EXCLUSION_NS: Final = 300_000_000_000
_LAST_EXCLUSION_NS: Final = 3_600_000_000_000
_GRACE_NS: Final = 5_000_000_000
_PASSING: Final = frozenset({Reason.NOT_READY, Reason.GONE})
_MAY_PASS: Final = frozenset({Reason.NOT_PYTHON, Reason.NO_SYMBOLS})


class FollowedTarget:
    """One target. (pid, start_ticks) is settled at the first look; another process of the same pid is not it."""

    def __init__(self, target: StackTarget, settings: Settings, now_ns: int) -> None:
        self.target = target
        self.ended = False
        self.looked_at = 0
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
        self._is_silence_told = False
        self._reported: tuple[str, str | None] | None = None
        settings.agenda.add(now_ns, self._upkeep)

    def close(self, now_ns: int) -> None:
        """Stops looking, without a sample about it."""
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
        self._is_silence_told = True

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
        except Exception as error:  # noqa: BLE001 - what reading one process meets must not end the looks at all others
            self._exclude(error, now_ns)
        finally:
            self.looked_at = 0 if self._session is None else self._session.looked_at
            self._settings.meter.lap()  # what was not charged to this process is charged to none
        return None if self.ended else now_ns + UPKEEP_NS

    def _follow(self, now_ns: int) -> None:
        if self._is_silence_told:
            self._is_silence_told = False
            self._reported = None
            if self._session is not None:
                self._session.tell_facts_again()
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
        facts.look_again()
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
        """Tries no more for five minutes, then for ever longer: what failed once would fail again."""
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
                self._facts.look_again()
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
