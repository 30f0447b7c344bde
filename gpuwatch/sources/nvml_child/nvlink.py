"""NVLink of one GPU: how many links are up, and what they have had to repeat.

Two calls every 30 s, however many links there are: field values carry a link's number as their scope. Before Hopper
the state is one call a link (NCCL asks alike), so there it is asked for every 60 s.
"""

from __future__ import annotations

from gpuwatch.sources.nvml_child import reasons
from gpuwatch.sources.nvml_child.calls import Caller, CallError
from gpuwatch.sources.nvml_child.driver import union_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINK_COUNT = 91
LINK_STATE = 165

TOTALS = {"nvlink_crc_errors": (38, 45), "nvlink_replays": (52,), "nvlink_recoveries": (59,)}
"""Up to Ampere: one number for all links. CRC errors are counted apart for flow control and for data."""

BY_LINK = {"nvlink_crc_errors": (163,), "nvlink_replays": (161,), "nvlink_recoveries": (162, 215)}
"""From Hopper on, link by link. Blackwell has no 161 to 163 and counts recoveries in 215."""

_HOPPER = (9, 0)
_MOST_LINKS = 64


class Links:
    """Links that tell their state, and those of them that are up."""

    __slots__ = ("active", "total")

    def __init__(self, total: int, active: int) -> None:
        self.total = total
        self.active = active


class NvLink:
    """The questions; what this GPU does not have is asked for once."""

    def __init__(self, caller: Caller, capability: tuple[int, int] | None) -> None:
        self._caller = caller
        self.is_scoped = capability is not None and tuple(capability) >= _HOPPER
        self._count: int | None = None
        self._numbers = BY_LINK if self.is_scoped else TOTALS
        self._absent: set[int] = set()

    def links(self) -> Links:
        """How many links there are and how many are up; one that does not report is left out."""
        count = self._known_count()
        states = self._states_by_field(count) if self.is_scoped else self._states_one_by_one(count)
        told = [state for state, code in states if not code]
        if not told:
            raise CallError(states[0][1])
        return Links(len(told), sum(state == 1 for state in told))

    def errors(self) -> dict[str, int]:
        """The counters that the driver keeps, over all links; they only grow."""
        count = self._known_count()
        wanted = [number for numbers in self._numbers.values() for number in numbers if number not in self._absent]
        scopes = range(count) if self.is_scoped else range(1)
        if not wanted:
            raise CallError(reasons.NOT_SUPPORTED)
        answers = self._ask([(number, scope) for number in wanted for scope in scopes])
        counted: dict[int, list[int]] = {number: [] for number in wanted}
        codes: dict[int, set[int]] = {number: set() for number in wanted}
        for answer in answers:
            codes[answer.fieldId].add(answer.nvmlReturn)
            if answer.nvmlReturn == 0:
                counted[answer.fieldId].append(int(union_value(answer.value, answer.valueType)))
        self._absent.update(number for number in wanted if codes[number] <= reasons.PERMANENT)
        return {
            name: sum(sum(counted.get(number, ())) for number in numbers)
            for name, numbers in self._numbers.items()
            if any(counted.get(number) for number in numbers)
        }

    def _known_count(self) -> int:
        if self._count is None:
            (answer,) = self._ask([(LINK_COUNT, 0)])
            if answer.nvmlReturn not in reasons.PERMANENT | {0}:
                raise CallError(answer.nvmlReturn)
            found = 0 if answer.nvmlReturn else int(union_value(answer.value, answer.valueType))
            self._count = found if 0 <= found <= _MOST_LINKS else 0
        if not self._count:
            raise CallError(reasons.NOT_SUPPORTED)
        return self._count

    def _states_by_field(self, count: int) -> list[tuple[int | None, int]]:
        answers = self._ask([(LINK_STATE, link) for link in range(count)])
        return [(int(union_value(answer.value, answer.valueType)), answer.nvmlReturn) for answer in answers]

    def _states_one_by_one(self, count: int) -> list[tuple[int | None, int]]:
        return [self._caller.ask("nvmlDeviceGetNvLinkState", link) for link in range(count)]

    def _ask(self, numbers: list[tuple[int, int]]) -> Any:
        return self._caller.call("nvmlDeviceGetFieldValues", numbers, variant=("nvlink", tuple(numbers)))
