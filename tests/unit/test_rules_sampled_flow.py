"""Syncs, logging, phases, copies and stragglers as stacks show them; and that every rule bears a run without a hook."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from scene_builder import SCRIPT, check, findings, fired, gpu, phase, process, rank, run, run_case, scene
from stack_windows import current_line, from_outside, line, sampled, watched

from gpuwatch.diagnosis.advice.cost import step_cost
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.finding import Draft, Finding, Level, Severity
from gpuwatch.diagnosis.rule import MachineCase, gpu_case_of, run_case_of
from gpuwatch.diagnosis.rules import all_rules
from gpuwatch.timeline.windows import RankWindow, Scene, StackWindow

ITEM = line("sync", 70, 0.25, text="total += loss.item()")
WANDB = line("log", 71, 0.10, text="wandb.log({'loss': x})", leaf="wandb/wandb_run.py:log")


def of(said: tuple[Finding, ...], rule: str) -> Finding:
    (finding,) = [finding for finding in said if finding.rule == rule]
    return finding


def says_figures(found: Draft | Finding) -> bool:
    """Whether it has a summary, and none of what is not known slipped into it as a figure."""
    return bool(found.summary) and not {"None", "nan", "inf"} & set(re.findall(r"[A-Za-z]+", found.summary))


def texts(found: Draft | Finding) -> str:
    return " | ".join(measure.text for measure in found.evidence)


def on_gpu(seen: StackWindow, utilization: float | None = 70.0, **fields: Any) -> Scene:
    return scene(run(sampled(seen, **fields)), gpus=[gpu(utilization=utilization)])


def on_cpu(seen: StackWindow, **fields: Any) -> Scene:
    return scene(run(sampled(seen, device="cpu", **fields)), gpus=[])


class TestSync:
    def asking(self, share: float = 0.3, **fields: Any) -> StackWindow:
        number = line("sync", 70, share, text=fields.pop("text", "total += loss.item()"))
        return watched({"sync": share, "forward": 0.3, "backward": 0.3}, lines=[number], **fields)

    def test_a_queue_hides_what_each_of_several_ranks_loads_in_its_own_thread(self) -> None:
        """Each waits for 0.2 of every other second, while the other one's GPU spins."""
        members = []
        for number in range(2):
            waits = tuple((1.0, 0.2 if second % 2 == number else 0.0) for second in range(60))
            seen = replace(self.asking(0.5, seconds=60.0, waits=waits), batches=60)
            own = sampled(seen, loader=from_outside(num_workers=0))
            facts = replace(own.facts, pid=own.facts.pid + number, trainer=f"{own.facts.pid + number}.1")
            members.append(replace(own, facts=facts))
        case = run_case(scene(run(*members), gpus=[gpu(utilization=90)]))
        draft = check("sync-per-step", case)
        assert draft is not None and draft.gain is not None
        assert draft.gain.high == pytest.approx(1 / (1 - 0.1 - 0.1), abs=0.01)

    def test_waits_behind_a_busy_gpu_hold_no_other_rank_up(self) -> None:
        members = []
        for number in range(2):
            waits = tuple((1.0, 0.9 if second % 2 == number else 0.7) for second in range(60))
            own = sampled(watched({"wait": 0.8}, seconds=60.0, waits=waits), loader=from_outside(num_workers=1))
            facts = replace(own.facts, pid=own.facts.pid + number, trainer=f"{own.facts.pid + number}.1")
            members.append(replace(own, facts=facts))
        case = run_case(scene(run(*members), gpus=[gpu(utilization=93)]))
        starvation = starvation_of(case)
        cost = step_cost(case, starvation) if starvation is not None else None
        assert cost is not None
        assert cost.compute_seconds / cost.period_seconds == pytest.approx(0.93, abs=0.01)

    def test_the_line_and_what_can_be_won_back_at_most(self) -> None:
        finding = of(findings(on_gpu(self.asking(), 85)), "sync-per-step")
        assert finding.summary == (
            "The GPU idles 15% of the time in addition to the waits for data, and the training thread spends 30% "
            "asking it for numbers (train.py:70)"
        )
        assert (finding.severity, finding.level) == (Severity.WARNING, Level.E1)
        assert any(note.startswith("likely") for note in finding.confidence_notes)
        assert finding.gain is not None and finding.gain.low == pytest.approx(1 / (1 - 0.5 * 0.15), abs=0.002)
        assert finding.gain.high == pytest.approx(1 / 0.85, abs=0.002)
        assert finding.fix is not None and (finding.fix.file, finding.fix.line) == (SCRIPT, 70)
        assert finding.fix.code is not None and f"if step % {finding.fix.value} == 0:" in finding.fix.code

    @pytest.mark.parametrize("copying", [0.1, 0.003])
    def test_nothing_is_sure_where_copies_or_other_ranks_make_the_thread_wait_too(self, copying: float) -> None:
        """A copy is as short as 0.1 ms where the thread has just waited for a number: without that it waits instead."""
        seen = watched({"sync": 0.3, "copy": 0.1, "forward": 0.3}, lines=[line("sync", 70, 0.3, text="loss.item()")])
        pageable = on_gpu(seen, 85, loader=from_outside(pin_memory=False), copy_share=copying)
        draft = check("sync-per-step", run_case(pageable))
        assert draft is not None and draft.gain is not None
        assert (draft.severity, draft.gain.low) == (Severity.INFO, 1.0)
        alone = on_gpu(seen, 85)
        ranks = replace(alone, runs=(replace(alone.runs[0], ranks=alone.runs[0].ranks * 2),))
        draft = check("sync-per-step", run_case(ranks))
        assert draft is not None and (draft.severity, draft.gain and draft.gain.low) == (Severity.INFO, 1.0)

    def test_no_more_than_the_line_takes(self) -> None:
        finding = of(findings(on_gpu(self.asking(0.07), 40)), "sync-per-step")
        assert finding.severity is Severity.INFO
        # 105 of 1,500 samples are between 5.8 and 8.4%.
        assert finding.gain is not None and finding.gain.high == pytest.approx(1 / (1 - 0.084), abs=0.001)

    def test_no_warning_where_the_loader_keeps_what_could_be_won(self) -> None:
        """Workers that are busy 97% of the time cannot deliver faster."""
        seen = self.asking(worker_phases={"item": 0.97})
        draft = check("sync-per-step", run_case(on_gpu(seen, 70, loader=from_outside(num_workers=4))))
        assert draft is not None and draft.fires and draft.severity is Severity.INFO
        assert draft.gain is not None and draft.gain.high == pytest.approx(1 / 0.97, abs=0.01)

    @pytest.mark.parametrize(
        "moment",
        [
            pytest.param(on_gpu(watched({"sync": 0.3}, lines=[ITEM]), 98), id="a busy GPU loses nothing"),
            pytest.param(on_cpu(watched({"sync": 0.3}, lines=[ITEM])), id="on the CPU nothing is queued"),
            pytest.param(on_gpu(watched({"sync": 0.3}, samples=599, lines=[ITEM])), id="too few samples"),
            pytest.param(on_gpu(watched({"sync": 0.02})), id="rare syncs"),
            pytest.param(on_gpu(watched({"sync": 0.3, "wait": 0.3}, lines=[ITEM])), id="waits explain the idle"),
        ],
    )
    def test_silent(self, moment: Scene) -> None:
        assert check("sync-per-step", run_case(moment)) is None

    def test_loading_in_the_training_thread_could_hide_behind_the_queue(self) -> None:
        seen = watched({"sync": 0.5, "wait": 0.38}, lines=[line("sync", 70, 0.5, text="total += loss.item()")])
        draft = check("sync-per-step", run_case(on_gpu(seen, 60, loader=from_outside(num_workers=0))))
        assert draft is not None and draft.fires and draft.gain is not None
        assert draft.gain.high == pytest.approx(1 / 0.6, abs=0.002)
        assert draft.summary.startswith("The GPU idles 40% of the time while batches are made")
        patient = check("sync-per-step", run_case(on_gpu(seen, 60, loader=from_outside(num_workers=4))))
        assert patient is None or not patient.fires

    def test_where_idle_is_not_known_it_is_a_hint_without_a_gain(self) -> None:
        finding = of(findings(on_gpu(self.asking(), None)), "sync-per-step")
        assert finding.severity is Severity.HINT and finding.gain is None
        assert finding.hint is not None and "nothing where the GPU is busy" in finding.hint
        assert "sync-per-step" not in fired(on_gpu(self.asking(0.08), None))

    def test_an_explicit_synchronize_is_to_be_taken_out(self) -> None:
        fix = of(findings(on_gpu(self.asking(text="torch.cuda.synchronize()"))), "sync-per-step").fix
        assert fix is not None and fix.text.startswith("Take train.py:70 `torch.cuda.synchronize()` out")

    def test_beside_a_hook_with_event_pairs_it_is_found_as_well(self) -> None:
        member = rank(step=0.2, gap=0.0, wait=0.0, stacks=self.asking(batches_per_second=None))
        draft = check("sync-per-step", run_case(scene(run(member), gpus=[gpu(utilization=80)])))
        assert draft is not None and draft.level is Level.E1


