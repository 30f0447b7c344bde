"""A wide MLP in 32-bit arithmetic, in TF32, or under autocast in bfloat16."""

import torch
from helpers import parser, setup
from torch import nn


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    arguments.add_argument("--width", type=int, default=8192)
    arguments.add_argument("--rows", type=int, default=4096)
    args = arguments.parse_args()
    device, log = setup(args)
    if device.type == "cpu":
        args.width, args.rows = 32, 8
    if args.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    model = nn.Sequential(*(nn.Sequential(nn.Linear(args.width, args.width), nn.GELU()) for _ in range(4))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    inputs = torch.randn(args.rows, args.width, device=device)
    while True:
        with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16"):
            loss = model(inputs).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.step(args.rows)


if __name__ == "__main__":
    main()
