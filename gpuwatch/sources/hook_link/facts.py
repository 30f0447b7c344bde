"""What trainers say of themselves, checked field by field: a peer may send anything.

A field of the wrong type, sign or size becomes None and is counted; a text keeps no byte that could reach a
terminal as a control code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from typing import Any, Final, TypeVar

from gpuwatch.foreign import UNKNOWN_WHEREABOUTS, Whereabouts
from gpuwatch.samples import LoaderFacts, ModelFacts, Role, RunFacts

_MAX_TEXT: Final = 4096
_MAX_NAME: Final = 80
_MAX_WORDS: Final = 256
_MAX_LOADERS: Final = 256
_MAX_GPUS: Final = 64
_MAX_PHASES: Final = 256
_MAX_PLACES: Final = 256
_MAX_DEBUG_MODES: Final = 16
_MAX_OVERRIDES: Final = 32
_MAX_INTEGER: Final = 2**63 - 1

_MAX_VARIABLES: Final = 16
_MAX_UNHOOKED: Final = 64
_MAX_CONTENT: Final = 256 * 1024
"""Of all facts of a trainer, in characters and 16 for each value: a HELLO has 64 KiB, and 256 loaders 150 KB."""

_LOADER_KEYS: Final = frozenset(field.name for field in fields_of(LoaderFacts)) - {"role", "loop_file", "loop_line"}
_MODEL_KEYS: Final = frozenset(field.name for field in fields_of(ModelFacts))
_FROM_ONE: Final = frozenset(
    {"line", "batch_size", "prefetch_factor", "optimizer_line", "backward_line", "recompile_line"}
)
_TEXT_LISTS: Final = {
    "command": _MAX_WORDS,
    "gpu_uuids": _MAX_GPUS,
    "phases": _MAX_PHASES,
    "debug": _MAX_DEBUG_MODES,
    "overrides": _MAX_OVERRIDES,
    "unhooked": _MAX_UNHOOKED,
}
_SCALARS: Final = frozenset(
    {
        *("cwd", "python", "torch", "group", "rank", "local_rank", "world_size", "local_world_size", "device"),
        *("gpu_memory_total", "affinity", "torch_threads", "gap"),
    }
)

T = TypeVar("T")
Json = dict[str, Any]
Place = tuple[str | None, int | None]
"""A file and a line in it, as far as they are known."""


class BadFactsError(ValueError):
    """JSON that is none, or not what the packet must hold; the message says what is wrong."""


def parse(text: bytes) -> Json:
    """The JSON object of a packet.

    Raises:
        BadFactsError: not UTF-8, not JSON, too deep, numbers out of all bounds, or no object.
    """
    try:
        content = json.loads(text.decode("utf-8"), parse_constant=_refuse)
    except RecursionError:
        raise BadFactsError("JSON nested too deeply") from None
    except ValueError as error:
        raise BadFactsError(f"not JSON: {printable(str(error), 120)}") from None
    if not isinstance(content, dict):
        raise BadFactsError("JSON, but not an object")
    return content


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def printable(text: str, limit: int = _MAX_TEXT) -> str:
    """The text with everything that is not printable written as an escape, surrogates as the byte they stand for."""
    shown = text[:limit]
    if shown.isprintable():
        return shown
    return "".join(char if char.isprintable() else _escape(char) for char in shown)


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


@dataclass(slots=True)
class Fields:
    """Reads one JSON object's fields; what is there but wrong is counted."""

    content: Mapping[str, Any]
    wrong: int = 0

    def _read(self, key: str, convert: Callable[[Any], T | None]) -> T | None:
        value = self.content.get(key)
        if value is None:
            return None
        found = convert(value)
        if found is None:
            self.wrong += 1
        return found

    def text(self, key: str) -> str | None:
        """A string."""
        return self._read(key, lambda value: printable(value) if isinstance(value, str) else None)

    def integer(self, key: str, minimum: int = 0) -> int | None:
        """A whole number of at least `minimum`."""
        return self._read(key, lambda value: _integer(value, minimum))

    def flag(self, key: str) -> bool | None:
        """True or false."""
        return self._read(key, lambda value: value if isinstance(value, bool) else None)

    def share(self, key: str) -> float | None:
        """A number from 0 to 1."""
        return self._read(key, _share)

    def texts(self, key: str, limit: int) -> tuple[str, ...]:
        """A list of strings."""
        return self._read(key, lambda value: _texts(value, limit)) or ()

    def objects(self, key: str, limit: int) -> Sequence[Mapping[str, Any]]:
        """A list of objects."""
        return self._read(key, lambda value: _objects(value, limit)) or ()

    def object(self, key: str) -> Mapping[str, Any]:
        """An object."""
        return self._read(key, lambda value: value if isinstance(value, dict) else None) or {}

    def of_class(self, kind: type[LoaderFacts] | type[ModelFacts], keys: Collection[str]) -> Json:
        """The fields that a class of samples has by these names, each read as the type it is declared with."""
        readers: dict[Any, Callable[[str], object]] = {
            "str | None": self.text,
            "int | None": lambda key: self.integer(key, 1 if key in _FROM_ONE else 0),
            "bool | None": self.flag,
            "float | None": self.share,
        }
        return {field.name: readers[field.type](field.name) for field in fields_of(kind) if field.name in keys}


