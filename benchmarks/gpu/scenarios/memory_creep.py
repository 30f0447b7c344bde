"""A sum of losses that keeps something of every step."""

import torch
from helpers import parser, setup, train, wide_model


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--kilobytes", type=int, default=2048, help="kept per step")
    arguments.add_argument("--step-ms", type=float, default=8.0)
    args = arguments.parse_args()
    device, log = setup(args)
    if device.type == "cpu":
        args.kilobytes = 1
    model, optimizer, inputs = wide_model(device, args.step_ms, rows=1024, width=4096)
    history = []
    while True:
        loss = train(model, optimizer, inputs)
        history.append(loss.detach() + torch.zeros(args.kilobytes << 8, device=device))
        log.step(len(inputs))


if __name__ == "__main__":
    main()
