"""After some steps a kernel that spins, as a collective does whose peer has gone."""

import time

import torch
from helpers import parser, setup, train, wide_model


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--after", type=int, default=150)
    arguments.add_argument("--spin-seconds", type=float, default=300.0)
    arguments.add_argument("--step-ms", type=float, default=30.0)
    args = arguments.parse_args()
    device, log = setup(args)
    model, optimizer, inputs = wide_model(device, args.step_ms)
    for _ in range(min(args.after, log.left - 1)):
        train(model, optimizer, inputs)
        log.step(len(inputs))
    if device.type == "cuda":
        until = time.monotonic() + args.spin_seconds
        while time.monotonic() < until:
            torch.cuda._sleep(2_000_000_000)  # about a second of cycles
            torch.cuda.synchronize()
    train(model, optimizer, inputs)
    log.step(len(inputs))


if __name__ == "__main__":
    main()
