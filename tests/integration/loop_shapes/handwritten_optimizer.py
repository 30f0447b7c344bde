"""No optimizer object at all."""

import torch
import truth
from torch.utils.data import DataLoader

net = truth.SlowNet()
loader = DataLoader(truth.SlowData(), batch_size=4)

for _epoch in range(2):
    for batch in truth.waits(loader):
        net.zero_grad()
        net(batch).mean().backward()
        truth.step()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.01 * parameter.grad
