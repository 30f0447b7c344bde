"""Calls small functions as fast as it can, for ever: each line that calls names what it calls.

Through functions, generators, C code that calls back, methods and exceptions; ends with its standard input.
Python 3.8 and later.
"""

import os
import random
import sys
import threading

choose = random.Random(7).random


def even(depth):
    if depth <= 0 or choose() < 0.1:
        return leaf_sum(depth)
    if choose() < 0.5:
        return odd(depth - 1)
    return through_sort(depth - 1)


def odd(depth):
    if depth <= 0:
        return leaf_loop(depth)
    if choose() < 0.3:
        return through_generator(depth - 1)
    if choose() < 0.3:
        return Caller()(depth - 1)
    return even(depth - 1)


def through_sort(depth):
    return sorted([2, 1], key=lambda value: even(depth - 1) or 0)[0]  # <lambda>


def through_generator(depth):
    total = 0
    for value in numbers(depth):
        total += value
    return total


def numbers(depth):
    for _ in range(2):
        yield odd(depth - 3) or 0


class Caller:
    def __call__(self, depth):
        try:
            return even(depth - 1)
        finally:
            leaf_loop(depth)


def leaf_sum(depth):
    return sum(range(20))


def leaf_loop(depth):
    value = 0
    for number in range(20):
        value += number
    return value


def main():
    while True:
        even(12)


def end_with_input():
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=end_with_input, daemon=True).start()
print("ready", flush=True)
main()
