"""A recording whose hours are taken apart once, though charts, figures and sums all ask for them."""

from __future__ import annotations

from gpuwatch.recording.hours import Hour
from gpuwatch.recording.reader import Recording


class MinutesOnce(Recording):
    """Keeps what it has decoded, so it is for one report: a day of eight GPUs and their ranks is 300 000 figures."""

    _hours: dict[int, tuple[object, Hour]] | None = None

    def _hour(self, hour_ns: int, data: object) -> Hour:
        if self._hours is None:
            self._hours = {}
        before, hour = self._hours.get(hour_ns, (None, None))
        if hour is None or before != data:
            hour = super()._hour(hour_ns, data)
            self._hours[hour_ns] = (data, hour)
        return hour
