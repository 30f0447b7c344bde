"""Figures from stacks: the wait and its interval, what a batch costs, and what removing a line brings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scene_builder import START_NS, gpu, host, machine, process, quality, rank, run, run_case, scene, workers
from scene_builder import loader as hooked_loader
from stack_windows import current_line, from_outside, line, sampled, watched

from gpuwatch.diagnosis.advice.cost import StepCost, step_cost
from gpuwatch.diagnosis.advice.lines import HotLine, cheaper, hottest, loading_line, place, work_of
from gpuwatch.diagnosis.advice.resources import batch_cpu_share, worker_cores
from gpuwatch.diagnosis.advice.sampled import batch_period, settled_wait, share_of, trains_on, worker_busy
from gpuwatch.diagnosis.advice.starvation import avoidable_share, is_at_handover_floor, starvation_of
from gpuwatch.diagnosis.finding import Level
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.samples import NvmlState
from gpuwatch.timeline.windows import RankWindow, Share

SECOND_NS = 1_000_000_000
TRAINING = {"forward": 0.2, "backward": 0.2}


def case_of(member: RankWindow, utilization: float | None = 50.0, **fields: Any) -> RunCase:
    gpus = [gpu(utilization=utilization)] if member.facts.gpu_uuids else []
    return run_case(scene(run(member), gpus=gpus, **fields))


def cost_of(case: RunCase) -> StepCost:
    starvation = starvation_of(case)
    assert starvation is not None
    cost = step_cost(case, starvation)
    assert cost is not None
    return cost


class TestTheWait:
    def test_on_the_cpu_it_is_the_figure_with_its_interval(self) -> None:
        found = starvation_of(case_of(sampled(watched({"wait": 0.4}, samples=1500), device="cpu")))
        assert found is not None and found.wait is not None
        assert (found.share, found.level, found.on_gpu) == (pytest.approx(0.4), Level.E1, False)
        assert found.wait.low == pytest.approx(0.376, abs=0.002) and found.wait.high == pytest.approx(0.425, abs=0.002)

    def test_with_a_gpu_it_is_the_smaller_of_wait_and_idle(self) -> None:
        seen = sampled(watched({"wait": 0.4}))
        small, large = starvation_of(case_of(seen, 80)), starvation_of(case_of(seen, 30))
        assert small is not None and small.share == pytest.approx(0.2)
        assert large is not None and large.share == pytest.approx(0.4)

    def test_without_utilization_nothing_is_claimed(self) -> None:
        assert starvation_of(case_of(sampled(watched({"wait": 0.4})), None)) is None

    def test_evaluation_and_saving_are_no_training_time(self) -> None:
        seen = watched({"wait": 0.2, "eval": 0.3, "save": 0.1, "compile": 0.1})
        assert settled_wait(seen).value == pytest.approx(0.4)

    def test_waits_for_the_first_batch_of_an_epoch_do_not_count(self) -> None:
        assert settled_wait(watched({"wait": 0.3}, first_wait_share=0.1)).value == pytest.approx(0.2)

    def test_a_wait_that_has_not_ended_does_not_count(self) -> None:
        # 20 s of training at 50 looks a second, a tenth of them waits, then 40 s of one wait at 100 looks a second.
        waits = ((1.0, 0.1),) * 20 + ((1.0, 1.0),) * 40
        phases = {"wait": (100 + 4000) / 5000, "forward": 900 / 5000}
        stalled = watched(phases, samples=5000, seconds=60.0, waits=waits, current_line=current_line(60, since=160.0))
        found = starvation_of(case_of(sampled(stalled, device="cpu", last_step_ns=START_NS + 160 * SECOND_NS)))
        assert found is not None and found.wait_share == pytest.approx(0.1, abs=0.001)
        moves = starvation_of(case_of(sampled(stalled, device="cpu", last_step_ns=START_NS + 200 * SECOND_NS)))
        assert moves is not None and moves.wait_share == pytest.approx(0.82)
        since_the_start = sampled(stalled, device="cpu", last_step_ns=START_NS + 140 * SECOND_NS)
        waiting = replace(stalled, current_line=current_line(60, since=140.0))
        assert starvation_of(case_of(replace(since_the_start, stacks=waiting))) is None

    def test_six_hundred_samples_must_be_of_training(self) -> None:
        mostly_eval = sampled(watched({"wait": 0.3, "eval": 0.5}, samples=1100), device="cpu")
        assert starvation_of(case_of(mostly_eval)) is None
        enough = sampled(watched({"wait": 0.3, "eval": 0.5}, samples=1200), device="cpu")
        assert starvation_of(case_of(enough)) is not None

    def test_a_loop_without_a_loader_has_no_wait_that_could_be_seen(self) -> None:
        loop = replace(sampled(watched({"forward": 0.6}), device="cpu"), train_loader=None)
        assert starvation_of(case_of(loop)) is None

    def test_what_handing_over_costs_in_any_case_is_taken_off(self) -> None:
        fast = sampled(watched({"wait": 0.23}, batches_per_second=770.0), device="cpu")
        found = starvation_of(case_of(fast))
        assert found is not None and avoidable_share(fast, found) == 0.0
        slow = sampled(watched({"wait": 0.23}, batches_per_second=5.0), device="cpu")
        found = starvation_of(case_of(slow))
        assert found is not None and avoidable_share(slow, found) == pytest.approx(0.224, abs=0.001)

    def test_idle_workers_that_hand_over_at_once_are_at_the_floor(self) -> None:
        def at_floor(rate: float, item: float) -> bool:
            seen = watched({"wait": 0.2}, worker_phases={"item": item}, batches_per_second=rate)
            return is_at_handover_floor(sampled(seen))

        assert at_floor(rate=100.0, item=0.1)
        assert not at_floor(rate=100.0, item=0.4)
        assert not at_floor(rate=10.0, item=0.1)

    def test_where_it_computes_is_known_by_its_gpus_or_by_a_machine_without(self) -> None:
        unknown = sampled(watched({"wait": 0.4}), device=None)
        assert trains_on(case_of(unknown)) is None
        absent = quality(nvml=NvmlState(time_ns=0, status="absent"))
        assert trains_on(case_of(unknown, quality=absent)) == "cpu"
        on_gpu = sampled(watched({"wait": 0.4}), device=None, facts={"gpu_uuids": ("GPU-0",)})
        assert trains_on(case_of(on_gpu)) == "cuda"


class TestWorkers:
    def test_busy_is_what_is_not_idle(self) -> None:
        seen = watched({"wait": 0.4}, worker_phases={"item": 0.7, "collate": 0.1}, worker_samples=1000)
        busy = worker_busy(sampled(seen))
        assert busy is not None and busy.value == pytest.approx(0.8)
        assert busy.low < 0.78 < 0.82 < busy.high

    def test_idle_workers_of_an_evaluation_loader_do_not_count(self) -> None:
        seen = watched({"wait": 0.4}, worker_phases={"item": 0.48}, workers=8)
        busy = worker_busy(sampled(seen, loader=from_outside(num_workers=4)))
        assert busy is not None and busy.value == pytest.approx(0.96)

    def test_workers_that_come_and_go_count_by_the_time_they_are_there(self) -> None:
        """Two of an evaluation joined the four of training for the second half of the window."""
        seen = watched({"wait": 0.4}, worker_phases={"item": 0.76}, workers=4, workers_mean=5.0)
        busy = worker_busy(sampled(seen, loader=from_outside(num_workers=4)))
        assert busy is not None and busy.value == pytest.approx(0.95)

    def test_while_the_run_evaluates_they_have_nothing_to_do(self) -> None:
        seen = watched({"wait": 0.4, "eval": 0.3}, worker_phases={"item": 0.66})
        busy = worker_busy(sampled(seen))
        assert busy is not None and busy.value == pytest.approx(0.943, abs=0.001)

    def test_cpu_of_workers_is_that_of_the_training_ones(self) -> None:
        totals = workers(4, cpu_cores=0.45, busy_share=None)
        member = sampled(watched({"wait": 0.4}), loader=from_outside(num_workers=2), workers=totals)
        assert worker_cores(member) == pytest.approx(0.9)
        assert worker_cores(rank(workers=replace(totals, cpu_cores=0.7))) == 0.7

    def test_cpu_work_is_a_share_of_the_time_they_are_busy(self) -> None:
        totals = workers(4, cpu_cores=0.24, busy_share=None)
        seen = watched({"wait": 0.4}, worker_phases={"item": 0.8})
        assert batch_cpu_share(sampled(seen, workers=totals), 4, on_gpu=True) == pytest.approx(0.3)

    def test_few_samples_say_nothing_and_the_workers_own_word_goes_first(self) -> None:
        seen = watched({"wait": 0.4}, worker_phases={"item": 0.5}, worker_samples=150)
        assert worker_busy(sampled(seen)) is None
        hooked = rank(workers=workers(4), stacks=watched({"wait": 0.4}, worker_phases={"item": 0.5}))
        assert worker_busy(hooked) == Share(0.97, 0.97, 0.97)


class TestCosts:
    def test_a_batch_without_workers_costs_its_wait(self) -> None:
        cost = cost_of(case_of(sampled(watched({"wait": 0.5}), loader=from_outside(num_workers=0), device="cpu")))
        assert (cost.period_seconds, cost.batches_per_step) == (pytest.approx(0.2), 1)
        assert cost.batch_seconds == pytest.approx(0.1, rel=0.01)
        assert cost.compute_seconds == pytest.approx(0.1, rel=0.01)

    def test_ranks_that_wait_in_turn_all_wait_for_the_last_one(self) -> None:
        """Each waits for 0.4 of every other second, which the other one spends at the GPU: together 0.4 of all."""

        def member(place: int, period: float) -> RankWindow:
            waits = [(1.0, 0.4 if second % 2 == place else 0.0) for second in range(60)]
            seen = watched({"wait": 0.2}, seconds=60.0, waits=tuple(waits), batches_per_second=1.0 / period)
            return sampled(seen, loader=from_outside(num_workers=0), device="cpu")

        def computing(period: float) -> list[float]:
            case = run_case(scene(run(member(0, period), member(1, period)), gpus=[]))
            return [block.compute_low / block.period for block in cost_of(case).blocks]

        assert computing(1.0)[1] == pytest.approx(0.6, abs=0.01)
        low, middle, high = computing(0.1)
        assert middle == pytest.approx(0.8, abs=0.01), "of quick steps a second holds ten"
        assert high < 0.6 < low

    def test_a_batch_of_workers_costs_the_time_they_are_busy(self) -> None:
        seen = watched({"wait": 0.5}, worker_phases={"item": 0.9})
        cost = cost_of(case_of(sampled(seen, device="cpu")))
        assert cost.batch_seconds == pytest.approx(4 * 0.9 * 0.2, rel=0.01)

    def test_phases_are_taken_off_a_batch_but_not_off_what_workers_do(self) -> None:
        seen = watched({"wait": 0.25, "eval": 0.5}, samples=3000, worker_phases={"item": 0.5})
        assert batch_period(seen) == pytest.approx(0.1)
        cost = cost_of(case_of(sampled(seen, device="cpu")))
        assert cost.period_seconds == pytest.approx(0.1)
        assert cost.batch_seconds == pytest.approx(4 * 0.5 * 0.2, rel=0.01)

    def test_the_starts_of_epochs_are_left_out(self) -> None:
        seen = watched({"wait": 0.4, "start": 0.1}, first_wait_share=0.1)
        cost = cost_of(case_of(sampled(seen, device="cpu", loader=from_outside(num_workers=0))))
        assert cost.period_seconds == pytest.approx(0.2 * 0.8)
        assert cost.batch_seconds == pytest.approx(0.2 * 0.3, rel=0.01)

    def test_the_gain_spans_the_interval_of_the_samples(self) -> None:
        def gain(samples: int) -> tuple[float, float]:
            seen = watched({"wait": 0.5}, samples=samples)
            found = cost_of(case_of(sampled(seen, loader=from_outside(num_workers=0), device="cpu"))).gain(8)
            return found.low, found.high

        few, many = gain(600), gain(6000)
        assert few[0] < many[0] < 2.0 < many[1] < few[1]
        assert few[1] / few[0] > 1.12

    def test_without_counted_batches_no_costs_are_known(self) -> None:
        uncounted = case_of(sampled(watched({"wait": 0.5}, batches_per_second=None), device="cpu"))
        starvation = starvation_of(uncounted)
        assert starvation is not None and step_cost(uncounted, starvation) is None

    def test_the_cpu_share_of_loading_comes_from_proc(self) -> None:
        def share(cores: float) -> float:
            own = process(main_thread_cores=cores)
            seen = watched({"wait": 0.5})
            return cost_of(
                case_of(sampled(seen, device="cpu", loader=from_outside(num_workers=0), process=own))
            ).batch_cpu_share

        assert share(1.0) == pytest.approx(1.0)
        assert share(0.6) == pytest.approx(0.2)

    def test_training_keeps_the_cores_busy_that_proc_shows_whatever_its_threads(self) -> None:
        own = process(cores=4, main_thread_cores=1.0, tree_cores=2.5)
        seen = watched({"wait": 0.5})
        case = case_of(
            sampled(seen, device="cpu", loader=from_outside(num_workers=0), process=own),
            machine=machine(4),
            host=host(cpu_percent=62),
        )
        assert cost_of(case).training_cores_busy == pytest.approx(4.0, abs=0.2)


class TestLines:
    def test_one_line_below_several_functions_counts_as_one(self) -> None:
        seen = watched(
            {"wait": 0.5},
            lines=[
                line("wait", 31, 0.10, leaf="PIL/Image.py:filter"),
                line("wait", 31, 0.15, leaf="PIL/Image.py:resize", text="f(img)"),
                line("wait", 33, 0.20),
                line("forward", 60, 0.40),
            ],
        )
        found = hottest(seen.lines, 750, "wait")
        assert found is not None
        assert (found.line, found.leaf, found.text) == (31, "PIL/Image.py:resize", "f(img)")
        assert found.share.value == pytest.approx(0.5)

    def test_a_line_that_does_not_stand_out_is_not_named(self) -> None:
        seen = watched({"wait": 0.5}, lines=[line("wait", 31, 0.04)])
        assert hottest(seen.lines, 750, "wait") is None
        few = watched({"wait": 0.5}, samples=30, lines=[line("wait", 31, 0.5)])
        assert hottest(few.lines, 15, "wait") is None

    def test_with_workers_their_items_are_looked_at_else_the_waits(self) -> None:
        lines = [line("wait", 60, 0.5, text="for x in loader:")]
        in_workers = [line("item", 31, 0.4), line("collate", 20, 0.5)]
        seen = watched({"wait": 0.5}, lines=lines, worker_phases={"item": 0.5, "collate": 0.5}, worker_lines=in_workers)
        found = loading_line(sampled(seen))
        assert found is not None and (found.line, found.phase) == (31, "item")
        alone = loading_line(sampled(watched({"wait": 0.5}, lines=lines), loader=from_outside(num_workers=0)))
        assert alone is not None and alone.line == 60
        assert loading_line(sampled(watched({"wait": 0.5}, lines=lines))) is None, "the for statement says nothing"
        assert loading_line(rank(loader=hooked_loader())) is None

    def test_a_line_is_said_by_its_file_and_an_installed_one_by_its_package(self) -> None:
        assert place("/home/me/job/train.py", 31) == "train.py:31"
        assert place("/venv/lib/python3.11/site-packages/torchvision/datasets/folder.py", 245) == (
            "torchvision/datasets/folder.py:245"
        )
        share = share_of(640, 1000)
        hot = HotLine("wait", "/a/train.py", 31, "f", share, 1000, "x = " + "y" * 100, "PIL/Image.py:filter")
        text = hot.measure("hot_line", "the waits").text
        assert text.startswith("64% ± 3.0 of the waits in train.py:31 `x = yyy")
        assert text.endswith("...`, in PIL/Image.py:filter (1,000 samples)")


@pytest.mark.parametrize(
    ("text", "leaf", "work"),
    [
        ("img = Image.open(path).convert('RGB')", "PIL/ImageFile.py:load", "decode"),
        ("img = Image.open(path)", "PIL/Image.py:open", "read"),
        ("img = img.filter(ImageFilter.GaussianBlur(2))", "PIL/Image.py:filter", "augment"),
        ("x = self.transform(x)", "torchvision/functional.py:resize", "augment"),
        ("x = read_image(p)", "torchvision/image.py:decode_jpeg", "decode"),
        ("img = cv2.resize(img, (224, 224))", None, "augment"),
        ("img = cv2.imdecode(data, 1)", None, "decode"),
        ("x = np.load(path)", "numpy/_npyio_impl.py:load", "read"),
        ("row = json.loads(text)", "json/decoder.py:raw_decode", "preprocess"),
        ("ids = self.tokenizer(text)", "transformers/tokenization_utils_fast.py:_batch_encode_plus", "preprocess"),
        ("data = f.read()", None, "read"),
        ("return torch.stack(items)", None, "collate"),
        ("for x in loader:", "torch/collate.py:collate_tensor_fn", "collate"),
        ("total += slow(i)", None, None),
    ],
)
def test_the_kind_of_work_is_recognized_by_library_and_text(text: str, leaf: str | None, work: str | None) -> None:
    hot = HotLine("item", "/a/train.py", 31, "__getitem__", share_of(60, 100), 100, text, leaf)
    assert work_of(hot) == work


def test_a_worker_that_collates_collates_whatever_the_line_says() -> None:
    hot = HotLine("collate", "/a/train.py", 31, "merge", share_of(60, 100), 100, "x = f(y)", None)
    assert work_of(hot) == "collate"


def test_augmentation_goes_to_the_gpu_only_where_there_is_one() -> None:
    hot = HotLine("item", "/a/train.py", 31, "f", share_of(60, 100), 100, None, None)
    assert "on the GPU" in cheaper(hot, "augment", on_gpu=True)[0]
    text, code = cheaper(hot, "augment", on_gpu=False)
    assert "GPU" not in text and code is None
