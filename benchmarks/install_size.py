"""What `pip install gpuwatch` adds to a machine that has no torch: the size of the wheel and all it depends on.

    python -m benchmarks.install_size [--wheel FILE]

A fresh virtual environment, one `pip install` of the wheel without extras, and then the bytes that the files of
site-packages occupy on the disk, bytecode included, less those of pip and setuptools. Exits 1 beyond 60 MB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_MEGABYTES = 60.0
_BLOCK_BYTES = 512  # what st_blocks counts in
_NOT_OURS = ("pip", "setuptools", "_distutils_hack", "pkg_resources", "distutils-precedence.pth")


def build_wheel(folder: Path) -> Path:
    """The wheel of this tree."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    return next(folder.glob("gpuwatch-*.whl"))


def install(wheel: Path, folder: Path) -> Path:
    """Installs it into a fresh virtual environment; returns site-packages."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout.strip())


def sizes(site_packages: Path) -> Counter[str]:
    """Bytes on the disk by top-level name."""
    found: Counter[str] = Counter()
    for path in site_packages.rglob("*"):
        top = path.relative_to(site_packages).parts[0]
        if path.is_file() and not path.is_symlink() and top.split("-")[0] not in _NOT_OURS:
            found[top] += path.stat().st_blocks * _BLOCK_BYTES
    return found


def main() -> int:
    """Prints the table and the sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, help="measure this one instead of building the tree's")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        wheel = arguments.wheel or build_wheel(Path(name))
        found = sizes(install(wheel, Path(name, "venv")))
    total = sum(found.values()) / 1e6
    print(f"{wheel.name}, Python {sys.version.split()[0]}")
    for top, size in found.most_common(16):
        print(f"{size / 1e6:8.1f} MB  {top}")
    print(f"{total:8.1f} MB  in all (at most {MOST_MEGABYTES:.0f})")
    return 0 if total <= MOST_MEGABYTES else 1


if __name__ == "__main__":
    sys.exit(main())
