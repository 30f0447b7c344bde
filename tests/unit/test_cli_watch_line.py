from __future__ import annotations

from dataclasses import replace

from gpuwatch.cli.watch import subject_of, watch_line
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.snapshot import Origin
from gpuwatch.samples import NvmlState
from tests.unit.fake_sources import finding
from tests.unit.snapshot_builder import gpu, run, snapshot


def parts(*arguments: object, **fields: object) -> list[str]:
    return watch_line(snapshot(*arguments, **fields)).split(" | ")[1:]  # type: ignore[arg-type]


def test_one_gpu_and_its_run() -> None:
    assert parts(gpu(), runs=(run(),)) == [
        "GPU 0 400/700 W (57%)",
        "util 58%",
        "mem 60.0/80.0 GiB",
        "61 °C",
        "SM 1755 MHz",
        "mem clock 2619 MHz",
        "step 312 ms",
        "wait 41%",
    ]


def test_rings_give_the_mean_since_the_last_poll() -> None:
    rings = {"utilization_ring": ((1, 0.0), (2, 100.0)), "power_ring": ((1, 100.0), (2, 600.0))}
    assert parts(gpu(**rings))[:2] == ["GPU 0 350/700 W (50%)", "util 50%"]


def test_several_gpus_share_the_line_as_sums_and_ranges() -> None:
    line = parts(gpu(0), gpu(1, utilization_percent=97.0, temperature_celsius=70.0, sm_clock_mhz=1200.0))
    assert line[:5] == [
        "2 GPUs 800/1400 W (57%)",
        "util 58-97%",
        "mem 120.0/160.0 GiB",
        "61-70 °C",
        "SM 1200-1755 MHz",
    ]


def test_unknown_is_never_zero_and_spoils_a_sum() -> None:
    silent = {"power_watts": None, "utilization_percent": None, "memory_used_bytes": None}
    line = parts(gpu(0), gpu(1, **silent))
    assert line[:3] == ["2 GPUs n/a W", "util n/a", "mem n/a GiB"]


def test_lost_gpu_is_named_and_left_out() -> None:
    assert parts(gpu(0), gpu(1, status="lost"))[0] == "2 GPUs (1 LOST) 400/700 W (57%)"
    assert parts(gpu(0, status="stale"))[0] == "GPU 0 STALE n/a W"


def test_unified_memory_is_said() -> None:
    assert "mem 60.0/80.0 GiB (unified)" in parts(gpu(facts={"memory_unified": True}))


def test_simulation_is_said_on_every_line() -> None:
    assert parts(gpu(), origin=Origin("simulated", "SIMULATED starved"))[0] == "SIMULATED starved"


def test_without_gpu_and_run() -> None:
    assert parts() == ["waiting for the driver", "no run"]
    assert parts(nvml=NvmlState(time_ns=0, status="absent")) == ["no GPU", "no run"]


def test_run_that_waits_most_is_shown_and_the_others_counted() -> None:
    line = parts(runs=(run(1, wait_share=0.1), run(2, wait_share=0.5, state="silent"), run(3, state="ended")))
    assert line[1:] == ["train.py (2)", "step 312 ms", "wait 50%", "stalled, last step 60 s ago", "+1 run"]


def test_run_outside_its_loop_says_since_when() -> None:
    assert "not training, last step 60 s ago" in parts(runs=(run(2, state="not training"),))


def test_long_steps_and_short_waits_keep_their_figure() -> None:
    line = parts(runs=(run(step_seconds_p50=5400.0, wait_share=0.004),))
    assert line[1:] == ["step 90.0 min", "wait 0.4%"]


def test_run_without_hook_has_unknown_steps() -> None:
    line = parts(runs=(run(step_seconds_p50=None, wait_share=None, state="not hooked"),))
    assert line[1:] == ["step n/a", "wait n/a"]


def test_run_seen_from_outside_says_how_it_is_seen_and_its_batches() -> None:
    sampled = run(visibility="sampled", step_seconds_p50=None, step_seconds=0.25, batches_per_second=3.876)
    assert parts(runs=(sampled,))[1:] == ["step 250 ms", "3.88 batches/s", "wait 41%", "sampled"]
    entries = run(visibility="sampled", batches_per_second=3.9, batches_exact=False)
    assert "at least 3.9 batches/s" in parts(runs=(entries,))
    own = run(visibility="sampled", batches_per_second=3.9, batches_of_loader=False)
    assert "3.9 iterations/s" in parts(runs=(own,))
    assert parts(runs=(run(visibility="process", step_seconds_p50=None, wait_share=None),))[1:] == [
        "step n/a",
        "wait n/a",
        "/proc only",
    ]


def test_a_finding_is_reported_with_the_run_or_the_gpu_that_it_is_about() -> None:
    seen = snapshot(gpu(0), gpu(1), runs=(run(1), run(2)))

    def about(**of: str) -> str:
        told: Finding = replace(finding("low-util"), **of)
        return subject_of(told, seen)

    assert about(run="2.1", gpu="GPU-0") == "train.py (2): "
    assert about(gpu="GPU-1") == "GPU 1: "
    assert about(gpu="GPU-1", summary="GPU 1 is hot") == ""
    assert about() == ""
