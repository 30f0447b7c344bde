"""Debugging switches, GPUs that are left unused, starts that never end, and distributed settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scene_builder import (
    START_NS,
    check,
    findings,
    fired,
    gpu,
    loader,
    process,
    rank,
    run,
    run_case,
    scene,
)
from stack_windows import current_line, from_outside, line, sampled, watched

from gpuwatch.diagnosis.finding import Draft, Finding, Severity
from gpuwatch.samples import GpuProcess, GpuStatus, PhaseSpan
from gpuwatch.timeline.windows import GpuWindow, Scene


def of(said: tuple[Finding, ...], rule: str) -> Finding:
    (finding,) = [finding for finding in said if finding.rule == rule]
    return finding


def drafted(rule: str, moment: Scene) -> Draft:
    draft = check(rule, run_case(moment))
    assert draft is not None
    return draft


def silent(rule: str, moment: Scene) -> bool:
    return check(rule, run_case(moment)) is None


class TestDebugModeOn:
    def started_with(self, *variables: tuple[str, str], age: float = 3600.0, **fields: Any) -> Scene:
        latest = {"environment": variables, "age_seconds": age}
        return scene(run(rank(process=process(latest=latest), **fields)))

    def test_a_variable_it_was_started_with(self) -> None:
        finding = of(findings(self.started_with(("CUDA_LAUNCH_BLOCKING", "1"))), "debug-mode-on")
        assert finding.severity is Severity.WARNING
        assert finding.summary.startswith("CUDA_LAUNCH_BLOCKING=1 is on: Python waits for every kernel")
        assert finding.fix is not None and finding.fix.code == "unset CUDA_LAUNCH_BLOCKING"
        assert finding.gain is None

    def test_a_variable_that_the_script_set_itself_is_known_from_the_hook(self) -> None:
        moment = scene(run(rank(facts={"notes": ("environment: PYTORCH_NO_CUDA_MEMORY_CACHING=1",)})))
        assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in drafted("debug-mode-on", moment).summary

    def test_from_outside_the_process_tells(self) -> None:
        latest = {"environment": (("TORCH_USE_CUDA_DSA", "1"),), "age_seconds": 900.0}
        trained = sampled(watched({"forward": 1.0}), process=process(latest=latest))
        assert "debug-mode-on" in fired(scene(run(trained)))

    @pytest.mark.parametrize("mode", ["anomaly", "sync-debug"])
    def test_switches_of_torch_itself(self, mode: str) -> None:
        moment = scene(run(rank(facts={"debug_modes": (mode,)})))
        assert drafted("debug-mode-on", moment).severity is Severity.WARNING

    def test_several_are_listed(self) -> None:
        moment = self.started_with(("CUDA_LAUNCH_BLOCKING", "1"), facts={"debug_modes": ("anomaly",)})
        draft = drafted("debug-mode-on", moment)
        assert draft.summary.startswith("CUDA_LAUNCH_BLOCKING=1 and anomaly detection are on")
        assert draft.fix is not None and draft.fix.code is not None and draft.fix.code.count("\n") == 1

    def test_a_young_process_may_be_a_debugging_session(self) -> None:
        young = self.started_with(("CUDA_LAUNCH_BLOCKING", "1"), age=200.0)
        assert drafted("debug-mode-on", young).severity is Severity.INFO

    def test_repeatable_results_are_a_choice(self) -> None:
        draft = drafted("debug-mode-on", scene(run(rank(facts={"debug_modes": ("deterministic",)}))))
        assert draft.severity is Severity.INFO

    @pytest.mark.parametrize("value", ["0", "", "off"])
    def test_a_variable_that_says_off_is_off(self, value: str) -> None:
        assert silent("debug-mode-on", self.started_with(("CUDA_LAUNCH_BLOCKING", value)))

    def test_other_variables_the_cpu_and_one_rank_are_silent(self) -> None:
        assert silent("debug-mode-on", self.started_with(("OMP_NUM_THREADS", "1")))
        assert silent("debug-mode-on", self.started_with(("CUDA_LAUNCH_BLOCKING", "1"), device="cpu"))
        assert silent("debug-mode-on", self.started_with(("TORCH_DISTRIBUTED_DEBUG", "DETAIL")))
        assert silent("debug-mode-on", scene(run(rank())))

    def test_collectives_are_checked_only_in_detail(self) -> None:
        def of_eight(value: str) -> Scene:
            return self.started_with(("TORCH_DISTRIBUTED_DEBUG", value), facts={"world_size": 8})

        assert "every collective is checked" in drafted("debug-mode-on", of_eight("DETAIL")).summary
        assert silent("debug-mode-on", of_eight("INFO"))


class TestGpuUnused:
    def free_gpu(self, processes: Any = (), utilization: float = 0.0) -> GpuWindow:
        status = GpuStatus(START_NS, "GPU-0", processes=processes)
        return gpu(utilization=utilization, latest_status=status)

    def on_cpu(self, *, beside: list[GpuWindow] | None = None, **fields: Any) -> Scene:
        latest = {"age_seconds": 600.0, "environment": (), "libraries": ("torch_cuda",)} | fields.pop("latest", {})
        usual: dict[str, Any] = {
            "device": "cpu",
            "facts": {"torch": "2.13.0+cu130"} | fields.pop("facts", {}),
            "process": process(tree_cores=fields.pop("cores", 6.0), latest=latest),
        }
        return scene(run(rank(**(usual | fields))), gpus=[self.free_gpu()] if beside is None else beside)

    def test_training_on_the_cpu_beside_a_free_gpu(self) -> None:
        finding = of(findings(self.on_cpu()), "gpu-unused")
        assert finding.summary == "Training runs on 6 CPU cores while GPU 0 is free"
        assert finding.severity is Severity.WARNING
        assert finding.fix is not None and finding.fix.code is not None and "model.to(device)" in finding.fix.code

    def test_the_build_is_known_by_its_libraries_too(self) -> None:
        assert not silent("gpu-unused", self.on_cpu(facts={"torch": "2.5.1"}))
        assert silent("gpu-unused", self.on_cpu(facts={"torch": "2.5.1"}, latest={"libraries": ("openmp",)}))

    @pytest.mark.parametrize(
        "fields",
        [
            {"facts": {"torch": "2.13.0+cpu"}},
            {"latest": {"environment": (("CUDA_VISIBLE_DEVICES", ""),)}},
            {"latest": {"environment": (("CUDA_VISIBLE_DEVICES", "-1"),)}},
            {"latest": {"environment": None}},
            {"latest": {"age_seconds": 60.0}},
            {"cores": 0.8},
            {"device": "cuda", "gpus": ()},
            {"beside": []},
        ],
        ids=[
            "built for the CPU",
            "no GPU on purpose",
            "none by number",
            "environment unknown",
            "just begun",
            "idle",
            "on a GPU",
            "no GPU",
        ],
    )
    def test_it_is_silent_otherwise(self, fields: dict[str, Any]) -> None:
        assert silent("gpu-unused", self.on_cpu(**fields))

    def test_a_gpu_in_use_or_of_unknown_use_is_not_free(self) -> None:
        used = (GpuProcess(host_pid=7, pid=7),)
        for beside in (self.free_gpu(processes=used), self.free_gpu(processes=None), self.free_gpu(utilization=20.0)):
            assert silent("gpu-unused", self.on_cpu(beside=[beside]))

    def test_a_visible_gpu_that_is_not_taken_counts(self) -> None:
        visible = {"environment": (("CUDA_VISIBLE_DEVICES", "0"),)}
        assert not silent("gpu-unused", self.on_cpu(latest=visible))

    def test_from_outside_only_what_trains_counts(self) -> None:
        def outside(phases: dict[str, float]) -> Scene:
            latest = {"age_seconds": 600.0, "environment": (), "libraries": ("torch_cuda",)}
            shown = process(tree_cores=6.0, latest=latest)
            trained = sampled(watched(phases), device="cpu", process=shown, facts={"torch": "2.13.0+cu130"})
            return scene(run(trained), gpus=[self.free_gpu()])

        assert "gpu-unused" in fired(outside({"forward": 0.5, "backward": 0.4}))
        assert silent("gpu-unused", outside({"other": 1.0}))


class TestWarmupLong:
    def starting(self, age: float | None, *, steps: int = 0, warm: bool = False, **fields: Any) -> Scene:
        shown = process(latest={"age_seconds": age})
        return scene(run(rank(process=shown, steps=1, steps_total=steps, warm=warm, **fields)))

    def test_ten_minutes_inform_and_twenty_warn(self) -> None:
        finding = of(findings(self.starting(700.0)), "warmup-long")
        assert (finding.severity, finding.summary) == (Severity.INFO, "No steady step after 11.7 min")
        assert of(findings(self.starting(1300.0)), "warmup-long").severity is Severity.WARNING

    def test_it_says_what_the_job_does_meanwhile(self) -> None:
        compiling = PhaseSpan("4711.1", "compile", START_NS, None)
        draft = drafted("warmup-long", self.starting(700.0, open_phase=compiling))
        assert draft.summary.endswith("it is in the phase compile")
        assert draft.fix is not None and draft.fix.code == "TORCHINDUCTOR_CACHE_DIR=/path/that/stays"
        seen = watched({"other": 1.0}, current_line=current_line(12, since=0, phase="other", text="index(files)"))
        draft = drafted("warmup-long", self.starting(700.0, stacks=seen))
        assert "train.py:12 `index(files)`" in draft.summary
        assert draft.fix is not None and draft.fix.line == 12

    def test_steady_young_and_stepping_jobs_are_silent(self) -> None:
        assert silent("warmup-long", self.starting(700.0, warm=True))
        assert silent("warmup-long", self.starting(500.0))
        assert silent("warmup-long", self.starting(700.0, steps=150))
        assert silent("warmup-long", self.starting(None))

    def test_a_job_without_a_gpu_costs_none(self) -> None:
        assert silent("warmup-long", self.starting(700.0, device="cpu"))

    def test_from_outside_it_counts_from_when_it_was_watched(self) -> None:
        def outside(seconds: float) -> Scene:
            seen = watched({"other": 1.0}, batches_per_second=None)
            shown = process(latest={"age_seconds": 9000.0})
            return scene(run(sampled(seen, process=shown, watched_seconds=seconds)), gpus=[gpu(utilization=0)])

        assert silent("warmup-long", outside(300.0))
        assert not silent("warmup-long", outside(700.0))

    def test_where_nothing_tells_of_steps_nothing_is_said(self) -> None:
        moment = self.starting(5000.0)
        blind = replace(moment.runs[0].critical.facts, visibility="process")
        assert silent("warmup-long", replace(moment, runs=(run(replace(moment.runs[0].critical, facts=blind)),)))


class TestDdpMisconfig:
    def data_parallel(self, share: float = 0.2, **facts: Any) -> Scene:
        seen = watched(
            {"forward": 0.6, "backward": 0.4},
            lines=[line("forward", 70, share, leaf="torch/nn/parallel/replicate.py:replicate")],
        )
        return scene(run(sampled(seen, loader=from_outside(), gpus=(0, 1), facts=facts)))

    def test_data_parallel_at_work(self) -> None:
        finding = of(findings(self.data_parallel()), "ddp-misconfig")
        assert finding.severity is Severity.HINT
        assert finding.fix is not None and finding.fix.code == "torchrun --nproc_per_node=2 train.py"
        assert (finding.fix.line, finding.fix.value) == (70, 2)

    def test_little_of_it_and_distributed_data_parallel_are_silent(self) -> None:
        assert silent("ddp-misconfig", self.data_parallel(share=0.02))
        assert not drafted("ddp-misconfig", self.data_parallel(share=0.04)).fires
        assert silent("ddp-misconfig", self.data_parallel(world_size=2))
        seen = watched(
            {"forward": 1.0}, lines=[line("forward", 70, 0.5, leaf="torch/nn/parallel/distributed.py:forward")]
        )
        assert silent("ddp-misconfig", scene(run(sampled(seen))))

    def ranks(self, *, threads: int | None = 1, cores: int = 16, main: float = 0.98, **fields: Any) -> Scene:
        facts = {"world_size": 2, "local_world_size": 2, "torch_threads": threads, **fields.pop("facts", {})}
        shown = process(cores=cores, main_thread_cores=main, latest=fields.pop("latest", {}))
        usual: dict[str, Any] = {"device": "cpu"}
        return scene(run(rank(process=shown, facts=facts, **(usual | fields))))

    def test_ranks_that_compute_with_one_thread_each(self) -> None:
        draft = drafted("ddp-misconfig", self.ranks())
        assert draft.summary == "Each rank computes with one CPU thread, although 8 CPU cores are there for it"
        assert draft.fix is not None and draft.fix.value == 8
        assert draft.fix.code == "OMP_NUM_THREADS=8 torchrun --nproc_per_node=2 train.py"

    def test_the_environment_tells_where_torch_does_not(self) -> None:
        said = {"environment": (("OMP_NUM_THREADS", "1"),)}
        assert not silent("ddp-misconfig", self.ranks(threads=None, latest=said))
        assert silent("ddp-misconfig", self.ranks(threads=None))

    def test_ranks_on_gpus_need_it_only_where_they_load_themselves(self) -> None:
        assert silent("ddp-misconfig", self.ranks(device="cuda"))
        itself = self.ranks(device="cuda", loader=loader(num_workers=0), step=0.1, wait=0.05)
        assert "loads its batches" in drafted("ddp-misconfig", itself).summary

    def test_threads_cores_and_time_to_spare_are_silent(self) -> None:
        assert silent("ddp-misconfig", self.ranks(threads=4))
        assert silent("ddp-misconfig", self.ranks(cores=2))
        assert silent("ddp-misconfig", self.ranks(main=0.5))
        assert silent("ddp-misconfig", self.ranks(facts={"world_size": 1, "local_world_size": 1}))
