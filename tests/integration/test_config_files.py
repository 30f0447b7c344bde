"""Config files: which of them count, which wins, and the sentence for each that cannot be used."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpuwatch.config import Config, ConfigError, load
from tests.file_modes import file_modes_count


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path / "home")}


def pyproject(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text, encoding="utf-8")
    return path


def of_user(environ: dict[str, str], text: str) -> Path:
    path = Path(environ["XDG_CONFIG_HOME"]) / "gpuwatch" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str) -> str:
    path = pyproject(folder, text)
    with pytest.raises(ConfigError) as error:
        load(folder=folder, environ={})
    sentence = str(error.value)
    assert sentence.startswith(str(path)) and "\n" not in sentence
    return sentence.removeprefix(str(path))


def test_without_a_file_everything_is_as_usual(project: Path, environ: dict[str, str]) -> None:
    assert load(folder=project, environ=environ) == Config()


def test_the_nearest_pyproject_with_our_table_counts(project: Path, environ: dict[str, str]) -> None:
    path = pyproject(project, "[tool.gpuwatch]\ninterval = 2")
    deep = project / "a" / "b"
    deep.mkdir(parents=True)
    pyproject(project / "a", "[tool.ruff]\nline-length = 100")
    found = load(folder=deep, environ=environ)
    assert found.files == (path,) and found.interval_seconds == 2.0


def test_somebody_elses_broken_file_is_passed_over(project: Path, environ: dict[str, str]) -> None:
    path = pyproject(project, "[tool.gpuwatch]\ninterval = 2")
    below = project / "below"
    below.mkdir()
    pyproject(below, "[tool.ruff\nbroken")
    assert load(folder=below, environ=environ).files == (path,)


def test_the_project_wins_over_the_user_key_by_key(project: Path, environ: dict[str, str]) -> None:
    of_user(
        environ,
        'interval = 5\nread-only = true\nprice-per-kwh = 0.3\nfail-on = "critical"\n'
        "[rules.data-starvation]\nclear-share = 0.04",
    )
    pyproject(project, "[tool.gpuwatch]\ninterval = 2\n[tool.gpuwatch.rules.data-starvation]\nfire-share = 0.05")
    found = load(folder=project, environ=environ)
    assert (found.interval_seconds, found.fail_on, found.read_only) == (2.0, "critical", True)
    assert found.price_per_kwh == 0.3
    limits = found.settings.thresholds["data-starvation"]
    assert (limits.fire_share, limits.clear_share) == (0.05, 0.04)


def test_the_command_line_wins_over_both(project: Path, environ: dict[str, str]) -> None:
    of_user(environ, 'ignore = ["power"]')
    pyproject(project, '[tool.gpuwatch]\nselect = ["data"]')
    found = load(folder=project, environ=environ, select=["amp-off"], ignore=[])
    assert "amp-off" not in found.settings.ignored
    assert "data-starvation" in found.settings.ignored


def test_why_a_rule_is_left_out_names_the_words_and_where_they_stand(project: Path, environ: dict[str, str]) -> None:
    path = pyproject(project, '[tool.gpuwatch]\nignore = ["amp-off", "power"]')
    found = load(folder=project, environ=environ)
    assert found.settings.ignored["amp-off"] == f"ignored by config ({path}): amp-off, power"
    found = load(folder=project, environ=environ, select=["data"])
    assert found.settings.ignored["low-util"] == "ignored by --select, which selects only data"


def test_a_named_file_stands_for_all_others(project: Path, environ: dict[str, str], tmp_path: Path) -> None:
    of_user(environ, "interval = 5")
    pyproject(project, "[tool.gpuwatch]\ninterval = 2")
    other = tmp_path / "other.toml"
    other.write_text('fail-on = "warning"')
    found = load(config=str(other), folder=project, environ=environ)
    assert (found.files, found.interval_seconds, found.fail_on) == ((other,), None, "warning")


def test_a_named_pyproject_is_read_at_its_table(project: Path) -> None:
    path = pyproject(project, "[tool.gpuwatch]\ninterval = 2")
    assert load(config=str(path), environ={}).interval_seconds == 2.0
    pyproject(project, "[tool.ruff]\nline-length = 100")
    assert load(config=str(path), environ={}).plain == {}


def test_isolated_reads_nothing(project: Path, environ: dict[str, str]) -> None:
    of_user(environ, "nonsense = 5")
    pyproject(project, "[tool.gpuwatch]\nnonsense = 2")
    assert load(isolated=True, folder=project, environ=environ) == Config()


def test_the_users_file_lies_below_home_without_xdg(tmp_path: Path) -> None:
    path = tmp_path / ".config" / "gpuwatch" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("interval = 3")
    for environ in ({"HOME": str(tmp_path)}, {"HOME": str(tmp_path), "XDG_CONFIG_HOME": "relative"}):
        assert load(environ=environ).files == (path,)


def test_where_there_is_no_folder_and_no_home_there_is_no_file() -> None:
    assert load(folder=None, environ={}) == Config()


def test_keys_may_be_written_with_underscores(project: Path) -> None:
    text = '[tool.gpuwatch]\nfail_on = "warning"\n[tool.gpuwatch.rules.Data_Starvation]\nfire_share = 0.2'
    pyproject(project, text)
    found = load(folder=project, environ={})
    assert found.fail_on == "warning" and found.settings.thresholds["data-starvation"].fire_share == 0.2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.gpuwatch]\nslect = []", ["slect", "did you mean 'select'?"]),
        ("[tool.gpuwatch]\nselect = 'data'", ['tool.gpuwatch.select = "data"', "not a list"]),
        ("[tool.gpuwatch]\nignore = [1]", ["not a list"]),
        ("[tool.gpuwatch]\nignore = ['wrkers-zero']", ["did you mean 'workers-zero'?"]),
        ("[tool.gpuwatch]\ninterval = 'fast'", ['interval = "fast"', "not a number", "between 0.1 and 60"]),
        ("[tool.gpuwatch]\ninterval = 0.01", ["interval = 0.01", "out of range", "between 0.1 and 60"]),
        ("[tool.gpuwatch]\ninterval = true", ["interval = true", "not a number"]),
        ("[tool.gpuwatch]\nfail-on = 'warnings'", ["did you mean 'warning'?", "'warning' or 'critical'"]),
        ("[tool.gpuwatch]\nprice-per-kwh = -1", ["price-per-kwh = -1", "not a price per kilowatt-hour"]),
        ("[tool.gpuwatch]\nread-only = 'yes'", ['read-only = "yes"', "neither true nor false"]),
        ("[tool.gpuwatch]\nfail-on = 3", ["fail-on = 3", "'warning' or 'critical'"]),
        ("[tool.gpuwatch]\nfail-on = 'warning'\nfail_on = 'critical'", ["fail_on", "given twice"]),
        ("[tool.gpuwatch]\nrules = 3", ["rules = 3", "[tool.gpuwatch.rules.RULE]"]),
        ("[tool.gpuwatch.rules]\nlow-util = 3", ["low-util = 3", "not a table"]),
        ("[tool.gpuwatch.rules.low-utl]\nfire-percent = 3", ["low-utl", "did you mean 'low-util'?"]),
        ("[tool.gpuwatch.rules.low-util]\nfire-percnt = 3", ["did you mean 'fire-percent'?"]),
        ("[tool.gpuwatch.rules.low-util]\nfire-percent = 300", ["fire-percent = 300", "between 0 and 100"]),
        ("[tool.gpuwatch.rules.low-util]\nfire-percent = 80\nfire_percent = 70", ["given twice"]),
        ("[tool]\ngpuwatch = 3", ["is not a table"]),
        ("[tool.gpuwatch]\ninterval = \n", [", line 2: "]),
        ("[tool.gpuwatch]\n# a comment\ninterval = '", [", line 3: "]),
        ("[tool.gpuwatch]\ninterval = " + "9" * 5000, [", line "]),
        ("x = " + "[" * 5000 + " # gpuwatch", ["too deep"]),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(project: Path, text: str, said: list[str]) -> None:
    sentence = refusal(project, text)
    for words in said:
        assert words in sentence


def test_a_file_that_is_not_utf8_is_refused_with_its_line(project: Path) -> None:
    (project / "pyproject.toml").write_bytes(b"[tool.gpuwatch]\n# caf\xe9\n")
    with pytest.raises(ConfigError, match="line 2: the file is not UTF-8"):
        load(folder=project, environ={})


def test_a_byte_order_mark_is_no_fault(project: Path) -> None:
    (project / "pyproject.toml").write_bytes(b"\xef\xbb\xbf[tool.gpuwatch]\ninterval = 2\n")
    assert load(folder=project, environ={}).interval_seconds == 2.0


def test_a_named_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the config .*none\.toml: No such file"):
        load(config=str(tmp_path / "none.toml"))


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        load(config=str(tmp_path))


def test_a_file_that_may_not_be_read_is_refused(project: Path) -> None:
    pyproject(project, "[tool.gpuwatch]").chmod(0)
    with file_modes_count(), pytest.raises(ConfigError, match="Permission denied"):
        load(folder=project, environ={})


FOREIGN = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")


def assert_ignored(folder: Path, environ: dict[str, str], path: Path, why: str) -> None:
    found = load(folder=folder, environ=environ)
    (sentence,) = found.ignored
    assert found.files == () and found.interval_seconds is None
    assert sentence.startswith(f"the config {path} is ignored because {why}") and "--config" in sentence


@AS_ROOT
def test_a_file_of_another_user_above_the_project_silences_nothing(project: Path, environ: dict[str, str]) -> None:
    path = pyproject(project.parent, "[tool.gpuwatch]\ninterval = 2")
    os.chown(path, FOREIGN, FOREIGN)
    assert_ignored(project, environ, path, f"it belongs to user {FOREIGN}")
    assert load(config=str(path)).interval_seconds == 2.0
    assert load(folder=project, environ=environ | {"SUDO_UID": str(FOREIGN)}).files == (path,)


@AS_ROOT
def test_a_folder_or_a_link_of_another_user_is_no_place_for_a_config(project: Path, environ: dict[str, str]) -> None:
    path = pyproject(project, "[tool.gpuwatch]\ninterval = 2")
    os.chown(project, FOREIGN, FOREIGN)
    assert_ignored(project, environ, path, f"its folder belongs to user {FOREIGN}")
    os.chown(project, 0, 0)
    mine = path.rename(project / "mine.toml")
    path.symlink_to(mine)
    os.lchown(path, FOREIGN, FOREIGN)
    assert_ignored(project, environ, path, f"the link to it belongs to user {FOREIGN}")


def test_what_all_users_may_change_is_ignored(project: Path, environ: dict[str, str]) -> None:
    path = pyproject(project, "[tool.gpuwatch]\ninterval = 2")
    path.chmod(0o666)
    assert_ignored(project, environ, path, "it may be changed by all users")
    path.chmod(0o644)
    project.chmod(0o777)
    assert_ignored(project, environ, path, "its folder may be changed by all users")
    project.chmod(0o1777)  # as /tmp: others can put files there, but not change mine
    assert load(folder=project, environ=environ).files == (path,)


@AS_ROOT
def test_a_foreign_file_that_cannot_be_used_stops_nobody(project: Path, environ: dict[str, str]) -> None:
    path = pyproject(project, "[tool.gpuwatch]\nthis is no TOML")
    os.chown(path, FOREIGN, FOREIGN)
    assert_ignored(project, environ, path, "it belongs")
    path.write_bytes(b"\xff gpuwatch " * 1_000_000)
    assert_ignored(project, environ, path, "it belongs")
    path.unlink()
    os.mkfifo(path)
    assert load(folder=project, environ=environ) == Config()


def test_the_users_own_file_must_be_the_users(environ: dict[str, str]) -> None:
    path = of_user(environ, "interval = 2")
    path.chmod(0o666)
    assert_ignored(path.parent, environ, path, "it may be changed by all users")


@pytest.mark.parametrize(
    "text",
    [
        "[" + "a." * 3000 + "a]\n" + "".join(f"b{i}=1\n" for i in range(3000)),
        "x." * 16_000 + "x=1",
        "x = {" + '"a" . ' * 16_000 + "a = 1}",
        "x=" + "[" * 100_000,
        "x = 1\n" * 100_000,
    ],
    ids=["table", "key", "inline", "nesting", "size"],
)
def test_a_config_that_would_take_minutes_to_parse_is_refused(project: Path, text: str) -> None:
    pyproject(project, f"# gpuwatch\n{text}")
    began = time.process_time()
    with pytest.raises(ConfigError):
        load(folder=project, environ={})
    assert time.process_time() - began < 20.0  # unbounded, each takes from half a minute to hours
