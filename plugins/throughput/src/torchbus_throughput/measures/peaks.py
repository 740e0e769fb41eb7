"""The peak of a device in FLOPs per second, by its name and the dtype: from public data sheets."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torchbus.plugin import Context

from torchbus_device import accelerators

TERA = 1e12
OTHERS = ("MIG", "Laptop", "Max-Q", "D")


class Sheet(NamedTuple):
    """Peaks of dense matrices in TFLOP/s. Data sheets of NVIDIA often name those of sparse ones,
    which are twice as large. Where a data sheet has a figure for matrix units, this is it.

    ``half``: float16 and bfloat16 with sums in float32. ``tf32``: float32 by TensorFloat-32.
    ``single``: float32 in full precision. ``double``: float64.
    """

    half: float
    tf32: float
    single: float
    double: float


SHEETS: dict[str, Sheet] = {
    # https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703 (HGX B200, by 8)
    "B200": Sheet(2250, 1125, 75, 37),
    # https://www.nvidia.com/en-us/data-center/h200
    "H200": Sheet(989.5, 494.5, 67, 67),
    # https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet
    "H100 NVL": Sheet(835.5, 417.5, 60, 60),
    "H100 PCIe": Sheet(756.5, 378, 51, 51),
    "H100": Sheet(989.5, 494.5, 67, 67),
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf
    "A100": Sheet(312, 156, 19.5, 19.5),
    # https://images.nvidia.com/content/Solutions/data-center/a40/nvidia-a40-datasheet.pdf
    "A40": Sheet(149.7, 74.8, 37.4, 0.58),
    # https://www.nvidia.com/content/dam/en-zz/Solutions/data-center/products/a30-gpu/pdf/a30-datasheet.pdf
    "A30": Sheet(165, 82, 10.3, 10.3),
    # https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413
    "L40S": Sheet(362, 183, 91.6, 1.4),
    # https://www.nvidia.com/en-us/data-center/l4
    "L4": Sheet(121, 60, 30.3, 0.49),
    # https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
    "V100-SXM2": Sheet(125, 15.7, 15.7, 7.8),
    "V100-PCIE": Sheet(112, 14, 14, 7),
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf
    "T4": Sheet(65, 8.1, 8.1, 0.25),
    # https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf
    "RTX 4090": Sheet(165.2, 82.6, 82.6, 1.3),
    # https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf
    "RTX 3090": Sheet(71, 35.6, 35.6, 0.56),
    # https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html
    "MI300X": Sheet(1307.4, 653.7, 163.4, 163.4),
    # https://www.amd.com/en/products/accelerators/instinct/mi200/mi250x.html (one of its two dies)
    "MI250X": Sheet(191.5, 47.9, 47.9, 47.9),
}


def sheet_of(device: torch.device) -> Sheet | None:
    """Return the data sheet of a device, or None if this table has none."""
    ask = getattr(accelerators.module(device.type), "get_device_name", None)
    return None if device.type == "cpu" or ask is None else named(str(ask(device)))


def named(name: str) -> Sheet | None:
    """Return the data sheet for a name as ``torch.cuda.get_device_name`` returns it.

    Variants with other clocks, and parts of a GPU (MIG), have none.
    """
    if any(word in name.split() for word in OTHERS):
        return None
    padded = f" {name} ".replace("-", " ")
    for known, sheet in SHEETS.items():
        if f" {known} ".replace("-", " ") in padded:
            return sheet
    return None


def peak(sheet: Sheet, dtype: torch.dtype) -> float:
    """Return FLOPs per second for matrices of a dtype, in torch's present settings."""
    if dtype in (torch.float16, torch.bfloat16):
        return sheet.half * TERA
    if dtype == torch.float64:
        return sheet.double * TERA
    exact = torch.get_float32_matmul_precision() == "highest"
    return (sheet.single if exact else sheet.tf32) * TERA


class Peak:
    """The peak of this rank's device. ``is_known``: each rank knows the peak of its device.

    ``given``: FLOPs per second, from the user. ``is_counted``: the dtype will be known. All ranks
    make one.
    """

    def __init__(self, session: Context, given: float | None, is_counted: bool) -> None:
        self._given = given
        self._sheet = sheet_of(session.device) if is_counted and given is None else None
        known = given is not None or self._sheet is not None
        self.is_known = all(session.all_gather_object(known))

    def of(self, dtype: torch.dtype) -> float:
        """Return FLOPs per second, NaN if unknown."""
        if self._given is not None:
            return self._given
        return math.nan if self._sheet is None else peak(self._sheet, dtype)
