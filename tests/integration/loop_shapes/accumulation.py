"""Three batches to a step."""

import torch
import truth
from torch.utils.data import DataLoader

net = truth.SlowNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(truth.SlowData(96), batch_size=4)

for _epoch in range(2):
    for index, batch in enumerate(truth.waits(loader)):
        (net(batch).mean() / 3).backward()
        if index % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
            truth.step()
