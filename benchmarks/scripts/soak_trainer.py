"""A training of the soak, cheap unless it is torch's: `soak_trainer.py SECONDS STEPS_PER_SECOND [torch]`."""

import sys
import time

import gpuwatch


class Batches:
    """An epoch whose batches take a while to come, as those of a loader that cannot keep up."""

    def __init__(self, pause: float) -> None:
        self.pause = pause

    def __iter__(self):
        for number in range(200):
            time.sleep(self.pause / 2)
            yield [number] * 8


def plain(deadline: float, pause: float) -> None:
    """Any loop that is not torch's."""
    batches = gpuwatch.loader(Batches(pause))
    while time.monotonic() < deadline:
        for _batch in batches:
            time.sleep(pause / 2)
            gpuwatch.step(samples=8)
            if time.monotonic() >= deadline:
                break
        with gpuwatch.phase("eval"):
            time.sleep(pause)


def with_torch(deadline: float, pause: float) -> None:
    """A torch training with two workers."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(1600, 64), torch.randn(1600, 8))
    while time.monotonic() < deadline:
        for inputs, wanted in DataLoader(data, batch_size=8, num_workers=2):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), wanted).backward()
            optimizer.step()
            time.sleep(pause)
            if time.monotonic() >= deadline:
                break


if __name__ == "__main__":
    seconds, steps_per_second = map(float, sys.argv[1:3])
    gpuwatch.watch()
    (with_torch if "torch" in sys.argv else plain)(time.monotonic() + seconds, 1 / steps_per_second)
