"""How a frame is called: short enough to read, long enough to find."""

from __future__ import annotations

import re

from gpuwatch.sources.stacks.capture import FramePlace

_LIBRARY = re.compile(r"^.*/(?:site-packages|dist-packages|python3\.\d+t?)/")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f;]")


def label_of(place: FramePlace) -> str:
    """`function (file:line)`. What is in a library is named from its package on; no byte of it can steer a terminal."""
    function, file, line = place
    return _CONTROL.sub("?", f"{function} ({_LIBRARY.sub('', file)}{f':{line}' if line else ''})")