class TestLog:
    def test_the_line_that_logs(self) -> None:
        finding = of(findings(on_cpu(watched({"log": 0.1, "forward": 0.5}, lines=[WANDB]))), "log-stall")
        assert finding.summary == "Logging takes 10% of the training thread's time (train.py:71)"
        assert (finding.severity, finding.level) == (Severity.WARNING, Level.E1)
        assert "logging takes 10% ± 1.5 (1,500 samples of its stack, 30 s)" in texts(finding)
        assert finding.fix is not None and (finding.fix.line, finding.fix.value) == (71, 10)
        assert finding.gain is not None and finding.gain.high == pytest.approx(1 / 0.9, abs=0.002)

    def test_a_twentieth_is_needed_and_three_percent_clear(self) -> None:
        def draft(share: float) -> Draft | None:
            return check("log-stall", run_case(on_cpu(watched({"log": share, "forward": 0.5}))))

        above, between = draft(0.052), draft(0.045)
        assert above is not None and above.fires
        assert between is not None and not between.fires
        assert draft(0.02) is None

    def test_with_a_gpu_no_more_than_it_idles_is_lost(self) -> None:
        seen = watched({"log": 0.1, "forward": 0.5}, lines=[WANDB])
        assert check("log-stall", run_case(on_gpu(seen, 99))) is None
        gain = of(findings(on_gpu(seen, 93)), "log-stall").gain
        assert gain is not None and gain.high == pytest.approx(1 / 0.93, abs=0.002)
        unknown = of(findings(on_gpu(seen, None)), "log-stall")
        assert unknown.severity is Severity.HINT and unknown.gain is None

    def test_599_samples_say_nothing(self) -> None:
        assert check("log-stall", run_case(on_cpu(watched({"log": 0.5}, samples=599)))) is None

    def test_beside_a_hook(self) -> None:
        member = rank(step=0.2, gap=0.0, device="cpu", stacks=watched({"log": 0.2}, lines=[WANDB]))
        assert "log-stall" in fired(scene(run(member), gpus=[]))


