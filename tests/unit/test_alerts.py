"""Alerts for somebody who does not look at the screen, and how they reach them."""

from __future__ import annotations

import queue
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwatch.cli.alerts import OnFinding
from gpuwatch.dashboard.terminal import notification
from gpuwatch.diagnosis.finding import Severity
from gpuwatch.monitor.alerts import Alerts
from gpuwatch.monitor.snapshot import Snapshot
from tests.dashboard import situations


def with_severity(severity: Severity, **changes: object) -> Snapshot:
    """One finding about one run."""
    usual = situations.starved()
    return replace(usual, findings=(replace(usual.findings[0], severity=severity, **changes),))  # type: ignore[arg-type]


def ended(snapshot: Snapshot, how: str) -> Snapshot:
    return replace(snapshot, findings=(), runs=(replace(snapshot.runs[0], state="ended", ended=how),))


class TestWhatIsAnAlert:
    def test_a_critical_finding_is_one_alert_while_it_lasts_and_another_when_it_comes_back(self) -> None:
        alerts, critical = Alerts(), with_severity(Severity.CRITICAL)
        (alert,) = alerts.take(critical)
        assert alert.sentence == critical.findings[0].summary
        assert alert.subject == f"{critical.runs[0].title} ({critical.runs[0].pid})"
        assert alert.origin == critical.origin.label
        assert alerts.take(critical) == []
        assert alerts.take(replace(critical, findings=())) == []
        assert len(alerts.take(critical)) == 1

    def test_a_warning_is_an_alert_when_it_becomes_critical(self) -> None:
        alerts = Alerts()
        assert alerts.take(with_severity(Severity.WARNING)) == []
        assert len(alerts.take(with_severity(Severity.CRITICAL))) == 1

    @pytest.mark.parametrize("rule", ["step-stalled", "collective-hang"])
    def test_a_hang_is_an_alert_whatever_its_severity(self, rule: str) -> None:
        (alert,) = Alerts().take(with_severity(Severity.INFO, rule=rule))
        assert alert.rule == rule

    def test_what_follows_from_another_finding_is_none(self) -> None:
        assert Alerts().take(with_severity(Severity.CRITICAL, behind="step-stalled")) == []

    @pytest.mark.parametrize(
        ("how", "severity", "words"),
        [
            ("exited", "info", "the run ended after"),
            ("killed", "warning", "was killed"),
            ("lost", "warning", "is gone"),
        ],
    )
    def test_the_end_of_a_run_that_was_seen_alive_is_one_alert(self, how: str, severity: str, words: str) -> None:
        alerts, living = Alerts(), replace(situations.starved(), findings=())
        over = ended(living, how)
        assert alerts.take(over) == []
        alerts.take(living)
        (alert,) = alerts.take(over)
        assert (alert.rule, alert.severity) == ("run-ended", severity) and words in alert.sentence
        assert alerts.take(over) == []


class TestATerminal:
    def test_gets_the_sequence_that_it_knows(self) -> None:
        assert notification("train.py (9)", "it waits", {"TERM": "xterm-kitty"}) == (
            "\a\x1b]9;gpuwatch: train.py (9): it waits\x1b\\"
        )
        asked = notification("train.py (9)", "it waits; much", {"TERM": "xterm-256color", "VTE_VERSION": "7600"})
        assert asked == "\a\x1b]777;notify;gpuwatch;train.py (9): it waits, much\x1b\\"

    def test_behind_tmux_is_reached_through_it(self) -> None:
        asked = notification("GPU 3", "it is hot", {"TERM": "tmux-256color", "TMUX": "/tmp/x,1,0"})
        assert asked == "\a\x1bPtmux;\x1b\x1b]9;gpuwatch: GPU 3: it is hot\x1b\x1b\\\x1b\\"

    @pytest.mark.parametrize("term", ["", "dumb", "linux"])
    def test_without_notifications_only_rings(self, term: str) -> None:
        assert notification("GPU 3", "it is hot", {"TERM": term}) == "\a"

    def test_is_never_steered_by_a_name(self) -> None:
        asked = notification("\x1b]0;own\a.py (9)", "it waits", {"TERM": "xterm"})
        assert asked.count("\x1b") == 2 and asked.count("\a") == 1


class TestACommand:
    """Run by a real shell."""

    def run(self, command: str, snapshot: Snapshot, seconds: float = 10.0) -> str | None:
        """What its end says."""
        said: queue.Queue[str | None] = queue.Queue()
        runner = OnFinding(command, said.put, seconds)
        runner.take(snapshot)
        found = said.get(timeout=30)
        runner.finish()
        return found

    def test_gets_the_finding_in_its_environment(self, tmp_path: Path) -> None:
        snapshot = with_severity(Severity.CRITICAL)
        words = '"$GPUWATCH_FINDING_RULE|$GPUWATCH_FINDING_SENTENCE|$GPUWATCH_FINDING_PID|$GPUWATCH_FINDING_SEVERITY"'
        assert self.run(f"printf %s {words} > '{tmp_path}/got'", snapshot) is None
        found = snapshot.findings[0]
        expected = f"{found.rule}|{found.summary}|{snapshot.runs[0].pid}|critical"
        assert (tmp_path / "got").read_text() == expected

    def test_that_fails_is_reported_with_what_it_said(self) -> None:
        sentence = self.run("echo no such chat >&2; exit 3", with_severity(Severity.CRITICAL))
        assert sentence == "The command of --on-finding failed with exit code 3: no such chat."

    def test_that_takes_too_long_is_killed_with_all_it_started(self) -> None:
        sentence = self.run("sleep 600 | sleep 600", with_severity(Severity.CRITICAL), seconds=0.2)
        assert sentence == "The command of --on-finding took longer than 0.2 s and was killed."
