"""What the doctor says of training on machines that are not this one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwatch.cli.checks import Check, State, as_json, as_lines
from gpuwatch.cli.doctor_training import (
    SECTION,
    Cores,
    TorchDefaults,
    ask_torch,
    check_cpu_launch,
    check_gpus,
    check_launch,
    check_peaks,
    check_torch_defaults,
    training_checks,
)
from gpuwatch.diagnosis.advice.precision import PEAKS
from gpuwatch.samples import GpuFacts, GpuStatus
from gpuwatch.sources.host.machine import CpuLimit, NumaNodes
from gpuwatch.sources.nvml.source import NvmlSurvey

NO_LIMIT = CpuLimit(known=True)
TORCH = Check("torch", State.OK, "It is there.", details={"interpreter": "python", "version": "2.13.0", "cuda": "13.0"})
DEFAULTS = TorchDefaults("highest", matmul_tf32=False, cudnn_tf32=True, kernels="sm_80 sm_90 compute_90")


def gpu(index: int = 0, name: str = "NVIDIA H100 80GB HBM3", **changes: object) -> GpuFacts:
    facts = GpuFacts(
        0,
        f"GPU-{index}",
        index,
        name,
        pci_bus_id=f"00000000:{0x3B + index:02X}:00.0",
        compute_capability=(9, 0),
        memory_total_bytes=80 * 2**30,
        pcie_generation_max=5,
        pcie_width_max=16,
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def status(index: int = 0, generation: int | None = 1, width: int | None = 16) -> GpuStatus:
    return GpuStatus(0, f"GPU-{index}", pcie_generation=generation, pcie_width=width)


def numa(root: Path, **cores: str) -> NumaNodes:
    """node0="0-31" and so on; GPU 0 is on the first node, GPU 1 on the last."""
    nodes = root / "devices/system/node"
    for name, listed in cores.items():
        (nodes / name).mkdir(parents=True)
        (nodes / name / "cpulist").write_text(f"{listed}\n")
    for address, node in (("0000:3b:00.0", 0), ("0000:3c:00.0", len(cores) - 1)) if len(cores) > 1 else ():
        device = root / "bus/pci/drivers/nvidia" / address
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
    return NumaNodes(root)


def table(check: Check) -> list[dict[str, str]]:
    head, *rows = check.rows
    return [dict(zip(head, row, strict=True)) for row in rows]


def lines(check: Check) -> dict[str, str]:
    return {name.rstrip(":"): words for name, words in check.rows}


def test_a_gpu_is_shown_with_its_formats_its_link_and_its_node(tmp_path: Path) -> None:
    nodes = numa(tmp_path, node0="0-31,64-95", node1="32-63")
    check = check_gpus([gpu(), gpu(1, "Tesla T4", compute_capability=(7, 5))], [status(), status(1)], nodes)
    first, second = table(check)
    assert check.state is State.OK and check.sentence.startswith("2 GPUs.")
    assert first == {
        "GPU": "0",
        "model": "H100 80GB HBM3",
        "capability": "9.0",
        "memory": "80.0 GiB",
        "bf16": "yes",
        "fp8": "yes",
        "TF32": "yes",
        "PCIe now": "gen 1 x16",
        "at most": "gen 5 x16",
        "NUMA node: cores": "0: 0-31,64-95",
    }
    assert (second["bf16"], second["fp8"], second["TF32"], second["NUMA node: cores"]) == ("no", "no", "no", "1: 32-63")


def test_what_a_gpu_does_not_report_is_unknown(tmp_path: Path) -> None:
    silent = gpu(compute_capability=None, memory_total_bytes=None, pcie_generation_max=None, pcie_width_max=None)
    (row,) = table(check_gpus([silent], [], numa(tmp_path)))
    assert set(list(row.values())[2:]) == {"unknown"}
    (row,) = table(check_gpus([gpu()], [status(width=None)], numa(tmp_path)))
    assert row["PCIe now"] == "gen 1, lanes unknown"


def test_formats_begin_with_the_generation_that_has_them() -> None:
    for capability, formats in {(7, 5): "no no", (8, 0): "yes no", (8, 6): "yes no", (8, 9): "yes yes"}.items():
        (row,) = table(check_gpus([gpu(compute_capability=capability)], [], NumaNodes(Path("/none"))))
        assert f"{row['bf16']} {row['fp8']}" == formats
        assert row["TF32"] == row["bf16"]


def test_a_card_without_all_its_lanes_is_a_warning(tmp_path: Path) -> None:
    check = check_gpus([gpu(), gpu(1)], [status(width=8), status(1)], numa(tmp_path))
    assert check.state is State.WARNING and check.cure
    assert check.sentence.startswith("GPU 0 uses 8 of 16 lanes:")


def test_peak_rates_stand_once_for_each_model_with_their_source() -> None:
    v100 = gpu(2, "Tesla V100-SXM2-32GB", compute_capability=(7, 0))
    first, second = table(check_peaks([gpu(), gpu(1), v100]))
    assert (first["TFLOPS"], first["bf16"], first["fp8"], first["source"]) == (
        "H100 80GB HBM3",
        "989.5",
        "1979",
        "H100 data sheet",
    )
    assert (second["bf16"], second["fp16"], second["fp8"], second["TF32"]) == ("none", "125", "none", "none")


def test_a_model_that_is_not_in_the_table_is_not_guessed() -> None:
    check = check_peaks([gpu(name="NVIDIA H100 80GB HBM3 of tomorrow")])
    assert (check.state, check.rows) == (State.UNKNOWN, ())
    mixed = check_peaks([gpu(), gpu(1, "NVIDIA A10G")])
    assert "Unknown for A10G" in mixed.sentence and len(table(mixed)) == 1


@pytest.mark.parametrize("name", PEAKS)
def test_peak_rates_of_a_model_agree_with_each_other(name: str) -> None:
    peak = PEAKS[name]
    assert peak.fp8 is None or peak.fp8 == pytest.approx(2 * peak.half, rel=0.02)
    assert peak.tf32 is None or peak.tf32 == pytest.approx(peak.half / 2, rel=0.03)
    assert peak.fp32 <= peak.half


def test_the_defaults_of_torch_say_what_float32_is_computed_in() -> None:
    check = check_torch_defaults([gpu()], TORCH, DEFAULTS)
    assert check.state is State.OK and "gpuwatch trial tf32=true" in (check.cure or "")
    assert "multiplies float32 matrices in full float32" in check.sentence
    assert "convolves in TF32" in check.sentence
    assert check.details["float32_matmul_precision"] == "highest"
    in_tf32 = replace(DEFAULTS, matmul_precision="high", matmul_tf32=True)
    assert check_torch_defaults([gpu()], TORCH, in_tf32).cure is None
    assert check_torch_defaults([gpu(compute_capability=(7, 0))], TORCH, replace(DEFAULTS, kernels=None)).cure is None


def test_defaults_that_torch_does_not_report_are_unknown() -> None:
    assert check_torch_defaults([gpu()], TORCH, None).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("kernels", "capability", "runs"),
    [
        ("sm_80 sm_90", (9, 0), True),
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_80 sm_90", (12, 0), False),
        ("sm_80 sm_90 compute_90", (12, 0), True),
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_120", (12, 0), True),
        (None, (9, 0), True),
        ("gfx942", (9, 0), True),
        ("sm_80", None, True),
    ],
)
def test_a_torch_without_kernels_for_a_gpu_is_a_problem(
    kernels: str | None, capability: tuple[int, int] | None, runs: bool
) -> None:
    defaults = replace(DEFAULTS, kernels=kernels)
    check = check_torch_defaults([gpu(compute_capability=capability)], TORCH, defaults)
    assert check.state is (State.OK if runs else State.PROBLEM)
    assert runs or "has no kernels for GPU 0" in check.sentence


def test_an_interpreter_without_torch_or_without_an_answer_has_no_defaults(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(600)")
    endless = tmp_path / "python"
    endless.write_text("#!/bin/sh\nexec sleep 600\n")
    endless.chmod(0o755)
    assert ask_torch(str(endless), timeout_seconds=0.2) is None
    assert ask_torch(str(tmp_path / "none")) is None


def test_each_gpu_gets_a_process_and_its_part_of_the_cores(tmp_path: Path) -> None:
    check = check_launch([gpu(), gpu(1)], Cores(64, None, NO_LIMIT), None, numa(tmp_path, node0="0-31", node1="32-63"))
    assert check.state is State.OK
    assert check.sentence.startswith("2 GPUs and 64 CPU cores, 32 for each of 2 processes")
    said = lines(check)
    assert said["start"] == "OMP_NUM_THREADS=1 torchrun --nproc-per-node=2 train.py"
    assert said["workers"].startswith("num_workers=31 at most")
    assert said["without"].startswith("OMP_NUM_THREADS=32")
    assert "--numa-binding=node" in said["nodes"]
    assert check.details["workers_per_process"] == 31


def test_one_gpu_needs_no_launcher_and_one_node_no_binding(tmp_path: Path) -> None:
    said = lines(check_launch([gpu()], Cores(16, None, NO_LIMIT), None, numa(tmp_path, node0="0-15")))
    assert said["start"] == "OMP_NUM_THREADS=1 python train.py"
    assert "nodes" not in said


def test_a_quota_and_an_affinity_count_not_the_machine(tmp_path: Path) -> None:
    quota = check_launch([gpu(), gpu(1)], Cores(64, 32, CpuLimit(True, 9.0)), None, numa(tmp_path))
    assert "9 CPU cores (a CPU quota; the machine has 64), 4.5 for each" in quota.sentence
    assert quota.details["workers_per_process"] == 3
    pinned = check_launch([gpu(), gpu(1)], Cores(64, 32, NO_LIMIT), None, numa(tmp_path / "other"))
    assert "32 CPU cores (CPU affinity; the machine has 64), 16 for each" in pinned.sentence


def test_fewer_cores_than_gpus_need_is_a_warning(tmp_path: Path) -> None:
    check = check_launch([gpu(index) for index in range(8)], Cores(8, None, NO_LIMIT), None, numa(tmp_path))
    assert check.state is State.WARNING and check.cure
    assert lines(check)["workers"].startswith("num_workers=1 at most")
    assert "without" not in lines(check)


@pytest.mark.parametrize(
    ("visible", "processes"), [("0,1", 2), ("3", 1), ("0,-1,2", 1), ("GPU-1,GPU-0,GPU-2", 3), ("0,1,2,3,4,5", 4)]
)
def test_gpus_that_the_environment_hides_get_no_process(visible: str, processes: int, tmp_path: Path) -> None:
    gpus = [gpu(index) for index in range(4)]
    assert check_launch(gpus, Cores(64, None, NO_LIMIT), visible, numa(tmp_path)).details["processes"] == processes


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_an_environment_that_hides_all_gpus_is_a_warning(visible: str, tmp_path: Path) -> None:
    check = check_launch([gpu()], Cores(64, None, NO_LIMIT), visible, numa(tmp_path))
    assert check.state is State.WARNING and "CUDA_VISIBLE_DEVICES" in (check.cure or "")


def test_gpus_that_mig_divides_are_not_counted(tmp_path: Path) -> None:
    divided = gpu(1, mig=True)
    check = check_launch([gpu(), divided], Cores(64, None, NO_LIMIT), None, numa(tmp_path))
    assert check.sentence.startswith("1 of 2 GPUs and 64 CPU cores")
    assert check_launch([divided], Cores(64, None, NO_LIMIT), None, numa(tmp_path)).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("cores", "physical", "threads", "why"),
    [
        (Cores(16, None, NO_LIMIT), 8, 8, "physical core"),
        (Cores(16, None, NO_LIMIT), None, 16, "each core"),
        (Cores(16, 2, NO_LIMIT), 8, 2, "each core"),
        (Cores(16, None, CpuLimit(True, 2.5)), 8, 2, "the quota allows"),
        (Cores(16, None, CpuLimit(True, 0.5)), 8, 1, "the quota allows"),
    ],
)
def test_without_a_gpu_the_line_is_for_the_cpu(cores: Cores, physical: int | None, threads: int, why: str) -> None:
    check = check_cpu_launch(cores, physical)
    assert "No GPU answers" in check.sentence
    said = lines(check)
    assert said["start"] == f"OMP_NUM_THREADS={threads} python train.py"
    assert why in said[f"why {threads}"]


def test_the_section_has_a_heading_and_its_instances_no_rows_of_their_own(tmp_path: Path) -> None:
    instance = gpu(7, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", mig_parent="GPU-0")
    found = NvmlSurvey(gpus=(gpu(mig=True), instance), complete=True)
    without_torch = replace(TORCH, details={})
    checks = training_checks(found, without_torch, Cores(64, None, NO_LIMIT), {}, tmp_path)
    assert [check.name for check in checks] == ["gpus", "peak-rates", "launch"]
    assert [row["model"] for row in table(checks[0])] == ["H100 80GB HBM3 (MIG)"]
    text = [line for _, line in as_lines([TORCH, *checks], 100)]
    assert text.count("Training on this machine") == 1
    assert {each["section"] for each in as_json(checks)["checks"]} == {SECTION}  # type: ignore[attr-defined]


def test_the_section_asks_torch_only_where_it_can_use_a_gpu(tmp_path: Path) -> None:
    torch = replace(TORCH, details={**TORCH.details, "interpreter": str(tmp_path / "no-python")})
    cores = Cores(64, None, NO_LIMIT)
    found = training_checks(NvmlSurvey(gpus=(gpu(),), complete=True), torch, cores, {}, tmp_path)
    assert [check.state for check in found if check.name == "torch-defaults"] == [State.UNKNOWN]
    (alone,) = training_checks(NvmlSurvey(), torch, cores, {}, tmp_path, lambda: 32)
    assert alone.name == "launch"


def test_the_installed_torch_reports_its_defaults() -> None:
    pytest.importorskip("torch")
    found = ask_torch(sys.executable)
    assert found is not None
    assert (found.matmul_precision, found.matmul_tf32, found.cudnn_tf32) == ("highest", False, True)
