"""What one stack of a training thread means, apart from the role of the loop it stands in.

Whose a source file is, its path says, except for a torch that was built in place: there the folder decides. What single
frames of torch and of the usual frameworks show is one look-up per file and function; the names are those of torch
1.13 to 2.13, transformers 4 and 5, lightning 2 and accelerate 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Final

from gpuwatch.reader.codes import Code
from gpuwatch.reader.refusals import Cache
from gpuwatch.reader.stacks import Frame
from gpuwatch.samples import StackPhase
from gpuwatch.sources.stacks.source_text import SourceText
from gpuwatch.sources.syntax import request_in_text

_PACKAGED = re.compile(r".*/(?:site|dist)-packages/(.+)")
_STANDARD = re.compile(r".*/(?:lib|lib64)/python3(?:\.\d+t?)?/(.+)")
_ZIPPED = re.compile(r".*/python3\d+\.zip/(.+)")
_GENERATED = re.compile(r"/(torchinductor_[^/]*|torch_compile_debug|\.triton/cache)/")
_OWN = re.compile(r".*/(gpuwatch/(?:hook/.+|__init__\.py))")
_IN_PLACE = re.compile(r"(.*)/(torch/.+)")
_CELLS = ("<ipython-input", "<stdin>")
_SHOWN_PARTS = 2
_FILES_KEPT = 8192


class Owner(Enum):
    """Who wrote a file."""

    USER = "user"
    LIBRARY = "library"
    STANDARD = "standard"
    NOBODY = "nobody"  # <frozen ...>, <string>, generated code
    GPUWATCH = "gpuwatch"


@dataclass(frozen=True, slots=True)
class Place:
    """A source file. `module` is its path below the folder that packages are imported from."""

    owner: Owner
    module: str

    @property
    def package(self) -> str:
        """The package it belongs to, "torch" for "torch/optim/adam.py"."""
        return self.module.partition("/")[0]

    def shown(self, function: str) -> str:
        """What is said of a library function at work: "PIL/Image.py:resize"."""
        parts = self.module.split("/")
        short = parts if len(parts) <= _SHOWN_PARTS else [parts[0], parts[-1]]
        return f"{'/'.join(short)}:{function}"


class Places:
    """Tells files apart, each one once.

    Args:
        exists: Whether a file of the target's is there; asked for a torch outside of site-packages only.
    """

    def __init__(self, exists: Callable[[str], bool] = lambda _: False) -> None:
        self._exists = exists
        self._known: Cache[str, Place] = Cache(_FILES_KEPT)

    def of(self, file: str) -> Place:
        """Whose `file` is."""
        place = self._known.get(file)
        if place is None:
            place = self._known[file] = self._find(file)
        return place

    def _find(self, file: str) -> Place:
        if file.startswith("<gpuwatch "):  # what the hook puts in the place of torch's functions, and its own modules
            return Place(Owner.GPUWATCH, "gpuwatch" + (file.partition(">")[2] or "/hook"))
        if file.startswith("<"):
            return Place(Owner.USER if file.startswith(_CELLS) else Owner.NOBODY, file)
        if _GENERATED.search(file):
            return Place(Owner.NOBODY, "torch/_inductor/generated")
        if own := _OWN.fullmatch(file):
            return Place(Owner.GPUWATCH, own[1])
        if packaged := _PACKAGED.fullmatch(file):
            return Place(Owner.LIBRARY, packaged[1])
        if standard := _STANDARD.fullmatch(file) or _ZIPPED.fullmatch(file):
            return Place(Owner.STANDARD, standard[1])
        in_place = _IN_PLACE.fullmatch(file)
        if in_place and self._exists(f"{in_place[1]}/torch/nn/modules/module.py"):
            return Place(Owner.LIBRARY, in_place[2])
        return Place(Owner.USER, file)


class Mark(Enum):
    """What a frame is part of."""

    NEXT = auto()
    START = auto()  # iter() of a DataLoader
    FEED = auto()  # a framework's own work around next()
    SAVE = auto()
    COMPILE = auto()
    BACKWARD = auto()
    OPTIMIZER = auto()
    CLOSURE = auto()  # what an optimizer calls back, with forward and backward in it
    MODULE = auto()  # nn.Module.__call__: what it calls is forward
    FORWARD = auto()
    OPERATION = auto()  # a function of torch's that is written in Python: forward, unless the line says otherwise
    SYNC = auto()
    COPY = auto()
    LOG = auto()
    EVALUATION = auto()
    NO_GRAD = auto()  # calls a function that was decorated with torch.no_grad or inference_mode
    IMPORT = auto()
    HANDOVER = auto()  # waits for what another thread or process makes: a queue's get(), a future's result()
    NEUTRAL = auto()  # below a line without changing what the line is


_LOADER: Final = re.compile(r"torch/utils/data/dataloader\.py|torchdata/stateful_dataloader/stateful_dataloader\.py")
_OTHER_LOADERS: Final = re.compile(r"nvidia/dali/plugin/.*|torchdata/nodes/.*|ffcv/loader/.*")
_FEEDS: Final = re.compile(
    r"accelerate/data_loader\.py|lightning/pytorch/loops/fetchers\.py|lightning/pytorch/utilities/combined_loader\.py"
    r"|pytorch_lightning/loops/fetchers\.py|pytorch_lightning/utilities/combined_loader\.py"
)
_STARTERS: Final = frozenset({"__iter__", "__init__", "_get_iterator", "_reset", "get_iterator"})
_COMPILERS: Final = re.compile(
    r"torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph|bytecode_transformation|guards)\.py"
    r"|torch/_inductor/(?:graph|scheduler|lowering|ir|async_compile|select_algorithm|pattern_matcher|cpp_builder)\.py"
    r"|torch/_inductor/(?:codegen|fx_passes|kernel)/.*|triton/(?:compiler|backends)/.*|torch/_export/.*"
)
_COMPILE_FUNCTIONS: Final = re.compile(r"_?(?:compile|fx_codegen|bw_compiler|fw_compiler|codegen).*")
_BACKWARD_FILES: Final = frozenset({"torch/autograd/__init__.py", "torch/autograd/graph.py"})
_BACKWARD_FUNCTIONS: Final = frozenset({"backward", "grad", "_engine_run_backward", "_make_grads"})
_STEPS: Final = frozenset(
    {"step", "_step", "update", "unscale_", "_unscale_grads_", "_maybe_opt_step", "zero_grad", "clip_grad_norm_"}
    | {"clip_grad_value_"}
)
_MODULE_CALLS: Final = frozenset({"_call_impl", "_wrapped_call_impl", "_slow_forward"})
_OPERATIONS: Final = re.compile(r"torch/(?:functional|_ops|_jit_internal|_linalg_utils)\.py|torch/_refs/.*")
_RUNTIME: Final = re.compile(
    r"torch/utils/checkpoint\.py|torch/amp/autocast_mode\.py"
    r"|torch/autograd/function\.py|torch/_functorch/.*|torch/_inductor/.*|torch/_dynamo/eval_frame\.py|torch/fx/.*"
    r"|torch/cuda/graphs\.py|torch/jit/_script\.py|torchvision/(?:ops|models)/.*"
)
_NEUTRAL: Final = re.compile(
    r"torch/_tensor\.py|torch/overrides\.py|torch/utils/_contextlib\.py|torch/nn/modules/module\.py"
    r"|torch/nn/parameter\.py|torch/utils/_device\.py|torch/_compile\.py|torch/autograd/grad_mode\.py"
)
_LOGGERS: Final = frozenset(
    {"wandb", "tensorboard", "tensorboardX", "matplotlib", "tqdm", "mlflow", "comet_ml", "neptune", "aim", "clearml"}
    | {"swanlab", "rich", "loguru", "absl"}
)
_LOG_FILES: Final = re.compile(
    r"torch/utils/tensorboard/.*|(?:pytorch_lightning|lightning/pytorch|lightning_fabric|lightning/fabric)/loggers/.*"
    r"|(?:pytorch_lightning|lightning/pytorch)/callbacks/progress/.*|transformers/integrations/integration_utils\.py"
)
_COPIERS: Final = frozenset(
    {"send_to_device", "move_data_to_device", "batch_to", "_prepare_input", "_prepare_inputs", "batch_to_device"}
    | {"transfer_batch_to_device", "_batch_to_device"}
)
_EVALUATIONS: Final = re.compile(
    r"(?:pytorch_lightning|lightning/pytorch)/loops/(?:evaluation|prediction)_loop\.py"
    r"|ultralytics/engine/validator\.py"
)
_HF_EVALUATIONS: Final = frozenset({"evaluate", "evaluation_loop", "prediction_loop", "predict"})
_HANDOVERS: Final = frozenset(
    {("queue.py", "get"), ("multiprocessing/queues.py", "get"), ("concurrent/futures/_base.py", "result")}
)
_CLOSURE: Final = re.compile(r"(?:.*_)?closure")


def mark_of(place: Place, function: str) -> Mark | None:
    """What a frame of this file and function is part of; None where it says nothing."""
    if _CLOSURE.fullmatch(function) or place.module.endswith("loops/optimization/closure.py"):
        return Mark.CLOSURE
    if function == "<module>" and place.owner is Owner.LIBRARY:
        return Mark.IMPORT
    if place.owner is Owner.STANDARD:
        if (place.module, function) in _HANDOVERS:
            return Mark.HANDOVER
        return Mark.LOG if place.package == "logging" else None
    if place.owner is Owner.GPUWATCH:
        return Mark.NEXT if place.module == "gpuwatch/hook/api.py" and function == "__next__" else None  # its loader()
    if place.owner is not Owner.LIBRARY:
        return Mark.FORWARD if place.module == "torch/_inductor/generated" else None
    for find in (_loading, _saving_or_compiling, _stepping):
        if (mark := find(place, function)) is not None:
            return mark
    return _mark_around(place, function)


def _loading(place: Place, function: str) -> Mark | None:
    module = place.module
    if _LOADER.fullmatch(module):
        return Mark.NEXT if function == "__next__" else Mark.START if function in _STARTERS else None
    if _OTHER_LOADERS.fullmatch(module):
        return Mark.NEXT if function == "__next__" else None
    if _FEEDS.fullmatch(module) and function in ("__iter__", "__next__"):
        return Mark.FEED
    return Mark.COPY if function in _COPIERS else None


def _saving_or_compiling(place: Place, function: str) -> Mark | None:
    module = place.module
    if module == "torch/serialization.py":
        return Mark.SAVE if "save" in function else None
    if module.startswith(("safetensors/", "torch/distributed/checkpoint/")):
        return Mark.SAVE if re.search("save|serialize|write", function) else None
    if function == "save_pretrained":
        return Mark.SAVE
    if module.startswith("triton/runtime/") and function in ("_bench", "do_bench", "compile", "_do_compile"):
        return Mark.COMPILE
    if _COMPILERS.fullmatch(module):
        return Mark.COMPILE
    if module.startswith("torch/_inductor/") and _COMPILE_FUNCTIONS.fullmatch(function):
        return Mark.COMPILE
    return None


def _stepping(place: Place, function: str) -> Mark | None:
    module = place.module
    if module == "torch/_tensor.py":
        return Mark.BACKWARD if function == "backward" else Mark.NEUTRAL
    if module in _BACKWARD_FILES:
        return Mark.BACKWARD if function in _BACKWARD_FUNCTIONS else None
    if module.startswith("torch/optim/") and "state_dict" in function:
        return Mark.NEUTRAL  # on the way to a checkpoint
    if module.startswith("torch/optim/") or module == "torch/nn/utils/clip_grad.py":
        return Mark.OPTIMIZER
    if module.endswith("/grad_scaler.py") and module.startswith("torch/"):
        return Mark.OPTIMIZER if function in _STEPS else None
    if module == "torch/nn/modules/module.py":
        if function in _MODULE_CALLS:
            return Mark.MODULE
        return Mark.OPTIMIZER if function == "zero_grad" else Mark.NEUTRAL
    return None


def _mark_around(place: Place, function: str) -> Mark | None:
    module = place.module
    if place.package in _LOGGERS or _LOG_FILES.fullmatch(module):
        return Mark.LOG
    if module.startswith("torch/cuda/") and function == "synchronize":
        return Mark.SYNC
    if _EVALUATIONS.fullmatch(module) or (module.startswith("transformers/trainer") and function in _HF_EVALUATIONS):
        return Mark.EVALUATION
    if module == "torch/utils/_contextlib.py" or (module == "torch/autograd/grad_mode.py" and "decorate" in function):
        return Mark.NO_GRAD
    if _NEUTRAL.fullmatch(module):
        return Mark.NEUTRAL
    # Weights are set before training, and the functions of torch.nn.utils do no forward.
    if module.startswith("torch/nn/") and not module.startswith(("torch/nn/init.py", "torch/nn/utils/")):
        return Mark.FORWARD
    if _OPERATIONS.fullmatch(module):
        return Mark.OPERATION
    return Mark.FORWARD if _RUNTIME.fullmatch(module) else None


def hands_on(place: Place, function: str) -> bool:
    """Whether a library's frame only passes batches on: generators and iterators between a loop and its loader."""
    if place.owner is not Owner.LIBRARY:
        return place.owner is Owner.GPUWATCH
    return (
        function.startswith("__") or _FEEDS.fullmatch(place.module) is not None or _loading(place, function) is not None
    )


