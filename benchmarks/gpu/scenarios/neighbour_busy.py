"""Other programs on the same cores: processes that compute without end."""

import multiprocessing
import time

from helpers import parser


def spin(seconds):
    until = time.monotonic() + seconds
    number = 1
    while time.monotonic() < until:
        for _ in range(10_000):
            number = number * 1_103_515_245 % 2_147_483_647


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--processes", type=int, default=32)
    arguments.add_argument("--seconds", type=float, default=600.0)
    args = arguments.parse_args()
    if args.device == "cpu":
        args.processes, args.seconds = 2, 0.2
    context = multiprocessing.get_context("fork")
    busy = [context.Process(target=spin, args=(args.seconds,), daemon=True) for _ in range(args.processes)]
    for process in busy:
        process.start()
    for process in busy:
        process.join()


if __name__ == "__main__":
    main()
