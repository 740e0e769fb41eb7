"""Checks torch, its GPUs and its communication backends."""

from __future__ import annotations

import os
import warnings

import torch
import torch.distributed as dist

from torchbus._cli.doctor.finding import Finding
from torchbus._compat import accelerators

DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl")


def look() -> list[Finding]:
    """Say how torch was built, and what it can use."""
    return [
        Finding("torch", {"version": torch.__version__, "CUDA": torch.version.cuda}),
        _gpus(),
        _backends(),
    ]


def _gpus() -> Finding:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kind = accelerators.current() or "cuda"
        module = accelerators.module(kind)
        count = accelerators.count(kind) if module.is_available() else 0
    complaints = [str(warning.message).splitlines()[0] for warning in caught]
    if not count:
        return Finding("gpus", {}, _why_none(complaints))
    facts, problems = {}, []
    for index in range(count):
        try:
            facts[str(index)] = _words(kind, index)
        except RuntimeError as error:
            facts[str(index)] = "can't be used"
            problems.append(
                f"GPU {index}: {str(error).splitlines()[0]}: see nvidia-smi; leave it out with"
                " CUDA_VISIBLE_DEVICES"
            )
    return Finding("gpus", facts, problems)


def _words(kind: str, index: int) -> str:
    name = getattr(accelerators.module(kind), "get_device_name", lambda _: kind)(index)
    if not hasattr(accelerators.module(kind), "mem_get_info"):
        return str(name)
    free, total = (size / 2**30 for size in accelerators.memory_info(kind, index))
    return f"{name} with {free:.1f} of {total:.1f} GiB free"


def _why_none(complaints: list[str]) -> list[str]:
    """Say what is wrong if torch sees no GPU.

    Nothing is wrong on a machine without a driver, or if the user hides the GPUs.
    """
    if complaints:
        return [f"torch can't use the GPUs: {complaints[0]}"]
    if not any(map(os.path.exists, DRIVER_FILES)) or os.environ.get(
        "CUDA_VISIBLE_DEVICES", "0"
    ) in ("", "-1"):
        return []
    if torch.version.cuda is None:
        return [
            "this machine has an NVIDIA driver, but torch was built without CUDA: install a CUDA"
            " build, see pytorch.org"
        ]
    return [
        "this machine has an NVIDIA driver, but torch sees no GPU: see nvidia-smi and"
        " CUDA_VISIBLE_DEVICES; in a container, --gpus all"
    ]


def _backends() -> Finding:
    if not dist.is_available():
        return Finding(
            "backends", {}, ["torch was built without torch.distributed: install an official build"]
        )
    built = {
        name: getattr(dist, f"is_{name}_available", bool)()
        for name in ("gloo", "nccl", "mpi", "ucc", "xccl")
    }
    facts = {"built in": " ".join(name for name, there in built.items() if there) or None}
    problems = (
        []
        if built["gloo"]
        else ["torch was built without gloo, which ranks on CPU need: install an official build"]
    )
    chosen = os.environ.get("TORCHBUS_BACKEND")
    if chosen is not None and not dist.is_backend_available(chosen):
        problems.append(
            f"TORCHBUS_BACKEND={chosen!r} is not a backend of torch.distributed: use one of"
            f" {facts['built in']}, or unset it"
        )
    return Finding("backends", facts, problems)
