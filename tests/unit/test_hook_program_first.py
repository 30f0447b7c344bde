"""Where the hook meets what it did not expect, the program goes on as it would without the hook."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuwatch.hook import api, facts, folder, imports, model, pauses, quiet, ring, steps, wire
from gpuwatch.hook import session as sessions
from gpuwatch.hook import workers as worker_loops

LIBRARY = "/opt/venv/lib/python3.11/site-packages/timeouts.py"


@pytest.fixture(autouse=True)
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the hook could not do, as it would report it."""
    monkeypatch.setattr(imports, "failed", found := [])
    return found


def raising(number: int, frame: object) -> None:
    raise TimeoutError("too slow")


def once(number: int, frame: object) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise TimeoutError("too slow")


def with_a_word(word: str, number: int, frame: object) -> None:
    raise TimeoutError(word)


class Alarm:
    def __call__(self, number: int, frame: object) -> None:
        raise TimeoutError("too slow")

    def ring(self, *arguments: object) -> None:
        raise TimeoutError("too slow")


def decorated(function: Callable[..., None]) -> Callable[..., None]:
    def wrapper(*arguments: object, **named: object) -> None:
        function(*arguments, **named)

    return wrapper


def a_librarys() -> Callable[..., None]:
    names: dict[str, Any] = {}
    exec(compile("def handler(number, frame):\n    raise TimeoutError('too slow')\n", LIBRARY, "exec"), names)
    return names["handler"]  # type: ignore[no-any-return]


def forgetful(number: int, frame: object) -> None:
    raising(number, frame)


HANDLERS: dict[str, Any] = {
    "a function": raising,
    "one that resets itself": once,
    "a partial": partial(with_a_word, "too slow"),
    "an object": Alarm(),
    "a method": Alarm().ring,
    "a lambda": lambda *_: (_ for _ in ()).throw(TimeoutError("too slow")),
    "a decorated one": decorated(raising),
    "a library's": a_librarys(),
    "one that calls another": forgetful,
}


