"""Backward passes and optimizer steps, the ends of a step; and the steps that a GradScaler left out."""

from __future__ import annotations

import functools
import sys
import weakref
from time import monotonic_ns
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional

from .frames import Place, calling_place
from .hidden import hidden
from .ring import append, local, pulse
from .wire import BACKWARD, OPTIMIZER, RAISED, SKIPPED

backward_seen = False
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


def hook_steps(torch: ModuleType) -> None:
    """Registers torch's global optimizer hooks, which Dynamo leaves in place."""
    optimizer = sys.modules["torch.optim.optimizer"]
    before, after = _step_hooks(torch)
    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)


def wrap_optimizer(torch: ModuleType) -> None:
    """Learns where optimizers are built."""
    torch.optim.Optimizer.__init__ = _noted(torch.optim.Optimizer.__init__)


def wrap_backward(torch: ModuleType) -> None:
    """Times `torch.autograd.backward`, which `Tensor.backward` calls by that name."""
    torch.autograd.backward = _timed(torch.autograd.backward)


def wrap_scaler(torch: ModuleType) -> None:
    """Learns of skipped steps at `GradScaler.update`."""
    scaler = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler
    scaler.update = _checked(scaler.update)


def _noted(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807 - it takes that method's place
        original(self, *arguments, **named)
        pulse.begin()
        _register(self, calling_place())

    return hidden(__init__)


def _register(optimizer: Any, place: Optional[Place]) -> OptimizerEntry:
    global _last_number
    _last_number = min(_last_number + 1, 0xFFFF)
    # A weak reference's callback written in Python would swallow a Ctrl-C that arrives in it; dict.pop is C.
    entry = OptimizerEntry(_last_number, optimizer, place, functools.partial(_by_id.pop, id(optimizer)))
    _by_id[id(optimizer)] = entry
    pulse.facts_changed = True
    return entry


def _step_hooks(torch: Any) -> Any:
    # Dynamo evaluates this to a constant while it traces a compiled step: the hooks vanish from the graph
    # instead of breaking it.
    is_tracing = getattr(torch.compiler, "is_dynamo_compiling", None) or torch.compiler.is_compiling

    def before(optimizer: Any, arguments: Any, named: Any) -> None:
        if is_tracing():
            return
        state = local.state
        state.open_steps.append((monotonic_ns(), state.backwards))

    def after(optimizer: Any, arguments: Any, named: Any) -> None:
        if is_tracing():
            return
        end_ns = monotonic_ns()
        state = local.state
        state.trains = True
        entry = _by_id.get(id(optimizer)) or _register(optimizer, None)
        if not entry.stepped_ns:
            pulse.facts_changed = True
        entry.stepped_ns = end_ns
        start_ns, backwards = state.open_steps.pop() if state.open_steps else (end_ns, state.backwards)
        closure = state.backwards != backwards
        append((OPTIMIZER, 0, entry.number, state.native, start_ns, end_ns, closure, 0))
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
            append((BACKWARD, RAISED, 0, local.state.native, start_ns, monotonic_ns(), 0, 0))
            raise
        end_ns = monotonic_ns()
        state = local.state
        state.backwards += 1
        if state.backwards == 1:
            state.trains = True
            _note_backward(calling_place())
        append((BACKWARD, 0, 0, state.native, start_ns, end_ns, 0, 0))
        if end_ns >= pulse.due_ns:
            pulse.flush(end_ns)
        return result

    return hidden(backward)


def _note_backward(place: Optional[Place]) -> None:
    global backward_place, backward_seen
    pulse.begin()
    backward_seen = True
    backward_place = backward_place or place
    pulse.facts_changed = True


def _checked(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update(self: Any, *arguments: Any, **named: Any) -> Any:
        state = local.state
        skipped = _skipped_by(self, state.scaler_update_ns)
        result = original(self, *arguments, **named)
        now_ns = state.scaler_update_ns = monotonic_ns()
        for number in skipped:
            append((OPTIMIZER, SKIPPED, number, state.native, now_ns, now_ns, 0, 0))
        if now_ns >= pulse.due_ns:
            pulse.flush(now_ns)
        return result

    return hidden(update)


def _skipped_by(scaler: Any, since_ns: int) -> List[int]:
    """The optimizers whose `scaler.step` did not reach `optimizer.step`: inf or NaN in the gradients.

    A fused optimizer is called either way and decides on the GPU; asking it would synchronise.
    """
    numbers = []
    for identity, status in getattr(scaler, "_per_optimizer_states", {}).items():
        entry = _by_id.get(identity)
        stage = getattr(status.get("stage"), "name", None)
        if entry is not None and stage == "STEPPED" and entry.stepped_ns <= since_ns:
            numbers.append(entry.number)
    return numbers


PATCHES = {"torch": (hook_steps, wrap_optimizer, wrap_backward, wrap_scaler)}
