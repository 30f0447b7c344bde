"""The sources as the monitor's one thread polls them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from gpuwatch.monitor.guard import Guard
from gpuwatch.samples import Sample
from gpuwatch.sources.base import Source

_REST_NS = 100_000_000
_LEAST_REST_NS = 1_000_000
_RETRY_NS = 5_000_000_000


class _Outlet:
    """One source, and what it said last of when to ask it."""

    __slots__ = ("due_ns", "file", "has_failed", "part", "rest_until_ns", "source")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.part = f"source {source.name}"
        self.file: int | None = None
        self.due_ns: int | None = None
        self.rest_until_ns = 0
        self.has_failed = False

    def is_out(self, now_ns: int) -> bool:
        """Whether it failed so lately that it is not asked yet."""
        return self.has_failed and now_ns < self.rest_until_ns


class Feed:
    """Asks each source when it has something, and not more than ten times a second.

    Eight ranks with eight workers each send over a thousand packets a second; taken one by one, the waking alone would
    cost a tenth of a core. Their sockets hold what comes within 100 ms. Until `may_rest` they rest for only 1 ms, so
    that the first screen is not late, and yet none can spin the thread. A source that fails is asked again after 5 s.
    """

    def __init__(self, sources: Sequence[Source], guard: Guard) -> None:
        self._outlets = [_Outlet(source) for source in sources]
        self._guard = guard
        self.may_rest = False

    @property
    def problems(self) -> tuple[str, ...]:
        """What sources cannot do here, with the cure, as far as they say."""
        found = (getattr(outlet.source, "problem", None) for outlet in self._outlets)
        return tuple(problem for problem in found if problem)

    def plan(self, now_ns: int) -> tuple[list[int], int | None]:
        """The files to wait for input on, and until when at most."""
        files: list[int] = []
        moments: list[int] = []
        for outlet in self._outlets:
            if not outlet.is_out(now_ns):
                self._ask(outlet, now_ns)
            if outlet.rest_until_ns > now_ns and (outlet.has_failed or outlet.file is not None):
                moments.append(outlet.rest_until_ns)
            elif outlet.file is not None:
                files.append(outlet.file)
            if outlet.due_ns is not None:
                moments.append(max(outlet.due_ns, outlet.rest_until_ns))
        return files, min(moments, default=None)

    def collect(self, now_ns: int, ready: Collection[int]) -> Iterator[tuple[str, Sequence[Sample]]]:
        """What the sources have that are due or have input, each with its part's name."""
        for outlet in self._outlets:
            is_due = outlet.due_ns is not None and outlet.due_ns <= now_ns
            if outlet.rest_until_ns > now_ns or not (is_due or outlet.file in ready):
                continue
            samples: Sequence[Sample] = ()
            outlet.has_failed, outlet.rest_until_ns = True, now_ns + _RETRY_NS
            with self._guard.part(outlet.part):
                samples = tuple(outlet.source.collect(now_ns))
                rest_ns = _REST_NS if self.may_rest else _LEAST_REST_NS
                outlet.has_failed, outlet.rest_until_ns = False, now_ns + rest_ns
            yield outlet.part, samples

    def _ask(self, outlet: _Outlet, now_ns: int) -> None:
        """What the source waits for. Its word is not proof that `collect` works again."""
        outlet.file = outlet.due_ns = None
        with self._guard.part(outlet.part, proves=False):
            outlet.file, outlet.due_ns = outlet.source.fileno(), outlet.source.due_ns()
            return
        outlet.has_failed, outlet.rest_until_ns = True, now_ns + _RETRY_NS

    def close(self) -> None:
        """Closes every source, whatever the others do."""
        for outlet in self._outlets:
            with self._guard.part(outlet.part):
                outlet.source.close()
