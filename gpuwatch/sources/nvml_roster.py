"""Which GPUs there are and were, over all children of a session, by UUID."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuwatch.samples import GpuFacts, GpuLost, GpuSample, NvmlState, Sample
from gpuwatch.sources.nvml_decode import MOST_GPUS, Message


class Roster:
    """Turns a child's messages into samples: adds what only the memory of earlier children can tell."""

    def __init__(self) -> None:
        self._facts: dict[str, GpuFacts] = {}
        self._indices: dict[str, int] = {}
        self._lost: set[str] = set()
        self._unopened: list[tuple[int, str]] = []
        self._known: set[str] = set()  # in any sample; a child that makes up names is not followed for ever
        self._earlier = NvmlState(0, "")
        self._current = NvmlState(0, "")
        self.restarts = 0
        self.missed_polls = 0

    def take(self, message: Message, now_ns: int) -> Iterable[Sample]:
        """The samples of one message."""
        for sample in message.samples:
            if isinstance(sample, NvmlState):
                self._current = sample
                yield self.with_totals(sample)
                continue
            uuid = getattr(sample, "uuid", None)
            if uuid is not None and uuid not in self._known:
                if len(self._known) >= MOST_GPUS:
                    continue
                self._known.add(uuid)
            if isinstance(sample, GpuFacts):
                sample = self._remembering(sample)
                self._facts[sample.uuid] = sample
            if isinstance(sample, GpuFacts | GpuSample):
                self._lost.discard(sample.uuid)
            elif isinstance(sample, GpuLost):
                self._lost.add(sample.uuid)
            yield sample
        if message.found and len(self._indices) < MOST_GPUS:
            self._indices[message.found[1]] = message.found[0]
        if message.lost_index:
            self._unopened.append(message.lost_index)
        if message.enumerated is not None:
            # Not before: an index may be that of another GPU than before.
            for index, reason in self._unopened:
                yield from self._lost_at(index, reason, message.enumerated, now_ns)
            self._unopened.clear()
            gone = self._facts.keys() - set(message.enumerated) - self._lost
            for uuid in sorted(gone):
                self._lost.add(uuid)
                yield GpuLost(now_ns, uuid, "the driver no longer lists it")

    def name(self, device: str) -> str:
        """A device of the marker in words: `GPU 2`."""
        if device.startswith("index:"):
            return f"GPU {device.removeprefix('index:')}"
        facts = self._facts.get(device)
        if facts is None:
            return f"GPU {self._indices[device]}" if device in self._indices else device
        return f"{facts.name} of GPU {facts.index}" if facts.mig_parent else f"GPU {facts.index}"

    def child_ended(self) -> None:
        """The next child counts its calls from zero; the session's totals go on."""
        self._earlier = self.with_totals(NvmlState(0, ""))
        self._current = NvmlState(0, "")
        self.missed_polls = 0
        self._unopened.clear()

    def with_totals(self, state: NvmlState) -> NvmlState:
        """A state with the costs of all children so far."""
        return replace(
            state,
            calls=self._earlier.calls + self._current.calls,
            call_seconds=self._earlier.call_seconds + self._current.call_seconds,
            missed_polls=self._earlier.missed_polls + self._current.missed_polls + self.missed_polls,
            dropped_values=self._earlier.dropped_values + self._current.dropped_values,
            restarts=self.restarts,
        )

    def _remembering(self, facts: GpuFacts) -> GpuFacts:
        """Facts do not change, so what a new child could not read is as an earlier one read it."""
        known = self._facts.get(facts.uuid)
        if known is None or not facts.unavailable:
            return facts
        missing = {name: getattr(known, name) for name in facts.unavailable if name not in known.unavailable}
        kept = {name: reason for name, reason in facts.unavailable.items() if name not in missing}
        return replace(facts, **missing, unavailable=kept)

    def _lost_at(self, index: int, reason: str, enumerated: Sequence[str], now_ns: int) -> Iterable[Sample]:
        """A GPU that is lost from the start gets a row of its own, or that of the GPU that was known there."""
        known = [facts for facts in self._facts.values() if facts.index == index and not facts.mig_parent]
        known.sort(key=lambda facts: facts.uuid in enumerated)
        uuid = known[-1].uuid if known else f"GPU-index-{index}"
        if not known:
            facts = GpuFacts(now_ns, uuid, index, f"GPU {index}", unavailable={"name": reason})
            self._facts[uuid] = facts
            yield facts
        if uuid not in self._lost:
            self._lost.add(uuid)
            yield GpuLost(now_ns, uuid, f"it cannot be opened: {reason}")
