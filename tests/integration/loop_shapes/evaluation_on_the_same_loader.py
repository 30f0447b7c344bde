"""The training set is read once more to evaluate, with grad mode on when it is read."""

import torch
import truth
from torch.utils.data import DataLoader

net = truth.SlowNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(truth.SlowData(48), batch_size=4)

for _epoch in range(3):
    for batch in truth.waits(loader):
        optimizer.zero_grad()
        net(batch).mean().backward()
        optimizer.step()
        truth.step()
    with truth.phase("eval"):
        for batch in loader:
            net(batch).detach()
