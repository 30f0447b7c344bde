"""Stands still in a stack of the kind that its argument names, after it has printed that stack as it sees it itself.

One line of JSON: the pid that stands, and for the main thread and others [file, function, line] innermost first.
Python 3.8 and later.
"""

import asyncio
import contextlib
import functools
import json
import os
import re
import sys
import threading


def told(frame):
    frames = []
    while frame is not None:
        frames.append([frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno])
        frame = frame.f_back
    return frames


def stand(threads=()):
    print(json.dumps({"pid": os.getpid(), "main": told(sys._getframe(1)), "threads": dict(threads)}), flush=True)
    sys.stdin.read()  # stands here


def nested():
    def inner():
        def innermost():
            stand()

        innermost()

    inner()


def numbers(count):
    for _ in range(count):
        yield count
        yield from more(count)


def more(count):
    stand()
    yield count


def generators():
    total = 0
    for number in enumerate(numbers(2)):
        total += number[0]


async def ticks():
    for number in range(2):
        await asyncio.sleep(0)
        yield number


async def awaited():
    async for number in ticks():
        if number:
            stand()


def coroutines():
    async def main():
        await asyncio.gather(awaited())

    asyncio.new_event_loop().run_until_complete(main())


def down(depth):
    if depth:
        return down(depth - 1) + 0
    stand()
    return 0


def recursion():
    down(120)


def c_calls():
    sorted([1], key=lambda value: functools.reduce(lambda left, right: re.sub("a", substitute, "a"), [1, 2]))


def substitute(match):
    list(map(Called(), [1]))
    return ""


class Called:
    def __call__(self, value):
        stand()


def executed():
    source = "def made(leaf):\n\n    leaf()\n\nmade(leaf)\n"
    exec(compile(source, "<made>", "exec"), {"leaf": lambda: eval("stand()")})


def comprehensions():
    return [{key: sum(standing for standing in (stand(), 0)) for key in range(1)} for _ in range(1)]


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        with managed():
            return function(*args, **kwargs)

    return wrapper


@contextlib.contextmanager
def managed():
    with contextlib.ExitStack():
        yield
    stand()


@decorated
@decorated
def decorators():
    return 1


def multiline():
    return {
        "first": 1,
        "second": identity(
            1,
            identity(
                stand(),
                2,
            ),
        ),
    }


def identity(first, second):
    return first or second


class Base(type):
    def __new__(mcs, name, bases, namespace):
        return super().__new__(mcs, name, bases, namespace)


class Small:
    def __init__(self, then):
        self.value = then() if then else None

    def __getattr__(self, name):
        return stand()


def classes():
    for _ in range(2000):  # often enough for the call of __init__ to be specialised
        Small(None)

    class Body(metaclass=Base):
        value = Small(lambda: Small(lambda: Small(None).missing))

    return Body


def größe():
    функция()


def функция():
    𝔣()


def 𝔣():
    stand()


def names():
    größe()


def many_locals():
    namespace = {"stand": stand}
    lines = [f"    v{number} = {number}" for number in range(3000)]
    exec("def big():\n" + "\n".join(lines) + "\n    stand()\n    return v7\n", namespace)
    namespace["big"]()


def handlers():
    try:
        try:
            raise ValueError
        finally:
            identity(1, 2)
    except ValueError:
        for _ in range(1):
            stand()


def forked():
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    else:
        stand()
        os._exit(0)


def forked_by_thread():
    thread = threading.Thread(target=forked)
    thread.start()
    thread.join()


def threads():
    told_by = {}
    everybody = threading.Barrier(4)
    release = threading.Event()

    def wait_at(depth):
        if depth:
            wait_at(depth - 1)
            return
        told_by[threading.get_native_id()] = told(sys._getframe())[1:]
        everybody.wait()
        release.wait()

    for depth in range(3):
        threading.Thread(target=wait_at, args=(depth + 1,), daemon=True).start()
    everybody.wait()
    stand(told_by.items())


def subinterpreters():
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    others = [interpreters.create() for _ in range(2)]
    assert others
    stand()


def hundreds():
    sys.setrecursionlimit(5000)
    down(1500)


def endless():
    """So deep that it is cut."""
    sys.setrecursionlimit(20000)
    down(3000)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
