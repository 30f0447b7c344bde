"""Bringing a recording that had to be written elsewhere to where it was asked for."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def bring_home(work: Path, home: Path) -> tuple[Path, str | None]:
    """Copies the file, so that at `home` there is all of it or what was there before.

    Returns:
        Where it lies now, and what went wrong, if anything: then it is still where it was written.
    """
    part = home.with_name(f"{home.name}.part")
    try:
        with (
            work.open("rb") as source,
            os.fdopen(
                os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "wb"
            ) as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        part.replace(home)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        reason = (error.strerror or str(error)).lower()
        return work, f"the recording is at {work}: it could not be copied to {home}: {reason}"
    with suppress(OSError):
        work.unlink()
        work.parent.rmdir()
    return home, None
