"""Puts the settings together: command line before project file before user file, key by key."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuwatch.config.files import ConfigError, Source, Value, full_key, shown, sources
from gpuwatch.diagnosis.settings import Settings
from gpuwatch.text.nearest import did_you_mean

KEYS = ("select", "ignore", "interval", "fail-on", "rules")
INTERVAL_SECONDS = (0.1, 60.0)
"""Faster than 10 Hz a poll holds the driver's lock too often: 25 ms polls of one program held it 10 s of every 15."""
FAIL_ON = ("warning", "critical")


@dataclass(frozen=True, slots=True)
class Config:
    """What the files and the command line say. `plain` holds the keys but `rules`; `thresholds` rule, name, value."""

    files: tuple[Path, ...] = ()
    settings: Settings = field(default_factory=Settings)
    plain: Mapping[str, Value] = field(default_factory=dict)
    thresholds: Mapping[tuple[str, str], Value] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    """A sentence for each file that does not count because others may have written it."""

    @property
    def interval_seconds(self) -> float | None:
        """Seconds between polls, where a file says."""
        value: float | None = self._value("interval")
        return value

    @property
    def fail_on(self) -> str | None:
        """The severity from which on a report fails, where a file says."""
        value: str | None = self._value("fail-on")
        return value

    def _value(self, key: str) -> Any:
        return self.plain[key].value if key in self.plain else None


def load(
    *,
    config: str | None = None,
    isolated: bool = False,
    select: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
    folder: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """The settings of one command.

    Args:
        config: the file of `--config`, in place of those that are found.
        isolated: `--isolated`: no file at all.
        select: words of `--select`, in place of those of the files.
        ignore: words of `--ignore`, likewise.
        folder: where the search upward begins.
        environ: asked for the user's config folder.

    Raises:
        ConfigError: one sentence on what is wrong, and where.
    """
    ignored: list[str] = []
    found = sources(config=config, isolated=isolated, folder=folder, ignored=ignored, environ=environ)
    plain: dict[str, Value] = {}
    for source in reversed(found):
        plain |= dict(_plain(source))
    for key, words in (("select", select), ("ignore", ignore)):
        if words is not None:
            plain[key] = Value(tuple(words), f"--{key}")
    tables = [(source, _rules_table(source)) for source in found]
    if not {"select", "ignore"} & set(plain) and not any(table for _, table in tables):
        return Config(tuple(source.path for source in found), Settings(), plain, ignored=tuple(ignored))
    # Only now: the rules take 70 ms to import, which a dashboard's first frame has no use for.
    from gpuwatch.config.rules import settings_of

    settings, thresholds = settings_of(plain, tables)
    return Config(tuple(source.path for source in found), settings, plain, thresholds, tuple(ignored))


def _plain(source: Source) -> Iterator[tuple[str, Value]]:
    """The keys of a file but its rules, checked."""
    seen: set[str] = set()
    for key, value in source.keys.items():
        name = key.replace("_", "-")
        where = f"{source.path}: {full_key(source, key)}"
        if name not in KEYS:
            raise ConfigError(f"{where}: there is no such key{did_you_mean(name, KEYS)}; there are {', '.join(KEYS)}")
        if name in seen:
            raise ConfigError(f"{where}: the key is given twice")
        seen.add(name)
        if name != "rules":
            yield name, Value(_CHECKS[name](value, f"{where} = {shown(value)}"), str(source.path))


def _rules_table(source: Source) -> Mapping[str, Any]:
    table = source.keys.get("rules", {})
    if not isinstance(table, dict):
        key = full_key(source, "rules")
        raise ConfigError(f"{source.path}: {key} = {shown(table)} is no table; write [{key}.RULE] and its keys below")
    return table


def _words(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ConfigError(f'{where} is no list of rules or families, such as ["data", "amp-off"]')
    return tuple(value)


def _interval(value: Any, where: str) -> float:
    least, most = INTERVAL_SECONDS
    allowed = f"it may be between {least:g} and {most:g} seconds"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{where} is no number; {allowed}")
    if not least <= value <= most:
        raise ConfigError(f"{where} is out of range; {allowed}")
    return float(value)


def _fail_on(value: Any, where: str) -> str:
    if value not in FAIL_ON:
        meant = did_you_mean(value, FAIL_ON) if isinstance(value, str) else ""
        raise ConfigError(f"{where} is no severity to fail on{meant}; it may be {' or '.join(map(repr, FAIL_ON))}")
    return str(value)


_CHECKS = {"select": _words, "ignore": _words, "interval": _interval, "fail-on": _fail_on}
