"""What reading one process may cost, and how it fails: with a refusal of that process and nothing else.

Everything read from a process may have been made to mislead: sizes, pointers, lists without end, pages that never
come. Each structure has a bound of its own; this is the bound of all of them together, in CPU time, bytes and seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from gpuwatch.foreign import answered
from gpuwatch.reader.refusals import CannotReadError, expensive, malformed, silent

OPERATION_SECONDS = 0.5
"""CPU time of attaching, or of one sample. Attaching takes 2 to 30 ms, a sample of 60 threads 2 ms; reading the maps of
a process with 65 530 of them takes 60 ms."""
_OPERATION_BYTES = 512 << 20
_CHARGE_EVERY = 64
"""Reads between two looks at the clock, which takes 0.3 us. Reading one page of a file takes up to 20 us."""


class BudgetExceededError(Exception):
    """Reading a process took more than it may. Only the boundary around all reading of a process catches it."""


class Budget:
    """CPU time and bytes of one operation on one process, counted by the thread that does it.

    Args:
        cpu_clock: CPU time of the calling thread in seconds.
        before: called as each operation begins.
    """

    def __init__(
        self, cpu_clock: Callable[[], float] = time.thread_time, before: Callable[[], object] = lambda: None
    ) -> None:
        self._cpu_clock = cpu_clock
        self._before = before
        self._seconds = OPERATION_SECONDS
        self._calls_left = _CHARGE_EVERY
        self._bytes_left = _OPERATION_BYTES
        self._end: float | None = None
        self._is_given_up = False

    def give_up(self) -> None:
        """The operation is no longer waited for: it ends at its next read, and so does every later one."""
        self._is_given_up = True
        self._calls_left = 0

    def begin(self, seconds: float = OPERATION_SECONDS) -> None:
        """A new operation begins, in the calling thread."""
        self._seconds = seconds
        self._calls_left = 0 if self._is_given_up else _CHARGE_EVERY
        self._bytes_left = _OPERATION_BYTES
        self._end = None
        self._before()

    def charge(self, size: int) -> None:
        """Counts one read of this many bytes, or one step of as much work as a read.

        Raises:
            BudgetExceededError: The operation has used up its CPU time or its bytes.
        """
        self._calls_left -= 1
        self._bytes_left -= size
        if self._calls_left <= 0 or self._bytes_left < 0 or size > 1 << 20:
            self.check()

    def check(self) -> None:
        """Compares with the limits now.

        Raises:
            BudgetExceededError: The operation has used up its CPU time or its bytes.
        """
        if self._is_given_up:
            raise BudgetExceededError("it did not answer in time")
        self._calls_left = _CHARGE_EVERY
        if self._bytes_left < 0:
            raise BudgetExceededError(f"it takes more than {_OPERATION_BYTES >> 20} MiB of its memory")
        now = self._cpu_clock()
        if self._end is None:
            # Most operations end before the first check: they never ask for the time.
            self._end = now + self._seconds
        elif now > self._end:
            raise BudgetExceededError(f"it takes more than {self._seconds:g} s of CPU time")


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Cache(dict[_Key, _Value]):
    """What was learned of a process, all of it dropped once it is more than any Python needs: it can be read again."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: _Key, value: _Value) -> None:
        if len(self) >= self._most:
            self.clear()
        super().__setitem__(key, value)


class HasBudget(Protocol):
    """What is known of a process that is read."""

    pid: int
    budget: Budget


class Watch:
    """What a thread reads now, for another thread to notice that it waits: `pid` is None while it reads nothing."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.operations = 0

    def begin(self, pid: int) -> None:
        """Notes that an operation on a process begins."""
        self.operations += 1
        self.pid = pid


class _Thread(threading.local):
    watch: Watch | None = None


_thread = _Thread()


def read_here(watch: Watch) -> None:
    """Has the calling thread do its operations itself from now on, however long a process keeps it waiting.

    To hand one over to another thread takes 50 us of CPU time, half as much again as an operation; a hundred samples a
    second are spared it. The holder of the watch has to do without the thread while it waits.
    """
    _thread.watch = watch


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Reader = TypeVar("_Reader", bound=HasBudget)


def contained(
    method: Callable[Concatenate[_Reader, _Parameters], _Result],
) -> Callable[Concatenate[_Reader, _Parameters], _Result]:
    """Makes a method one operation on a process: it has a budget, and raises `CannotReadError` or nothing."""

    def within_budget(reader: _Reader, /, *arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        reader.budget.begin()
        try:
            return method(reader, *arguments, **keywords)
        except CannotReadError:
            raise
        except Exception as error:
            raise refusal_of(reader.pid, error) from error

    @wraps(method)
    def operation(reader: _Reader, /, *arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        return in_time(reader.pid, reader.budget, lambda: within_budget(reader, *arguments, **keywords))

    return operation


def in_time(pid: int, budget: Budget, operation: Callable[[], _Result]) -> _Result:
    """What an operation on a process gives, unless the process keeps it waiting (see `foreign.answered`).

    Raises:
        CannotReadError: The operation's own, or it was not answered in time.
    """
    watch = _thread.watch
    if watch is not None:
        watch.begin(pid)
        try:
            return operation()
        finally:
            watch.pid = None
    try:
        return answered(pid, operation)
    except TimeoutError:
        budget.give_up()
        raise silent(pid) from None


def refusal_of(pid: int, error: Exception) -> CannotReadError:
    """The refusal of a process at whose memory reading failed."""
    if isinstance(error, BudgetExceededError):
        return expensive(pid, str(error))
    return malformed(pid, error)
