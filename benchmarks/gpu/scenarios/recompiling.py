"""A compiled model that meets sequences of another length at each step."""

import random

import torch
from helpers import parser, setup, train
from torch import nn


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--backend", default="aot_eager", help="inductor takes a second and more for each length")
    args = arguments.parse_args()
    device, log = setup(args)
    if device.type == "cpu":
        args.backend = "eager"
    torch._dynamo.config.recompile_limit = 1024
    torch._dynamo.config.accumulated_recompile_limit = 4096
    width = 64 if device.type == "cpu" else 512
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).to(device)
    compiled = torch.compile(model, backend=args.backend, dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    lengths = random.Random(0)
    while True:
        inputs = torch.randn(8, lengths.randrange(16, 512), width, device=device)
        train(compiled, optimizer, inputs)
        log.step(len(inputs))


if __name__ == "__main__":
    main()
