"""A look at the validation set every eight steps, in the middle of the epoch."""

import torch
import truth
from torch.utils.data import DataLoader

net = truth.SlowNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(truth.SlowData(128), batch_size=4)
validation = DataLoader(truth.SlowData(40), batch_size=4)

for index, batch in enumerate(truth.waits(loader)):
    optimizer.zero_grad()
    net(batch).mean().backward()
    optimizer.step()
    truth.step()
    if index % 8 == 7:
        with truth.phase("eval"), torch.no_grad():
            for number, held_out in enumerate(validation):
                net(held_out)
                if number == 4:
                    break
