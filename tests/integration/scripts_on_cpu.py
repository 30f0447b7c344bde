"""Runs training scripts one after the other, each in a fork of one process that has imported torch: `SCRIPT ...`.

Prints one JSON line per script: its name, its exit code, how many steps it wrote down, and how it failed.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import torch
import torch._dynamo  # what every first optimizer imports: 1.2 s

STEPS = 5
LIMIT_SECONDS = 200  # only one that hangs gets there


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as tempfile.tempdir:
        run_all(sys.argv[1:])


def run_all(names: list[str]) -> None:
    """One after the other; their temporary files go with them."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            log, errors = Path(folder) / "log", Path(folder) / "errors"
            child = os.fork()
            if not child:
                run(Path(name), log, errors)
            _, status = os.waitpid(child, 0)
            steps = log.read_text().count("\n") if log.exists() else 0
            failed = errors.read_text() if errors.exists() else ""
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps({"script": Path(name).name, "code": code, "steps": steps, "failed": failed}), flush=True)


def run(script: Path, log: Path, errors: Path) -> None:
    """The child: never returns."""
    signal.alarm(LIMIT_SECONDS)
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), "--device", "cpu", "--steps", str(STEPS), "--log", str(log)]
    code = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is, it belongs into the answer
        errors.write_text(traceback.format_exc())
        code = 1
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
