"""The user's settings: `[tool.gpuwatch]` of the nearest pyproject.toml, and the config file of the user.

Command line before project file before user file, key by key. What they say about rules is which of them count, and
their thresholds:

    select = ["data", "memory-near-limit"]
    ignore = ["workers-"]

As in ruff the more exact word wins: an id before a beginning, that before a family, that before `all`. Of two that are
equally exact, `ignore` wins.
"""

from __future__ import annotations

import math
import os
import re
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatch.diagnosis.thresholds import Settings, Threshold, declared
from gpuwatch.text import did_you_mean

if TYPE_CHECKING:
    from gpuwatch.diagnosis.rule import Rule

PROJECT_FILE = "pyproject.toml"
TABLE = "tool.gpuwatch"
_IGNORED = "the config {path} is ignored because {why}: name it with --config to use it"
_MOST_BYTES = 256 << 10
_MOST_PARTS = 64
_LONG_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{_MOST_PARTS}}}""")
"""The parser walks all parts of a key for each key below it: 29 kB of such keys took 17 s."""
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class ConfigError(Exception):
    """A config that cannot be used; its text is the whole sentence."""


def shown(value: object) -> str:
    """A value as TOML writes it, cut short: it comes from a file that anybody may have written."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    text = text.replace("'", '"') if isinstance(value, str) else text
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class Source:
    """A file that counts, and its keys. `table` is where they stand in it; the user's file has them at the top."""

    path: Path
    keys: Mapping[str, Any]
    table: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """A setting, and where it comes from: a file, or an option."""

    value: Any
    origin: str

    @property
    def by(self) -> str:
        """The origin in a sentence: "config (/home/user/pyproject.toml)", "--select"."""
        return self.origin if self.origin.startswith("--") else f"config ({self.origin})"


def full_key(source: Source, *keys: str) -> str:
    """A key as a sentence names it: "tool.gpuwatch.interval"."""
    return ".".join((source.table, *keys) if source.table else keys)


def sources(
    *,
    config: str | None,
    isolated: bool,
    folder: Path | None,
    ignored: list[str],
    environ: Mapping[str, str] = os.environ,
) -> tuple[Source, ...]:
    """The files that count, the one that wins first. With `config` it is that file alone, with `isolated` none.

    Args:
        config: a file that the user names: a pyproject.toml, or one with plain keys.
        isolated: whether all files are to be left aside.
        folder: where the search upward begins; None if the current folder is gone.
        ignored: takes a sentence for each file that does not count because others may have written it.
        environ: asked for XDG_CONFIG_HOME and HOME.

    Raises:
        ConfigError: a file that counts cannot be read or does not parse.
    """
    if isolated:
        return ()
    if config is not None:
        return (_named(Path(config)),)
    trusted = trusted_users(environ)
    found = (_project_source(folder, trusted, ignored), _user_source(environ, trusted, ignored))
    return tuple(source for source in found if source is not None)


def user_file(environ: Mapping[str, str]) -> Path | None:
    """Where the user's file is, whether it exists or not; None for a user without a home."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(base):  # noqa: PTH117 - the XDG specification has relative ones ignored
        return Path(base) / "gpuwatch" / "config.toml"
    home = environ.get("HOME", "")
    return Path(home) / ".config" / "gpuwatch" / "config.toml" if home else None


def _named(path: Path) -> Source:
    keys = parsed(read_bytes(path), path)
    if path.name == PROJECT_FILE:
        return Source(path, _tool_table(keys, path) or {}, TABLE)
    return Source(path, keys)


def trusted_users(environ: Mapping[str, str]) -> frozenset[int]:
    """Whose files count: this user's and root's; for root also those of the user who became root by sudo."""
    before = environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return frozenset({0, os.geteuid(), *([int(before)] if before.isascii() and before.isdecimal() else ())})


def _user_source(environ: Mapping[str, str], trusted: Collection[int], ignored: list[str]) -> Source | None:
    path = user_file(environ)
    if path is None or not _is_file(path):
        return None
    data, why = read_found(path, trusted)
    if why is not None:
        ignored.append(_IGNORED.format(path=path, why=why))
        return None
    return Source(path, parsed(data, path))


def _project_source(folder: Path | None, trusted: Collection[int], ignored: list[str]) -> Source | None:
    for path in _candidates(folder):
        data, why = read_found(path, trusted)
        # Most are of projects that never heard of gpuwatch: what is wrong with them is not ours to say.
        if b"gpuwatch" not in data:
            continue
        if why is not None:
            ignored.append(_IGNORED.format(path=path, why=why))
            continue
        table = _tool_table(parsed(data, path), path)
        if table is not None:
            return Source(path, table, TABLE)
    return None


def _candidates(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield from (path for each in (folder, *folder.parents) if _is_file(path := each / PROJECT_FILE))


def _tool_table(keys: Mapping[str, Any], path: Path) -> Mapping[str, Any] | None:
    tools = keys.get("tool", {})
    table = tools.get("gpuwatch") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.gpuwatch is not a table; write [tool.gpuwatch] and its keys below")
    return table


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder above that may not be looked into
        return False


def read_bytes(path: Path) -> bytes:
    """The file's content.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return _bounded(file.read(_MOST_BYTES + 1), path)
    except OSError as error:
        raise ConfigError(f"cannot read the config {path}: {error.strerror or error}") from error


