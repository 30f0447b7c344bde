"""Who does what in one trainer: the thread that trains, the threads that make its batches, its DataLoader workers.

A thread feeds the training if it runs code in a loop that puts into a queue, or a task of a thread pool. Which queue it
is cannot be seen, so it is sampled only where the training thread waits for a queue or a task itself now and then. A
DataLoader's thread that pins what its workers send stands between them and the training thread.

Workers that do not persist are restarted for each epoch and may live for 50 ms. They are looked for several times a
second and attached to once they are 100 ms old, as far as an allowance goes: 24 at once, 6 a second, and no more CPU
time than a quarter of what all samples may take, for the training's own thread says more than its workers'.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from gpuwatch.foreign import read_arguments
from gpuwatch.procfs import MOST_THREADS, children_of, listed, read_stat
from gpuwatch.reader.attach import Interpreter
from gpuwatch.reader.attach import attach as attach_to
from gpuwatch.reader.codes import Code
from gpuwatch.reader.loaders import LoaderReader
from gpuwatch.reader.refusals import Cache, CannotReadError
from gpuwatch.reader.stacks import Frame, Stack
from gpuwatch.samples import FeederPhase, StackPhase, WorkerPhase
from gpuwatch.sources.host.source import WORKER_NAME
from gpuwatch.sources.stacks.classify import (
    Call,
    Classifier,
    Culprit,
    Owner,
    Place,
    Places,
    Reading,
    name_calls,
    name_culprit,
)
from gpuwatch.sources.stacks.schedule import Jitter, Ration
from gpuwatch.sources.stacks.source_text import SourceText

_CHECK_NS: Final = 3_000_000_000
_TRUSTED_NS: Final = 60_000_000_000


class TrainingThread:
    """The main thread, until another is seen in backward or optimizer and the main one never is.

    Threads that only wait for a loader prefetch; backward by autograd's own threads has no frame of the call.
    """

    def __init__(self, process: Interpreter, classifier: Classifier) -> None:
        self._process = process
        self._classifier = classifier
        self._thread: int | None = None
        self._trained_ns: int | None = None
        self._checked_ns: int | None = None
        self._missed = 0

    def stack(self) -> Stack | None:
        """The training thread's stack now; None where it was torn."""
        if self._thread is None:
            return self._process.main_stack()
        found = next((stack for stack in self._process.stacks() if stack.thread == self._thread), None)
        self._missed = 0 if found is not None else self._missed + 1
        if self._missed >= 100:
            self._thread, self._missed = None, 0
        return found

    def note(self, reading: Reading, now_ns: int) -> None:
        """Takes note of whether the sampled thread trains."""
        if reading.trains:
            self._trained_ns = now_ns

    def check(self, now_ns: int) -> None:
        """Samples all threads every few seconds while the present one was not seen to train.

        Raises:
            CannotReadError: The process is gone.
        """
        if self._trained_ns is not None and now_ns - self._trained_ns < _TRUSTED_NS:
            return
        if self._checked_ns is not None and now_ns - self._checked_ns < _CHECK_NS:
            return
        self._checked_ns = now_ns
        for stack in self._process.stacks():
            if not stack.is_main and stack.frames and self._classifier.read(stack.frames).trains:
                self._thread, self._trained_ns = stack.thread, now_ns
                return


_PUTS: Final = frozenset({"put", "put_nowait"})
_POOL: Final = "concurrent/futures/thread.py"
_FETCH: Final = "torch/utils/data/_utils/fetch.py"
_PIN: Final = "torch/utils/data/_utils/pin_memory.py"
_QUEUES: Final = frozenset({"queue.py", "multiprocessing/queues.py"})
_PUTS_KEPT: Final = 2048
_WAITED_NS: Final = 10_000_000_000


@dataclass(frozen=True, slots=True)
class FeederSample:
    """One sample of one such thread."""

    stack: Stack
    reading: Reading
    phase: FeederPhase