_LAUNCHERS = frozenset({"torch", "accelerate", "lightning", "pytorch_lightning", "ray", "deepspeed", "debugpy"})


@dataclass(frozen=True, slots=True)
class Culprit:
    """A line of the user's code. `leaf` is the library function at work below it, None where it runs itself."""

    file: str
    line: int
    function: str
    text: str | None
    leaf: str | None


@dataclass(frozen=True, slots=True)
class Call:
    """A line of the user's code that calls a function of the user's, maybe through a library."""

    file: str
    line: int
    function: str
    callee_file: str
    callee: str
    text: str | None


def culprit_index(places: Sequence[Place]) -> int | None:
    """The innermost frame of the user's own.

    A trainer that is itself installed (`python -m package.train`) has none: then the package that the program began
    with is the user's, as far as it is not a launcher's.
    """
    for index, place in enumerate(places):
        if place.owner is Owner.USER:
            return index
    package = next((place.package for place in reversed(places) if place.owner is Owner.LIBRARY), None)
    if package is None or package in _LAUNCHERS:
        return None
    return next(index for index, place in enumerate(places) if place.package == package)


def name_culprit(
    frames: Sequence[Frame], places: Sequence[Place], index: int, line_text: Callable[[str, int | None], str | None]
) -> Culprit:
    """The frame at `index`, with the innermost library frame below it."""
    frame = frames[index]
    return Culprit(
        file=frame.code.file,
        line=frame.line or frame.code.first_line,
        function=_function(frame),
        text=line_text(frame.code.file, frame.line),
        leaf=_leaf(frames[:index], places),
    )


