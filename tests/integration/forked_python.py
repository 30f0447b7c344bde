"""Programs and commands, forked from a Python that has made their imports, where their start is not what is tested.

An import of torch and of what its first optimizer imports is 3 s of a core, most programs here need 0.2 s after it. In
a fork the hook is armed once torch is there, as where a script calls `gpuwatch.watch()` after its imports; what it does
while torch is being imported is tested on programs with a start of their own, by subprocess. A command of gpuwatch's
imports for 0.4 s, twice as long as most take to do what a test is about.

Run as a script this is the Python that forks. It imports the modules named in its arguments.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import os
import runpy
import select
import site
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

_ROOM = 4096  # bytes of a command line, which a fork writes over that of the Python it comes from
_REQUEST = 1 << 17
_STATUS = 4
_ASKING = threading.Lock()


class ForkedPython(subprocess.Popen[Any]):
    """A `subprocess.Popen` of [sys.executable, script, *arguments], whose process is a fork of one with torch."""

    modules: tuple[str, ...] = ("torch", "torch._dynamo", "torch.distributed.checkpoint")

    def _execute_child(self, *arguments: Any) -> None:
        names = list(inspect.signature(subprocess.Popen._execute_child).parameters)  # type: ignore[attr-defined]
        given = dict(zip(names[1:], arguments, strict=True))
        (executable, *command), pipes = map(str, given["args"]), ("p2cread", "c2pwrite", "errwrite")
        assert executable == sys.executable
        request = {
            "command": command,
            "environment": dict(os.environ if given["env"] is None else given["env"]),
            "folder": str(given["cwd"] or Path.cwd()),
            "session": given["start_new_session"],
        }
        self._ended, status = os.pipe()
        streams = [given[name] if given[name] != -1 else usual for usual, name in enumerate(pipes)]
        with _ASKING:
            forking = _forking(self.modules)
            socket.send_fds(forking, [json.dumps(request).encode()], [*streams, status])
            self.pid = int(forking.recv(_REQUEST))
        os.close(status)
        self._child_created = True
        self._close_pipe_fds(*(given[n] for n in names if n[:2] in ("p2", "c2", "er")))  # type: ignore[attr-defined]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if flags & os.WNOHANG and not select.select([self._ended], [], [], 0)[0]:
            return 0, 0
        status = os.read(self._ended, _STATUS)
        os.close(self._ended)
        assert status, "the Python that forks has ended"
        return self.pid, int.from_bytes(status, "little")


@cache
def _forking(modules: tuple[str, ...]) -> socket.socket:
    """The connection to the Python that forks for this process, and ends with it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, __file__, str(its.fileno()), *modules]
        subprocess.run(
            [*command, " " * _ROOM],
            env=environment | {"LC_ALL": "C.UTF-8"},
            pass_fds=[its.fileno()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            check=True,
        )
    assert ours.recv(_REQUEST) == b"ready"
    return ours


def _serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Forks as it is asked to. Returns in the forks only: what is to be run, and its standard streams."""
    poll, ending = select.poll(), {}
    poll.register(connection, select.POLLIN)
    connection.send(b"ready")
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in ending:
                poll.unregister(descriptor)
                pid, status = ending.pop(descriptor)
                os.write(status, os.waitpid(pid, 0)[1].to_bytes(_STATUS, "little"))
                os.close(status)
                os.close(descriptor)
                continue
            data, descriptors, _, _ = socket.recv_fds(connection, _REQUEST, 4)
            if not data:
                os._exit(0)
            *streams, status = descriptors
            pid = os.fork()
            if not pid:
                for open_file in (connection.detach(), status, *ending, *(status for _, status in ending.values())):
                    os.close(open_file)
                return json.loads(data), streams
            for stream in streams:
                os.close(stream)
            ending[(watched := os.pidfd_open(pid))] = pid, status
            poll.register(watched, select.POLLIN)
            connection.send(str(pid).encode())


def _become(asked: dict[str, Any], streams: list[int]) -> None:
    """Makes of this process what a Python of that command is at its first line."""
    if asked["session"]:
        os.setsid()
    for usual, stream in enumerate(streams):
        os.dup2(stream, usual)
        os.close(stream)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = asked["command"]
    sys.orig_argv = [sys.executable, *sys.argv]
    _write_over_command_line(b"\0".join(os.fsencode(word) for word in sys.orig_argv))
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *sys.path[1:]]
    sys.modules.pop("sitecustomize", None)  # Debian's own, which this Python imported at its start
    site.execsitecustomize()
    sys.path.insert(0, str(Path.cwd()) if sys.argv[0] == "-m" else str(Path(sys.argv[0]).parent))


def _write_over_command_line(text: bytes) -> None:
    import ctypes

    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    assert len(text) < end - start
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def _main_module(script: str) -> dict[str, Any]:
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = script
    module.__dict__["__builtins__"] = __builtins__
    return module.__dict__


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # no child of the tests, some of which attach to all of theirs
    sys.path[0] = str(Path(__file__).parents[2])
    for each in sys.argv[2:-1]:
        importlib.import_module(each)
    gc.collect()
    gc.freeze()  # what a fork collects is its own
    _become(*_serve(socket.socket(fileno=int(sys.argv[1]))))
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        script = Path(sys.argv[0])
        exec(compile(script.read_bytes(), str(script), "exec"), _main_module(str(script)))
