"""torchdata's loader, which does not call its parent's methods."""

import torch
import truth
from torchdata.stateful_dataloader import StatefulDataLoader

net = truth.SlowNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = StatefulDataLoader(truth.SlowData(), batch_size=4)

for _epoch in range(2):
    for batch in truth.waits(loader):
        optimizer.zero_grad()
        net(batch).mean().backward()
        optimizer.step()
        loader.state_dict()
        truth.step()
