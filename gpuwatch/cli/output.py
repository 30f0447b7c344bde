"""What a command gives back: data on stdout or in a file, sentences on stderr, and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from gpuwatch.text import ascii_only, printable, terminal_text

if TYPE_CHECKING:
    from rich.console import RenderableType

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Names the file that a step of a GitHub Actions job appends to for the job's summary page."""

MOST_SUMMARY_BYTES = 1024 * 1024
"""Of one step. GitHub shows nothing at all of a summary that is longer."""


class ExitCode(IntEnum):
    """The codes that a script may rely on; `gpuwatch run` has the code of its command."""

    OK = 0
    """Done. For `report` also: no finding at or above `--fail-on`. A reader that closes its pipe is no failure."""

    FINDINGS = 1
    """`report --fail-on SEVERITY` found something that bad, or worse; a `compare --fail-if` came true."""

    CANNOT_MEASURE = 2
    """Nothing could be measured or written: no GPU and no run, wrong arguments, a process that cannot be watched."""

    INTERRUPTED = 130
    """Ctrl-C or SIGTERM; `report` has written what was seen so far, marked INCOMPLETE."""


class GpuwatchError(Exception):
    """One sentence with the cause and the cure, printed on stderr; the command ends with exit code 2."""


class PipeClosedError(Exception):
    """The reader of stdout has gone: no failure, but nothing more needs to be written."""


def write_stdout(text: str | bytes, *, styled: bool = False) -> None:
    """Writes data, at once: text without what would steer a terminal; bytes as they are where it is no terminal.

    Args:
        text: what to write.
        styled: whether the escape sequences in it are gpuwatch's own.

    Raises:
        PipeClosedError: the reader is gone.
        GpuwatchError: it cannot be written, as on a full disk.
    """
    with writing_stdout():
        if isinstance(text, bytes) and not is_terminal(sys.stdout):
            sys.stdout.flush()
            sys.stdout.buffer.write(text)
        else:
            shown = text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
            sys.stdout.write(encodable(shown if styled else terminal_text(shown), sys.stdout))
        sys.stdout.flush()


@contextlib.contextmanager
def writing_stdout(out: str = "FILE") -> Iterator[None]:
    """Turns what goes wrong with stdout in the block into the errors of `write_stdout`.

    Args:
        out: what the help of the command calls the argument of `-o`.
    """
    check_stdout(out)
    try:
        yield
    except BrokenPipeError:
        abandon_stdout()
        raise PipeClosedError from None
    except OSError as error:
        abandon_stdout()
        raise GpuwatchError(
            f"stdout cannot be written ({error.strerror}): free some space, or write elsewhere with -o {out}"
        ) from error


def write_styled(parts: Iterable[RenderableType], width: int | None = None) -> None:
    """Writes to stdout: styled for a terminal, plain for a pipe.

    Args:
        parts: one below the other.
        width: to wrap lines at, in columns; None leaves them as they are.

    Raises:
        PipeClosedError, GpuwatchError: as `write_stdout`.
    """
    from rich.console import Console

    out = io.StringIO()  # by itself a Console ends the process with 1 when its reader is gone
    console = Console(
        file=out, width=width, force_terminal=is_terminal(sys.stdout), soft_wrap=width is None, highlight=False
    )
    for part in parts:
        console.print(part)
    write_stdout("".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines()), styled=True)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream is a terminal; one that was closed before the start is None."""
    return stream is not None and stream.isatty()


def check_stdout(out: str = "FILE") -> None:
    """Raises GpuwatchError where stdout is closed."""
    if sys.stdout is None:
        raise GpuwatchError(f"stdout is closed: write to a file with -o {out}")


def flush_stdout() -> None:
    """Writes what is buffered, which a command may have printed without `write_stdout`."""
    if sys.stdout is not None:
        sys.stdout.flush()


def abandon_stdout() -> None:
    """Lets what is still buffered go nowhere: the interpreter flushes at exit, and would complain once more."""
    if not _lead_nowhere(1):
        sys.stdout = None


def flush_stderr() -> None:
    """Writes what is buffered, of the dashboard for one; to a terminal that is gone it goes nowhere.

    The interpreter flushes at its exit, and makes 120 of the exit code where that fails.
    """
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        if not _lead_nowhere(2):
            sys.stderr = None


def _lead_nowhere(descriptor: int) -> bool:
    """Has the descriptor lead nowhere; False where no other one is left for it."""
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor is needed, not a path
            os.dup2(nowhere.fileno(), descriptor)
    except OSError:
        return False
    return True


def say(text: str) -> None:
    """Writes a sentence to stderr, safe to show; a closed stderr is no error."""
    if sys.stderr is None:
        return
    lines = (printable(line) for line in text.split("\n"))
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(encodable("\n".join(lines) + "\n", sys.stderr))
        sys.stderr.flush()


def encodable(text: str, stream: TextIO) -> str:
    """The text as the stream's encoding can take it; where it lacks a character, ASCII takes the place of all."""
    encoding = getattr(stream, "encoding", None) or "ascii"
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ascii_only(text)
    return text


