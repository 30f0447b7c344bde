"""Millions of small objects that the collector walks through again and again."""

import gc

from helpers import parser, setup, train, wide_model


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--objects", type=int, default=5_000_000)
    arguments.add_argument("--every", type=int, default=60)
    arguments.add_argument("--step-ms", type=float, default=30.0)
    args = arguments.parse_args()
    device, log = setup(args)
    if device.type == "cpu":
        args.objects, args.every = 1000, 2
    gc.disable()
    index = [[number] for number in range(args.objects)]
    gc.enable()
    print(f"{len(index)} objects", flush=True)
    model, optimizer, inputs = wide_model(device, args.step_ms)
    step = 0
    while True:
        train(model, optimizer, inputs)
        step += 1
        if step % args.every == 0:
            gc.collect()
        log.step(len(inputs))


if __name__ == "__main__":
    main()