class TestPhases:
    def test_evaluation_that_waits_for_its_data(self) -> None:
        seen = watched({"eval": 0.3, "forward": 0.4}, samples=3000, eval_wait_share=0.8)
        total = phase("eval", share=0.3, file=SCRIPT, line=93)
        finding = of(findings(on_cpu(seen, phases={"eval": total})), "eval-stall")
        assert finding.summary == "Validation takes 30% of the time and waits for its data in 80% of that"
        assert (finding.severity, finding.level) == (Severity.WARNING, Level.E1)
        assert finding.fix is not None and (finding.fix.file, finding.fix.line) == (SCRIPT, 93)
        assert "validation takes 30% (3,000 samples of its stack, 30 s)" in texts(finding)

    def test_waits_of_few_samples_are_not_claimed(self) -> None:
        seen = watched({"eval": 0.08, "forward": 0.4}, samples=1000, eval_wait_share=0.9)
        assert check("eval-stall", run_case(on_cpu(seen, phases={"eval": phase("eval", share=0.08)}))) is None

    def test_a_long_evaluation_is_for_information_and_its_line_comes_from_stacks(self) -> None:
        seen = watched({"eval": 0.4, "forward": 0.4}, eval_wait_share=0.1, lines=[line("eval", 95, 0.3, text="m(x)")])
        finding = of(findings(on_cpu(seen, phases={"eval": phase("eval", share=0.4)})), "eval-stall")
        assert finding.severity is Severity.INFO
        assert finding.fix is not None and finding.fix.line == 95
        assert "75% ± 3.5 of validation in train.py:95 `m(x)`" in texts(finding)

    def test_saving_names_its_line(self) -> None:
        save = line("save", 99, 0.1, text="torch.save(state, p)")
        seen = watched({"save": 0.1, "forward": 0.4}, lines=[save])
        finding = of(findings(on_cpu(seen, phases={"checkpoint": phase("checkpoint")})), "checkpoint-stall")
        assert finding.summary.endswith("10% of the time, up to 3 s at a time (train.py:99)")
        assert finding.level is Level.E1
        assert finding.fix is not None and finding.fix.line == 99

    def test_with_a_hook_phases_rest_on_its_timings(self) -> None:
        member = rank(phases={"checkpoint": phase("checkpoint"), "eval": phase("eval", share=0.4)})
        said = findings(scene(run(member)))
        assert {of(said, "checkpoint-stall").level, of(said, "eval-stall").level} == {Level.E2}


