"""A loader for each epoch, which nobody keeps."""

import torch
import truth
from torch.utils.data import DataLoader

net = truth.SlowNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

for _epoch in range(3):
    for batch in truth.waits(iter(DataLoader(truth.SlowData(48), batch_size=4))):
        optimizer.zero_grad()
        net(batch).mean().backward()
        optimizer.step()
        truth.step()
