"""The peaks of devices by name and dtype."""

from __future__ import annotations

import pytest
import torch

from torchbus_throughput import flops


@pytest.mark.parametrize(
    ("name", "dtype", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989.5),
        ("NVIDIA H100 PCIe", torch.float16, 756.5),
        ("NVIDIA H200", torch.bfloat16, 989.5),
        ("NVIDIA A100-SXM4-80GB", torch.float32, 19.5),
        ("NVIDIA A100-SXM4-80GB", torch.float64, 19.5),
        ("Tesla V100-SXM2-16GB", torch.float16, 125),
        ("NVIDIA L4", torch.bfloat16, 121),
        ("AMD Instinct MI300X", torch.bfloat16, 1307.4),
    ],
)
def test_peaks_of_data_sheets(name, dtype, tera):
    assert flops.peak(flops.named(name), dtype) == tera * 1e12


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "A10G", ""]
)
def test_other_devices_have_no_peak(name):
    assert flops.named(name) is None


def test_float32_by_tf32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert flops.peak(flops.named("NVIDIA A100-PCIE-40GB"), torch.float32) == 156e12
    finally:
        torch.set_float32_matmul_precision(before)
