from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuwatch.reader.refusals import Access, Reason, access_to, explain, permission

PLAIN = Access(own_uid=1000, target_uid=1000, capable=False, yama=0, dumpable=True, container=False)


@pytest.mark.parametrize(
    ("access", "cause", "cures"),
    [
        (
            replace(PLAIN, yama=1),
            "ptrace_scope=1",
            ["gpuwatch run", "gpuwatch record", "sudo gpuwatch", "ptrace_scope=0"],
        ),
        (replace(PLAIN, yama=2), "ptrace_scope=2", ["sudo gpuwatch", "ptrace_scope=0"]),
        (replace(PLAIN, yama=3), "ptrace_scope=3", ["gpuwatch run", "reboot"]),
        (replace(PLAIN, yama=3, capable=True, own_uid=0), "ptrace_scope=3", ["gpuwatch run", "reboot"]),
        (replace(PLAIN, target_uid=1001), "user 1001", ["sudo gpuwatch"]),
        (replace(PLAIN, target_uid=0, yama=1), "root", ["sudo gpuwatch"]),
        (replace(PLAIN, dumpable=False, yama=1), "not dumpable", ["sudo gpuwatch"]),
        (replace(PLAIN, own_uid=0, target_uid=0, container=True), "container", ["--cap-add SYS_PTRACE"]),
        (replace(PLAIN, own_uid=0, target_uid=1000, container=True), "user 1000", ["--cap-add SYS_PTRACE"]),
        (replace(PLAIN, own_uid=0, capable=True), "namespace", ["host"]),
        (replace(PLAIN, yama=None), "denies", ["sudo gpuwatch"]),
    ],
)
def test_each_cause_has_its_own_cure(access: Access, cause: str, cures: list[str]) -> None:
    sentence, cure = explain(4711, access)
    assert cause in sentence
    assert all(part in cure for part in cures)
    assert "sudo" not in cure or access.own_uid != 0 or not access.container


@pytest.mark.parametrize("yama", [1, 2, 3])
def test_a_hooked_process_is_not_advised_to_be_hooked(yama: int) -> None:
    sentence, cure = explain(4711, replace(PLAIN, yama=yama), hooked=True)
    assert f"ptrace_scope={yama}" in sentence
    assert "gpuwatch run" not in cure
    assert "reboot" in cure if yama == 3 else "sudo gpuwatch" in cure


def test_lowering_yama_is_no_cure_where_another_user_owns_the_process() -> None:
    _, cure = explain(4711, replace(PLAIN, target_uid=1001, yama=1))
    assert "sysctl" not in cure


def test_no_level_is_called_lower_than_it_is_without_a_reboot() -> None:
    _, cure = explain(4711, replace(PLAIN, yama=3))
    assert "sysctl" not in cure


def proc(tmp_path: Path, yama: str | None, capabilities: str, target_uids: str) -> Path:
    (tmp_path / "4711").mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "4711/status").write_text(f"Name:\tpython\nUid:\t{target_uids}\n")
    (tmp_path / "self/status").write_text(f"Name:\tgpuwatch\nUid:\t1\t1\t1\t1\nCapEff:\t{capabilities}\n")
    if yama is not None:
        (tmp_path / "sys/kernel/yama").mkdir(parents=True)
        (tmp_path / "sys/kernel/yama/ptrace_scope").write_text(yama)
    return tmp_path


def test_what_proc_shows_is_understood(tmp_path: Path) -> None:
    access = access_to(4711, proc(tmp_path, "2\n", "0000000000080000", "1001\t1001\t1001\t1001"))
    assert (access.yama, access.capable, access.target_uid) == (2, True, 1001)


def test_missing_files_are_unknown_not_harmless(tmp_path: Path) -> None:
    access = access_to(4711, tmp_path)
    assert (access.yama, access.capable, access.target_uid, access.dumpable) == (None, False, None, None)


def test_refusal_carries_its_reason_sentence_and_cure(tmp_path: Path) -> None:
    error = permission(4711, proc(tmp_path, "3\n", "0000000000000000", "1000\t1000\t1000\t1000"))
    assert error.reason is Reason.PERMISSION
    assert "rebooted" in error.sentence
    assert error.cure is not None
