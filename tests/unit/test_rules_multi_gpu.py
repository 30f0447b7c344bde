"""The multi-GPU family: unequal loads and the rank that everybody waits for."""

import dataclasses

import pytest

from gpuwatch.diagnosis.finding import Severity
from gpuwatch.timeline.windows import PhaseTotals, Share, WorkerShare
from tests.unit import scene_builder as build
from tests.unit.stack_windows import watched


def job(gpus):
    return build.scene(build.run(build.rank(gpus=range(len(gpus)))), gpus=gpus)


def test_imbalance_names_the_busiest_and_the_idlest():
    moment = job([build.gpu(i, utilization=value) for i, value in enumerate([97, 97, 60, 61])])
    draft = build.check("gpu-imbalance", build.run_case(moment))
    assert draft.fires
    assert "GPU 2 60%" in draft.summary


@pytest.mark.parametrize(
    "gpus",
    [
        pytest.param([build.gpu(0)], id="one GPU"),
        pytest.param([build.gpu(0), build.gpu(1, utilization=95)], id="equal loads"),
        pytest.param([build.gpu(0), build.gpu(1, utilization=50, facts={"name": "L4"})], id="different models"),
        pytest.param([build.gpu(0), build.gpu(1, utilization=50, facts={"mig": True})], id="MIG"),
        pytest.param([build.gpu(0), build.gpu(1, utilization=0, status="lost")], id="a lost GPU is no imbalance"),
    ],
)
def test_imbalance_is_silent(gpus):
    assert build.check("gpu-imbalance", build.run_case(job(gpus))) is None


def test_imbalance_by_memory_alone():
    gpus = [build.gpu(i, memory_used_bytes=build.stats([gib * 2**30])) for i, gib in enumerate([60, 30])]
    assert "memory differs" in build.check("gpu-imbalance", build.run_case(job(gpus))).summary


def ranks(waits, *, step=0.2, straggling=(), **slow):
    """Ranks whose backward waits are given in seconds per step; those in `straggling` get the `slow` shares."""
    return [
        build.rank(
            step=step,
            gap=0.0,
            gpus=(index,),
            pid=100 + index,
            backward_share=wait / step,
            facts={"rank": index, "world_size": len(waits)},
            **({"forward_share": 0.2, "copy_share": 0.0} | (slow if index in straggling else {})),
        )
        for index, wait in enumerate(waits)
    ]


@pytest.mark.parametrize(
    ("own", "fix"),
    [(4, "Its loader has as many workers as the others"), (1, "the 4 workers that others have; it has 1")],
)
def test_more_workers_are_asked_for_only_where_the_straggler_has_fewer(own, fix):
    fields = {"wait": 0.07, "train_loader": build.loader(num_workers=own)}
    members = ranks([0.10, 0.10, 0.03, 0.10], straggling=(2,), **fields)
    draft = build.check("straggler-rank", build.run_case(build.scene(build.run(*members))))
    assert fix in draft.fix.text
    assert draft.verify == "The other ranks wait less than 6% of each step for this one"


def test_the_straggler_is_the_rank_that_waits_least_and_its_excess_is_the_cause():
    members = ranks([0.10, 0.10, 0.03, 0.10], straggling=(2,), wait=0.07)
    draft = build.check("straggler-rank", build.run_case(build.scene(build.run(*members))))
    assert draft.fires and draft.severity is Severity.CRITICAL
    assert "rank 2" in draft.summary and "loader" in draft.summary
    assert draft.gain.high == pytest.approx(1 / (1 - 0.35), abs=0.01)


@pytest.mark.parametrize("kind", ["eval", "checkpoint"])
def test_a_rank_that_saves_or_evaluates_for_all_is_no_straggler(kind):
    members = ranks([0.10, 0.10, 0.03, 0.10], straggling=(2,))
    case = build.run_case(build.scene(build.run(*members)))
    assert build.check("straggler-rank", case) is not None
    waited = 0.07 * members[2].steps
    members[2] = dataclasses.replace(members[2], phases={kind: PhaseTotals(kind, 1, waited, 0.35, waited)})
    assert build.check("straggler-rank", build.run_case(build.scene(build.run(*members)))) is None


@pytest.mark.parametrize(("in_training", "fires"), [(60, True), (20, False)])
def test_power_of_a_window_that_was_mostly_a_pause_is_no_imbalance(in_training, fires):
    gpus = [build.gpu(index, power=power) for index, power in enumerate((500, 280, 280, 280))]
    trained = dataclasses.replace(gpus[0].utilization, count=round(gpus[0].utilization.count * in_training / 60))
    gpus = [dataclasses.replace(each, train_utilization=trained) for each in gpus]
    draft = build.check("gpu-imbalance", build.run_case(job(gpus)))
    assert (draft is not None and draft.fires) is fires