class TestCompute:
    def test_copies_from_unpinned_memory(self) -> None:
        copy = line("copy", 61, 0.12, text="x = x.to(device)")
        seen = watched({"copy": 0.12, "forward": 0.5}, lines=[copy])
        unpinned = on_gpu(seen, loader=from_outside(pin_memory=False), copy_share=0.12)
        finding = of(findings(unpinned), "pageable-transfer")
        assert finding.level is Level.E1 and "in train.py:61 `x = x.to(device)`" in texts(finding)
        few = on_gpu(replace(seen, samples=599), loader=from_outside(pin_memory=False), copy_share=0.12)
        assert check("pageable-transfer", run_case(few)) is None

    def test_idle_inside_steps_rests_on_stacks(self) -> None:
        busy = on_gpu(watched({"forward": 0.6}), 60, process=process(main_thread_cores=0.99))
        assert of(findings(busy), "launch-bound").level is Level.E1

    def test_a_thread_that_spins_until_the_gpu_is_done_launches_nothing(self) -> None:
        spinning = on_gpu(
            watched({"sync": 0.3, "forward": 0.5}, lines=[ITEM]), 60, process=process(main_thread_cores=0.99)
        )
        assert fired(spinning) & {"launch-bound", "sync-per-step"} == {"sync-per-step"}

    def test_a_straggler_is_recognized_by_enough_samples_of_each_rank(self) -> None:
        def ranks(samples: int) -> list[RankWindow]:
            return [
                sampled(
                    watched({"wait": wait, "backward": 0.5 - wait}, samples=samples, waits=[(1.0, wait)] * 30),
                    pid=10 + number,
                    gpus=(number,),
                    facts={"rank": number, "world_size": 3},
                    backward_share=0.5 - wait,
                    forward_share=0.3,
                    copy_share=0.0,
                )
                for number, wait in enumerate((0.0, 0.3, 0.0))
            ]

        draft = check("straggler-rank", run_case(scene(run(*ranks(1500)))))
        assert draft is not None and draft.level is Level.E1 and " of each step for rank 1: " in draft.summary
        assert check("straggler-rank", run_case(scene(run(*ranks(599))))) is None

    def test_low_use_without_a_cause_says_that_its_stack_was_looked_at(self) -> None:
        finding = of(findings(on_gpu(watched({"forward": 0.9}), 40)), "low-util")
        assert finding.fix is not None and "No cause found in the samples of its stack" in finding.fix.text