class Feeders:
    """The threads other than the training thread."""

    def __init__(self, process: Interpreter, classifier: Classifier, text: SourceText) -> None:
        self._process = process
        self._classifier = classifier
        self._text = text
        self._puts: Cache[tuple[str, int | None], bool] = Cache(_PUTS_KEPT)
        self._sampled_ns: int | None = None
        self._waited_ns: int | None = None
        self._saves = False

    def is_due(self, now_ns: int, rate_hz: float, *, waits: bool) -> bool:
        """Whether they are to be sampled now: as often as the rate asks for, while the training waits now and then.

        Also while it computes: how busy they are says how long they take for a batch.
        """
        if waits:
            self._waited_ns = now_ns
        if self._waited_ns is None or now_ns - self._waited_ns > _WAITED_NS:
            return False
        return self._sampled_ns is None or now_ns - self._sampled_ns >= 1e9 / rate_hz

    def sample(self, trainer: Stack, now_ns: int) -> tuple[FeederSample, ...] | None:
        """A sample of each of them; None where they save.

        Raises:
            CannotReadError: The process is gone.
        """
        self._sampled_ns = now_ns
        found = tuple(self._found(trainer))
        feeding = [sample for sample in found if sample.phase not in ("pin", "pin-idle")]
        self._saves = bool(feeding) and all(sample.reading.phase == "save" for sample in feeding)
        return None if self._saves else found

    @property
    def waited_for(self) -> StackPhase:
        """What the training thread waits for, as they were seen last: a checkpoint that a thread writes, or data."""
        return "save" if self._saves else "wait"

    def _found(self, trainer: Stack) -> Iterator[FeederSample]:
        for stack in self._process.stacks():
            if stack.thread == trainer.thread or not stack.frames:
                continue
            places = [self._classifier.places.of(frame.code.file) for frame in stack.frames]
            if any(place.module == _PIN for place in places):
                yield FeederSample(stack, self._classifier.read(stack.frames), self._pins(stack.frames, places))
            elif self._feeds(stack.frames, places):
                reading = self._classifier.read(stack.frames)
                yield FeederSample(stack, reading, self._phase(stack.frames, reading))

    def _pins(self, frames: Sequence[Frame], places: Sequence[Place]) -> FeederPhase:
        """It takes batches over, pins them and puts them into a queue; between batches it waits for the workers'."""
        is_waiting = any(place.module in _QUEUES for place in places) and not self._classifier.receives(frames, places)
        return "pin-idle" if is_waiting else "pin"

    def _feeds(self, frames: Sequence[Frame], places: Sequence[Place]) -> bool:
        if any(place.module == _POOL for place in places):
            return any(place.owner is Owner.USER for place in places)
        return any(
            self._is_in_putting_loop(frame)
            for frame, place in zip(frames, places, strict=True)
            if place.owner is Owner.USER or (place.owner is Owner.LIBRARY and place.package != "torch")
        )

    def _is_in_putting_loop(self, frame: Frame) -> bool:
        key = frame.code.file, frame.line
        known = self._puts.get(key)
        if known is None:
            known = self._puts[key] = any(loop.calls & _PUTS for loop in self._text.loops(*key))
        return known

    def _phase(self, frames: Sequence[Frame], reading: Reading) -> FeederPhase:
        modules = [self._classifier.places.of(frame.code.file).module for frame in frames]
        if reading.waits:
            return "make" if _FETCH in modules or reading.receiving else "wait"
        inner = next((module for module in modules if module != "threading.py"), None)
        return "idle" if inner in _QUEUES or reading.handed else "make"


_ATTACH_PER_SECOND: Final = 6.0
_ATTACH_BURST: Final = 24.0
_TRIES: Final = 5
_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MIN_AGE_NS: Final = 100_000_000
_RETRY_NS: Final = 300_000_000
_THOROUGH_NS: Final = 2_000_000_000
_FORKSERVER: Final = "multiprocessing.forkserver"


Attach = Callable[[int, Path], "tuple[Interpreter, LoaderReader]"]
"""(pid, /proc) -> the process; raises `CannotReadError`."""