def name_calls(
    frames: Sequence[Frame], places: Sequence[Place], index: int, line_text: Callable[[str, int | None], str | None]
) -> tuple[Call, ...]:
    """The calls by which the user's code came to the frame at `index`, the innermost first, each once."""
    whose = places[index]
    if whose.owner is not Owner.USER and whose.package in _LAUNCHERS:
        return ()
    own = [
        frame
        for frame, place in zip(frames[index:], places[index:], strict=True)
        if place.owner is whose.owner and (place.owner is Owner.USER or place.package == whose.package)
    ]
    calls = (
        Call(
            file=caller.code.file,
            line=caller.line or caller.code.first_line,
            function=_function(caller),
            callee_file=callee.code.file,
            callee=_function(callee),
            text=line_text(caller.code.file, caller.line),
        )
        for callee, caller in pairwise(own)
        if callee.code is not caller.code  # of a function that calls itself the first call counts
    )
    return tuple(dict.fromkeys(calls))


def _function(frame: Frame) -> str:
    return frame.code.qualified_name or frame.code.name


def _leaf(inner: Sequence[Frame], places: Sequence[Place]) -> str | None:
    """A library's frame rather than the standard library's that it calls: "PIL/Image.py:open", not "posixpath"."""
    for owner in (Owner.LIBRARY, Owner.STANDARD):
        for frame, place in zip(inner, places, strict=False):
            if place.owner is owner:
                return place.shown(frame.code.name)
    return None


