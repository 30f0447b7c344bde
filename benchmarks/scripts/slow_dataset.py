"""A plain PyTorch training script whose dataset is slow; gpuwatch does not appear in it.

    python slow_dataset.py [--kind sleep|cpu|mixed|locked|fast] [--steps N] [--log FILE]

`--log` appends one line per step, "end_seconds samples", so that the speed can be judged without gpuwatch.
"""

import argparse
import contextlib
import fcntl
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@contextlib.contextmanager
def turn(kind: str) -> Iterator[None]:
    """Alone among the processes of this script, where it is locked."""
    if kind != "locked":
        yield
        return
    with open(__file__) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Images(Dataset):
    """Random images; reading one takes a while, as from a network disk (sleep) or a decoder (cpu).

    With `locked` one process reads or trains at a time: workers bring nothing.
    """

    def __init__(self, kind: str, length: int = 100_000) -> None:
        self.kind, self.length = kind, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with turn(self.kind):
            image = np.random.default_rng(index).random((3, 32, 32), dtype=np.float32)
            if self.kind in ("sleep", "mixed", "locked"):
                time.sleep(0.002)
            if self.kind in ("cpu", "mixed"):
                rows = image.reshape(-1)
                for _ in range(60 if self.kind == "cpu" else 20):
                    rows = np.sort(rows * 1.0001)
                image = rows.reshape(3, 32, 32)
            return torch.from_numpy(image), index % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="sleep", choices=["sleep", "cpu", "mixed", "locked", "fast"])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--log")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    loader = DataLoader(Images(args.kind), batch_size=16, num_workers=0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
                          nn.Flatten(), nn.Linear(32 * 32 * 32, 10))  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    log = open(args.log, "a", buffering=1) if args.log else None
    for step, (images, labels) in enumerate(loader):
        with turn(args.kind):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if log:
            log.write(f"{time.monotonic():.6f} {len(images)}\n")
        if step + 1 >= args.steps:
            break


if __name__ == "__main__":
    main()
