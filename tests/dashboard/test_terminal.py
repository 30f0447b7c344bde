from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gpuwatch.dashboard.terminal import ENDING_SIGNALS, terminal_problem
from tests.dashboard.pseudo_terminal import PATIENCE_SECONDS, ROOT, PseudoTerminal

DASHBOARD = "tests.dashboard.fake_main"
DRAWN = "the GPU idles 41%"
LATER_SCREENS = ("attach", "finding", "gpu", "help", "processes", "timeline")


@pytest.mark.parametrize(("keys", "code"), [(b"q", 0), (b"\x03", 130)])
def test_a_key_ends_it_and_gives_the_terminal_back(keys: bytes, code: int) -> None:
    with PseudoTerminal(DASHBOARD) as terminal:
        terminal.read_until(DRAWN)
        terminal.type(keys)
        assert terminal.wait() == code
        assert terminal.is_restored


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_gives_the_terminal_back(number: signal.Signals) -> None:
    with PseudoTerminal(DASHBOARD) as terminal:
        terminal.read_until(DRAWN)
        terminal.send(number)
        assert terminal.wait() == 128 + number
        assert terminal.is_restored


def test_it_ends_although_a_source_does_not() -> None:
    with PseudoTerminal(DASHBOARD, "hanging") as terminal:
        terminal.read_until(DRAWN)
        terminal.type(b"q")
        assert terminal.wait() == 0
        assert terminal.is_restored


@pytest.mark.parametrize("controlling", [True, False], ids=["with SIGHUP", "without SIGHUP"])
def test_it_ends_with_its_terminal(controlling: bool) -> None:
    with PseudoTerminal(DASHBOARD, controlling=controlling) as terminal:
        terminal.read_until(DRAWN)
        terminal.disappear()
        assert terminal.wait() == 128 + signal.SIGHUP


def test_a_terminal_that_takes_no_output_does_not_keep_it_alive() -> None:
    with PseudoTerminal(DASHBOARD) as terminal:
        terminal.read_until("gpuwatch")
        terminal.send(signal.SIGTERM)
        terminal.process.wait(PATIENCE_SECONDS)  # nothing is read any more
        assert terminal.process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", ENDING_SIGNALS)
@pytest.mark.parametrize("program", [(DASHBOARD,), ("gpuwatch", "demo")], ids=["sources start", "imports run"])
def test_a_signal_before_the_app_is_there_gives_the_terminal_back_too(
    program: tuple[str, ...], number: signal.Signals
) -> None:
    with PseudoTerminal(*program) as terminal:
        terminal.read_until("STARTING")
        terminal.send(number)
        assert terminal.wait() == 128 + number
        assert terminal.is_restored


def test_the_escape_key_alone_and_keys_made_of_escapes_are_distinguished() -> None:
    with PseudoTerminal(DASHBOARD) as terminal:
        terminal.read_until(DRAWN)
        terminal.type(b"t")
        terminal.read_until("2 min up to now")
        terminal.type(b"\x1b[D")  # the left arrow
        terminal.read_until("up to 30 s ago")
        terminal.output = b""
        terminal.type(b"\x1b")
        terminal.read_until(DRAWN)
        terminal.type(b"q")
        assert terminal.wait() == 0


def test_it_refuses_a_dumb_terminal_with_one_sentence() -> None:
    with PseudoTerminal(DASHBOARD, term="dumb") as terminal:
        assert terminal.wait() == 2
        assert b"\x1b" not in terminal.output
        assert terminal.output.decode().startswith("gpuwatch: the dashboard needs a terminal that can move its cursor")


def test_it_refuses_a_pipe_with_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", DASHBOARD],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "gpuwatch: the dashboard needs a terminal, but standard input is not one; "
        "use `gpuwatch watch` or `gpuwatch report`\n"
    )


@pytest.mark.parametrize("descriptor", [0, 1, 2])
def test_each_of_the_three_streams_has_to_be_a_terminal(descriptor: int) -> None:
    problem = terminal_problem({"TERM": "xterm"}, lambda asked: asked != descriptor)
    assert problem is not None
    assert ["standard input", "standard output", "standard error"][descriptor] in problem


def test_a_usual_terminal_is_fine_and_one_without_a_name_is_not() -> None:
    assert terminal_problem({"TERM": "xterm-256color"}, lambda _: True) is None
    assert "TERM is not set" in (terminal_problem({}, lambda _: True) or "")


def modules_after(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(' '.join(sys.modules))"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return set(subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True).stdout.split())


def test_the_launcher_loads_no_textual_before_it_has_to() -> None:
    assert "textual" not in modules_after("import gpuwatch.dashboard.launch, gpuwatch.dashboard.terminal")


def test_the_first_frame_loads_only_what_it_draws() -> None:
    loaded = modules_after("import gpuwatch.dashboard.app")
    assert "textual.app" in loaded
    assert not loaded & {
        "numpy",
        "torch",
        "libcst",
        "markdown_it",
        "gpuwatch.diagnosis.rules",
        *(f"gpuwatch.dashboard.screens.{name}" for name in LATER_SCREENS),
    }


def test_the_dashboard_loads_no_openssl_and_hides_none_from_others() -> None:
    statement = (
        "from gpuwatch.dashboard.launch import _make_app; from tests.dashboard.fake_monitor import FakeMonitor\n"
        "_make_app(FakeMonitor(), None, 'LIVE', False)\nimport sys; early = '_ssl' in sys.modules\n"
        "import ssl; assert ssl.OPENSSL_VERSION\nassert not early, 'OpenSSL was loaded'; print('fine')"
    )
    output = subprocess.run([sys.executable, "-c", statement], cwd=ROOT, capture_output=True, text=True, check=True)
    assert output.stdout == "fine\n"


def test_every_line_is_painted_again_when_the_shell_brings_it_back() -> None:
    with PseudoTerminal(DASHBOARD, "lively") as terminal:
        terminal.read_until(DRAWN)
        terminal.read_until_quiet()
        terminal.type(b"\x1a")  # Ctrl-Z
        terminal.read_until("\x1b[?1049l")
        os.waitpid(terminal.process.pid, os.WUNTRACED)
        terminal.output = b""
        terminal.send(signal.SIGCONT)
        terminal.read_until("What to change")
        terminal.type(b"q")
        assert terminal.wait() == 0
        assert terminal.is_restored


def test_a_key_paints_over_what_another_program_wrote_on_the_screen() -> None:
    with PseudoTerminal(DASHBOARD, "lively") as terminal:
        terminal.read_until(DRAWN)
        terminal.read_until_quiet()
        terminal.output = b""
        terminal.type(b"\x0c")  # Ctrl-L
        terminal.read_until("What to change")
        terminal.type(b"q")
        assert terminal.wait() == 0
