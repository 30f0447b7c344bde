"""A training beside tensors that fill the memory of the GPU almost to its end."""

import torch
from helpers import parser, setup, train, wide_model


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--share", type=float, default=0.978)
    arguments.add_argument("--step-ms", type=float, default=30.0)
    args = arguments.parse_args()
    device, log = setup(args)
    model, optimizer, inputs = wide_model(device, args.step_ms)
    train(model, optimizer, inputs)
    kept = []
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        wanted = int(free - (1 - args.share) * total)
        kept = [torch.empty(1 << 28, dtype=torch.uint8, device=device) for _ in range(wanted >> 28)]
    print(f"{len(kept)} blocks kept", flush=True)
    while True:
        train(model, optimizer, inputs)
        log.step(len(inputs))


if __name__ == "__main__":
    main()
