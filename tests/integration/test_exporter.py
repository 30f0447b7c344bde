"""`gpuwatch exporter`: the real command, scraped over HTTP and read from its file."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuwatch.__main__ import main
from tests.integration.command_line import PATIENCE_SECONDS

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def exporting(*options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "gpuwatch", "exporter", "--simulate", "shared-server", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An exporter and its address, once it answers with the GPUs."""
    with exporting("--listen", f"127.0.0.1:{free_port()}", *options) as process:
        assert process.stderr is not None
        found = re.search(r"metrics at (http://\S+);", process.stderr.readline())
        assert found is not None
        wait_until(lambda: "gpuwatch_gpu_power_watts" in scraped(found[1])[0])
        yield process, found[1]


def wait_until(is_so: object) -> None:
    """Asks again and again: a scrape never waits for what is not known yet."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def scraped(address: str, accept: str = "text/plain") -> tuple[str, str]:
    request = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def test_a_scrape_has_gpus_runs_and_findings_in_both_formats_and_nothing_private() -> None:
    with serving() as (process, address):
        wait_until(lambda: "gpuwatch_finding_active" in scraped(address)[0])
        text, kind = scraped(address)
        assert kind.startswith("text/plain")
        families = {family.name: family for family in parse_text(text)}
        gpus = {sample.labels["gpu"] for sample in families["gpuwatch_gpu_power_watts"].samples}
        assert gpus == {str(index) for index in range(8)}
        assert all(0 <= each.value <= 1 for each in families["gpuwatch_gpu_utilization_ratio"].samples)
        rules = {sample.labels["rule"] for sample in families["gpuwatch_finding_active"].samples}
        assert "data-starvation" in rules
        labels = {label for family in families.values() for each in family.samples for label in each.labels}
        assert not labels & {"user", "script", "sentence", "command"}
        assert "train.py" not in text and "/home" not in text
        strict, kind = scraped(address, OPENMETRICS)
        assert kind.startswith("application/openmetrics-text")
        assert {family.name for family in parse_openmetrics(strict)} >= {
            "gpuwatch_gpu_power_watts",
            "gpuwatch_run_steps",
        }
        with pytest.raises(HTTPError, match="404"):
            scraped(address.replace("metrics", "secrets"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0


PROMTOOL = shutil.which("promtool")
FLEET = Path(__file__).parents[2] / "docs/fleet"


@pytest.mark.skipif(PROMTOOL is None, reason="promtool, of the package prometheus, is not installed")
def test_promtool_finds_nothing_wrong_with_metrics_rules_and_scrape_config() -> None:
    with serving("--labels", "user,script,sentence") as (_, address):
        wait_until(lambda: "gpuwatch_finding_active" in scraped(address)[0])
        text = scraped(address)[0]
    for words, given in (
        (["check", "metrics"], text),
        (["check", "rules", "rules.yml"], None),
        (["test", "rules", "rules-test.yml"], None),
        (["check", "config", "--syntax-only", "prometheus.yml"], None),
    ):
        done = subprocess.run([str(PROMTOOL), *words], cwd=FLEET, input=given, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), words


def test_names_are_in_labels_where_they_were_asked_for() -> None:
    with serving("--labels", "user,script") as (_, address):
        wait_until(lambda: "gpuwatch_run_info" in scraped(address)[0])
        runs = next(family for family in parse_text(scraped(address)[0]) if family.name == "gpuwatch_run_info")
        assert {sample.labels["script"] for sample in runs.samples} >= {"train.py"}


def test_connections_that_say_nothing_do_not_keep_a_scrape_waiting() -> None:
    with serving() as (process, address):
        port = int(address.split(":")[2].split("/")[0])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
        try:
            assert "gpuwatch_gpu_up" in scraped(address)[0]
            threads = len(list(Path(f"/proc/{process.pid}/task").iterdir()))
        finally:
            for each in silent:
                each.close()
        assert threads < 20


def test_the_text_file_is_whole_and_gone_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "gpuwatch.prom"
    with exporting("--textfile", str(path)) as process:
        wait_until(path.exists)
        assert any(family.name == "gpuwatch_build_info" for family in parse_text(path.read_text()))
        assert path.stat().st_mode & 0o777 == 0o644
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "nowhere"], "an address is HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "an address is HOST:PORT"),
        (["--textfile", "gpus.txt"], "end with .prom"),
        (["--labels", "password"], "labels may hold user, script, sentence"),
    ],
)
def test_wrong_input_is_one_sentence(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exporter", "--simulate", "starved", *options]) == 2
    assert words in capsys.readouterr().err


def test_without_its_libraries_it_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpuwatch.cli.exporter.find_spec", lambda name: None)
    assert main(["exporter", "--simulate", "starved"]) == 2
    assert "pip install 'gpuwatch[exporter]'" in capsys.readouterr().err


def test_a_port_in_use_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["exporter", "--simulate", "starved", "--listen", address]) == 2
    assert f"cannot listen on {address} (Address already in use)" in capsys.readouterr().err
