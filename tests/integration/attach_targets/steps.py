"""A pretended training without any library: numbered steps, always the same numbers.

    python steps.py STEPS [--hold STEP...]

Prints "step N CHECKSUM" for each, then "done", and on stderr how much memory it had at most. With --hold it waits for
a line on stdin after each of these steps.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import zlib
from pathlib import Path

PR_SET_THP_DISABLE = 41


def forward(depth: int, value: int) -> int:
    if depth:
        return forward(depth - 1, value)
    return zlib.crc32(repr([value * number for number in range(3_000)]).encode())


def backward(value: int) -> int:
    return sum(zlib.crc32(bytes([number % 251])) ^ value for number in range(3_000)) & 0xFFFFFFFF


def main() -> None:
    # A page of 2 MiB that the kernel happens to have is a fifth of this program's memory.
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    steps = int(sys.argv[1])
    held_after = {int(step) for step in sys.argv[3:]}
    never = threading.Event()
    threading.Thread(target=never.wait, name="helper", daemon=True).start()
    value = 1
    for step in range(1, steps + 1):
        value = backward(forward(10, value))
        print(f"step {step} {value:08x}", flush=True)
        if step in held_after:
            sys.stdin.readline()
    never.set()
    print("done", flush=True)
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(line for line in status if line.startswith("VmHWM")).split()[1], file=sys.stderr)


if __name__ == "__main__":
    main()
