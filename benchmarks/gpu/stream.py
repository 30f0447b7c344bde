"""A recorded stream: the samples of one watch with the moments at which they came, in one small file.

Gzip of JSON lines: a header, then one line per arrival, `[nanoseconds since the start, [[kind, fields], ...]]`. Fields
that have their default are left out, times count from the start. Reading such a file back gives the same samples.
"""

from __future__ import annotations

import gzip
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import gpuwatch.samples
from gpuwatch.samples import Candidates, MachineFacts, Sample
from gpuwatch.timeline.timeline import Timeline

FORMAT, VERSION = "gpuwatch sample stream", 1
MOST_BYTES = 200_000
SUFFIX = ".jsonl.gz"
_TIMES = frozenset({"time_ns", "start_ns", "end_ns", "since_ns"})
_RINGS = frozenset({"utilization_ring", "power_ring"})
_KINDS: Mapping[str, Any] = {cls.__name__: cls for cls in typing.get_args(gpuwatch.samples.Sample)}
_LEFT_OUT = (Candidates,)  # other people's processes: no rule reads them, and a file that is shared must not name them

Arrival = tuple[int, tuple[Sample, ...]]
"""When samples came (CLOCK_MONOTONIC), and which."""


class StreamError(ValueError):
    """A file that is no stream, or one of another version. Says which, and why."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One watch. `about` says of what: the case, the machine, its label, what was found."""

    started_ns: int
    ended_ns: int
    arrivals: tuple[Arrival, ...]
    pids: tuple[int, ...] = ()  # that the watch was narrowed to; empty: to none
    about: Mapping[str, Any] = field(default_factory=dict)


class RecordingTimeline(Timeline):
    """A timeline that remembers what it was given, and when."""

    def __init__(self, clock: Callable[[], int], interval_seconds: float = 1.0) -> None:
        super().__init__(started_ns=clock(), interval_seconds=interval_seconds)
        self._recording_since_ns = clock()
        self._clock = clock
        self._arrivals: list[Arrival] = []

    def add(self, sample: Sample) -> None:
        """Takes up one sample."""
        super().add(sample)
        self._remember((sample,))

    def extend(self, samples: Iterable[Sample]) -> None:
        """Takes up several."""
        given = tuple(samples)
        super().extend(given)
        self._remember(given)

    def stream(self, pids: Iterable[int] = (), about: Mapping[str, Any] | None = None) -> Stream:
        """All so far."""
        with self.lock:
            return Stream(
                self._recording_since_ns, self._clock(), tuple(self._arrivals), tuple(sorted(pids)), about or {}
            )

    def _remember(self, samples: Sequence[Sample]) -> None:
        kept = tuple(sample for sample in samples if not isinstance(sample, _LEFT_OUT))
        if kept:
            self._arrivals.append((self._clock(), kept))


