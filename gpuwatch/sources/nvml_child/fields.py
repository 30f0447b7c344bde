"""Field values: many figures in one call, by number, because the driver decides what exists and not the wheel."""

from __future__ import annotations

from gpuwatch.sources.nvml_child import reasons
from gpuwatch.sources.nvml_child.calls import Caller, CallError
from gpuwatch.sources.nvml_child.driver import union_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POWER_INSTANT = 186
POWER_AVERAGE = 185
ENERGY = 83
MEMORY_TEMPERATURE = 82
PCIE_TX = 197
PCIE_RX = 198
THROTTLED_POWER = 74
THROTTLED_SW_THERMAL = 269
THROTTLED_HW_THERMAL = 270
THROTTLED_POWER_BRAKE = 271

SENSORS = (
    POWER_INSTANT,
    POWER_AVERAGE,
    ENERGY,
    MEMORY_TEMPERATURE,
    PCIE_TX,
    PCIE_RX,
    THROTTLED_POWER,
    THROTTLED_SW_THERMAL,
    THROTTLED_HW_THERMAL,
    THROTTLED_POWER_BRAKE,
)
"""The 1 s lane. Sync boost (76) is left out: nothing on screen or in a rule uses it."""

ECC_CORRECTED = 3
ECC_UNCORRECTED = 4
RETIRED_CORRECTABLE = 29
RETIRED_UNCORRECTABLE = 30
PCIE_REPLAYS = 94
REMAPPED_UNCORRECTABLE = 143
REMAP_PENDING = 144
REMAP_FAILED = 145
RECOVERY_ACTION = 230

HEALTH = (
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    RETIRED_CORRECTABLE,
    RETIRED_UNCORRECTABLE,
    PCIE_REPLAYS,
    REMAPPED_UNCORRECTABLE,
    REMAP_PENDING,
    REMAP_FAILED,
    RECOVERY_ACTION,
)

_LAST_OLD_FIELD = 100
"""Fields up to here are older than any driver that still runs; some older drivers refuse a whole batch for one
number they do not know."""


class Fields:
    """One batch of one GPU; what the GPU does not have is asked for once."""

    def __init__(self, caller: Caller, numbers: tuple[int, ...]) -> None:
        self._caller = caller
        self._numbers = numbers
        self.codes: dict[int, int] = dict.fromkeys(numbers, reasons.NOT_YET)

    def read(self) -> dict[int, float]:
        """Value by field number; `codes` says why one is absent."""
        if not self._numbers:
            raise CallError(reasons.NOT_SUPPORTED)
        try:
            return self._sort(self._ask(self._numbers))
        except CallError as error:
            self.codes.update(dict.fromkeys(self._numbers, error.code))
            if error.code != reasons.INVALID_ARGUMENT:
                raise
        old = tuple(number for number in self._numbers if number <= _LAST_OLD_FIELD)
        answers = self._ask(old)
        self._numbers = old
        return self._sort(answers)

    def _ask(self, numbers: tuple[int, ...]) -> Any:
        return self._caller.call("nvmlDeviceGetFieldValues", list(numbers), variant=numbers)

    def _sort(self, answers: Any) -> dict[int, float]:
        values = {}
        for answer in answers:
            self.codes[answer.fieldId] = answer.nvmlReturn
            if answer.nvmlReturn == 0:
                values[answer.fieldId] = union_value(answer.value, answer.valueType)
        permanent = [n for n in self._numbers if self.codes[n] in reasons.PERMANENT]
        if permanent:
            self._numbers = tuple(n for n in self._numbers if n not in permanent)
        return values
