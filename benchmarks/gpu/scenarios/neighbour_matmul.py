"""Another program on the same GPU: matrix products without end."""

import torch
from helpers import parser, setup


def main():
    args = parser(__doc__).parse_args()
    device, log = setup(args)
    size = 64 if device.type == "cpu" else 4096
    left = torch.randn(size, size, device=device)
    while True:
        for _ in range(20):
            left = (left @ left).clamp(-1, 1)
        left.sum().item()
        log.step(20)


if __name__ == "__main__":
    main()
