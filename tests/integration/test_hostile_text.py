"""Every output, fed the same hostile text: real commands on real processes and recordings, renderers, and screens."""

from __future__ import annotations

import contextlib
import csv
import ctypes
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gpuwatch.__main__ import main
from gpuwatch.cli import checks as doctor_checks
from gpuwatch.cli.attach import table_lines
from gpuwatch.cli.checks import Check, State
from gpuwatch.cli.output import OutputFile, say, write_stdout, write_styled
from gpuwatch.cli.stacks import collapsed, speedscope, tree
from gpuwatch.cli.watch import watch_line
from gpuwatch.recording.schema import FindingRecord, RecordingMeta
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.report.build import build_report
from gpuwatch.report.html import render_html
from gpuwatch.report.junit import render_junit
from gpuwatch.report.model import as_json
from gpuwatch.report.text import render_markdown, render_text
from gpuwatch.samples import GpuFacts, GpuLost, GpuSample, MachineFacts, PhaseSpan, RunFacts, StepEnd, XidEvent
from gpuwatch.sources.stacks.capture import Lane, Profile
from gpuwatch.text import json_text
from tests.dashboard import situations
from tests.dashboard.piloting import driven
from tests.hostile_text import HOSTILE, MARK, assert_inert, assert_json, assert_markdown, poisoned
from tests.unit import report_builder
from tests.unit import scene_builder as build

_S = 1_000_000_000