def test_power_before_the_first_step_is_no_imbalance():
    gpus = [build.gpu(index, power=power) for index, power in enumerate((500, 280, 280, 280))]
    started = job(gpus)
    waiting = dataclasses.replace(started.runs[0].critical, steps=0)
    assert build.check("gpu-imbalance", build.run_case(started)) is not None
    assert build.check("gpu-imbalance", build.run_case(build.scene(build.run(waiting), gpus=gpus))) is None


def test_on_full_cores_the_rank_that_gets_one_is_ahead_and_memory_alone_is_compared():
    full = build.host(cpu_percent=99.0)
    uneven = [build.gpu(0), build.gpu(1, utilization=20, power=200)]
    assert build.check("gpu-imbalance", build.run_case(dataclasses.replace(job(uneven), host=full))) is None
    fuller = [build.gpu(i, memory_used_bytes=build.stats([gib * 2**30])) for i, gib in enumerate([60, 30])]
    assert build.check("gpu-imbalance", build.run_case(dataclasses.replace(job(fuller), host=full))).fires


def test_a_slow_forward_pass_on_the_cpu_is_not_blamed_on_a_gpu():
    members = [
        dataclasses.replace(member, facts=dataclasses.replace(member.facts, device="cpu", gpu_uuids=()))
        for member in ranks([0.10, 0.07], straggling=(1,), forward_share=0.35)
    ]
    draft = build.check("straggler-rank", build.run_case(build.scene(build.run(*members), gpus=[])))
    assert "forward pass" in draft.summary
    assert "GPU" not in draft.fix.text and "its cores" in draft.fix.text


def test_two_ranks_are_compared_with_each_other():
    members = ranks([0.10, 0.07])
    draft = build.check("straggler-rank", build.run_case(build.scene(build.run(*members))))
    assert draft.fires and "rank 1" in draft.summary


def test_ranks_that_wait_where_they_ask_for_the_loss_wait_all_the_same():
    members = ranks([0.05] * 4, straggling=(2,), wait=0.08)
    members = [
        dataclasses.replace(member, optimizer_share=0.1, wait_share=member.wait_share or 0.05) for member in members
    ]
    draft = build.check("straggler-rank", build.run_case(build.scene(build.run(*members))))
    assert draft.fires and "rank 2" in draft.summary and "loader" in draft.summary
    score = next(measure.value for measure in draft.evidence if measure.name == "straggler_score")
    assert score == pytest.approx(0.35, abs=0.01)


def test_a_rank_whose_first_batch_came_later_is_no_straggler():
    """All make 24 steps: this one in 64 s, the others in 72 s, 8 s of which they waited for its first batch."""

    def seen(began_later):
        members = [
            dataclasses.replace(
                member,
                window_seconds=72.0 - later,
                train_seconds=72.0 - later,
                steps=24,
                facts=dataclasses.replace(member.facts, visibility="sampled"),
                stacks=watched({"sync": 0.9}),
                wait_share=0.0,
                optimizer_share=0.0,
                backward_share=share,
            )
            for member, later, share in zip(
                ranks([0.1] * 4), (0.0, 0.0, began_later, 0.0), (0.1, 0.1, 0.0, 0.1), strict=True
            )
        ]
        return build.check("straggler-rank", build.run_case(build.scene(build.run(*members))))

    assert seen(8.0) is None
    assert seen(0.0) is not None, "the same where all began at once"


def test_what_others_do_besides_is_no_wait_where_this_rank_waits_for_it():
    """Three ranks compute metrics of their own, for which rank 0 waits in backward."""
    members = [
        dataclasses.replace(member, optimizer_share=0.1, wait_share=0.05) for member in ranks([0.10, 0.06, 0.06, 0.06])
    ]
    draft = build.check("straggler-rank", build.run_case(build.scene(build.run(*members))))
    assert draft is None


SLOW_ITEM = 4.0


def test_slow_items_that_fell_on_one_rank_by_chance_make_no_straggler():
    """Three of 150 batches of one rank held a slow item, and one batch of another: 60 s of ranks that are even."""
    late = {0: (20, 90, 95), 3: (60,)}
    members = [
        build.rank(
            step=0.4,
            wait=[SLOW_ITEM if step in late.get(index, ()) else 0.0 for step in range(150)],
            gpus=(index,),
            pid=100 + index,
            facts={"rank": index, "world_size": 4},
            backward_share=(sum(map(len, late.values())) - len(late.get(index, ()))) * SLOW_ITEM / 60.0 + 0.2,
            workers=build.workers(4, busy_share=0.3),
        )
        for index in range(4)
    ]
    assert members[0].wait_share - members[1].wait_share == pytest.approx(0.2)
    assert build.check("straggler-rank", build.run_case(build.scene(build.run(*members)))) is None


