"""accelerate, which reads one batch ahead and accumulates by itself."""

import torch
import truth
from accelerate import Accelerator
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
net = truth.SlowNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
net, optimizer, loader, validation = accelerator.prepare(
    net,
    optimizer,
    DataLoader(truth.SlowData(), batch_size=4, shuffle=True),
    DataLoader(truth.SlowData(16), batch_size=4),
)

for _epoch in range(2):
    for batch in truth.waits(loader):
        accelerator.backward(net(batch).mean())
        optimizer.step()
        optimizer.zero_grad()
        truth.step()
    with truth.phase("eval"), torch.no_grad():
        for batch in validation:
            net(batch)
