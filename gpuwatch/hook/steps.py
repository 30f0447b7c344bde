"""Backward passes and optimizer steps, the ends of a step; and the steps that a GradScaler left out."""

from __future__ import annotations

import functools
import sys
import weakref
from _thread import get_ident
from time import monotonic_ns
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional

from .hidden import around, hidden, leave_traceback, replace_per_step
from .quiet import Place, attributes, calling_place, noting, own, quietly
from .ring import append, look, native_id, natives, pulse, started
from .wire import BACKWARD, OPTIMIZER, RAISED, SKIPPED

_OPTIMIZER_OVERDUE_NS = 1_000_000_000

backward_seen = False
step_seen = False
backward_place: Optional[Place] = None


class OptimizerEntry:
    """One optimizer of this process. Entries outlive their optimizer: a number is never given twice."""

    __slots__ = ("number", "place", "reference", "started_ns", "stepped_ns")

    def __init__(self, number: int, optimizer: Any, place: Optional[Place], forget: Callable[..., Any]) -> None:
        self.number = number
        self.place = place
        self.started_ns = 0
        self.stepped_ns = 0
        self.reference: Callable[[], Any] = weakref.ref(optimizer, forget)


_by_id: Dict[int, OptimizerEntry] = {}
_last_number = 0


def optimizers() -> List[OptimizerEntry]:
    """The optimizers that are alive, oldest first."""
    return sorted(_by_id.values(), key=lambda entry: entry.number)


def hook_steps(torch: ModuleType) -> None:
    """Registers torch's global optimizer hooks, which Dynamo leaves in place.

    They stay registered while nothing is recorded: compiled optimizers have guards on the tables of hooks, and a change
    would compile them again.
    """
    optimizer = sys.modules["torch.optim.optimizer"]
    before, after = _step_hooks(torch)
    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)


def wrap_optimizer(torch: ModuleType) -> None:
    """Learns where optimizers are built."""
    torch.optim.Optimizer.__init__ = noting(torch.optim.Optimizer.__init__, _register)


def wrap_backward(torch: ModuleType) -> None:
    """Times the call of the autograd engine within `torch.autograd.backward`.

    That function itself stays: TorchScript knows it by its identity. Older versions of torch have no such call.
    """
    autograd: Any = torch.autograd
    engine_call = getattr(autograd, "_engine_run_backward", None)
    if engine_call is None:
        autograd.backward = _timed_function(autograd.backward)
        return
    timed = _timed(engine_call)
    for holder in (autograd, autograd.graph):
        if getattr(holder, "_engine_run_backward", None) is engine_call:
            replace_per_step(holder, "_engine_run_backward", timed)


def wrap_scaler(torch: ModuleType) -> None:
    """Learns of skipped steps at `GradScaler.update`."""
    scaler = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler
    scaler.update = _checked(scaler.update)


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
    # instead of breaking it, and `pulse` gets no guard.
    is_tracing = getattr(torch.compiler, "is_dynamo_compiling", None) or torch.compiler.is_compiling
    entry_of = _by_id.get

    def before(optimizer: Any, arguments: Any, named: Any) -> None:
        if is_tracing():
            return
        if pulse.awake:
            entry = entry_of(id(optimizer)) or quietly(_register, optimizer, None)
            if entry is not None:
                entry.started_ns = monotonic_ns()

    def after(optimizer: Any, arguments: Any, named: Any) -> None:
        if is_tracing():
            return
        end_ns = monotonic_ns()
        if not pulse.awake:
            if end_ns >= pulse.due_ns:
                look(end_ns, after_step=True)
        else:
            entry = entry_of(id(optimizer))
            if entry is not None:
                identity, thread = pulse.flusher
                if identity != get_ident():
                    thread = natives[get_ident()]
                append((OPTIMIZER, 0, entry.number, thread, entry.started_ns or end_ns, end_ns, 0, 0))
                if not entry.stepped_ns:
                    _note_step()
                entry.started_ns = 0
                entry.stepped_ns = end_ns
            if end_ns >= pulse.due_ns:
                pulse.flush(end_ns)

    return hidden(before), hidden(after)


def _note_step() -> None:
    global step_seen
    step_seen = pulse.facts_changed = True


def _timed(original: Callable[..., Any]) -> Callable[..., Any]:
    def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        start_ns = monotonic_ns()
        if not pulse.awake and start_ns >= pulse.due_ns:
            look(start_ns)
            start_ns = monotonic_ns()
        try:
            result = original(t_outputs, *args, **kwargs)
        except BaseException as error:
            leave_traceback(error)
            if pulse.awake and kwargs.get("accumulate_grad"):
                append((BACKWARD, RAISED, 0, native_id(), start_ns, monotonic_ns(), 0, 0))
            raise
        if pulse.awake and kwargs.get("accumulate_grad"):  # torch.autograd.grad comes here too, without it
            end_ns = monotonic_ns()
            identity, thread = pulse.flusher
            if identity != get_ident():
                thread = natives[get_ident()]
            append((BACKWARD, 0, 0, thread, start_ns, end_ns, 0, 0))
            if not backward_seen:
                quietly(_note_backward)
            # Where an optimizer steps, its hook flushes; one that has stepped may have stepped for the last time.
            if end_ns >= pulse.due_ns + (_OPTIMIZER_OVERDUE_NS if step_seen else 0):
                pulse.flush(end_ns)
        return result

    return hidden(_engine_run_backward, original)


def _timed_function(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.autograd.backward` of a torch that has no function of its own for the call of the engine."""

    def leave(start_ns: int, tensors: Any, result: Any, raised: bool) -> None:
        if pulse.awake:
            end_ns = monotonic_ns()
            append((BACKWARD, RAISED if raised else 0, 0, native_id(), start_ns, end_ns, 0, 0))
            if not backward_seen:
                quietly(_note_backward)
            if end_ns >= pulse.due_ns:
                pulse.flush(end_ns)

    return around(original, lambda tensors: started(), leave)


def _note_backward() -> None:
    global backward_place, backward_seen
    backward_seen = True
    backward_place = calling_place()
    pulse.facts_changed = True


def _checked(original: Callable[..., Any]) -> Callable[..., Any]:
    last_update_ns: Dict[int, int] = {}

    def enter(scaler: Any) -> List[int]:
        if not pulse.awake:
            return []
        return quietly(_skipped_by, scaler, last_update_ns.get(get_ident(), 0)) or []

    def leave(skipped: List[int], scaler: Any, result: Any, raised: bool) -> None:
        if raised or not pulse.awake:
            return
        now_ns = last_update_ns[get_ident()] = monotonic_ns()
        for number in skipped:
            append((OPTIMIZER, SKIPPED, number, native_id(), now_ns, now_ns, 0, 0))
        if now_ns >= pulse.due_ns:
            pulse.flush(now_ns)

    return around(original, enter, leave, "self")


def _skipped_by(scaler: Any, since_ns: int) -> List[int]:
    """The numbers of the optimizers whose `scaler.step` did not reach `optimizer.step`: inf or NaN in the gradients.

    A fused optimizer is called either way and decides on the GPU; asking it would synchronise.
    """
    numbers = []
    for identity, status in dict.items(own(scaler, "_per_optimizer_states") or {}):
        entry = _by_id.get(identity)
        stage = status.get("stage") if type(status) is dict else None
        if entry is not None and attributes(stage).get("_name_") == "STEPPED" and entry.stepped_ns <= since_ns:
            numbers.append(entry.number)
    return numbers


PATCHES = {"torch": (hook_steps, wrap_optimizer, wrap_backward, wrap_scaler)}
