"""What the hook sees of the GPU: its idle time caused by a wait, the allocator's counters, and copies of whole batches.

One CUDA event is recorded as `next` is entered and one as it returns; the time between them on the GPU is what it stood
idle. CUDA is never initialised, nothing is ever synchronised, and a query happens only on the training thread, two
or more `next` later and never during a graph capture: from another thread it crashes the capture (pytorch PRs
104487, 104555, 148594).

Copies are seen where a framework moves batches through a function of its own. `Tensor.to` stays as it is. Wrapped, it
adds no graph break (torch 2.13), but tensor subclasses such as torchvision's compare the function they are called for
with it, and models call it hundreds of times a step. So a loop that writes `x.to(device)` itself shows its copy as part
of the forward time, or in stack samples. Only the name in the module that moves batches is replaced, never the function
that recurses.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections import deque
from types import ModuleType
from typing import Any, Callable, Deque, Optional

from . import wire
from .hidden import around
from .quiet import own
from .ring import emit as emit_record
from .ring import pulse, record, started

PAIRS = 32
RIPE_AFTER = 2
FAULTS = 3
MEMORY_PERIOD_NS = 1_000_000_000


class Pair:
    """Two events around one `next`, reused for the whole run."""

    __slots__ = ("first", "loader", "second", "start_ns", "turn")

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second
        self.loader = 0
        self.start_ns = 0
        self.turn = 0


class Gaps:
    """The ring of pairs. `cuda` is `torch.cuda` or whatever behaves like it."""

    def __init__(self, cuda: Any, emit: Callable[[wire.Record], None] = emit_record) -> None:
        self._cuda = cuda
        self._emit = emit
        events = [cuda.Event(enable_timing=True) for _ in range(2 * PAIRS)]
        self._free: Deque[Pair] = deque(Pair(*events[at : at + 2]) for at in range(0, 2 * PAIRS, 2))
        self._waiting: Deque[Pair] = deque()
        self._turn = 0
        self._faults = 0
        self.measured = False

    @property
    def usable(self) -> bool:
        """False once CUDA has refused several times: then the run is left alone."""
        return self._faults < FAULTS

    def enter(self, start_ns: int, loader: int) -> Optional[Pair]:
        """Records the event before a `next`; None where that is not possible just now."""
        try:
            if self._cuda.is_current_stream_capturing():
                return None
            self._turn += 1
            self._read(start_ns)
            if not self._free:
                return None
            pair = self._free.popleft()
            pair.first.record()
        except (RuntimeError, IndexError):  # of CUDA; of a ring that another thread that trains has just emptied
            self._faults += 1
            return None
        pair.loader, pair.start_ns, pair.turn = loader, start_ns, self._turn
        return pair

    def leave(self, pair: Pair) -> None:
        """Records the event after the `next`."""
        try:
            if self._cuda.is_current_stream_capturing():
                self._free.append(pair)
                return
            pair.second.record()
        except RuntimeError:
            self._faults += 1
            self._free.append(pair)
            return
        self._waiting.append(pair)

    def release(self, pair: Pair) -> None:
        """Takes back the pair of a `next` that gave no batch."""
        self._free.append(pair)

    def rest(self) -> None:
        """Forgets the pairs that are on their way."""
        self._free.extend(self._waiting)
        self._waiting.clear()

    def _read(self, now_ns: int) -> None:
        while self._waiting:
            pair = self._waiting.popleft()
            if self._turn - pair.turn < RIPE_AFTER or not pair.second.query():
                self._waiting.appendleft(pair)
                return
            self._free.append(pair)
            idle_ns = int(pair.first.elapsed_time(pair.second) * 1e6)
            self._emit((wire.GAP, 0, pair.loader, get_ident(), now_ns, now_ns, pair.start_ns, idle_ns))
            if not self.measured:
                self.measured = pulse.facts_changed = True


class Device:
    """What the hook holds of CUDA in this process. `gaps` is None while nothing is measured."""

    def __init__(self) -> None:
        self.gaps: Optional[Gaps] = None
        self._kept: Optional[Gaps] = None
        self._given_up = False
        self._memory_due_ns = 0
        self._faults = 0

    def observe(self, cuda: Any, now_ns: int, emit: Callable[[wire.Record], None] = emit_record) -> None:
        """Called per flush on the training thread: begins once CUDA is in use, reads the allocator once a second."""
        if not cuda.is_initialized():
            return
        try:
            if cuda.is_current_stream_capturing():
                return
            if self.gaps is not None and not self.gaps.usable:
                self._given_up = True
                self.pause()
            if self.gaps is None and not self._given_up:
                self._kept = self._kept or Gaps(cuda, emit)
                self._kept.rest()
                self.gaps = self._kept
            if now_ns >= self._memory_due_ns and self._faults < FAULTS:
                self._memory_due_ns = now_ns + MEMORY_PERIOD_NS
                _read_memory(cuda, now_ns, emit)
        except (RuntimeError, AttributeError, AssertionError):
            self._faults += 1

    def pause(self) -> None:
        """While no monitor is linked no events are recorded: a pair costs some microseconds.

        Any thread may say so, therefore the ring itself is left to the thread that trains.
        """
        if self.gaps is not None:
            self.gaps = None
            pulse.facts_changed = True

    def forget(self) -> None:
        """In the child of a fork. The parent's events are kept, not freed: freeing them would call CUDA."""
        self.gaps = None
        self._given_up = self._kept is not None


