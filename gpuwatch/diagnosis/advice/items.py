"""What kind of work a line of loading does, judged by its own text and the library function at work below it."""

from __future__ import annotations

import re
from typing import Literal

from gpuwatch.diagnosis.advice.lines import HotLine

Work = Literal["read", "collate", "decode", "preprocess", "augment"]

_BELOW: tuple[tuple[Work, str], ...] = (
    ("collate", r"collate\.py|(multiprocessing|torch)/(reductions|queues?)\.py|torch/storage\.py"),
    (
        "read",
        r"PIL/Image\.py:open|fsspec|s3fs|gcsfs|boto|urllib|requests/|aiohttp|socket\.py|ssl\.py|gzip\.py|zipfile|tarfile|"
        r"pathlib|lmdb|zarr|h5py|webdataset|torch/serialization\.py|numpy/(_?npyio|_npyio_impl|memmap|format)",
    ),
    (
        "decode",
        r"PIL/(ImageFile|Jpeg\w*|Png\w*|Webp\w*|Tiff\w*|Image)\.py:(load|load_\w+|decode|draft|convert|tobytes)|"
        r"torchvision/(image|video|video_reader)\.py|torchcodec|imageio|simplejpeg|turbojpeg|decord|\bav/|soundfile|"
        r"librosa/audio|torchaudio/",
    ),
    ("preprocess", r"json/|tokeniz|transformers/|sentencepiece|pandas/|csv\.py|spacy|nltk|pyarrow|\bre/|\bre\.py|yaml"),
    ("augment", r"PIL/|torchvision/|albumentations|kornia|imgaug|skimage|scipy/|numpy/|cv2|random\.py|torch/"),
)
"""By the library function, said as its package, file and name. In this order: reading an image file is PIL too, and so
is decoding it."""
_SAID: tuple[tuple[Work, str], ...] = (
    ("collate", r"collate|torch\.stack\(|pad_sequence\("),
    ("decode", r"imdecode|decode|\.convert\(|\.load\(\)|read_image\(|imread\("),
    (
        "read",
        r"\bopen\(|\.read\(|read_bytes|read_text|readline|np\.load\(|torch\.load\(|requests\.|urlopen|memmap|\.get_object\(",
    ),
    ("preprocess", r"json|token|encode\(|\.split\(|re\.(sub|find|match|split|compile)|\.strip\(|pd\."),
    (
        "augment",
        r"transform|augment|cv2\.|F\.|resize|crop|rotate|flip|blur|noise|filter|normali[sz]e|random|np\.|img|image",
    ),
)
"""By the line's own text, where nothing known is at work below it: extension modules have no Python frames."""
READS = re.compile(
    r"imread\(|read_image\(|Image\.open\(|PIL/ImageFile\.py:load|PIL/Image\.py:(open|load)|"
    + "|".join(pattern for kind, pattern in (*_BELOW, *_SAID) if kind == "read")
)
"""Lines that read files, or may: they do when their process waits instead of computing."""


def work_of(line: HotLine) -> Work | None:
    """The kind of work, None where nothing tells."""
    if line.phase == "collate":
        return "collate"
    for text, patterns in ((line.leaf, _BELOW), (line.text, _SAID), (line.function, _SAID)):
        for kind, pattern in patterns:
            if text and re.search(pattern, text):
                return kind
    return None


def cheaper(line: HotLine, work: Work | None, *, on_gpu: bool) -> tuple[str, str | None]:
    """How to make it cheaper: in words, and as code."""
    if work == "decode":
        return (
            "decode smaller or faster: read images at the size they are used (Image.draft), as uint8 with "
            "torchvision.io.decode_image or simplejpeg (1.18-1.28x of decode time), or store them resized once"
        ), "image = torchvision.io.decode_image(path)  # uint8; scale and normalise after the copy"
    if work == "augment" and on_gpu:
        return (
            "do it on the GPU after the copy, on the whole batch (torchvision.transforms.v2, or kornia with data_keys "
            "for masks), do it on smaller images, or do it once before training"
        ), "images = transforms.v2.RandomResizedCrop(224)(images.to(device, non_blocking=True))"
    if work == "augment":
        return (
            "do it on smaller images and on uint8 (torchvision.transforms.v2), take a cheaper operation, or do it "
            "once before training"
        ), None
    if work == "preprocess":
        return "do it once before training, and store the result as arrays that are mapped into memory", None
    if work == "collate":
        return (
            "let items be tensors of one size that stack without conversion, keep uint8 until after the copy, "
            "and pad in one call"
        ), None
    if work == "read":
        return "read large pieces: shards (WebDataset, streaming), or a copy on a local disk", None
    return "do less of it per item: do it once before training, cache what repeats, or vectorise it", None
