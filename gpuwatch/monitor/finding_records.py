"""Findings as a recording keeps them, and back: nothing is lost, edits included."""

from __future__ import annotations

import dataclasses
import json
import typing
from functools import cache
from typing import Any, get_args

import msgspec

from gpuwatch.diagnosis.finding import Edit, Finding, Fix, Severity
from gpuwatch.recording.types import FindingRecord, FindingSpan

_SEVERITIES = {severity.value: severity for severity in Severity}
_EDITS: dict[str, type] = {cls.__name__: cls for cls in get_args(Edit)}


def to_record(finding: Finding) -> FindingRecord:
    """A finding as a row. JSON escapes what is no UTF-8 in the names of a user's files."""
    plain = msgspec.to_builtins(dataclasses.replace(finding, fix=None))
    plain["fix"] = None if finding.fix is None else _plain_fix(finding.fix)
    return FindingRecord(
        key="|".join((finding.rule, finding.run or "", finding.gpu or "")),
        rule=finding.rule,
        severity=finding.severity.value,
        state=finding.state,
        run=finding.run,
        gpu=finding.gpu,
        blob=json.dumps(plain, separators=(",", ":")).encode("ascii"),
    )


def severity_of(span: FindingSpan) -> Severity | None:
    """None for one that this version does not know."""
    return _SEVERITIES.get(span.severity)


def from_blob(blob: bytes) -> Finding:
    """The finding again.

    Raises:
        ValueError: this is not one, or not one that this version knows.
    """
    plain = json.loads(blob)
    if not isinstance(plain, dict):
        raise ValueError("not a finding")
    fix = plain.pop("fix", None)
    finding: Finding = _built(Finding, plain)
    return finding if fix is None else dataclasses.replace(finding, fix=_fix(fix))


def _plain_fix(fix: Fix) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(fix)
    plain["edit"] = None if fix.edit is None else _plain_edit(fix.edit)
    plain["also"] = [_plain_edit(edit) for edit in fix.also]
    return plain


def _plain_edit(edit: Edit) -> dict[str, Any]:
    return {"kind": type(edit).__name__, **msgspec.to_builtins(edit)}


def _fix(plain: Any) -> Fix:
    if not isinstance(plain, dict):
        raise ValueError("not a fix")
    edit, also = plain.pop("edit", None), plain.pop("also", ())
    fix: Fix = _built(Fix, plain)
    return dataclasses.replace(fix, edit=None if edit is None else _edit(edit), also=tuple(map(_edit, also)))


def _edit(plain: Any) -> Edit:
    cls = _EDITS.get(str(plain.pop("kind", ""))) if isinstance(plain, dict) else None
    if cls is None:
        raise ValueError("an edit that this version does not know")
    made: Edit = _built(cls, plain)
    return made


def _built(cls: Any, plain: dict[str, Any]) -> Any:
    """One dataclass; msgspec knows no union of several, so what holds one is put together field by field."""
    hints = _hints(cls)
    try:
        return cls(**{name: msgspec.convert(value, hints[name]) for name, value in plain.items() if name in hints})
    except (msgspec.MsgspecError, TypeError) as error:
        raise ValueError(f"not a {cls.__name__}: {error}") from None


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)
