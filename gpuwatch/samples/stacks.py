"""What a process does as seen from outside: sampled stacks, the loader's own counter, and who trains here.

A sample is the stack of one thread at one moment. Shares of samples are shares of time; their error
follows from the count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from gpuwatch.samples.run import Role, Visibility

StackPhase = Literal[
    "wait",  # in the training loader's next(), the first of an epoch too, or for a queue that another thread fills
    "start",  # in iter() of the training loader: its workers start
    "forward",
    "backward",
    "optimizer",
    "sync",  # the line asks for a number or the device: .item(), .cpu(), .tolist(), synchronize()
    "copy",  # host to device: .to(, .cuda(
    "eval",  # anything in a loop over a loader that does not train, its waits too
    "save",
    "log",  # print, tqdm, tensorboard, wandb, matplotlib
    "compile",
    "other",  # the user's own Python in the training loop, or nothing known
]
"""What the training thread does. Every usable sample belongs to exactly one."""

WorkerPhase = Literal["item", "collate", "send", "idle", "other"]
"""What a DataLoader worker does: `item` is the dataset's own code, `idle` waits for work, `send` ships a batch."""

FeederPhase = Literal["make", "wait", "idle", "pin", "pin-idle"]
"""What a thread does that feeds the training thread: `wait` is in a loader's next() with workers, `idle` on a queue.

`pin` and `pin-idle` are those of a DataLoader's own thread, which pins the batches that workers send.
"""


@dataclass(frozen=True, slots=True)
class LineCount:
    """Samples whose culprit, the innermost frame of the user's own code, stood on one line.

    `text` is the line as the file had it, None where the file cannot be read or is newer than the process.
    `leaf` names the library function at work below it ("PIL/Image.py:resize"), None where the line itself runs.
    """

    phase: str  # StackPhase, WorkerPhase or FeederPhase
    file: str
    line: int
    function: str
    samples: int
    text: str | None = None
    leaf: str | None = None


@dataclass(frozen=True, slots=True)
class CallCount:
    """Samples taken inside of one function of the user's while one line of the user's called it, at whatever depth.

    What a function costs that spends its time on many lines, or in others that it calls, is seen here only.
    """

    phase: str  # StackPhase or WorkerPhase
    file: str
    line: int
    function: str
    callee_file: str
    callee: str
    samples: int
    text: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerCount:
    """Samples of one worker, those in which it was idle, and the line that it was seen on most."""

    pid: int
    samples: int
    idle: int
    line: LineCount | None = None


@dataclass(frozen=True, slots=True)
class StackTally:
    """About one second of samples of one trainer and its workers.

    `samples` counts usable samples of the training thread and equals the sum of `phases`; `rejected` those that
    were torn. `worker_samples` are samples of workers, idle ones too. `waiting_samples` is the part of the samples in
    phase "eval" that stood in the evaluation loader's next().
    """

    trainer: str
    start_ns: int
    end_ns: int
    samples: int
    phases: Mapping[str, int]
    lines: tuple[LineCount, ...] = ()
    rejected: int = 0
    eval_waiting_samples: int = 0
    workers: int = 0
    worker_samples: int = 0
    worker_rejected: int = 0
    worker_phases: Mapping[str, int] = field(default_factory=dict)
    worker_lines: tuple[LineCount, ...] = ()
    receiving_samples: int = 0  # of phase "wait": unpickling and mapping what a worker sent, on the training thread
    first_wait_samples: int = 0  # of phase "wait": for an epoch's first batch of each worker
    cpu_seconds: float = 0.0  # what the samples cost gpuwatch
    calls: tuple[CallCount, ...] = ()  # below the loader's next(), and in the loop's own Python and copies
    worker_calls: tuple[CallCount, ...] = ()
    handed_samples: int = 0  # of phase "wait": for what another thread or process hands over, in no loader's next()
    feeder_rounds: int = 0  # times that the threads which feed the training thread were sampled
    feeder_phases: Mapping[str, int] = field(default_factory=dict)  # one count for each thread that feeds a queue
    feeder_lines: tuple[LineCount, ...] = ()
    feeder_calls: tuple[CallCount, ...] = ()
    by_worker: tuple[WorkerCount, ...] = ()


@dataclass(frozen=True, slots=True)
class CurrentLine:
    """Where the training thread was in the last sample, and since when it is at that line."""

    trainer: str
    time_ns: int
    since_ns: int
    phase: str
    file: str
    line: int
    function: str
    text: str | None = None
    leaf: str | None = None
    in_loop: bool | None = None  # of a training; None while no loop that trains has been seen


NO_LOADER: Final = 0


@dataclass(frozen=True, slots=True)
class BatchCount:
    """Batches that one loop over a loader took since watching began; the number only grows.

    `exact`: read from the loader's own counter. Else entries into its next() were counted, which misses short ones.
    Of a training loop without a loader it is the iterations, from the variable that the loop counts them with.
    """

    trainer: str
    time_ns: int
    loader: int  # LoaderFacts.loader, or NO_LOADER
    role: Role
    batches: int
    epochs: int = 0  # iterators that began while watched
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process of this machine that trains, or seems to. `why` says what gave it away, in words."""

    pid: int
    start_ticks: int
    command: tuple[str, ...]
    user: str
    age_seconds: float
    visibility: Visibility  # the best that is possible now
    why: str
    workers: int = 0
    gpu_uuids: tuple[str, ...] = ()
    refusal: str | None = None  # why its stacks cannot be read
    how_to_see_more: str | None = None  # one line


@dataclass(frozen=True, slots=True)
class Candidates:
    """All of them, hooked ones first, then by age."""

    time_ns: int
    processes: tuple[Candidate, ...]
