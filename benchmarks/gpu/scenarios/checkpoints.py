"""A checkpoint of the model and its optimizer every n steps."""

import os
import tempfile

import torch
from helpers import parser, setup, train, wide_model


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--every", type=int, default=60)
    arguments.add_argument("--megabytes", type=int, default=800, help="of averaged weights, kept by the CPU")
    arguments.add_argument("--output", default=os.path.join(tempfile.gettempdir(), "gpuwatch-checkpoint.pt"))
    arguments.add_argument("--step-ms", type=float, default=30.0)
    args = arguments.parse_args()
    device, log = setup(args)
    if device.type == "cpu":
        args.megabytes, args.every = 1, 2
    model, optimizer, inputs = wide_model(device, args.step_ms)
    averaged = torch.zeros(args.megabytes << 18)
    step = 0
    while True:
        train(model, optimizer, inputs)
        step += 1
        if step % args.every == 0:
            torch.save({"model": model.state_dict(), "averaged": averaged}, args.output)
        log.step(len(inputs))


if __name__ == "__main__":
    main()
