"""A picture of the weights every twenty steps: with matplotlib, TensorBoard, or as numbers."""

import os
import tempfile

from helpers import parser, setup, train, wide_model

try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
except ImportError:
    pyplot = None


def draw(weights, path):
    """A histogram of them, and a map."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 6))
    left.hist(weights.flatten().numpy(), bins=200)
    right.imshow(weights.numpy())
    figure.savefig(path)
    pyplot.close(figure)


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--every", type=int, default=20)
    arguments.add_argument("--output", default=os.path.join(tempfile.gettempdir(), "gpuwatch-weights.png"))
    arguments.add_argument("--step-ms", type=float, default=30.0)
    args = arguments.parse_args()
    device, log = setup(args)
    model, optimizer, inputs = wide_model(device, args.step_ms)
    step = 0
    while True:
        loss = train(model, optimizer, inputs)
        step += 1
        if step % args.every == 0:
            weights = model.layer.weight.detach().float().cpu()[:512, :512]
            if pyplot is not None:
                draw(weights, args.output)
            else:
                print(f"step {step} loss {loss.item():.4f}", *(f"{w:.6f}" for w in weights.flatten().tolist()))
        log.step(len(inputs))


if __name__ == "__main__":
    main()
