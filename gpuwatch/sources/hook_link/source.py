"""The hook link as a source: trainers come, speak and end, and samples come out.

Records stay plain tuples: a run of 1,000 steps a second sends some 4,000 of them, and a dataclass per record would cost
more than all of its derivation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuwatch.foreign import UNKNOWN_WHEREABOUTS, Whereabouts, whereabouts
from gpuwatch.hook import wire
from gpuwatch.samples import LinkLoss, Role, RunFacts, Sample, TrainerEnded, WorkerFetch
from gpuwatch.sources.hook_link.facts import (
    BadFactsError,
    Fields,
    Json,
    TrainerFacts,
    merge,
    parse,
    trainer_facts,
    with_roles,
)
from gpuwatch.sources.hook_link.rendezvous import (
    FolderFinder,
    PresenceWatch,
    Processes,
    Rendezvous,
    RendezvousError,
    born_ns,
    rendezvous_path,
)
from gpuwatch.sources.hook_link.run import RunDerivation
from gpuwatch.sources.hook_link.server import Connection, Limits, Server


class MalformedPacketError(ValueError):
    """A packet that no speaker of the protocol sends; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet without its header. `dropped` is the sender's count of records lost so far."""

    kind: int
    count: int
    dropped: int
    body: memoryview

    def records(self) -> Iterable[wire.Record]:
        """The records of a RECORDS packet, decoded as they are asked for."""
        if self.count * wire.RECORD.size != len(self.body):
            raise MalformedPacketError(f"{self.count} records announced, {len(self.body)} bytes came")
        return wire.RECORD.iter_unpack(self.body)

    def json(self) -> bytes:
        """The text of a packet that carries JSON."""
        if self.count != len(self.body):
            raise MalformedPacketError(f"{self.count} bytes announced, {len(self.body)} came")
        return bytes(self.body)


def parse_packet(data: bytes | memoryview) -> Packet:
    """Splits a packet from its header.

    Raises:
        MalformedPacketError: too short, wrong magic or wrong version.
    """
    if len(data) < wire.HEADER.size:
        raise MalformedPacketError(f"a packet of {len(data)} bytes is shorter than its header")
    magic, version, kind, count, dropped = wire.HEADER.unpack_from(data)
    if magic != wire.MAGIC:
        raise MalformedPacketError("wrong magic")
    if version != wire.VERSION:
        raise MalformedPacketError(f"protocol version {version}, this monitor speaks {wire.VERSION}")
    return Packet(kind, count, dropped, memoryview(data)[wire.HEADER.size :])


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

    def records(self, packet: Packet, now_ns: int) -> list[Sample]:
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
            detail = "records with impossible times"
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

    def _resume(self, records: Iterable[wire.Record]) -> list[wire.Record]:
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

    def records(self, packet: Packet, now_ns: int) -> list[Sample]:
        """One packet of records, of which only fetches mean something.

        Raises:
            MalformedPacketError: its length is not what it announces.
        """
        return [
            WorkerFetch(self.trainer, self.pid, a, start, end, b / 1e9 if b >= 0 else None, loader or None)
            for kind, _, loader, _, start, end, a, b in packet.records()
            if kind == wire.FETCH and start <= end <= now_ns + _FUTURE_NS
        ]


_CHECK_NS: Final = 200_000_000
_HOUSEKEEPING_NS: Final = 1_000_000_000
_DISCOVERY_NS: Final = 5_000_000_000
_RETRY_NS: Final = 10_000_000_000
_MAX_TRAINERS: Final = 256


