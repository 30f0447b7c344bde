"""Where the hook meets what it did not expect, the program goes on as it would without the hook."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuwatch.hook import (
    api,
    batches,
    folder,
    frames,
    imports,
    link,
    phases,
    precision,
    process,
    quiet,
    ring,
    saves,
    settling,
    steps,
    wire,
)
from gpuwatch.hook import session as sessions
from gpuwatch.hook import workers as worker_loops

LIBRARY = "/opt/venv/lib/python3.11/site-packages/timeouts.py"


@pytest.fixture(autouse=True)
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the hook could not do, as it would tell it."""
    monkeypatch.setattr(imports, "failed", found := [])
    return found


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    """Rings an alarm whose handler, a library's, raises what most of them raise."""
    names: dict[str, Any] = {}
    exec(compile("def handler(number, frame):\n    raise TimeoutError('too slow')\n", LIBRARY, "exec"), names)
    before = signal.signal(signal.SIGUSR1, names["handler"])
    yield lambda: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_what_a_signal_handler_raises_in_a_look_at_the_programs_objects_is_the_programs(
    alarm: Callable[[], None], noted: list[str]
) -> None:
    with pytest.raises(TimeoutError):
        quiet.quietly(alarm)
    assert not noted


def test_what_a_signal_handler_raises_while_a_batch_is_measured_is_the_programs(alarm: Callable[[], None]) -> None:
    class Batch(list[int]):
        def __len__(self) -> int:
            alarm()
            return 2

    measure = batches._length(Batch)
    with pytest.raises(TimeoutError):
        measure(Batch())


def test_what_an_object_of_the_programs_raises_is_noted_and_no_more(noted: list[str]) -> None:
    def broken() -> None:
        raise TimeoutError

    assert quiet.quietly(broken) is None
    assert len(noted) == 1