def test_a_rank_is_no_straggler_where_the_others_workers_are_as_busy():
    def draft(busy_share):
        members = [
            dataclasses.replace(member, workers=build.workers(4, busy_share=0.98 if index == 2 else busy_share))
            for index, member in enumerate(ranks([0.10, 0.10, 0.03, 0.10], straggling=(2,), wait=0.07))
        ]
        return build.check("straggler-rank", build.run_case(build.scene(build.run(*members))))

    assert draft(0.97) is None
    assert draft(0.85).gain.high == pytest.approx(1 / 0.85, abs=0.01)
    assert draft(0.5).gain.high == pytest.approx(1 / (1 - 0.35), abs=0.01)


@pytest.mark.parametrize(("sigma", "is_said"), [(0.1, True), (1.5, False)])
def test_an_empty_queue_makes_no_straggler_of_a_rank_whose_batches_take_no_longer(sigma, is_said):
    """25 batches of 0.5 s on the slow rank, of 0.4 s on the others: with a spread of 1.5 s that is chance."""
    members = [
        dataclasses.replace(
            member,
            workers=build.workers(
                4,
                busy_share=0.5,
                batch_seconds=0.5 if index == 2 else 0.4,
                batch_seconds_sigma=sigma,
                newest_batch_seconds=[0.4] * 25,
            ),
        )
        for index, member in enumerate(ranks([0.10, 0.10, 0.03, 0.10], straggling=(2,), wait=0.07))
    ]
    draft = build.check("straggler-rank", build.run_case(build.scene(build.run(*members))))
    assert (draft is not None) is is_said


def test_waits_for_ranks_that_wait_for_data_show_anywhere_and_make_no_straggler():
    """Each of four ranks waits in turn; rank 2 waited for the others in its optimizer step instead of in backward."""
    members = [
        dataclasses.replace(member, optimizer_share=0.40 if index == 2 else 0.05)
        for index, member in enumerate(ranks([0.10, 0.10, 0.03, 0.10], wait=0.02, straggling=range(4)))
    ]
    assert members[0].wait_share == pytest.approx(0.10)
    assert build.check("straggler-rank", build.run_case(build.scene(build.run(*members)))) is None


@pytest.mark.parametrize(("busy", "is_said"), [((0.7, 0.7, 0.7, 0.7), True), ((1.0, 1.0, 0.5, 0.3), False)])
def test_seen_from_outside_one_stuck_worker_makes_no_straggler(busy, is_said):
    """Rank 2's workers are 70% busy and the others' 50%: all alike, or two of them at a slow item for the minute."""

    def outside(member, busy, waiting):
        phases = {"wait": waiting, "forward": 0.3, "backward": 0.6 - waiting}
        rows = [(1.0, waiting)] * 60
        mean = sum(busy) / len(busy)
        stacks = watched(phases, worker_phases={"item": mean}, waits=rows, samples=3000, seconds=60.0)
        workers = tuple(WorkerShare(pid, 600, Share(each, each - 0.03, each + 0.03)) for pid, each in enumerate(busy))
        return dataclasses.replace(
            member,
            facts=dataclasses.replace(member.facts, visibility="sampled"),
            stacks=dataclasses.replace(stacks, by_worker=workers),
            wait_share=waiting,
            optimizer_share=0.0,
            workers=build.workers(4, busy_share=None, batch_seconds=None),
            train_loader=build.loader(num_workers=4),
        )

    members = ranks([0.1] * 4)
    members = [
        outside(member, busy if index == 2 else (0.5,) * 4, 0.3 if index == 2 else 0.0)
        for index, member in enumerate(members)
    ]
    members = [
        dataclasses.replace(member, backward_share=0.3 if index == 2 else 0.6, steps=300, train_seconds=60.0)
        for index, member in enumerate(members)
    ]
    draft = build.check("straggler-rank", build.run_case(build.scene(build.run(*members))))
    assert (draft is not None) is is_said


