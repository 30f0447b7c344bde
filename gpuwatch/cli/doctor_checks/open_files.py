"""How many files this process may hold open: one per linked training process and worker."""

from __future__ import annotations

from gpuwatch.cli.doctor_checks.check import Check, State

_NAME = "open-files"
_ENOUGH = 256


def check_open_files(soft_limit: int | None = None) -> Check:
    """`ulimit -n`; each DataLoader worker of a linked run holds a connection of its own."""
    limit = _soft_limit() if soft_limit is None else soft_limit
    if limit is None:
        return Check(_NAME, State.UNKNOWN, "This system does not say how many files may be open.")
    details = {"limit": limit}
    if limit < _ENOUGH:
        return Check(
            _NAME,
            State.WARNING,
            f"Only {limit} files may be open at once, so runs with many workers may not all be linked.",
            "Raise it in this shell before gpuwatch starts: `ulimit -n 4096`.",
            details,
        )
    return Check(_NAME, State.OK, f"{limit} files may be open at once.", None, details)


def _soft_limit() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
