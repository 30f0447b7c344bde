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
    path: str, text: str, wishes: Sequence[Wish], cores: int | None = None, sources: Mapping[str, str] | None = None
) -> TunedConfig:
    """The configuration with what is wished for.

    Args:
        path: its name, whose ending says what it is.
        text: all of it.
        wishes: the most important first; of two for one key the first counts.
        cores: that a process may use here, where no run was observed.
        sources: Python files that may read it, by name.

    Raises:
        CannotEditError: nothing can be made of the file.
    """
    load(path, text)  # programs differ in what they take of a key that is there twice
    known = [each for each in scalars(path, text) if _meaning(each.key) is not None]
    if not known:
        raise CannotEditError(f"{path} has no key that gpuwatch knows, such as num_workers or pin_memory")
    wishes = [*wishes, *(_of_machine(known, cores) if cores is not None else ())]
    changed: list[str] = []
    left: list[str] = []
    for wish in {wish.meaning: wish for wish in reversed(wishes)}.values():
        try:
            at = _key_of(wish, scalars(path, text))
            value = _value(wish, at) if at is not None else None
            if at is None or value is None:
                continue
            text = with_value(path, text, at, value, f"gpuwatch {wish.rule}: {wish.why}")
            changed.append(f"{'.'.join(at.keys)} {at.text} -> {value} ({wish.rule}): {wish.why}")
        except CannotEditError as error:
            left.append(f"{error} ({wish.rule}: {wish.why})")
    left += _contradictions(known)
    left += _unread(known, sources or {})
    return TunedConfig(text, tuple(changed), tuple(left))


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
        names = " and ".join(".".join(each.keys) for each in training)
        raise CannotEditError(f"{names} may all be meant: change the one that training reads")
    return training[0] if training else None


def _value(wish: Wish, at: Scalar) -> str | None:
    """What the key shall say; None where it says so."""
    name = ".".join(at.keys)
    if wish.times is not None:
        if not at.text.isdecimal():
            raise CannotEditError(f"{name} is {at.text}, and no number that could become {wish.times} times as large")
        return str(int(at.text) * wish.times)
    assert wish.value is not None
    if same(at.text, wish.value):
        return None
    if wish.present is not None and not same(at.text, wish.present):
        raise CannotEditError(f"{name} is {at.text}, but the run has {wish.present}: it is set elsewhere")
    if wish.value in ("True", "False") and at.text.strip("'\"").lower() not in _SWITCHES:
        raise CannotEditError(f"{name} is {at.text}: what it means is not known")
    return word(wish.value)


def _of_machine(known: Sequence[Scalar], cores: int) -> list[Wish]:
    """What needs no run to be seen: PyTorch itself warns of more workers than cores."""
    counts = [int(each.text) for each in known if _meaning(each.key) == "num_workers" and each.text.isdecimal()]
    if not counts or max(counts) <= cores:
        return []
    why = f"PyTorch warns above the {cores} cores here; if workers wait more than they compute, run `gpuwatch tune`"
    return [Wish("num_workers", "too-many-workers", why, value=str(cores))]


def _contradictions(known: Sequence[Scalar]) -> list[str]:
    """What DataLoader refuses, or leaves without effect, in the same section."""
    found = []
    for each in known:
        if _meaning(each.key) != "num_workers" or each.text != "0":
            continue
        section = [one for one in known if one.keys[:-1] == each.keys[:-1]]
        needing = [one for one in section if _needs_workers(one)]
        if needing:
            names = " and ".join(f"{one.key} {one.text}" for one in needing)
            found.append(f"{'.'.join(each.keys)} is 0, with which DataLoader refuses {names}")
    return found


def _needs_workers(one: Scalar) -> bool:
    meaning = _meaning(one.key)
    return (meaning == "prefetch_factor" and one.text.isdecimal()) or (
        meaning == "persistent_workers" and same(one.text, "True")
    )


def _unread(known: Sequence[Scalar], sources: Mapping[str, str]) -> list[str]:
    """Values that the program's source compares with something that they never equal, and keys that it never reads."""
    found = []
    mentioned = {each.key for each in known if any(each.key in text for text in sources.values())}
    for each in known:
        if mentioned and each.key not in mentioned:
            found.append(f"no Python file here mentions {each.key}: does the program read it?")
        if _meaning(each.key) in ("autocast", "compile") and same(each.text, "True"):
            found += _never_equal(each, sources)
    return found


def _never_equal(each: Scalar, sources: Mapping[str, str]) -> list[str]:
    key = re.escape(each.key)
    read = rf"\[\s*['\"]{key}['\"]\s*\]|\(\s*['\"]{key}['\"][^()]*\)|\.{key}"
    compared = re.compile(rf"(?:{read})\s*==\s*(['\"][^'\"]*['\"])")
    said = f"{'.'.join(each.keys)} is {each.text}, which never equals"
    return [
        f"{said} {match[1]} in {name}:{text.count(chr(10), 0, match.start()) + 1}"
        for name, text in sources.items()
        for match in compared.finditer(text)
    ]
