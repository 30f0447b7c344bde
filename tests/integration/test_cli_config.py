"""Settings on the command line and in files, from the command to what it prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.integration.command_line import gpuwatch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SIMULATED = ("report", "--simulate", "starved", "--duration", "30", "--format", "json")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def rules_of(folder: Path, project: Path, *arguments: str) -> set[str]:
    """The rules of the findings of a simulated run."""
    done = gpuwatch(folder, *SIMULATED, *arguments, cwd=project)
    assert done.returncode == 0, done.stderr
    return {finding["rule"] for finding in json.loads(done.stdout)["findings"]}


def test_the_project_file_leaves_rules_out_and_the_command_line_lets_them_in_again(
    tmp_path: Path, project: Path
) -> None:
    (project / "pyproject.toml").write_text('[tool.gpuwatch]\nignore = ["workers-", "utilization"]')
    assert rules_of(tmp_path, project) == {"data-starvation"}
    assert "workers-zero" in rules_of(tmp_path, project, "--ignore", "utilization")
    assert "low-util" in rules_of(tmp_path, project, "--isolated")


def test_what_is_selected_may_stand_before_or_behind_the_command(tmp_path: Path, project: Path) -> None:
    assert rules_of(tmp_path, project, "--select", "workers-zero,low-util") == {"workers-zero", "low-util"}
    before = gpuwatch(tmp_path, "--select", "low-util", *SIMULATED, cwd=project)
    assert {finding["rule"] for finding in json.loads(before.stdout)["findings"]} == {"low-util"}


def test_a_threshold_of_a_file_decides(tmp_path: Path, project: Path) -> None:
    strict = tmp_path / "strict.toml"
    strict.write_text("[rules.low-util]\nfire-percent = 20\nhardly-percent = 10\nclear-percent = 25")
    assert "low-util" not in rules_of(tmp_path, project, "--config", str(strict))


def test_a_report_fails_on_what_the_file_says(tmp_path: Path, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.gpuwatch]\nfail-on = "critical"')
    assert gpuwatch(tmp_path, *SIMULATED, cwd=project).returncode == 1
    assert gpuwatch(tmp_path, *SIMULATED, "--ignore", "data", cwd=project).returncode == 0


@pytest.mark.parametrize("command", ["report", "watch", "config"])
def test_a_config_that_cannot_be_used_ends_in_one_sentence(tmp_path: Path, project: Path, command: str) -> None:
    (project / "pyproject.toml").write_text("[tool.gpuwatch.rules.data-starvation]\nfire-share = 3")
    done = gpuwatch(tmp_path, command, cwd=project)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "pyproject.toml: tool.gpuwatch.rules.data-starvation.fire-share = 3 is out of range" in done.stderr


def test_explaining_a_rule_needs_no_config(tmp_path: Path, project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.gpuwatch]\nnonsense = 3")
    assert gpuwatch(tmp_path, "explain", "low-util", cwd=project).returncode == 0


def test_the_settings_that_hold_are_shown_as_toml_with_their_files(tmp_path: Path, project: Path) -> None:
    path = project / "pyproject.toml"
    path.write_text(
        '[tool.gpuwatch]\ninterval = 2\nignore = ["power"]\n[tool.gpuwatch.rules.low-util]\nfire-percent = 80'
    )
    done = gpuwatch(tmp_path, "config", "--select", "data", cwd=project)
    assert done.returncode == 0
    assert tomllib.loads(done.stdout) == {
        "interval": 2.0,
        "ignore": ["power"],
        "select": ["data"],
        "rules": {"low-util": {"fire-percent": 80.0}},
    }
    assert f"# reads {path} [tool.gpuwatch]" in done.stdout
    assert "by default 85" in done.stdout and "--select" in done.stdout


def test_without_a_file_it_is_said_where_they_would_be(tmp_path: Path, project: Path) -> None:
    done = gpuwatch(tmp_path, "config", cwd=project)
    assert done.stdout.startswith("# no config: ") and "gpuwatch/config.toml" in done.stdout
