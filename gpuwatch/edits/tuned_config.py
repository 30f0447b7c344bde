"""An optimized copy of a training's configuration: what the findings of its run, or this machine, give a reason for.

Only values that are there are changed: a key that the program does not read would change nothing. Never a batch size, a
model or an input; autocast changes numbers and is advised only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuwatch.diagnosis.finding import CallEdit, Finding, IntervalEdit, LoopEdit, ModelEdit, SettingsEdit
from gpuwatch.edits.config_file import Scalar, load, same, scalars, with_value, word
from gpuwatch.edits.workspace import CannotEditError
from gpuwatch.numbers import faster

_MEANINGS: dict[str, frozenset[str]] = {
    "num_workers": frozenset({"num_workers", "workers", "n_workers", "num_data_workers", "loader_workers"}),
    "prefetch_factor": frozenset({"prefetch_factor"}),
    "persistent_workers": frozenset({"persistent_workers"}),
    "pin_memory": frozenset({"pin_memory"}),
    "non_blocking": frozenset({"non_blocking"}),
    "tf32": frozenset({"tf32", "allow_tf32", "use_tf32"}),
    "cudnn_benchmark": frozenset({"cudnn_benchmark"}),
    "compile": frozenset({"compile", "compile_model", "torch_compile", "use_compile"}),
    "channels_last": frozenset({"channels_last", "use_channels_last"}),
    "autocast": frozenset({"amp", "use_amp", "use_mixed_precision", "mixed_precision", "precision", "bf16", "fp16"}),
    "evaluate": frozenset({"eval_interval", "eval_steps", "eval_every", "val_interval", "eval_freq"}),
    "save": frozenset({"checkpoint_interval", "save_steps", "save_interval", "save_every", "checkpoint_every"}),
}
"""What keys mean, without a prefix `dataloader_`, whatever their case and whether they have dashes."""
_PYTHON = {"true": "True", "false": "False"}
_SWITCHES = frozenset({"true", "false", "yes", "no", "on", "off"})
_PRECISIONS = (
    _SWITCHES
    | {f"{prefix}{bits}" for prefix in ("fp", "float", "") for bits in (8, 16, 32, 64)}
    | {"bf16", "bfloat16", "half", "full", "double", "none", "null", "tf32", "amp"}
    | {f"{each}-{how}" for each in ("16", "bf16", "32", "64") for how in ("mixed", "true")}
    | {"o0", "o1", "o2", "o3", "transformer-engine", "transformer-engine-float16"}
)
_SERVERS = frozenset({"workers", "n_workers"})
"""Names of web servers' processes, too."""
_OF_EVALUATION = frozenset({"val", "valid", "validation", "eval", "evaluation", "test"})


@dataclass(frozen=True, slots=True)
class Wish:
    """What a key of a meaning should say, as Python writes it, or how many times as much, and why."""

    meaning: str
    rule: str
    why: str
    value: str | None = None
    times: int | None = None
    present: str | None = None  # what the running process has


@dataclass(frozen=True, slots=True)
class TunedConfig:
    """The copy, a sentence for each value that was changed, and one for each that is left to the user."""

    text: str
    changed: tuple[str, ...]
    left: tuple[str, ...]


def tuned_config(
    path: str,
    text: str,
    wishes: Sequence[Wish],
    cores: int | None = None,
    sources: Mapping[str, str] | None = None,
    *,
    are_all_sources: bool = True,
    has_gpu: bool = True,
) -> TunedConfig:
    """The configuration with what is wished for.

    Args:
        path: its name, whose ending says what it is.
        text: all of it.
        wishes: the most important first; of two for one key the first counts.
        cores: that a process may use here, where no run was observed.
        sources: Python files that may read it, by name.
        are_all_sources: whether there are no others, so that what none of them mentions is not read.
        has_gpu: whether this machine has one.

    Raises:
        CannotEditError: nothing can be made of the file.
    """
    load(path, text)  # programs differ in what they take of a key that is there twice
    if not _known(path, text):
        raise CannotEditError(f"{path} has no key that gpuwatch could change, such as num_workers or pin_memory")
    copy = _Copy(path, text)
    if cores is not None:
        why = f"a process may use {cores} cores here; if workers wait more than they compute, run `gpuwatch tune`"
        fewer = Wish("num_workers", "too-many-workers", why, value=str(cores))
        for at in reversed(_more_than(cores, _known(path, text))):  # the places of those before it stay
            copy.grant(fewer, at)
        copy.changed.reverse()
    for wish in {wish.meaning: wish for wish in reversed(wishes)}.values():
        copy.grant(wish)
    left, text = copy.left, copy.text
    known = _known(path, text)
    left += _contradictions(known)
    left += _unknown(known)
    if not has_gpu and cores is not None:
        pinning = [each for each in known if _meaning(each.key) == "pin_memory" and same(_bare(each), "True")]
        left += [
            f"{_name(each)} is {each.text}, and this machine has no GPU, without which PyTorch pins nothing"
            for each in pinning
        ]
    left += _unread(known, sources or {}, are_all_sources)
    return TunedConfig(text, tuple(copy.changed), tuple(left))


