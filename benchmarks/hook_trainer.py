"""The processes of hook_cost: a trainer that times its steps with and without the hook's wrappers, and a monitor."""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable


class Wrappers:
    """What the hook has put into torch and the collector for every step; none in a process without the hook."""

    def __init__(self) -> None:
        import torch

        optimizer = sys.modules["torch.optim.optimizer"]
        points = [
            (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"),
            (torch.autograd, "_engine_run_backward"),
        ]
        functions = [(holder, name, getattr(holder, name)) for holder, name in points]
        self._wrapped = [found for found in functions if hasattr(found[2], "__wrapped__")]
        self._taken: list[tuple[object, str, Callable[..., object]]] = []
        tables = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
        self._registered = [(table, dict(table)) for table in tables]
        self._callbacks = list(gc.callbacks)
        self.flushed_ns = 0
        self._pulse = None
        ring = sys.modules.get("_gpuwatch_hook.ring")
        if ring is not None:
            self._pulse = ring.pulse
            self._pulse.flush = self._timed(self._pulse.flush)

    def _timed(self, flush: Callable[[int], None]) -> Callable[[int], None]:
        def timed(now_ns: int) -> None:
            start_ns = time.thread_time_ns()
            flush(now_ns)
            self.flushed_ns += time.thread_time_ns() - start_ns

        return timed

    def put(self, there: bool) -> None:
        """Takes them out, or puts back those that were in: the hook itself takes some out while it sleeps."""
        if not there:
            self._taken = [found for found in self._wrapped if getattr(*found[:2]) is found[2]]
        for holder, name, wrapper in self._taken:
            setattr(holder, name, wrapper if there else wrapper.__wrapped__)
        for table, hooks in self._registered:
            table.clear()
            table.update(hooks if there else {})
        # The collector is only watched while a monitor is linked, which may have come since this object was made.
        self._callbacks += [callback for callback in gc.callbacks if callback not in self._callbacks]
        gc.callbacks[:] = self._callbacks if there and (self._pulse is None or self._pulse.awake) else []


def train(address: str, tracer: str, folder: str, width: str = "512", workers: str = "0", compiled: str = "") -> None:
    """The trainer's side: a loop that runs as many steps as it is asked for, twice.

    A hidden layer `width` wide makes steps of about 1 ms at 512 and 10 ms at 8192.
    """
    # Another monitor on this machine would find the folder in what the process was started with.
    os.environ["GPUWATCH_DIR"] = folder
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, int(width)), torch.nn.ReLU(), torch.nn.Linear(int(width), 10))
    if compiled:
        model.compile(backend=compiled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(64_000, 256), torch.randint(10, (64_000,)))
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    if tracer == "traceml":
        import traceml_ai

        traceml_ai.init()
        around = lambda: traceml_ai.trace_step(model)  # noqa: E731 - the one line that differs
    loader = DataLoader(data, batch_size=64, num_workers=int(workers), persistent_workers=workers != "0")
    batches = iter(loader)

    def block(steps: int) -> float:
        nonlocal batches
        clock, times = time.perf_counter_ns, []
        for _ in range(steps):
            start_ns = clock()
            inputs, labels = next(batches)
            with around():
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            times.append(clock() - start_ns)
        batches = iter(loader)
        return percentile_5(times) / 1000

    wrappers = Wrappers()
    control = socket.socket(socket.AF_UNIX)
    control.connect(address)
    line = control.makefile("rw")
    for number, command in enumerate(line):
        times = {}
        wrappers.flushed_ns = 0
        for there in (False, True) if number % 2 else (True, False):
            wrappers.put(there)
            times[there] = block(int(command))
        line.write(f"{times[False]} {times[True]} {wrappers.flushed_ns / int(command) / 1000}\n")
        line.flush()


def percentile_5(values: list[int] | list[float]) -> float:
    """The value that one in twenty lies below: what it takes when nobody disturbs it."""
    return sorted(values)[len(values) // 20]


def listen(folder: str) -> None:
    """A monitor that reads whatever trainers send, in a process of its own."""
    monitor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monitor.bind(f"{folder}/monitor-{os.getpid()}.sock")
    monitor.listen()
    selector = selectors.DefaultSelector()
    selector.register(monitor, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is monitor:
                selector.register(monitor.accept()[0], selectors.EVENT_READ)
            elif not key.fileobj.recv(1 << 16):  # type: ignore[union-attr]
                selector.unregister(key.fileobj)


if __name__ == "__main__":
    {"train": train, "listen": listen}[sys.argv[1]](*sys.argv[2:])
