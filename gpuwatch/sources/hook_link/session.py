"""One linked trainer: its facts, its records, and what of them was lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuwatch.foreign import UNKNOWN_WHEREABOUTS, Whereabouts
from gpuwatch.samples import LinkLoss, Role, RunFacts, Sample, WorkerFetch
from gpuwatch.sources.hook_link import wire
from gpuwatch.sources.hook_link.derive.run import RunDerivation
from gpuwatch.sources.hook_link.facts import Json, TrainerFacts, merge, trainer_facts, with_roles
from gpuwatch.sources.hook_link.server import Connection

_FACTS_PERIOD_NS: Final = 500_000_000
_FUTURE_NS: Final = 1_000_000_000


class TrainerSession:
    """A trainer from its first HELLO to the death of its process, over all its connections.

    Args:
        trainer: its name.
        pid: of the process.
        start_ticks: of the process.
        born_ns: no record of it can begin before this moment.
        whereabouts: the host and the mount namespace in which the names of its files hold.
    """

    def __init__(
        self,
        trainer: str,
        pid: int,
        start_ticks: int,
        born_ns: int = 0,
        whereabouts: Whereabouts = UNKNOWN_WHEREABOUTS,
    ) -> None:
        self.trainer = trainer
        self.pid = pid
        self.start_ticks = start_ticks
        self._whereabouts = whereabouts
        self.connection: Connection | None = None
        self._derivation = RunDerivation(trainer, born_ns)
        self._content: Json = {}
        self._facts: TrainerFacts | None = None
        self._dropped: int | None = None
        self._malformed = 0
        self._resumed_after_ns = 0
        self._facts_due_ns = 0
        self._roles: dict[int, Role] = {}
        self._notes: tuple[str, ...] = ()

    def hello(self, connection: Connection, content: Json, now_ns: int) -> list[Sample]:
        """A new connection: the trainer sends all facts, and what its ring still holds."""
        self.connection = connection
        self._content = {}
        self._dropped = None
        self._resumed_after_ns = self._derivation.last_end_ns
        return self.learn(content, now_ns)

    def learn(self, content: Json, now_ns: int) -> list[Sample]:
        """Facts, all or those that changed."""
        self._content = merge(self._content, content)
        facts = trainer_facts(
            self._content,
            trainer=self.trainer,
            pid=self.pid,
            start_ticks=self.start_ticks,
            time_ns=now_ns,
            whereabouts=self._whereabouts,
        )
        self._facts = facts
        self._derivation.places.clear()
        self._derivation.places.update({one.loader: (one.file, one.line) for one in facts.run.loaders})
        self._derivation.learn(
            phase_names=facts.phases,
            save_places=facts.save_places,
            optimizer=facts.run.model.optimizer is not None,
            gaps=facts.run.gpu_gap_measured,
            memory_total_bytes=facts.memory_total_bytes,
        )
        samples: list[Sample] = [self._run_facts(facts, now_ns)]
        if facts.wrong:
            detail = f"{facts.wrong} facts of the wrong type or size"
            samples.append(LinkLoss(self.trainer, now_ns, malformed=facts.wrong, detail=detail))
        return samples

    def records(self, packet: wire.Packet, now_ns: int) -> list[Sample]:
        """One packet of records.

        Raises:
            MalformedPacketError: its length is not what it announces.
        """
        records = packet.records()
        samples: list[Sample] = []
        if self._resumed_after_ns:
            records = self._resume(records)
        elif self._dropped is not None and packet.dropped > self._dropped:
            lost = packet.dropped - self._dropped
            samples.append(LinkLoss(self.trainer, now_ns, dropped=lost, detail="the trainer's ring overflowed"))
            self._derivation.lose()
        self._dropped = packet.dropped
        samples += self._derivation.feed(records, now_ns)
        wrong = self._derivation.malformed - self._malformed
        if wrong:
            self._malformed += wrong
            detail = "records whose times no clock can have made"
            samples.append(LinkLoss(self.trainer, now_ns, malformed=wrong, detail=detail))
        return samples

    def check(self, now_ns: int) -> list[Sample]:
        """What time alone decides: silence, and facts whose derived part has changed."""
        samples = self._derivation.check(now_ns)
        if now_ns >= self._facts_due_ns:
            self._facts_due_ns = now_ns + _FACTS_PERIOD_NS
            samples += self._changed_facts(now_ns)
        return samples

    def due_ns(self) -> int | None:
        """When `check` wants to be called."""
        return self._derivation.due_ns()

    def finish(self, now_ns: int) -> list[Sample]:
        """The last samples of a trainer that ended."""
        return self._derivation.finish(now_ns) + self._changed_facts(now_ns)

    def _changed_facts(self, now_ns: int) -> list[Sample]:
        """The facts, if what was derived for them has changed."""
        same = self._roles == self._derivation.roles() and self._notes == self._derivation.notes()
        return [] if same or self._facts is None else [self._run_facts(self._facts, now_ns)]

    def _run_facts(self, facts: TrainerFacts, now_ns: int) -> RunFacts:
        self._roles, self._notes = self._derivation.roles(), self._derivation.notes()
        return with_roles(facts.run, self._roles, self._notes, now_ns)

    def _resume(self, records: Iterable[wire.RawRecord]) -> list[wire.RawRecord]:
        """Leaves out what an earlier connection has brought already; without any overlap, some is missing."""
        after = self._resumed_after_ns
        self._resumed_after_ns = 0
        known = list(records)
        fresh = [record for record in known if record[5] > after]
        if len(fresh) == len(known):
            self._derivation.lose()
        return fresh


class WorkerSession:
    """One linked DataLoader worker of a trainer."""

    def __init__(self, trainer: str, pid: int) -> None:
        self.trainer = trainer
        self.pid = pid

    def records(self, packet: wire.Packet, now_ns: int) -> list[Sample]:
        """One packet of records, of which only fetches mean something.

        Raises:
            MalformedPacketError: its length is not what it announces.
        """
        return [
            WorkerFetch(self.trainer, self.pid, a, start, end, b / 1e9 if b >= 0 else None, loader or None)
            for kind, _, loader, _, start, end, a, b in packet.records()
            if kind == wire.FETCH and start <= end <= now_ns + _FUTURE_NS
        ]
