"""The loop of every tutorial."""

import torch
import truth
from torch.utils.data import DataLoader

net = truth.SlowNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(truth.SlowData(), batch_size=4, shuffle=True)

for _epoch in range(2):
    for batch in truth.waits(loader):
        optimizer.zero_grad()
        net(batch).mean().backward()
        optimizer.step()
        truth.step()