def _integer(value: object, minimum: int) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= _MAX_INTEGER
    return value if fits and isinstance(value, int) else None


def _share(value: object) -> float | None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
    return float(value) if fits and isinstance(value, (int, float)) else None


def _texts(value: object, limit: int) -> tuple[str, ...] | None:
    if not isinstance(value, list) or len(value) > limit or not all(isinstance(item, str) for item in value):
        return None
    return tuple(printable(item) for item in value)


def _objects(value: object, limit: int) -> list[Mapping[str, Any]] | None:
    if not isinstance(value, list) or len(value) > limit or not all(isinstance(item, dict) for item in value):
        return None
    return value


def merge(older: Json, newer: Json) -> Json:
    """FACTS over HELLO: newer keys win; loaders are matched by their number, the model field by field.

    Raises:
        BadFactsError: together they are more than any trainer has to say.
    """
    known = known_facts(newer)
    merged = {**older, **known}
    if isinstance(older.get("model"), dict) and isinstance(known.get("model"), dict):
        merged["model"] = {**older["model"], **known["model"]}
    lists = (older.get("loaders"), known.get("loaders"))
    if all(isinstance(loaders, list) for loaders in lists):
        by_number = {
            entry["loader"]: entry
            for loaders in lists
            for entry in loaders or ()
            if isinstance(entry, dict) and isinstance(entry.get("loader"), int)
        }
        merged["loaders"] = list(by_number.values())[-_MAX_LOADERS:]
    if _weight(merged) > _MAX_CONTENT:
        raise BadFactsError("more facts than any trainer has")
    return merged


def known_facts(content: Mapping[str, Any]) -> Json:
    """The keys of the protocol with values cut to their limits: a peer may send others, and new ones, forever.

    What has the wrong type stays wrong, so that it is counted, but small.
    """
    kept: Json = {}
    for key, value in content.items():
        if key in _SCALARS:
            kept[key] = _short(value)
        elif key in _TEXT_LISTS:
            kept[key] = _short_list(value, _TEXT_LISTS[key], _short)
        elif key == "loaders":
            kept[key] = _short_list(value, _MAX_LOADERS, lambda entry: _short_object(entry, _LOADER_KEYS))
        elif key == "save_places":
            kept[key] = _short_list(value, _MAX_PLACES, lambda entry: _short_object(entry, ("file", "line")))
        elif key == "model":
            kept[key] = _short_object(value, _MODEL_KEYS)
        elif key == "env" and isinstance(value, dict):
            named = [(name, each) for name, each in value.items() if len(name) <= _MAX_NAME][:_MAX_VARIABLES]
            kept[key] = {name: _short(each) for name, each in named}
        elif key == "env":
            kept[key] = _short(value)
    return kept


def _short(value: Any) -> Any:
    """A scalar within bounds; anything else as an empty list, which no scalar is."""
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    if isinstance(value, int):
        return value if -_MAX_INTEGER <= value <= _MAX_INTEGER else []
    return value if value is None or isinstance(value, float) else []


def _short_list(value: Any, limit: int, short: Callable[[Any], Any]) -> Any:
    """A list of no more than one value beyond its limit, which shows that it is too long."""
    if isinstance(value, dict):
        return {}
    return [short(item) for item in value[: limit + 1]] if isinstance(value, list) else _short(value)


def _short_object(value: Any, keys: Collection[str]) -> Any:
    if not isinstance(value, dict):
        return _short(value)
    return {key: _short(value[key]) for key in keys if key in value}


def _weight(content: Any) -> int:
    """About the memory of JSON: its characters, and a fixed part of each value."""
    if isinstance(content, str):
        return 16 + len(content)
    if isinstance(content, dict):
        return 16 + sum(_weight(key) + _weight(value) for key, value in content.items())
    if isinstance(content, list):
        return 16 + sum(map(_weight, content))
    return 16


