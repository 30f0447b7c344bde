"""Items made of small reads all over a big file, past the page cache."""

import contextlib
import mmap
import os
import random
import tempfile

import torch
from helpers import parser, setup, train, wide_model
from torch.utils.data import DataLoader, Dataset

BLOCK = 4096


class Blocks(Dataset):
    """Random blocks of 4 KiB."""

    def __init__(self, path, reads):
        self.path, self.reads = path, reads
        self.blocks = os.path.getsize(path) // BLOCK
        self.file = None

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        if self.file is None:
            self.open()
        total = 0
        for _ in range(self.reads):
            offset = random.randrange(self.blocks) * BLOCK
            os.preadv(self.file, [self.buffer], offset)
            total += self.buffer[0]
        return torch.tensor(float(total))

    def open(self):
        self.buffer = mmap.mmap(-1, BLOCK)
        try:
            self.file = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        except OSError:  # a file system without it, such as tmpfs
            self.file = os.open(self.path, os.O_RDONLY)


def written(path, size):
    """The file, filled with what no storage can leave out."""
    if not os.path.exists(path) or os.path.getsize(path) < size:
        chunk = os.urandom(1 << 24)
        with open(path, "wb") as file:
            for _ in range(max(1, size >> 24)):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(OSError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--data", default=os.path.join(tempfile.gettempdir(), "gpuwatch-blocks"))
    arguments.add_argument("--megabytes", type=int, default=1024)
    arguments.add_argument("--workers", type=int, default=4)
    arguments.add_argument("--reads", type=int, default=400)
    arguments.add_argument("--step-ms", type=float, default=30.0)
    args = arguments.parse_args()
    device, log = setup(args)
    if device.type == "cpu":
        args.megabytes, args.reads, args.data = 16, 2, args.data + "-small"
    dataset = Blocks(written(args.data, args.megabytes << 20), args.reads)
    loader = DataLoader(dataset, batch_size=16, num_workers=args.workers, persistent_workers=args.workers > 0)
    model, optimizer, inputs = wide_model(device, args.step_ms)
    for batch in loader:
        batch.to(device)
        train(model, optimizer, inputs)
        log.step(len(batch))


if __name__ == "__main__":
    main()
