"""An evaluation every n steps, over data that is read in the training process."""

import time

import torch
from helpers import parser, setup, train, wide_model
from torch.utils.data import DataLoader, Dataset


class Held(Dataset):
    """Validation data that nobody has made fast."""

    def __init__(self, seconds, length):
        self.seconds, self.length = seconds, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((16,), float(index))


class Quick(Held):
    """Training data that costs nothing."""

    def __getitem__(self, index):
        return torch.full((16,), float(index))


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--every", type=int, default=50)
    arguments.add_argument("--batches", type=int, default=20)
    arguments.add_argument("--step-ms", type=float, default=30.0)
    args = arguments.parse_args()
    device, log = setup(args)
    seconds = 0.001 if device.type == "cpu" else 0.01
    train_loader = DataLoader(Quick(0.0, 1_000_000), batch_size=8)
    eval_loader = DataLoader(Held(seconds, args.batches * 8), batch_size=8)
    model, optimizer, inputs = wide_model(device, args.step_ms)
    for step, batch in enumerate(train_loader, 1):
        train(model, optimizer, inputs)
        log.step(len(batch))
        if step % args.every == 0:
            model.eval()
            with torch.no_grad():
                for held in eval_loader:
                    model(inputs[: len(held)])
            model.train()


if __name__ == "__main__":
    main()
