"""Fuzzing of everything that gpuwatch reads from others; `python -m tests.fuzz --help`.

A target is a module here that has `seeds() -> list[bytes]`, valid inputs, and `run(data: bytes) -> None`, which feeds
one input to the product and catches the refusals that are expected. Whatever else escapes is a fault, as are a hang, a
crash and growth. A target may have `mutate(data: bytes, rng: random.Random) -> bytes` for mutations that know the
format; they alternate with the blind ones of `mutation`.
"""
