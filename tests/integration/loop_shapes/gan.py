"""Two networks, each with its own backward and optimizer, on one batch."""

import torch
import truth
from torch.utils.data import DataLoader

generator = torch.nn.Linear(4, 8)
critic = truth.SlowNet()
of_generator = torch.optim.Adam(generator.parameters())
of_critic = torch.optim.Adam(critic.parameters())
loader = DataLoader(truth.SlowData(96), batch_size=4)

for _epoch in range(2):
    for real in truth.waits(loader):
        of_critic.zero_grad()
        made = generator(torch.randn(4, 4))
        (critic(made.detach()).mean() - critic(real).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(made).mean()).backward()
        of_generator.step()
        truth.step()
