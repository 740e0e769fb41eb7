"""The floating-point operations of a sample, counted once in an early step of the loop."""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

import torch
from torchbus.plugin import Context, warn

from torchbus_device import accelerators
from torchbus_throughput import _compat
from torchbus_throughput.counts import Tally

TERA = 1e12
OTHERS = ("MIG", "Laptop", "Max-Q", "D")


class DataSheet(NamedTuple):
    """The peaks of one device, of dense matrices in TFLOP/s. Data sheets of NVIDIA often name
    those of sparse ones, which are twice as large. Where a data sheet has a figure for matrix
    units, this is it.

    ``half``: float16 and bfloat16 with sums in float32. ``tf32``: float32 by TensorFloat-32.
    ``single``: float32 in full precision. ``double``: float64.
    """

    half: float
    tf32: float
    single: float
    double: float


SHEETS: dict[str, DataSheet] = {
    # https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703 (HGX B200, by 8)
    "B200": DataSheet(2250, 1125, 75, 37),
    # https://www.nvidia.com/en-us/data-center/h200
    "H200": DataSheet(989.5, 494.5, 67, 67),
    # https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet
    "H100 NVL": DataSheet(835.5, 417.5, 60, 60),
    "H100 PCIe": DataSheet(756.5, 378, 51, 51),
    "H100": DataSheet(989.5, 494.5, 67, 67),
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf
    "A100": DataSheet(312, 156, 19.5, 19.5),
    # https://images.nvidia.com/content/Solutions/data-center/a40/nvidia-a40-datasheet.pdf
    "A40": DataSheet(149.7, 74.8, 37.4, 0.58),
    # https://www.nvidia.com/content/dam/en-zz/Solutions/data-center/products/a30-gpu/pdf/a30-datasheet.pdf
    "A30": DataSheet(165, 82, 10.3, 10.3),
    # https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413
    "L40S": DataSheet(362, 183, 91.6, 1.4),
    # https://www.nvidia.com/en-us/data-center/l4
    "L4": DataSheet(121, 60, 30.3, 0.49),
    # https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
    "V100-SXM2": DataSheet(125, 15.7, 15.7, 7.8),
    "V100-PCIE": DataSheet(112, 14, 14, 7),
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf
    "T4": DataSheet(65, 8.1, 8.1, 0.25),
    # https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf
    "RTX 4090": DataSheet(165.2, 82.6, 82.6, 1.3),
    # https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf
    "RTX 3090": DataSheet(71, 35.6, 35.6, 0.56),
    # https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html
    "MI300X": DataSheet(1307.4, 653.7, 163.4, 163.4),
    # https://www.amd.com/en/products/accelerators/instinct/mi200/mi250x.html (one of its two dies)
    "MI250X": DataSheet(191.5, 47.9, 47.9, 47.9),
}


def sheet_of(device: torch.device) -> DataSheet | None:
    """Return the data sheet of a device, or None if this table has none."""
    ask = getattr(accelerators.module(device.type), "get_device_name", None)
    return None if device.type == "cpu" or ask is None else named(str(ask(device)))


def named(name: str) -> DataSheet | None:
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


def peak(sheet: DataSheet, dtype: torch.dtype) -> float:
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


STEP = 1  # count after this step: the first one fills caches that later ones reuse


class Flops:
    """Counts the floating-point operations between the ends of two successive real steps.

    This is what the loop's own forward and backward do, however it calls them: each operation runs
    as before, and its shapes are read. ``given``: FLOPs of a sample, if the user knows them.
    ``dtype``: in which most of them are computed.

    Source: torch.utils.flop_counter.FlopCounterMode
    """

    def __init__(self, given: float | None) -> None:
        self._thread = threading.get_ident()
        self._graphs_before = _compat.compiled_graphs()
        self._per_sample = given
        self._per_step: float | None = None
        self._counter: _compat.CountedOps | None = None
        self._is_on = False
        self._began: Tally | None = None
        self._counted: Tally | None = None
        self.is_done = given is not None
        self.dtype = torch.get_default_dtype()
        self.unknown: dict[str, int] = {}

    def of(self, tally: Tally) -> float:
        """Return the operations of a window. NaN until they were counted."""
        if self._per_sample is not None:
            return self._per_sample * tally.samples if tally.batches else math.nan
        return math.nan if self._per_step is None else self._per_step * tally.steps

    def described(self) -> str:
        """Describe the known operations."""
        if self._per_sample is not None:
            return f"{self._per_sample:_.0f} FLOPs per sample"
        return "FLOPs per sample: counted in an early step"

    def stepped(self, now: Tally) -> bool:
        """A real step is over. Begin to count, or end. Return whether the count has ended."""
        if self.is_done or now.steps < STEP:
            return False
        if self._began is None:
            self.go_on(now)
        elif self._counted is None and now.steps > self._began.steps:
            self._counted = now.since(self._began)
        return self._end()

    def pause(self) -> None:
        """Count nothing until ``go_on``: a loader begins, whose workers would count, too."""
        counter = self._counter if self._is_on and self._is_here else None
        if counter is not None and _compat.is_innermost(counter):
            counter.end()
            self._is_on = False

    def go_on(self, now: Tally) -> None:
        """The loop is about to train. Count, if this is a step to be counted.

        A mode that the loop has begun must end first, so it may take some batches.
        """
        if self.is_done or now.steps < STEP or not self._is_here or self._end():
            return
        if not self._is_on and _compat.is_free():
            if self._counter is None:
                self._begin(now)
            if self._counter is not None:
                self._counter.begin()
                self._is_on = True

    def _begin(self, now: Tally) -> None:
        if _compat.compiled_graphs() > self._graphs_before:
            self.is_done = True
            warn(
                "flops=True: the loop runs compiled code, whose operations can't be counted without"
                " changing how they are computed: no FLOPs are logged. Pass flops=<FLOPs per"
                " sample>, which you get from a run without torch.compile"
            )
        else:
            self._began, self._counter = now, _compat.CountedOps()

    def _end(self) -> bool:
        """Return whether the count has ended now."""
        if self._counted is None:
            return False
        self.pause()
        if not self._is_on:
            self._finish(self._counted)
        return self.is_done

    def _finish(self, counted: Tally) -> None:
        assert self._counter is not None
        counter, self._counter, self.is_done = self._counter, None, True
        if counted.rows:
            self._per_sample = counter.total / counted.rows
        else:
            self._per_step = counter.total / max(1, counted.steps)
        self.dtype = max(
            counter.by_dtype, key=lambda one: counter.by_dtype[one], default=self.dtype
        )
        self.unknown = dict(counter.unknown)
        if self.unknown:
            named = ", ".join(f"{name} ({times}x)" for name, times in self.unknown.items())
            warn(
                f"flops=True: no formula for {named}: counted as 0 FLOPs. Give one with"
                " torch.utils.flop_counter.register_flop_formula before the session"
            )

    @property
    def _is_here(self) -> bool:
        """Whether this is the loop's thread: others have their own modes."""
        return threading.get_ident() == self._thread
