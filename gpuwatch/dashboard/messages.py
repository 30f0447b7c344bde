"""All messages of the dashboard."""

from __future__ import annotations

from textual.message import Message

from gpuwatch.samples import Candidate


class SnapshotArrived(Message, bubble=False):
    """The monitor has a new snapshot; it waits in the app, so that of several only the newest is drawn."""

    def can_replace(self, message: Message) -> bool:
        """A newer one makes an older one pointless."""
        return isinstance(message, SnapshotArrived)


class RepaintWanted(Message):
    """A cursor, the focus or a scroll position moved: the same view is to be drawn again."""

    def can_replace(self, message: Message) -> bool:
        """One drawing answers them all."""
        return isinstance(message, RepaintWanted)


class OpenFinding(Message):
    """The user wants the finding under the cursor on a screen of its own, or the one behind the first verdict."""

    def __init__(self, *, of_verdict: bool = False) -> None:
        super().__init__()
        self.of_verdict = of_verdict


class MomentWanted(Message):
    """The user wants to see a recorded moment."""

    def __init__(self, time_ns: int) -> None:
        super().__init__()
        self.time_ns = time_ns


class OpenGpu(Message):
    """The user wants all that is known of one GPU."""

    def __init__(self, uuid: str) -> None:
        super().__init__()
        self.uuid = uuid


class AttachWanted(Message):
    """The user wants to watch this process; None: everything again."""

    def __init__(self, candidate: Candidate | None) -> None:
        super().__init__()
        self.candidate = candidate


class KeyPressed(Message):
    """A key of the bottom line was clicked."""

    def __init__(self, action: str) -> None:
        super().__init__()
        self.action = action


class FilterChanged(Message):
    """The user wants to see only what holds this text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
