"""Words and numbers as findings say them, so that every rule says them alike."""

from __future__ import annotations

from collections.abc import Iterable

from gpuwatch.diagnosis.finding import Measure
from gpuwatch.text.numbers import rate
from gpuwatch.timeline.windows import GpuWindow


def percent(share: float) -> str:
    """0.413 -> "41 %"; below one percent with one decimal, so that a small share does not read as none: "0.4 %"."""
    value = share * 100
    if 0 < abs(value) < 0.05:
        return "<0.1 %" if value > 0 else ">-0.1 %"
    return f"{value:.1f} %" if 0 < abs(value) < 0.95 else f"{value + 0.0:.0f} %"


def seconds(value: float) -> str:
    """A duration with three significant digits and its unit: "312 ms", "4.2 s", "3.5 min"."""
    if value < 0.9995e-3:
        return f"{value * 1e6:.0f} us"
    if value < 0.9995:  # above it three digits round to 1e+03
        return f"{value * 1e3:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def factors(low: float, high: float) -> str:
    """A speed-up as its range of factors: "1.5-1.7x", "2.0x" where both ends say the same, "1.04x" of small ones."""
    decimals = 1 if high >= 1.2 else 2
    least, most = f"{low:.{decimals}f}", f"{high:.{decimals}f}"
    return f"{most}x" if least == most else f"{least}-{most}x"


def faster(low: float, high: float) -> str:
    """A gain: "1.5-1.7x faster"."""
    return f"{factors(low, high)} faster"


def brings_something(high: float) -> bool:
    """Whether a factor is shown as more than none."""
    return high >= 1.005


def plan_words(number: int, of: int, then: tuple[float, float], together: tuple[float, float]) -> str:
    """Where a fix stands among those of its run: "step 2 of 3 of the plan: then 1.1-1.3x faster, ..."."""
    text = f"step {number} of {of} of the plan"
    if number == 1:
        return f"{text}: change this first"
    if not brings_something(then[1]):
        return f"{text}: then nothing more, because the steps before it save the same time"
    return f"{text}: then {faster(*then)}, {faster(*together)} together with the steps before it"


def gibibytes(value: float) -> str:
    """Bytes as GiB with one decimal, as MiB where that would be 0.0 GiB."""
    return f"{value / 2**20:.0f} MiB" if 0 < value < 0.05 * 2**30 else f"{value / 2**30:.1f} GiB"


def megabytes(value: float) -> str:
    """Bytes as MB of a million, as rates of disks and networks are given: "126 MB", "1 430 MB"."""
    return f"{rate(value / 1e6)} MB"


def cpu_cores(count: float) -> str:
    """1 CPU core, 16 CPU cores, 1.5 CPU cores."""
    return f"{count:g} CPU core{'' if count == 1 else 's'}"


def ordinal(count: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = "th" if count % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count}{ending}"


def listed(words: Iterable[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    items = list(words)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def gpu_name(gpu: GpuWindow) -> str:
    """How a sentence names a GPU: by the index that `nvidia-smi` shows."""
    return f"GPU {gpu.facts.index}"


def share_measure(name: str, share: float, what: str) -> Measure:
    """A share with its words: ("wait_share", 0.41, "waiting") reads "waiting 41 %"."""
    return Measure(name, round(share, 4), f"{what} {percent(share)}")
