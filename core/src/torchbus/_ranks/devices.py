"""What ``devices=`` and ``accelerator=`` mean, and which GPUs are free."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import torch

from torchbus.errors import UsageError

Devices = int | str | list[int]
ADVICE = "use a number, -1, 'auto', a list such as [0, 1], or a string such as '1,3'"


def threads_per_rank(ranks: int) -> int:
    """How many CPU threads each of so many ranks of this node uses: what OMP_NUM_THREADS says, or an equal part of the processors."""
    return torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else max(1, (os.cpu_count() or 1) // ranks)


@dataclass(frozen=True)
class DevicePlan:
    """The devices of one node: ``indices`` are GPU numbers, empty on CPU; ``count`` is the number of ranks."""

    kind: str
    count: int
    indices: tuple[int, ...] = ()
    automatic: bool = False

    def device(self, local_rank: int) -> torch.device:
        """The device of a local rank."""
        return torch.device(self.kind, self.indices[local_rank]) if self.indices else torch.device(self.kind)


def plan_devices(devices: Devices = "auto", accelerator: str = "auto") -> DevicePlan:
    """Parse ``devices`` (int, -1, "auto", list of GPU numbers, "1,3") for an accelerator ("auto", "cpu", "gpu", "cuda").

    0, "0" as a count of none, and ``accelerator="cpu"`` mean CPU. Raises UsageError with the facts of this machine.
    """
    if accelerator not in ("auto", "cpu", "gpu", "cuda"):
        raise UsageError(f"accelerator={accelerator!r} is unknown: use 'auto', 'cpu', 'gpu' or 'cuda'")
    gpus = 0 if accelerator == "cpu" else torch.cuda.device_count()
    if accelerator in ("gpu", "cuda") and not gpus:
        raise UsageError(f"accelerator={accelerator!r}, but torch sees no GPU: use accelerator='cpu', or see `torchbus doctor`")
    chosen = _parse(devices)
    if isinstance(chosen, list):
        return _listed(chosen, gpus, devices)
    if chosen == -1:
        chosen = gpus or 1
        return _counted(chosen, gpus, devices, automatic=devices == "auto")
    return _counted(chosen, gpus, devices)


def _checked(number: int, given: Devices) -> int:
    if number < -1:
        raise UsageError(f"devices={given!r} is negative: {ADVICE}")
    return number


def _parse(devices: Devices) -> int | list[int]:
    if isinstance(devices, bool) or not isinstance(devices, int | str | list | tuple):
        raise UsageError(f"devices={devices!r} is a {type(devices).__name__}: {ADVICE}")
    if devices == "auto":
        return -1
    if isinstance(devices, int):
        return _checked(devices, devices)
    parts = [part.strip() for part in devices.split(",") if part.strip()] if isinstance(devices, str) else list(devices)
    try:
        numbers = [int(part) for part in parts if not isinstance(part, bool | float)]
    except (TypeError, ValueError):
        numbers = []
    if not numbers or len(numbers) != len(parts):
        raise UsageError(f"devices={devices!r} can't be read: {ADVICE}")
    if isinstance(devices, str) and "," not in devices:
        return _checked(numbers[0], devices)
    return numbers


def _listed(numbers: list[int], gpus: int, given: Devices) -> DevicePlan:
    if len(set(numbers)) != len(numbers):
        raise UsageError(f"devices={given!r} names a device twice: each rank needs one of its own")
    if not gpus and numbers == [0]:
        return DevicePlan("cpu", 1)
    missing = [number for number in numbers if not 0 <= number < gpus]
    if missing:
        raise UsageError(f"devices={given!r}: there is no GPU {missing[0]}; torch sees {_gpus(gpus)}. On CPU give a number of ranks")
    return DevicePlan("cuda", len(numbers), tuple(numbers))


def _counted(count: int, gpus: int, given: Devices, automatic: bool = False) -> DevicePlan:
    if count == 0:
        return DevicePlan("cpu", 1)
    if not gpus:
        return DevicePlan("cpu", count, automatic=automatic)
    if count > gpus:
        raise UsageError(f"devices={given!r}, but torch sees {_gpus(gpus)}: ask for at most {gpus}, or for accelerator='cpu'")
    return DevicePlan("cuda", count, tuple(range(count)), automatic)


def _gpus(count: int) -> str:
    return "no GPU" if not count else f"{count} GPU{'s' if count > 1 else ''}"


def find_usable_devices(num_devices: int = -1) -> list[int]:
    """Numbers of GPUs that no other process occupies (less than 5% of their memory in use), at most ``num_devices``.

    -1 means all of them. Raises UsageError where there are fewer, naming the occupied ones.
    """
    total = torch.cuda.device_count()
    free = _free_gpus() if total else []
    if num_devices == -1:
        return free
    if len(free) < num_devices:
        busy = sorted(set(range(total)) - set(free))
        raise UsageError(f"{num_devices} free GPUs asked for; torch sees {_gpus(total)}, occupied: {busy or 'none'}")
    return free[:num_devices]


_PROBE = """
import torch
for index in range(torch.cuda.device_count()):
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    if free_bytes > 0.95 * total_bytes:
        print(index)
"""


def _free_gpus() -> list[int]:
    """Asked in another process: the question initialises CUDA on every GPU, which would forbid a later fork."""
    answer = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=True)
    return [int(line) for line in answer.stdout.split()]
