"""`gpuwatch run [--] COMMAND...`: the command with the hook in it.

The command is exec'd: gpuwatch is then no parent of it and owns none of its terminal, signals, ports or exit code.
Where it cannot be, the exit codes are those of env, nohup and the shell, which job scripts test for already: 127 not
found, 126 found and not executable, 2 used wrongly.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

SITE = Path(__file__).resolve().parent.parent / "hook" / "site"

USAGE = """\
usage: gpuwatch run [--] COMMAND [ARGUMENT...]

Runs COMMAND with the hook in every Python process that it starts, so that gpuwatch in another terminal sees its steps.
Nothing else changes: the command takes this process's place, with its terminal, signals and exit code.

  gpuwatch run python train.py --epochs 3
  gpuwatch run torchrun --nproc_per_node=8 train.py
  gpuwatch run ./train.sh

GPUWATCH_DISABLE=1 in the environment turns the hook off.
"""
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_SHELLS = ("sh", "ash", "bash", "busybox", "dash", "ksh", "mksh", "zsh")
_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
NOT_FOUND = 127
NOT_EXECUTABLE = 126
WRONG_USE = 2


def run(argv: list[str]) -> NoReturn:
    """Replaces this process by the command in `argv`.

    Args:
        argv: What follows `gpuwatch run` on the command line.
    """
    if argv[:1] in (["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        raise SystemExit(0)
    if argv[:1] == ["--"]:
        argv = argv[1:]
    elif argv and argv[0].startswith("-"):
        _fail(
            WRONG_USE,
            f"{argv[0]} is not an option of `gpuwatch run`: give the command first, as in gpuwatch run python train.py",
        )
    if not argv:
        _fail(WRONG_USE, "no command was given: gpuwatch run python train.py")
    environment = environment_for(argv)
    defaults = signals_to_restore()
    try:
        for number in defaults:
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(argv[0], argv, environment)
    except (OSError, ValueError) as error:
        _fail(*why_not_started(argv[0], error))


def environment_for(argv: list[str]) -> dict[str, str]:
    """This process's environment with the hook in it; says so where the command will take no notice of that."""
    ignored = flag_that_ignores_the_environment(argv)
    if ignored:
        _say(
            f"{argv[0]} {ignored} ignores PYTHONPATH, so it runs without the hook; call gpuwatch.watch() in the script"
        )
    return hooked_environment(inherited_environment())


def inherited_environment() -> dict[str, str]:
    """This process's environment as it was handed to it.

    In the C locale Python sets LC_CTYPE as it starts (PEP 538). What was there before stays readable in /proc.
    """
    environment = dict(os.environ)
    if environment.get("LC_CTYPE") in _COERCED:
        try:
            entries = Path("/proc/self/environ").read_bytes().split(b"\0")
        except OSError:
            return environment
        before = next((entry for entry in entries if entry.startswith(b"LC_CTYPE=")), None)
        if before is None:
            del environment["LC_CTYPE"]
        else:
            environment["LC_CTYPE"] = os.fsdecode(before.partition(b"=")[2])
    return environment


def signals_to_restore() -> list[signal.Signals]:
    """The signals which this process ignores only because Python does, from its start on.

    What it inherited shows nowhere any more. A shell hands on to its commands what it ignores of these two; other
    parents, Python itself for one, ignore them and give their children the default.
    """
    try:
        folder = Path(f"/proc/{os.getppid()}")
        ignored = int((folder / "status").read_text().partition("\nSigIgn:")[2].split()[0], 16)
        is_shell = (folder / "comm").read_text().strip() in _SHELLS
    except (OSError, ValueError, IndexError):  # of another pid namespace, or hidden
        is_shell = False
    return [number for number in _IGNORED_BY_PYTHON if not (is_shell and ignored >> (number - 1) & 1)]


def why_not_started(command: str, error: OSError | ValueError) -> tuple[int, str]:
    """The exit code for a command that cannot be started, and the sentence."""
    if isinstance(error, FileNotFoundError):
        return NOT_FOUND, _why_not_found(command)
    if isinstance(error, PermissionError):
        return NOT_EXECUTABLE, f"{command} is not executable; start it with its interpreter{_python_hint(command)}"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return (
        NOT_EXECUTABLE,
        f"{command} cannot be started ({reason}); give a program, or put the interpreter before a script",
    )


def hooked_environment(environment: dict[str, str]) -> dict[str, str]:
    """The environment with the hook's folder first on PYTHONPATH.

    Args:
        environment: The environment the command would have had.
    """
    rest = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry != str(SITE)]
    if os.pathsep in str(SITE):
        _say(f"the hook's folder {SITE} has a {os.pathsep!r} in its name and cannot go on PYTHONPATH; it runs unhooked")
        return environment
    path = str(SITE) if rest == [""] else os.pathsep.join([str(SITE), *rest])
    return {**environment, "PYTHONPATH": path}


def flag_that_ignores_the_environment(argv: list[str]) -> str | None:
    """The option with which Python would not find the hook: -I, -E or -S."""
    if not Path(argv[0]).name.startswith("python"):
        return None
    words = iter(argv[1:])
    for word in words:
        if not word.startswith("-") or word.startswith("--") or word == "-":
            return None
        for place, letter in enumerate(word[1:], start=2):
            if letter in "cm":  # the program follows, in the same word or the next
                return None
            if letter in "IES":
                return word
            if letter in "WX":  # its value follows likewise
                if place == len(word):
                    next(words, None)
                break
    return None


def _why_not_found(command: str) -> str:
    if Path(command).suffix == ".py" and Path(command).is_file():
        return f"{command} is a script, not a command; start it with its interpreter{_python_hint(command)}"
    if os.sep in command:
        cause = (
            "has an interpreter (its first line) that does not exist" if Path(command).exists() else "does not exist"
        )
        return f"{command} {cause}; check the path"
    return f"{command} is not on PATH; check its spelling, or activate the environment it is in"


def _python_hint(command: str) -> str:
    return f": gpuwatch run python {command}" if command.endswith(".py") else ""


def _say(sentence: str) -> None:
    sys.stderr.write(f"gpuwatch run: {sentence}.\n")


def _fail(code: int, sentence: str) -> NoReturn:
    _say(sentence)
    raise SystemExit(code)
