"""Terminals that vanish, shrink, storm and lie; signals; stops. The dashboard ends and gives the terminal back."""

from __future__ import annotations

import os
import random
import signal
import time
from itertools import product
from pathlib import Path

from nvml_sim import SimulatedDriver

from tests.faults.conftest import Place, SideBySide
from tests.faults.live import DRAWN, Dashboard, command, dashboard, left_behind, nvml_children, wait_until

WATTS = "500"
TEXTUAL = "\x1b[?2026$p"
"""A question to the terminal with which Textual begins, whatever there is to show."""
SIZES = [(1, 1), (20, 5), (0, 0), (3, 100), (100, 3), (80, 24), (120, 36), (500, 200)]


def quit_with_q(terminal: Dashboard) -> None:
    terminal.type(b"q")
    terminal.end(0)


ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM")


def test_every_signal_that_ends_programs_gives_the_terminal_back(side_by_side: SideBySide) -> None:
    """While a call of the driver hangs, which holds nothing up and leaves no process behind."""

    def check(place: Place, number: signal.Signals) -> None:
        with dashboard(place.folder, place.driver) as terminal:
            terminal.read_until(DRAWN)
            terminal.read_until(WATTS)
            place.driver.write("fault nvmlDevice* * hang")
            terminal.send(number)
            terminal.end(128 + number)

    side_by_side(check, {name: signal.Signals[name] for name in ENDING})


def moments(seed: int, most_seconds: float, count: int) -> dict[str, float]:
    """Seconds that a seed chooses, by what they are called in a failure."""
    rng = random.Random(seed)
    chosen = [rng.uniform(0, most_seconds) for _ in range(count)]
    return {f"after {seconds:.3f} s": seconds for seconds in chosen}


def test_a_signal_in_the_first_frame_gives_the_terminal_back(side_by_side: SideBySide) -> None:
    def check(place: Place, number: signal.Signals) -> None:
        with dashboard(place.folder, place.driver) as terminal:
            terminal.read_until("STARTING")
            terminal.send(number)
            terminal.end(128 + number)
            assert terminal.is_restored

    side_by_side(check, {name: signal.Signals[name] for name in ENDING}, few={"SIGINT", "SIGHUP", "SIGQUIT"})


def test_a_terminal_that_goes_at_any_moment_of_the_start_ends_it(side_by_side: SideBySide) -> None:
    def check(place: Place, case: tuple[float, bool]) -> None:
        seconds, controlling = case
        with dashboard(place.folder, place.driver, controlling=controlling) as terminal:
            terminal.read_until("STARTING")
            terminal.go_on_for(seconds)
            terminal.disappear()
            assert terminal.wait() == 128 + signal.SIGHUP
            wait_until(lambda: not left_behind(terminal.env))

    chosen = enumerate(moments(29, 1.5, 16).items())
    side_by_side(check, {name: (seconds, number % 2 == 0) for number, (name, seconds) in chosen}, few=6)


def test_a_killed_dashboard_leaves_no_child_that_hangs_in_the_driver(
    simulated_driver: SimulatedDriver, tmp_path: Path
) -> None:
    with dashboard(tmp_path, simulated_driver) as terminal:
        terminal.read_until(WATTS)
        before = simulated_driver.calls("nvmlDeviceGetFieldValues")
        simulated_driver.write("fault nvmlDevice* * block", "fault nvmlDevice* * hang")
        wait_until(lambda: simulated_driver.calls("nvmlDeviceGetFieldValues") > before)
        terminal.send(signal.SIGKILL)
        terminal.process.wait(10)
        wait_until(lambda: not left_behind(terminal.env))
        assert not left_behind(terminal.env)


def test_q_ends_it_at_once_wherever_the_driver_hangs(side_by_side: SideBySide) -> None:
    def check(place: Place, case: tuple[str, str]) -> None:
        function, kind = case
        place.driver.write(f"fault {function} * {kind}")
        with dashboard(place.folder, place.driver) as terminal:
            terminal.read_until(TEXTUAL)
            name = function.rstrip("*")
            wait_until(lambda: any(called.startswith(name) for called, _ in place.driver.counts()))
            quit_with_q(terminal)

    functions = ("nvmlInit*", "nvmlDeviceGetCount*", "nvmlEventSetCreate", "nvmlDevice*", "*")
    cases = {f"{function} {kind}": (function, kind) for function, kind in product(functions, ("hang", "spin"))}
    side_by_side(check, cases, few={"nvmlDevice* spin", *(f"{function} hang" for function in functions)})


