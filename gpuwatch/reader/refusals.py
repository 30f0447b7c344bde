"""The refusals of the reader, one function each, so that a cause has the same words wherever it is met."""

from __future__ import annotations

from gpuwatch.reader.types import CannotReadError, Reason

_CAUSE_SHOWN = 120


def gone(pid: int) -> CannotReadError:
    """The process has ended, or never was."""
    return CannotReadError(Reason.GONE, f"there is no process {pid} (any more)", "look for it again: gpuwatch --attach")


def replaced(pid: int) -> CannotReadError:
    """The process lives, but its program is another one now (exec)."""
    return CannotReadError(
        Reason.GONE, f"process {pid} has become another program (exec)", f"attach again: gpuwatch --attach {pid}"
    )


def zombie(pid: int) -> CannotReadError:
    """The process has ended and waits for its parent to take note."""
    return CannotReadError(
        Reason.ZOMBIE,
        f"process {pid} has ended and has no memory left; its parent has not waited for it yet",
        "end or mend its parent, which has to wait() for it",
    )


def platform(cause: str) -> CannotReadError:
    """This machine offers no way to read another process."""
    return CannotReadError(
        Reason.PLATFORM, f"stacks cannot be read here: {cause}", "use gpuwatch run, which needs no reader"
    )


def not_ready(pid: int) -> CannotReadError:
    """The process is on its way to be a Python."""
    return CannotReadError(Reason.NOT_READY, f"the Python of process {pid} is still starting", "try again in a moment")


def expensive(pid: int, cause: str) -> CannotReadError:
    """Reading the process takes more than it may, as no Python's memory does that was not made for it."""
    return CannotReadError(
        Reason.EXPENSIVE, f"process {pid} is not read: {cause}", "use gpuwatch run, which reads no memory"
    )


def silent(pid: int) -> CannotReadError:
    """Reads of the process wait for something that does not answer."""
    return CannotReadError(
        Reason.SILENT,
        f"process {pid} does not answer reads of its memory",
        "end what its pages wait for (userfaultfd, a file system that hangs), or use gpuwatch run, which reads no "
        "memory",
    )


def malformed(pid: int, error: Exception) -> CannotReadError:
    """Something in the process's memory is not as any Python has it. `error` may quote that memory."""
    cause = f"{type(error).__name__}: {str(error)[:_CAUSE_SHOWN]}".rstrip(": ").encode("unicode_escape").decode("ascii")
    return CannotReadError(
        Reason.MALFORMED,
        f"reading process {pid} failed ({cause})",
        "use gpuwatch run, which reads no memory",
    )


def refuse(reason: Reason, sentence: str, cure: str | None = None) -> CannotReadError:
    """A refusal whose words are its caller's."""
    return CannotReadError(reason, sentence, cure)
