"""One loop over one loader, and how a frame is recognised as standing in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpuwatch.reader.loaders import LoaderState
from gpuwatch.reader.stacks import Frame
from gpuwatch.samples.run import Role
from gpuwatch.sources.stacks.counts import BatchCounter
from gpuwatch.sources.syntax_child.protocol import Loop

LoopRole = Literal["train", "eval", "neither"]

CodeKey = tuple[str, str, int]


@dataclass(slots=True, eq=False)
class Site:
    """One loop over one loader."""

    loader: int
    code: CodeKey
    line: int | None  # of the `for`, or of the call of next()
    first_ns: int
    state: LoaderState | None
    confirmed: bool = False  # the line was seen while it read
    explicit: bool = False  # read by next(), not by a `for`
    role: LoopRole | None = None
    assumed: bool = False  # the role was not seen but supposed
    number: int | None = None
    last_ns: int = 0
    counted_ns: int = 0  # when the count of `state` was read
    looks: int = 0
    waits: int = 0
    trained: int = 0
    computed: int = 0
    no_gradients: bool = False
    switches: int = 0
    fed_ns: int = 0  # when a thread was last seen in it that makes batches for the training thread
    anchors: tuple[tuple[int, CodeKey], ...] = ()
    counter: BatchCounter = field(default_factory=BatchCounter)

    @property
    def signature(self) -> tuple[object, ...]:
        """What stays the same when a loader is rebuilt with the same settings."""
        state = self.state
        if state is None:
            return ()
        return state.type_name, state.dataset, state.batch_size, state.num_workers, state.batches_per_epoch

    @property
    def told_role(self) -> Role:
        """The role as samples name it."""
        return self.role if self.role in ("train", "eval") else "unknown"


def code_key(frame: Frame) -> CodeKey:
    """What names a piece of code in a process for good; addresses are reused."""
    return frame.code.file, frame.code.name, frame.code.first_line


def read_elsewhere(group: Sequence[Site], outer: Sequence[Frame], waits: bool) -> Site | None:
    """The loop whose next() is called a function away from the loop itself (transformers' get_batch_samples)."""
    if waits:
        standing = {(frame.address, code_key(frame)) for frame in outer[1:]}
        open_ones = (site for site in group if site.explicit or not site.confirmed)
        return next((site for site in open_ones if site.anchors[0] in standing), None)
    here = outer[0].address, code_key(outer[0])
    return next((site for site in group if site.explicit and here in site.anchors[1:]), None)


def around_body(group: Sequence[Site], line: int | None, around: Sequence[Loop]) -> Site | None:
    """The known loop of this loader that a line outside of next() belongs to."""
    firsts = [loop.first for loop in around]
    confirmed = [site for site in group if site.confirmed]
    for site in confirmed:
        if site.line in firsts:
            return site
    explicit = next((site for site in confirmed if site.explicit), None)
    if explicit is not None:
        return explicit
    if not around:
        above = [site for site in confirmed if (site.line or 0) <= (line or 0)]
        return max(above, key=lambda site: site.line or 0, default=None) or next(iter(group), None)
    return next((site for site in group if not site.confirmed), None)


def guess_line(around: Sequence[Loop]) -> int | None:
    """The innermost `for` that may run over a loader: not over a range or a literal."""
    usual = [loop for loop in around if loop.iterates and re.search("load|batch|data|dl", loop.over, re.I)]
    others = [loop for loop in around if loop.iterates and "range(" not in loop.over]
    chosen = next(iter(usual or others or list(around)), None)
    return chosen.first if chosen is not None else None
