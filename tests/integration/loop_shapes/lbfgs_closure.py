"""An optimizer that calls the model itself, several times a step."""

import torch
import truth
from torch.utils.data import DataLoader

net = truth.SlowNet()
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
loader = DataLoader(truth.SlowData(96), batch_size=8)

for batch in truth.waits(loader):

    def closure(batch: torch.Tensor = batch) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (net(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    truth.step()
