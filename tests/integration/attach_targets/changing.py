"""A process that becomes something else when it is told to: "fork", "exec", "daemonise" or "end" on stdin."""

from __future__ import annotations

import os
import sys


def before_the_change() -> None:
    print("ready", os.getpid(), flush=True)
    change = sys.stdin.readline().strip()
    if change == "fork":
        child = os.fork()
        if child == 0:
            in_the_child()
        print("forked", child, flush=True)
        sys.stdin.readline()
        os.waitpid(child, 0)
    elif change == "exec":
        os.execv(sys.executable, [sys.executable, __file__, "again"])
    elif change == "daemonise":
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        in_the_daemon()


def in_the_child() -> None:
    sys.stdin.readline()
    os._exit(0)


def in_the_daemon() -> None:
    print("daemon", os.getpid(), flush=True)
    sys.stdin.readline()


def after_the_exec() -> None:
    print("again", os.getpid(), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    if "again" in sys.argv:
        after_the_exec()
    else:
        before_the_change()