class AttachReader:
    """Attaches the reader, and keeps what forks share: workers of a trainer, ranks of a launcher that forks them."""

    def __init__(self) -> None:
        self._attached: WeakValueDictionary[int, Interpreter] = WeakValueDictionary()
        self._last_child: WeakValueDictionary[int, Interpreter] = WeakValueDictionary()  # by its parent's pid

    def __call__(self, pid: int, proc_root: Path) -> tuple[Interpreter, LoaderReader]:
        """Attaches to a process; it raises `CannotReadError`."""
        stat = read_stat(proc_root, pid)
        parent = None if stat is None else stat.parent
        relative = None if parent is None else self._attached.get(parent) or self._last_child.get(parent)
        interpreter = self._attached[pid] = attach_to(pid, proc_root=proc_root, relative=relative)
        if parent is not None:
            self._last_child[parent] = interpreter
        return interpreter, LoaderReader(interpreter)


@dataclass(slots=True, eq=False)
class Worker:
    """One process below the trainer that is, or may be, a DataLoader worker."""

    pid: int
    start_ticks: int
    named: bool  # torch gave it the worker's name
    schedule: Jitter
    process: Interpreter | None = None
    idle: bool = False  # at the last sample
    proven: bool = False
    tries: int = 0
    retry_ns: int = 0

    @property
    def counts(self) -> bool:
        """Whether it is known to be a worker."""
        return self.named or self.proven


