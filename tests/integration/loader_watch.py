"""Watches the loaders of a target that writes down its own batches, and compares what was read with that truth."""

from __future__ import annotations

import bisect
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpuwatch.reader.attach import Interpreter, attach
from gpuwatch.reader.loaders import LoaderReader, LoaderState
from gpuwatch.reader.refusals import CannotReadError, Reason
from tests.integration.forked_python import ForkedPython
from tests.integration.interpreters import Python, require_reading
from tests.integration.process_groups import killed_after

TARGETS = Path(__file__).parent / "loader_targets"
LOOPS = TARGETS / "loops.py"
_NOT_YET = {Reason.NOT_READY, Reason.NOT_PYTHON, Reason.NO_SYMBOLS}


@dataclass(frozen=True, slots=True)
class Look:
    """What was read between two moments."""

    start_ns: int
    end_ns: int
    state: LoaderState | None


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the target's log."""

    time_ns: int
    loader: str
    batches: int


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to loop, from its begin to its end: its events and the looks between them."""

    name: str
    events: list[Event]
    looks: list[Look]

    def allowed(self, loader: str, look: Look) -> set[int]:
        """The counts that the loader had at any moment of the look.

        The target writes a batch down after the count grew, so the next count may stand before its line. From the
        line of an epoch's begin to its first batch the old iterator may still be there.
        """
        own = [event for event in self.events if event.loader == loader]
        if not own:
            return {0}  # a loader that is made, and advanced only along with another
        times = [event.time_ns for event in own]
        first = max(bisect.bisect_right(times, look.start_ns) - 1, 0)
        last = bisect.bisect_left(times, look.end_ns)
        found = {event.batches for event in own[first : last + 1]}
        if 0 in found and first:
            found |= {event.batches for event in own[max(first - 1, 0) : last]}
        return found | {count + 1 for count in found}

    def wrong(self) -> list[tuple[str, int, set[int]]]:
        """Counts that the target cannot have had."""
        return [
            (state.settings.dataset or "", state.batches_yielded, allowed)
            for look in self.looks
            if (state := look.state) is not None
            and state.batches_yielded not in (allowed := self.allowed(state.settings.dataset or "", look))
        ]

    def seen(self) -> float:
        """The share of looks that found a loop, of those between two batches of an epoch."""
        times = [event.time_ns for event in self.events]
        found = []
        for look in self.looks:
            before, after = bisect.bisect_right(times, look.start_ns) - 1, bisect.bisect_left(times, look.end_ns)
            inside = before >= 0 and after < len(times)
            if inside and self.events[before].batches and self.events[after].batches:
                found.append(look.state is not None)
        return sum(found) / max(len(found), 1)

    def misled(self) -> float:
        """The share of looks that named another loader than the one of the last batches before and after the look."""
        times = [event.time_ns for event in self.events]
        clear = wrong = 0
        for look in self.looks:
            last = bisect.bisect_right(times, look.start_ns) - 1
            around = {event.loader for event in self.events[max(last, 0) : bisect.bisect_left(times, look.end_ns) + 1]}
            if look.state is not None and len(around) == 1:
                clear += 1
                wrong += look.state.settings.dataset not in around
        return wrong / max(clear, 1)

    def loaders(self) -> set[str]:
        """The datasets of those loaders that were seen to yield."""
        return {look.state.settings.dataset or "" for look in self.looks if look.state and look.state.batches_yielded}

    def truth(self, loader: str) -> int:
        """Batches that the loader yielded from the first to the last look that found it."""
        looks = [look for look in self.looks if look.state is not None and look.state.settings.dataset == loader]
        inside = [
            event
            for event in self.events
            if event.loader == loader and event.batches and looks[0].start_ns < event.time_ns < looks[-1].end_ns
        ]
        return len(inside)

    def counted(self, loader: str) -> tuple[int, int]:
        """Batches that the counts show in a row, and how many epochs began meanwhile."""
        counts = [look.state for look in self.looks if look.state is not None and look.state.settings.dataset == loader]
        batches = epochs = 0
        for before, after in itertools.pairwise(counts):
            if after.iterator == before.iterator and after.batches_yielded >= before.batches_yielded:
                batches += after.batches_yielded - before.batches_yielded
            else:
                batches += after.batches_yielded
                epochs += 1
        return batches, epochs

    def rates(self, loader: str) -> tuple[float, float, float]:
        """Batches a second from the first growth seen to the last: as read, by the target's log, and one batch's."""
        grown: list[tuple[int, int]] = []
        total, before = 0, None
        for look in self.looks:
            state = look.state
            if state is None or state.settings.dataset != loader:
                continue
            if before is not None:
                same = state.iterator == before.iterator and state.batches_yielded >= before.batches_yielded
                growth = state.batches_yielded - (before.batches_yielded if same else 0)
                total += growth
                if growth:
                    grown.append((look.end_ns, total))
            before = state
        (start_ns, first), (end_ns, last) = grown[0], grown[-1]
        events = [event for event in self.events if event.loader == loader and event.batches]
        inside = sum(start_ns < event.time_ns <= end_ns for event in events)
        seconds = (end_ns - start_ns) / 1e9
        return (last - first) / seconds, inside / seconds, 1 / seconds


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that an interpreter can see, with the targets and a package torch that is only its DataLoader."""

    python: Python
    folder: Path

    def inside(self, path: Path) -> str:
        """A path as the interpreter sees it, which may only run below a folder of its own."""
        return str(path) if self.python.root is None else f"/{path.relative_to(self.python.root)}"

    def command(self, script: str, *arguments: str) -> list[str]:
        return [*self.python.command, self.inside(self.folder / script), *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": self.inside(self.folder)}


@contextmanager
def place(python: Python, folder: Path) -> Iterator[Place]:
    """Puts the targets where the interpreter can see them."""
    with ExitStack() as cleaning:
        if python.root is not None:
            inner = tempfile.TemporaryDirectory(dir=python.root / "tmp")
            folder = Path(cleaning.enter_context(inner))
        package = folder / "torch" / "utils" / "data"
        package.mkdir(parents=True)
        for part in (package, *package.parents[:2]):
            (part / "__init__.py").touch()
        shutil.copy(TARGETS / "dataloader.py", package)
        for target in (LOOPS, TARGETS / "pacing.py", TARGETS / "hostile.py"):
            shutil.copy(target, folder)
        yield Place(python, folder)


@contextmanager
def running(
    command: Sequence[str | Path], environment: Mapping[str, str] | None = None, forked: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A target, gone after the block. With `forked`, it comes from a Python that has imported torch already."""
    require_reading()
    process = (ForkedPython if forked else subprocess.Popen)(
        [str(part) for part in command], env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    with killed_after(process):
        yield process


def attached(process: subprocess.Popen[bytes]) -> Interpreter:
    """Its interpreter, as soon as there is one."""
    while (interpreter := _attached(process.pid)) is None:
        time.sleep(0.01)
    return interpreter


def _attached(pid: int) -> Interpreter | None:
    try:
        return attach(pid)
    except CannotReadError as refusal:
        if refusal.reason not in _NOT_YET:
            raise
        return None


@contextmanager
def looping(
    log: Path, command: Sequence[str | Path], environment: Mapping[str, str] | None = None, forked: bool = False
) -> Iterator[Callable[..., list[Look]]]:
    """A target that steps only while it is looked at; gives the function that looks at it until it ends."""
    counter = os.open(f"{log}.looks", os.O_RDWR | os.O_CREAT)
    os.pwrite(counter, bytes(8), 0)
    try:
        with running(command, environment, forked) as process:
            yield partial(_watch, process, counter)
    finally:
        os.close(counter)


def _watch(process: subprocess.Popen[bytes], counter: int, pause_seconds: float = 0.005) -> list[Look]:
    interpreter = attached(process)
    reader = LoaderReader(interpreter)
    looks: list[Look] = []
    try:
        while True:
            start = time.monotonic_ns()
            stack = interpreter.main_stack()
            if stack is not None:
                state = reader.state(stack)
                looks.append(Look(start, time.monotonic_ns(), state))
                os.pwrite(counter, len(looks).to_bytes(8, "little"), 0)
            time.sleep(pause_seconds)
    except CannotReadError as refusal:
        assert refusal.reason is Reason.GONE, refusal.sentence
    finally:
        interpreter.close()
    return looks


def shapes(log: Path, looks: list[Look]) -> dict[str, Shape]:
    """What happened in each shape of loop, by the target's own log."""
    events: dict[str, list[Event]] = defaultdict(list)
    for line in log.read_text().splitlines():
        nanoseconds, shape, loader, batches = line.split()
        events[shape].append(Event(int(nanoseconds), loader, int(batches)))
    found = {}
    for name, inside in events.items():
        begin, end = inside[0].time_ns, inside[-1].time_ns
        own = [look for look in looks if begin < look.start_ns and look.end_ns < end]
        found[name] = Shape(name, inside[1:-1], own)
    return found
