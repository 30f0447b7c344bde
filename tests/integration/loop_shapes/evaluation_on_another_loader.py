"""A validation set after each epoch."""

import torch
import truth
from torch.utils.data import DataLoader

net = truth.SlowNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(truth.SlowData(), batch_size=4)
validation = DataLoader(truth.SlowData(24), batch_size=4)


def evaluate() -> float:
    net.eval()
    total = 0.0
    for batch in validation:
        with torch.no_grad():
            total += net(batch).mean().item()
    net.train()
    return total


for _epoch in range(3):
    for batch in truth.waits(loader):
        optimizer.zero_grad()
        net(batch).mean().backward()
        optimizer.step()
        truth.step()
    with truth.phase("eval"):
        evaluate()
