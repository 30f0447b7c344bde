"""The data pipeline's rules on stacks: what they say without a hook, and what stacks add to one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from scene_builder import (
    SCRIPT,
    check,
    findings,
    fired,
    gpu,
    host,
    loader,
    machine,
    process,
    rank,
    run,
    run_case,
    scene,
    workers,
)
from stack_windows import from_outside, line, sampled, share, watched

from gpuwatch.diagnosis.finding import Draft, Finding, Level, LoopEdit, Severity
from gpuwatch.timeline.windows import LineShare, ProcessTotals, RankWindow, Scene, StackWindow

STARVED = frozenset({"data-starvation"})
BLUR = line(
    "wait", 31, 0.32, text="img = img.filter(ImageFilter.GaussianBlur(2))", leaf="PIL/Image.py:filter", function="load"
)
WORKER_BLUR = line("item", 31, 0.6, text="img = img.filter(GaussianBlur(2))", leaf="PIL/Image.py:filter")
NO_WORKERS = from_outside(num_workers=0)


def of(said: tuple[Finding, ...], rule: str) -> Finding:
    (finding,) = [finding for finding in said if finding.rule == rule]
    return finding


def drafted(rule: str, moment: Scene, holding: frozenset[str] = STARVED) -> Draft:
    draft = check(rule, run_case(moment, holding=holding))
    assert draft is not None
    return draft


def texts(found: Draft | Finding) -> str:
    return " | ".join(measure.text for measure in found.evidence)


def on_cpu(seen: StackWindow, **fields: Any) -> Scene:
    usual: dict[str, Any] = {"process": process(cores=4, main_thread_cores=1.0, tree_cores=1.3)}
    return scene(run(sampled(seen, device="cpu", **(usual | fields))), gpus=[], machine=machine(4))


def on_gpu(seen: StackWindow, utilization: float | None = 55.0, **fields: Any) -> Scene:
    return scene(run(sampled(seen, **fields)), gpus=[gpu(utilization=utilization)])


def crowded(seen: StackWindow, **fields: Any) -> Scene:
    """Four workers on five cores of which they leave nothing."""
    own = process(cores=5, tree_cores=4.5)
    member = sampled(seen, process=own, **fields)
    return scene(run(member), gpus=[gpu(utilization=55)], machine=machine(5), host=host(cpu_percent=85))


class TestStarvation:
    def test_on_the_cpu_the_sentence_says_how_much_and_where(self) -> None:
        seen = watched({"wait": 0.5, "backward": 0.1}, lines=[BLUR])
        finding = of(findings(on_cpu(seen, loader=NO_WORKERS)), "data-starvation")
        assert finding.summary == (
            "Training waits about 50% of the time for the next batch: 64% of the wait is train.py:31"
        )
        assert (finding.severity, finding.level) == (Severity.WARNING, Level.E1)
        assert "waits for data 50% ± 2.5 (1,500 samples of its stack, 30 s)" in texts(finding)
        hot = next(measure for measure in finding.evidence if measure.name == "hot_line")
        assert hot.value == f"{SCRIPT}:31"
        assert "in PIL/Image.py:filter (750 samples)" in hot.text

    def test_a_loop_in_which_nothing_is_trained_is_not_called_training(self) -> None:
        seen = watched({"wait": 0.5, "forward": 0.3}, lines=[BLUR])
        said = findings(on_cpu(seen, loader=NO_WORKERS))
        assert of(said, "data-starvation").summary.startswith("The loop waits about 50% of the time")
        assert "and the loop waits for it" in of(said, "workers-zero").summary
        hooked = rank(step=0.1, wait=0.05, device=None, loader=loader(num_workers=0), facts={"torch": "2.13.0"})
        finding = of(findings(scene(run(hooked), gpus=[])), "data-starvation")
        assert finding.summary.startswith("The loop waits about 50% of the time")

    def test_with_a_gpu_it_is_the_smaller_of_wait_and_idle(self) -> None:
        finding = of(findings(on_gpu(watched({"wait": 0.5}), 70, loader=NO_WORKERS)), "data-starvation")
        assert finding.summary.startswith("The GPU idles about 30% of the time")
        assert any(note.startswith("likely") for note in finding.confidence_notes)

    def test_a_tenth_fires_a_little_less_does_not_and_six_percent_clears(self) -> None:
        def draft(wait: float) -> Draft | None:
            return check("data-starvation", run_case(on_cpu(watched({"wait": wait}), loader=NO_WORKERS)))

        above, between = draft(0.107), draft(0.098)
        assert above is not None and above.fires
        assert between is not None and not between.fires
        assert draft(0.06) is None

    def test_599_samples_say_nothing_whatever_they_show(self) -> None:
        few = watched({"wait": 0.9}, samples=599)
        assert check("data-starvation", run_case(on_cpu(few, loader=NO_WORKERS))) is None
        assert "data-starvation" in fired(on_cpu(watched({"wait": 0.9}, samples=600), loader=NO_WORKERS))

    @pytest.mark.parametrize(
        "moment",
        [
            pytest.param(on_gpu(watched({"wait": 0.5}), 98, loader=NO_WORKERS), id="hidden behind the GPU"),
            pytest.param(on_gpu(watched({"wait": 0.5}), None, loader=NO_WORKERS), id="utilization not reported"),
            pytest.param(on_cpu(watched({"wait": 0.03}), loader=NO_WORKERS), id="it hardly waits"),
            pytest.param(
                on_cpu(watched({"wait": 0.3}, batches_per_second=800.0), loader=NO_WORKERS), id="1 ms from memory"
            ),
            pytest.param(
                on_cpu(watched({"wait": 0.2}, batches_per_second=120.0, worker_phases={"item": 0.1})),
                id="idle workers hand over at once",
            ),
            pytest.param(on_cpu(watched({"wait": 0.2}, first_wait_share=0.18)), id="first batches of epochs only"),
            pytest.param(on_cpu(watched({"wait": 0.04, "eval": 0.5}), loader=NO_WORKERS), id="an evaluation"),
        ],
    )
    def test_silent(self, moment: Scene) -> None:
        assert "data-starvation" not in fired(moment)

    def test_the_fix_stands_at_the_loop_where_the_loaders_call_is_not_known(self) -> None:
        fix = of(findings(on_cpu(watched({"wait": 0.5}), loader=NO_WORKERS)), "data-starvation").fix
        assert fix is not None and (fix.file, fix.line) == (SCRIPT, 60)
        assert isinstance(fix.edit, LoopEdit) and (fix.edit.file, fix.edit.line) == (SCRIPT, 60)
        assert "it is the loader that train.py:60 loops over" in fix.text
        built = from_outside(num_workers=0, file=SCRIPT, line=12)
        fix = of(findings(on_cpu(watched({"wait": 0.5}), loader=built)), "data-starvation").fix
        assert fix is not None and fix.line == 12 and fix.edit is not None

    def test_without_a_cause_the_workers_line_is_named_and_no_other_tool(self) -> None:
        idle = watched({"wait": 0.5}, worker_phases={"item": 0.5}, worker_lines=[line("item", 31, 0.4, text="f(x)")])
        fix = of(findings(on_gpu(idle)), "data-starvation").fix
        assert fix is not None and (fix.file, fix.line) == (SCRIPT, 31)
        assert "busy only 50% of the time" in fix.text and "train.py:31 `f(x)`" in fix.text
        assert "py-spy" not in fix.text

    @pytest.mark.parametrize(
        ("epochs", "persistent", "said"), [(60, False, True), (60, None, False), (60, True, False), (3, False, False)]
    )
    def test_workers_that_live_for_an_epoch_of_half_a_second_are_not_called_unknown(
        self, epochs: int, persistent: bool | None, said: bool
    ) -> None:
        brief = from_outside(num_workers=4, persistent_workers=persistent, file=SCRIPT, line=12)
        fix = of(findings(on_gpu(watched({"wait": 0.5}, epochs=epochs), loader=brief)), "data-starvation").fix
        assert fix is not None
        assert fix.text.startswith("Its workers live for 500 ms, one epoch") is said
        assert ("It is not known what its workers do" in fix.text) is not said
        assert (fix.code == "DataLoader(..., persistent_workers=True)") is said

    def test_beside_a_hook_the_figure_stays_exact_and_the_line_is_added(self) -> None:
        seen = watched({"wait": 0.5}, lines=[BLUR], batches_per_second=None)
        member = rank(step=0.2, wait=0.1, gap=0.1, loader=loader(num_workers=0), stacks=seen)
        finding = of(findings(scene(run(member), gpus=[gpu(utilization=50)])), "data-starvation")
        assert finding.summary == (
            "The GPU idles 50% of the time waiting for the next batch: 64% of the wait is train.py:31"
        )
        assert (finding.severity, finding.level) == (Severity.CRITICAL, Level.E3)

    def test_beside_a_hook_too_few_samples_change_nothing(self) -> None:
        def said(**fields: Any) -> set[tuple[str, str]]:
            member = rank(step=0.2, wait=0.1, gap=0.1, loader=loader(num_workers=0), **fields)
            return {(f.rule, f.summary) for f in findings(scene(run(member), gpus=[gpu(utilization=50)]))}

        assert said() == said(stacks=watched({"wait": 0.5}, samples=20, lines=[BLUR]))

    def test_a_gpu_that_idles_while_graphs_are_compiled_does_not_wait_for_data(self) -> None:
        # Of the time 0.2 are compilations and 0.28 waits behind queued work: the GPU works 0.78, all but 0.02 of 0.8.
        seen = watched({"wait": 0.28, "compile": 0.2, "backward": 0.52}, worker_phases={"item": 0.9})
        moment = scene(run(sampled(seen)), gpus=[gpu(utilization=78.0)])
        assert "data-starvation" not in fired(moment)
        assert "data-starvation" in fired(replace(moment, gpus=(gpu(utilization=60.0),)))


class TestThreadsThatMakeBatches:
    """A thread of the training process fills a queue; the training waits for that."""

    def fed(self, *, making: float = 0.95, looks: int = 400, handed: int | None = None, **fields: Any) -> StackWindow:
        waits = round(1500 * fields.get("wait", 0.5))
        made = round(looks * making)
        usual: dict[str, Any] = {
            "handed_samples": waits if handed is None else handed,
            "feeder_rounds": looks,
            "feeder_samples": looks,
            "feeder_phases": {
                "make": share(making, looks),
                "wait": share(0.0, looks),
                "idle": share(1 - making, looks),
            },
            "feeder_lines": (self.decoding(made, looks),),
        }
        wait = fields.pop("wait", 0.5)
        return watched({"wait": wait, "backward": 0.1}, **(usual | fields))

    def decoding(self, samples: int, of: int) -> LineShare:
        text = "image = decode(path)"
        return LineShare("make", SCRIPT, 44, "_run", samples, share(samples / of, of), text=text)

    def test_without_a_loader_the_thread_and_its_line_are_the_cause(self) -> None:
        member = replace(sampled(self.fed(batches_per_second=None), device="cpu"), train_loader=None)
        moment = scene(run(member), gpus=[], machine=machine(4))
        finding = of(findings(moment), "data-starvation")
        assert finding.summary == (
            "Training waits about 50% of the time for the next batch: 100% of the loading thread's time is train.py:44"
        )
        fix = finding.fix
        assert fix is not None and (fix.file, fix.line, fix.value) == (SCRIPT, 44, 3)
        assert fix.text.startswith("Let 3 worker processes make them") and "interpreter" in fix.text
        assert "The thread is busy 95% of the time" in fix.text
        assert finding.gain is not None and finding.gain.cap == "if enough cores are free"

    def test_a_thread_that_is_busy_half_of_the_time_needs_fewer_workers(self) -> None:
        seen = self.fed(making=0.5, batches_per_second=None)
        moment = scene(run(replace(sampled(seen, device="cpu"), train_loader=None)), gpus=[], machine=machine(4))
        fix = of(findings(moment), "data-starvation").fix
        assert fix is not None and fix.value == 2

    def test_of_a_loader_without_workers_it_is_that_and_the_thread_counts_as_one(self) -> None:
        moment = on_cpu(self.fed(), loader=from_outside(num_workers=0))
        finding = of(findings(moment), "workers-zero")
        assert finding.summary.startswith("Batches are loaded by a thread of the training process: each takes 190 ms")
        assert "shares the interpreter with the training" in (finding.fix.text if finding.fix else "")

    def test_a_hooked_run_that_reads_no_loader_is_starved_too(self) -> None:
        seen = self.fed(batches_per_second=None)
        unseen = {"wait_share": None, "settled_wait_share": None}
        member = rank(step=0.2, wait=math.nan, device="cpu", stacks=seen, loader=loader(num_workers=0), **unseen)
        moment = scene(run(member), gpus=[], machine=machine(4))
        finding = of(findings(moment), "data-starvation")
        assert (finding.level, finding.severity) == (Level.E1, Severity.WARNING)
        assert "the loading thread's time is train.py:44" in finding.summary

    @pytest.mark.parametrize(
        ("case", "said"),
        [
            pytest.param({"making": 0.2}, False, id="the threads only pass on what worker processes make"),
            pytest.param({"looks": 10}, False, id="too few looks at the threads"),
            pytest.param({"handed": 100}, False, id="most waits are for a loader"),
            pytest.param({}, True, id="they make batches"),
        ],
    )
    def test_the_thread_is_named_only_where_it_makes_what_is_waited_for(self, case: dict[str, Any], said: bool) -> None:
        finding = of(findings(on_cpu(self.fed(**case), loader=from_outside(num_workers=0))), "data-starvation")
        assert ("loading thread" in finding.summary) is said

    def test_a_thread_that_keeps_up_is_no_finding(self) -> None:
        assert fired(on_cpu(self.fed(wait=0.03), loader=from_outside(num_workers=0))) == set()


class TestLoopsOwnLoading:
    def loop(
        self, utilization: float | None = 60.0, device: str = "cuda", cpu_percent: float = 50.0, **fields: Any
    ) -> Scene:
        lines = [
            line("other", 88, 0.15, function="get_batch", text="x = torch.stack([...])"),
            line("copy", 90, 0.05, function="get_batch", text="x = x.to(device)"),
            line("other", 120, 0.03, function="train"),
        ]
        seen = watched({"forward": 0.4, "backward": 0.3, "copy": 0.05}, lines=fields.pop("lines", lines), **fields)
        member = replace(sampled(seen, device=device), train_loader=None)
        busy = host(cpu_percent=cpu_percent)
        return scene(run(member), gpus=[gpu(utilization=utilization)] if device == "cuda" else [], host=busy)

    def test_the_function_that_makes_the_batches_is_named_and_no_loader_claimed(self) -> None:
        finding = of(findings(self.loop()), "data-starvation")
        assert finding.summary == (
            "The GPU idles about 20% of the time while the loop makes its own batch: get_batch at train.py:88"
        )
        assert (finding.severity, finding.level) == (Severity.WARNING, Level.E1)
        assert finding.gain is not None and (finding.gain.low, finding.gain.high) == (1.0, 1.25)
        assert finding.fix is not None and (finding.fix.line, finding.fix.edit) == (88, None)

    def test_it_costs_no_more_than_the_gpu_idles(self) -> None:
        assert "data-starvation" not in fired(self.loop(utilization=95.0))
        assert of(findings(self.loop(utilization=88.0)), "data-starvation").summary.startswith(
            "The GPU idles about 12%"
        )

    def test_on_the_cpu_it_is_all_of_the_time_as_far_as_cores_are_idle(self) -> None:
        finding = of(findings(self.loop(device="cpu")), "data-starvation")
        assert finding.summary == (
            "Training waits about 20% of the time while the loop makes its own batch: get_batch at train.py:88"
        )
        assert finding.fix is not None and "GPU" not in finding.fix.text
        assert "data-starvation" not in fired(self.loop(device="cpu", cpu_percent=99.0))

    @pytest.mark.parametrize(
        ("own_cores", "cpu_percent", "lost_percent"),
        [(1.76, 88.0, 12), (1.16, 58.0, 20), (0.4, 94.0, 20)],
        ids=["both cores nearly full", "less than a whole core free", "another program keeps the other core busy"],
    )
    def test_on_two_cores_it_costs_no_more_than_they_idle(
        self, own_cores: float, cpu_percent: float, lost_percent: int
    ) -> None:
        moment = self.loop(device="cpu", cpu_percent=cpu_percent)
        alone = replace(moment.runs[0].critical, process=process(cores=2, tree_cores=own_cores))
        finding = of(findings(replace(moment, runs=(run(alone),), machine=machine(2))), "data-starvation")
        assert finding.summary.startswith(f"Training waits about {lost_percent}% of the time")
        assert finding.gain is not None and finding.gain.high == pytest.approx(1 / (1 - lost_percent / 100), abs=0.001)

    def test_what_the_function_calls_counts_and_is_named(self) -> None:
        lines = [line("other", 40 + place, 0.04, function="tokenize") for place in range(6)]
        call = line("other", 88, 0.26, function="get_batch", text="x = tokenize(t)", callee="tokenize")
        entry = line("other", 120, 0.28, function="train", text="x, y = get_batch()", callee="get_batch")
        calls = [(share, {**fields, "callee_file": SCRIPT}) for share, fields in (call, entry)]
        finding = of(findings(self.loop(lines=lines, calls=calls)), "data-starvation")
        assert finding.summary.startswith("The GPU idles about 28% of the time while the loop makes its own batch")
        assert finding.summary.endswith("get_batch, most of it in tokenize() called in train.py:88")

    def test_what_is_called_two_calls_down_counts_too(self) -> None:
        lines = [line("other", 40 + place, 0.05, function="clean") for place in range(4)]
        calls = [
            (share, {**fields, "callee_file": SCRIPT})
            for share, fields in (
                line("other", 88, 0.21, function="tokenize", text="t = clean(t)", callee="clean"),
                line("other", 99, 0.22, function="get_batch", text="x = tokenize(t)", callee="tokenize"),
                line("other", 120, 0.23, function="train", text="x, y = get_batch()", callee="get_batch"),
            )
        ]
        finding = of(findings(self.loop(lines=lines, calls=calls)), "data-starvation")
        assert finding.fix is not None and (finding.fix.line, "get_batch" in finding.summary) == (88, True)
        assert "in clean() called in train.py:88" in finding.summary

    def test_of_two_functions_that_make_batches_the_one_that_takes_longer_is_named(self) -> None:
        lines = [line("other", 60, 0.05, function="load_data"), line("other", 88, 0.2, function="get_batch")]
        for seen in (lines, lines[::-1]):
            assert "get_batch at train.py:88" in of(findings(self.loop(lines=seen)), "data-starvation").summary

    def test_a_class_that_is_called_a_loader_makes_no_batches_by_that(self) -> None:
        assert "data-starvation" not in fired(self.loop(lines=[line("other", 88, 0.3, function="DataLoaderX.step")]))

    def test_nothing_is_said_without_utilization_or_on_few_samples(self) -> None:
        assert "data-starvation" not in fired(self.loop(utilization=None))
        assert check("data-starvation", run_case(self.loop(samples=599))) is None

    def test_other_python_of_the_loop_is_no_loading(self) -> None:
        lines = [line("other", 120, 0.2, function="train_batch"), line("other", 130, 0.1, function="update_ema")]
        assert "data-starvation" not in fired(self.loop(lines=lines))

    def test_a_tenth_of_the_training_thread_is_the_least(self) -> None:
        lines = [line("other", 88, 0.08, function="get_batch")]
        assert "data-starvation" not in fired(self.loop(lines=lines))

    def test_it_is_found_beside_a_hook_that_sees_no_loader(self) -> None:
        (hidden,) = self.loop().runs
        member = rank(step=0.2, stacks=hidden.critical.stacks)
        blind = replace(member, wait_share=None, settled_wait_share=None, train_loader=None)
        assert "data-starvation" in fired(scene(run(blind), gpus=[gpu(utilization=60)]))


class TestWorkersZero:
    def test_the_value_and_the_gain_follow_from_counted_batches(self) -> None:
        moment = on_gpu(watched({"wait": 0.667}, samples=6000), 33, loader=NO_WORKERS)
        draft = drafted("workers-zero", moment)
        assert draft.level is Level.E1
        assert draft.fix is not None and draft.fix.value == 3
        assert draft.fix.code == "DataLoader(..., num_workers=3, persistent_workers=True)"
        assert draft.gain is not None and draft.gain.low < 1 / (1 - 0.667) < 1.02 * draft.gain.high
        assert draft.gain.low == pytest.approx(1 / (1 - 0.667), rel=0.07)

    def test_the_hot_line_is_in_the_evidence(self) -> None:
        draft = drafted("workers-zero", on_cpu(watched({"wait": 0.5}, lines=[BLUR]), loader=NO_WORKERS))
        assert "64% ± 3.4 of the waits in train.py:31" in texts(draft)
        assert "100 ms to load a batch | 100 ms to train on it" in texts(draft)

    def test_without_counted_batches_it_computes_no_value(self) -> None:
        blind = on_cpu(watched({"wait": 0.5}, batches_per_second=None), loader=NO_WORKERS)
        assert check("workers-zero", run_case(blind, holding=STARVED)) is None

    def test_training_that_needs_the_cores_itself_gets_no_workers(self) -> None:
        own = process(cores=2, main_thread_cores=1.0, tree_cores=1.9)
        member = sampled(watched({"wait": 0.12}), device="cpu", loader=NO_WORKERS, process=own)
        moment = scene(run(member), gpus=[], machine=machine(2), host=host(cpu_percent=98))
        assert "workers-zero" not in fired(moment)


class TestWorkersTooFew:
    def test_busy_workers_and_free_cores(self) -> None:
        seen = watched({"wait": 0.5}, worker_phases={"item": 0.9, "collate": 0.06}, worker_lines=[WORKER_BLUR])
        finding = of(findings(on_gpu(seen)), "workers-too-few")
        assert finding.summary.startswith("The 4 workers are 96% busy and cannot keep up, while 13 of 16 cores")
        assert finding.level is Level.E1
        assert finding.fix is not None and isinstance(finding.fix.value, int) and finding.fix.value > 4
        assert "62% ± 2.8 of the workers' time in train.py:31" in texts(finding)

    def test_workers_that_idle_or_are_hardly_seen_are_not_too_few(self) -> None:
        assert "workers-too-few" not in fired(on_gpu(watched({"wait": 0.5}, worker_phases={"item": 0.8})))
        assert "workers-too-few" not in fired(on_gpu(watched({"wait": 0.5})))
        hardly = watched({"wait": 0.5}, worker_phases={"item": 0.99}, worker_samples=150)
        assert "workers-too-few" not in fired(on_gpu(hardly))


class TestTooManyWorkers:
    def test_from_outside(self) -> None:
        own = process(cores=4, tree_cores=3.9)
        crowd = sampled(
            watched({"wait": 0.3}, worker_phases={"item": 0.9}),
            loader=from_outside(num_workers=16),
            workers=workers(16, cpu_cores=0.21, busy_share=None),
            process=own,
        )
        moment = scene(run(crowd), gpus=[gpu(utilization=60)], machine=machine(4), host=host(cpu_percent=99))
        finding = of(findings(moment), "too-many-workers")
        assert finding.level is Level.E1
        assert finding.fix is not None and (finding.fix.value, finding.fix.line) == (3, 60)


class TestWorkerCpuBound:
    SEEN = watched({"wait": 0.5}, worker_phases={"item": 0.9, "collate": 0.06}, worker_lines=[WORKER_BLUR])

    def test_the_line_its_share_the_work_and_what_it_brings(self) -> None:
        finding = of(findings(crowded(self.SEEN)), "worker-cpu-bound")
        assert finding.summary.endswith("carry no more workers; 62% of it goes into train.py:31")
        assert finding.fix is not None and (finding.fix.file, finding.fix.line) == (SCRIPT, 31)
        assert "which is augmentation and takes 62% ± 2.8 of the workers' time: do it on the GPU" in finding.fix.text
        assert finding.gain is not None and finding.hint is None
        # Removed: a batch of 768 ms becomes one of 288 ms in four workers, so computing sets the pace.
        assert 1.1 < finding.gain.low < finding.gain.high <= 1 / (1 - 0.45) * 1.01
        assert finding.gain.cap is not None and finding.gain.cap.startswith("from halving that to removing it")

    def test_a_function_that_is_spread_over_many_lines_is_named_with_where_it_is_called(self) -> None:
        inside = [line("item", 57 + place, 0.06, function="elastic", text="x = f(x)") for place in range(7)]
        calls = [
            line(
                "item",
                34,
                0.42,
                function="__getitem__",
                text="image = elastic(image)",
                callee="elastic",
                callee_file=SCRIPT,
            )
        ]
        beside = line("item", 31, 0.20, function="__getitem__", text="img = img.filter(2)")
        seen = watched({"wait": 0.5}, worker_phases={"item": 0.9}, worker_lines=[beside, *inside], worker_calls=calls)
        finding = of(findings(crowded(seen)), "worker-cpu-bound")
        assert finding.summary.endswith("47% of it goes into elastic() called in train.py:34")
        assert finding.fix is not None and (finding.fix.file, finding.fix.line) == (SCRIPT, 34)
        assert "Make elastic() called in train.py:34 `image = elastic(image)` (mostly lines" in finding.fix.text

    def test_a_small_line_promises_little(self) -> None:
        small = watched(
            {"wait": 0.5}, worker_phases={"item": 0.96}, worker_lines=[line("item", 31, 0.11, text="x = f(y)")]
        )
        big = drafted("worker-cpu-bound", crowded(self.SEEN)).gain
        little = drafted("worker-cpu-bound", crowded(small)).gain
        assert big is not None and (little is None or little.high < big.low * 1.1)

    def test_decoding_gets_the_decoders_and_no_gpu(self) -> None:
        decode = line("item", 30, 0.7, text="Image.open(p).convert('RGB')", leaf="PIL/ImageFile.py:load")
        seen = watched({"wait": 0.5}, worker_phases={"item": 0.95}, worker_lines=[decode])
        fix = drafted("worker-cpu-bound", crowded(seen)).fix
        assert fix is not None and "which is decoding" in fix.text and "simplejpeg" in fix.text

    def test_without_workers_stacks_it_says_what_it_said(self) -> None:
        draft = drafted("worker-cpu-bound", crowded(watched({"wait": 0.5}, worker_phases={"item": 0.95})))
        assert draft.gain is None and draft.hint is not None and draft.fix is not None and draft.fix.line == 60

    def test_beside_a_hook_the_line_is_named_and_the_gain_computed(self) -> None:
        waits = [0.0, 0.0, 0.0, 0.4]
        member = rank(
            step=[0.1 + wait for wait in waits],
            wait=waits,
            gap=waits,
            workers=workers(4, batch_seconds=0.8, batch_cpu_seconds=0.76),
            process=process(cores=5, tree_cores=4.5),
            stacks=self.SEEN,
        )
        moment = scene(run(member), gpus=[gpu(utilization=50)], machine=machine(5), host=host(cpu_percent=85))
        draft = drafted("worker-cpu-bound", moment)
        assert draft.level is Level.E3 and draft.fix is not None and draft.fix.line == 31
        assert draft.gain is not None and 1.1 < draft.gain.low < draft.gain.high < 2.1

    def test_all_cores_busy_names_the_line_too(self) -> None:
        moment = replace(crowded(self.SEEN), host=host(cpu_percent=98))
        fix = drafted("host-cpu-exhausted", moment).fix
        assert fix is not None and fix.line == 31 and "first of all train.py:31" in fix.text


class TestHostCpuExhausted:
    def beside_others(self, delay: float) -> Scene:
        """Two workers that get a seventh of a core each, on two cores that other processes fill."""
        seen = watched({"wait": 0.7}, worker_phases={"item": 0.95}, worker_lines=[WORKER_BLUR])
        own = process(cores=2, tree_cores=0.4, main_thread_cores=0.1, run_delay_share=delay)
        member = sampled(
            seen,
            device="cpu",
            loader=from_outside(num_workers=2),
            workers=workers(2, cpu_cores=0.15, busy_share=None),
            process=own,
        )
        return scene(run(member), gpus=[], machine=machine(2), host=host(cpu_percent=100, pressure_cpu_percent=85))

    def test_workers_that_stand_in_line_for_a_core_do_not_look_like_waiting_ones(self) -> None:
        finding = of(findings(self.beside_others(delay=0.3)), "host-cpu-exhausted")
        assert finding.summary.startswith("Other processes take 80%")
        assert "of the workers' time in train.py:31" in texts(finding)

    def test_items_that_wait_do_not_blame_the_cores(self) -> None:
        assert "host-cpu-exhausted" not in fired(self.beside_others(delay=0.0))


class TestSlowCollate:
    def shipped(self, phases: dict[str, float], receiving: float = 0.0, **fields: Any) -> Scene:
        lines = fields.pop("worker_lines", [line("collate", 20, 0.3, function="merge", text="torch.stack(xs)")])
        seen = watched({"wait": 0.4}, worker_phases=phases, worker_lines=lines, receiving_share=receiving, **fields)
        return crowded(seen)

    def test_collating_that_takes_more_than_any_line_of_the_items(self) -> None:
        moment = self.shipped({"item": 0.5, "collate": 0.4, "send": 0.06})
        finding = of(findings(moment), "slow-collate-ipc")
        assert finding.summary == (
            "Workers spend 48% of their work on building and sending batches (train.py:20), not on the items"
        )
        assert finding.level is Level.E1
        assert finding.fix is not None and finding.fix.line == 20 and "uint8" in finding.fix.text
        assert of(findings(moment), "data-starvation").fix == finding.fix

    def test_a_line_of_the_items_that_takes_more_comes_first(self) -> None:
        lines = [line("collate", 20, 0.3), line("item", 31, 0.5)]
        moment = self.shipped({"item": 0.6, "collate": 0.36}, worker_lines=lines)
        assert "slow-collate-ipc" not in fired(moment)
        assert of(findings(moment), "data-starvation").fix == of(findings(moment), "worker-cpu-bound").fix

    def test_below_three_tenths_it_does_not_fire(self) -> None:
        assert not drafted("slow-collate-ipc", self.shipped({"item": 0.7, "collate": 0.25}, worker_lines=[])).fires
        quiet = self.shipped({"item": 0.9, "collate": 0.1})
        assert check("slow-collate-ipc", run_case(quiet, holding=STARVED)) is None

    def test_taking_over_batches_counts_on_the_training_thread(self) -> None:
        idle = {"item": 0.3, "collate": 0.02}
        finding = of(findings(self.shipped(idle, receiving=0.12, worker_lines=[])), "slow-collate-ipc")
        assert finding.summary == "Receiving the batches that workers send costs the training thread 12% of its time"
        assert finding.gain is not None and finding.gain.high < 1 / (1 - 0.12)
        assert not drafted("slow-collate-ipc", self.shipped(idle, receiving=0.09, worker_lines=[])).fires

    def test_workers_that_idle_get_no_promise_for_building(self) -> None:
        draft = drafted("slow-collate-ipc", self.shipped({"item": 0.1, "collate": 0.3}))
        assert draft.gain is None and draft.hint is not None

    def test_few_looks_at_workers_or_none_say_nothing(self) -> None:
        few = self.shipped({"item": 0.5, "collate": 0.46}, worker_samples=150)
        assert check("slow-collate-ipc", run_case(few, holding=STARVED)) is None
        alone = on_cpu(watched({"wait": 0.5}, receiving_share=0.2), loader=NO_WORKERS)
        assert check("slow-collate-ipc", run_case(alone, holding=STARVED)) is None

    def test_without_starvation_it_is_silent(self) -> None:
        assert check("slow-collate-ipc", run_case(self.shipped({"item": 0.5, "collate": 0.4}))) is None


class TestIoBound:
    READ = line("item", 20, 0.6, text="data = f.read()")

    def reading(self, cpu_cores: float = 0.1, lines: list[Any] | None = None, **fields: Any) -> Scene:
        seen = watched({"wait": 0.4}, worker_phases={"item": 0.95}, worker_lines=lines or [self.READ])
        made = workers(4, cpu_cores=cpu_cores, blocked_share=0.0, busy_share=None)
        return replace(on_gpu(seen, workers=made), **fields)

    def test_lines_that_read_while_hardly_anything_is_computed(self) -> None:
        finding = of(findings(self.reading()), "io-bound")
        assert finding.summary == (
            "Workers spend 63% of their time in reading files, most at train.py:20, and compute little meanwhile"
        )
        assert finding.level is Level.E1
        assert finding.fix is not None and "train.py:20 `data = f.read()`" in finding.fix.text
        assert of(findings(self.reading()), "data-starvation").fix == finding.fix

    def test_the_same_lines_of_workers_that_compute_are_not(self) -> None:
        assert "io-bound" not in fired(self.reading(cpu_cores=0.9))

    def test_lines_that_do_not_read_are_not(self) -> None:
        assert "io-bound" not in fired(self.reading(lines=[line("item", 20, 0.9, text="time.sleep(0.1)")]))

    def test_too_small_a_part_is_not(self) -> None:
        some = self.reading(lines=[line("item", 20, 0.2, text="data = f.read()")])
        assert not drafted("io-bound", some).fires
        assert "io-bound" not in fired(self.reading(lines=[line("item", 20, 0.12, text="data = f.read()")]))

    def test_on_a_full_machine_a_line_may_wait_for_a_core(self) -> None:
        assert "io-bound" not in fired(self.reading(host=host(cpu_percent=97)))

    @pytest.mark.parametrize(
        "own",
        [
            pytest.param(process(throttled_period_share=0.6), id="a quota stops it"),
            pytest.param(process(involuntary_switches_per_second=900.0), id="workers push each other off"),
            pytest.param(process(main_thread_cores=0.1, run_delay_share=0.5), id="waiting for a core"),
        ],
    )
    def test_workers_that_lack_a_core_are_not_waiting_for_storage(self, own: ProcessTotals) -> None:
        moment = self.reading()
        member = replace(moment.runs[0].critical, process=own)
        assert check("io-bound", run_case(scene(run(member), gpus=moment.gpus), holding=STARVED)) is None

    def test_without_workers_the_waits_are_looked_at_and_no_queue_is_asked_for(self) -> None:
        seen = watched({"wait": 0.4}, lines=[line("wait", 20, 0.3, text="data = f.read()")])
        moment = on_gpu(seen, 65, loader=NO_WORKERS, process=process(main_thread_cores=0.1))
        said = findings(moment)
        assert of(said, "io-bound").summary.startswith("Loading spends 75% of its time in reading files")
        assert of(said, "data-starvation").fix == of(said, "workers-zero").fix, "workers come first"
        blind = replace(seen, batches_per_second=None)
        fix = drafted("io-bound", on_gpu(blind, 65, loader=NO_WORKERS, process=process(main_thread_cores=0.1))).fix
        assert fix is not None and fix.code is None


class TestEpochStart:
    def started(self, start: float = 0.06, first: float = 0.1, epochs: int = 6, **fields: Any) -> RankWindow:
        seen = watched(
            {"wait": 0.15, "start": start},
            first_wait_share=first,
            epochs=epochs,
            worker_phases={"item": 0.4},
            **fields,
        )
        made = workers(pids_changed=True, busy_share=None)
        return sampled(seen, loader=from_outside(persistent_workers=False), device="cpu", workers=made)

    def said(self, member: RankWindow) -> Draft | None:
        return check("epoch-start-stall", run_case(scene(run(member), gpus=[])))

    def test_starting_workers_and_waiting_for_the_first_batch(self) -> None:
        draft = self.said(self.started())
        assert draft is not None and draft.fires and draft.level is Level.E1
        assert draft.summary == "Between two epochs lies a pause of 800 ms: 16% of the time in all"
        assert "pauses between epochs take 16% ± 1.9 (1,500 samples of its stack, 30 s)" in texts(draft)
        assert "new ones from epoch to epoch" in texts(draft)
        assert draft.fix is not None and draft.fix.code == "DataLoader(..., persistent_workers=True)"
        assert "epoch-start-stall" in fired(scene(run(self.started()), gpus=[]))

    def test_workers_that_live_on_still_make_the_first_batch_and_the_gpu_idles_no_more_than_it_does(self) -> None:
        """A pause of 800 ms; four workers that are busy 40% of 168 ms a batch take 320 ms for one."""
        draft = self.said(self.started())
        assert draft is not None and draft.gain is not None
        assert draft.gain.high == pytest.approx(1 / (1 - 0.18 * (1 - 0.3 / 0.8)), abs=0.01)
        assert draft.gain.low == pytest.approx(1 / (1 - 0.16 * (1 - 0.32 / 0.8)), abs=0.03)
        own = self.started()
        own = replace(own, facts=replace(own.facts, device="cuda", gpu_uuids=("GPU-0",)))
        found = check("epoch-start-stall", run_case(scene(run(own), gpus=[gpu()])))
        assert found is None, "the GPU idles 3% of the time at most"

    def test_on_full_cores_workers_that_begin_together_make_their_first_batches_more_slowly(self) -> None:
        """Four that are busy 40% of 168 ms a batch take 320 ms for one, and 800 ms where all of them compute."""
        full = scene(run(self.started()), gpus=[], host=host(cpu_percent=97))
        draft = check("epoch-start-stall", run_case(full))
        assert draft is not None and draft.gain is not None and draft.gain.low == pytest.approx(1.0, abs=0.01)
        assert draft.severity is Severity.INFO

    def test_the_session_begins_its_first_epoch_once(self) -> None:
        assert self.said(self.started(first=0.1, beginning_share=0.05)) is not None
        assert self.said(self.started(first=0.1, beginning_share=0.14)) is None

    def test_one_epoch_or_few_samples_prove_nothing(self) -> None:
        assert self.said(self.started(epochs=1)) is None
        assert self.said(self.started(samples=599)) is None

    def test_a_twentieth_is_needed(self) -> None:
        some = self.said(self.started(start=0.02, first=0.025))
        assert some is not None and not some.fires
        assert self.said(self.started(start=0.01, first=0.01)) is None