class TestLoopCode:
    """Code of the script's own, or an optimizer on the CPU, while the GPU idles."""

    def metrics(self, share: float = 0.3, **fields: Any) -> StackWindow:
        number = line("other", 75, share, text="auc = roc_auc_score(y, p)", leaf=fields.pop("leaf", "sklearn/x.py:auc"))
        return watched({"forward": 0.35, "backward": 0.65 - share}, lines=[number], **fields)

    def test_the_line_its_share_and_what_it_may_bring(self) -> None:
        finding = of(findings(on_gpu(self.metrics(), 75)), "loop-code")
        assert finding.summary == (
            "The GPU idles 25% of the time while the training thread runs the loop's own code (train.py:75)"
        )
        assert (finding.severity, finding.level) == (Severity.WARNING, Level.E1)
        assert finding.gain is not None and finding.gain.high == pytest.approx(1 / 0.75, abs=0.002)
        assert finding.gain.low == pytest.approx(1 / (1 - 0.75 * 0.25), abs=0.002)
        assert finding.fix is not None and (finding.fix.file, finding.fix.line) == (SCRIPT, 75)
        assert "the loop's own code takes 30% ± 2.3 of training (1,500 samples of its stack, 30 s)" in texts(finding)
        assert "train.py:75 `auc = roc_auc_score(y, p)`, in sklearn/x.py:auc" in texts(finding)

    def test_low_use_names_it_as_its_cause(self) -> None:
        assert "cause: loop-code" in texts(of(findings(on_gpu(self.metrics(), 70)), "low-util"))

    @pytest.mark.parametrize("utilization", [95, None])
    def test_a_gpu_that_is_busy_or_not_known_hides_it(self, utilization: float | None) -> None:
        assert "loop-code" not in fired(on_gpu(self.metrics(), utilization))

    def test_a_run_on_the_cpu_has_no_gpu_that_idles(self) -> None:
        assert "loop-code" not in fired(on_cpu(self.metrics()))

    def test_waits_that_explain_the_idle_time_are_not_its(self) -> None:
        seen = watched({"wait": 0.4, "forward": 0.3}, lines=[line("other", 75, 0.3, leaf="numpy/sort.py:sort")])
        assert "loop-code" not in fired(on_gpu(seen, 58))

    def test_a_line_of_a_short_step_may_launch_kernels(self) -> None:
        short = self.metrics(leaf=None, batches_per_second=100.0)
        assert "loop-code" not in fired(on_gpu(short, 70))
        assert "loop-code" in fired(on_gpu(self.metrics(leaf=None), 70))
        assert "loop-code" not in fired(on_gpu(self.metrics(leaf="torch/_tensor.py:pow", batches_per_second=100.0), 70))

    def test_a_wait_for_other_ranks_is_no_code_of_the_loop(self) -> None:
        waiting = self.metrics(leaf="torch/distributed_c10d.py:barrier")
        assert "loop-code" not in fired(on_gpu(waiting, 70))

    def test_what_is_done_once_in_a_while_is_no_part_of_the_loop(self) -> None:
        assert "loop-code" not in fired(on_gpu(self.metrics(), 70, aside_seconds=8.0))

    def test_a_function_that_makes_batches_is_loading(self) -> None:
        made = line("other", 20, 0.3, function="get_batch", text="x = read(i)", leaf="numpy/memmap.py:read")
        seen = watched({"forward": 0.35, "backward": 0.35}, lines=[made])
        assert "loop-code" not in fired(on_gpu(seen, 70, train_loader=None))

    def test_collections_that_the_hook_saw_are_not_its(self) -> None:
        collecting = rank(stacks=self.metrics(0.15), phases={"gc": phase("gc", share=0.12)})
        assert check("loop-code", run_case(scene(run(collecting), gpus=[gpu(utilization=70)]))) is None
        quiet = rank(stacks=self.metrics(0.15))
        assert check("loop-code", run_case(scene(run(quiet), gpus=[gpu(utilization=70)]))) is not None

    def optimizing(self, **fields: Any) -> StackWindow:
        step = line("optimizer", 66, 0.5, text="optimizer.step()", leaf="torch/adamw.py:_single_tensor_adamw")
        return watched({"forward": 0.2, "backward": 0.3, "optimizer": 0.5}, lines=[step], **fields)

    def test_an_optimizer_on_the_cpu_is_a_note_where_nothing_is_sure_to_help(self) -> None:
        finding = of(findings(on_gpu(self.optimizing(batches_per_second=1.0), 50)), "loop-code")
        assert finding.summary == "The GPU idles 40% of the time while the optimizer computes on the CPU (train.py:66)"
        assert finding.severity is Severity.INFO and finding.gain is not None and finding.gain.low == 1.0
        assert finding.fix is not None and "fused" not in finding.fix.text

    def test_one_that_is_not_fused_can_be(self) -> None:
        model = {"optimizer": "AdamW", "optimizer_fused": False, "optimizer_file": SCRIPT, "optimizer_line": 40}
        own = rank(step=1.0, optimizer_share=0.5, stacks=self.optimizing())
        facts = replace(own.facts, model=replace(own.facts.model, **model))
        moment = scene(run(replace(own, facts=facts)), gpus=[gpu(utilization=50)])
        draft = check("loop-code", run_case(moment))
        assert draft is not None and (draft.severity, draft.level) == (Severity.WARNING, Level.E2)
        assert draft.gain is not None and draft.gain.low == pytest.approx(1 / (1 - 0.5 * 0.4), abs=0.002)
        assert draft.fix is not None and draft.fix.edit is not None and "fused=True" in draft.fix.text

    def test_without_stacks_the_hook_knows_the_optimizers_share(self) -> None:
        moment = scene(run(rank(step=1.0, optimizer_share=0.5, stacks=None)), gpus=[gpu(utilization=50)])
        draft = check("loop-code", run_case(moment))
        assert draft is not None and draft.summary.endswith("while the optimizer computes on the CPU")

    def test_an_optimizer_that_only_launches_is_none(self) -> None:
        assert "loop-code" not in fired(on_gpu(self.optimizing(batches_per_second=5.0), 50))