def nameless(stream: Stream, folders: Mapping[str, str]) -> Stream:
    """The same without the machine's name, and with other words for these folders: it is going to be published.

    Args:
        stream: what was recorded.
        folders: the beginning of paths -> what stands for it.
    """

    def told(value: Any) -> Any:
        if isinstance(value, str):
            for folder, word in folders.items():
                value = value.replace(folder, word)
            return value
        if isinstance(value, Mapping):
            return {name: told(one) for name, one in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(told(one) for one in value)
        if is_dataclass(value) and not isinstance(value, type):
            named = {each.name: told(getattr(value, each.name)) for each in fields(value)}
            return type(value)(**(named | ({"hostname": "recorded"} if isinstance(value, MachineFacts) else {})))
        return value

    arrivals = tuple((at_ns, told(samples)) for at_ns, samples in stream.arrivals)
    return replace(stream, arrivals=arrivals, about=told(dict(stream.about)))


def write(path: Path, stream: Stream, most_bytes: int = MOST_BYTES) -> float:
    """Writes the file, whole or not at all; returns how many seconds of the watch are in it.

    What is too much is cut off at the end: a stream that lacks every second record would tell other shares.
    """
    lines = [_line(arrival, stream.started_ns) for arrival in stream.arrivals]
    kept, data = len(lines), _packed(stream, lines, stream.ended_ns)
    low, high = 0, kept
    while len(data) > most_bytes and high - low > 1:
        kept = (low + high) // 2
        packed = _packed(stream, lines[:kept], _end(stream, kept))
        if len(packed) > most_bytes:
            high = kept
        else:
            low = kept
        if high - low <= 1:
            kept = low
            data = _packed(stream, lines[:kept], _end(stream, kept))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_bytes(data)
    partial.replace(path)
    return (_end(stream, kept) - stream.started_ns) / 1e9


def read(path: Path) -> Stream:
    """The stream in a file.

    Raises:
        StreamError: it is none, or of another version.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            header, *lines = (json.loads(line) for line in file)
        if header["format"] != FORMAT or header["version"] != VERSION:
            raise StreamError(f"{path} is version {header['version']} of {header['format']!r}; this reads {VERSION}")
        start = header["started_ns"]
        arrivals = tuple((start + at, tuple(_sample(kind, found, start) for kind, found in rows)) for at, rows in lines)
        return Stream(start, start + header["seconds_ns"], arrivals, tuple(header["pids"]), header["about"])
    except StreamError:
        raise
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise StreamError(f"{path} is no recorded stream: {error}") from error


def _end(stream: Stream, kept: int) -> int:
    """When the watch ended that the first `kept` arrivals are."""
    return stream.ended_ns if kept == len(stream.arrivals) else stream.arrivals[max(0, kept - 1)][0]


def _packed(stream: Stream, lines: Sequence[str], end_ns: int) -> bytes:
    header = {
        "format": FORMAT,
        "version": VERSION,
        "started_ns": stream.started_ns,
        "seconds_ns": end_ns - stream.started_ns,
        "pids": list(stream.pids),
        "about": dict(stream.about),
    }
    return gzip.compress("\n".join([json.dumps(header), *lines]).encode(), mtime=0)


def _line(arrival: Arrival, start_ns: int) -> str:
    at_ns, samples = arrival
    rows = [(type(sample).__name__, _plain(sample, start_ns)) for sample in samples]
    return json.dumps([at_ns - start_ns, rows], separators=(",", ":"))


def _plain(value: Any, start_ns: int) -> Any:
    if is_dataclass(value):
        return {
            each.name: _plain_field(each.name, getattr(value, each.name), start_ns)
            for each in fields(value)
            if getattr(value, each.name) != _default(each)
        }
    if isinstance(value, Mapping):
        return {name: _plain(one, start_ns) for name, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one, start_ns) for one in value]
    return value


def _plain_field(name: str, value: Any, start_ns: int) -> Any:
    if name in _TIMES and value is not None:
        return value - start_ns
    if name in _RINGS:
        return [(at_ns - start_ns, reading) for at_ns, reading in value]
    return _plain(value, start_ns)


def _default(each: Field[Any]) -> Any:
    return each.default_factory() if each.default_factory is not MISSING else each.default


def _sample(kind: str, found: dict[str, Any], start_ns: int) -> Sample:
    sample: Sample = _made(_KINDS[kind], found, start_ns)
    return sample


def _made(cls: Any, found: dict[str, Any], start_ns: int) -> Any:
    """Fields that the class no longer has are dropped, those that it has gained keep their default."""
    hints = _hints(cls)
    values = {}
    for name, value in found.items():
        if name not in hints:
            continue
        if name in _TIMES:
            values[name] = None if value is None else value + start_ns
        elif name in _RINGS:
            values[name] = tuple((at_ns + start_ns, reading) for at_ns, reading in value)
        else:
            values[name] = _typed(hints[name], value, start_ns)
    return cls(**values)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _typed(hint: Any, value: Any, start_ns: int) -> Any:
    """The value as its annotation has it: JSON knows no tuples and no classes."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = next((one for one in arguments if one is not type(None)), None)
        return None if value is None else _typed(inner, value, start_ns)
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if len(arguments) == 2 and arguments[1] is Ellipsis else arguments
        return tuple(_typed(kind, one, start_ns) for kind, one in zip(kinds, value, strict=True))
    return _made(hint, value, start_ns) if is_dataclass(hint) and isinstance(value, dict) else value
