"""The hang family: training that stopped, told apart from long steps, phases and stopped processes."""

from dataclasses import replace

import pytest

from gpuwatch.diagnosis.finding import Severity
from gpuwatch.samples import PhaseSpan, WorkerSample
from tests.unit import scene_builder as build
from tests.unit.stack_windows import current_line, watched

NOW = 200.0


def stuck(*, step=0.2, **fields):
    process = build.process(tree_cores=0.02)
    return build.rank(step=step, gap=0.0, window=30, **{"process": process, **fields})


def spinning(index=0, **latest):
    reading = {"utilization_percent": 100.0, "power_watts": 120.0} | latest
    return build.gpu(index, utilization=100, power=120, latest=reading)


def idle(index=0):
    return build.gpu(index, utilization=0, power=80, latest={"utilization_percent": 0.0, "power_watts": 80.0})


def test_spinning_gpus_without_steps_are_a_hang_and_the_idle_one_names_the_rank():
    members = [stuck(gpus=(i,), pid=10 + i, facts={"rank": i}) for i in range(3)]
    moment = build.scene(build.run(*members), gpus=[spinning(0), idle(1), spinning(2)], at=NOW)
    draft = build.check("collective-hang", build.run_case(moment))
    assert "no step for 2.8 min" in draft.summary
    assert "rank 1" in draft.fix.text


@pytest.mark.parametrize(("lately", "is_hung"), [(0.02, True), (0.98, False)])
def test_ranks_that_wait_for_one_whose_worker_computes_are_no_hang(lately, is_hung):
    waiting = stuck(gpus=(1,), pid=11, process=build.process(tree_cores=1.0, tree_cores_lately=lately))
    run = build.run(stuck(gpus=(0,), pid=10), waiting)
    draft = build.check("collective-hang", build.run_case(build.scene(run, gpus=[spinning(0), idle(1)], at=NOW)))
    assert (draft is not None) is is_hung


@pytest.mark.parametrize(
    ("since", "power", "is_hung"), [(60.0, 120.0, True), (199.0, 120.0, False), (60.0, 280.0, False)]
)
def test_ranks_that_wait_for_one_which_computes_alone_are_no_hang(since, power, is_hung):
    lines = (
        current_line(70, since=since, until=NOW, phase="eval"),
        current_line(90, since=60.0, until=NOW, phase="backward"),
    )
    members = [
        stuck(gpus=(index,), pid=10 + index, facts={"rank": index}, stacks=watched({"other": 1.0}, current_line=line))
        for index, line in enumerate(lines)
    ]
    gpus = [spinning(0, power_watts=power), spinning(1)]
    draft = build.check("collective-hang", build.run_case(build.scene(build.run(*members), gpus=gpus, at=NOW)))
    assert (draft is not None) is is_hung


@pytest.mark.parametrize(
    ("rank_fields", "gpu"),
    [
        pytest.param({}, spinning(power_watts=650.0), id="full power is work"),
        pytest.param({"step_p99_session_seconds": 30.0}, spinning(), id="its steps take half a minute"),
        pytest.param({"open_phase": PhaseSpan("1.1", "eval", 1, None)}, spinning(), id="an evaluation is going on"),
        pytest.param({"outside": True}, spinning(), id="no training loop runs: it generates"),
        pytest.param({"steps_total": 2}, spinning(), id="it has hardly begun"),
        pytest.param({"process": build.process(latest={"state": "T"})}, spinning(), id="stopped by a signal"),
        pytest.param({"ended": "killed"}, spinning(), id="it has ended"),
        pytest.param({}, idle(), id="an idle GPU is a stall, not a hang"),
        pytest.param({}, build.gpu(latest={"utilization_percent": None}), id="utilization not reported"),
    ],
)
def test_no_hang(rank_fields, gpu):
    moment = build.scene(build.run(stuck(**rank_fields)), gpus=[gpu], at=NOW)
    assert build.check("collective-hang", build.run_case(moment)) is None


@pytest.mark.parametrize(
    ("world_size", "stacks", "now", "severity"),
    [
        (1, None, NOW, Severity.INFO),
        (1, None, 1000.0, Severity.WARNING),
        (2, None, NOW, Severity.CRITICAL),
        (1, watched({"backward": 1.0}, current_line=current_line(90, since=60.0, until=NOW)), NOW, Severity.CRITICAL),
    ],
    ids=["may evaluate from memory", "for a quarter of an hour", "others on another machine", "its thread stands"],
)
def test_one_gpu_at_low_power_is_a_hang_where_its_thread_is_seen_to_stand(world_size, stacks, now, severity):
    run = build.run(stuck(facts={"world_size": world_size}, stacks=stacks))
    draft = build.check("collective-hang", build.run_case(build.scene(run, gpus=[spinning()], at=now)))
    assert draft.severity is severity


def test_power_far_below_this_runs_own_counts_as_low():
    run = build.run(stuck(), usual_power_watts={"GPU-0": 600.0})
    moment = build.scene(run, gpus=[spinning(power_watts=340.0)], at=NOW)
    assert build.check("collective-hang", build.run_case(moment)) is not None


def test_an_idle_gpu_without_steps_is_a_stall():
    moment = build.scene(build.run(stuck()), gpus=[idle()], at=NOW)
    draft = build.check("step-stalled", build.run_case(moment))
    assert "no step for" in draft.summary
    assert draft.fix.line == 88


