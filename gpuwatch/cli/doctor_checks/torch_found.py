"""Which torch a training started here would use; it is looked for, never imported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence

from gpuwatch.cli.doctor_checks.check import Check, State
from gpuwatch.sources.host.procfs import shown

_NAME = "torch"
_TIMEOUT_SECONDS = 10.0

# torch/version.py is read as text: importing torch takes seconds, and may start a CUDA context.
_LOOK = r"""
import sys
sys.path[:] = [folder for folder in sys.path if folder]  # a json.py in the current folder is not ours to run
import importlib.util, json, os, re
found = {"place": None, "version": None, "cuda": None, "hip": None}
spec = importlib.util.find_spec("torch")
if spec is not None:
    found["place"] = spec.origin or list(spec.submodule_search_locations)[0]
    try:
        with open(os.path.join(os.path.dirname(spec.origin or ""), "version.py"), errors="replace") as lines:
            text = lines.read()
    except OSError:
        text = ""
    match = re.search(r"^__version__\s*=\s*'([^']*)'", text, re.M)
    found["version"] = match.group(1) if match else None
    for key in ("cuda", "hip"):
        match = re.search(r"^%s\b[^=]*=\s*'([^']*)'" % key, text, re.M)
        found[key] = match.group(1) if match else None
json.dump(found, sys.stdout)
"""


def check_torch(gpu_present: bool, interpreters: Sequence[str] | None = None) -> Check:
    """Looks with this interpreter and with the `python` and `python3` of the PATH."""
    candidates = _interpreters() if interpreters is None else list(interpreters)
    looks = {interpreter: _look(interpreter) for interpreter in candidates}
    found = {interpreter: look for interpreter, look in looks.items() if look and look["place"]}
    whole = {interpreter: look for interpreter, look in found.items() if look["version"]}
    if not found:
        return Check(
            _NAME,
            State.WARNING,
            f"No torch is found by {', '.join(map(_shown, candidates)) or 'any python'}; a training with another "
            "interpreter can be watched all the same.",
            "Activate the environment of the training, or `pip install torch` there.",
        )
    interpreter, look = next(iter((whole or found).items()))
    details = {"interpreter": interpreter, **look}
    if not whole:
        return Check(
            _NAME,
            State.WARNING,
            f"The torch that {_shown(interpreter)} finds, {look['place']}, is incomplete: no version.py beside it says "
            "which version it is.",
            "Install torch again there: `pip install --force-reinstall torch`; a folder or file of that name which "
            "hides it has to go.",
            details,
        )
    about = f"torch {look['version']} is found by {_shown(interpreter)}"
    if look["cuda"]:
        return Check(_NAME, State.OK, f"{about}, built for CUDA {look['cuda']}.", None, details)
    if look["hip"]:
        return Check(
            _NAME,
            State.WARNING,
            f"{about}, built for AMD GPUs (HIP {look['hip']}), whose hardware gpuwatch does not read.",
            "Runs are still watched through the hook; for the hardware use `amd-smi`.",
            details,
        )
    if not gpu_present:
        return Check(_NAME, State.OK, f"{about}, built for the CPU only, as this machine is.", None, details)
    return Check(
        _NAME,
        State.WARNING,
        f"{about}, built for the CPU only: a training with it leaves every GPU idle.",
        "Install a CUDA build: https://pytorch.org/get-started/locally/.",
        details,
    )


def _interpreters() -> list[str]:
    on_path = (shutil.which(name) for name in ("python", "python3"))
    return list(dict.fromkeys([sys.executable, *(path for path in on_path if path)]))


def _look(interpreter: str) -> dict[str, str | None] | None:
    try:
        run = subprocess.run(
            [interpreter, "-c", _LOOK],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_SECONDS,
            check=True,
        )
        found = json.loads(run.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):  # no python after all, or one that does not answer
        return None
    if not isinstance(found, dict):
        return None
    values = {key: found.get(key) for key in ("place", "version", "cuda", "hip")}
    return {key: shown(str(value).encode()) if value else None for key, value in values.items()}


def _shown(path: str) -> str:
    return shown(path.encode("utf-8", "surrogateescape"))
