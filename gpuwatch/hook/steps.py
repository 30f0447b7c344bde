"""Backward passes and optimizer steps, the ends of a step; and the steps that a GradScaler left out."""

from __future__ import annotations

import functools
import sys
import weakref
from _thread import get_ident
from time import monotonic_ns
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional

from .built import noting
from .frames import Place, calling_place
from .hidden import hidden
from .quiet import quietly
from .ring import append, pulse
from .wire import BACKWARD, OPTIMIZER, RAISED, SKIPPED

_OPTIMIZER_OVERDUE_NS = 1_000_000_000

backward_seen = False
step_seen = False
backward_place: Optional[Place] = None


class OptimizerEntry:
    """One optimizer of this process. Entries outlive their optimizer: a number is never given twice."""

    __slots__ = ("number", "place", "reference", "stepped_ns")

    def __init__(self, number: int, optimizer: Any, place: Optional[Place], forget: Callable[..., Any]) -> None:
        self.number = number
        self.place = place
        self.stepped_ns = 0
        self.reference: Callable[[], Any] = weakref.ref(optimizer, forget)


_by_id: Dict[int, OptimizerEntry] = {}
_last_number = 0


def optimizers() -> List[OptimizerEntry]:
    """The optimizers that are alive, oldest first."""
    return sorted(_by_id.values(), key=lambda entry: entry.number)


def number_of(address: int, stepped_ns: int) -> int:
    """The number of the optimizer that stepped, and a note that it did; 0 for one that is gone."""
    global step_seen
    entry = _by_id.get(address)
    if entry is None:
        return 0
    if not entry.stepped_ns:
        step_seen = pulse.facts_changed = True
    entry.stepped_ns = stepped_ns
    return entry.number


def hook_steps(torch: ModuleType) -> None:
    """Registers torch's global optimizer hooks, which Dynamo leaves in place."""
    optimizer = sys.modules["torch.optim.optimizer"]
    before, after = _step_hooks(torch)
    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)


def wrap_optimizer(torch: ModuleType) -> None:
    """Learns where optimizers are built."""
    torch.optim.Optimizer.__init__ = noting(torch.optim.Optimizer.__init__, _register)


def wrap_backward(torch: ModuleType) -> None:
    """Times `torch.autograd.backward`, which `Tensor.backward` calls by that name."""
    torch.autograd.backward = _timed(torch.autograd.backward)


def wrap_scaler(torch: ModuleType) -> None:
    """Learns of skipped steps at `GradScaler.update`."""
    scaler = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler
    scaler.update = _checked(scaler.update)


def _register(optimizer: Any, place: Optional[Place]) -> None:
    global _last_number
    pulse.settle()  # records of an optimizer that lived at this address before are still its own
    _last_number = min(_last_number + 1, 0xFFFF)
    # A weak reference's callback written in Python would swallow a Ctrl-C that arrives in it; dict.pop is C.
    entry = OptimizerEntry(_last_number, optimizer, place, functools.partial(_by_id.pop, id(optimizer)))
    _by_id[id(optimizer)] = entry
    pulse.facts_changed = True


def _step_hooks(torch: Any) -> Any:
    # Dynamo evaluates this to a constant while it traces a compiled step: the hooks vanish from the graph
    # instead of breaking it.
    is_tracing = getattr(torch.compiler, "is_dynamo_compiling", None) or torch.compiler.is_compiling
    started_ns: Dict[int, int] = {}

    def before(optimizer: Any, arguments: Any, named: Any) -> None:
        if is_tracing():
            return
        started_ns[id(optimizer)] = monotonic_ns()

    def after(optimizer: Any, arguments: Any, named: Any) -> None:
        if is_tracing():
            return
        end_ns = monotonic_ns()
        address = id(optimizer)
        if address not in _by_id:
            quietly(_register, optimizer, None)
        append((OPTIMIZER, 0, address, get_ident(), started_ns.pop(address, end_ns), end_ns, 0, 0))
        if end_ns >= pulse.due_ns:
            pulse.flush(end_ns)

    return hidden(before), hidden(after)


def _timed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*arguments: Any, **named: Any) -> Any:
        start_ns = monotonic_ns()
        try:
            result = original(*arguments, **named)
        except BaseException:
            append((BACKWARD, RAISED, 0, get_ident(), start_ns, monotonic_ns(), 0, 0))
            raise
        end_ns = monotonic_ns()
        append((BACKWARD, 0, 0, get_ident(), start_ns, end_ns, 0, 0))
        if not backward_seen:
            _note_backward(calling_place())
        # Where an optimizer steps, its hook flushes; one that has stepped may have stepped for the last time.
        if end_ns >= pulse.due_ns + (_OPTIMIZER_OVERDUE_NS if step_seen else 0):
            pulse.flush(end_ns)
        return result

    return hidden(backward)


def _note_backward(place: Optional[Place]) -> None:
    global backward_place, backward_seen
    pulse.begin()
    backward_seen = True
    backward_place = place
    pulse.facts_changed = True


def _checked(original: Callable[..., Any]) -> Callable[..., Any]:
    last_update_ns: Dict[int, int] = {}

    @functools.wraps(original)
    def update(self: Any, *arguments: Any, **named: Any) -> Any:
        thread = get_ident()
        pulse.settle()
        skipped = quietly(_skipped_by, self, last_update_ns.get(thread, 0)) or []
        result = original(self, *arguments, **named)
        now_ns = last_update_ns[thread] = monotonic_ns()
        for address in skipped:
            append((OPTIMIZER, SKIPPED, address, thread, now_ns, now_ns, 0, 0))
        if now_ns >= pulse.due_ns:
            pulse.flush(now_ns)
        return result

    return hidden(update)


def _skipped_by(scaler: Any, since_ns: int) -> List[int]:
    """The addresses of the optimizers whose `scaler.step` did not reach `optimizer.step`: inf or NaN in the gradients.

    A fused optimizer is called either way and decides on the GPU; asking it would synchronise.
    """
    addresses = []
    for identity, status in getattr(scaler, "_per_optimizer_states", {}).items():
        entry = _by_id.get(identity)
        stage = getattr(status.get("stage"), "name", None)
        if entry is not None and stage == "STEPPED" and entry.stepped_ns <= since_ns:
            addresses.append(identity)
    return addresses


PATCHES = {"torch": (hook_steps, wrap_optimizer, wrap_backward, wrap_scaler)}
