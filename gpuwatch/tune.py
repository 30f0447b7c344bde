"""The search for a batch size: `find_batch_size` for scripts and notebooks, `next_size` and `best` for programs.

Importing this loads nothing but the standard library; torch comes with the first search.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import clear_frames
from typing import Any, Protocol

SAME_SPEED = 0.03
"""Sizes whose samples per second differ by less count as equally fast: the scatter of one short run."""
MEMORY_SHARE = 0.9
"""Of the memory: a longer input, another's process or fragments take the rest."""
LARGEST = 1 << 20
_GRID = 8  # tensor cores take whole tiles of 8
_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Tried:
    """A batch size, whether it may be recommended, and its speed; the reason where it may not."""

    size: int
    fits: bool
    samples_per_second: float | None = None
    memory_bytes: int | None = None  # at its peak
    reason: str | None = None


def next_size(tried: Sequence[Tried], start: int, most: int = LARGEST) -> int | None:
    """The size to try next; None at the end of the search.

    Doubles until a size does not fit, or brings no more samples per second twice in a row; halves where already the
    first does not fit; then bisects, to multiples of 8, as long as more size brings more speed: at most
    2 log2(range) + 3 sizes in all.
    """
    if not tried:
        return min(start, most)
    fitting = sorted((each for each in tried if each.fits), key=lambda each: each.size)
    beyond = min((each.size for each in tried if not each.fits), default=None)
    if not fitting:
        return beyond // 2 or None if beyond is not None else None
    largest = fitting[-1]
    if beyond is None:
        larger = min(2 * largest.size, most)
        return larger if larger > largest.size and not _has_levelled_off(fitting, 2) else None
    if _has_levelled_off(fitting, 1):
        return None
    grid = _GRID if largest.size >= _GRID else 1
    middle = (largest.size + beyond) // 2 // grid * grid
    # More samples in a step bring as many more a second at most: below 3% the next size is no faster.
    is_near = beyond - largest.size <= max(grid, SAME_SPEED * largest.size)
    return None if is_near or not largest.size < middle < beyond else middle


def best(tried: Sequence[Tried]) -> Tried | None:
    """The smallest size that fits and is within 3% of the fastest; None where none fits."""
    fitting = [each for each in tried if each.fits and each.samples_per_second]
    fastest = max((each.samples_per_second or 0.0 for each in fitting), default=0.0)
    fast = [each for each in fitting if (each.samples_per_second or 0.0) >= (1.0 - SAME_SPEED) * fastest]
    return min(fast, key=lambda each: each.size, default=None)


