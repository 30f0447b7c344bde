"""A dataset whose library starts as many threads as there are cores, in each worker: OpenCV, or else OpenBLAS."""

import numpy as np
import torch
from helpers import parser, setup, train, wide_model
from torch.utils.data import DataLoader, Dataset

try:
    import cv2
except ImportError:
    cv2 = None


class Filtered(Dataset):
    """Filtered noise."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        image = np.random.default_rng(index).random((self.size, self.size), dtype=np.float32)
        if cv2 is None:
            image = np.linalg.svd(image[:256, :256])[0]
        else:
            for _ in range(4):
                image = cv2.GaussianBlur(image, (31, 31), 5)
                image = cv2.warpAffine(image, cv2.getRotationMatrix2D((9, 9), 5, 1), image.shape)
        return torch.from_numpy(np.ascontiguousarray(image[:32, :32]))


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--workers", type=int, default=12)
    arguments.add_argument("--step-ms", type=float, default=30.0)
    arguments.add_argument("--one-thread", action="store_true", help="one thread per worker")
    args = arguments.parse_args()
    device, log = setup(args)

    def init(worker):
        if args.one_thread and cv2 is not None:
            cv2.setNumThreads(1)

    size = 64 if device.type == "cpu" else 1024
    loader = DataLoader(Filtered(size), batch_size=16, num_workers=args.workers, worker_init_fn=init)
    model, optimizer, inputs = wide_model(device, args.step_ms)
    for batch in loader:
        batch.to(device, non_blocking=True)
        train(model, optimizer, inputs)
        log.step(len(batch))


if __name__ == "__main__":
    main()
