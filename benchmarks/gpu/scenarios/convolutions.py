"""Nothing but convolutions in 32-bit arithmetic, for which cuDNN uses TF32 by itself."""

import torch
from helpers import parser, setup
from torch import nn


def main():
    args = parser(__doc__).parse_args()
    device, log = setup(args)
    channels, size, batch = (4, 16, 2) if device.type == "cpu" else (256, 64, 64)
    blocks = (nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()) for _ in range(6))
    model = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), *blocks).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    images = torch.randn(batch, 3, size, size, device=device)
    while True:
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.step(batch)


if __name__ == "__main__":
    main()
