"""One backward, and an optimizer for each half of the model."""

import torch
import truth
from torch.utils.data import DataLoader

net = truth.SlowNet()
first = torch.optim.SGD(net.layers[0].parameters(), lr=0.01)
second = torch.optim.Adam(net.layers[2].parameters())
loader = DataLoader(truth.SlowData(128), batch_size=4)

for batch in truth.waits(loader):
    net(batch).mean().backward()
    first.step()
    second.step()
    first.zero_grad()
    second.zero_grad()
    truth.step()
