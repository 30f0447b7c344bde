"""Hand-made snapshots of every situation that a screen has to show."""

from __future__ import annotations

from dataclasses import replace

from gpuwatch.diagnosis.finding import CallEdit, Fix, Level, Measure, Severity
from gpuwatch.monitor.snapshot import RunNow, Snapshot
from gpuwatch.samples import GpuProcess, NvmlState
from gpuwatch.timeline.windows import Quality, Scene
from tests.dashboard.fake_monitor import SECOND_NS, FakeMonitor, FakeTimeline, square, steady
from tests.dashboard.parts import (
    GIB,
    HOST,
    LIVE,
    MACHINE,
    NOW_NS,
    NVML_OK,
    WALL_TIME,
    candidate,
    gpu,
    hint,
    rank,
    refused,
    run,
    starvation,
)
from tests.unit import scene_builder as build
from tests.unit import stack_builder as seen

__all__ = ["GIB", "LIVE", "NOW_NS", "candidate", "gpu", "hint", "rank", "refused", "run", "starvation"]


def scene(**changes: object) -> Scene:
    quality = Quality(1.0, gpu_samples=60, received_records=4000, own_cpu_share=0.011, nvml_calls_per_gpu_second=7.2)
    now = Scene(NOW_NS, NOW_NS - 600 * SECOND_NS, 60.0, MACHINE, None, (), (), quality)
    return replace(now, **changes)  # type: ignore[arg-type]


def snapshot(**changes: object) -> Snapshot:
    now = Snapshot(
        time_ns=NOW_NS,
        wall_time=WALL_TIME,
        started_ns=NOW_NS - 600 * SECOND_NS,
        origin=LIVE,
        machine=MACHINE,
        nvml=NVML_OK,
        host=HOST,
        gpus=(gpu(),),
        runs=(run(),),
        findings=(starvation(), hint()),
        scene=scene(),
    )
    return replace(now, **changes)  # type: ignore[arg-type]


def starved() -> Snapshot:
    """The main situation: one GPU, one run, starved."""
    return snapshot()


def healthy() -> Snapshot:
    fed = gpu(utilization_mean_percent=96.0, utilization_sigma_percent=2.0)
    well = run(wait_share=0.012, gap_share=0.004, forward_share=0.34, backward_share=0.58, phase_share=0.0, phases=())
    return snapshot(gpus=(fed,), runs=(well,), findings=())


def no_run(gpus: int = 1) -> Snapshot:
    return snapshot(gpus=tuple(gpu(index) for index in range(gpus)), runs=(), findings=())


def no_gpu() -> Snapshot:
    """Nothing to watch at all."""
    absent = NvmlState(NOW_NS, "absent", "no NVIDIA driver is loaded (libnvidia-ml.so.1 not found)")
    return snapshot(gpus=(), runs=(), findings=(), nvml=absent)


def cpu_run() -> Snapshot:
    """NVML absent, but a hooked run that trains on the CPU."""
    own = run(
        gpu_indices=(),
        gap_share=None,
        ranks=(rank(facts=replace(rank().facts, device="cpu")),),
        copy_share=None,
    )
    about = starvation(summary="train.py (4711): training stands still 41% of the time waiting for data")
    return replace(no_gpu(), runs=(own,), findings=(about,))


def lost() -> Snapshot:
    """GPU 1 of 2 has fallen off the bus."""
    gone = gpu(
        1,
        status="lost",
        status_reason="XID 79, fallen off the bus; restart the machine",
        status_since_ns=NOW_NS - 327 * SECOND_NS,
    )
    return snapshot(gpus=(gpu(), gone))


def stale() -> Snapshot:
    """The NVML child is silent."""
    old = gpu(
        status="stale",
        status_reason="the driver has not answered for 12 s",
        status_since_ns=NOW_NS - 12 * SECOND_NS,
    )
    return snapshot(gpus=(old,), nvml=replace(NVML_OK, status="stale"))


