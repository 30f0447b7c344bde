from __future__ import annotations

from pathlib import Path

from gpuwatch.cli.output import MOST_SUMMARY_BYTES
from tests.integration.command_line import gpuwatch


def test_report_is_appended_to_the_summary_of_the_job_verdict_first(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("### before\n")
    done = gpuwatch(
        tmp_path,
        "report",
        "--simulate",
        "starved",
        "--format",
        "json",
        environment={"GITHUB_STEP_SUMMARY": str(summary)},
    )
    assert done.returncode == 0
    assert "GITHUB_STEP_SUMMARY" in done.stderr
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("### before\n### gpuwatch\n")
    assert text.index("**CRITICAL**") < text.index("num_workers=3") < text.index("<details>")
    assert text.count("<details>") == text.count("</details>") >= 3
    assert not any(line.startswith(("# ", "## ")) for line in text.splitlines())


def test_summary_that_cannot_be_written_changes_no_exit_code(tmp_path: Path) -> None:
    for place in (tmp_path / "missing" / "summary.md", Path("/dev/full")):
        done = gpuwatch(
            tmp_path,
            "report",
            "--simulate",
            "starved",
            "--fail-on",
            "critical",
            environment={"GITHUB_STEP_SUMMARY": str(place)},
        )
        assert done.returncode == 1
        assert done.stdout.startswith("# gpuwatch report")
        assert "cannot be written" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_summary_that_is_nearly_full_gets_the_verdict_alone_and_a_full_one_nothing(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    for room, said in ((1000, "also added"), (10, "is full")):
        summary.write_bytes(b"x" * (MOST_SUMMARY_BYTES - room))
        done = gpuwatch(tmp_path, "report", "--simulate", "starved", environment={"GITHUB_STEP_SUMMARY": str(summary)})
        assert done.returncode == 0
        assert said in done.stderr
        assert summary.stat().st_size <= MOST_SUMMARY_BYTES
        assert (b"CRITICAL" in summary.read_bytes()) == (room > 10)
        assert b"<details>" not in summary.read_bytes()
