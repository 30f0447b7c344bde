"""nanoGPT's way: a function makes the batch. With "wrapped", the same as an iterator that is named."""

import sys
import time
from collections.abc import Iterator

import torch
import truth

import gpuwatch

net = truth.SlowNet()
optimizer = torch.optim.AdamW(net.parameters())


def get_batch() -> torch.Tensor:
    time.sleep(truth.LOAD_SECONDS)
    return torch.rand(4, 8)


def endless() -> Iterator[torch.Tensor]:
    for _ in range(40):
        yield get_batch()


for batch in truth.waits(gpuwatch.loader(endless()) if "wrapped" in sys.argv else endless()):
    optimizer.zero_grad(set_to_none=True)
    net(batch).mean().backward()
    optimizer.step()
    truth.step()