def test_ranks_that_wait_for_data_in_turn_are_no_imbalance():
    """While one waits the others spin at 100%, and draw more power than its idle GPU."""
    waiting = [build.rank(wait=wait, gpus=(index,), pid=100 + index) for index, wait in enumerate((0.08, 0.0))]
    gpus = [build.gpu(0, utilization=60.0, power=200.0), build.gpu(1, utilization=100.0, power=300.0)]

    def draft(*members):
        return build.check("gpu-imbalance", build.run_case(build.scene(build.run(*members), gpus=gpus, at=60.0)))

    assert draft(*waiting) is None
    assert draft(*(build.rank(wait=0.01, gpus=(index,), pid=100 + index) for index in range(2))).fires
    assert draft(build.rank(wait=0.08, gpus=(0, 1))).fires, "one process for both: it waits for all of them"
    outside = [
        build.rank(
            gpus=(index,), pid=100 + index, wait_share=wait, stacks=watched({"wait": wait}, waits=[(1.0, 0.0)] * 60)
        )
        for index, wait in enumerate((0.4, 0.0))
    ]
    assert draft(*outside) is None, "from outside the waits of each second leave out the starts of epochs"


def test_fewer_than_thirty_steps_say_nothing_of_how_work_is_divided():
    """Of two steps of 30 s one rank waits in the first and the other in the second: the window holds one of the two."""
    gpus = [build.gpu(0, utilization=90.0), build.gpu(1, utilization=0.0)]

    def draft(steps):
        members = [build.rank(step=2.0, gpus=(index,), pid=100 + index, steps=steps) for index in range(2)]
        return build.check("gpu-imbalance", build.run_case(build.scene(build.run(*members), gpus=gpus, at=60.0)))

    assert draft(29) is None and draft(30).fires


@pytest.mark.parametrize(
    ("each_seconds", "fires"), [((60.0,) * 6, True), ((100.0, 0.0, 100.0, 100.0, 20.0, 40.0), False)]
)
def test_a_gpu_that_idles_now_more_and_then_less_than_another_does_so_by_chance(each_seconds, fires):
    """Both are 40 points apart in the mean; slow items kept the one or the other waiting for 10 s at a time."""

    def seen(index, parts):
        series = [
            (build.START_NS + (10 * part + second) * build.SECOND, busy)
            for part, busy in enumerate(parts)
            for second in range(10)
        ]
        return build.gpu(index, utilization=sum(parts) / len(parts), train_utilization_series=series)

    most = [100.0 if each < 100.0 else 60.0 for each in each_seconds] if not fires else [100.0] * 6
    members = [build.rank(gpus=(index,), pid=100 + index) for index in range(2)]
    gpus = [seen(0, each_seconds), seen(1, most)]
    draft = build.check("gpu-imbalance", build.run_case(build.scene(build.run(*members), gpus=gpus, at=60.0)))
    assert (draft is not None and draft.fires) is fires


def test_before_the_first_counted_batch_only_stacks_that_compute_say_how_work_is_divided():
    """Rank 0 indexes its data, or waits for its first batch, and the others spin in a barrier or in the collective."""
    gpus = [build.gpu(0, utilization=0.0), build.gpu(1, utilization=100.0)]

    def draft(phases, visibility="sampled"):
        members = [
            dataclasses.replace(
                build.rank(
                    gpus=(index,),
                    pid=100 + index,
                    facts={"visibility": visibility},
                    stacks=watched(each, batches_per_second=None),
                ),
                steps=0,
                steps_total=0,
            )
            for index, each in enumerate(phases)
        ]
        return build.check("gpu-imbalance", build.run_case(build.scene(build.run(*members), gpus=gpus, at=60.0)))

    steps = {"forward": 0.4, "backward": 0.5}
    assert draft([steps, steps]).fires, "a loop whose iterations nothing counts"
    assert draft([{"other": 0.9}, steps]) is None
    assert draft([{"wait": 0.9}, steps]) is None
    assert draft([steps, steps], "exact") is None, "a hook counts steps: there were none"


def test_waits_that_a_hook_measured_count_whatever_samples_of_the_stack_saw_of_them():
    """Rank 0 waits 60% of each second, as its steps say; samples were taken in few of these seconds."""
    times = [build.START_NS + second * build.SECOND for second in range(60)]

    def seen(index, busy):
        return build.gpu(index, utilization=busy, train_utilization_series=[(time_ns, busy) for time_ns in times])

    members = [
        build.rank(
            gpus=(index,),
            pid=100 + index,
            step=1.0,
            wait=wait,
            steps=60,
            window=60.0,
            wait_share=0.0,
            stacks=watched({"wait": 0.1}, waits=[(1.0, wait / 6.0)] * 60),
        )
        for index, wait in enumerate((0.6, 0.0))
    ]
    gpus = [seen(0, 40.0), seen(1, 100.0)]
    assert build.check("gpu-imbalance", build.run_case(build.scene(build.run(*members), gpus=gpus, at=60.0))) is None


