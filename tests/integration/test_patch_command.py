"""`gpuwatch report --patch`: what goes to stdout, what to stderr, and what it does not go together with."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.integration.command_line import ROOT, gpuwatch

WRITE = "import sys; from gpuwatch.cli.output import write_stdout; write_stdout(bytes.fromhex(sys.argv[1]))"
LATIN_WITH_ESCAPE = "+x = 'é'\t# \x1b]0;title\x07\r\n".encode("latin-1")


def test_a_simulated_machine_has_no_files_to_patch(tmp_path: Path) -> None:
    done = gpuwatch(tmp_path, "report", "--simulate", "starved", "--duration", "90", "--patch")
    assert (done.returncode, done.stdout) == (0, "")
    assert "Not in the patch: the source file is not on this machine" in done.stderr
    assert "the patch is empty" in done.stderr.splitlines()[-1]


def test_a_healthy_machine_has_nothing_to_patch_and_says_so(tmp_path: Path) -> None:
    done = gpuwatch(tmp_path, "report", "--simulate", "healthy", "--duration", "90", "--patch")
    assert (done.returncode, done.stdout) == (0, "")
    assert "the patch is empty" in done.stderr and "nothing to change" in done.stderr


def test_a_patch_has_no_other_format(tmp_path: Path) -> None:
    done = gpuwatch(tmp_path, "report", "--patch", "--format", "json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "not allowed with argument --patch" in done.stderr


def test_a_pipe_gets_the_files_own_bytes() -> None:
    command = [sys.executable, "-c", WRITE, LATIN_WITH_ESCAPE.hex()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == LATIN_WITH_ESCAPE


def test_a_terminal_is_not_steered_by_somebodys_source() -> None:
    main, side = pty.openpty()
    subprocess.run([sys.executable, "-c", WRITE, LATIN_WITH_ESCAPE.hex()], cwd=ROOT, stdout=side, check=True)
    shown = os.read(main, 4096)
    os.close(side)
    os.close(main)
    assert b"\x1b" not in shown
    assert rb"\x1b]0;title" in shown
