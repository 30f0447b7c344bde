"""Calls a patch once the module it belongs to has been imported.

This is all that runs at the start of a Python which may never train, so it imports nothing new. The loader keeps its
type and identity: only its `exec_module` is shadowed, for one call.
"""

from __future__ import annotations

import os
import sys

from .hidden import hidden

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

# Module -> submodules of the hook whose PATCHES, functions of that module, wait for it. Names that others import with
# `from x import y` are patched in the module that defines them, before anyone can have taken a copy.
AWAITED = {
    "torch": ("loaders", "waits", "workers", "steps", "precision", "saves"),
    "torch._dynamo.callback": ("compiles",),
    "torch.distributed.checkpoint.state_dict_saver": ("saves",),
    "torchdata.stateful_dataloader.stateful_dataloader": ("loaders", "waits", "workers"),
    "safetensors.torch": ("saves",),
    "lightning.fabric.utilities.cloud_io": ("saves",),
    "lightning_fabric.utilities.cloud_io": ("saves",),
    "accelerate.data_loader": ("copies",),
    "lightning.fabric.wrappers": ("copies",),
    "lightning.pytorch.core.hooks": ("copies",),
    "lightning_fabric.wrappers": ("copies",),
    "pytorch_lightning.core.hooks": ("copies",),
}

waiting: dict[str, tuple[str, ...]] = dict(AWAITED)
failed: list[str] = []


class Finder:
    """A meta path finder that finds nothing itself, and learns when an awaited module is complete."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec that the other finders give, with a loader that reports back."""
        if name not in waiting:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                _report_execution(name, spec.loader)
                return spec
        return None


def arm() -> None:
    """Patches what is imported already and waits for the rest. Idempotent."""
    if os.environ.get("GPUWATCH_OVERRIDES"):
        _await_overrides()
    for name in list(waiting):
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
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


def _attempt(label: str, function: Any, argument: Any) -> bool:
    try:
        function(argument)
    except Exception as error:  # another version of a library must not hurt the run
        from .frames import raised_by_the_user

        if raised_by_the_user(error):
            raise
        failed.append(f"{label}: {type(error).__name__}: {error}"[:200])
        return False
    return True


def _report_execution(name: str, loader: Any) -> None:
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        execute(module)
        if module.__name__ == name:  # a zip file's modules share one loader
            imported(name)

    try:
        loader.exec_module = hidden(exec_module)
    except AttributeError:
        failed.append(f"{name}: its loader {type(loader).__name__} cannot be observed")
