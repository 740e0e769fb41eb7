"""The GPU that a rank samples."""

from __future__ import annotations

import os

import torch


def physical_gpu(device: torch.device) -> int | None:
    """The driver's number of a rank's GPU.

    None for a CPU, or if CUDA_VISIBLE_DEVICES does not hold numbers.
    """
    if device.type != "cuda" or device.index is None:
        return None
    visible = [
        word.strip()
        for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if word.strip()
    ]
    if not visible:
        return device.index
    if device.index >= len(visible) or not visible[device.index].isdigit():
        return None
    return int(visible[device.index])
