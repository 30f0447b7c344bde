"""Settings that a trial tries in this process, so that what they bring is learnt without editing the program.

They come as one JSON object in GPUWATCH_OVERRIDES; without that variable this module is never imported. What took
effect is reported as the fact `overrides`, for a setting that nothing asked for says nothing about the setting.
"""

from __future__ import annotations

import functools
import gc
import json
import os
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from . import loaders, model
from .hidden import around, hidden, leave_traceback
from .quiet import belongs_to, calling_place, inherits, own, quietly
from .ring import pulse

_NEED_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None, "timeout": 0}
"""What DataLoader refuses without workers, and what it takes in its place (torch 2.13)."""

_applied: Set[str] = set()


def _read(text: str) -> Dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


_asked = _read(os.environ.get("GPUWATCH_OVERRIDES", ""))


def in_effect() -> List[str]:
    """The names of the settings that took effect so far."""
    return sorted(_applied)


def wrap_loader(torch: ModuleType) -> None:
    """Gives DataLoaders the settings that were asked for."""
    if _asked.get("loader"):
        kind = torch.utils.data.DataLoader
        kind.__init__ = _overriding(kind.__init__)


def wrap_stateful_loader(module: ModuleType) -> None:
    """The same for torchdata's loader, which calls none of its parent's methods."""
    if _asked.get("loader"):
        module.StatefulDataLoader.__init__ = _overriding(module.StatefulDataLoader.__init__)


def set_backends(torch: ModuleType) -> None:
    """Sets torch's own switches, and once more as an optimizer is built: the program may have set them meanwhile."""
    names = ("float32_matmul_precision", "cudnn_benchmark", "compile")
    if any(name in _asked for name in names):
        _switch(torch)
        kind = torch.optim.Optimizer
        kind.__init__ = _switching(kind.__init__, torch)


def wrap_copies(torch: ModuleType) -> None:
    """Makes copies of pinned memory to the GPU wait, or not wait. Only a trial's arm pays for the wrapper."""
    if "non_blocking" in _asked:
        for name, target in (("to", None), ("cuda", "cuda")):
            setattr(torch.Tensor, name, _copying(getattr(torch.Tensor, name), target, bool(_asked["non_blocking"])))


def _overriding(original: Callable[..., None]) -> Callable[..., None]:
    names = _parameters(original)

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807 - it takes that method's place
        changed = quietly(_changed, names, arguments, named) if _is_meant() else None
        applied: Tuple[str, ...] = ()
        if changed is not None:
            arguments, named, applied = changed
        try:
            original(self, *arguments, **named)
        except BaseException as error:
            leave_traceback(error)
            raise
        _note(*applied)

    return hidden(__init__)


def _is_meant() -> bool:
    """Whether the loader that is being built is the one to change: that of a line, or any where none is named."""
    wanted = _asked.get("at")
    if not wanted:
        return True
    place = quietly(calling_place)
    return place is not None and [place.file, place.line] == wanted


