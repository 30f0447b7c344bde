"""What a shell completes, asked of a real bash, and the manual page."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.__main__ import main
from gpuwatch.cli.arguments import COMMANDS, _parser
from tests.man_page import PAGE

ASK = """
eval "$(gpuwatch completion bash)"
COMP_WORDS=({words} "")
[ -n {last} ] && COMP_WORDS[-1]={last}
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMP_LINE="${{COMP_WORDS[*]}}" COMP_TYPE=9
COMP_POINT=${{#COMP_LINE}}
_python_argcomplete gpuwatch "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder with the command `gpuwatch` of this Python, which a checkout need not have."""
    command = tmp_path / "bin/gpuwatch"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gpuwatch "$@"\n')
    command.chmod(0o755)
    return command.parent


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("line", "last", "expected"),
    [
        ("gpuwatch", "re", {"report", "record", "replay"}),
        ("gpuwatch report", "--form", {"--format"}),
        ("gpuwatch report --format", "j", {"json", "junit"}),
        ("gpuwatch explain", "workers-", {"workers-zero", "workers-too-few"}),
        ("gpuwatch demo", "shared", {"shared-server"}),
        ("gpuwatch export", "run", {"run.gpuwatch"}),
    ],
)
def test_bash_completes(line: str, last: str, expected: set[str], program: Path, tmp_path: Path) -> None:
    (tmp_path / "run.gpuwatch").touch()
    environment = {**os.environ, "PATH": f"{program}:{os.environ['PATH']}", "PYTHONPATH": str(Path.cwd())}
    script = ASK.format(words=line, last=shlex.quote(last))
    done = subprocess.run(["bash", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert {word.strip() for word in done.stdout.splitlines()} == expected, done.stderr


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete "), ("zsh", "compdef "), ("fish", "complete --command")]
)
def test_every_shell_gets_its_own_script(shell: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert word in capsys.readouterr().out


def test_the_manual_page_has_every_command_and_option() -> None:
    text = PAGE.read_text(encoding="utf-8").replace("\\-", "-")
    parser = _parser()
    parser.complete_all()
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    options = {option for each in (parser, *commands.choices.values()) for option in each._option_string_actions}
    missing = {word for word in (*COMMANDS, *options - {"--help"}) if word not in text}
    assert not missing, "python -m tests.man_page --write"
