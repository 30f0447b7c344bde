"""Batches of 200 MB of 32-bit numbers, from pageable or from pinned memory."""

import torch
from helpers import parser, setup, train, wide_model
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    """Whole batches that cost the workers nothing: always the same shared memory."""

    def __init__(self, megabytes):
        self.volume = torch.randn(megabytes << 18)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return self.volume


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--megabytes", type=int, default=200)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--pin", action="store_true")
    arguments.add_argument("--step-ms", type=float, default=40.0)
    args = arguments.parse_args()
    device, log = setup(args)
    if device.type == "cpu":
        args.megabytes = 1
    loader = DataLoader(Volumes(args.megabytes), batch_size=None, num_workers=args.workers, pin_memory=args.pin)
    model, optimizer, inputs = wide_model(device, args.step_ms)
    for batch in loader:
        moved = batch.to(device, non_blocking=args.pin)
        train(model, optimizer, inputs + moved[0].to(inputs.dtype))
        log.step(len(inputs))


if __name__ == "__main__":
    main()
