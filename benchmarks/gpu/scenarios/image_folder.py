"""ResNet-50 on a folder of JPEG files, decoded with PIL, or what else is there."""

import os
import tempfile

import torch
from helpers import jpeg_files, parser, resnet50, setup, train_images
from torch.utils.data import DataLoader, Dataset

try:
    from PIL import Image
except ImportError:
    Image = None


class Folder(Dataset):
    """Files, decoded and scaled to a square."""

    def __init__(self, paths, size):
        self.paths, self.size = paths, size

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        path = self.paths[index % len(self.paths)]
        return self.scaled(path), index % 1000

    def scaled(self, path):
        if Image is None:
            from torchvision.io import decode_jpeg, read_file

            image = decode_jpeg(read_file(path)).float()
            return torch.nn.functional.interpolate(image[None], (self.size, self.size), mode="bilinear")[0] / 255
        with Image.open(path) as file:
            image = file.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return pixels.view(self.size, self.size, 3).permute(2, 0, 1).float() / 255


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--data", default=os.path.join(tempfile.gettempdir(), "gpuwatch-jpeg"))
    arguments.add_argument("--workers", type=int, default=0)
    arguments.add_argument("--batch-size", type=int, default=32)
    args = arguments.parse_args()
    device, log = setup(args)
    small = device.type == "cpu"
    paths = jpeg_files(args.data, 8 if small else 256, 500, 375)
    dataset = Folder(paths, 64 if small else 224)
    loader = DataLoader(dataset, batch_size=2 if small else args.batch_size, num_workers=args.workers, pin_memory=True)
    model = resnet50(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for images, labels in loader:
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        train_images(model, optimizer, images, labels.to(device, non_blocking=True), device)
        log.step(len(images))


if __name__ == "__main__":
    main()
