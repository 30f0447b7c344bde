"""A program as a source: hooked through the real derivation, or attached to as its stacks and counters show it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

from gpuwatch.samples import CurrentLine, ProcessSample, RunFacts, Sample, StackTally, TrainerEnded, WorkerFetch
from gpuwatch.sources.hook_link.facts import with_roles
from gpuwatch.sources.hook_link.run import RunDerivation
from gpuwatch.sources.simulator.model import GpuModel
from tests.scenarios.host import HostSensors
from tests.scenarios.job import Job, Loading, Stretch
from tests.scenarios.looks import LINES, WAITS
from tests.scenarios.program import Actor, Player, Program
from tests.scenarios.stream import StreamSource
from tests.scenarios.training import EVAL_LOADER, SCRIPT, TRAIN_LOADER, trainer_name, worker_pid

PACKETS_PER_SECOND = 4
TRAINING = frozenset({"forward", "backward", "optimizer"})
SEEN_SECONDS = 0.02
"""A line on which the thread stands for less, once, is hardly sampled."""
PASSING_SECONDS = 0.01
INFERS_SECONDS = 12.0
"""So long a loop over a loader is taken for an evaluation before a training."""


@dataclass(slots=True)
class _Stands:
    """Where a rank was sampled last."""

    key: tuple[object, ...] = ()
    since: float = 0.0
    has_trained: bool = False


class ProgramSource(StreamSource):
    """The samples of one program.

    Args:
        job: machine, first loader and step.
        program: what the script does.
        seed: of everything random.
        start_ns: of the stream.
        loaders: further ones, by number.
        hooked: whether a hook is in the run.
        stacks: whether its stacks can be read; without a hook they must be.
        infers: whether it trains nothing.
    """

    def __init__(
        self,
        job: Job,
        program: Program,
        seed: str,
        start_ns: int,
        *,
        loaders: dict[int, Loading] | None = None,
        hooked: bool = True,
        stacks: bool = True,
        infers: bool = False,
        optimizer: bool = True,
    ) -> None:
        self._program, self._loaders = program, loaders or {}
        self._is_hooked, self._has_stacks = hooked, stacks
        self._infers, self._optimizer = infers, optimizer
        self._derived: dict[int, RunDerivation] = {}
        self._known: dict[int, RunFacts] = {}
        self._said: dict[int, tuple[object, ...]] = {}
        self._stands: dict[int, _Stands] = {}
        self._ended = False
        super().__init__(job, seed, start_ns, hooked=hooked)
        self._host = HostSensors(self.player.seen_job, self._rng)

    @property
    def player(self) -> Player:
        """What is played."""
        assert isinstance(self.training, Player)
        return self.training

    def _play(self, seed: str, gpus: list[list[GpuModel]]) -> Player:  # type: ignore[override]
        see = None if self._is_hooked else self._emit
        return Player(self._job, self._program, seed, gpus, see, self._ns, self._loaders)

    def _run_facts(self, rank: int, generation: int, time_ns: int) -> RunFacts:
        facts = super()._run_facts(rank, generation, time_ns)
        train = facts.loaders[0]
        role = "train" if self._infers else "eval"
        loaders = [train, replace(train, loader=EVAL_LOADER, line=94, num_workers=2, batches_per_epoch=40, role=role)]
        for number, loading in self._loaders.items():
            more = replace(
                train,
                loader=number,
                line=88 + 2 * number,
                num_workers=loading.workers,
                batch_size=loading.batch_size,
                persistent_workers=loading.persistent,
                batches_per_epoch=loading.batches_per_epoch,
            )
            loaders.append(more)
        model = facts.model if self._optimizer else replace(facts.model, optimizer=None, optimizer_fused=None)
        facts = replace(facts, loaders=tuple(loaders), model=model)
        if not self._is_hooked:
            return facts
        derived = self._derived[rank] = RunDerivation(facts.trainer)
        self._known[rank] = facts
        self._learn(derived, facts)
        return with_roles(facts, derived.roles(), derived.notes(), time_ns)

    def _learn(self, derived: RunDerivation, facts: RunFacts) -> None:
        derived.places = {one.loader: (one.file, one.line) for one in facts.loaders}
        total = self._job.gpu.memory_total_bytes
        optimizer = facts.model.optimizer is not None
        derived.learn(
            phase_names=(), save_places=((SCRIPT, 160),), optimizer=optimizer, gaps=True, memory_total_bytes=total
        )

    def _play_second(self) -> None:
        end, player = self._second + 1.0, self.player
        while player.time <= end + 0.5:
            player.advance()
            for rank in player.ranks:
                made = [fetch for queue in rank.queues.values() for fetch in queue.fetches]
                self._host.fetched(rank.index, made)
                self._recent.setdefault(rank.index, []).extend(made)
                for queue in rank.queues.values():
                    queue.fetches = []
                for fetch in made:
                    self._emit(fetch.end, self._fetch(rank, fetch.worker, fetch.start, fetch.end, fetch.cpu_seconds))
        for rank in player.ranks:
            rank.flush()
        for part in range(PACKETS_PER_SECOND if self._is_hooked else 0):
            moment = self._second + (part + 1) / PACKETS_PER_SECOND
            for rank in player.ranks:
                self._send(rank, moment)
        self._second += 1
        self._read_driver(end)
        self._read_host(end)
        if player.ended is not None and player.ended <= end and not self._ended:
            self._ended = True
            for rank in player.ranks:
                for sample in self._derived[rank.index].finish(self._ns(end)) if self._is_hooked else ():
                    self._put(end, sample)
                self._emit(end, TrainerEnded(trainer_name(rank.index), self._ns(end), "exited"))

    def _fetch(self, rank: Actor, worker: int, start: float, end: float, cpu_seconds: float) -> WorkerFetch:
        loader = TRAIN_LOADER
        for number, queue in rank.queues.items():
            if worker >= queue.first_worker:
                loader = number
        name = trainer_name(rank.index)
        return WorkerFetch(name, worker_pid(rank, worker), worker, self._ns(start), self._ns(end), cpu_seconds, loader)

    def _send(self, rank: Actor, moment: float) -> None:
        """A packet of the hook's, and what silence completes."""
        derived, now_ns = self._derived[rank.index], self._ns(moment)
        rank.records.sort(key=lambda record: record[5])
        ready = bisect_right(rank.records, now_ns, key=lambda record: record[5])
        samples: list[Sample] = []
        if ready:
            samples += derived.feed(rank.records[:ready], now_ns)
            del rank.records[:ready]
        samples += derived.check(now_ns)
        for sample in samples:
            self._put(moment, sample)
        changes = [change for at, change in self.player.model_changes if at <= moment]
        of_loaders = [change for at, change in self.player.loader_changes if at <= moment]
        said = (tuple(sorted(derived.roles().items())), derived.notes(), len(changes), len(of_loaders))
        if said != self._said.get(rank.index) and not self._ended:
            self._said[rank.index] = said
            facts = self._known[rank.index]
            for change in changes:
                facts = replace(facts, model=replace(facts.model, **change))  # type: ignore[arg-type]
            for change in of_loaders:
                loaders = tuple(replace(one, **change) for one in facts.loaders)  # type: ignore[arg-type]
                facts = replace(facts, loaders=loaders)
            self._learn(derived, facts)
            self._put(moment, with_roles(facts, derived.roles(), derived.notes(), now_ns))

    def _emit(self, time: float, sample: Sample) -> None:
        if self._ended and isinstance(sample, ProcessSample | StackTally):
            return
        if isinstance(sample, StackTally) and not self._has_stacks:
            return
        if isinstance(sample, ProcessSample):
            sample = self._moved(sample, time)
        super()._emit(time, sample)

    def _read_host(self, end: float) -> None:
        if not self._ended:
            for rank in self.player.ranks if self._has_stacks else ():
                current_line = self._current_line(rank, end)
                if current_line is not None:
                    self._put(end, current_line)
        super()._read_host(end)

    def _parts(self, rank: Actor, end: float) -> Iterable[Stretch]:
        first = bisect_right(rank.log, end - 1.0, key=attrgetter("end"))
        for one in rank.log[first:]:
            if one.start >= end:
                return
            yield one

    def _moved(self, sample: ProcessSample, end: float) -> ProcessSample:
        rank = next((one for one in self.player.ranks if sample.pid == self._pid_on(one.index)), None)
        if rank is None:
            return sample
        read = write = 0.0
        state = sample.state
        for one in self._parts(rank, end):
            if one.about is not None:
                inside = min(one.end, end) - max(one.start, end - 1.0)
                read += inside * one.about.read_bytes_per_second
                write += inside * one.about.write_bytes_per_second
                state = one.about.state if one.about.state is not None and one.end >= end - 0.01 else state
        return replace(sample, read_bytes_per_second=read, write_bytes_per_second=write, state=state)

    def _current_line(self, rank: Actor, end: float) -> CurrentLine | None:
        """Where the last sample of a second found the thread, and since when no sample found it elsewhere."""
        stands = self._stands.setdefault(rank.index, _Stands())
        last: Stretch | None = None
        for one in self._parts(rank, end):
            phase = WAITS.get(one.phase, one.phase)
            stands.has_trained |= phase in TRAINING and not self._infers
            inside = min(one.end, end) - max(one.start, end - 1.0)
            if inside < PASSING_SECONDS and one.end < end:
                continue
            line = (one.about.line, one.about.text) if one.about is not None else LINES.get(phase, LINES["other"])
            batches = rank.queue.position if one.about is None else None
            key = (phase, line, batches)
            if key != stands.key or (one.about is not None and one.about.moves):
                stands.key, stands.since = key, max(one.start, end - SEEN_SECONDS if _moves(one) else one.start)
            last = one
        if last is None or (last.about is not None and last.about.state == "T"):
            return None
        phase, (number, text), _ = stands.key  # type: ignore[misc]
        in_loop: bool | None = None
        if stands.has_trained or (self._infers and end > INFERS_SECONDS):
            in_loop = last.about is None or last.about.in_loop
        return CurrentLine(
            trainer_name(rank.index),
            self._ns(end),
            self._ns(stands.since),
            str(phase),
            SCRIPT,
            number,
            "main",
            text=text,
            in_loop=in_loop,
        )


def _moves(one: Stretch) -> bool:
    return one.about is not None and one.about.moves