class Workers:
    """The workers of one trainer."""

    def __init__(
        self,
        pid: int,
        proc_root: Path,
        attach: Attach,
        chance: random.Random,
        ration: Ration | None = None,
        *,
        cpu_clock: Callable[[], int] = time.thread_time_ns,
        since_boot: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    ) -> None:
        self._ration = ration
        self._cpu_clock = cpu_clock
        self._since_boot = since_boot
        self._pid = pid
        self._proc_root = proc_root
        self._attach = attach
        self._chance = chance
        self._known: dict[int, Worker] = {}
        self._others: dict[int, int] = {}  # children that are no workers: pid -> start
        self._excluded: dict[int, int] = {}  # those that are not to be read, whatever they are
        self._forkservers: set[int] = set()
        self._allowance = _ATTACH_BURST
        self._sampled_ns: int | None = None
        self._thorough = True
        self._thorough_ns = -_THOROUGH_NS
        self._forkers: set[str] = set()  # threads that have children

    @property
    def count(self) -> int:
        """How many workers there are."""
        return sum(worker.counts for worker in self._known.values())

    def readable(self) -> list[Worker]:
        """The workers whose stacks can be asked for."""
        return [worker for worker in self._known.values() if worker.process is not None]

    def find(self, now_ns: int, rate_hz: float) -> None:
        """Finds new workers and lets go of those that ended."""
        if self._sampled_ns is not None:
            earned = (now_ns - self._sampled_ns) / 1e9 * _ATTACH_PER_SECOND
            self._allowance = min(_ATTACH_BURST, self._allowance + earned)
        self._sampled_ns = now_ns
        self._thorough = now_ns - self._thorough_ns >= _THOROUGH_NS
        if self._thorough:
            self._thorough_ns = now_ns
            self._forkers.clear()
        children = self._children(self._pid)
        unknown = children - self._known.keys() - self._others.keys() - self._forkservers
        self._forkservers = {pid for pid in self._forkservers | unknown if pid in children and self._is_forkserver(pid)}
        children = (children - self._forkservers).union(*map(self._children, self._forkservers))
        for pid in self._known.keys() - children:
            self._let_go(pid)
        self._others = {pid: start for pid, start in self._others.items() if pid in children}
        self._excluded = {pid: start for pid, start in self._excluded.items() if pid in children}
        for pid in sorted(children):
            self._meet(pid, now_ns, rate_hz)

    def lost(self, worker: Worker) -> None:
        """Forgets a worker that ended while it was read."""
        self._let_go(worker.pid)

    def refuse(self, worker: Worker) -> None:
        """Takes a child for what it is: no worker."""
        self._others[worker.pid] = worker.start_ticks
        self._let_go(worker.pid)

    def exclude(self, worker: Worker) -> None:
        """Never reads a child again that cannot be read without harm."""
        self._excluded[worker.pid] = worker.start_ticks
        self._let_go(worker.pid)

    def close(self) -> None:
        """Lets go of all."""
        for pid in list(self._known):
            self._let_go(pid)

    def _meet(self, pid: int, now_ns: int, rate_hz: float) -> None:
        stat = read_stat(self._proc_root, pid)
        if stat is None or stat.has_ended:
            self._let_go(pid)
            return
        worker = self._known.get(pid)
        if worker is not None and worker.start_ticks != stat.start_ticks:
            self._let_go(pid)
            worker = None
        if self._excluded.get(pid) == stat.start_ticks:
            return
        if self._others.get(pid) == stat.start_ticks and stat.command_name != WORKER_NAME:
            return
        if worker is None:
            worker = Worker(pid, stat.start_ticks, False, Jitter(rate_hz, now_ns, self._chance))
            self._known[pid] = worker
        worker.named = worker.named or stat.command_name == WORKER_NAME
        if (
            worker.process is None
            and worker.tries < _TRIES
            and now_ns >= worker.retry_ns
            and self._may_try(worker, now_ns)
        ):
            start = self._cpu_clock()
            self._try(worker, now_ns)
            if self._ration is not None:
                self._ration.spend(self._cpu_clock() - start)

    def _may_try(self, worker: Worker, now_ns: int) -> bool:
        if self._allowance < 1.0 or (self._ration is not None and not self._ration.allows(now_ns)):
            return False
        return not 0 <= self._since_boot() - worker.start_ticks * _TICK_NS < _MIN_AGE_NS

    def _try(self, worker: Worker, now_ns: int) -> None:
        self._allowance -= 1.0
        worker.tries += 1
        worker.retry_ns = now_ns + _RETRY_NS * worker.tries
        try:
            process, _ = self._attach(worker.pid, self._proc_root)
        except CannotReadError as error:
            if error.is_lasting:
                self.exclude(worker)
            elif worker.tries >= _TRIES and not worker.counts:
                self.refuse(worker)
            return
        if process.start_ticks != worker.start_ticks:
            process.close()
            return
        worker.process = process

    def _let_go(self, pid: int) -> None:
        worker = self._known.pop(pid, None)
        if worker is not None and worker.process is not None:
            worker.process.close()

    def _children(self, pid: int) -> set[int]:
        """The children of a process. Each hangs on the thread that forked it: all 200 are asked only now and then."""
        threads = {str(pid), *self._forkers}
        if self._thorough or pid != self._pid:
            threads |= set(listed(f"{self._proc_root}/{pid}/task")[:MOST_THREADS])
        found: set[int] = set()
        for thread in threads:
            below = children_of(self._proc_root, pid, thread)
            if below and pid == self._pid:
                self._forkers.add(thread)
            found |= below
        return found

    def _is_forkserver(self, pid: int) -> bool:
        return any(_FORKSERVER in word for word in read_arguments(self._proc_root, pid))


_LOOP: Final = "torch/utils/data/_utils/worker.py"
_QUEUE: Final = "multiprocessing/queues.py"
_COLLATES: Final = re.compile(r"\bcollate_fn\(")
_FEEDER_RESTS: Final = re.compile(r"nwait\(|nacquire\(|nrelease\(|popleft\(")
_KEPT: Final = 2048

WorkerReading = tuple[WorkerPhase, "Culprit | None", tuple[Call, ...]]
"""What it does, on which line, and by which calls it came there."""


