"""Mixed precision, and a checkpoint after each step."""

import os

import torch
import truth
from torch.utils.data import DataLoader

net = truth.SlowNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(truth.SlowData(128), batch_size=4)
ballast = torch.zeros(1_000_000)

for batch in truth.waits(loader):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(batch).mean()
    loss.backward()
    optimizer.step()
    truth.step()
    with truth.phase("checkpoint"):
        torch.save({"net": net.state_dict(), "ballast": ballast}, os.environ["LOOP_TRUTH"] + ".pt")