def _parameters(function: Any) -> Tuple[str, ...]:
    """The names that a method takes after `self`, in order."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = function.__code__
    return tuple(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])


def _changed(
    names: Tuple[str, ...], arguments: Tuple[Any, ...], named: Dict[str, Any]
) -> Tuple[Tuple[Any, ...], Dict[str, Any], Tuple[str, ...]]:
    """The call's arguments with the settings in them, and the names of those that take effect.

    Settings that cannot hold without workers go with the workers.
    """
    wanted = {name: value for name, value in _asked["loader"].items() if name in names}
    given = {**dict(zip(names, arguments)), **named}  # noqa: B905 - Python 3.8 has no strict
    if given.get("batch_sampler") is not None or given.get("batch_size", 1) is None:
        wanted.pop("batch_size", None)  # something else makes its batches
    given.update(wanted)
    count = given.get("num_workers")
    if count is None or (type(count) is int and not count):
        dropped = {name: value for name, value in _NEED_WORKERS.items() if name in given}
        wanted = {**{name: value for name, value in wanted.items() if name not in _NEED_WORKERS}, **dropped}
    by_place = list(arguments)
    by_name = dict(named)
    for name, value in wanted.items():
        place = names.index(name)
        if place < len(by_place):
            by_place[place] = value
        else:
            by_name[name] = value
    applied = tuple(name for name, value in _asked["loader"].items() if name in wanted and wanted[name] == value)
    return tuple(by_place), by_name, applied


def _switching(original: Callable[..., None], torch: Any) -> Callable[..., None]:
    def leave(token: None, optimizer: Any, result: None, raised: bool) -> None:
        if not raised:
            quietly(_switch, torch)
            if _asked.get("compile"):
                quietly(_compile_model_of, optimizer, torch)

    return around(original, lambda optimizer: None, leave, "self")


def _switch(torch: Any) -> None:
    precision = _asked.get("float32_matmul_precision")
    if precision is not None:
        if model.matmul_precision(torch) != precision:
            torch.set_float32_matmul_precision(precision)
        _note("float32_matmul_precision")
    if "cudnn_benchmark" in _asked:
        torch.backends.cudnn.benchmark = bool(_asked["cudnn_benchmark"])
        _note("cudnn_benchmark")


def _compile_model_of(optimizer: Any, torch: Any) -> None:
    """Compiles the outermost module that holds all that the optimizer trains: the one that the loop calls.

    An optimizer knows parameters, not modules, so they are looked for among all objects: 0.1 s, once.
    """
    trained = {id(parameter) for group in own(optimizer, "param_groups") for parameter in group["params"]}
    trees = [_tree(each) for each in gc.get_objects() if inherits(type(each), torch.nn.Module)]
    holding = [tree for tree in trees if trained <= {number for module in tree for number in _held(module)}]
    inner = {id(child) for tree in holding for child in tree[1:]}
    outermost = [tree[0] for tree in holding if id(tree[0]) not in inner]
    if len(outermost) == 1 and own(outermost[0], "_compiled_call_impl") is None:
        torch.nn.Module.compile(outermost[0])
        _note("compile")


def _tree(root: Any) -> List[Any]:
    """A module and all below it, without the methods for that, which the program may have replaced."""
    found = {id(root): root}
    pending = [root]
    while pending:
        children = own(pending.pop(), "_modules") or {}
        fresh = [each for each in dict.values(children) if each is not None and id(each) not in found]
        found.update((id(each), each) for each in fresh)
        pending += fresh
    return list(found.values())


def _held(module: Any) -> List[int]:
    """The identities of a module's own parameters."""
    return [id(parameter) for parameter in dict.values(own(module, "_parameters") or {})]


def _copying(original: Callable[..., Any], usual_target: Optional[str], non_blocking: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def copy(self: Any, *arguments: Any, **named: Any) -> Any:
        target = named.get("device", arguments[0] if arguments else named.get("other", usual_target))
        if bool not in map(type, arguments) and quietly(_is_copy_of_pinned, self, target):
            named["non_blocking"] = non_blocking
            _note("non_blocking")
        try:
            return original(self, *arguments, **named)
        except BaseException as error:
            leave_traceback(error)
            raise

    copy.__module__, copy.__qualname__ = "torch", f"Tensor.{original.__name__}"  # by which it is pickled
    return hidden(copy)


def _is_copy_of_pinned(tensor: Any, target: Any) -> bool:
    """Whether this is a copy from pinned memory to a GPU; one of a class of the program's is left as it is."""
    if not _is_gpu(target) or not belongs_to(type(tensor), "torch"):
        return False
    with loaders.undispatched():
        return bool(tensor.device.type == "cpu" and tensor.is_pinned())


def _is_gpu(target: Any) -> bool:
    if type(target) in (int, str):
        return type(target) is int or target.startswith("cuda")
    if not belongs_to(type(target), "torch"):
        return False
    with loaders.undispatched():
        device = getattr(target, "device", target)
    return getattr(device, "type", None) == "cuda"


def _note(*names: str) -> None:
    if not _applied.issuperset(names):
        _applied.update(names)
        pulse.facts_changed = True


PATCHES = {
    "torch": (wrap_loader, set_backends, wrap_copies),
    "torchdata.stateful_dataloader.stateful_dataloader": (wrap_stateful_loader,),
}
