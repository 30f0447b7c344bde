"""Copies, launches and what stops a run now and then: what their rules say, and their fixes applied to a script."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from textwrap import dedent

import pytest

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import CallEdit, Draft, Edit, Finding, IntervalEdit, Severity
from gpuwatch.samples import GpuProcess, GpuStatus
from gpuwatch.timeline.windows import LinkErrors, RankWindow, Scene
from tests.unit.edit_sources import FILE, changed, line_of, refused
from tests.unit.scene_builder import (
    START_NS,
    check,
    findings,
    fired,
    gpu,
    gpu_case,
    host,
    later,
    loader,
    machine,
    model,
    phase,
    process,
    rank,
    run,
    run_case,
    scene,
    workers,
)
from tests.unit.stack_windows import line, watched


def one_of(said: tuple[Finding, ...], rule: str) -> Finding:
    (finding,) = [finding for finding in said if finding.rule == rule]
    return finding


def run_draft(rule: str, moment: Scene, *holding: str) -> Draft:
    draft = check(rule, run_case(moment, holding=holding))
    assert draft is not None
    return draft


def gpu_draft(rule: str, moment: Scene, *holding: str) -> Draft:
    draft = check(rule, gpu_case(moment, holding=holding))
    assert draft is not None
    return draft


class TestPageableTransfer:
    def unpinned(self, share: float = 0.12, **fields: object) -> Scene:
        return scene(run(rank(copy_share=share, loader=loader(pin_memory=False), **fields)))  # type: ignore[arg-type]

    def test_copies_from_unpinned_memory(self) -> None:
        moment = self.unpinned()
        assert "pageable-transfer" in fired(moment)
        draft = run_draft("pageable-transfer", moment)
        assert draft.fix is not None and draft.fix.edit is not None and draft.fix.code is not None
        assert draft.fix.edit.keywords == {"pin_memory": "True"}
        assert "non_blocking=True" in draft.fix.code

    def test_no_more_is_promised_than_the_gpu_idles(self) -> None:
        moment = replace(self.unpinned(share=0.9), gpus=(gpu(utilization=80),))
        gain = run_draft("pageable-transfer", moment).gain
        assert gain is not None and (gain.low, gain.high) == pytest.approx((1 / 0.9, 1 / 0.8), abs=0.001)

    def test_the_pinned_copy_itself_stays(self) -> None:
        status = GpuStatus(START_NS, "GPU-0", pcie_width=16, pcie_generation=4)  # 31.5 GB/s
        idle = gpu(utilization=70, latest_status=status)
        batches = loader(pin_memory=False, batch_bytes=315_000_000)
        moment = scene(run(rank(step=0.2, copy_share=0.8, loader=batches)), gpus=[idle])
        gain = run_draft("pageable-transfer", moment).gain
        assert gain is not None and (gain.low, gain.high) == pytest.approx((1 / 0.8, 1 / 0.75), abs=0.002)

    def test_waits_that_the_gpu_may_have_worked_through_may_be_copies(self) -> None:
        # The thread waits 0.1 of the time and the GPU idles 0.1: for either of them, where no event pair tells.
        spare = workers(busy_share=0.3)
        moment = replace(self.unpinned(share=0.5, step=0.2, wait=0.02, workers=spare), gpus=(gpu(utilization=90),))
        gain = run_draft("pageable-transfer", moment).gain
        assert gain is not None and (gain.low, gain.high) == pytest.approx((1.0, 1 / 0.9), abs=0.001)
        told = replace(
            self.unpinned(share=0.5, step=0.2, wait=0.02, gap=0.005, workers=spare), gpus=(gpu(utilization=90),)
        )
        gain = run_draft("pageable-transfer", told).gain
        assert gain is not None and gain.high == pytest.approx(1 / 0.925, abs=0.001)

    def test_a_gpu_whose_use_swings_leaves_the_promise_open(self) -> None:
        swinging = [70.0 if place % 40 < 20 else 90.0 for place in range(120)]
        moment = replace(self.unpinned(share=0.9, gap=0.0), gpus=(gpu(utilization=swinging),))
        gain = run_draft("pageable-transfer", moment).gain
        assert gain is not None and gain.low < 1 / 0.9 and gain.high > 1 / 0.78

    def test_without_the_gpus_use_there_is_no_promise(self) -> None:
        draft = run_draft("pageable-transfer", replace(self.unpinned(), gpus=()))
        assert draft.gain is None and draft.hint is not None and "at most 1.14x" in draft.hint

    def test_pinned_memory_cheap_copies_and_the_cpu_are_silent(self) -> None:
        assert "pageable-transfer" not in fired(scene(run(rank(copy_share=0.12))))
        assert "pageable-transfer" not in fired(self.unpinned(share=0.02))
        assert "pageable-transfer" not in fired(self.unpinned(device="cpu"))
        assert not run_draft("pageable-transfer", self.unpinned(share=0.04)).fires

    def test_a_machine_short_of_memory_is_not_advised_to_pin(self) -> None:
        moment = replace(self.unpinned(), host=host(memory_available_share=0.1))
        assert "pageable-transfer" not in fired(moment)


class TestPcieDegraded:
    def narrow(self, utilization: float = 95.0, width: int = 4, generation: int = 5) -> Scene:
        status = GpuStatus(START_NS, "GPU-0", pcie_width=width, pcie_generation=generation)
        return scene(run(rank()), gpus=[gpu(utilization=utilization, latest_status=status)])

    def test_a_narrow_link_under_load_fires_after_thirty_seconds(self) -> None:
        engine, moment = Engine(), self.narrow()
        said = [{f.rule for f in engine.evaluate(later(moment, 5.0 * i))} for i in range(7)]
        assert ["pcie-degraded" in rules for rules in said] == [False] * 5 + [True] * 2
        assert gpu_draft("pcie-degraded", moment).summary.endswith("4 lanes of 16")

    def test_an_older_generation_counts_too(self) -> None:
        assert gpu_draft("pcie-degraded", self.narrow(width=16, generation=3)).summary.endswith("generation 3 of 5")

    def test_an_idle_gpu_saves_power_on_its_link(self) -> None:
        assert check("pcie-degraded", gpu_case(self.narrow(utilization=20.0))) is None

    def test_a_full_link_is_silent(self) -> None:
        assert check("pcie-degraded", gpu_case(self.narrow(width=16))) is None

    def replaying(self, rate: float | None, *, width: int = 16, **fields: float) -> Scene:
        moment = self.narrow(width=width, **fields)
        links = LinkErrors(60.0, pcie_replays_per_minute=rate)
        return replace(moment, gpus=tuple(replace(each, links=links) for each in moment.gpus))

    def test_packets_sent_again_beyond_the_specification_point_at_the_connection(self) -> None:
        draft = gpu_draft("pcie-degraded", self.replaying(40.0))
        assert draft.summary.endswith("40 packets a minute are sent again, 31 are usual")
        assert draft.fix is not None and "riser and cable" in draft.fix.text

    def test_usual_replays_and_unknown_ones_are_silent(self) -> None:
        assert check("pcie-degraded", gpu_case(self.replaying(30.0))) is None
        assert check("pcie-degraded", gpu_case(self.replaying(None))) is None
        assert check("pcie-degraded", gpu_case(self.replaying(40.0, utilization=20.0))) is None

    def test_a_narrow_link_without_replays_points_at_the_slot(self) -> None:
        draft = gpu_draft("pcie-degraded", self.replaying(1.0, width=8))
        assert any("which is usual" in measure.text for measure in draft.evidence)
        assert draft.fix is not None and "another slot" in draft.fix.text


LATER_NS = START_NS + 200 * 1_000_000_000
"""The last step, in scenes that are taken long after the steps they hold."""


class TestLaunchBound:
    def tiny_kernels(self, utilization: float = 40.0, **fields: object) -> Scene:
        usual: dict[str, object] = {
            "step": 0.1,
            "wait": 0.001,
            "gap": 0.001,
            "process": process(main_thread_cores=0.99),
            "last_step_ns": LATER_NS,
        }
        return scene(
            run(rank(**(usual | fields))),  # type: ignore[arg-type]
            gpus=[gpu(utilization=utilization)],
        )

    def test_idle_inside_steps_with_a_busy_thread(self) -> None:
        moment = self.tiny_kernels()
        finding = one_of(findings(moment), "launch-bound")
        assert finding.summary.startswith("The GPU idles 59% of the time inside steps")
        assert finding.gain is None and finding.hint is not None and "at most 2.4x" in finding.hint
        assert finding.fix is not None and 'mode="reduce-overhead"' in (finding.fix.code or "")

    def test_a_compiled_model_is_not_advised_to_compile(self) -> None:
        fix = run_draft("launch-bound", self.tiny_kernels(facts={"model": model(compiled=True)})).fix
        assert fix is not None and fix.text.startswith("The model is compiled already")

    def test_own_code_of_the_script_launches_nothing(self) -> None:
        assert "launch-bound" not in fired(
            self.tiny_kernels(forward_share=0.02, backward_share=0.03, optimizer_share=0.01)
        )
        assert "launch-bound" in fired(self.tiny_kernels(forward_share=0.3, backward_share=0.4, optimizer_share=0.1))

    def test_an_optimizer_that_computes_on_the_cpu_launches_nothing(self) -> None:
        """Half a second of each step is more than launching an optimizer takes, 0.05 s is not."""
        shares = {"forward_share": 0.02, "backward_share": 0.02, "optimizer_share": 0.5}
        assert "launch-bound" not in fired(self.tiny_kernels(step=1.0, **shares))
        assert "launch-bound" in fired(self.tiny_kernels(step=0.1, **shares))

    def test_a_thread_that_is_busy_long_after_its_last_step_launches_nothing(self) -> None:
        moment = self.tiny_kernels()
        silent = replace(moment.runs[0].critical, last_step_ns=moment.now_ns - 50 * 1_000_000_000)
        assert check("launch-bound", run_case(replace(moment, runs=(run(silent),)))) is None

    def test_an_idle_thread_or_a_crowded_machine_is_something_else(self) -> None:
        assert "launch-bound" not in fired(self.tiny_kernels(process=process(main_thread_cores=0.3)))
        assert "launch-bound" not in fired(replace(self.tiny_kernels(), host=host(pressure_cpu_percent=50)))
        delayed = process(main_thread_cores=0.9, run_delay_share=0.1)
        assert "launch-bound" not in fired(self.tiny_kernels(process=delayed))

    def test_what_waits_for_data_explain_is_not_counted(self) -> None:
        moment = self.tiny_kernels(wait=0.06, gap=0.055)
        assert check("launch-bound", run_case(moment)) is None

    def test_of_a_process_with_several_gpus_the_busiest_one_counts(self) -> None:
        idle_others = [gpu(0, utilization=98.0), gpu(1, utilization=55.0), gpu(2, utilization=55.0)]
        for busiest, fires in ((idle_others, False), ([gpu(0, utilization=55.0), *idle_others[1:]], True)):
            trained = rank(step=0.1, gap=0.001, gpus=(0, 1, 2), process=process(main_thread_cores=0.99))
            trained = replace(trained, last_step_ns=LATER_NS)
            assert ("launch-bound" in fired(scene(run(trained), gpus=busiest))) is fires

    def test_without_a_known_wait_it_cannot_be_distinguished(self) -> None:
        unknown = self.tiny_kernels()
        (trained,) = unknown.runs
        blind = replace(trained.critical, gap_share=None, wait_share=None, settled_wait_share=None)
        assert check("launch-bound", run_case(scene(run(blind), gpus=unknown.gpus))) is None


class TestLowUtil:
    def test_below_the_target_without_a_cause_says_how_to_see_more(self) -> None:
        unhooked = rank(facts={"visibility": "process"}, gap=None)
        moment = scene(run(unhooked), gpus=[gpu(utilization=40)])
        draft = gpu_draft("low-util", moment)
        assert draft.summary == "GPU 0 is busy only part of the time: 40% on average, the target is 85%"
        assert draft.fix is not None and "gpuwatch run" in draft.fix.text
        assert draft.gain is None

    def test_it_names_the_cause_and_stands_behind_it(self) -> None:
        starved = scene(
            run(rank(step=0.3, wait=0.2, gap=0.2, loader=loader(num_workers=0))), gpus=[gpu(utilization=33)]
        )
        finding = one_of(findings(starved), "low-util")
        assert finding.behind == "data-starvation"
        assert finding.fix is not None and finding.fix.text == "See data-starvation"

    def test_hardly_busy_has_its_own_word(self) -> None:
        moment = scene(run(rank(gap=0.0)), gpus=[gpu(utilization=12)])
        assert "hardly busy" in gpu_draft("low-util", moment).summary

    def test_an_idle_gpu_without_a_job_is_no_finding_one_in_use_is(self) -> None:
        assert "low-util" not in fired(scene(gpus=[gpu(utilization=0)]))
        assert "low-util" not in fired(scene(gpus=[gpu(utilization=40)]))
        busy = GpuStatus(START_NS, "GPU-0", processes=(GpuProcess(host_pid=99),))
        assert "low-util" in fired(scene(gpus=[gpu(utilization=40, latest_status=busy)]))

    def test_half_a_minute_above_the_target_ends_it(self) -> None:
        risen = gpu(utilization=[40.0] * 58 + [95.0] * 62)
        moment = scene(run(rank(gap=0.0)), gpus=[risen], at=60.0)
        assert check("low-util", gpu_case(moment)) is None
        assert check("low-util", gpu_case(later(moment, 20.0))) is not None, "too few of the newest are known"

    def test_phases_do_not_count(self) -> None:
        moment = scene(run(rank(gap=0.0)), gpus=[gpu(utilization=60, train_utilization=96)])
        assert "low-util" not in fired(moment)

    def test_between_target_and_clearing_nothing_starts(self) -> None:
        assert not gpu_draft("low-util", scene(run(rank()), gpus=[gpu(utilization=86.5)])).fires


class TestFluctuation:
    def test_swings_below_its_own_good_level(self) -> None:
        moment = scene(run(rank(gap=0.0)), gpus=[gpu(utilization=[98, 98, 98, 30])])
        finding = one_of(findings(moment), "util-fluctuation")
        assert finding.summary == "GPU 0 swings between 30 and 98%: 81 ± 30% on average"
        assert finding.severity is Severity.INFO, "it describes: what causes it has a rule of its own"
        assert finding.hint is not None and "1.2x" in finding.hint

    def test_one_spike_downwards_is_no_fluctuation(self) -> None:
        assert "util-fluctuation" not in fired(scene(run(rank(gap=0.0)), gpus=[gpu(utilization=[98] * 59 + [20])]))

    def test_a_sensor_that_averages_the_steps_away_shows_nothing(self) -> None:
        rng = random.Random(1)
        smooth = [50 + rng.gauss(0, 2) for _ in range(120)]
        assert "util-fluctuation" not in fired(scene(run(rank(gap=0.0)), gpus=[gpu(utilization=smooth)]))


class TestPeriodicDips:
    EVERY_TEN_SECONDS = [97.0] * 18 + [5.0] * 2

    def dipping(self, values: list[float], gap: float = 0.0, **fields: object) -> Scene:
        trained = rank(step=0.1, wait=gap, gap=gap, **fields)  # type: ignore[arg-type]
        return scene(run(trained), gpus=[gpu(utilization=values)], at=60.0)

    def test_dips_at_a_steady_interval(self) -> None:
        moment = self.dipping(self.EVERY_TEN_SECONDS)
        assert "periodic-dips" in fired(moment)
        draft = gpu_draft("periodic-dips", moment)
        assert draft.summary == "GPU 0 dips every 10 s, 10% of the time"
        assert draft.fix is not None and "every 100 steps" in draft.fix.text and "next dip is due in" in draft.fix.text

    def test_the_edge_of_an_epoch_is_suspected_where_it_fits(self) -> None:
        moment = self.dipping(self.EVERY_TEN_SECONDS, loader=loader(batches_per_epoch=100))
        fix = gpu_draft("periodic-dips", moment).fix
        assert fix is not None and "the edge of an epoch (100 batches)" in fix.text

    def test_dips_too_close_to_count_are_found_by_their_echo(self) -> None:
        wave = [95, 80, 60, 80]
        assert gpu_draft("periodic-dips", self.dipping(wave)).summary.startswith("GPU 0 dips every 2")  # type: ignore[arg-type]

    def test_irregular_dips_are_not_periodic(self) -> None:
        rng = random.Random(5)
        values = list(itertools.chain.from_iterable([97.0] * rng.choice((3, 5, 9, 17, 30)) + [5.0] for _ in range(8)))
        assert check("periodic-dips", gpu_case(self.dipping((values * 4)[:120]))) is None

    def test_three_dips_prove_nothing(self) -> None:
        assert check("periodic-dips", gpu_case(self.dipping([97.0] * 38 + [5.0] * 2))) is None

    def test_the_rhythm_of_starved_workers_is_not_reported_twice(self) -> None:
        assert check("periodic-dips", gpu_case(self.dipping(self.EVERY_TEN_SECONDS, gap=0.006))) is None

    def test_dips_that_ended_are_forgotten(self) -> None:
        gone = later(self.dipping(self.EVERY_TEN_SECONDS), 40)
        assert check("periodic-dips", gpu_case(gone)) is None


class TestEvaluation:
    def evaluating(self, share: float, waiting: float = 0.0, **fields: object) -> Scene:
        usual: dict[str, object] = {
            "share": share,
            "seconds": share * 60,
            "wait_seconds": waiting * share * 60,
            "every_steps": 100.0,
            "file": "/home/user/train.py",
            "line": 164,
            "loader": 2,
        }
        validation = loader(loader=2, line=95, num_workers=0, pin_memory=True, role="eval")
        trained = rank(phases={"eval": phase("eval", **(usual | fields))}, eval_loaders=(validation,))
        return scene(run(trained))

    def test_a_quarter_of_the_time_is_worth_a_word_not_a_warning(self) -> None:
        finding = one_of(findings(self.evaluating(0.3)), "eval-stall")
        assert finding.severity is Severity.INFO
        assert finding.summary == "Validation takes 30% of the time"
        assert finding.fix is not None and finding.fix.text.startswith("Evaluate every 400 steps instead of every 100")
        assert finding.fix.line == 164
        # 30 of 100 s become 30 of 310: a tenth.
        assert finding.gain is not None and finding.gain.low == pytest.approx(1 / (1 - 0.3 * 0.75), abs=0.001)

    def test_an_evaluation_that_waits_for_its_data_is_a_warning_on_its_own_loader(self) -> None:
        finding = one_of(findings(self.evaluating(0.1, waiting=0.8)), "eval-stall")
        assert finding.severity is Severity.WARNING
        assert finding.fix is not None and finding.fix.edit is not None
        assert isinstance(finding.fix.edit, CallEdit) and not finding.fix.can_be_tried
        assert (finding.fix.edit.line, finding.fix.edit.is_for_it_alone) == (95, True)
        assert finding.fix.edit.keywords == {"num_workers": "8", "persistent_workers": "True"}

    def test_it_is_not_blamed_on_the_training_loader(self) -> None:
        assert "data-starvation" not in fired(self.evaluating(0.3, waiting=0.9))

    def test_rare_evaluations_and_the_first_one_are_silent(self) -> None:
        assert "eval-stall" not in fired(self.evaluating(0.05))
        assert "eval-stall" not in fired(self.evaluating(0.4, count=1))
        assert not run_draft("eval-stall", self.evaluating(0.2)).fires


class TestCheckpoint:
    def saving(self, share: float, **fields: object) -> Scene:
        usual: dict[str, object] = {"share": share, "seconds": share * 60, "longest_seconds": 2.5, "every_steps": 150.0}
        return scene(run(rank(phases={"checkpoint": phase("checkpoint", **(usual | fields))})))

    def test_saves_that_stop_training(self) -> None:
        finding = one_of(findings(self.saving(0.08, bytes=800_000_000)), "checkpoint-stall")
        assert finding.summary == "Saving checkpoints stops training 8% of the time, up to 2.5 s at a time"
        assert finding.fix is not None and "async_save" in finding.fix.text
        assert "every 750 steps instead of every 150" in finding.fix.text
        assert "167 MB/s is slow storage" in finding.fix.text
        assert finding.gain is not None and finding.gain.high == pytest.approx(1 / 0.92, abs=0.001)

    def test_one_save_or_cheap_ones_are_silent(self) -> None:
        assert "checkpoint-stall" not in fired(self.saving(0.2, count=1))
        assert "checkpoint-stall" not in fired(self.saving(0.02))
        assert not run_draft("checkpoint-stall", self.saving(0.04)).fires


class TestGarbageCollection:
    def collecting(self, share: float, longest: float = 0.1, ranks: int = 1) -> Scene:
        pauses = {"gc": phase("gc", share=share, seconds=share * 60, longest_seconds=longest)}
        return scene(run(*(rank(pid=100 + i, gpus=[i], phases=pauses) for i in range(ranks))))

    def test_ranks_that_collect_together_stop_each_other_once(self) -> None:
        def most(*begins: float) -> float:
            pauses = {"gc": phase("gc", share=0.1, seconds=6.0, longest_seconds=6.0)}
            ranks = [
                rank(
                    pid=index,
                    gpus=[index],
                    phases=pauses,
                    phase_spans=(("gc", int(begin * 1e9), int(begin * 1e9) + 6 * 10**9),),
                )
                for index, begin in enumerate(begins)
            ]
            gain = one_of(findings(scene(run(*ranks))), "gc-stall").gain
            assert gain is not None
            return gain.high

        assert most(5.0, 5.0, 5.0) == pytest.approx(1 / 0.9, abs=0.001)
        assert most(5.0, 20.0, 40.0) == pytest.approx(1 / 0.7, abs=0.001)

    def test_pauses_of_two_percent(self) -> None:
        finding = one_of(findings(self.collecting(0.03)), "gc-stall")
        assert finding.severity is Severity.INFO
        assert finding.fix is not None and "gc.freeze()" in (finding.fix.code or "")

    def test_one_long_pause_is_enough(self) -> None:
        assert "gc-stall" in fired(self.collecting(0.005, longest=1.0))

    def test_in_a_job_of_several_ranks_it_is_a_warning(self) -> None:
        assert one_of(findings(self.collecting(0.03, ranks=4)), "gc-stall").severity is Severity.WARNING

    def test_what_set_up_left_behind_is_not_blamed_on_a_young_run(self) -> None:
        young = replace(self.collecting(0.06), window_seconds=20.0)
        assert "gc-stall" not in fired(young)
        assert "gc-stall" in fired(replace(self.collecting(0.2), window_seconds=20.0))

    def test_rare_short_pauses_are_silent(self) -> None:
        assert "gc-stall" not in fired(self.collecting(0.004))


SCRIPT = dedent(
    """
    import torch
    from torch.utils.data import DataLoader
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter()
    loader = DataLoader(data, batch_size=32, num_workers=12)
    for epoch in range(90):
        for step, (images, labels) in enumerate(loader):
            images = images.to("cuda")
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            if step % 5 == 0:
                writer.add_histogram("weights", net.weight, step)
            print(f"step {step}: {loss.item():.3f}")
        evaluate(net)
        torch.save(net.state_dict(), "last.pt")
    """
)
LOADER = loader(file=FILE, line=line_of(SCRIPT, "DataLoader(d"), num_workers=12, pin_memory=False, batches_per_epoch=50)
INSTALLED = "/env/lib/python3.11/site-packages/accelerate/data_loader.py"


def current_line_in(phase_name: str, share: float, text: str, **fields: object) -> RankWindow:
    """A hooked rank whose stacks stand in the line with that text for a share of the time."""
    hot = line(phase_name, line_of(SCRIPT, text), share, file=FILE, text=text)
    return rank(stacks=watched({phase_name: share}, lines=[hot]), loader=LOADER, **fields)  # type: ignore[arg-type]


def of(rule: str, moment: Scene) -> tuple[Edit, ...]:
    draft = check(rule, run_case(moment))
    assert draft is not None and draft.fix is not None and draft.fix.edit is not None
    return (draft.fix.edit, *draft.fix.also)


def of_phase(rule: str, kind: str, text: str, **fields: object) -> tuple[Edit, ...]:
    place = {"file": FILE, "line": line_of(SCRIPT, text)}
    total = phase(
        kind, **({"share": 0.3, "seconds": 18.0, "longest_seconds": 9.0, "every_steps": 50.0} | place | fields)
    )
    return of(rule, scene(run(rank(phases={kind: total}, loader=LOADER))))


def test_copies_are_pinned_where_the_loader_is_made_and_do_not_block_where_they_are() -> None:
    moment = scene(run(current_line_in("copy", 0.3, 'images.to("cuda")', copy_share=0.3)), gpus=[gpu(utilization=70)])
    assert sorted(changed(of("pageable-transfer", moment), SCRIPT)) == [
        '+        images = images.to("cuda", non_blocking=True)',
        "+loader = DataLoader(data, batch_size=32, num_workers=12, pin_memory=True)",
        '-        images = images.to("cuda")',
        "-loader = DataLoader(data, batch_size=32, num_workers=12)",
    ]


def test_a_copy_of_a_library_is_the_librarys() -> None:
    hot = line("copy", 12, 0.3, file=INSTALLED)
    trained = rank(stacks=watched({"copy": 0.3}, lines=[hot]), loader=LOADER, copy_share=0.3)
    assert len(of("pageable-transfer", scene(run(trained), gpus=[gpu(utilization=70)]))) == 1


def test_asking_for_numbers_and_logging_come_under_an_interval_or_a_longer_one() -> None:
    asked = of("sync-per-step", scene(run(current_line_in("sync", 0.3, "loss.item()")), gpus=[gpu(utilization=70)]))
    assert changed(asked, SCRIPT) == [
        '-        print(f"step {step}: {loss.item():.3f}")',
        "+        if step % 30 == 0:",
        '+            print(f"step {step}: {loss.item():.3f}")',
    ]
    logged = of("log-stall", scene(run(current_line_in("log", 0.2, "add_histogram")), gpus=[gpu(utilization=70)]))
    assert changed(logged, SCRIPT) == ["-        if step % 5 == 0:", "+        if step % 100 == 0:"]


@pytest.mark.parametrize(
    ("rule", "kind", "text", "times"),
    [("checkpoint-stall", "checkpoint", "torch.save", 21), ("eval-stall", "eval", "evaluate(net)", 4)],
)
def test_what_ends_every_epoch_ends_every_kth(rule: str, kind: str, text: str, times: int) -> None:
    edits = of_phase(rule, kind, text)
    assert isinstance(edits[0], IntervalEdit) and edits[0].present == (50, 1)
    assert changed(edits, SCRIPT)[1] == f"+    if (epoch + 1) % {times} == 0 or epoch + 1 == 90:"


def test_a_run_started_by_a_library_is_changed_where_it_was_started() -> None:
    source = (
        "from transformers import Trainer, TrainingArguments\nargs = TrainingArguments('out', save_steps=50)\n"
        "trainer = Trainer(args=args)\ntrainer.train()\n"
    )
    made = loader(file=FILE, line=4, library="transformers")
    total = phase("checkpoint", share=0.3, longest_seconds=9.0, every_steps=50.0, file=INSTALLED, line=7)
    edits = of("checkpoint-stall", scene(run(rank(phases={"checkpoint": total}, loader=made))))
    assert changed(edits, source)[1] == "+args = TrainingArguments('out', save_steps=1050)"


def crowd(*libraries: str) -> Scene:
    made_by = workers(12, cpu_cores=0.66, active_threads=192, system_share=0.4)
    held = process(cores=8, tree_cores=8.0, latest={"libraries": libraries})
    trained = rank(step=0.1, wait=0.04, gap=0.04, loader=LOADER, workers=made_by, process=held)
    return scene(run(trained), gpus=[gpu(utilization=60)], host=host(cpu_percent=100), machine=machine(8))


def test_workers_get_one_thread_each_by_a_function_of_their_own() -> None:
    edits = of("thread-oversubscription", crowd("cv2"))
    lines = changed(edits, SCRIPT)
    assert "+def one_thread_per_worker(worker_id):" in lines and "+    cv2.setNumThreads(0)" in lines
    assert lines[-1].endswith("num_workers=12, worker_init_fn=one_thread_per_worker)")
    taken = SCRIPT.replace("num_workers=12", "num_workers=12, worker_init_fn=seed")
    assert "already has a worker_init_fn: put cv2.setNumThreads(0) and" in refused(edits, taken)


def test_arrow_has_a_call_for_it_too() -> None:
    assert "+    pyarrow.set_cpu_count(1)" in changed(of("thread-oversubscription", crowd("arrow")), SCRIPT)


def test_loading_that_a_wait_for_the_gpu_exposes_is_hidden_again_for_the_most_part() -> None:
    def gain(workers: int) -> tuple[float, float]:
        trained = current_line_in("sync", 0.3, "loss.item()")
        trained = replace(trained, train_loader=replace(LOADER, num_workers=workers))
        draft = check("sync-per-step", run_case(scene(run(trained), gpus=[gpu(utilization=80)])))
        assert draft is not None and draft.gain is not None
        return draft.gain.low, draft.gain.high

    assert gain(0) == pytest.approx((1 / 0.85, 1 / 0.8), abs=0.001)
    assert gain(4) == pytest.approx((1 / 0.9, 1 / 0.8), abs=0.001)
