"""What the dashboard keeps in memory: one heap for all its threads, and no module before something of it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COUNT_HEAPS = """
import ctypes, sys, threading
from gpuwatch.dashboard.launch import use_one_heap

libc = ctypes.CDLL(None)
if sys.argv[2] == "one":
    use_one_heap()
go_on = threading.Barrier(5)

def allocate():
    kept = [bytes(5_000) for _ in range(1_000)]
    go_on.wait(60)

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
go_on.wait(60)
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes = (ctypes.c_int, ctypes.c_void_p)
libc.fclose.argtypes = (ctypes.c_void_p,)
file = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="malloc_info is glibc's")
def test_threads_of_the_dashboard_allocate_from_one_heap(tmp_path: Path) -> None:
    heaps = {}
    for many in ("one", "default"):
        path = tmp_path / many
        ran = subprocess.run(
            [sys.executable, "-c", COUNT_HEAPS, str(path), many], capture_output=True, text=True, check=False
        )
        if "undefined symbol: malloc_info" in ran.stderr:
            pytest.skip("this C library is not glibc, which alone has malloc_info")
        assert ran.returncode == 0, ran.stderr
        heaps[many] = path.read_text(encoding="ascii").count("<heap ")
    assert heaps["one"] == 1
    assert heaps["default"] > 1, "else there is nothing to see here"


DEFERRED = ("asyncio.sslproto", "difflib", "mimetypes", "platformdirs", "textual.types", "unicodedata", "uuid")
IMPORT_APP = f"""
import sys
from gpuwatch.dashboard import launch

launch._import_asyncio_without_ssl()
launch._import_app()
deferred = {DEFERRED}
assert not set(deferred) & set(sys.modules), "loaded, or still replaced by what stands in"
"""
USE_ALL = """
import importlib
import textual.app, textual.command, textual.keys, textual.notifications, textual.suggestions

assert textual.keys._character_to_key("!") == "exclamation_mark"
assert textual.suggestions.get_suggestion("widht", ["width", "height"]) == "width"
assert textual.app.mimetypes.guess_type("a.svg")[0] == "image/svg+xml"
assert textual.app.user_downloads_path().name
assert textual.app.uuid.uuid4() != textual.notifications.uuid4()
assert textual.command.IgnoreReturnCallbackType is importlib.import_module("textual.types").IgnoreReturnCallbackType
for name in deferred:
    module = importlib.import_module(name)
    assert module.__spec__ is not None, f"{name} is not the module itself"
"""


def test_the_dashboard_starts_without_what_textual_seldom_needs_and_gets_it_once_it_does() -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORT_APP + USE_ALL], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