def _has_levelled_off(fitting: Sequence[Tried], times: int) -> bool:
    """Whether the largest size, or the largest two, are no faster than the one before them."""
    if len(fitting) <= times:
        return False
    *_, before = fitting[: len(fitting) - times]
    fastest = max(each.samples_per_second or 0.0 for each in fitting[len(fitting) - times :])
    return fastest < (1.0 + SAME_SPEED) * (before.samples_per_second or 0.0)


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The result: the size to take, None where none fits, and all that were tried, in their order."""

    recommended: int | None
    tried: tuple[Tried, ...]

    def __str__(self) -> str:
        """A line per size."""
        lines = [f"{each.size:>8}  {_words(each)}" for each in sorted(self.tried, key=lambda each: each.size)]
        result = "no batch size fits" if self.recommended is None else f"recommended: {self.recommended}"
        return "\n".join([*lines, result])


def _words(tried: Tried) -> str:
    speed = "" if tried.samples_per_second is None else f"{tried.samples_per_second:.0f} samples/s"
    memory = "" if tried.memory_bytes is None else f"{tried.memory_bytes / 2**20:.0f} MiB"
    return ", ".join(word for word in (speed, memory, tried.reason) if word)


def find_batch_size(
    step: Callable[[Any], object],
    make_batch: Callable[[int], Any],
    *,
    model: Any = None,
    optimizer: Any = None,
    start: int = 8,
    most: int = 65536,
    steps: int = 5,
    memory_budget_bytes: int | None = None,
) -> BatchSizes:
    """Finds the smallest batch size with (nearly) the most samples per second that leaves 10% of the memory.

    Runs the step with batches of growing size. Model, optimizer, gradients and random numbers are afterwards as they
    were before; what `step` changes beyond these is not. Batches are made once per size: loading is not measured.

    Args:
        step: One training step on a batch: forward, backward and optimizer.
        make_batch: Makes a batch of that many samples, on the device.
        model: The torch module that the step trains.
        optimizer: Its torch optimizer.
        start: The first size.
        most: The largest size.
        steps: How many steps are timed for each size, after two that warm up.
        memory_budget_bytes: For training on the CPU, what the process may take at most. A size may take up to twice
            that much before it is refused.

    Raises:
        ValueError: There is no GPU and no budget, or a number is not positive.
        Exception: Whatever `step` raises but that memory ran out.
    """
    import torch

    if min(start, most, steps) < 1:
        raise ValueError("start, most and steps are 1 or more")
    on_gpu = memory_budget_bytes is None
    if on_gpu and not torch.cuda.is_available():
        raise ValueError("no GPU is visible: give memory_budget_bytes, what the process may take on the CPU")
    memory: _Memory = _HostMemory(memory_budget_bytes) if memory_budget_bytes is not None else _GpuMemory(torch)
    tried: list[Tried] = []
    with _restored(torch, model, optimizer):
        while (size := next_size(tried, start, most)) is not None:
            tried.append(_measured(size, step, make_batch, steps, memory))
            if optimizer is not None:
                optimizer.zero_grad(set_to_none=True)
            memory.release()
    chosen = best(tried)
    return BatchSizes(chosen.size if chosen is not None else None, tuple(tried))


def _measured(
    size: int, step: Callable[[Any], object], make_batch: Callable[[int], Any], steps: int, memory: _Memory
) -> Tried:
    memory.reset()
    try:
        batch = make_batch(size)
        for _ in range(_WARM_UP):
            step(batch)
        memory.wait()
        began = time.perf_counter()
        for _ in range(steps):
            step(batch)
        memory.wait()
        seconds = time.perf_counter() - began
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        clear_frames(error.__traceback__)  # they hold the activations
        return Tried(size, fits=False, reason="out of memory")
    peak_bytes, limit_bytes = memory.peak()
    rate = size * steps / seconds if seconds > 0 else None
    if peak_bytes > MEMORY_SHARE * limit_bytes:
        reason = f"above {100 * MEMORY_SHARE:.0f}% of the memory"
        return Tried(size, fits=False, samples_per_second=rate, memory_bytes=peak_bytes, reason=reason)
    return Tried(size, fits=True, samples_per_second=rate, memory_bytes=peak_bytes)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the GPU or the CPU, whatever version of torch says so."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return is_out_of_memory_text(str(error))


def is_out_of_memory_text(text: str) -> bool:
    """The same of what a program printed."""
    signs = ("out of memory", "OutOfMemoryError", "can't allocate memory", "MemoryError", "CUBLAS_STATUS_ALLOC_FAILED")
    return any(sign in text for sign in signs)


class _Memory(Protocol):
    """What a search asks of the memory that it fills."""

    def reset(self) -> None:
        """Lets the peak begin now."""

    def wait(self) -> None:
        """Until the device is done."""

    def peak(self) -> tuple[int, int]:
        """The peak, and what there is; bytes."""

    def release(self) -> None:
        """Gives back what the last size took."""


class _GpuMemory:
    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda

    def reset(self) -> None:
        self._cuda.synchronize()
        self._cuda.empty_cache()
        self._cuda.reset_peak_memory_stats()

    def wait(self) -> None:
        self._cuda.synchronize()

    def peak(self) -> tuple[int, int]:
        free, total = self._cuda.mem_get_info()
        others = total - free - self._cuda.memory_reserved()  # the context, and other processes
        return self._cuda.max_memory_reserved() + others, total

    def release(self) -> None:
        gc.collect()
        self._cuda.empty_cache()


class _HostMemory:
    """The peak of the process's resident memory, which Linux lets a process reset."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes

    def reset(self) -> None:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")

    def peak(self) -> tuple[int, int]:
        status = Path("/proc/self/status").read_text()
        kibibytes = next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]
        return int(kibibytes) * 1024, self._budget_bytes

    def wait(self) -> None:
        """The CPU is done when the call is."""

    def release(self) -> None:
        gc.collect()


@contextmanager
def _restored(torch: Any, model: Any, optimizer: Any) -> Iterator[None]:
    """Puts back what training steps change. Copies are kept on the CPU, so that they take no memory of the GPU."""
    parameters = list(model.parameters()) if model is not None else []
    gradients = [None if each.grad is None else each.grad.detach().to("cpu", copy=True) for each in parameters]
    modes = {each: each.training for each in model.modules()} if model is not None else {}
    states = [(each, _on_cpu(torch, each.state_dict())) for each in (model, optimizer) if each is not None]
    own, of_torch = random.getstate(), torch.get_rng_state()
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    numpy = sys.modules.get("numpy.random")
    of_numpy = numpy.get_state() if numpy is not None else None
    try:
        yield
    finally:
        for each, state in states:
            each.load_state_dict(state)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        for module, mode in modes.items():
            module.training = mode
        random.setstate(own)
        torch.set_rng_state(of_torch)
        if of_gpus is not None:
            torch.cuda.set_rng_state_all(of_gpus)
        if numpy is not None:
            numpy.set_state(of_numpy)


def _on_cpu(torch: Any, value: Any) -> Any:
    """A copy of a state dictionary."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return type(value)((key, _on_cpu(torch, each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return type(value)(_on_cpu(torch, each) for each in value)
    return value