def _known(path: str, text: str) -> list[Scalar]:
    return [each for each in scalars(path, text) if _meaning(each.key) is not None]


class _Copy:
    """The text as it becomes, and what is said of each wish."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self.text = text
        self.changed: list[str] = []
        self.left: list[str] = []

    def grant(self, wish: Wish, at: Scalar | None = None) -> None:
        """Sets a value, in the quotes of the one before, or says why not; that of the key of its meaning by default."""
        try:
            at = at or _key_of(wish, _known(self._path, self.text))
            value = None if at is None else _value(wish, at)
            if at is None or value is None:
                return
            quote = at.text[:1] if at.text[:1] in ("'", '"') else ""
            comment = f"gpuwatch {wish.rule}: {wish.why}"
            self.text = with_value(self._path, self.text, at, f"{quote}{value}{quote}", comment)
            self.changed.append(f"{_name(at)} {_bare(at)} -> {value} ({wish.rule}): {wish.why}")
        except CannotEditError as error:
            self.left.append(f"{error} ({wish.rule}: {wish.why})")


def _bare(at: Scalar) -> str:
    return at.text[1:-1] if at.text[:1] in ("'", '"') else at.text


def _name(at: Scalar) -> str:
    return ".".join(at.keys)


def wishes_of(findings: Iterable[Finding]) -> tuple[list[Wish], list[str]]:
    """What the findings of a run ask a configuration for; and sentences for what they only advise."""
    wishes: list[Wish] = []
    advice: list[str] = []
    for finding in findings:
        fix = finding.fix
        if fix is None or finding.behind is not None:
            continue
        why = finding.summary if finding.gain is None else f"{finding.summary} ({_gain_words(finding)})"
        if finding.rule == "amp-off":
            advice.append(f"autocast changes numbers, so it is yours to set (amp-off): {why}")
            continue
        edits = (fix.edit, *fix.also) if fix.edit is not None else ()
        present = {
            name.removeprefix("dataloader_"): value
            for edit in edits
            if isinstance(edit, CallEdit | SettingsEdit | LoopEdit)
            for name, value in edit.present.items()
        }
        wishes += [
            Wish(
                name,
                finding.rule,
                why,
                value=_PYTHON.get(value, value),
                present=present.get(name),
            )
            for name, value in (fix.trial_settings or {}).items()
            if "." not in name  # variables of the environment are set where the program is launched
        ]
        for edit in edits:
            if isinstance(edit, IntervalEdit) and edit.what != "log" and (edit.times or 0) > 1:
                wishes.append(Wish(edit.what, finding.rule, why, times=edit.times))
            if isinstance(edit, ModelEdit) and "channels_last" in edit.statement:
                wishes.append(Wish("channels_last", finding.rule, why, value="True"))
    return wishes, advice


def _gain_words(finding: Finding) -> str:
    return faster(finding.gain.low, finding.gain.high) if finding.gain is not None else ""


def _meaning(key: str) -> str | None:
    name = key.lower().replace("-", "_").removeprefix("dataloader_")
    return next((meaning for meaning, names in _MEANINGS.items() if name in names), None)


def _key_of(wish: Wish, found: Sequence[Scalar]) -> Scalar | None:
    """The only key of that meaning that is about training; None where there is none."""
    keys = [each for each in found if _meaning(each.key) == wish.meaning]
    training = [each for each in keys if not _OF_EVALUATION & {part.lower() for part in each.keys}] or keys
    if len(training) > 1:
        names = " and ".join(dict.fromkeys(_name(each) for each in training))
        raise CannotEditError(f"{names} may all be meant: change the one that training reads")
    return training[0] if training else None


def _value(wish: Wish, at: Scalar) -> str | None:
    """What the key shall say; None where it says so."""
    name, text = _name(at), _bare(at)
    if wish.times is not None:
        if not text.isdecimal():
            raise CannotEditError(f"{name} is {text}, and no number that could become {wish.times} times as large")
        return str(int(text) * wish.times)
    assert wish.value is not None
    if same(text, wish.value):
        return None
    if not _is_plain(text, wish):
        raise CannotEditError(f"{name} is {text or 'empty'}: what it means is not known")
    if wish.present is not None and not same(text, wish.present):
        raise CannotEditError(f"{name} is {text}, but the run has {wish.present}: it is set elsewhere")
    return word(wish.value)


def _is_plain(text: str, wish: Wish) -> bool:
    """Whether the value is of the kind that the wish is: no `auto`, no `${data.workers}`."""
    if wish.value in ("True", "False"):
        return text.lower() in _SWITCHES
    return text.isdecimal() or (wish.meaning == "prefetch_factor" and text.lower() in ("null", "none", "~"))


def _more_than(cores: int, known: Sequence[Scalar]) -> list[Scalar]:
    """What needs no run to be seen: PyTorch itself warns of more workers than cores."""
    return [
        each
        for each in known
        if _meaning(each.key) == "num_workers"
        and _bare(each).isdecimal()
        and int(_bare(each)) > cores
        and (each.key.lower() not in _SERVERS or _is_of_loader(each, known))
    ]


def _is_of_loader(at: Scalar, known: Sequence[Scalar]) -> bool:
    section = at.keys[:-1]
    named = any(part in key.lower() for key in section for part in ("load", "data", "train"))
    return not section or named or sum(each.keys[:-1] == section for each in known) > 1


def _contradictions(known: Sequence[Scalar]) -> list[str]:
    """What DataLoader refuses, or leaves without effect, in the same section."""
    found = []
    for each in known:
        if _meaning(each.key) != "num_workers" or _bare(each) != "0":
            continue
        section = [one for one in known if one.keys[:-1] == each.keys[:-1]]
        needing = [one for one in section if _needs_workers(one)]
        if needing:
            names = " and ".join(f"{one.key} {one.text}" for one in needing)
            found.append(f"{_name(each)} is 0, with which DataLoader refuses {names}")
    return found


def _needs_workers(one: Scalar) -> bool:
    meaning = _meaning(one.key)
    return (meaning == "prefetch_factor" and _bare(one).isdecimal()) or (
        meaning == "persistent_workers" and same(_bare(one), "True")
    )


def _unknown(known: Sequence[Scalar]) -> list[str]:
    return [
        f"{_name(each)} is {_bare(each)}: what it means is not known, such as bf16 and 16-mixed are"
        for each in known
        if _meaning(each.key) == "autocast" and _bare(each) and _bare(each).lower() not in _PRECISIONS
    ]


def _unread(known: Sequence[Scalar], sources: Mapping[str, str], are_all: bool) -> list[str]:
    """Values that the program's source compares with something that they never equal, and keys that it never reads."""
    found: list[str] = []
    words = {name for text in sources.values() for name in re.findall(r"[\w-]+", text)}
    mentioned = {each.key for each in known if {each.key, each.key.replace("-", "_")} & words}
    unread = list(dict.fromkeys(each.key for each in known if each.key not in mentioned))
    if are_all and mentioned and unread:
        found.append(f"no Python file here mentions {' or '.join(unread)}: does the program read them?")
    for each in known:
        if _meaning(each.key) in ("autocast", "compile") and same(_bare(each), "True"):
            found += _never_equal(each, sources)
    return list(dict.fromkeys(found))


def _never_equal(each: Scalar, sources: Mapping[str, str]) -> list[str]:
    key = re.escape(each.key)
    read = rf"\[\s*['\"]{key}['\"]\s*\]|\(\s*['\"]{key}['\"][^()]*\)|\.{key}"
    compared = re.compile(rf"(?:{read})\s*==\s*(['\"][^'\"]*['\"])")
    said = f"{_name(each)} is {each.text}, which never equals"
    return [
        f"{said} {match[1]} in {name}:{text.count(chr(10), 0, match.start()) + 1}"
        for name, text in sources.items()
        for match in compared.finditer(text)
    ]
