"""Number formats that a generation of GPUs computes with in hardware, and NVIDIA's peak rates for them."""

from __future__ import annotations

from dataclasses import dataclass

TENSOR_CORES_FROM = (7, 0)
"""Compute capability of the first tensor cores: float16. CUDA C++ Programming Guide, table of compute capabilities."""
BF16_FROM = (8, 0)
"""bfloat16 and TF32, by the same table; torch emulates bfloat16 on older GPUs, slower than float32."""
FP8_FROM = (8, 9)
"""8-bit floats (E4M3, E5M2), by the same table: Ada, Hopper and later."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak rates of one GPU without sparsity, in TFLOPS, with 32-bit accumulation; None where it has no such units."""

    half: float  # float16, and bfloat16 from `BF16_FROM` on
    fp8: float | None
    tf32: float | None
    fp32: float
    source: str  # what NVIDIA calls the document


_HOPPER_NVL = (835.5, 1671.0, 417.5, 60.0)
_HOPPER_SXM = (989.5, 1979.0, 494.5, 67.0)
_AMPERE = "NVIDIA Ampere GA102 whitepaper"
_ADA = "NVIDIA Ada whitepaper"
_BLACKWELL = "NVIDIA RTX Blackwell whitepaper"
_V100, _A100 = "V100 data sheet", "A100 data sheet"

# Where a data sheet has only the rate with sparsity, half of it.
PEAKS = {
    "B300 SXM6 AC": Peak(2250.0, 4500.0, 1125.0, 75.0, "HGX B300 specifications"),
    "B200": Peak(2250.0, 4500.0, 1100.0, 75.0, "Blackwell (GB200, HGX B200) data sheet"),
    "GH200 480GB": Peak(*_HOPPER_SXM, "GH200 data sheet"),
    "GH200 144G HBM3e": Peak(*_HOPPER_SXM, "GH200 data sheet"),
    "H200": Peak(*_HOPPER_SXM, "H200 data sheet"),
    "H200 NVL": Peak(*_HOPPER_NVL, "H200 data sheet"),
    "H100 80GB HBM3": Peak(*_HOPPER_SXM, "H100 data sheet"),
    "H100 NVL": Peak(*_HOPPER_NVL, "H100 data sheet"),
    "H100 PCIe": Peak(756.5, 1513.0, 378.0, 51.0, "H100 data sheet of 2022"),
    "L40S": Peak(362.0, 733.0, 183.0, 91.6, "L40S data sheet"),
    "L40": Peak(181.0, 362.0, 90.5, 90.5, "L40 data sheet"),
    "L4": Peak(121.0, 242.5, 60.0, 30.3, "L4 data sheet"),
    "A100-SXM4-40GB": Peak(312.0, None, 156.0, 19.5, _A100),
    "A100-SXM4-80GB": Peak(312.0, None, 156.0, 19.5, _A100),
    "A100-PCIE-40GB": Peak(312.0, None, 156.0, 19.5, _A100),
    "A100 80GB PCIe": Peak(312.0, None, 156.0, 19.5, _A100),
    "A40": Peak(149.7, None, 74.8, 37.4, "A40 data sheet"),
    "A30": Peak(165.0, None, 82.0, 10.3, "A30 data sheet"),
    "A10": Peak(125.0, None, 62.5, 31.2, "A10 data sheet"),
    "T4": Peak(65.0, None, None, 8.1, "T4 data sheet"),
    "V100S-PCIE-32GB": Peak(130.0, None, None, 16.4, _V100),
    "V100-SXM2-16GB": Peak(125.0, None, None, 15.7, _V100),
    "V100-SXM2-32GB": Peak(125.0, None, None, 15.7, _V100),
    "V100-PCIE-16GB": Peak(112.0, None, None, 14.0, _V100),
    "V100-PCIE-32GB": Peak(112.0, None, None, 14.0, _V100),
    "RTX 6000 Ada Generation": Peak(364.2, 728.5, 182.1, 91.1, _ADA),
    "RTX A6000": Peak(154.8, None, 77.4, 38.7, _AMPERE),
    "GeForce RTX 5090": Peak(209.5, 419.0, 104.8, 104.8, _BLACKWELL),
    "GeForce RTX 5080": Peak(112.6, 225.1, 56.3, 56.3, _BLACKWELL),
    "GeForce RTX 4090": Peak(165.2, 330.3, 82.6, 82.6, _ADA),
    "GeForce RTX 4080": Peak(97.5, 194.9, 48.7, 48.7, _ADA),
    "GeForce RTX 3090": Peak(71.0, None, 35.6, 35.6, _AMPERE),
}
"""By the driver's name without "NVIDIA" or "Tesla": variants of other names have other rates."""


def model_of(name: str) -> str:
    """The driver's name of a GPU without the maker's: "NVIDIA H100 PCIe" and "Tesla T4" are "H100 PCIe" and "T4"."""
    return name.removeprefix("NVIDIA ").removeprefix("Tesla ")


def has(capability: tuple[int, int] | None, since: tuple[int, int]) -> bool | None:
    """Whether a GPU of that compute capability has what is there `since` another; None where it is not known."""
    return None if capability is None else capability >= since
