"""`gpuwatch completion`: what a shell needs to complete commands, options, rules and scenarios."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gpuwatch.cli.output import ExitCode, write_stdout

if TYPE_CHECKING:
    from gpuwatch.cli.arguments import Parser

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes the completion of gpuwatch for a shell.\n\n"
        "  bash   gpuwatch completion bash > ~/.local/share/bash-completion/completions/gpuwatch\n"
        "  zsh    gpuwatch completion zsh > ~/.zfunc/_gpuwatch   (with fpath+=~/.zfunc before compinit)\n"
        "  fish   gpuwatch completion fish > ~/.config/fish/completions/gpuwatch.fish"
    )
    parser.add_argument("shell", choices=SHELLS, help="your shell: echo $SHELL")


def completion(arguments: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    write_stdout(shellcode(["gpuwatch"], shell=arguments.shell))
    return ExitCode.OK


def answer(parser: Parser) -> None:
    """Answers the shell that asks, and ends the process: what it has typed is in the environment."""
    import argcomplete

    parser.complete_all()
    argcomplete.autocomplete(parser, always_complete_options=False)
