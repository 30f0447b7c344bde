"""A checkpoint of the model and its optimizer every so many steps."""

import os
import tempfile

import torch
from helpers import parser, setup, train, wide_model


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--every", type=int, default=60)
    arguments.add_argument("--copies", type=int, default=8, help="how often the weights are in the file")
    arguments.add_argument("--output", default=os.path.join(tempfile.gettempdir(), "gpuwatch-checkpoint.pt"))
    arguments.add_argument("--step-ms", type=float, default=30.0)
    args = arguments.parse_args()
    device, log = setup(args)
    model, optimizer, inputs = wide_model(device, args.step_ms)
    step = 0
    while True:
        train(model, optimizer, inputs)
        step += 1
        if step % args.every == 0:
            copies = [{name: value.cpu() for name, value in model.state_dict().items()} for _ in range(args.copies)]
            torch.save({"model": copies, "optimizer": optimizer.state_dict()}, args.output)
        log.step(len(inputs))


if __name__ == "__main__":
    main()