class Tags(HTMLParser):
    """The tags of a page, and the text of its data islands."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.islands: list[str] = []
        self._in_island = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_island = tag == "script" and dict(attrs).get("type") == "application/json"

    def handle_data(self, data: str) -> None:
        if self._in_island:
            self.islands.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_island = False


def assert_page(page: str) -> None:
    assert_inert(page)
    found = Tags(page)
    assert "img" not in {tag for tag, _ in found.tags}
    assert not [attrs for _, attrs in found.tags if "onerror" in attrs]
    assert len([tag for tag, _ in found.tags if tag == "script"]) == page.count("</script>")
    assert found.islands and all(isinstance(json.loads(text), (dict, list)) for text in found.islands)


def assert_xml(text: str) -> None:
    assert_inert(text)
    ElementTree.fromstring(text)


RENDERERS: dict[str, tuple[Callable[[Any], str], Callable[[str], None]]] = {
    "text": (render_text, assert_inert),
    "md": (render_markdown, assert_markdown),
    "html": (render_html, assert_page),
    "junit": (lambda report: render_junit(report, "warning"), assert_xml),
    "json": (lambda report: json_text(as_json(report)), assert_json),
}


@pytest.mark.parametrize("form", RENDERERS)
def test_a_report_of_hostile_names_is_inert(form: str) -> None:
    seen = report_builder.observation(
        build.scene(build.run(build.rank()), gpus=[build.gpu()], machine=build.machine()),
        [report_builder.starvation()],
        read_source=None,
    )
    document = build_report(poisoned(seen))
    assert MARK in json.dumps(as_json(document))
    rendered, check = RENDERERS[form]
    check(rendered(document(form) if callable(document) else document))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording in which each free text is hostile."""
    path = tmp_path_factory.mktemp("hostile") / "run.gpuwatch"
    trainer = f"4711.1{HOSTILE}"
    writer = RecordingWriter(path, RecordingMeta(hostname=HOSTILE, version="0", label="LIVE", command=(HOSTILE,)))
    facts = RunFacts(1 * _S, trainer, 4711, 1, ("python", HOSTILE), cwd=HOSTILE, python=HOSTILE, torch=HOSTILE)
    writer.add(
        [
            GpuFacts(1 * _S, f"GPU-1{HOSTILE}", 0, HOSTILE),
            MachineFacts(1 * _S, HOSTILE, HOSTILE, 4, HOSTILE, 1 << 30),
            RunFacts(
                **{**{f: getattr(facts, f) for f in facts.__slots__}, "notes": (HOSTILE,), "how_to_see_more": HOSTILE}
            ),
        ],
        1 * _S,
        1.8e9,
    )
    for second in range(2, 50):
        now = second * _S
        steps = [StepEnd(trainer, second * 4 + n, now + n * _S // 4, now + (n + 1) * _S // 4, 0.1) for n in range(4)]
        phase = PhaseSpan(trainer, "eval", now, now + _S // 9, file=HOSTILE, line=3, detail=HOSTILE)
        writer.add([GpuSample(now, f"GPU-1{HOSTILE}", utilization_percent=50.0), *steps, phase], now, 1.8e9 + second)
    last = [XidEvent(50 * _S, None, 79, HOSTILE), GpuLost(50 * _S, f"GPU-1{HOSTILE}", HOSTILE)]
    writer.add(last, 50 * _S, 1.8e9 + 50)
    writer.add_findings(
        50 * _S,
        [FindingRecord("k", "\x1b]0;title\x07\x9b31m\u202e|`<img>", "critical", "firing", trainer, None, b"{}")],
    )
    writer.close()
    return path


def shown(capfdbinary: pytest.CaptureFixture[bytes], *arguments: object) -> str:
    """What a command writes on stdout; both streams hold nothing that steers a terminal."""
    assert main([str(argument) for argument in arguments]) in (0, 1)
    streams = capfdbinary.readouterr()
    assert_inert(streams.err.decode())
    return streams.out.decode()


@pytest.mark.parametrize("form", [*RENDERERS, "patch"])
def test_the_report_of_a_hostile_recording_is_inert(
    recording: Path, form: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    option = ("--patch",) if form == "patch" else ("--format", form)
    text = shown(capfdbinary, "report", recording, *option)
    RENDERERS[form][1](text) if form in RENDERERS else assert_inert(text)


@pytest.mark.parametrize("form", ["text", "md", "json"])
def test_a_comparison_of_hostile_recordings_is_inert(
    recording: Path, form: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    RENDERERS[form][1](shown(capfdbinary, "compare", recording, recording, "--format", form))


@pytest.mark.parametrize("form", ["csv", "jsonl", "chrome-trace"])
def test_an_export_of_a_hostile_recording_is_inert(
    recording: Path, tmp_path: Path, form: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    if form == "csv":
        shown(capfdbinary, "export", recording, "--csv", "-o", f"{tmp_path}/tables/")
        for table in (tmp_path / "tables").iterdir():
            assert_inert(table.read_text("utf-8"))
            for row in csv.reader(io.StringIO(table.read_text("utf-8"))):
                assert not [cell for cell in row if re.match(r"[=+@]|-[^\d.]", cell)]
        return
    text = shown(capfdbinary, "export", recording, f"--{form}")
    for line in text.splitlines() if form == "jsonl" else [text]:
        assert_json(line)


def profile() -> Profile:
    place = (HOSTILE, f"/x/{HOSTILE}.py", 3)
    lane = Lane(HOSTILE, 7)
    lane.stacks.append((place, place))
    lane.samples.extend([0, 0])
    return Profile(pid=7, seconds=1.0, interval_seconds=0.01, lanes=(lane,), rejected=1, ended=False, unreadable=())


def test_stacks_of_hostile_names_are_inert() -> None:
    assert_inert("\n".join(tree(profile())))
    (line,) = collapsed(profile())
    assert_inert(line)
    assert line.count(";") == 2 and line.endswith(" 2")
    assert_json(json_text(speedscope(profile())))


def test_the_candidates_of_attach_are_inert(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    candidates = tuple(poisoned(each) for each in (situations.candidate(), situations.refused()))
    for width in (None, 80):
        text = "\n".join(line for _, line in table_lines(candidates, {}, width))
        assert_inert(text)
        assert "title" in text


def test_the_doctor_is_inert(capfd: pytest.CaptureFixture[str]) -> None:
    checks = [Check(HOSTILE, State.WARNING, HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, ((HOSTILE,), (HOSTILE,)), HOSTILE)]
    write_styled(doctor_checks.styled(checks))
    assert_inert(capfd.readouterr().out)
    assert_json(json_text(doctor_checks.as_json(checks), indent=2))


def test_what_a_command_says_is_inert(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(f"gpuwatch: {HOSTILE.replace(chr(10), '')}")
    write_stdout(HOSTILE.replace("\n", ""))
    OutputFile(str(tmp_path / "out")).write(HOSTILE.replace("\n", ""))
    streams = capfd.readouterr()
    for text in (streams.out, streams.err, (tmp_path / "out").read_text("utf-8")):
        assert_inert(text)
        assert "title" in text


@pytest.mark.parametrize("arguments", [("explain",), ("report", "--attach"), ("doctor", "--only"), ("nonsense",)])
def test_a_hostile_argument_is_said_back_inert(
    arguments: tuple[str, ...], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gpuwatch", *arguments, HOSTILE.replace("\n", "").replace("\0", "")])
        with contextlib.suppress(SystemExit):
            main(sys.argv[1:])
    streams = capfdbinary.readouterr()
    assert_inert(streams.out.decode())
    assert_inert(streams.err.decode())


def test_the_line_of_a_watch_is_inert() -> None:
    from gpuwatch.text import printable

    for situation in (situations.starved(), situations.not_hooked(), situations.many_candidates()):
        assert_inert(printable(watch_line(poisoned(situation))))


SCREENS: dict[str, tuple[str, ...]] = {
    "main": (),
    "finding": ("enter",),
    "gpu": ("tab", "enter"),
    "timeline": ("t", "d"),
    "processes": ("p",),
    "attach": ("a",),
    "help": ("question_mark",),
}


@pytest.mark.parametrize("name", ["starved", "attached", "many_candidates", "not_hooked"])
@pytest.mark.parametrize("screen", SCREENS)
async def test_screens_of_hostile_names_are_inert(name: str, screen: str) -> None:
    async with driven(poisoned(getattr(situations, name)()), size=(120, 40)) as driver:
        await driver.press(*SCREENS[screen])
        await driver.settle()
        assert_inert(driver.text)


@pytest.fixture
def hostile_process(tmp_path: Path) -> Iterator[int]:
    """A Python process whose name, command line and functions are hostile, and which one may attach to."""
    name = HOSTILE.replace("\0", "").replace("\ud800", "")
    names = {"co_name": name, "co_filename": name} | ({"co_qualname": name} if sys.version_info >= (3, 11) else {})
    source = f"""\
import sys
def f():
    print("ready", flush=True)
    sys.stdin.read()
f.__code__ = f.__code__.replace(**{names!r})
f()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", source, os.fsencode(name)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(15, b"a\r\x9b31m\nFORGED", 0, 0, 0),
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process.pid
    process.stdin.close()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("form", ["text", "collapsed", "speedscope"])
def test_stacks_of_a_hostile_process_are_inert(
    hostile_process: int, form: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = shown(capfdbinary, "stacks", hostile_process, "--seconds", "0.5", "--format", form)
    assert_json(text) if form == "speedscope" else assert_inert(text)
    assert "title" in text
