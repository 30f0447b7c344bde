from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.sources.hook_link.rendezvous import Processes

USUAL, EXITING = 0x400040, 0x400044


@pytest.mark.parametrize(
    ("state", "flags", "start_ticks", "is_alive"),
    [("S", USUAL, 5000, True), ("R", EXITING, 5000, False), ("Z", EXITING, 5000, False), ("S", USUAL, 5001, False)],
)
def test_a_process_lives_until_the_kernel_takes_it_apart(
    tmp_path: Path, state: str, flags: int, start_ticks: int, is_alive: bool
) -> None:
    words = [state, "1", "77", "77", "0", "-1", str(flags), *["0"] * 12, str(start_ticks), "0", "0"]
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "stat").write_text(f"77 (python) {' '.join(words)}\n")
    assert Processes(tmp_path).is_alive(77, 5000) is is_alive
