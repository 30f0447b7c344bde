from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import jsonschema
import pytest

from gpuwatch.report.build import build_report
from gpuwatch.report.model import Json, Report, as_json
from gpuwatch.report.text import render_markdown, render_text
from gpuwatch.samples import Candidate
from gpuwatch.timeline.windows import RankWindow
from tests.unit import scene_builder as build
from tests.unit import snapshot_builder as now
from tests.unit import stack_builder as seen
from tests.unit.report_builder import json_report, observation, report
from tests.unit.test_report_document import check_schema
from tests.unit.test_report_renderers import HOSTILE

RENDERERS = pytest.mark.parametrize("render", [render_markdown, render_text])


def run_of(rank: RankWindow) -> Json:
    (section,) = json_report(build.scene(build.run(rank)))["runs"]
    return section


def test_without_workers_the_hot_line_is_the_training_threads_own_while_it_waits() -> None:
    hot = run_of(seen.sampled_rank())["hot_line"]
    assert (hot["file"], hot["line"], hot["where"]) == (seen.AUGMENT, 41, "main thread while waiting")
    assert hot["text"] == "image = image.filter(GaussianBlur(5))"
    assert hot["share"] == pytest.approx(700 / 1640, rel=1e-5)
    assert hot["low"] < hot["share"] < hot["high"]


def test_with_workers_the_hot_line_is_theirs_that_makes_items_not_the_for_statement() -> None:
    hot = run_of(seen.sampled_rank(seen.worker_stacks(), num_workers=2))["hot_line"]
    assert (hot["file"], hot["line"], hot["where"]) == (seen.AUGMENT, 41, "workers")


def test_a_function_that_is_hot_on_many_lines_is_named_with_where_it_is_called() -> None:
    lines = tuple(seen.line("item", 60 + place, 50, of=720, function="elastic") for place in range(8))
    call = seen.line("item", 41, 400, of=720, text="x = elastic(x)", callee="elastic", callee_file=seen.AUGMENT)
    rank = seen.sampled_rank(seen.worker_stacks(worker_lines=lines, worker_calls=(call,)), num_workers=2)
    made = report(build.scene(build.run(rank)))
    check_schema(as_json(made))
    hot = as_json(made)["runs"][0]["hot_line"]
    assert (hot["callee"], hot["callee_lines"], hot["line"], hot["samples"]) == ("elastic", [60, 61, 62, 63], 41, 400)
    assert "slowest loading function: elastic(), called in augment.py:41, 56% ±3.6" in " ".join(
        render_text(made).split()
    )


def test_of_a_loop_without_a_loader_no_batches_are_asked_for() -> None:
    known = seen.sampled_rank(seen.stacks(batches_per_second=None))
    rank = replace(known, steps=0, steps_total=0, train_loader=None)
    (line,) = json_report(build.scene(build.run(rank)))["verdict"]
    assert line["sentence"].endswith(
        "too little was seen to judge (1,640 stack samples in 20 s; 600 samples and 30 s needed, and then 10 s more)"
    )


@RENDERERS
def test_a_wait_that_is_not_known_has_no_error_and_its_reason(render: Callable[[Report], str]) -> None:
    unseen = replace(seen.sampled_rank(), steps=0, steps_total=0, train_loader=None, wait_share=None)
    text = " ".join(render(report(build.scene(build.run(unseen)))).split())
    assert "n/a ±" not in text
    assert "wait for data n/a: neither a working loader nor a loop counter was found" in text


def test_no_hot_line_is_made_up_where_the_workers_were_not_read() -> None:
    unread = seen.worker_stacks(worker_samples=0, worker_lines=(), worker_phases={})
    assert run_of(seen.sampled_rank(unread, num_workers=2))["hot_line"] is None
    assert run_of(seen.sampled_rank(replace(unread, workers=2), num_workers=None))["hot_line"] is None
    assert run_of(build.rank())["hot_line"] is None


def test_a_sampled_run_gives_its_shares_with_intervals_and_counts() -> None:
    section = run_of(seen.sampled_rank())
    stacks = section["stacks"]
    assert section["visibility"] == "sampled"
    assert stacks["samples"] == sum(seen.PHASES.values())
    assert stacks["phases"]["wait"]["share"] == pytest.approx(1000 / 1640, rel=1e-5)
    assert stacks["phases"]["wait"]["low"] < stacks["phases"]["wait"]["share"] < stacks["phases"]["wait"]["high"]
    assert [line["line"] for line in stacks["lines"]] == [41, 131, 44, 133]
    assert stacks["lines"][0]["leaf"] == "PIL/ImageFilter.py:filter"


