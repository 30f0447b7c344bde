"""Stacks, loader states and source texts that are made up, as the stack source would find them in a process."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from gpuwatch.reader.codes import Code
from gpuwatch.reader.loaders import LoaderState
from gpuwatch.reader.stacks import Frame, Stack
from gpuwatch.samples import LoaderFacts
from gpuwatch.sources.stacks.classify import Classifier, Places, Reading
from gpuwatch.sources.stacks.source_text import SourceFile
from gpuwatch.sources.syntax import Loop, Request

SITE = "/venv/lib/python3.11/site-packages/"
STDLIB = "/usr/lib/python3.11/"
MAIN = "/home/ada/train.py"

_codes: dict[tuple[str, str], Code] = {}


def frame(file: str, function: str, line: int, address: int | None = None) -> Frame:
    """A frame; one of a torch file may be written "torch/..."."""
    if not file.startswith(("/", "<")):
        file = (STDLIB if file.split("/")[0].removesuffix(".py") in _STANDARD else SITE) + file
    code = _codes.setdefault((file, function), Code(len(_codes) + 1, file, function, function, 1))
    where = address if address is not None else 1000 + code.address
    return Frame(code, line, where, where + 8)


_STANDARD = {"multiprocessing", "threading", "logging", "queue", "pickle", "selectors", "posixpath"}

Place = tuple[str, str, int]


def frames(*inner_to_outer: Place) -> tuple[Frame, ...]:
    """Frames, innermost first, above the module of the script."""
    return (*(frame(*place) for place in inner_to_outer), frame(MAIN, "<module>", 1000))


def stack(*inner_to_outer: Place, thread: int = 1, is_main: bool = True) -> Stack:
    """A stack, innermost first, above the module of the script."""
    return Stack(thread, is_main, frames(*inner_to_outer))


class FakeText:
    """Source files by their names."""

    def __init__(self, files: Mapping[str, str] | None = None) -> None:
        self._files = {name: SourceFile(textwrap.dedent(text)) for name, text in (files or {}).items()}

    def file(self, file: str) -> SourceFile | None:
        return self._files.get(file)

    def line(self, file: str, number: int | None) -> str | None:
        source = self._files.get(file)
        return source.line(number) if source is not None and number is not None else None

    def request(self, file: str, number: int | None) -> Request | None:
        source = self._files.get(file)
        return source.request(number) if source is not None and number is not None else None

    def loops(self, file: str, number: int | None) -> Sequence[Loop]:
        source = self._files.get(file)
        return source.loops(number) if source is not None and number is not None else ()

    def parses(self, file: str) -> bool:
        source = self._files.get(file)
        return source is not None and source.parses


def classifier(text: FakeText | None = None) -> Classifier:
    return Classifier(Places(), text or FakeText())


def read(*inner_to_outer: Place, source: str | None = None) -> Reading:
    """What a stack means; `source` is the script's text."""
    return classifier(FakeText({MAIN: source} if source is not None else {})).read(frames(*inner_to_outer))


def loader_state(
    batches: int,
    frame_index: int = 0,
    *,
    iterator: int = 1,
    loader: int = 1,
    workers: int | None = 0,
    length: int | None = None,
) -> LoaderState:
    return LoaderState(
        iterator=iterator,
        settings=LoaderFacts(loader, num_workers=workers, batch_size=8, dataset="Photos", batches_per_epoch=length),
        type_name="_SingleProcessDataLoaderIter" if not workers else "_MultiProcessingDataLoaderIter",
        batches_yielded=batches,
        frame=frame_index,
    )


NEXT: Place = ("torch/utils/data/dataloader.py", "__next__", 733)
CALL: Place = ("torch/nn/modules/module.py", "_call_impl", 1500)
BACKWARD: tuple[Place, ...] = (
    ("torch/autograd/graph.py", "_engine_run_backward", 800),
    ("torch/autograd/__init__.py", "backward", 340),
    ("torch/_tensor.py", "backward", 620),
)
ADAM: tuple[Place, ...] = (
    ("torch/optim/adam.py", "_single_tensor_adam", 400),
    ("torch/optim/adam.py", "step", 220),
    ("torch/optim/optimizer.py", "wrapper", 500),
)