_KEPT: Final = 2048
_EVALUATES: Final = re.compile(
    r"(?:.*_)?(?:eval\w*|evaluate|valid\w*|val|test\w*|estimate_loss|infer\w*|predict\w*)", re.I
)
_TAKES_OVER: Final = re.compile(r"loads\(|_recv_bytes\(|recv_bytes\(\)")
_DECIDING: Final[dict[Mark, StackPhase]] = {
    Mark.LOG: "log",
    Mark.SYNC: "sync",
    Mark.COPY: "copy",
    Mark.FORWARD: "forward",
    Mark.MODULE: "forward",
    Mark.FEED: "wait",
}
_NO_LOOPS_BELOW: Final = frozenset({Mark.NEXT, Mark.START, Mark.MODULE, Mark.BACKWARD, Mark.OPTIMIZER})
_CALLS_OF: Final = frozenset({"wait", "start", "other", "copy"})
"""Phases in which batches are made, by a loader's next() or by the loop itself: calls of others have no reader."""
_FORWARD: Final = frozenset({Mark.MODULE, Mark.FORWARD, Mark.OPERATION})


@dataclass(frozen=True, slots=True)
class Reading:
    """One stack, read. `phase` is what it is if the loop it stands in trains."""

    phase: StackPhase
    culprit: Culprit | None
    calls: tuple[Call, ...] = ()  # by which the culprit was called, where batches may be made: see _CALLS_OF
    trains: bool = False  # backward or optimizer
    evaluates: bool = False  # in an evaluation of a framework's, or a function that is named so and takes no gradients
    computes: bool = False  # some of torch.nn is at work
    waits: bool = False  # in a loader's next()
    receiving: bool = False  # unpickling and mapping what a worker sent
    handed: bool = False  # waits for what another thread or process hands over, not in a loader's next()
    next_frame: int | None = None  # the outermost frame of that next(), or of iter()
    where: int = 0  # stands for the lines of all frames but torch's and the standard library's
    around: int = 0  # stands for the lines of all frames around torch's own work, of which loops are written in some
    around_from: int = 0  # the innermost of these


