"""A recording as scalars for TensorBoard; `wandb sync` takes the same file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.export.samples import Axis
from gpuwatch.export.tables import MissingLibraryError
from gpuwatch.text import printable
from gpuwatch.timeline.charts import Chart


def write_events(
    folder: Path, curves: Iterable[Chart], findings: Iterable[Finding], axis: Axis, names: Mapping[str, str]
) -> int:
    """Writes a file of events: a scalar for each known value of the curves, a text for each finding.

    The tags are "gpuwatch/gpu0/power_watts", "gpuwatch/train.py-4711/wait_share", "gpuwatch/host/cpu_percent": values
    have the units of their names. A step is a second of the recording; next to the training's own charts they lie by
    wall time.

    Args:
        folder: is made where there is none.
        curves: of GPUs, runs and the host.
        findings: each is written where it began.
        axis: of time.
        names: what a GPU or run is called in a tag, by the key of its curves.

    Returns:
        How many scalars were written.

    Raises:
        MissingLibraryError: tensorboardX is not installed.
        OSError: the folder cannot be written to.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise MissingLibraryError(
            "--tensorboard is written with tensorboardX, which is not installed: pip install 'gpuwatch[tensorboard]'"
        ) from None
    count = 0
    folder.mkdir(parents=True, exist_ok=True)
    with SummaryWriter(str(folder), filename_suffix=".gpuwatch") as writer:
        for curve in curves:
            subject, _, metric = curve.series.name.partition(".")
            tag = f"gpuwatch/{names.get(curve.series.key, subject)}/{metric}"
            width_ns = (curve.end_ns - curve.start_ns) / len(curve.mean)
            for place, value in enumerate(curve.mean):
                if value is not None:
                    at_ns = round(curve.start_ns + (place + 0.5) * width_ns)
                    writer.add_scalar(tag, value, int(axis.seconds(at_ns)), axis.wall(at_ns).timestamp())
                    count += 1
        for finding in findings:
            at_ns = max(finding.since_ns, axis.start_ns)
            words = printable(f"{finding.severity.value.upper()}: {finding.summary}")
            tag = f"gpuwatch/findings/{finding.rule}"
            writer.add_text(tag, words, int(axis.seconds(at_ns)), axis.wall(at_ns).timestamp())
    return count