def append_step_summary(texts: Callable[[], Sequence[str]]) -> None:
    """Appends the first of the texts that fits to the summary of a GitHub Actions job, and says so on stderr.

    It never fails the command: the report itself is written elsewhere.

    Args:
        texts: makes them, the longest first; called only in a job that has a summary.
    """
    name = os.environ.get(STEP_SUMMARY)
    if not name:
        return
    path = Path(name)
    try:
        room = MOST_SUMMARY_BYTES - (path.stat().st_size if path.exists() else 0)
        fitting = next((data for text in texts() if len(data := text.encode()) <= room), None)
        if fitting is None:
            say(f"gpuwatch: the job's summary (${STEP_SUMMARY}) is full: this report is not in it")
            return
        with path.open("ab") as file:
            file.write(fitting)
    except OSError as error:
        why = error.strerror
        say(f"gpuwatch: the job's summary (${STEP_SUMMARY}) cannot be written ({why}): this report is not in it")
        return
    say(f"gpuwatch: the report was also added to the job's summary (${STEP_SUMMARY})")


def output_to(name: str | None) -> Callable[[str | bytes], None]:
    """What writes to the file of `-o`, or to stdout without one.

    Raises:
        GpuwatchError: it could not be written; known before minutes are spent on measuring.
    """
    if name not in (None, "-"):
        return OutputFile(str(name)).write
    check_stdout()
    return write_stdout


class OutputFile:
    """The file of `-o`: written next to its place and moved there, so that it is whole or not there at all.

    What is not a regular file (a pipe, /dev/stdout) is written straight. Made before the measuring starts, so that
    a folder that cannot be written is reported at once and not after five minutes.
    """

    def __init__(self, name: str) -> None:
        self._path = Path(name)
        self._target = Path(os.path.realpath(name))
        if self._target.is_dir():
            raise GpuwatchError(f"-o {name} is a folder: give the name of a file in it")
        self._straight = self._target.exists() and not self._target.is_file()
        if not self._straight and not os.access(self._target.parent, os.W_OK | os.X_OK):
            raise GpuwatchError(f"{self._target.parent} cannot be written: give another place with -o FILE")

    def write(self, text: str | bytes) -> None:
        """Writes all of it: bytes as they are, text as UTF-8 and without what would steer a terminal."""
        with self.open() as file:
            file.write(terminal_text(text).encode() if isinstance(text, str) else text)

    @contextlib.contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The file to write to piece by piece; it takes its place when the block ends without an error."""
        try:
            if self._straight:
                with self._target.open("wb") as file:
                    yield file
                return
            with self._beside() as (file, temporary):
                yield file
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(self._target)
        except BrokenPipeError:
            raise PipeClosedError from None
        except OSError as error:
            raise GpuwatchError(
                f"{self._path} cannot be written ({error.strerror}): free some space, or give another -o FILE"
            ) from error

    @contextlib.contextmanager
    def _beside(self) -> Iterator[tuple[BinaryIO, Path]]:
        import tempfile  # 0.3 MB, which the dashboard is spared

        descriptor, name = tempfile.mkstemp(dir=self._target.parent, prefix=f".{self._target.name[:64]}.")
        temporary = Path(name)
        try:
            os.fchmod(descriptor, self._mode())
            with os.fdopen(descriptor, "wb") as file:
                yield file, temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _mode(self) -> int:
        """The permissions of the file that is replaced, else what `open` would have given."""
        if self._target.exists():
            return self._target.stat().st_mode & 0o777
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