@pytest.mark.parametrize(
    ("rank", "pace", "source"),
    [
        (seen.sampled_rank(), 12.34, "loader counter"),
        (seen.sampled_rank(seen.stacks(batches_exact=False)), 12.34, "estimated from stacks"),
        (seen.sampled_rank(seen.stacks(batches_of_loader=False)), 12.34, "loop counter"),
        (seen.sampled_rank(seen.stacks(batches_per_second=None)), None, None),
        (build.rank(step=0.2, stacks=seen.stacks()), 5.0, "hook"),
        (build.rank(facts={"visibility": "process"}, steps=1), None, None),
    ],
    ids=["counter", "estimate", "no loader", "uncounted", "hook", "process"],
)
def test_the_pace_says_where_it_comes_from(rank: RankWindow, pace: float | None, source: str | None) -> None:
    section = run_of(rank)
    assert section["steps_per_second"] == (None if pace is None else pytest.approx(pace))
    assert section["steps_source"] == source


def test_a_run_that_stands_says_where_and_for_how_long() -> None:
    current_line = run_of(seen.sampled_rank(seen.stacks(current_line=seen.current_line(180, at=117))))["current_line"]
    assert (current_line["file"], current_line["line"], current_line["text"]) == (build.SCRIPT, 140, "dist.barrier()")
    assert (current_line["seconds"], current_line["seen_seconds_ago"]) == (180, 3)
    assert run_of(seen.sampled_rank(seen.stacks(current_line=seen.current_line(2))))["current_line"] is None
    assert (
        run_of(seen.sampled_rank(seen.stacks(current_line=seen.current_line(180)), ended="killed"))["current_line"]
        is None
    )


def test_how_to_see_more_is_said_below_exact_only_the_process_own_way_first() -> None:
    assert run_of(build.rank(facts={"how_to_see_more": "no need"}))["how_to_see_more"] is None
    proc = build.run(build.rank(facts={"visibility": "process", "how_to_see_more": "sudo gpuwatch reads it"}))
    assert json_report(build.scene(proc))["runs"][0]["how_to_see_more"] == "sudo gpuwatch reads it"
    hardware = build.run(build.rank(facts={"visibility": "hardware"}))
    about = observation(build.scene(hardware))
    known = replace(about, snapshot=replace(about.snapshot, runs=(now.run(how_to_see_more="start it with the hook"),)))
    assert as_json(build_report(known))["runs"][0]["how_to_see_more"] == "start it with the hook"


@pytest.mark.parametrize(
    "rank",
    [
        seen.sampled_rank(),
        seen.sampled_rank(seen.worker_stacks(current_line=seen.current_line(60)), num_workers=2),
        seen.sampled_rank(seen.stacks({}, samples=0, lines=(), batches_per_second=None), num_workers=None),
        build.rank(stacks=seen.stacks()),
        build.rank(facts={"visibility": "process", "how_to_see_more": "sudo"}, wait_share=None, step_seconds=None),
    ],
    ids=["sampled", "workers", "nothing seen", "hooked", "process"],
)
@RENDERERS
def test_every_visibility_fits_the_schema_and_can_be_shown(rank: RankWindow, render: Callable[[Report], str]) -> None:
    document = report(build.scene(build.run(rank)))
    check_schema(as_json(document))
    assert "None" not in render(document).replace("\nNone.\n", "")


def test_the_schema_refuses_what_it_does_not_name() -> None:
    document = json_report(build.scene(build.run(seen.sampled_rank())))
    for place in (document["runs"][0]["hot_line"], document["runs"][0]["stacks"]["lines"][0]):
        place["surprise"] = 1
        with pytest.raises(jsonschema.ValidationError):
            check_schema(document)
        del place["surprise"]


