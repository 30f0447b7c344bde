"""The command line that a process was started with: which settings it gives, and which config files it names."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CONFIG_FILE = re.compile(r"(?i)\.(ya?ml|json)\Z")


def started_with(
    command: Sequence[str], flags: Sequence[str], others: frozenset[str], name: str
) -> tuple[str, str] | None:
    """How a setting was given and how to give another, with `{}` for the value: ("--workers 2", "--workers {}").

    Args:
        command: The arguments, the interpreter first.
        flags: The option's names, "-j" and "--workers"; argparse takes an unambiguous beginning for a long one.
        others: Options of the program that are none of these, though one may begin another.
        name: The setting as Hydra has it: `data.name=value`.
    """
    for index, argument in enumerate(command[1:], start=1):
        option, equals, _ = argument.partition("=")
        if re.fullmatch(rf"(--|\+{{0,2}})([\w/@]+\.)*{re.escape(name)}", option) and equals:
            return argument, f"{option}={{}}"
        if option in flags or _begins(option, flags, others):
            if equals:
                return argument, f"{option}={{}}"
            following = command[index + 1 : index + 2]
            value = "".join(following) if following and not following[0].startswith("-") else ""
            return f"{argument} {value}".rstrip(), f"{argument} {{}}"
        short = next((flag for flag in flags if len(flag) == 2 and argument.startswith(flag)), None)
        if short is not None and not argument.startswith("--"):
            return argument, f"{short} {{}}"
    return None


def config_files(command: Sequence[str]) -> list[str]:
    """The YAML and JSON files among the arguments, `--config=base.yaml` included."""
    values = (argument.rpartition("=")[2] for argument in command[1:])
    return list(dict.fromkeys(value for value in values if _CONFIG_FILE.search(value)))


def _begins(option: str, flags: Sequence[str], others: frozenset[str]) -> bool:
    return (
        bool(others)
        and len(option) > 3
        and option.startswith("--")
        and option not in others
        and any(flag.startswith(option) for flag in flags)
    )