def test_a_stall_with_missing_workers_says_how_many():
    workers = (WorkerSample(1, state="S"), WorkerSample(2, state="Z"))
    process = build.process(tree_cores=0.02, latest={"workers": workers})
    moment = build.scene(build.run(stuck(process=process)), gpus=[idle()], at=NOW)
    assert "1 of its 4 DataLoader workers" in build.check("step-stalled", build.run_case(moment)).summary


def test_a_cpu_run_is_stalled_only_when_its_cores_are_idle_too():
    def moment(cores):
        process = build.process(tree_cores=cores)
        return build.scene(build.run(stuck(device="cpu", process=process)), gpus=[], at=NOW)

    assert build.check("step-stalled", build.run_case(moment(0.01))) is not None
    assert build.check("step-stalled", build.run_case(moment(1.5))) is None


@pytest.mark.parametrize(
    ("fields", "stalled"),
    [
        pytest.param({"tree_cores": 0.02}, True, id="does nothing"),
        pytest.param({"tree_cores": 1.0}, False, id="packs a checkpoint"),
        pytest.param(
            {"tree_cores": 0.02, "latest": {"write_bytes_per_second": 4e6}}, False, id="writes to slow storage"
        ),
        pytest.param(
            {"tree_cores": 0.02, "latest": {"read_bytes_per_second": 4e6}}, False, id="reads from slow storage"
        ),
        pytest.param(
            {"tree_cores": 0.02, "latest": {"read_bytes_per_second": 9e3}}, True, id="a log line now and then"
        ),
        pytest.param({"tree_cores": None}, True, id="its CPU time may not be read"),
    ],
)
def test_beside_an_idle_gpu_a_process_that_moves_is_not_stalled(fields, stalled):
    moment = build.scene(build.run(stuck(process=build.process(**fields))), gpus=[idle()], at=NOW)
    assert (build.check("step-stalled", build.run_case(moment)) is not None) == stalled


def test_what_it_used_before_the_silence_does_not_hide_a_stall():
    """The window of a run of 20 s steps is 10 min long."""
    process = build.process(tree_cores=1.5, tree_cores_lately=0.01)
    moment = build.scene(build.run(stuck(process=process)), gpus=[idle()], at=NOW)
    assert build.check("step-stalled", build.run_case(moment)) is not None


@pytest.mark.parametrize(("outside", "stalled"), [((True, True), False), ((True, False), True), ((False, False), True)])
def test_a_run_whose_ranks_have_all_left_the_loop_is_not_stalled(outside, stalled):
    members = [stuck(gpus=(i,), pid=10 + i, facts={"rank": i}, outside=out) for i, out in enumerate(outside)]
    moment = build.scene(build.run(*members), gpus=[idle(0), idle(1)], at=NOW)
    assert (build.check("step-stalled", build.run_case(moment)) is not None) is stalled


@pytest.mark.parametrize(
    ("text", "leaf", "is_stalled"),
    [
        ("batch = queue.get()", "queue.py:get", True),
        ("time.sleep(POLL_SECONDS)", None, False),
        ("breakpoint()", "bdb.py:trace_dispatch", False),
        ("answer = input(question)", None, False),
        ("loss.backward()", "pdb.py:interaction", False),
    ],
)
def test_a_thread_that_stands_still_by_its_own_line_is_no_stall(text, leaf, is_stalled):
    line = replace(current_line(70, since=50.0, until=NOW), text=text, leaf=leaf)
    member = stuck(stacks=watched({"other": 1.0}, current_line=line))
    draft = build.check("step-stalled", build.run_case(build.scene(build.run(member), gpus=[idle()], at=NOW)))
    assert (draft is not None) is is_stalled


class TestPhasesInWhichNothingMoves:
    def draft(self, kind="eval", at=400, *, since=50.0, stands_in="eval", **process):
        open_phase = PhaseSpan("1.1", kind, build.START_NS + 40 * build.SECOND, None)
        seen = watched({stands_in: 1.0}, current_line=current_line(70, since=since, until=at, phase=stands_in))
        fields = {"process": build.process(**process)} if process else {}
        member = stuck(open_phase=open_phase, stacks=seen, **fields)
        return build.check("step-stalled", build.run_case(build.scene(build.run(member), gpus=[idle()], at=at)))

    @pytest.mark.parametrize(
        ("kind", "stands_in", "doing"),
        [("eval", "eval", "evaluating"), ("checkpoint", "save", "checkpointing"), ("compile", "compile", "compiling")],
    )
    def test_after_five_minutes_it_is_a_stall(self, kind, stands_in, doing):
        found = self.draft(kind, stands_in=stands_in)
        assert found.severity is Severity.WARNING
        assert f"has been {doing} for 6.0 min and does nothing: it is at train.py:70" in found.summary
        assert "an evaluation or checkpoint" not in {rival.cause for rival in found.ruled_out}

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"at": 330}, id="less than five minutes"),
            pytest.param({"since": 380.0}, id="the thread moves on"),
            pytest.param({"stands_in": "other"}, id="an iterator that was left in the middle"),
            pytest.param({"tree_cores": 0.8}, id="it computes"),
            pytest.param({"tree_cores": 0.02, "latest": {"write_bytes_per_second": 4e6}}, id="it writes"),
        ],
    )
    def test_what_is_no_stall(self, fields):
        assert self.draft(**fields) is None


def test_a_run_that_steps_is_not_stalled():
    moment = build.scene(build.run(stuck()), gpus=[idle()], at=31)
    assert build.check("step-stalled", build.run_case(moment)) is None
