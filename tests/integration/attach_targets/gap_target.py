"""A process with many Python threads and one thread that notices every pause; it is told when to record.

    python gap_target.py LIBRARY THREADS [RECORDER_CPU OTHER_CPU]

A line "SECONDS PAGES MAPS_PER_SECOND" on stdin makes one record; "PAUSES_PER_SECOND SHARE LOOPS_PER_SECOND" is
printed. It imports nothing but the recorder.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gap_recorder import Recorder

FRAMES_DEEP = 12


def waiting(event: threading.Event, depth: int = FRAMES_DEEP) -> None:
    """A thread as libraries have them: some frames deep, asleep."""
    if depth:
        waiting(event, depth - 1)
    else:
        event.wait()


def step(depth: int = FRAMES_DEEP) -> int:
    """The main thread's work: some frames deep, about half a millisecond."""
    if depth:
        return step(depth - 1)
    return sum(number * number for number in range(5_000))


def serve(recorder: Recorder, cpu: int | None) -> None:
    """Records when told to; ends the process when nobody can tell it any more."""
    if cpu is not None:
        recorder.pin(cpu)
        with contextlib.suppress(PermissionError):  # else other work of this machine makes most of the pauses
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_FIFO, os.sched_param(1))
    for line in sys.stdin:
        seconds, pages, maps_per_second = line.split()
        pauses = recorder.record(float(seconds), int(pages), float(maps_per_second))
        print(pauses.per_second, pauses.share, pauses.loops_per_second, flush=True)
    os._exit(0)


def main() -> None:
    recorder, threads = Recorder(Path(sys.argv[1])), int(sys.argv[2])
    recorder_cpu, other_cpu = (int(cpu) for cpu in sys.argv[3:5]) if len(sys.argv) > 3 else (None, None)
    if other_cpu is not None:
        os.sched_setaffinity(0, {other_cpu})
    never = threading.Event()
    for _ in range(threads - 2):  # the main thread and the recorder's are threads too
        threading.Thread(target=waiting, args=(never,), daemon=True).start()
    threading.Thread(target=serve, args=(recorder, recorder_cpu), daemon=True).start()
    print("ready", flush=True)
    while True:
        step()
        time.sleep(0.001)


if __name__ == "__main__":
    main()
