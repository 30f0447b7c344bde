"""A dataset without a length."""

import time
from collections.abc import Iterator

import torch
import truth
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(128):
            time.sleep(truth.LOAD_SECONDS / 4)
            yield torch.rand(8)


net = truth.SlowNet()
optimizer = torch.optim.Adam(net.parameters())

for batch in truth.waits(DataLoader(Stream(), batch_size=4)):
    net(batch).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    truth.step()
