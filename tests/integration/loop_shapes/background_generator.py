"""A thread reads the DataLoader ahead; the training waits for a queue. With "wrapped", the loop is named."""

import queue
import sys
import threading
from collections.abc import Iterator

import torch
import truth
from torch.utils.data import DataLoader

import gpuwatch


class BackgroundGenerator:
    def __init__(self, batches: DataLoader[torch.Tensor]) -> None:
        self._queue: queue.Queue[torch.Tensor | None] = queue.Queue(2)
        threading.Thread(target=self._read, args=(batches,), daemon=True).start()

    def _read(self, batches: DataLoader[torch.Tensor]) -> None:
        for batch in batches:
            self._queue.put(batch)
        self._queue.put(None)

    def __iter__(self) -> Iterator[torch.Tensor]:
        while (batch := self._queue.get()) is not None:
            yield batch


net = truth.SlowNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
batches = BackgroundGenerator(DataLoader(truth.SlowData(512), batch_size=16))
for batch in truth.waits(gpuwatch.loader(batches) if "wrapped" in sys.argv else batches):
    optimizer.zero_grad()
    net(batch).mean().backward()
    optimizer.step()
    truth.step()