@pytest.fixture(params=list(HANDLERS))
def alarm(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Rings an alarm whose handler raises what most of them raise."""
    before = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    yield lambda: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_what_a_signal_handler_raises_in_the_hook_is_the_programs(alarm: Callable[[], None], noted: list[str]) -> None:
    with pytest.raises(TimeoutError):
        quiet.quietly(alarm)
    assert not noted


def test_what_a_replaced_function_of_the_programs_raises_in_the_hook_is_noted_and_no_more(noted: list[str]) -> None:
    def guard(*arguments: object, **named: object) -> None:
        """As a test suite's network guard, in a file of the program's."""
        raise RuntimeError("no network in tests")

    assert quiet.quietly(guard, 7, "frame") is None
    assert quiet.quietly(partial(guard, object())) is None
    assert len(noted) == 2


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, pytest.exit.Exception])
def test_what_ends_a_program_goes_through(kind: type[BaseException], noted: list[str]) -> None:
    def handler(number: int, frame: object) -> None:
        raise kind

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(kind):
            quiet.quietly(signal.raise_signal, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_goes_through_without_an_entry_of_its_handler(
    kind: type[BaseException], noted: list[str]
) -> None:
    """As from Python's own handler of Ctrl-C, which is written in C, and from PyThreadState_SetAsyncExc."""

    def struck() -> None:
        raise kind

    with pytest.raises(kind):
        quiet.quietly(struck)
    assert not noted


def test_a_timeout_that_strikes_in_the_link_is_the_programs(alarm: Callable[[], None]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    class Connection:
        fileno = staticmethod(ours.fileno)

        def send(self, packet: bytes, flags: int) -> None:
            alarm()

    with ours, theirs:
        sending = sessions.Link(Connection(), 1, 0, 0)  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            sending.send_bye("exit")
        assert sending.alive


def test_a_timeout_that_strikes_in_a_look_for_monitors_is_the_programs(
    alarm: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = folder.Folder("/nowhere", 0)
    assert looking.monitors_if_changed() is None
    monkeypatch.setattr(folder, "posix", SimpleNamespace(stat=lambda path: alarm()))
    with pytest.raises(TimeoutError):
        looking.monitors_if_changed()


def test_a_number_of_samples_that_no_record_holds_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_watched", True)
    monkeypatch.setattr(ring.pulse, "due_ns", 1 << 62)
    ring.forget()
    monkeypatch.setattr(ring.pulse, "awake", True)
    for samples in (32, -3, 1 << 63, "32", None):
        api.step(samples)  # type: ignore[arg-type]
    assert [wire.RECORD.unpack(record)[6] for record in ring.take(in_order=True)] == [32, -1, -1, -1, -1]
    ring.forget()


def test_a_line_is_named_where_the_working_folder_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def removed() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", removed)
    names = {"calling_place": quiet.calling_place}
    exec(compile("def build():\n    return calling_place()\n", "train.py", "exec"), names)
    place = names["build"]()
    assert place is not None
    assert (place.file, place.line, place.function) == ("train.py", 2, "build")


def test_a_save_into_anything_but_pythons_own_files_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Upload:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"touched {name}")

    ring.forget()
    monkeypatch.setattr(ring.pulse, "awake", True)
    monkeypatch.setattr(ring.pulse, "due_ns", 1 << 62)
    saved = pauses._timed_saver(lambda state, f: (state, f), "f")
    with tempfile.SpooledTemporaryFile() as spooled:
        for target in (Upload(), spooled):
            assert saved("weights", target) == ("weights", target)
            assert saved("weights", f=target) == ("weights", target)
        assert not spooled._rolled  # type: ignore[attr-defined]
    assert not ring.pending
    saved("weights", __file__)
    assert len(ring.pending) == 1
    ring.forget()


def test_the_same_phase_has_one_name_however_long_and_of_whatever_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "phase_names", [])
    found = [pauses.phase_index(name) for name in ("x" * 100, "x" * 100, 7, 7, "7")]
    assert found == [0, 0, 1, 1, 1]
    assert pauses.phase_names == ["x" * 80, "7"]


def test_entering_autocast_of_a_torch_with_other_attributes_is_as_before(noted: list[str]) -> None:
    class Autocast:
        def __init__(self) -> None:
            self._enabled = True

        def __enter__(self) -> str:
            return "entered"

    mode = SimpleNamespace(autocast=Autocast)
    torch = SimpleNamespace(amp=SimpleNamespace(autocast_mode=mode), is_grad_enabled=lambda: True, dtype=type)
    model.wrap_autocast(torch)  # type: ignore[arg-type]
    assert [Autocast().__enter__() for _ in range(2)] == ["entered"] * 2
    assert len(noted) == 1


def worker(index_queue: object, data_queue: object, worker_id: int) -> tuple[object, object, int]:
    return index_queue, data_queue, worker_id


def test_workers_start_where_no_process_can_be_looked_up(monkeypatch: pytest.MonkeyPatch, noted: list[str]) -> None:
    def hidden(pid: object) -> int:
        raise FileNotFoundError(f"/proc/{pid}/stat")

    monkeypatch.setattr(facts, "start_ticks", hidden)
    tasks, results = object(), object()
    assert worker_loops._timed(worker)(tasks, results, 3) == (tasks, results, 3)
    assert len(noted) == 1


def test_a_session_that_cannot_begin_leaves_the_program_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWATCH_DIR", str(tmp_path / "meeting"))
    monkeypatch.setattr(facts, "presence", partial(int, "no number in /proc/self/stat"))
    for name in ("flush", "due_ns"):
        monkeypatch.setattr(ring.pulse, name, getattr(ring.pulse, name))
    sessions.Session().begin()
    assert ring.pulse.flush is ring.discard


def test_the_backward_of_a_torch_without_a_function_for_the_engine_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before torch 2.4: `torch.autograd.backward` calls the engine itself."""

    def backward(tensors: object, grad_tensors: object = None, *, inputs: object = None) -> object:
        if tensors == "no graph":
            raise RuntimeError(tensors)
        return tensors, grad_tensors, inputs

    torch = SimpleNamespace(autograd=SimpleNamespace(backward=backward))
    steps.wrap_backward(torch)  # type: ignore[arg-type]
    timed = torch.autograd.backward
    assert timed is not backward
    monkeypatch.setattr(steps, "backward_seen", True)
    monkeypatch.setattr(ring.pulse, "due_ns", 1 << 62)
    ring.forget()
    assert timed("loss") == ("loss", None, None)
    assert not ring.pending, "asleep it records nothing"
    monkeypatch.setattr(ring.pulse, "awake", True)
    assert timed("loss", 1, inputs=2) == ("loss", 1, 2)
    with pytest.raises(RuntimeError, match="no graph"):
        timed("no graph")
    assert [wire.RECORD.unpack(each)[:2] for each in ring.take(in_order=True)] == [
        (wire.BACKWARD, 0),
        (wire.BACKWARD, wire.RAISED),
    ]
    ring.forget()


def test_backwards_after_the_last_optimizer_step_are_still_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    ring.forget()
    monkeypatch.setattr(ring.pulse, "flush", flushed.append)
    monkeypatch.setattr(ring.pulse, "awake", True)
    monkeypatch.setattr(steps, "step_seen", True)
    monkeypatch.setattr(steps, "backward_seen", True)
    backward = steps._timed(lambda outputs, accumulate_grad: None)
    monkeypatch.setattr(ring.pulse, "due_ns", 1 << 62)
    backward((), accumulate_grad=True)
    assert not flushed
    monkeypatch.setattr(ring.pulse, "due_ns", 0)
    backward((), accumulate_grad=True)
    assert len(flushed) == 1
    ring.forget()
