"""Runs the gpuwatch command in another folder: `python -m tests.dashboard.command_main FOLDER ARGUMENT...`."""

from __future__ import annotations

import os
import sys

from gpuwatch.__main__ import main

if __name__ == "__main__":
    os.chdir(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
