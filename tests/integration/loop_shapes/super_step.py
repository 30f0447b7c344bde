"""An optimizer of one's own on top of another one, of which there is also a plain one in the script."""

import torch
import truth
from torch.utils.data import DataLoader


class Clipped(torch.optim.SGD):
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
        super().step(closure)


net = truth.SlowNet()
torch.optim.SGD(truth.SlowNet().parameters(), lr=0.01)
optimizer = Clipped(net.parameters(), lr=0.01)
loader = DataLoader(truth.SlowData(128), batch_size=4)

for batch in truth.waits(loader):
    optimizer.zero_grad()
    net(batch).mean().backward()
    optimizer.step()
    truth.step()