def many_gpus(count: int, ranks: int = 0) -> Snapshot:
    """A node or a big box; `ranks` makes the run distributed."""
    gpus = tuple(
        gpu(index, utilization_mean_percent=90.0 - index % 7, utilization_sigma_percent=3.0 + index % 5)
        for index in range(count)
    )
    own = run(gpu_indices=tuple(range(count)))
    if ranks:
        own = replace(
            own,
            id="job-1",
            ranks=tuple(
                rank(number, 4711 + number, step_seconds=0.31 + 0.002 * number, wait_share=0.02 * (8 - number))
                for number in range(ranks)
            ),
        )
    return snapshot(gpus=gpus, runs=(own,), findings=(starvation(run=own.id),))


def shared() -> Snapshot:
    """Eight GPUs that five users share: two work for one run, some idle in somebody's hands, one is free."""
    hours = 3600.0
    owners = {
        2: GpuProcess(8120, 8120, 71 * GIB, 97.0, "/opt/conda/bin/python -u pretrain.py --model 7b", "ben", 40 * hours),
        3: GpuProcess(8121, 8121, 71 * GIB, 96.0, "/opt/conda/bin/python -u pretrain.py --model 7b", "ben", 40 * hours),
        4: GpuProcess(8122, 8122, 71 * GIB, 97.0, "/opt/conda/bin/python -u pretrain.py --model 7b", "ben", 40 * hours),
        5: GpuProcess(15502, 15502, 22 * GIB, 0.0, "python -m ipykernel_launcher -f kernel.json", "carla", 75 * hours),
        6: GpuProcess(9033, 9033, 68 * GIB, 0.0, "python -m vllm.entrypoints.openai.api_server", "dmitri", 260 * hours),
    }
    gpus = [gpu(index, utilization_mean_percent=58.0 + index) for index in range(2)]
    for index in range(2, 8):
        process = owners.get(index)
        idle = index >= 5
        now = gpu(
            index,
            utilization_mean_percent=0.0 if idle else 96.0 + index % 3,
            utilization_sigma_percent=0.0 if idle else 1.2,
            power_mean_watts=92.0 if idle else 655.0,
            idle_since_ns=NOW_NS - (41 + 200 * (index - 5)) * 60 * SECOND_NS if idle else None,
            idle_when_found=index == 7,
        )
        assert now.latest is not None and now.latest_status is not None
        held = 4 * 2**20 if process is None else process.memory_bytes
        status = replace(now.latest_status, processes=() if process is None else (process,))
        latest = replace(now.latest, memory_used_bytes=held, temperature_celsius=41.0 if idle else 66.0)
        gpus.append(replace(now, latest=latest, latest_status=status))
    two = GpuProcess(31007, 31007, 2 * GIB, 3.0, "python eval.py", "elif", 0.4 * hours)
    assert gpus[4].latest_status is not None and gpus[4].latest_status.processes
    both = (*gpus[4].latest_status.processes, two)
    gpus[4] = replace(gpus[4], latest_status=replace(gpus[4].latest_status, processes=both))
    return snapshot(gpus=tuple(gpus), runs=(run(gpu_indices=(0, 1)),))