@pytest.mark.parametrize(("count", "words"), [(1, "1 process trains here"), (2, "2 processes train here")])
def test_without_a_run_those_that_can_be_attached_to_are_named(count: int, words: str) -> None:
    found = tuple(
        Candidate(5000 + number, 1, ("python", "train.py"), "ana", 60.0, "sampled", "libtorch is in its memory")
        for number in range(count)
    )
    (line,) = json_report(build.scene(gpus=[build.gpu()], candidates=found))["verdict"]
    assert line["sentence"].endswith(f"{words} without a hook: gpuwatch report --attach 5000")


@RENDERERS
def test_where_the_time_goes_and_which_lines_cost_it(render: Callable[[Report], str]) -> None:
    text = render(report(build.scene(build.run(seen.sampled_rank()))))
    for part in (
        "sampled, 1,640 samples over 20 s",
        "61% ±2.4",
        "12.3 batches/s (from the loader's own counter, 20 s)",
        "slowest loading line: augment.py:41, 43% ±2.4 of the training thread's time",
        "image = image.filter(GaussianBlur(5))",
        "train.py:131",
        "loss.backward()",
        "waits for data",
    ):
        assert part in text


@RENDERERS
def test_the_workers_have_a_table_of_their_own(render: Callable[[Report], str]) -> None:
    text = render(report(build.scene(build.run(seen.sampled_rank(seen.worker_stacks(), num_workers=2)))))
    assert "2 workers, 800 samples, shares of their busy time" in text
    assert "makes items 80% ±2.8" in text
    assert text.index("augment.py:60") < text.rindex("augment.py:41")


@RENDERERS
def test_the_workers_table_says_that_it_holds_those_of_evaluation(render: Callable[[Report], str]) -> None:
    rank = seen.sampled_rank(seen.worker_stacks(), num_workers=2)
    (train,) = rank.facts.loaders
    both = replace(rank, facts=replace(rank.facts, loaders=(train, replace(train, loader=2, role="eval"))))
    text = render(report(build.scene(build.run(both))))
    assert "2 workers (those of evaluation included), 800 samples" in text


@RENDERERS
def test_a_hooked_run_keeps_its_exact_figures_and_shows_its_lines(render: Callable[[Report], str]) -> None:
    text = render(report(build.scene(build.run(build.rank(step=0.2, wait=0.1, stacks=seen.stacks())))))
    assert "50%" in text
    assert "±" not in text.split("GPU idle")[0].split("train.py (4711, exact)")[-1]
    assert "batches/s" not in text
    assert "augment.py:41" in text


@pytest.mark.parametrize(("samples", "judged"), [(599, False), (900, False), (1300, True)])
def test_a_sampled_run_is_not_cleared_on_too_few_samples(samples: int, judged: bool) -> None:
    rank = seen.sampled_rank(replace(seen.stacks(), samples=samples))
    (line,) = json_report(build.scene(build.run(rank)))["verdict"]
    assert line["judged"] is judged
    assert f"{samples:,}" in line["sentence"]


@RENDERERS
def test_code_of_a_hostile_or_endless_line_stays_in_its_place(render: Callable[[Report], str]) -> None:
    nasty = seen.line(
        "wait", 1, 900, file=f"/home/user/{HOSTILE}", text=f"x = '{HOSTILE}'", function=HOSTILE, leaf=HOSTILE
    )
    endless = seen.line("wait", 2, 100, text="y" * 100_000)
    current_line = seen.current_line(60, file=HOSTILE, text=HOSTILE, leaf=HOSTILE)
    document = report(
        build.scene(build.run(seen.sampled_rank(seen.stacks(lines=(nasty, endless), current_line=current_line))))
    )
    check_schema(as_json(document))
    json.dumps(as_json(document), ensure_ascii=False).encode()
    text = render(document)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert max(map(len, text.splitlines())) < 1000
    if render is render_markdown:
        rows = [row for row in text.splitlines() if row.startswith("| 55%")]
        assert len(rows) == 1
        assert "<img" not in rows[0].replace(r"\<", "")
        assert len(re.findall(r"(?<!\\)\|", rows[0])) == 6


def test_text_stays_narrow_enough_to_read() -> None:
    wide = seen.line("wait", 41, 900, text="value = " + "f(" * 80, file="/home/user/data/augment.py")
    text = render_text(report(build.scene(build.run(seen.sampled_rank(seen.stacks(lines=(wide,)))))))
    assert max(map(len, text.splitlines())) <= 120
