"""Calls a patch once the module it belongs to has been imported.

This is all that runs at the start of a Python which may never train, so it imports nothing new. The loader keeps its
type and identity: only its `exec_module` is shadowed, from the moment at which an import has found the module until it
executes it. A spec that is only asked for stays as it is.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any, Callable, Optional, TypeVar

    AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

FILE = "<gpuwatch importlib_bootstrap>"
"""In place of a file's name in code of the hook, for tools that go by it: hidden.py says which."""

_IMPORTLIB = "<frozen importlib._bootstrap>"
_FIND_AND_LOAD = getattr(sys.modules["_frozen_importlib"], "_find_and_load_unlocked", None)
_DEPTH = 50

# Module -> submodules of the hook whose PATCHES, functions of that module, wait for it. Names that others import with
# `from x import y` are patched in the module that defines them, before anyone can have taken a copy.
AWAITED = {
    "torch": ("loaders", "waits", "workers", "steps", "model", "pauses"),
    "torch._dynamo.callback": ("pauses",),
    "torch.distributed.checkpoint.state_dict_saver": ("pauses",),
    "torchdata.stateful_dataloader.stateful_dataloader": ("loaders", "waits", "workers"),
    "safetensors.torch": ("pauses",),
    "lightning.fabric.utilities.cloud_io": ("pauses",),
    "lightning_fabric.utilities.cloud_io": ("pauses",),
    "accelerate.data_loader": ("cuda",),
    "lightning.fabric.wrappers": ("cuda",),
    "lightning.pytorch.core.hooks": ("cuda",),
    "lightning_fabric.wrappers": ("cuda",),
    "pytorch_lightning.core.hooks": ("cuda",),
}

waiting: dict[str, tuple[str, ...]] = dict(AWAITED)
failed: list[str] = []

traceback_of: Callable[[BaseException], Any] = BaseException.__dict__["__traceback__"].__get__


def _like_importlib(function: AnyFunction) -> AnyFunction:
    """The same function, whose frames CPython cuts out of the traceback of an import that fails, as importlib's own.

    It knows them by their file's name (Python/import.c, remove_importlib_frames).
    """
    function.__code__ = function.__code__.replace(co_filename=_IMPORTLIB)
    return function


class Finder:
    """A meta path finder that finds nothing itself, and learns when an awaited module is complete."""

    @_like_importlib
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec that the finders behind this one give, with a loader that reports back if it is for an import."""
        if name not in waiting or not _is_being_imported(name):
            return None
        asked = False
        for finder in list(sys.meta_path):
            if finder is self:
                asked = True
            elif asked and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    _report_execution(name, spec.loader)
                    return spec
        return None


def arm() -> None:
    """Patches what is imported already and waits for the rest. Idempotent; nothing where GPUWATCH_DISABLE is set."""
    if os.environ.get("GPUWATCH_DISABLE"):
        return
    if os.environ.get("GPUWATCH_OVERRIDES"):
        _await_overrides()
    for name in list(waiting):
        module = sys.modules.get(name)
        # Of another type it may be a lazy module, which any question loads.
        if type(module) is type(sys) and not getattr(vars(module).get("__spec__"), "_initializing", False):
            imported(name)
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


def _await_overrides() -> None:
    """Lets a trial's settings come last, around what notes the settings of a loader as they are."""
    for name in ("torch", "torchdata.stateful_dataloader.stateful_dataloader"):
        if "overrides" not in waiting.get(name, ("overrides",)):
            waiting[name] = (*waiting[name], "overrides")


def imported(name: str) -> None:
    """Runs the patches of a module that has just been imported, once and each on its own."""
    for submodule in ["session", *waiting.pop(name, ())]:
        full_name = f"{__package__}.{submodule}"
        if _attempt(f"{name}: {submodule}", __import__, full_name):
            for patch in getattr(sys.modules[full_name], "PATCHES", {}).get(name, ()):
                _attempt(f"{name}: {patch.__name__}", patch, sys.modules[name])
    hidden = sys.modules.get(f"{__package__}.hidden")
    if hidden is not None and "torch" in sys.modules:
        _attempt(f"{name}: hide_package", hidden.hide_package, __package__)