def _read_memory(cuda: Any, now_ns: int, emit: Callable[[wire.Record], None]) -> None:
    thread = get_ident()
    statistics = cuda.memory_stats()
    allocated = statistics.get("allocated_bytes.all.peak")
    reserved = statistics.get("reserved_bytes.all.peak")
    if allocated is None or reserved is None:
        return
    emit((wire.MEMORY, 0, 0, thread, now_ns, now_ns, allocated, reserved))
    retries, refusals = statistics.get("num_alloc_retries"), statistics.get("num_ooms")
    if retries is not None and refusals is not None:
        emit((wire.RETRIES, 0, 0, thread, now_ns, now_ns, retries, refusals))


device = Device()


def observe(now_ns: int) -> None:
    """`Device.observe` with the process's own torch, where there is one."""
    torch = sys.modules.get("torch")
    cuda = own(torch, "cuda") if torch is not None else None
    if cuda is not None:
        device.observe(cuda, now_ns)


_MOVERS = ("send_to_device", "move_data_to_device")


def wrap_mover(module: ModuleType) -> None:
    """Wraps the batch mover that this module imported."""
    for mover in _MOVERS:
        original = getattr(module, mover, None)
        if original is not None:
            timed = _timed_mover(original)
            timed.__module__ = module.__name__  # it is pickled by its name: where it was defined, that is the original
            setattr(module, mover, timed)


def _timed_mover(original: Callable[..., Any]) -> Callable[..., Any]:
    def enter(device: Any) -> Optional[int]:
        return started() if _is_accelerator(device) else None

    def leave(start_ns: Optional[int], device: Any, result: Any, raised: bool) -> None:
        if start_ns is not None:
            record(wire.COPY, start_ns, flags=wire.RAISED if raised else 0, a=-1)

    return around(original, enter, leave, "device")


def _is_accelerator(device: Any) -> bool:
    if type(device) is str:
        return device.partition(":")[0] != "cpu"
    torch = sys.modules.get("torch")
    return type(device) is int or (torch is not None and type(device) is torch.device and device.type != "cpu")


PATCHES = {
    "accelerate.data_loader": (wrap_mover,),
    "lightning.fabric.wrappers": (wrap_mover,),
    "lightning.pytorch.core.hooks": (wrap_mover,),
    "lightning_fabric.wrappers": (wrap_mover,),
    "pytorch_lightning.core.hooks": (wrap_mover,),
}
