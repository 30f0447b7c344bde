"""Two loaders side by side, one of them slow."""

import torch
import truth
from torch.utils.data import DataLoader, TensorDataset

net = truth.SlowNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
fast = DataLoader(TensorDataset(torch.rand(64, 8)), batch_size=4)
slow = DataLoader(truth.SlowData(), batch_size=4)

for _epoch in range(2):
    for (one,), other in truth.waits(zip(fast, slow, strict=True)):
        optimizer.zero_grad()
        net(one + other).mean().backward()
        optimizer.step()
        truth.step()
