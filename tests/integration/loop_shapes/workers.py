"""Two worker processes, new ones in each epoch."""

import torch
import truth
from torch.utils.data import DataLoader

net = truth.SlowNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(truth.SlowData(128), batch_size=8, num_workers=2)

for epoch in range(2):
    for number, batch in enumerate(truth.waits(loader), 1):
        if number == len(loader):
            truth.until_heard(2 * epoch + 2)
        optimizer.zero_grad()
        net(batch).mean().backward()
        optimizer.step()
        truth.step()
