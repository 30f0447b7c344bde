"""Which trainers make one run, what it is called, and which GPUs it uses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from gpuwatch.samples import GpuProcess, HostSample, RunFacts, TrainerEnded
from gpuwatch.timeline.gpu import GpuHistory
from gpuwatch.timeline.host import ProcessHistory
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.trainer import TrainerHistory

_GONE_NS = 5 * SECOND_NS
_LOST_SIGHT_NS = 5 * SECOND_NS
_OWN_MEMORY = 0.25  # of the most that a process holds on one GPU
_INTERPRETER_OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")


Identity = tuple[int, int]
"""Pid and start time in clock ticks: a pid alone is reused."""


class ProcessSet(frozenset[int]):
    """Processes that are chosen, as a set of their pids that knows when each began.

    A pid whose start time is not known stands for the process that has it.
    """

    _starts: dict[int, set[int]]

    @classmethod
    def of(cls, identities: Iterable[Identity], unknown: Iterable[int] = ()) -> ProcessSet:
        """Those processes, and those pids of which nothing more is known."""
        starts: dict[int, set[int]] = {}
        for pid, start_ticks in identities:
            starts.setdefault(pid, set()).add(start_ticks)
        loose = frozenset(unknown) - starts.keys()
        made = cls(starts.keys() | loose)
        made._starts = starts
        return made

    def holds(self, pid: int, start_ticks: int) -> bool:
        """Whether this very process is among them."""
        return pid in self and start_ticks in self._starts.get(pid, (start_ticks,))


def holds(chosen: frozenset[int], pid: int, start_ticks: int) -> bool:
    """Whether a process is chosen; by its pid alone where only pids are known."""
    return chosen.holds(pid, start_ticks) if isinstance(chosen, ProcessSet) else pid in chosen


@dataclass(frozen=True, slots=True)
class Run:
    """The trainers of one job, by rank; every one has facts."""

    id: str
    title: str
    trainers: tuple[TrainerHistory, ...]

    @property
    def pids(self) -> frozenset[int]:
        """Of its trainers."""
        return frozenset(trainer.facts.pid for trainer in self.trainers if trainer.facts)

    def is_of(self, chosen: frozenset[int]) -> bool:
        """Whether any of its trainers is among the chosen processes."""
        return any(
            trainer.facts is not None and holds(chosen, trainer.facts.pid, trainer.facts.start_ticks)
            for trainer in self.trainers
        )

    def is_watched(self, now_ns: int) -> bool:
        """Whether its figures are still being taken. A hook speaks when there is something to say.

        Seen from outside, a process that lives is sampled every second; once it is no longer sampled, its
        state is unknown.
        """
        return any(
            trainer.is_exact or trainer.ended or now_ns - trainer.seen_ns <= _LOST_SIGHT_NS for trainer in self.trainers
        )

    @property
    def seen_ns(self) -> int:
        """When any of them was heard last."""
        return max(trainer.seen_ns for trainer in self.trainers)

    @property
    def has_ended(self) -> bool:
        """Whether none of them lives."""
        return all(trainer.ended is not None for trainer in self.trainers)


def grouped(trainers: Iterable[TrainerHistory]) -> list[Run]:
    """The runs, oldest first. Trainers that have not introduced themselves belong to none yet."""
    members: dict[str, list[TrainerHistory]] = {}
    for trainer in trainers:
        if trainer.facts is not None:
            members.setdefault(run_id_of(trainer.facts), []).append(trainer)
    return [_run(run_id, found) for run_id, found in members.items()]


def newest(trainers: Collection[TrainerHistory], count: int) -> set[str]:
    """The trainers of `count` runs, living ones first, and as many that have not introduced themselves."""
    runs = sorted(grouped(trainers), key=lambda run: (run.has_ended, -run.seen_ns))
    ids = {run.id for run in runs[:count]}
    nameless = sorted((each for each in trainers if each.facts is None), key=lambda each: -each.seen_ns)
    named = {each.trainer for each in trainers if each.facts and run_id_of(each.facts) in ids}
    return named | {each.trainer for each in nameless[:count]}


def run_id_of(facts: RunFacts) -> str:
    """The run that a trainer belongs to."""
    return facts.group or facts.trainer


def _run(run_id: str, members: list[TrainerHistory]) -> Run:
    """Where a job was started again under its old address, a rank's newest trainer stands for it.

    Ranks beyond the newest trainer's world are those of the larger job before.
    """
    by_rank: dict[object, TrainerHistory] = {}
    world_size = None
    for trainer in members:
        assert trainer.facts is not None
        rank, world_size = trainer.facts.rank, trainer.facts.world_size
        by_rank[trainer.trainer if rank is None else rank] = trainer
    everyone = sorted(by_rank.values(), key=_rank)
    # A trainer may claim a rank beyond its own world.
    ordered = [each for each in everyone if world_size is None or _rank(each)[0] < world_size] or everyone
    first = ordered[0].facts
    assert first is not None
    return Run(run_id, title_of(first.command), tuple(ordered))


def _rank(trainer: TrainerHistory) -> tuple[int, int]:
    assert trainer.facts is not None
    rank = trainer.facts.rank
    return (0 if rank is None else rank, trainer.facts.pid)


def unhooked(pid: int, start_ticks: int, process: ProcessHistory, host: HostSample | None) -> Run:
    """A process without a hook, as a run without steps. Once the host goes on without it, it has ended."""
    sample = process.latest
    assert sample is not None
    trainer = TrainerHistory(f"{pid}.{start_ticks}")
    trainer.add_facts(
        RunFacts(
            time_ns=sample.time_ns,
            trainer=trainer.trainer,
            pid=pid,
            start_ticks=start_ticks,
            command=tuple((sample.command or f"process {pid}").split()),
            cpu_affinity=sample.affinity_cores,
            visibility="process",
        )
    )
    trainer.first_ns = process.rows.times[0]
    if host is not None and host.time_ns - sample.time_ns > _GONE_NS:
        trainer.end(TrainerEnded(trainer.trainer, sample.time_ns, "exited"))
    return _run(trainer.trainer, [trainer])


def title_of(command: tuple[str, ...]) -> str:
    """What a user calls the run: the script's or module's name, without the interpreter and its options."""
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return next(words, word)
        if word == "-c":
            return f"{PurePath(command[0]).name} -c"
        if word in _INTERPRETER_OPTIONS_WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return PurePath(word).name
    return PurePath(command[0]).name if command else "unknown command"


def gpus_of(
    run: Run, gpus: Mapping[str, GpuHistory], processes: Mapping[tuple[int, int], ProcessHistory]
) -> tuple[str, ...]:
    """The UUIDs of its GPUs, by index: what the trainers say, else where NVML sees their processes."""
    said = {uuid for trainer in run.trainers if trainer.facts for uuid in trainer.facts.gpu_uuids}
    if said:
        return _by_index(_known(said, gpus), gpus)
    pids = set(run.pids)
    for trainer in run.trainers:
        assert trainer.facts is not None
        process = processes.get((trainer.facts.pid, trainer.facts.start_ticks))
        if process is not None and process.latest is not None:
            pids.update(worker.pid for worker in process.latest.workers)
    return _by_index({uuid for uuid, gpu in gpus.items() if pids & _pids_on(gpu)}, gpus)


def gpus_of_trainer(facts: RunFacts, gpus: Mapping[str, GpuHistory]) -> tuple[str, ...]:
    """The UUIDs of one trainer's GPUs: what it says, else, by index, where NVML sees most of its memory.

    Each rank of a job may have a small context on the first GPU, in addition to its own.
    """
    if facts.gpu_uuids:
        return _by_index(_known(facts.gpu_uuids, gpus), gpus) or facts.gpu_uuids
    held = {
        uuid: process.memory_bytes
        for uuid, gpu in gpus.items()
        for process in _processes_on(gpu)
        if process.pid == facts.pid
    }
    most = max((held_bytes for held_bytes in held.values() if held_bytes is not None), default=0)
    return _by_index({uuid for uuid, bytes_ in held.items() if bytes_ is None or bytes_ >= _OWN_MEMORY * most}, gpus)


def _pids_on(gpu: GpuHistory) -> set[int]:
    return {process.pid for process in _processes_on(gpu) if process.pid is not None}


def _processes_on(gpu: GpuHistory) -> tuple[GpuProcess, ...]:
    status = gpu.latest_status
    return () if status is None or status.processes is None else status.processes


def _known(said: Iterable[str], gpus: Iterable[str]) -> set[str]:
    """Those as NVML names them: it writes "GPU-1f2e...", torch the same without the prefix."""
    plain = {uuid.removeprefix("GPU-").lower() for uuid in said}
    return {uuid for uuid in gpus if uuid.removeprefix("GPU-").lower() in plain}


def _by_index(uuids: set[str], gpus: Mapping[str, GpuHistory]) -> tuple[str, ...]:
    def index(uuid: str) -> tuple[int, str]:
        facts = gpus[uuid].facts
        return (facts.index if facts else len(gpus), uuid)

    return tuple(sorted(uuids, key=index))