def cluster_node(count: int = 64) -> Snapshot:
    """More GPUs than lines: eight jobs, a lost GPU, a hot one, one that lags, three that somebody holds."""
    gpus = []
    for index in range(count):
        job = index // 8
        process = GpuProcess(
            20_000 + index, 20_000 + index, 70 * GIB, 97.0, f"python job{job}.py", f"user{job % 5}", 9e4
        )
        now = gpu(index, utilization_mean_percent=94.0 + index % 5, power_mean_watts=640.0 + index % 7)
        if index == 17:
            now = gpu(index, status="lost", status_reason="XID 79, fallen off the bus", status_since_ns=NOW_NS - 10**11)
        elif index == 29:
            now = gpu(index, utilization_mean_percent=31.0)
        elif 40 <= index < 43:
            now = gpu(
                index, utilization_mean_percent=0.0, power_mean_watts=88.0, idle_since_ns=NOW_NS - 95 * 60 * SECOND_NS
            )
        elif index >= 60:
            now = gpu(index, utilization_mean_percent=0.0, power_mean_watts=71.0, idle_since_ns=NOW_NS - 10**12)
        assert now.latest is not None and now.latest_status is not None
        warm = replace(now.latest, temperature_celsius=91.0 if index == 50 else 60.0 + index % 9)
        listed = () if index >= 60 else (process,)
        gpus.append(replace(now, latest=warm, latest_status=replace(now.latest_status, processes=listed)))
    return snapshot(gpus=tuple(gpus), runs=(run(gpu_indices=tuple(range(8))),))


def mig() -> Snapshot:
    """Two GPUs, of which the first is divided into three instances that three users have."""
    whole = gpu(0)
    assert whole.latest is not None and whole.latest_status is not None
    mute = replace(whole.latest, utilization_percent=None, sm_activity_percent=None, tensor_activity_percent=None)
    nobody = replace(whole.latest_status, processes=())
    whole = replace(
        whole,
        facts=replace(whole.facts, mig=True),
        latest=mute,
        latest_status=nobody,
        utilization_mean_percent=None,
        utilization_sigma_percent=None,
    )
    instances = []
    for slot, (profile, size, user, active) in enumerate(
        (("3g.40gb", 40, "ana", 71.0), ("2g.20gb", 20, "ben", 38.0), ("1g.10gb", 10, "carla", 0.0))
    ):
        facts = replace(
            whole.facts,
            uuid=f"MIG-{slot}",
            name=f"NVIDIA H100 80GB HBM3 MIG {profile}",
            memory_total_bytes=size * GIB,
            power_limit_watts=None,
            mig_parent=whole.facts.uuid,
            mig_slot=slot,
            mig_gpu_instance=slot + 1,
        )
        used = GpuProcess(
            4711 + slot, 4711 + slot, (size - 4) * GIB, None, "python train.py", user, 7200.0 * (slot + 1)
        )
        sample = replace(
            mute,
            uuid=facts.uuid,
            power_watts=None,
            temperature_celsius=None,
            sm_clock_mhz=None,
            event_reasons=None,
            memory_used_bytes=(size - 3) * GIB,
            sm_activity_percent=active,
        )
        instances.append(
            replace(
                whole, facts=facts, latest=sample, latest_status=replace(nobody, processes=(used,)), latest_health=None
            )
        )
    return snapshot(gpus=(whole, *instances, gpu(1)), runs=(run(),))


def straggler() -> Snapshot:
    """Eight ranks in step: GPU 5 is hot and slow, and the other seven wait for it in backward."""
    ranks = tuple(
        rank(number, 4711 + number, step_seconds=0.25, wait_share=0.02, backward_share=0.22 if number == 5 else 0.58)
        for number in range(8)
    )
    gpus = tuple(gpu(number, utilization_mean_percent=98.0, utilization_sigma_percent=1.0) for number in range(8))
    assert gpus[5].latest is not None
    hot = replace(gpus[5].latest, temperature_celsius=88.0, sm_clock_mhz=1080.0)
    gpus = (*gpus[:5], replace(gpus[5], latest=hot, throttled_by=("thermal",)), *gpus[6:])
    ranks = tuple(
        replace(each, facts=replace(each.facts, gpu_uuids=(gpus[number].facts.uuid,)))
        for number, each in enumerate(ranks)
    )
    own = run(id="job-1", ranks=ranks, gpu_indices=tuple(range(8)), wait_share=0.02, gap_share=0.003, phases=())
    about = starvation(
        rule="straggler-rank",
        run="job-1",
        summary="Other ranks wait 90 ms (36%) of each step for rank 5: its GPU 5 runs at 1080 MHz (thermal)",
        evidence=(Measure("rank", 5, "Rank 5"), Measure("others_wait_seconds", 0.09, "others wait 90 ms per step")),
        fix=Fix("Clean or repair the cooling of GPU 5, or leave it out: CUDA_VISIBLE_DEVICES=0,1,2,3,4,6,7"),
        chart=("gpu.sm_clock_mhz", "run.step_seconds"),
    )
    return snapshot(gpus=gpus, runs=(own,), findings=(about,))