def test_a_timeout_that_strikes_in_the_link_is_the_programs(alarm: Callable[[], None]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    class Connection:
        fileno = staticmethod(ours.fileno)

        def send(self, packet: bytes, flags: int) -> None:
            alarm()

    with ours, theirs:
        sending = link.Link(Connection(), 1, 0, 0)  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            sending.send_bye("exit")
        assert sending.alive


def test_a_timeout_that_strikes_in_a_look_for_monitors_is_the_programs(
    alarm: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = folder.Folder("/nowhere", 0)
    assert looking.monitors_if_changed() is None
    monkeypatch.setattr(folder, "os", SimpleNamespace(stat=lambda path: alarm()))
    with pytest.raises(TimeoutError):
        looking.monitors_if_changed()


def test_a_timeout_that_strikes_as_records_are_settled_loses_none(
    alarm: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ring.pending.clear()
    for end_ns in (3, 1, 2):
        ring.append((wire.OPTIMIZER, 0, 9, 0, 0, end_ns, 0, 0))
    with monkeypatch.context() as patched:
        patched.setattr(steps, "number_of", lambda address, stepped_ns: alarm() if stepped_ns == 2 else 0)
        with pytest.raises(TimeoutError):
            settling.settle()
    assert [wire.RECORD.unpack(record)[5] for record in settling.settle()] == [1, 2, 3]
    settling.forget()


def test_a_number_of_samples_that_no_record_holds_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_watched", True)
    monkeypatch.setattr(ring.pulse, "due_ns", 1 << 62)
    ring.pending.clear()
    for samples in (32, -3, 1 << 63, "32", None):
        api.step(samples)  # type: ignore[arg-type]
    assert [wire.RECORD.unpack(record)[6] for record in settling.settle()] == [32, -1, -1, -1, -1]
    settling.forget()


def test_a_line_is_named_where_the_working_folder_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def removed() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", removed)
    names = {"calling_place": frames.calling_place}
    exec(compile("def build():\n    return calling_place()\n", "train.py", "exec"), names)
    place = names["build"]()
    assert place is not None
    assert (place.file, place.line, place.function) == ("train.py", 2, "build")


def test_a_fault_of_a_bundled_hook_is_not_taken_for_the_programs() -> None:
    source = Path(frames.__file__).read_text()
    bundled: dict[str, Any] = {"__name__": "bundled", "__file__": "/tmp/bundle/gpuwatch/hook/frames.pyc"}
    exec(compile(source, "gpuwatch/hook/frames.py", "exec"), bundled)
    folder_names: dict[str, Any] = {}
    exec(compile("def stat():\n    raise FileNotFoundError\n", "gpuwatch/hook/folder.py", "exec"), folder_names)
    judged = bundled["raised_by_the_user"]
    exec(
        compile(
            "def flush(action, judged):\n"
            "    try:\n        action()\n"
            "    except OSError as error:\n        return judged(error)\n",
            "gpuwatch/hook/session.py",
            "exec",
        ),
        folder_names,
    )
    assert folder_names["flush"](folder_names["stat"], judged) is False
    assert folder_names["flush"](partial(exec, compile("1 / 0 if 0 else open('/no')", "train.py", "exec")), judged)


def test_a_save_into_a_file_like_object_that_has_no_descriptor_is_left_alone() -> None:
    class Upload:
        def fileno(self) -> int:
            raise NotImplementedError("this file has no descriptor")

    saved = saves._timed(lambda state, f: (state, f), 1, "f")
    upload = Upload()
    assert saved("weights", upload) == ("weights", upload)
    assert saved("weights", f=upload) == ("weights", upload)


def test_the_same_phase_has_one_name_however_long_and_of_whatever_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "names", [])
    found = [phases.index_of(name) for name in ("x" * 100, "x" * 100, 7, 7, "7")]  # type: ignore[arg-type]
    assert found == [0, 0, 1, 1, 1]
    assert phases.names == ["x" * 80, "7"]


def test_entering_autocast_of_a_torch_with_other_attributes_is_as_before(noted: list[str]) -> None:
    class Autocast:
        _enabled = True

        def __enter__(self) -> str:
            return "entered"

    mode = SimpleNamespace(autocast=Autocast)
    torch = SimpleNamespace(amp=SimpleNamespace(autocast_mode=mode), is_grad_enabled=lambda: True)
    precision.wrap_autocast(torch)  # type: ignore[arg-type]
    assert [Autocast().__enter__() for _ in range(2)] == ["entered"] * 2
    assert len(noted) == 1


def worker(index_queue: object, data_queue: object, worker_id: int) -> tuple[object, object, int]:
    return index_queue, data_queue, worker_id


def test_workers_start_where_no_process_can_be_looked_up(monkeypatch: pytest.MonkeyPatch, noted: list[str]) -> None:
    def hidden(pid: object) -> int:
        raise FileNotFoundError(f"/proc/{pid}/stat")

    monkeypatch.setattr(process, "start_ticks", hidden)
    monkeypatch.setattr(worker_loops, "_is_importable_in_children", lambda: True)
    loop = worker_loops.WorkerLoop(worker, __name__)
    tasks, results = object(), object()
    assert loop(tasks, results, 3) == (tasks, results, 3)
    assert loop.__reduce__()[1] == (f"{__name__}._worker_loop",)
    assert len(noted) == 2


def test_a_session_that_cannot_begin_leaves_the_program_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWATCH_DIR", str(tmp_path / "meeting"))
    monkeypatch.setattr(process, "presence", partial(int, "no number in /proc/self/stat"))
    for name in ("flush", "settle"):
        monkeypatch.setattr(ring.pulse, name, getattr(ring.pulse, name))
    sessions.Session().begin()
    assert ring.pulse.flush is ring.discard


def test_backwards_after_the_last_optimizer_step_are_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(ring.pulse, "flush", flushed.append)
    monkeypatch.setattr(steps, "step_seen", True)
    monkeypatch.setattr(steps, "backward_seen", True)
    backward = steps._timed(lambda: None)
    monkeypatch.setattr(ring.pulse, "due_ns", 1 << 62)
    backward()
    assert not flushed
    monkeypatch.setattr(ring.pulse, "due_ns", 0)
    backward()
    assert len(flushed) == 1
    ring.pending.clear()
