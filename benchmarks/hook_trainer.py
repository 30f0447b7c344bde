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
        points = [(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"), (torch.autograd, "backward")]
        functions = [(holder, name, getattr(holder, name)) for holder, name in points]
        self._wrapped = [found for found in functions if hasattr(found[2], "__wrapped__")]
        tables = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
        self._registered = [(table, dict(table)) for table in tables]
        self._callbacks = list(gc.callbacks)
        self.flushed_ns = 0
        ring = sys.modules.get("_gpuwatch_hook.ring")
        if ring is not None:
            ring.pulse.flush = self._timed(ring.pulse.flush)

    def _timed(self, flush: Callable[[int], None]) -> Callable[[int], None]:
        def timed(now_ns: int) -> None:
            start_ns = time.thread_time_ns()
            flush(now_ns)
            self.flushed_ns += time.thread_time_ns() - start_ns

        return timed

    def put(self, there: bool) -> None:
        """Puts them in, or takes them out."""
        for holder, name, wrapper in self._wrapped:
            setattr(holder, name, wrapper if there else wrapper.__wrapped__)
        for table, hooks in self._registered:
            table.clear()
            table.update(hooks if there else {})
        gc.callbacks[:] = self._callbacks if there else []


def train(address: str, tracer: str, folder: str) -> None:
    """The trainer's side: a loop of about 1 ms a step that runs as many steps as it is told to, twice."""
    # Another monitor on this machine would find the folder in what the process was started with.
    os.environ["GPUWATCH_DIR"] = folder
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(64_000, 256), torch.randint(10, (64_000,)))
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    if tracer == "traceml":
        import traceml_ai

        traceml_ai.init()
        around = lambda: traceml_ai.trace_step(model)  # noqa: E731 - the one line that differs
    loader = DataLoader(data, batch_size=64)
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
