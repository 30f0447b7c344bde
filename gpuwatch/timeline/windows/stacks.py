"""What was seen of one trainer from outside in a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuwatch.samples import Standing


@dataclass(frozen=True, slots=True)
class Share:
    """A share of samples with its 95 % interval (Wilson)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class LineShare:
    """One line of the user's code. `share` is of all samples of its kind of thread, idle workers left out."""

    phase: str
    file: str
    line: int
    function: str
    samples: int
    share: Share
    text: str | None = None
    leaf: str | None = None
    callee: str | None = None
    """The function of the user's that it calls, where the share is that of the call and all below it."""
    callee_file: str | None = None
    callee_lines: tuple[int, ...] = ()
    """The lines of that function with the most samples, the most first, where they are known."""


@dataclass(frozen=True, slots=True)
class StackWindow:
    """What was seen from outside in the window: stacks of the training thread and its workers, the loader's counter.

    `phases` are shares of all samples of the training thread, `train_phases` of those outside evaluation, saving
    and compiling. Lines, and calls, are the 20 with the most samples, most first. No 10 % threshold is decided on
    fewer than 600 samples: the interval is then wider than 2.4 points.
    """

    seconds: float  # covered by looks
    samples: int
    rejected: int
    phases: Mapping[str, Share]
    train_phases: Mapping[str, Share]
    lines: tuple[LineShare, ...] = ()
    calls: tuple[LineShare, ...] = ()  # below the loader's next(), and in the loop's own Python and copies
    eval_wait_share: float | None = None  # of the evaluation's samples
    receiving_share: float | None = None  # of all samples: taking over what a worker sent
    first_wait_share: float | None = None  # of all samples: waits for the first batch of an epoch, part of "wait"
    log_quiet_seconds: float | None = None  # of training since the last look at logging; None without one
    log_pause_seconds: float | None = None  # at most so much of it passed from one to the next; None without two
    waits: Sequence[tuple[float, float]] = ()  # seconds of training and of waiting in it, tally by tally, oldest first
    workers: int = 0
    workers_mean: float | None = None  # over time: those of an evaluation loader, and none between epochs, count too
    worker_samples: int = 0
    worker_phases: Mapping[str, Share] = field(default_factory=dict)
    worker_lines: tuple[LineShare, ...] = ()
    worker_calls: tuple[LineShare, ...] = ()
    handed_samples: int = 0  # waits for what another thread or process hands over, in no loader's next()
    feeder_looks: int = 0  # times that the threads which feed the training thread were sampled
    feeder_samples: int = 0  # one for each such thread
    feeder_phases: Mapping[str, Share] = field(default_factory=dict)
    feeder_lines: tuple[LineShare, ...] = ()
    feeder_calls: tuple[LineShare, ...] = ()
    standing: Standing | None = None
    batches_per_second: float | None = None  # of the training loader, over training time and phases alike
    batches_exact: bool = True
    batches_of_loader: bool = True  # else iterations of a loop without one, by its own count
    batches: int = 0  # in the window
    epochs: int = 0  # iterators that began in the window
    cpu_share: float | None = None  # what the looks cost gpuwatch, of one core