def read_found(path: Path, trusted: Collection[int]) -> tuple[bytes, str | None]:
    """The content of a file that was found, not named, and why it must not count: who may change it may silence rules.

    As git has it (safe.directory): the file and its folder must be of a trusted user, and writable by no others; the
    folder may be one as /tmp, where only the owner of a file may change it.

    Args:
        path: a file's path.
        trusted: the users whose files count.

    Raises:
        ConfigError: a file of a trusted user cannot be read.
    """
    try:
        link, folder = path.lstat(), path.parent.stat()
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b"", None
    except OSError as error:
        if link.st_uid not in trusted:
            return b"", None
        raise ConfigError(f"cannot read the config {path}: {error.strerror or error}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return b"", None
        why = _why_untrusted(status, link, folder, trusted)
        content = file.read(_MOST_BYTES + 1)
    return (content[:_MOST_BYTES], why) if why is not None else (_bounded(content, path), None)


def _why_untrusted(
    status: os.stat_result, link: os.stat_result, folder: os.stat_result, trusted: Collection[int]
) -> str | None:
    for what, each in (("it", status), ("the link to it", link), ("its folder", folder)):
        is_shared = each is folder and each.st_mode & stat.S_ISVTX
        if each.st_uid not in trusted and not is_shared:
            return f"{what} belongs to user {each.st_uid}"
        if stat.S_ISLNK(each.st_mode) or is_shared:
            continue
        if each.st_mode & stat.S_IWOTH:
            return f"{what} may be changed by all users"
        if each.st_mode & stat.S_IWGRP and each.st_gid not in (os.getegid(), 0):
            return f"{what} may be changed by group {each.st_gid}"
    return None


def _bounded(data: bytes, path: Path) -> bytes:
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{path} is larger than {_MOST_BYTES >> 10} KiB, the most that is read of a config")
    return data


def parsed(data: bytes, path: Path) -> dict[str, Any]:
    """Its keys.

    Raises:
        ConfigError: it is no TOML.
    """
    # Here, not above: most commands find no file to read.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: the file is not UTF-8, as TOML has to be") from error
    if _LONG_KEY.search(text):
        raise ConfigError(f"{path}: a key of more than {_MOST_PARTS} parts is not read")
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except ValueError as error:  # of TOML, or a number of thousands of digits
        said = str(error)
        place = _PLACE.search(said)
        line = int(place[1]) if place and place[1] else text.count("\n") + 1
        raise ConfigError(f"{path}, line {line}: {_PLACE.sub('', said)}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: its tables are nested too deeply to be read") from error
    return found


KEYS = ("select", "ignore", "interval", "fail-on", "read-only", "price-per-kwh", "rules")
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

    @property
    def read_only(self) -> bool:
        """Whether the dashboard sends no signals to processes."""
        return bool(self._value("read-only"))

    @property
    def price_per_kwh(self) -> float | None:
        """The price of a kilowatt-hour in the user's currency, where a file says."""
        value: float | None = self._value("price-per-kwh")
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
        raise ConfigError(
            f"{source.path}: {key} = {shown(table)} is not a table; write [{key}.RULE] and its keys below"
        )
    return table


def _words(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ConfigError(f'{where} is not a list of rules or families, such as ["data", "amp-off"]')
    return tuple(value)


def _interval(value: Any, where: str) -> float:
    least, most = INTERVAL_SECONDS
    allowed = f"it may be between {least:g} and {most:g} seconds"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{where} is not a number; {allowed}")
    if not least <= value <= most:
        raise ConfigError(f"{where} is out of range; {allowed}")
    return float(value)


def _fail_on(value: Any, where: str) -> str:
    if value not in FAIL_ON:
        meant = did_you_mean(value, FAIL_ON) if isinstance(value, str) else ""
        raise ConfigError(f"{where} is not a severity to fail on{meant}; it may be {' or '.join(map(repr, FAIL_ON))}")
    return str(value)


def _yes_or_no(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{where} is neither true nor false")
    return value


def _price(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"{where} is not a price per kilowatt-hour, such as 0.30")
    return float(value)


_CHECKS = {
    "select": _words,
    "ignore": _words,
    "interval": _interval,
    "fail-on": _fail_on,
    "read-only": _yes_or_no,
    "price-per-kwh": _price,
}


Tables = Sequence[tuple[Source, Mapping[str, Any]]]


def settings_of(plain: Mapping[str, Value], tables: Tables) -> tuple[Settings, dict[tuple[str, str], Value]]:
    """The settings of the rules, and each threshold that a file sets. `tables`: the one that wins first.

    Raises:
        ConfigError: a word or key that means no rule, or a threshold that may not be.
    """
    # Only now: the rules take 70 ms to import, which a dashboard's first frame has no use for.
    from gpuwatch.diagnosis.rules import all_rules

    rules = {rule.id: rule for rule in all_rules()}
    for key in ("select", "ignore"):
        if key in plain:
            check_words(plain[key].value, tuple(rules.values()), f"{plain[key].origin}: {key}")
    asked: dict[str, dict[str, Asked]] = {}
    for source, table in reversed(tables):
        for key, values in table.items():
            rule = _rule(source, key, rules)
            asked.setdefault(rule.id, {}).update(_asked(source, rule, key, values))
    thresholds = {id: thresholds_of(rules[id], values) for id, values in asked.items() if values}
    settings = Settings(_left_out(tuple(rules.values()), plain), thresholds)
    said = {
        (id, name): Value(getattr(thresholds[id], name), str(one.path))
        for id, values in asked.items()
        for name, one in values.items()
    }
    return settings, said


def _left_out(rules: tuple[Rule, ...], plain: Mapping[str, Value]) -> dict[str, str]:
    """Why each of the rules that are left out is, as a report says it."""
    select, ignore = plain.get("select"), plain.get("ignore")
    ignored, unselected = left_out(
        rules, None if select is None else select.value, () if ignore is None else ignore.value
    )
    reasons: dict[str, str] = {}
    if ignore is not None:
        reasons |= dict.fromkeys(ignored, f"ignored by {ignore.by}: {', '.join(ignore.value)}")
    if select is not None:
        words = ", ".join(select.value) or "nothing"
        reasons |= dict.fromkeys(unselected, f"ignored by {select.by}, which selects only {words}")
    return reasons


def _rule(source: Source, key: str, rules: Mapping[str, Rule]) -> Rule:
    found = rules.get(normal(key))
    if found is None:
        where = f"{source.path}: {full_key(source, 'rules', key)}"
        raise ConfigError(
            f"{where}: there is no rule {key!r}{did_you_mean(normal(key), rules)}; `gpuwatch explain` lists all"
        )
    return found


def _asked(source: Source, rule: Rule, key: str, values: Any) -> dict[str, Asked]:
    where = full_key(source, "rules", key)
    if not isinstance(values, dict):
        raise ConfigError(
            f"{source.path}: {where} = {shown(values)} is not a table; write [{where}] and its keys below"
        )
    asked: dict[str, Asked] = {}
    for name, value in values.items():
        one = Asked(value, source.path, f"{where}.{name}")
        known = known_name(rule, name, one)
        if known in asked:
            raise ConfigError(f"{source.path}: {one.key}: the key is given twice")
        asked[known] = one
    return asked


ALL = "all"


def left_out(
    rules: Sequence[Rule], select: Sequence[str] | None, ignore: Sequence[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """The ids of the rules that are ignored, and of those that are not selected. `select` None: all of them are."""
    chosen = (ALL,) if select is None else tuple(map(normal, select))
    refused = tuple(map(normal, ignore))
    exactness = [(rule.id, _exactness(rule, refused), _exactness(rule, chosen)) for rule in rules]
    ignored = frozenset(id for id, off, on in exactness if off and off >= on)
    return ignored, frozenset(id for id, off, on in exactness if not off and not on)


def check_words(words: Iterable[str], rules: Sequence[Rule], where: str) -> None:
    """Refuses a word that means no rule.

    Raises:
        ConfigError: with the nearest id or family.
    """
    for word in words:
        if not any(_exactness(rule, (normal(word),)) > 0.0 for rule in rules):
            known = [*(rule.id for rule in rules), *sorted({normal(rule.family) for rule in rules}), ALL]
            meant = did_you_mean(normal(word), known)
            raise ConfigError(f"{where}: there is no rule or family {word!r}{meant}; `gpuwatch explain` lists all")


def normal(word: str) -> str:
    """Ids and families as people write them: `Workers_Zero` is workers-zero."""
    return word.strip().lower().replace("_", "-")


def _exactness(rule: Rule, words: Iterable[str]) -> float:
    """How exactly the best of the words means the rule; 0 if none does."""
    return max((_exactness_of(rule, word) for word in words), default=0.0)


def _exactness_of(rule: Rule, word: str) -> float:
    if word == rule.id:
        return 1_000.0
    if word == normal(rule.family):
        return 2.0
    if word and rule.id.startswith(word):
        return 2.0 + len(word)
    return 1.0 if word == ALL else 0.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A value for one threshold, and the file that asks for it."""

    value: Any
    path: Path
    key: str  # in full, as the file has it: "tool.gpuwatch.rules.io-bound.blocked-share"

    def refusal(self, why: str) -> ConfigError:
        """The error that names file, key and value."""
        return ConfigError(f"{self.path}: {self.key} = {shown(self.value)} {why}")


def toml_key(name: str) -> str:
    """A threshold as a config and a page write it: `fire_share` is fire-share."""
    return name.replace("_", "-")


def short_number(value: float) -> str:
    """A number as short as it can be: 0.1, 512, 1e+09."""
    return f"{value:g}"


def thresholds_of(rule: Rule, asked: Mapping[str, Asked]) -> Any:
    """The rule's Thresholds with what was asked for, by names with underscores; None if nothing was.

    Raises:
        ConfigError: a value of the wrong type, out of its range, or on the wrong side of its partner.
    """
    if not asked or rule.thresholds is None:
        return None
    known = {each.name: each for each in declared(rule.thresholds)}
    values = {name: _checked(known[name], one) for name, one in asked.items()}
    all_values = {name: values.get(name, each.default) for name, each in known.items()}
    for each in known.values():
        if each.bounded_by is not None:
            _check_side(each, known[each.bounded_by], all_values, asked)
    return rule.thresholds(**values)


def known_name(rule: Rule, key: str, asked: Asked) -> str:
    """The name of the threshold that a key means.

    Raises:
        ConfigError: the rule has none of that name.
    """
    names = [each.name for each in declared(rule.thresholds)]
    name = normal(key).replace("-", "_")
    if name in names:
        return name
    if not names:
        raise ConfigError(f"{asked.path}: {asked.key}: {rule.id} has no thresholds to set")
    keys = list(map(toml_key, names))
    meant = did_you_mean(normal(key), keys)
    raise ConfigError(f"{asked.path}: {asked.key}: {rule.id} has no threshold {key!r}{meant}; it has {_list(keys)}")


def _checked(threshold: Threshold, asked: Asked) -> float | int:
    value = asked.value
    allowed = f"it may be between {short_number(threshold.least)} and {short_number(threshold.most)}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise asked.refusal(f"is not a number; {allowed}")
    if threshold.is_whole and not isinstance(value, int):
        raise asked.refusal(f"is not a whole number; {allowed}")
    if not threshold.least <= value <= threshold.most:  # nan is nowhere
        raise asked.refusal(f"is out of range; {allowed}")
    return value if threshold.is_whole else float(value)


def _check_side(each: Threshold, other: Threshold, values: Mapping[str, Any], asked: Mapping[str, Asked]) -> None:
    """Whether a threshold is still on the side of its partner where its default is."""
    below = each.default <= other.default
    mine, its = values[each.name], values[other.name]
    if mine == its or (mine < its) == below:
        return
    side = "above" if below else "below"
    guilty = asked.get(each.name) or asked[other.name]
    if each.name in asked:
        most = f"{'at most' if below else 'at least'} {short_number(its)}"
        raise guilty.refusal(f"lies {side} {toml_key(other.name)} = {short_number(its)}; it may be {most}")
    raise guilty.refusal(
        f"leaves {toml_key(each.name)} = {short_number(mine)} {side} it; give {toml_key(each.name)}, too, "
        f"{'at most' if below else 'at least'} {short_number(its)}"
    )


def _list(words: Iterable[str]) -> str:
    return ", ".join(words)