def test_q_ends_it_while_its_child_is_stopped(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    with dashboard(tmp_path, simulated_driver) as terminal:
        terminal.read_until(DRAWN)
        terminal.read_until(WATTS)
        (child,) = nvml_children(terminal.process.pid)
        os.kill(child, signal.SIGSTOP)
        quit_with_q(terminal)
        assert terminal.process.returncode == 0


def test_after_a_stop_it_goes_on_and_every_key_works(side_by_side: SideBySide) -> None:
    """SIGSTOP cannot be caught, and systemd sends SIGCONT to what was never stopped."""

    def check(place: Place, signals: list[signal.Signals]) -> None:
        with dashboard(place.folder, place.driver) as terminal:
            terminal.read_until(DRAWN)
            terminal.read_until(WATTS)
            terminal.read_until_quiet(0.5)
            for number in signals:
                terminal.send(number)
                if number != signal.SIGCONT:
                    os.waitpid(terminal.process.pid, os.WUNTRACED)
                    # A key that is typed before the terminal is taken back is lost, so its figures must be new ones.
                    terminal.read_until_quiet(0)
            for _ in range(3):  # one Ctrl-Z of many may take effect only now: `fg` is typed once more then
                terminal.send(signal.SIGCONT)
                terminal.go_on_for(1.0)
                if not os.waitpid(terminal.process.pid, os.WUNTRACED | os.WNOHANG)[0]:
                    break
            terminal.reads_of(WATTS)
            quit_with_q(terminal)

    cases = {
        "SIGSTOP twice": [signal.SIGSTOP, signal.SIGCONT] * 2,
        "SIGCONT only": [signal.SIGCONT] * 2,
        "SIGTSTP once": [signal.SIGTSTP],
        "SIGTSTP again while it resumes": [signal.SIGTSTP, signal.SIGCONT] * 8,
    }
    side_by_side(check, cases)


def test_a_sigterm_followed_by_a_sigcont_ends_it(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    """As systemd stops a session."""
    with dashboard(tmp_path, simulated_driver) as terminal:
        terminal.read_until(DRAWN)
        terminal.read_until(WATTS)
        terminal.send(signal.SIGTERM)
        terminal.send(signal.SIGCONT)
        terminal.end(128 + signal.SIGTERM)
        assert terminal.process.returncode == 128 + signal.SIGTERM


def test_a_storm_of_sizes_is_survived(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    rng = random.Random(1)
    with dashboard(tmp_path, simulated_driver) as terminal:
        terminal.read_until(DRAWN)
        terminal.read_until(WATTS)
        for _ in range(500):
            terminal.resize(*rng.choice(SIZES))
            terminal.read_until_quiet(0)
            time.sleep(0.004)  # 500 in 2 s: the storm itself
        terminal.resize(120, 36)
        terminal.reads_of(WATTS)
        quit_with_q(terminal)
        assert terminal.process.returncode == 0


def test_any_size_at_the_start_can_be_quit(side_by_side: SideBySide) -> None:
    def check(place: Place, size: tuple[int, int]) -> None:
        with dashboard(place.folder, place.driver, size=size) as terminal:
            terminal.read_until("\x1b[?1049h")
            wait_until(lambda: place.driver.calls("nvmlDeviceGetFieldValues") > 1)
            terminal.read_until_quiet(0.3)
            quit_with_q(terminal)

    sizes = [(1, 1), (20, 5), (0, 0), (500, 200), (65_535, 65_535)]
    side_by_side(check, {f"{columns} x {rows}": (columns, rows) for columns, rows in sizes})


ODD = {
    "sizes that are no numbers": {"COLUMNS": "abc", "LINES": "-1"},
    "sizes that cannot be": {"COLUMNS": "99999999", "LINES": "99999999"},
    "no home": {"HOME": "/nonexistent/home", "TMPDIR": "/nonexistent/tmp", "XDG_CONFIG_HOME": "/nonexistent/config"},
    "a long temporary folder": {"TMPDIR": "/tmp/" + "x" * 200},
    "no encoding": {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "unknown names": {"LC_ALL": "xx_YY.bogus", "TZ": "Nowhere/Bogus", "TERM": "unknown-42", "COLORTERM": "x"},
    "an old terminal": {"TERM": "vt100", "NO_COLOR": "1"},
    "warnings are errors": {"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"},
}


def test_an_odd_environment_is_survived(side_by_side: SideBySide) -> None:
    def check(place: Place, more: dict[str, str]) -> None:
        with dashboard(place.folder, place.driver, more=more) as terminal:
            terminal.read_until(WATTS)
            quit_with_q(terminal)

    side_by_side(check, ODD)


def test_a_terminal_without_a_cursor_gets_lines(side_by_side: SideBySide) -> None:
    def check(place: Place, term: str) -> None:
        with dashboard(place.folder, place.driver, more={"TERM": term}) as terminal:
            terminal.read_until("what `gpuwatch watch` prints")
            terminal.read_until(WATTS)
            terminal.send(signal.SIGINT)
            terminal.end(130, restored=False)
            assert b"\x1b" not in terminal.output

    side_by_side(check, {"dumb": "dumb", "empty": ""})


def test_it_ends_with_its_terminal_also_while_the_driver_hangs(side_by_side: SideBySide) -> None:
    def check(place: Place, controlling: bool) -> None:
        with dashboard(place.folder, place.driver, controlling=controlling) as terminal:
            terminal.read_until(DRAWN)
            terminal.read_until(WATTS)
            place.driver.write("fault * * hang")
            terminal.disappear()
            assert terminal.wait() == 128 + signal.SIGHUP
            wait_until(lambda: not left_behind(terminal.env))

    side_by_side(check, {"with SIGHUP": True, "without SIGHUP": False})


CLOSED = {"stdin": "<&-", "stdout": ">&-", "stderr": "2>&-"}
COMMANDS = (
    ("watch", "--duration", "1"),
    ("report", "--duration", "1"),
    ("doctor",),
    ("--version",),
    ("--attach", "list"),
    ("explain", "data_starvation"),
)


def test_a_closed_stream_is_no_crash(side_by_side: SideBySide) -> None:
    """Closed before the command begins, so that its own files get the number of the stream."""

    def check(place: Place, case: tuple[tuple[str, ...], str]) -> None:
        arguments, closed = case
        before = ["sh", "-c", f'exec "$@" {CLOSED[closed]}', "sh"]
        done = command(place.folder, place.driver, *arguments, before=before)
        assert done.returncode in (0, 2), done.stderr
        assert b"Traceback" not in done.stderr + done.stdout and b"internal error" not in done.stderr

    cases = {f"{words[0]} without {closed}": (words, closed) for words, closed in product(COMMANDS, CLOSED)}
    quick = {f"{command} without {closed}" for command, closed in product(("--version", "--attach"), CLOSED)}
    side_by_side(check, cases, few=quick | {"watch without stdin", "report without stdout", "doctor without stderr"})