class Classifier:
    """Reads stacks of one process. Equal stacks (the same lines of the same code) are read once."""

    def __init__(self, places: Places, text: SourceText) -> None:
        self.places = places
        self._text = text
        self._read: Cache[tuple[int | None, ...], tuple[Sequence[Code], Reading]] = Cache(_KEPT)
        self._marks: dict[tuple[str, str], Mark | None] = {}
        self._hands_on: dict[tuple[str, str], bool] = {}
        self._last: tuple[Sequence[Frame], Reading] | None = None

    def read(self, frames: Sequence[Frame]) -> Reading:
        """What the stack means."""
        if self._last is not None and self._last[0] is frames:
            return self._last[1]
        # The code objects are kept with the answer, so that no other code object takes over an identity in the key.
        key = tuple([value for frame in frames for value in (id(frame.code), frame.line)])
        known = self._read.get(key)
        if known is None:
            known = self._read[key] = tuple(frame.code for frame in frames), self._classify(frames)
        self._last = frames, known[1]
        return known[1]

    def mark(self, frame: Frame) -> Mark | None:
        """What a frame by itself says."""
        key = frame.code.file, frame.code.name
        if key not in self._marks:
            self._marks[key] = mark_of(self.places.of(frame.code.file), frame.code.name)
        return self._marks[key]

    def hands_on(self, frame: Frame) -> bool:
        """Whether the frame only passes batches on from a loader to a loop."""
        key = frame.code.file, frame.code.name
        known = self._hands_on.get(key)
        if known is None:
            known = self._hands_on[key] = hands_on(self.places.of(key[0]), key[1])
        return known

    def _classify(self, frames: Sequence[Frame]) -> Reading:
        places = [self.places.of(frame.code.file) for frame in frames]
        marks = [self.mark(frame) for frame in frames]
        index = culprit_index(places)
        phase = self._phase(frames, places, marks, index)
        if phase == "save" and Mark.SAVE in marks:
            index = _caller(frames, places, _last(marks, Mark.SAVE) + 1, index)
        culprit = None if index is None else name_culprit(frames, places, index, self._text.line)
        waits = Mark.NEXT in marks
        pulled = Mark.NEXT if waits else Mark.START
        next_frame = _last(marks, pulled) if pulled in marks else None
        handed = phase == "other" and Mark.HANDOVER in (marks if index is None else marks[:index])
        outside = max((index + 1 for index, mark in enumerate(marks) if mark in _NO_LOOPS_BELOW), default=0)
        return Reading(
            phase=phase,
            culprit=culprit,
            calls=self._calls(frames, places, phase, index, next_frame),
            trains=phase in ("backward", "optimizer"),
            evaluates=_evaluates(frames, places, marks),
            computes=phase == "forward" or Mark.MODULE in marks,
            waits=waits or phase == "wait",
            receiving=waits and self.receives(frames, places),
            handed=handed,
            next_frame=next_frame,
            where=_where(frames, places),
            around=hash((phase == "start", waits, *((id(frame.code), frame.line) for frame in frames[outside:]))),
            around_from=outside,
        )

    def _calls(
        self,
        frames: Sequence[Frame],
        places: Sequence[Place],
        phase: StackPhase,
        culprit: int | None,
        next_frame: int | None,
    ) -> tuple[Call, ...]:
        """Of a loader's next() those below it; of the loop's own Python and copies all."""
        outside = len(frames) if next_frame is None else next_frame
        if culprit is None or culprit >= outside or phase not in _CALLS_OF:
            return ()
        return name_calls(frames[:outside], places[:outside], culprit, self._text.line)

    def _phase(
        self, frames: Sequence[Frame], places: Sequence[Place], marks: Sequence[Mark | None], user: int | None
    ) -> StackPhase:
        if Mark.NEXT in marks:
            return "wait"
        if Mark.START in marks:
            return "start"
        if Mark.IMPORT in (marks if user is None else marks[:user]):
            return "other"
        if Mark.SAVE in marks:
            return "save"
        if Mark.COMPILE in marks:
            return "compile"
        backward, optimizer = _first(marks, Mark.BACKWARD), _first(marks, Mark.OPTIMIZER)
        # Of an optimizer in a backward hook and a backward in an optimizer's closure the inner one is at work.
        if optimizer is not None and (backward is None or optimizer < backward):
            called_back = any(mark in (Mark.CLOSURE, Mark.MODULE) for mark in marks[:optimizer])
            if not called_back:
                return "optimizer"
        elif backward is not None:
            return "backward"
        return self._by_lines(frames, places, marks, user)

    def _by_lines(
        self, frames: Sequence[Frame], places: Sequence[Place], marks: Sequence[Mark | None], user: int | None
    ) -> StackPhase:
        below = marks if user is None else marks[:user]
        for mark in below:
            if mark in _DECIDING:
                return _DECIDING[mark]
        if Mark.HANDOVER in below and not any(mark in _FORWARD for mark in marks):
            return "other"  # whatever the line does with what it gets: `queue.get().to(device)`
        leaf = _innermost_caller(places)
        request: StackPhase | None = None
        if leaf is not None and (user is None or leaf < user):
            # A framework's own line; its files are long, so only the line is looked at.
            request = request_in_text(self._text.line(frames[leaf].code.file, frames[leaf].line) or "")
        elif user is not None:
            request = self._text.request(frames[user].code.file, frames[user].line)
        if request is not None and request != "forward":
            return request
        if (request == "forward" and None not in below) or any(mark in _FORWARD for mark in marks):
            return "forward"
        return "other"

    def receives(self, frames: Sequence[Frame], places: Sequence[Place]) -> bool:
        """Whether the thread takes over a batch; waiting for one ends in a lock, a poll or a select."""
        if any(place.module == "torch/multiprocessing/reductions.py" for place in places):
            return True
        leaf, place = frames[0], places[0]
        if place.module == "multiprocessing/connection.py":
            return leaf.code.name in ("recv_bytes", "_recv_bytes", "_recv", "recv", "rebuild_connection")
        if place.module == "multiprocessing/queues.py":
            return _TAKES_OVER.search(self._text.line(leaf.code.file, leaf.line) or "") is not None
        return False


