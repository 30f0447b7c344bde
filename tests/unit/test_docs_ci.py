from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gpuwatch.cli.arguments import parse

PAGE = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
COMMANDS = sorted(
    {
        found.strip().replace("PID", "4711")
        for found in re.findall(r"gpuwatch (?:report|record|compare) [^`\n|]*", PAGE)
        if not found.endswith("COMMAND")
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page_are_understood(command: str) -> None:
    assert parse(shlex.split(command)[1:]).command in ("report", "record", "compare")


def test_page_has_commands_of_each_kind() -> None:
    assert {command.split()[1] for command in COMMANDS} == {"report", "record", "compare"}