def _attempt(label: str, function: Any, argument: Any) -> bool:
    try:
        function(argument)
    except Exception as error:  # another version of a library must not hurt the run
        if from_a_signal_handler(error):
            raise
        failed.append(f"{label}: {type(error).__name__}: {error}"[:200])
        return False
    return True


def from_a_signal_handler(error: BaseException) -> bool:
    """Whether the exception was raised by a signal handler that interrupted the hook.

    CPython calls a handler with the signal's number and the frame that it interrupted. So an entry of the traceback
    whose arguments hold the very frame of the entry before it is a handler, whatever kind of callable it is and even if
    it has been replaced since. A handler written in C leaves no entry; those that Python has raise KeyboardInterrupt,
    which no `except Exception` sees.

    What another thread has raised in this one (PyThreadState_SetAsyncExc) leaves no such entry: an Exception that
    strikes within the hook is taken for a fault of the hook and lost, a BaseException goes through.
    """
    interrupted = None
    trace = traceback_of(error)
    while trace is not None:
        frame = trace.tb_frame
        if interrupted is not None:
            code, values = frame.f_code, frame.f_locals
            count = code.co_argcount + code.co_kwonlyargcount
            for name in code.co_varnames[:count]:
                if values.get(name) is interrupted:
                    return True
            if code.co_flags & 0x04:  # *arguments
                rest = values.get(code.co_varnames[count])
                if type(rest) is tuple and any(value is interrupted for value in rest):
                    return True
        interrupted = frame
        trace = trace.tb_next
    return False


def _is_being_imported(name: str) -> bool:
    """Whether an import of the module is what asks for it, be it through another import hook."""
    if _FIND_AND_LOAD is None:
        return False
    frame: Optional[FrameType] = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_code is _FIND_AND_LOAD.__code__:
            return bool(frame.f_locals.get("name") == name)
        frame = frame.f_back
    return False


def _report_execution(name: str, loader: Any) -> None:
    if not hasattr(type(loader), "exec_module"):
        return

    @_like_importlib
    def exec_module(module: ModuleType) -> None:
        if module.__name__ != name:  # a zip file's modules share one loader
            type(loader).exec_module(loader, module)
            return
        try:  # noqa: SIM105 - contextlib would be one more import at the start of every Python
            object.__delattr__(loader, "exec_module")
        except AttributeError:
            pass  # another process has removed it
        loader.exec_module(module)
        imported(name)

    try:
        object.__setattr__(loader, "exec_module", exec_module)
    except (AttributeError, TypeError):
        failed.append(f"{name}: its loader {type(loader).__name__} cannot be observed")


def _hide_sources(package: Any, own_code: Any) -> None:
    """Gives the code of the private package's modules, this one included, names that are no files'.

    `coverage` would list them with the program's wherever gpuwatch lies outside site-packages.
    """
    try:
        from _imp import _fix_co_filename  # type: ignore[attr-defined]

        importlib: Any = sys.modules["_frozen_importlib_external"]

        def get_code(loader: Any, name: str) -> Any:
            code = importlib.SourceFileLoader.get_code(loader, name)
            _fix_co_filename(code, f"{FILE}/hook/{os.path.basename(loader.path)}")
            return code

        _fix_co_filename(own_code, f"{FILE}/hook/imports.py")
        folder = package.__path__[0]
        if os.path.isdir(folder):  # and not in a zip file
            # Another spelling than the one under which `gpuwatch.hook` finds its modules in the same folder.
            package.__path__ = [folder + os.sep]
            loader = type("SourceFileLoader", (importlib.SourceFileLoader,), {"get_code": get_code})
            kinds = ((loader, [".py"]), (importlib.SourcelessFileLoader, [".pyc"]))
            sys.path_importer_cache[folder + os.sep] = importlib.FileFinder(folder + os.sep, *kinds)
    except (ImportError, AttributeError, KeyError):
        pass  # in another Python the modules keep their names


if __package__ == "_gpuwatch_hook":
    _hide_sources(sys.modules[__package__], sys._getframe().f_code)
