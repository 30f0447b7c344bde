"""Makes the pictures of the README from the demo: `python screenshots/make.py`.

Seeded and on a clock that jumps, so the same code gives the same pictures; only `tune`, which is made when it is named,
shows what a real program did on this machine. SVG always; PNG where a Chromium is installed (with a font that has
braille, such as DejaVu: `apt-get install chromium fonts-dejavu`).
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from rich.console import Console  # noqa: E402 - the repository has to be on the path first
from rich.text import Text  # noqa: E402

from gpuwatch.dashboard.app import DashboardApp  # noqa: E402
from gpuwatch.dashboard.themes import UNICODE  # noqa: E402
from gpuwatch.diagnosis.engine import Engine  # noqa: E402
from gpuwatch.monitor.clock import VirtualClock  # noqa: E402
from gpuwatch.monitor.monitor import Monitor  # noqa: E402
from gpuwatch.monitor.snapshot import Origin  # noqa: E402
from gpuwatch.sources.simulator.source import SimulatorSource  # noqa: E402

START_WALL_TIME = 1_795_183_200.0  # 20 Nov 2026, 14:00 UTC
WATCHED_SECONDS = 200

PICTURES = (
    ("dashboard", "starved", (120, 36), ()),
    ("dashboard-8-gpus", "eight-gpus", (120, 36), ()),
    ("dashboard-80x24", "starved", (80, 24), ()),
    ("shared-server", "shared-server", (120, 36), ()),
    ("many-gpus", "many-gpus", (160, 50), ("o",)),
    ("processes", "shared-server", (120, 24), ("p", "o", "o", "o", "o")),
    ("finding", "starved", (120, 44), ("enter",)),
    ("timeline", "fluctuation", (120, 36), ("t",)),
    ("attached", "attached", (120, 36), ()),
    ("attached-80x24", "attached", (80, 24), ()),
    ("attached-finding", "attached", (120, 44), ("enter",)),
    ("attach", "attached", (120, 24), ("a", "down", "down")),
)
REPORT = ("report", "starved")
PAGE = ("report-page", "starved")
PAGE_SIZE = (1440, 2040)


def watched(scenario: str) -> Monitor:
    """A monitor that has watched a simulated machine for a while."""
    clock = VirtualClock(WATCHED_SECONDS * 10**9, START_WALL_TIME)
    source = SimulatorSource(scenario, start_ns=clock.now_ns())
    origin = Origin("simulated", f"SIMULATED {scenario}")
    monitor = Monitor([source], origin=origin, clock=clock, engine=Engine(), focus=source.focus)
    monitor.run_until(clock.now_ns() + WATCHED_SECONDS * 10**9)
    return monitor


async def picture(scenario: str, size: tuple[int, int], keys: tuple[str, ...]) -> str:
    """A screen as SVG."""
    monitor = watched(scenario)
    app = DashboardApp(monitor, clock=lambda: 0.0, glyphs=UNICODE)
    async with app.run_test(size=size) as pilot:
        app.receive(monitor.snapshot())
        await pilot.pause()
        app.redraw()
        for key in keys:
            await pilot.press(key)
        await app.workers.wait_for_complete()
        await pilot.pause()
        return app.export_screenshot(title="gpuwatch")


def report(scenario: str, form: str) -> str:
    """The report of a simulated machine; the time at which it was made is the only part that the clock decides."""
    command = [sys.executable, "-m", "gpuwatch", "report", "--simulate", scenario, "--duration", "120"]
    command += ["--format", form]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"{' '.join(command)} printed nothing: {done.stderr.strip()}")
    return re.sub(r"until \S+Z", "until 2026-11-20T14:02:00Z", done.stdout)


def report_picture(scenario: str) -> str:
    """The report as a terminal shows it."""
    text = report(scenario, "text")
    console = Console(record=True, width=112, file=io.StringIO())
    console.print(Text(f"$ gpuwatch report --simulate {scenario} --duration 120 --format text\n", style="bold green"))
    for line in text.splitlines():
        heading = line.isupper() and not line.startswith(" ")
        console.print(Text(line, style="bold cyan" if heading else ""))
    return console.export_svg(title="gpuwatch report")


def tune_picture() -> str:
    """A real search, on the benchmarks' slow dataset: two minutes."""
    words = ["gpuwatch", "tune", "loader", "--seconds", "5", "--", "python", "slow_dataset.py"]
    command = [sys.executable, "-m", *words[:-2], sys.executable, words[-1]]
    folder = HERE.parent / "benchmarks" / "scripts"
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "PATH": f"{Path(sys.executable).parent}:{os.defpath}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    console = Console(record=True, width=112, file=io.StringIO())
    console.print(Text(f"$ {' '.join(words)}\n", style="bold green"))
    colours = {"Result": "bold yellow", "+": "green", "-": "red", "@@": "cyan"}
    for line in done.stdout.splitlines()[1:]:
        console.print(Text(line, style=next((colours[head] for head in colours if line.startswith(head)), "")))
    return console.export_svg(title="gpuwatch tune")


def page_picture(scenario: str, png: Path) -> None:
    """The top of the report's page, as a wide and light screen shows it."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(report(scenario, "html"), encoding="utf-8")
        shoot(page, png, PAGE_SIZE)


def to_png(svg: Path) -> None:
    """The PNG beside an SVG."""
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg.read_text(encoding="utf-8"))
    assert size is not None, "rich's SVG has a view box"
    width, height = (int(float(part)) + 1 for part in size.groups())
    shoot(svg, svg.with_suffix(".png"), (width, height))


def shoot(path: Path, png: Path, size: tuple[int, int]) -> None:
    """A file as Chromium shows it, where there is one."""
    chromium = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if chromium is None:
        sys.stderr.write(f"no Chromium is installed: {png.name} is not made\n")
        return
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        shot = [f"--window-size={size[0]},{size[1]}", f"--screenshot={png}", path.as_uri()]
        subprocess.run([chromium, *options, *shot], check=True, capture_output=True, timeout=60)


def main() -> None:
    """Makes all pictures, or those named on the command line."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    wanted = set(sys.argv[1:])
    made = {
        name: lambda s=scenario, z=size, k=keys: asyncio.run(picture(s, z, k))
        for name, scenario, size, keys in PICTURES
    }
    made[REPORT[0]] = lambda: report_picture(REPORT[1])
    if "tune" in wanted:
        made["tune"] = tune_picture
    for name, make in made.items():
        if wanted and name not in wanted:
            continue
        svg = HERE / f"{name}.svg"
        svg.write_text(make(), encoding="utf-8")
        to_png(svg)
        sys.stderr.write(f"{svg.name}\n")
    if not wanted or PAGE[0] in wanted:
        page_picture(PAGE[1], HERE / f"{PAGE[0]}.png")
        sys.stderr.write(f"{PAGE[0]}.png\n")


if __name__ == "__main__":
    main()
