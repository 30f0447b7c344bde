"""Fetches Debian's newest Pythons into a folder of their own, for the tests of the reader; the machine stays as it is.

Usage: sudo python tests/newer_pythons.py FOLDER, then GPUWATCH_TEST_PYTHONS=FOLDER pytest (as root, for chroot)

apt runs with its own sources, lists and cache inside the folder, and with an empty list of installed packages, so
that it also fetches what they need, the C library too. Nothing is installed: the packages are only unpacked.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "http://deb.debian.org/debian"
SUITES = ("sid", "experimental")
PACKAGES = ("python3.14", "python3.15")
MERGED = ("bin", "sbin", "lib", "lib64")  # links into /usr, which no package brings along


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(arguments).folder.resolve()
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            print(f"there is no {tool} here: this needs Debian or Ubuntu", file=sys.stderr)
            return 1
    if not Path(KEYRING).exists():
        print(f"{KEYRING} is missing: install debian-archive-keyring", file=sys.stderr)
        return 1
    for name in (*(f"usr/{part}" for part in MERGED), "tmp", "proc", "dev"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in MERGED:
        if not (folder / name).exists():
            (folder / name).symlink_to(f"usr/{name}")
    for package in fetch(folder / "var/apt", PACKAGES):
        subprocess.run(["dpkg", "-x", str(package), str(folder)], check=True)
    found = sorted(path.name for path in (folder / "usr/bin").glob("python3.*[0-9]"))
    print(f"export GPUWATCH_TEST_PYTHONS={folder}  # {', '.join(found)}")
    return 0


def fetch(work: Path, packages: Sequence[str]) -> list[Path]:
    """Their package files and those of all that they need."""
    options = apt_options(work)
    subprocess.run(["apt-get", *options, "update"], check=True, stdout=sys.stderr)
    command = ["apt-get", *options, "--yes", "--download-only", "--no-install-recommends", "install", *packages]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return sorted((work / "cache/archives").glob("*.deb"))


def apt_options(work: Path) -> list[str]:
    for name in ("lists/partial", "cache/archives/partial", "state"):
        (work / name).mkdir(parents=True, exist_ok=True)
    (work / "state/status").touch()
    sources = work / "sources.list"
    sources.write_text("".join(f"deb [signed-by={KEYRING}] {MIRROR} {suite} main\n" for suite in SUITES))
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State": work / "state",
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "state/status",
        "Dir::Cache": work / "cache",
        "APT::Default-Release": SUITES[0],
        "APT::Sandbox::User": "root",
    }
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


if __name__ == "__main__":
    sys.exit(main())
