"""A big model that asks for its loss each step, while its batches lie on the GPU."""

from helpers import parser, setup, train, wide_model


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--step-ms", type=float, default=100.0)
    args = arguments.parse_args()
    device, log = setup(args)
    model, optimizer, inputs = wide_model(device, args.step_ms)
    total = 0.0
    while True:
        total += train(model, optimizer, inputs).item()
        log.step(len(inputs))


if __name__ == "__main__":
    main()