WINDOWS: tuple[StackWindow | None, ...] = (
    None,
    watched({}, samples=0, seconds=0.0, batches_per_second=None),
    watched({"wait": 1.0}, batches_per_second=0.0),
    watched({"eval": 1.0}),
    watched({"wait": 0.5}, worker_phases={"item": 1.0}, worker_samples=1),
    watched({"wait": 0.5}, lines=[ITEM, WANDB], current_line=current_line(70, since=0)),
    StackWindow(seconds=0.0, samples=0, rejected=5, phases={}, train_phases={}),
    StackWindow(seconds=9.0, samples=700, rejected=5, phases={}, train_phases={}),
)


@pytest.mark.parametrize("seen", WINDOWS)
@pytest.mark.parametrize("device", ["cuda", "cpu", None])
@pytest.mark.parametrize("num_workers", [0, 4, None])
def test_every_rule_bears_what_is_missing(
    seen: StackWindow | None, device: str | None, num_workers: int | None
) -> None:
    base = sampled(watched({"wait": 0.4}), device=device, loader=from_outside(num_workers=num_workers))
    facts = {"stacks": seen, "phases": {"eval": phase("eval"), "checkpoint": phase("checkpoint")}}
    bare = {"process": None, "workers": None, "train_loader": None, "wait_share": None, "last_step_ns": None}
    for member in (replace(base, **facts), replace(base, **facts, **bare), replace(base, **facts, steps=0)):
        moment = scene(run(member), gpus=[gpu(utilization=60)] if device == "cuda" else [])
        holding = frozenset({"data-starvation"})
        drafts: list[Draft | None] = []
        for rule in all_rules():
            if rule.subject == "run":
                drafts.append(rule.check(run_case_of(moment, moment.runs[0], holding)))
            elif rule.subject == "gpu" and moment.gpus:
                drafts.append(rule.check(gpu_case_of(moment, moment.gpus[0], holding)))
            elif rule.subject == "machine":
                drafts.append(rule.check(MachineCase(scene=moment, holding=holding)))
        assert all(draft is None or says_figures(draft) for draft in (*drafts, *findings(moment)))


def test_a_healthy_run_is_silent() -> None:
    seen = watched(
        {"wait": 0.02, "forward": 0.4, "backward": 0.4, "optimizer": 0.1, "sync": 0.02, "log": 0.01},
        samples=6000,
        worker_phases={"item": 0.4, "collate": 0.1},
        receiving_share=0.01,
        lines=[line("forward", 62, 0.4), line("backward", 63, 0.4)],
        worker_lines=[line("item", 31, 0.3)],
    )
    assert fired(on_gpu(seen, 96)) == set()
    assert fired(on_cpu(seen)) == set()
