"""Reads the stacks of a process without a pause, as fast as it goes, until it is ended.

python reading_monitor.py PID
"""

from __future__ import annotations

import sys

from gpuwatch.reader.attach import attach

interpreter = attach(int(sys.argv[1]))
print("ready", flush=True)
while True:
    interpreter.main_stack()
    interpreter.stacks()