class HookLinkSource:
    """All hooked trainers of this user (of all users, for root).

    Args:
        folder: the rendezvous folder; None takes the one that this process's environment names.
        environment: decides over the folder where none is given.
        proc_root: where processes are looked up.
        limits: what peers may take.
        discover: whether folders of containers, other users and other settings are looked for; None does so
            unless a folder was named, which makes it a deliberate meeting place.
    """

    name = "hook"

    def __init__(
        self,
        folder: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        proc_root: Path = Path("/proc"),
        limits: Limits | None = None,
        discover: bool | None = None,
    ) -> None:
        self.problem: str | None = None
        """Why this source cannot listen in its own folder, with the cure; None while it can."""
        self._closed = sys.platform != "linux"
        if self._closed:
            self.problem = "hooked runs are only seen on Linux: the link needs epoll and /proc"
            return
        self._user = os.geteuid()
        settings = os.environ if environment is None else environment
        self._path = folder or rendezvous_path(settings, self._user)
        self._socket_name = f"monitor-{os.getpid()}.sock"
        self._processes = Processes(proc_root)
        self._server = Server(self, limits or Limits())
        self._folders: list[Rendezvous] = []
        self._listeners: dict[tuple[int, int], int] = {}  # folder -> the listener's number in the server
        self._presences = PresenceWatch(self._processes)
        if discover is None:
            discover = folder is None and not settings.get("GPUWATCH_DIR")
        self._finder = FolderFinder(self._processes, self._user) if discover else None
        self._sessions: dict[str, TrainerSession] = {}
        self._speakers: dict[Connection, TrainerSession | WorkerSession] = {}
        self._out: list[Sample] = []
        self._now_ns = 0
        self._refused = 0
        self._refusal = ""
        self._check_ns = 0
        self._housekeeping_ns = 0
        self._discovery_ns = 0
        self._retry_ns = 0
        self._open_own_folder(0)

    @property
    def folder(self) -> Path:
        """The rendezvous folder."""
        return self._path

    # ---- the source

    def fileno(self) -> int | None:
        """The epoll over all sockets and processes."""
        return None if self._closed else self._server.fileno()

    def due_ns(self) -> int | None:
        """The next housekeeping, or what a session or the server waits for."""
        if self._closed:
            return None
        linked = [session.due_ns() for session in self._sessions.values() if session.connection is not None]
        checks = [max(due, self._check_ns) for due in linked if due is not None]
        return min(self._server.due_ns() or self._housekeeping_ns, self._housekeeping_ns, *checks)

    def collect(self, now_ns: int) -> list[Sample]:
        """All samples that are there."""
        if self._closed:
            return []
        self._now_ns = now_ns
        self._server.poll(now_ns)
        if now_ns >= self._check_ns:
            self._check_ns = now_ns + _CHECK_NS
            for session in self._sessions.values():
                if session.connection is not None:
                    self._out += session.check(now_ns)
        if now_ns >= self._housekeeping_ns:
            self._housekeeping_ns = now_ns + _HOUSEKEEPING_NS
            self._keep_house(now_ns)
        out, self._out = self._out, []
        return out

    def close(self) -> None:
        """Removes the sockets; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._server.close()
        for folder in self._folders:
            folder.remove(self._socket_name)
            folder.close()
        self._folders.clear()

    # ---- what the server tells

    def packet(self, connection: Connection, data: memoryview) -> None:
        """Takes one packet of a peer; one that does not speak the protocol is dropped."""
        try:
            packet = parse_packet(data)
            speaker = self._speakers.get(connection)
            if speaker is None:
                self._introduce(connection, packet)
            elif packet.kind == wire.RECORDS:
                self._out += speaker.records(packet, self._now_ns)
            elif packet.kind == wire.FACTS and isinstance(speaker, TrainerSession):
                self._out += speaker.learn(parse(packet.json()), self._now_ns)
            elif packet.kind == wire.BYE:
                connection.said_bye = True
            else:
                self._lose(connection, f"a packet of unknown kind {packet.kind}")
        except (MalformedPacketError, BadFactsError) as error:
            self._lose(connection, str(error))
            self._server.drop(connection)
            self.ended(connection, dead=False)

    def ended(self, connection: Connection, dead: bool) -> None:
        """Gives a trainer's last samples, and how it ended."""
        speaker = self._speakers.pop(connection, None)
        if not isinstance(speaker, TrainerSession):
            return
        speaker.connection = None
        self._out += speaker.finish(self._now_ns)
        alive = not dead and self._processes.is_alive(speaker.pid, speaker.start_ticks)
        if connection.said_bye:
            self._out.append(TrainerEnded(speaker.trainer, self._now_ns, "exited"))
        else:
            self._out.append(TrainerEnded(speaker.trainer, self._now_ns, "lost" if alive else "killed"))
        if not alive:
            self._sessions.pop(speaker.trainer, None)

    def refused(self, reason: str) -> None:
        """Counts a peer that was turned away; ten thousand of them become one sample a second."""
        self._refused += 1
        self._refusal = reason

    # ---- introductions

    def _introduce(self, connection: Connection, packet: Packet) -> None:
        if packet.kind == wire.HELLO:
            self._greet_trainer(connection, packet)
        elif packet.kind == wire.WORKER:
            self._greet_worker(connection, packet)
        else:
            raise MalformedPacketError(f"a packet of kind {packet.kind} before any introduction")

    def _greet_trainer(self, connection: Connection, packet: Packet) -> None:
        content = parse(packet.json())
        fields = Fields(content)
        start_ticks = self._processes.start_ticks(connection.pid)
        claimed = fields.integer("pid", 1)
        if claimed is None or not self._processes.is_known_as(connection.pid, claimed):
            raise BadFactsError(f"process {connection.pid} claims to be {claimed}")
        if start_ticks is None or fields.integer("start_ticks") != start_ticks:
            raise BadFactsError(f"process {connection.pid} claims a start time that is not its own")
        trainer = f"{connection.pid}.{start_ticks}"
        session = self._sessions.get(trainer)
        if session is None:
            if len(self._sessions) >= _MAX_TRAINERS:
                raise BadFactsError(f"more than {_MAX_TRAINERS} trainers")
            session = self._sessions[trainer] = TrainerSession(
                trainer,
                connection.pid,
                start_ticks,
                born_ns(start_ticks),
                whereabouts(connection.pid, self._processes.root),
            )
        elif session.connection is not None:
            raise BadFactsError(f"process {connection.pid} opened two connections")
        self._speakers[connection] = session
        self._server.introduce(connection, watch=True)
        self._out += session.hello(connection, content, self._now_ns)

    def _greet_worker(self, connection: Connection, packet: Packet) -> None:
        fields = Fields(parse(packet.json()))
        claimed = fields.integer("parent", 1)
        parent = self._processes.ancestor_known_as(connection.pid, claimed) if claimed is not None else None
        if parent is None and self._processes.start_ticks(connection.pid) is None:
            # Workers of a short epoch end sooner than they are read: whose they were is no longer known.
            self._server.drop(connection)
            return
        if parent is None:
            raise BadFactsError(f"process {connection.pid} claims to work for {claimed}, which is not its parent")
        start_ticks = self._processes.start_ticks(parent)
        if start_ticks is None or fields.integer("parent_start_ticks") != start_ticks:
            raise BadFactsError(f"process {connection.pid} works for an earlier process {claimed}")
        self._speakers[connection] = WorkerSession(f"{parent}.{start_ticks}", connection.pid)
        self._server.introduce(connection, watch=False)

    def _lose(self, connection: Connection, detail: str) -> None:
        speaker = self._speakers.get(connection)
        if speaker is None:
            self.refused(detail)
        else:
            self._out.append(LinkLoss(speaker.trainer, self._now_ns, malformed=1, detail=detail))

    # ---- housekeeping

    def _keep_house(self, now_ns: int) -> None:
        if self._refused:
            loss = LinkLoss(None, now_ns, malformed=self._refused, detail=self._refusal)
            self._out.append(loss)
            self._refused = 0
        for trainer, session in list(self._sessions.items()):
            alive = session.connection is not None or self._processes.is_alive(session.pid, session.start_ticks)
            if not alive:
                del self._sessions[trainer]
        for folder in [one for one in self._folders if not one.has(self._socket_name)]:
            self._leave(folder)
        if not any(folder.path == self._path for folder in self._folders) and now_ns >= self._retry_ns:
            self._open_own_folder(now_ns)
        if self._finder is not None and now_ns >= self._discovery_ns:
            self._discovery_ns = now_ns + _DISCOVERY_NS
            for folder in self._finder.look({folder.identity for folder in self._folders}):
                self._visit(folder)
        linked = {name for name, session in self._sessions.items() if session.connection is not None}
        self._out += self._presences.look(self._folders, linked, now_ns)

    def _open_own_folder(self, now_ns: int) -> None:
        self._retry_ns = now_ns + _RETRY_NS
        try:
            folder = Rendezvous.create(self._path, self._user)
            for name in [*folder.names("monitor-", ".sock"), *folder.names("doctor-", ".sock")]:
                if not folder.has_live_monitor(name):
                    folder.remove(name)
            self._join(folder)
        except RendezvousError as error:
            if str(error) != self.problem:
                self._out.append(LinkLoss(None, now_ns, detail=str(error)))
            self.problem = str(error)
        else:
            self.problem = None

    def _visit(self, folder: Rendezvous) -> None:
        try:
            self._join(folder)
        except RendezvousError as error:
            self._out.append(LinkLoss(None, self._now_ns, detail=str(error)))

    def _join(self, folder: Rendezvous) -> None:
        try:
            listener = folder.listen(self._socket_name, self._user)
        except RendezvousError:
            folder.close()
            raise
        self._server.listen(listener, frozenset({0, self._user, folder.owner}))
        self._listeners[folder.identity] = listener.fileno()
        self._folders.append(folder)

    def _leave(self, folder: Rendezvous) -> None:
        self._server.close_listener(self._listeners.pop(folder.identity))
        self._folders.remove(folder)
        folder.remove(self._socket_name)
        folder.close()
