"""Runs many small machines side by side: most of a fault's test is waiting."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nvml_sim import SimulatedDriver

AT_ONCE = 6
"""Programs that start together: more would only wait for the CPU of a machine with two."""
ALL_FAULTS = bool(os.environ.get("GPUWATCH_ALL_FAULTS"))
"""Whether every case is injected, or only each case of `few`, which cover every fault once."""


@dataclass(frozen=True)
class Place:
    """A machine with one simulated GPU and a folder, for one case."""

    folder: Path
    driver: SimulatedDriver


SideBySide = Callable[..., None]


@pytest.fixture
def side_by_side(tmp_path: Path, nvml_library: Path) -> SideBySide:
    """`side_by_side(check, cases)` calls `check(place, case)` for each case; it names every case that failed."""

    def run(check: Callable[[Place, Any], object], cases: Mapping[str, Any], few: set[str] | None = None) -> None:
        assert few is None or few <= cases.keys()
        chosen = {name: case for name, case in cases.items() if ALL_FAULTS or few is None or name in few}
        assert chosen

        def one(number: int, case: Any) -> None:
            folder = tmp_path / f"case-{number}"
            folder.mkdir()
            check(Place(folder, SimulatedDriver(folder, nvml_library)), case)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            futures = {name: pool.submit(one, number, case) for number, (name, case) in enumerate(chosen.items())}
        errors = {name: error for name, future in futures.items() if (error := future.exception())}
        failed = [f"{name}:\n{''.join(traceback.format_exception(error))}" for name, error in errors.items()]
        if failed:
            pytest.fail("\n".join([f"{len(failed)} of {len(chosen)} cases", *failed]), pytrace=False)

    return run