def with_ended() -> Snapshot:
    """A run trains; one was killed two minutes ago with a fault, one ended long ago."""
    minute = 60 * SECOND_NS

    def over(name: str, pid: int, minutes: int, how: str) -> RunNow:
        facts = {"id": f"{pid}.1", "title": name, "pid": pid, "command": ("python", name), "ranks": (rank(pid=pid),)}
        return run(**facts, state="ended", ended=how, ended_ns=NOW_NS - minutes * minute, gpu_indices=(1,), phases=())

    well = replace(healthy().runs[0], ended_ns=None)
    about = starvation(run="7001.1", summary="sweep.py has made no step for 300 s")
    return snapshot(
        gpus=(gpu(), gpu(1, utilization_mean_percent=0.0)),
        runs=(over("sweep.py", 7001, 2, "killed"), well, over("old.py", 6001, 55, "exited")),
        findings=(about,),
    )


def many_findings(count: int = 20) -> Snapshot:
    severities = (Severity.CRITICAL, Severity.WARNING, Severity.INFO, Severity.HINT)
    findings = tuple(
        starvation(rule=f"rule-{number:02d}", severity=severities[min(3, number // 4)], summary=f"finding {number}")
        for number in range(count)
    )
    return snapshot(findings=findings)


def hostile_names() -> Snapshot:
    """Markup, ANSI, bidirectional controls and undecodable bytes in names that come from processes."""
    command = ("python", "[red]train[/].py", "\x1b]0;owned\x07", "\x1b[31mred", "\u202egnp.exe", "caf\udce9", "学習")
    title = "[bold]evil[/]\x1b[2J.py"
    own = run(title=title, command=command)
    nasty = GpuProcess(99, 99, GIB, 1.0, "[link=x]\x1b[2Jbash\n\trm")
    listed = replace(gpu(), latest_status=replace(gpu().latest_status, processes=(nasty,)))  # type: ignore[type-var]
    about = starvation(summary="[red]evil[/] \x1b[2J idles")
    return snapshot(gpus=(listed,), runs=(own,), findings=(about,))


def long_names() -> Snapshot:
    machine = replace(MACHINE, hostname="a-very-long-hostname-of-a-cluster-node.example.internal.company.com")
    board = gpu(0, name="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition")
    own = run(title="train_the_largest_model_of_them_all_with_a_very_long_name.py", command=("python", "x" * 300))
    about = starvation(summary="train_the_largest_model " + "waits and " * 40)
    return snapshot(machine=machine, gpus=(board,), runs=(own,), findings=(about,))


def not_hooked() -> Snapshot:
    own = run(
        visibility="process",
        state="not hooked",
        wait_share=None,
        gap_share=None,
        copy_share=None,
        forward_share=None,
        backward_share=None,
        optimizer_share=None,
        phase_share=None,
        samples_per_second=None,
        step_seconds_p50=None,
        step_seconds_p95=None,
        last_step_ns=None,
        steps_total=0,
        phases=(),
        how_to_see_more="start it with `gpuwatch run python train.py` to see its steps and waits",
    )
    return snapshot(runs=(own,), findings=())


def two_runs() -> Snapshot:
    other = run(
        id="5000.1",
        title="finetune.py",
        pid=5000,
        command=("python", "finetune.py"),
        ranks=(rank(pid=5000),),
        gpu_indices=(1,),
        wait_share=0.01,
        gap_share=0.0,
        forward_share=0.33,
        backward_share=0.60,
        phases=(),
    )
    return snapshot(gpus=(gpu(), gpu(1, utilization_mean_percent=97.0)), runs=(run(), other))


def unwatched() -> Snapshot:
    """Nothing is hooked, but two processes train."""
    return replace(no_run(), candidates=(candidate(), refused()))


def many_candidates(count: int = 40) -> Snapshot:
    """A machine that many share."""
    return replace(no_run(), candidates=tuple(candidate(5000 + number) for number in range(count)))


def attached(workers: int = 0, **changes: object) -> Snapshot:
    """Attached to a run without a hook; it waits for its own augmentation."""
    stacks = seen.worker_stacks() if workers else seen.stacks()
    rank_window = seen.sampled_rank(stacks, num_workers=workers, pid=5000)
    facts = replace(rank_window.facts, cwd="/home/user", command=("python", "train.py", "--config", "base.yaml"))
    window = build.run(replace(rank_window, facts=facts))
    own = replace(
        run(
            id=window.id,
            pid=5000,
            ranks=(rank(pid=5000, facts=facts, step_seconds=None),),
            visibility="sampled",
            step_seconds_p50=None,
            step_seconds_p95=None,
            gap_share=None,
            wait_share=0.61,
            copy_share=0.0,
            forward_share=0.10,
            backward_share=0.18,
            optimizer_share=0.03,
            phase_share=0.0,
            phases=(),
            steps_total=1843,
            samples_per_second=790.0,
            how_to_see_more="`gpuwatch run COMMAND` measures steps and waits exactly",
        ),
        start_share=0.0,
        sync_share=0.05,
        other_share=0.03,
        samples=1640,
        batches_per_second=12.34,
    )
    about = starvation(
        rule="workers-zero",
        run=window.id,
        level=Level.E1,
        summary="train.py (5000): training waits 61% of the time for data that its own thread makes",
        evidence=(
            Measure("data_wait_share", 0.61, "waits 61% ± 2.4 of the training time (1,640 samples of its stack, 20 s)"),
            Measure(
                "hot_line",
                f"{seen.AUGMENT}:41",
                "of it 70% ± 2.8 in augment.py:41 `image = image.filter(Gauss"
                "ianBlur(5))`, in PIL/ImageFilter.py:filter (1,000 samples)",
            ),
        ),
        fix=Fix(
            "Let workers make the batches",
            file=build.SCRIPT,
            line=88,
            edit=CallEdit("DataLoader", build.SCRIPT, 88, {"num_workers": "6"}),
        ),
    )
    return snapshot(
        runs=(replace(own, **changes),),  # type: ignore[arg-type]
        findings=(about,),
        scene=scene(runs=(window,)),
        candidates=(candidate(), refused()),
        attached_pid=5000,
    )


def stuck() -> Snapshot:
    """Attached to a run that stands on one line."""
    since = NOW_NS - 180 * SECOND_NS
    at = replace(seen.current_line(0), time_ns=NOW_NS, since_ns=since)
    return replace(attached(state="silent", current_line=at, last_step_ns=since, batches_per_second=0.0), findings=())


def monitor(of: Snapshot) -> FakeMonitor:
    """A monitor with charts to match."""
    waves = {
        "gpu.utilization_percent": square(4.0, 98.0, 9.0, 0.6),
        "gpu.power_watts": square(130.0, 610.0, 9.0, 0.6),
        "gpu.memory_used_bytes": steady(61.2 * GIB),
        "gpu.temperature_celsius": steady(61.0),
        "gpu.sm_clock_mhz": steady(1755.0),
        "run.wait_share": square(0.2, 0.7, 9.0, 0.4),
        "run.step_seconds": square(0.25, 0.5, 9.0, 0.4),
        "run.samples_per_second": steady(2564.0),
        "host.cpu_percent": steady(31.0),
    }
    return FakeMonitor(of, FakeTimeline(waves))
