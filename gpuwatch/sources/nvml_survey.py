"""What this machine's driver answers and what each answer costs, for `gpuwatch doctor`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwatch.samples import NvmlState
from gpuwatch.sources.nvml_decode import decode
from gpuwatch.sources.nvml_process import ChildProcess, default_command, environment, run_to_end


@dataclass(frozen=True, slots=True)
class NvmlAnswer:
    """One NVML function on one GPU: its cost, or why it gives nothing."""

    uuid: str
    index: int
    function: str
    tells: str
    microseconds: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class NvmlSurvey:
    """All functions of the poll plan on all GPUs. `reason` says why it is empty or incomplete."""

    answers: tuple[NvmlAnswer, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    complete: bool = False
    reason: str | None = None


def survey(
    timeout_seconds: float = 10.0,
    *,
    library_path: Path | None = None,
    env: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
) -> NvmlSurvey:
    """Asks once, in a process of its own; a call that hangs or crashes ends the survey and is named."""
    words = [*(command or default_command()), "--survey"]
    try:
        child = ChildProcess(words, {}, environment(os.environ if env is None else env, library_path))
    except OSError as error:
        return NvmlSurvey(reason=f"The process that asks NVML cannot be started: {error}.")
    ended, output = run_to_end(child, timeout_seconds)
    last_call, last_words = child.last_call(), child.error()
    child.kill()
    child.release(0.4)
    code = child.exit_code()
    found = _read(output)
    if found.complete or found.reason:
        return found
    where = f" in {last_call[1]}" if last_call else ""
    if not ended:
        reason = f"The NVIDIA driver has not answered within {timeout_seconds:g} s{where}."
    else:
        reason = f"The process that asks NVML ended early (code {code}){where}. {last_words}".strip()
    return NvmlSurvey(found.answers, reason=reason)


def _read(output: bytes) -> NvmlSurvey:
    answers: list[NvmlAnswer] = []
    versions: dict[str, Any] | None = None
    reason = None
    for line in output.splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if "answer" in content:
            answers.append(NvmlAnswer(**content["answer"]))
        elif "done" in content:
            versions = content["done"]
        else:
            message = decode(line)
            states = [sample for sample in message.samples if isinstance(sample, NvmlState)] if message else []
            reason = next((state.reason for state in states), reason)
    return NvmlSurvey(tuple(answers), **(versions or {}), complete=versions is not None, reason=reason)
