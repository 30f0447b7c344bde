"""Each parameter is updated as soon as its gradient is there."""

import torch
import truth
from torch.utils.data import DataLoader

net = truth.SlowNet()
optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in net.parameters()}


def update(parameter: torch.Tensor) -> None:
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in net.parameters():
    parameter.register_post_accumulate_grad_hook(update)

for batch in truth.waits(DataLoader(truth.SlowData(128), batch_size=4)):
    net(batch).mean().backward()
    truth.step()
