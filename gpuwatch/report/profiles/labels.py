"""How a frame is called: short enough to read, long enough to find."""

from __future__ import annotations

import re

from gpuwatch.sources.stacks.capture import FramePlace
from gpuwatch.text.escape import printable

_LIBRARY = re.compile(r"^.*/(?:site-packages|dist-packages|python3\.\d+t?)/")


def label_of(place: FramePlace) -> str:
    """`function (file:line)`. What is in a library is named from its package on; no byte of it can steer a terminal."""
    function, file, line = place
    return plain(f"{function} ({_LIBRARY.sub('', file)}{f':{line}' if line else ''})")


def plain(name: str) -> str:
    """A name in a line of frames: a semicolon would end it."""
    return printable(name).replace(";", "\\x3b")