def _caller(frames: Sequence[Frame], places: Sequence[Place], start: int, other: int | None) -> int | None:
    """The user's line that calls what ends at `start`, which may call the user's own code back: __reduce__, in a save.

    `other` where none does.
    """
    index = culprit_index(places[start:])
    return other if index is None else start + index


def _innermost_caller(places: Sequence[Place]) -> int | None:
    """The innermost frame that is neither torch's nor the standard library's: whose line asked for what is done."""
    for index, place in enumerate(places):
        if place.owner is Owner.USER or (place.owner is Owner.LIBRARY and place.package not in ("torch", "numpy")):
            return index
    return None


def _where(frames: Sequence[Frame], places: Sequence[Place]) -> int:
    """Differs where a framework's loop below one line of the user's own moves on; a hang polls in torch only."""
    callers = (Owner.USER, Owner.LIBRARY)
    return hash(
        tuple(
            (frame.code.file, frame.code.name, frame.line)
            for frame, place in zip(frames, places, strict=True)
            if place.owner in callers and place.package != "torch"
        )
    )


def _evaluates(frames: Sequence[Frame], places: Sequence[Place], marks: Sequence[Mark | None]) -> bool:
    if Mark.EVALUATION in marks:
        return True
    return any(
        marks[index + 1] is Mark.NO_GRAD
        and places[index].owner is Owner.USER
        and _EVALUATES.fullmatch(frames[index].code.name) is not None
        for index in range(len(frames) - 1)
    )


def _first(marks: Sequence[Mark | None], mark: Mark) -> int | None:
    return next((index for index, found in enumerate(marks) if found is mark), None)


def _last(marks: Sequence[Mark | None], mark: Mark) -> int:
    return max(index for index, found in enumerate(marks) if found is mark)


CodeKey = tuple[str, str, int]


def code_key(frame: Frame) -> CodeKey:
    """What names a piece of code in a process for good; addresses are reused."""
    return frame.code.file, frame.code.name, frame.code.first_line
