"""What the training thread computed in one step: forward, backward, optimizer, copies.

Spans arrive in the order of their ends, so an inner one comes before the outer one that contains it: a backward
inside an optimizer step (closures of LBFGS and Lightning), an optimizer step inside a backward (optimizer in
backward), `super().step()`, reentrant checkpointing. Each outer span takes back what its inner ones counted.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpuwatch.timeline.spans import Span

_MAX_SPANS: Final = 4096


class _Backward(NamedTuple):
    start: int
    end: int
    own_ns: int
    forward_ns: int
    mark: int  # where its forward began


class _Optimizer(NamedTuple):
    start: int
    end: int
    own_ns: int
    inner_ns: int
    group_end: int  # of the group before it


class _Totals(NamedTuple):
    forward_ns: int
    backward_ns: int
    backwards: int
    copy_ns: int


class Compute:
    """The computation since the last step's end.

    `group_end` is the end of the last optimizer group, 0 while there was none: optimizers with no backward in
    between are one group. `mark` is the end of the last thing the training thread did: a forward begins there.
    """

    __slots__ = (
        "_backs",
        "_copied_since_mark",
        "_in_groups",
        "backward_ns",
        "backwards",
        "copy_ns",
        "first_backward",
        "forward_ns",
        "forwards",
        "group_end",
        "mark",
        "optimizer_ns",
        "optimizers",
        "sealed",
    )

    def __init__(self) -> None:
        self.mark = 0
        self._backs: list[_Backward] = []
        self.optimizers: list[_Optimizer] = []
        self.forwards: list[Span] = []
        self.reset()

    def reset(self) -> None:
        """Begins a new step; `mark` stays."""
        self._backs.clear()
        self.optimizers.clear()
        self.forwards.clear()
        self.backwards = 0
        self.first_backward = 0
        self.sealed = 0  # groups that ended with a backward around them
        self.group_end = 0
        self.forward_ns = self.backward_ns = self.optimizer_ns = self.copy_ns = 0
        self._copied_since_mark = 0
        self._in_groups = _Totals(0, 0, 0, 0)

    @property
    def groups(self) -> int:
        """How many optimizer steps, or backwards with optimizers in them, this step has seen."""
        return len(self.optimizers) + self.sealed

    def end_group(self, end: int) -> None:
        """Notes that an optimizer group ended: what was computed so far belongs to this step."""
        self.group_end = end
        self._in_groups = _Totals(self.forward_ns, self.backward_ns, self.backwards, self.copy_ns)

    def close(self) -> _Totals | None:
        """Takes out what was computed after the last group, which another step will end; for `reopen`."""
        groups = self._in_groups
        if self.backwards == groups.backwards and self.copy_ns == groups.copy_ns:
            return None
        late = _Totals(
            max(0, self.forward_ns - groups.forward_ns),
            max(0, self.backward_ns - groups.backward_ns),
            max(0, self.backwards - groups.backwards),
            max(0, self.copy_ns - groups.copy_ns),
        )
        self.forward_ns, self.backward_ns, self.backwards, self.copy_ns = groups
        return late

    def reopen(self, late: _Totals) -> None:
        """Begins a step with what was computed after the last one's end."""
        self.forward_ns, self.backward_ns, self.backwards, self.copy_ns = late

    def move(self, end: int) -> None:
        """Notes the end of a wait."""
        self.mark = end
        self._copied_since_mark = 0

    def copy(self, start: int, end: int) -> None:
        """Notes a host-to-device copy, which is no part of the forward around it."""
        self.copy_ns += end - start
        self._copied_since_mark += end - start

    def take_optimizers_since(self, start: int) -> int:
        """Takes out the optimizer steps inside a backward that began at `start`; their nanoseconds."""
        inside = 0
        while self.optimizers and self.optimizers[-1].start >= start:
            step = self.optimizers.pop()
            inside += step.end - step.start
            self.optimizer_ns -= step.own_ns
            self.group_end = step.group_end
        return inside

    def backward(self, start: int, end: int, optimizer_ns: int) -> None:
        """Notes a backward, `optimizer_ns` of which were optimizer steps inside it."""
        backs = self._backs
        while backs and backs[-1].start >= start:
            inner = backs.pop()
            self.backward_ns -= inner.own_ns
            self.forward_ns -= inner.forward_ns
            self.mark = inner.mark
            self.backwards -= 1
            if self.forwards:
                self.forwards.pop()
        mark = self.mark
        forward = max(0, start - mark - self._copied_since_mark) if mark else 0
        own = end - start - optimizer_ns
        if len(backs) < _MAX_SPANS:
            backs.append(_Backward(start, end, own, forward, mark))
            self.forwards.append((mark or start, start))
        if not self.backwards:
            self.first_backward = start
        self.backwards += 1
        self.forward_ns += forward
        self.backward_ns += own
        if optimizer_ns:
            self.optimizer_ns += optimizer_ns
            self.sealed += 1
            self.end_group(end)
        self.mark = end
        self._copied_since_mark = 0

    def optimizer(self, start: int, end: int) -> None:
        """Notes an optimizer step."""
        inner = 0
        group_end = self.group_end
        while self.optimizers and self.optimizers[-1].start >= start:
            step = self.optimizers.pop()
            self.optimizer_ns -= step.own_ns
            inner += step.inner_ns
            group_end = step.group_end
        backs = self._backs
        while backs and backs[-1].start >= start:
            closure = backs.pop()
            inner += closure.end - max(start, min(closure.mark, closure.start))
        backs.clear()
        own = max(0, end - start - inner)
        if len(self.optimizers) >= _MAX_SPANS:
            del self.optimizers[: _MAX_SPANS // 2]
        self.optimizers.append(_Optimizer(start, end, own, inner, group_end))
        self.optimizer_ns += own
        self.end_group(end)
        self.mark = end
        self._copied_since_mark = 0
