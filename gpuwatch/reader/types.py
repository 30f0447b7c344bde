"""What the reader gives: stacks, the state of live DataLoader iterators, and refusals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpuwatch.text.escape import printable


class Reason(Enum):
    """Why a process cannot be read."""

    GONE = "gone"
    ZOMBIE = "zombie"
    PERMISSION = "permission"  # Yama, another user, not dumpable
    NOT_PYTHON = "not-python"
    NO_SYMBOLS = "no-symbols"  # a stripped or static program that names no interpreter state
    VERSION = "version"
    BUILD = "build"  # free-threaded, debug, 32-bit
    ARCHITECTURE = "architecture"
    PLATFORM = "platform"  # no process_vm_readv here
    NOT_READY = "not-ready"  # the interpreter is still starting: try again
    MALFORMED = "malformed"  # what it holds is not as any Python has it
    SILENT = "silent"  # reads of its memory are not answered
    EXPENSIVE = "expensive"  # reading it takes more CPU time or bytes than one process may cost


class CannotReadError(Exception):
    """A process whose stacks cannot be read: `sentence` is one sentence with the cause, `cure` one with the cure.

    Names that the process chose are made safe to print here, for all who quote them.
    """

    def __init__(self, reason: Reason, sentence: str, cure: str | None = None) -> None:
        self.reason = reason
        self.sentence = printable(sentence)
        self.cure = None if cure is None else printable(cure)
        super().__init__(self.sentence)

    @property
    def with_cure(self) -> str:
        """Both as one sentence, without its full stop."""
        sentence = self.sentence.rstrip(".")
        return f"{sentence}: {self.cure.rstrip('.')}" if self.cure else sentence

    @property
    def is_lasting(self) -> bool:
        """Whether it lies in what the process holds, so that trying again soon costs as much and gives the same."""
        return self.reason in (Reason.MALFORMED, Reason.EXPENSIVE, Reason.SILENT)


@dataclass(frozen=True, slots=True)
class Code:
    """A code object of the target. `file` is as the target has it: relative ones are relative to its cwd at start."""

    address: int
    file: str
    name: str
    qualified_name: str | None  # None before Python 3.11
    first_line: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame. `address` and `locals_address` are of the target's memory and age with the sample."""

    code: Code
    line: int | None
    address: int
    locals_address: int


@dataclass(frozen=True, slots=True)
class Stack:
    """One thread's frames, innermost first; its root is the module or a thread's bootstrap."""

    thread: int  # the kernel's id where the target keeps it (3.11 and later), else the pthread's
    is_main: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class LoaderState:
    """A live DataLoader iterator, as its attributes say. `iterator` and `loader` are addresses, good as identities.

    `loader` stays the same over the epochs of one DataLoader (it is its sampler's or dataset's address), `iterator`
    does not, except with persistent workers. Unknown attributes are None.
    """

    iterator: int
    loader: int
    type_name: str
    batches_yielded: int
    frame: int  # index into the stack's frames: the innermost one that iterates over it
    num_workers: int | None = None
    batch_size: int | None = None
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    in_order: bool | None = None
    drop_last: bool | None = None
    dataset: str | None = None  # the type's name
    iterable: bool | None = None  # an IterableDataset
    batches_per_epoch: int | None = None
