"""The commands that prove a finding's fix before it is edited, or the reason why there is none.

`gpuwatch trial` runs the training with and without this fix, `gpuwatch tune` tries every fix of the run that is a
setting. Both start the program again, so they need the command line of the run as it was given, every word of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.foreign import COMMAND_LIMIT_BYTES, NOTEBOOK_MODULES
from gpuwatch.hook.wire import COMMAND_WORD_BYTES, COMMAND_WORDS
from gpuwatch.samples import RunFacts


@dataclass(frozen=True, slots=True)
class Proof:
    """The commands for a shell; without `trial` there is a reason, which ends a sentence: "there is no trial: ..."."""

    trial: str | None = None
    tune: str | None = None  # where several fixes of the run can be tried
    fixes: int = 0  # of the run that can be tried, the same one of several findings counted once
    why_not: str = ""


def proof_of(finding: Finding, findings: Iterable[Finding], trainers: Sequence[RunFacts]) -> Proof:
    """What proves the fix of a finding.

    Args:
        finding: the one to prove.
        findings: all that are there, whichever run they are about.
        trainers: the ranks of its run; none where it is about no run, or the run is not known.
    """
    settings = finding.fix.trial_settings if finding.fix is not None else None
    if finding.run is None:
        return Proof(why_not="it is about a GPU or the machine, not about one training run")
    if finding.fix is None:
        return Proof(why_not="it has no fix")
    if not finding.fix.can_be_tried:
        return Proof(why_not="a trial measures training, and this fix is about evaluation")
    if settings is None:
        return Proof(why_not="its fix is not one of the settings that a trial can change; see `gpuwatch trial --help`")
    trial = " ".join(["gpuwatch trial", *(f"{name}={value}" for name, value in settings.items()), "--"])
    why_not = _why_not_started_again(trainers, trial)
    if why_not is not None:
        return Proof(why_not=why_not)
    command = shlex.join(trainers[0].command)
    fixes = _fixes(finding, findings)
    return Proof(f"{trial} {command}", f"gpuwatch tune -- {command}" if fixes > 1 else None, fixes)


def _fixes(finding: Finding, findings: Iterable[Finding]) -> int:
    """How many fixes of the finding's run can be tried; a symptom repeats the fix of its cause."""
    of_the_run = [each.fix.trial_settings for each in findings if each.run == finding.run and each.fix is not None]
    return len({tuple(sorted(settings.items())) for settings in of_the_run if settings is not None})


def _why_not_started_again(trainers: Sequence[RunFacts], trial: str) -> str | None:
    """Why the run's own command line does not start it again."""
    if not trainers or not trainers[0].command:
        return "the command line of its run is not known"
    command, ranks = trainers[0].command, max(len(trainers), trainers[0].world_size or 1)
    if ranks > 1:
        launched = f"how the {ranks} processes of its run were launched is not known"
        return f"{launched}; write your launch command after `{trial}`"
    if any(word.rpartition("/")[2].removesuffix(".py") in NOTEBOOK_MODULES for word in command[:4]):
        return "its run is a notebook, which a trial cannot start again"
    if command[-1] == "-" or (len(command) == 1 and command[0].rpartition("/")[2].startswith("python")):
        return "its run was read from standard input or typed at a prompt, so no command starts it again"
    lengths = [len(word.encode("utf-8", "surrogatepass")) for word in command]
    is_cut = len(command) >= COMMAND_WORDS or max(lengths) >= COMMAND_WORD_BYTES
    if is_cut or sum(lengths) + len(lengths) >= COMMAND_LIMIT_BYTES:
        return "the command line of its run is so long that only its beginning is known"
    # What a terminal would obey is kept as text, `\x1b`, and is then not what the run was given.
    if any("\\" in word or not word.isprintable() for word in command):
        return "the command line of its run has control characters or backslashes, which are not kept as they were"
    return None