def test_waits_count_in_the_time_in_which_the_gpus_were_seen_training():
    """Utilization is known of the newest 30 s, in which rank 0 waited 18; of a minute that would be 30%."""
    times = [build.START_NS + second * build.SECOND for second in range(30, 60)]

    def seen(index, busy):
        return build.gpu(index, utilization=busy, train_utilization_series=[(time_ns, busy) for time_ns in times])

    outside = [
        build.rank(
            gpus=(index,),
            pid=100 + index,
            wait_share=0.0,
            facts={"visibility": "sampled"},
            stacks=watched({"wait": 0.3}, waits=[(1.0, 0.0)] * 30 + [(1.0, wait)] * 30),
        )
        for index, wait in enumerate((0.6, 0.0))
    ]
    moment = build.scene(build.run(*outside), gpus=[seen(0, 40.0), seen(1, 100.0)], at=60.0)
    assert build.check("gpu-imbalance", build.run_case(moment)) is None


def test_a_slowed_gpu_is_ruled_out_only_where_a_gpu_was_seen():
    def ruled_out(**fields):
        moment = build.scene(build.run(*ranks([0.10, 0.07])), **fields)
        return {rival.cause for rival in build.check("straggler-rank", build.run_case(moment)).ruled_out}

    watched = [build.gpu(index, throttle_shares={"thermal": 0.0}) for index in (0, 1)]
    assert "a slowed GPU" in ruled_out(gpus=watched)
    assert "a slowed GPU" not in ruled_out(gpus=[])


def test_a_slowed_gpu_of_the_straggler_is_the_fix():
    members = ranks([0.10, 0.10, 0.03, 0.10])
    gpus = [build.gpu(i, throttle_shares={"hw-thermal": 0.4} if i == 2 else {}) for i in range(4)]
    draft = build.check("straggler-rank", build.run_case(build.scene(build.run(*members), gpus=gpus)))
    assert "GPU 2 is slowed 40%" in draft.fix.text


def test_equal_ranks_and_half_measured_jobs_are_silent():
    equal = build.run(*ranks([0.1, 0.1, 0.098, 0.1]))
    assert build.check("straggler-rank", build.run_case(build.scene(equal))) is None
    partial = build.run(*(member for member in ranks([0.10, 0.10, 0.03, 0.10])[1:3]))
    assert build.check("straggler-rank", build.run_case(build.scene(partial))) is None


class TestSlowGpuInALoopThatRunsAhead:
    """Measured in simulation: rank 2 computes 1.3 times as long, the others' wait is spread over two parts."""

    def moment(self, **straggler_gpu):
        parts = [(0.28, 0.52, 0.19)] * 4
        parts[2] = (0.36, 0.50, 0.12)
        members = [
            build.rank(
                pid=100 + index,
                gpus=(index,),
                facts={"rank": index, "world_size": 4},
                forward_share=forward,
                backward_share=backward,
                optimizer_share=optimizer,
            )
            for index, (forward, backward, optimizer) in enumerate(parts)
        ]
        usual = {"utilization": 100.0, "power": 520.0}
        gpus = [build.gpu(index, **(usual | (straggler_gpu if index == 2 else {}))) for index in range(4)]
        return build.run_case(build.scene(build.run(*members), gpus=gpus))

    def test_the_gpu_that_never_idles_and_draws_more_is_waited_for(self):
        draft = build.check("straggler-rank", self.moment(power=625.0))
        assert draft.fires and "rank 2" in draft.summary
        score = next(measure.value for measure in draft.evidence if measure.name == "straggler_score")
        assert score == pytest.approx(1 - 0.28 / 0.36, abs=0.01)

    def test_a_lower_clock_tells_it_too(self):
        assert build.check("straggler-rank", self.moment(sm_clock_mhz=build.stats([1500.0]))).fires

    def test_a_wait_that_only_shows_elsewhere_is_no_straggler(self):
        assert build.check("straggler-rank", self.moment()) is None
        assert build.check("straggler-rank", self.moment(power=625.0, utilization=80.0)) is None

    def test_power_of_a_window_that_was_mostly_a_pause_tells_nothing(self):
        case = self.moment(power=625.0)
        trained = dataclasses.replace(case.gpus[2].utilization, count=10)
        paused = tuple(dataclasses.replace(each, train_utilization=trained) for each in case.gpus)
        assert build.check("straggler-rank", dataclasses.replace(case, gpus=paused)) is None
