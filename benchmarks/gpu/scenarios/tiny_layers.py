"""Two hundred tiny layers on a batch of eight; --graph records them as CUDA graphs, --compile has inductor do it."""

import torch
from helpers import parser, setup, train
from torch import nn


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--layers", type=int, default=200)
    arguments.add_argument("--graph", action="store_true")
    arguments.add_argument("--compile", action="store_true")
    args = arguments.parse_args()
    device, log = setup(args)
    layers = 4 if device.type == "cpu" else args.layers
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(layers))).to(device)
    inputs = torch.randn(8, 64, device=device)
    if args.graph and device.type == "cuda":
        model = torch.cuda.make_graphed_callables(model, (inputs.clone(),))
    if args.compile:
        model = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=True)
    while True:
        train(model, optimizer, inputs)
        log.step(len(inputs))


if __name__ == "__main__":
    main()
