"""What this process says of itself in its presence file, in HELLO and in FACTS. Unknown is None, never a guess."""

from __future__ import annotations

import _io
import os
import posix
import sys
from typing import Any, Dict, List, Mapping, Optional

from . import cuda, imports, loaders, model, pauses, wire
from .quiet import own, quietly

HOOK_VERSION = "0.1.0"
"""Equal to gpuwatch's; the hook cannot ask gpuwatch, which need not be there."""
REFRESH_NS = 30_000_000_000
RETRY_NS = 1_000_000_000

_SPAWNED = b"--multiprocessing-fork"  # the mark of a process that multiprocessing spawned
_TEXT = 512
_DEBUG_SWITCHES = (
    "CUDA_LAUNCH_BLOCKING",
    "TORCH_USE_CUDA_DSA",
    "TORCH_DISTRIBUTED_DEBUG",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)

_process_facts: Dict[str, Any] = {}
_joined: Dict[str, int] = {}  # its place in the process group, which it keeps when it leaves the group to end


def process_facts() -> Dict[str, Any]:
    """pid, start, command, folder and versions, read once."""
    if not _process_facts:
        with _io.open("/proc/self/cmdline", "rb") as file:
            words = file.read().rstrip(b"\0").split(b"\0")
        if _SPAWNED in words:  # multiprocessing hands the arguments of its program on in sys.argv alone
            words = [words[0], *(os.fsencode(word) for word in sys.argv)]
        try:
            folder: Optional[str] = posix.getcwd()
        except OSError:
            folder = None  # it was removed under the process
        _process_facts.update(
            pid=posix.getpid(),
            start_ticks=start_ticks("self"),
            command=[
                word[: wire.COMMAND_WORD_BYTES].decode("utf-8", "backslashreplace")
                for word in words[: wire.COMMAND_WORDS]
            ],
            cwd=folder,
            python="{}.{}.{}".format(*sys.version_info[:3]),
            hook=HOOK_VERSION,
            env={name: os.environ[name][:_TEXT] for name in _DEBUG_SWITCHES if name in os.environ},
        )
    return _process_facts


def presence() -> Dict[str, Any]:
    """The content of the presence file; the namespace tells apart containers in which all are pid 1."""
    try:
        namespace: Optional[int] = posix.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = None
    process = process_facts()
    content = {key: process[key] for key in ("pid", "start_ticks", "command", "cwd")}
    return {"version": 1, **content, "pid_ns": namespace}


def start_ticks(pid: object) -> int:
    """When a process started, in clock ticks after boot: with the pid, its identity."""
    with _io.open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def forget() -> None:
    """In the child of a fork: another pid, another start."""
    _process_facts.clear()


def collect(on_training_thread: bool) -> Dict[str, Any]:
    """All facts as they are now. The model is only looked at on the thread that trains it."""
    torch = sys.modules.get("torch")
    if on_training_thread and torch is not None:
        quietly(model.look, torch)
    overrides = sys.modules.get(__package__ + ".overrides")  # only a trial has it imported
    content = dict(process_facts())
    content.update(quietly(_ranks, os.environ, torch) or {})
    content.update(
        torch=_version(torch),
        device=model.device(),
        affinity=len(os.sched_getaffinity(0)),
        torch_threads=quietly(_threads, torch) if torch is not None else None,
        phases=list(pauses.phase_names),
        save_places=[{"file": file, "line": line} for file, line in pauses.save_places],
        gap=cuda.device.gaps is not None and cuda.device.gaps.measured,
        loaders=loaders.facts(),
        model=(quietly(model.facts, torch) if torch is not None else None) or {},
        unhooked=list(imports.failed),
        overrides=overrides.in_effect() if overrides is not None else [],
        debug=(quietly(debug_modes, torch) if torch is not None else None) or [],
    )
    content.update(quietly(_gpus, torch) or {})
    return content


def _version(torch: Any) -> Optional[str]:
    """Past the module's own `__getattr__`, which an installation that is incomplete may not survive."""
    version = own(torch, "__version__") if torch is not None else None
    return str(version) if version is not None else None


def _threads(torch: Any) -> int:
    return int(torch.get_num_threads())


def _ranks(environment: Mapping[str, str], torch: Any) -> Dict[str, Any]:
    names = {"rank": "RANK", "local_rank": "LOCAL_RANK"}
    names.update(world_size="WORLD_SIZE", local_world_size="LOCAL_WORLD_SIZE")
    ranks: Dict[str, Any] = {key: _number(environment.get(name)) for key, name in names.items()}
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        _joined.update(rank=distributed.get_rank(), world_size=distributed.get_world_size())
    ranks.update(_joined)
    job = _job(environment, ranks["world_size"])
    ranks["group"] = None
    if job is not None:
        import hashlib  # loads OpenSSL, 4 ms: only for distributed jobs

        ranks["group"] = hashlib.sha256(job.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return ranks


def _job(environment: Mapping[str, str], world_size: Optional[int]) -> Optional[str]:
    """What the ranks of one job have in common and others have not: where they meet, else who started them."""
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if address and port:
        return ":".join(filter(None, (address, port, environment.get("TORCHELASTIC_RUN_ID"))))
    # torch.multiprocessing.spawn with an init_method of tcp:// or file:// leaves nothing in the environment.
    starter = os.getppid()  # 0 where it is outside this container
    if world_size is None or world_size < 2 or not starter:
        return None
    return "{}.{}".format(starter, start_ticks(starter))


def debug_modes(torch: Any) -> List[str]:
    """The switches for finding errors that are on: those of anomaly detection, sync checks, and repeatable results."""
    found = []
    if torch.is_anomaly_enabled():
        found.append("anomaly")
    # torch's own getter would initialise CUDA.
    if torch.cuda.is_initialized() and torch._C._cuda_get_sync_debug_mode():
        found.append("sync-debug")
    if torch.are_deterministic_algorithms_enabled():
        found.append("deterministic")
    return found


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text is not None and text.isdigit() else None


def _gpus(torch: Any) -> Dict[str, Any]:
    # get_device_properties would initialise CUDA, so it is only asked where CUDA is in use already.
    uuids: List[str] = []
    memory: Optional[int] = None
    if torch is not None and torch.cuda.is_initialized():
        for index in model.cuda_indices():
            properties = torch.cuda.get_device_properties(index)
            memory = memory or properties.total_memory
            uuid = str(getattr(properties, "uuid", ""))
            if uuid:
                uuids.append(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
    return {"gpu_uuids": uuids, "gpu_memory_total": memory}