def loader_facts(content: Mapping[str, Any]) -> tuple[LoaderFacts | None, int]:
    """One loader, None without a usable number; and how many of its fields were wrong."""
    fields = Fields(content)
    number = fields.integer("loader")
    if number is None or number > 0xFFFF:
        return None, 1
    facts = LoaderFacts(loader=number, **fields.of_class(LoaderFacts, _LOADER_KEYS - {"loader"}))
    return facts, fields.wrong


def model_facts(content: Mapping[str, Any]) -> tuple[ModelFacts, int]:
    """The model; and how many of its fields were wrong."""
    fields = Fields(content)
    return ModelFacts(**fields.of_class(ModelFacts, _MODEL_KEYS)), fields.wrong


@dataclass(frozen=True, slots=True)
class TrainerFacts:
    """A trainer's facts, and what the derivation of its records needs of them."""

    run: RunFacts
    phases: tuple[str, ...]
    save_places: tuple[Place, ...]
    memory_total_bytes: int | None
    wrong: int


def trainer_facts(
    content: Json,
    *,
    trainer: str,
    pid: int,
    start_ticks: int,
    time_ns: int,
    whereabouts: Whereabouts = UNKNOWN_WHEREABOUTS,
) -> TrainerFacts:
    """Everything a trainer says of itself; its identity comes from the kernel, not from the trainer."""
    fields = Fields(content)
    wrong = 0
    loaders = []
    for entry in fields.objects("loaders", _MAX_LOADERS):
        loader, wrong_here = loader_facts(entry)
        wrong += wrong_here
        if loader is not None:
            loaders.append(loader)
    model, wrong_here = model_facts(fields.object("model"))
    wrong += wrong_here
    run = RunFacts(
        time_ns=time_ns,
        trainer=trainer,
        pid=pid,
        start_ticks=start_ticks,
        command=fields.texts("command", _MAX_WORDS),
        cwd=fields.text("cwd"),
        python=fields.text("python"),
        torch=fields.text("torch"),
        group=fields.text("group"),
        rank=fields.integer("rank"),
        local_rank=fields.integer("local_rank"),
        world_size=fields.integer("world_size", 1),
        local_world_size=fields.integer("local_world_size", 1),
        device=fields.text("device"),
        gpu_uuids=fields.texts("gpu_uuids", _MAX_GPUS),
        cpu_affinity=fields.integer("affinity", 1),
        torch_threads=fields.integer("torch_threads", 1),
        loaders=tuple(loaders),
        model=model,
        gpu_gap_measured=bool(fields.flag("gap")),
        notes=_notes(fields),
        debug_modes=fields.texts("debug", _MAX_DEBUG_MODES),
        overrides=fields.texts("overrides", _MAX_OVERRIDES),
        user=whereabouts.user,
        mount_namespace=whereabouts.mount_namespace,
        boot=whereabouts.boot,
    )
    if run.rank is not None and run.world_size is not None and run.rank >= run.world_size:
        run = replace(run, rank=None, world_size=None)
        wrong += 1
    memory = fields.integer("gpu_memory_total", 1)
    places = []
    for entry in fields.objects("save_places", _MAX_PLACES):
        place = Fields(entry)
        places.append((place.text("file"), place.integer("line", 1)))
        wrong += place.wrong
    phases = fields.texts("phases", _MAX_PHASES)
    return TrainerFacts(run, phases, tuple(places), memory, wrong + fields.wrong)


def _notes(fields: Fields) -> tuple[str, ...]:
    variables = Fields(fields.object("env"))
    named = [(name, variables.text(name)) for name in list(variables.content)[:_MAX_VARIABLES]]
    notes = [f"environment: {printable(name, _MAX_NAME)}={value}" for name, value in named if value is not None]
    return (*notes, *(f"not hooked: {name}" for name in fields.texts("unhooked", _MAX_UNHOOKED)))


def with_roles(run: RunFacts, roles: Mapping[int, Role], notes: tuple[str, ...], time_ns: int) -> RunFacts:
    """The facts with what was derived: only loaders that were iterated, each with its role.

    Of loaders that agree in everything, such as those of a script that builds one per epoch, the newest stands
    for all.
    """
    iterated = [replace(one, role=roles[one.loader]) for one in run.loaders if one.loader in roles]
    newest = {replace(one, loader=0, batches_inspected=None, batch_shapes=None): one for one in iterated}
    return replace(run, time_ns=time_ns, loaders=tuple(newest.values()), notes=run.notes + notes)
