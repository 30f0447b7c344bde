"""Many small machines side by side, as most of a fault's test is waiting; and a user who has no right to anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from nvml_sim import SimulatedDriver

from tests.integration.command_line import ROOT

AT_ONCE = 6
"""Programs that start together: more would only wait for the CPU of a machine with two."""
ALL_FAULTS = bool(os.environ.get("GPUWATCH_ALL_FAULTS"))
"""Whether every case is injected, or only those of `few`, which cover every fault once."""


@dataclass(frozen=True)
class Place:
    """A machine with one simulated GPU and a folder, for one case."""

    folder: Path
    driver: SimulatedDriver


SideBySide = Callable[..., None]
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs")
OPENED = """
for pair in $PLACES; do
  mount --rbind "${pair%%:*}" "${pair##*:}" || exit 99
done
for closed in $CLOSED; do
  mount -t tmpfs -o mode=755 none "$closed" || exit 99
done
for pair in $PLACES; do
  mkdir -p "${pair%%:*}" && mount --rbind "${pair##*:}" "${pair%%:*}" || exit 99
done
exec "$@"
"""


@dataclass(frozen=True)
class Unprivileged:
    """A user without rights: words in front of a command that make it his, their environment, and a folder of his."""

    words: list[str]
    env: dict[str, str]
    folder: Path


def closed_above(path: Path) -> Path | None:
    """The topmost folder on the way to a path that others may not enter."""
    return next((each for each in reversed(path.parents) if not each.stat().st_mode & 0o001), None)


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[Unprivileged]:
    """The user of the tests; where that is root, nobody.

    Mounts of its own open the way to the Python where the folders above it are closed to others, as root's home is.
    """
    if os.geteuid() != 0:
        yield Unprivileged([], {}, tmp_path)
        return
    if shutil.which("setpriv") is None:
        pytest.skip("becoming another user takes setpriv (util-linux)")
    needed = {Path(entry).resolve() for entry in (sys.base_prefix, sys.prefix, ROOT, *sys.path) if Path(entry).exists()}
    places = {place: closed for place in sorted(needed) if (closed := closed_above(place)) is not None}
    pairs = []
    for number, place in enumerate(place for place in places if place.is_dir()):
        (tmp_path / f"place-{number}").mkdir()
        pairs.append(f"{place}:{tmp_path}/place-{number}")
    env = {"PLACES": " ".join(pairs), "CLOSED": " ".join(sorted({str(closed) for closed in places.values()}))}
    words = ["unshare", "-m", "sh", "-c", OPENED, "sh", *NOBODY] if pairs else [*NOBODY]
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 65534, 65534)
        tried = subprocess.run([*words, sys.executable, "-c", ""], env=os.environ | env, capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"another user cannot run this Python here: {tried.stderr.strip()}")
        yield Unprivileged(words, env, Path(folder))


@pytest.fixture
def side_by_side(tmp_path: Path, nvml_library: Path) -> SideBySide:
    """`side_by_side(check, cases)` calls `check(place, case)` for each case; it names every case that failed.

    `few` holds the names of the cases that a run without GPUWATCH_ALL_FAULTS makes, or how many of the first.
    """

    def run(check: Callable[[Place, Any], object], cases: Mapping[str, Any], few: set[str] | int | None = None) -> None:
        names = set(islice(cases, few)) if isinstance(few, int) else few
        assert names is None or names <= cases.keys()
        chosen = {name: case for name, case in cases.items() if ALL_FAULTS or names is None or name in names}
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
