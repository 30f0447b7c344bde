"""The user's lines as findings name them: which one, what share of what, how sure that is, and what work it does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gpuwatch.diagnosis.advice.sampled import busy_worker_samples, is_sampled, phase_samples, share_of
from gpuwatch.diagnosis.finding import Measure
from gpuwatch.numbers import grouped, listed, percent
from gpuwatch.timeline.stacks import hottest_line, is_fed, making_samples
from gpuwatch.timeline.windows import LineShare, RankWindow, Share, StackWindow

LEAST_SAMPLES = 20
LEAST_SHARE = 0.10
LONGEST_TEXT = 60
FEEDING = "make"
"""What a thread of the training process does that makes its batches."""
MAKING = ("item", "collate", "send", "other")
"""What a worker does that is not waiting for work."""

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


@dataclass(frozen=True, slots=True)
class HotLine:
    """A line, its share of the `of` samples it was looked for in, and the phase most of its samples were in.

    With a `callee` the share is that of a whole function of the user's, and the line one that calls it.
    """

    phase: str
    file: str
    line: int
    function: str
    share: Share
    of: int
    text: str | None = None
    leaf: str | None = None
    callee: str | None = None
    callee_lines: tuple[int, ...] = ()

    @property
    def place(self) -> str:
        """train.py:31, or "elastic() called in train.py:34", short enough for a sentence."""
        return f"{self._called}{place(self.file, self.line)}"

    @property
    def words(self) -> str:
        """train.py:31 `img = img.filter(...)`, or "elastic() called in train.py:34 `...` (mostly lines 57 and 58)"."""
        inside = ""
        if self.callee_lines:
            numbers = listed(map(str, self.callee_lines))
            inside = f" (mostly line{'s' if len(self.callee_lines) > 1 else ''} {numbers})"
        return f"{self._called}{quoted(self.file, self.line, self.text)}{inside}"

    @property
    def whose(self) -> str:
        """What its share is a share of: the waits, or the time of those that make the batches."""
        return {"wait": "the waits", FEEDING: "the loading thread's time"}.get(self.phase, "the workers' time")

    @property
    def _called(self) -> str:
        return f"{self.callee}() called in " if self.callee is not None else ""

    def measure(self, name: str, what: str) -> Measure:
        """The line as evidence: "63% ± 3.1 of the waits in train.py:31 `...` (900 samples)"."""
        below = f", in {self.leaf}" if self.leaf else ""
        text = f"{with_interval(self.share)} of {what} in {self.words}{below} ({grouped(self.of)} samples)"
        return Measure(name, f"{self.file}:{self.line}", text)


def place(file: str, line: int) -> str:
    """The file's name and the line; of an installed package its path in there, which tells whose it is."""
    installed = file.rpartition("-packages/")
    return f"{installed[2] if installed[0] else file.rsplit('/', 1)[-1]}:{line}"


def is_installed(line: HotLine) -> bool:
    """Whether the line belongs to an installed package: not the user's to change."""
    return "-packages/" in line.file


def at(file: str | None, line: int | None) -> str:
    """(train.py:31), to end a sentence with; nothing where the place is not known."""
    return "" if file is None or line is None else f" ({place(file, line)})"


def quoted(file: str, line: int, text: str | None) -> str:
    """The place with the line's text, shortened, where it is known."""
    if not text or not text.strip():
        return place(file, line)
    said = " ".join(text.split())
    return f"{place(file, line)} `{said if len(said) <= LONGEST_TEXT else said[: LONGEST_TEXT - 3] + '...'}`"


def with_interval(share: Share) -> str:
    """A share with half of its 95% interval in points: "41% ± 2.4"."""
    return f"{share.value * 100:.0f}% ± {(share.high - share.low) * 50:.1f}"


def watched(stacks: StackWindow) -> str:
    """How much a share of the training thread rests on: "(1,640 samples of its stack, 20 s)"."""
    return f"({grouped(stacks.samples)} samples of its stack, {stacks.seconds:.0f} s)"


def phase_measure(rank: RankWindow, name: str, share: float, what: str) -> Measure:
    """What a phase takes of the time; from outside, with the samples that this rests on."""
    rests = f" {watched(rank.stacks)}" if is_sampled(rank) and rank.stacks is not None else ""
    return Measure(name, round(share, 4), f"{what} {percent(share)}{rests}")


def hottest(lines: Iterable[LineShare], of: int, *phases: str, calls: Iterable[LineShare] = ()) -> HotLine | None:
    """The line or function with the most samples of these phases; None where none stands out."""
    found = hottest_line(lines, calls, phases)
    if found is None:
        return None
    of = max(of, found.samples)
    share = share_of(found.samples, of)
    if found.samples < LEAST_SAMPLES or share.value < LEAST_SHARE:
        return None
    return HotLine(
        found.phase,
        found.file,
        found.line,
        found.function,
        share,
        of,
        text=found.text,
        leaf=found.leaf,
        callee=found.callee,
        callee_lines=found.callee_lines,
    )


def hottest_of_thread(stacks: StackWindow | None, *phases: str) -> HotLine | None:
    """The same of the training thread; the share is of its samples in these phases."""
    if stacks is None:
        return None
    return hottest(stacks.lines, phase_samples(stacks, *phases), *phases, calls=stacks.calls)


def hottest_of_workers(stacks: StackWindow | None, *phases: str) -> HotLine | None:
    """The same of the workers; the share is of all samples in which they were busy."""
    if stacks is None:
        return None
    return hottest(stacks.worker_lines, busy_worker_samples(stacks), *phases, calls=stacks.worker_calls)


def loading_line(rank: RankWindow) -> HotLine | None:
    """The line that loading spends most of its time in: of the waits without workers, else of the workers' work.

    Where a thread of the training process makes the batches, it is that one's.
    """
    stacks, loader = rank.stacks, rank.train_loader
    if stacks is None:
        return None
    if is_fed(stacks):
        return hottest(stacks.feeder_lines, making_samples(stacks), FEEDING, calls=stacks.feeder_calls)
    count = loader.num_workers if loader is not None and loader.num_workers is not None else stacks.workers
    if count:
        return hottest_of_workers(stacks, "item") or hottest_of_workers(stacks, *MAKING)
    return hottest_of_thread(stacks, "wait")


def loading_measures(rank: RankWindow) -> tuple[Measure, ...]:
    """That line as evidence, where it is known."""
    line = loading_line(rank)
    if line is None:
        return ()
    return (line.measure("hot_line", line.whose),)


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