class WorkerClassifier:
    """Reads the stacks of one trainer's workers. Frames outside of the worker's loop are not its own.

    A forked worker carries the stack its parent had when it was started: the user's training loop stands in it.
    """

    def __init__(self, places: Places, text: SourceText) -> None:
        self._places = places
        self._text = text
        self._read: Cache[tuple[int | None, ...], tuple[Sequence[Code], WorkerReading]] = Cache(_KEPT)

    def is_worker(self, stacks: Sequence[Stack]) -> bool:
        """Whether the process runs a worker's loop."""
        return any(self._loop_index(stack.frames) is not None for stack in stacks)

    def read(self, stacks: Sequence[Stack]) -> WorkerReading | None:
        """What the worker does; None where its main thread was not seen.

        A batch is pickled and sent by a thread of the queue's own, after the main thread has gone on.
        """
        main = next((stack for stack in stacks if stack.is_main), None)
        if main is None:
            return None
        reading = self._of_main(main.frames)
        if reading[0] == "idle" and any(self._sends(stack.frames) for stack in stacks if not stack.is_main):
            return "send", None, ()
        return reading

    def _of_main(self, frames: Sequence[Frame]) -> WorkerReading:
        key = tuple(value for frame in frames for value in (id(frame.code), frame.line))
        known = self._read.get(key)
        if known is None:
            known = self._read[key] = tuple(frame.code for frame in frames), self._classify(frames)
        return known[1]

    def _classify(self, frames: Sequence[Frame]) -> WorkerReading:
        loop = self._loop_index(frames)
        if loop is None:
            return "other", None, ()
        # In a hooked worker the hook's frames stand in between.
        own = [frame for frame in frames[:loop] if self._places.of(frame.code.file).owner is not Owner.GPUWATCH]
        places = [self._places.of(frame.code.file) for frame in own]
        if not own:
            return _by_loop_line(self._text.line(frames[loop].code.file, frames[loop].line) or ""), None, ()
        called = places[-1].module
        if called == _QUEUE:
            return ("idle" if own[-1].code.name == "get" else "send"), None, ()
        phase = self._of_fetch(own, places) if called == _FETCH else "other"
        index = _worker_culprit(places, phase)
        if index is None:
            return phase, None, ()
        line = self._text.line
        return phase, name_culprit(own, places, index, line), name_calls(own, places, index, line)

    def _of_fetch(self, own: Sequence[Frame], places: Sequence[Place]) -> WorkerPhase:
        fetch = next(frame for frame in reversed(own) if frame.code.name == "fetch" or frame is own[-1])
        line = self._text.line(fetch.code.file, fetch.line)
        if line is not None:
            return "collate" if _COLLATES.search(line) else "item"
        collates = any(
            "collate" in frame.code.name or place.module.endswith("collate.py")
            for frame, place in zip(own, places, strict=True)
        )
        return "collate" if collates else "item"

    def _loop_index(self, frames: Sequence[Frame]) -> int | None:
        for index, frame in enumerate(frames):
            if frame.code.name == "_worker_loop" and self._places.of(frame.code.file).module == _LOOP:
                return index
        return None

    def _sends(self, frames: Sequence[Frame]) -> bool:
        """Whether a queue's feeder is at work: it rests in a condition's wait."""
        feeder = next((i for i, f in enumerate(frames) if f.code.name == "_feed" and self._module(f) == _QUEUE), None)
        if feeder is None:
            return False
        if feeder > 0:
            return self._module(frames[feeder - 1]) != "threading.py"
        return not _FEEDER_RESTS.search(self._text.line(frames[0].code.file, frames[0].line) or "nwait(")

    def _module(self, frame: Frame) -> str:
        return self._places.of(frame.code.file).module


def _worker_culprit(places: Sequence[Place], phase: WorkerPhase) -> int | None:
    """The user's innermost frame; where a library's dataset does all of it, the innermost of a library."""
    for owner in (Owner.USER, Owner.LIBRARY) if phase == "item" else (Owner.USER,):
        for index, place in enumerate(places):
            if place.owner is owner and not place.module.startswith("torch/utils/data/_utils/"):
                return index
    return None


def _by_loop_line(line: str) -> WorkerPhase:
    if "data_queue.put" in line:
        return "send"
    if "index_queue.get" in line:
        return "idle"
    return "item" if "fetch(" in line else "other"
