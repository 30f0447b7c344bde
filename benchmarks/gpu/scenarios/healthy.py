"""ResNet-50 in bfloat16 on batches that lie on the GPU already."""

import torch
from helpers import parser, resnet50, setup, train_images
from torch.utils.data import DataLoader, Dataset


class Prepared(Dataset):
    """Batches that were moved before the training."""

    def __init__(self, device, batch_size, size):
        self.batches = [
            (
                torch.randn(batch_size, 3, size, size, device=device).to(memory_format=torch.channels_last),
                torch.randint(1000, (batch_size,), device=device),
            )
            for _ in range(4)
        ]

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return self.batches[index % len(self.batches)]


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--batch-size", type=int, default=256)
    args = arguments.parse_args()
    device, log = setup(args)
    if device.type == "cpu":
        args.batch_size = 2
    loader = DataLoader(Prepared(device, args.batch_size, 64 if device.type == "cpu" else 224), batch_size=None)
    model = resnet50(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for images, labels in loader:
        train_images(model, optimizer, images, labels, device)
        log.step(len(images))


if __name__ == "__main__":
    main()
