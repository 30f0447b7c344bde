"""When a `next` is metered: one in n, and always the last of a pass, which may be smaller."""

from __future__ import annotations

from _thread import get_native_id

import pytest
from fake_cuda import FakeCuda

from gpuwatch.hook import ring, waits, wire
from gpuwatch.hook.cuda import Gaps
from gpuwatch.hook.loaders import LoaderEntry
from gpuwatch.hook.waits import Iteration


def metered(length: int | None, period: int, inline: bool, taken: int) -> list[int]:
    """Which of the first `taken` calls are metered."""
    entry = LoaderEntry(1, None)
    entry.inline = inline
    iteration = Iteration(entry, length)
    found = []
    for number in range(1, taken + 1):
        if iteration.turn == 0:
            found.append(number)
            iteration.schedule(period)
        elif iteration.turn > 0:
            iteration.turn -= 1
    return found


@pytest.mark.parametrize(
    ("length", "period", "inline", "expected"),
    [
        (20, -1, False, [1, 20, 21]),
        (20, 7, True, [1, 9, 17, 20, 21]),
        (9, 7, True, [1, 9, 10]),
        (1, -1, False, [1, 2]),
        (2, 7, True, [1, 2, 3]),
        (0, -1, False, [1]),
        (None, 7, True, [1, 9, 17]),
        (None, -1, False, []),
        (4, 0, True, [1, 2, 3, 4, 5]),
    ],
)
def test_the_last_batch_of_a_pass_is_always_looked_at(
    length: int | None, period: int, inline: bool, expected: list[int]
) -> None:
    end = length + 1 if length is not None else 20
    assert metered(length, period, inline, end) == expected


class Loop:
    """A stand-in for a DataLoader's iterator whose every `next` takes a millisecond of GPU idleness."""

    def __init__(self, cuda: FakeCuda, batches: int) -> None:
        self.cuda = cuda
        self.left = batches

    def __next__(self) -> list[int]:
        if not self.left:
            raise StopIteration
        self.left -= 1
        self.cuda.queued_ms += 1.0
        self.cuda.done_ms = self.cuda.queued_ms
        return [0] * 4


def test_gaps_point_at_their_waits_and_only_the_training_thread_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    ring.forget()
    monkeypatch.setattr(ring.pulse, "awake", True)
    monkeypatch.setattr(ring.pulse, "due_ns", 1 << 62)
    monkeypatch.setattr(waits.device, "gaps", Gaps(cuda))
    ring.trained.clear()
    pull = waits._timed(Loop.__next__, lambda: True)
    loop = Loop(cuda, batches=6)
    waits._keep(loop, LoaderEntry(4, None))
    pull(loop)
    assert not cuda.calls.count("record"), "this thread has not trained yet"
    ring.trained.add(get_native_id())
    for _ in range(5):
        pull(loop)
    with pytest.raises(StopIteration):
        pull(loop)
    records = [wire.RECORD.unpack(record) for record in ring.take(in_order=True)]
    ring.forget()
    starts = [record[4] for record in records if record[0] == wire.NEXT]
    gaps = [(record[2], record[6], record[7]) for record in records if record[0] == wire.GAP]
    assert gaps == [(4, start_ns, 1_000_000) for start_ns in starts[1 : 1 + len(gaps)]]
    assert len(gaps) == 4
    assert [record[1] for record in records if record[0] == wire.NEXT] == [wire.GRAD] * 6 + [wire.GRAD | wire.STOPPED]
