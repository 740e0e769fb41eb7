"""Resolves ``devices=`` and ``accelerator=`` to devices of this node."""

from __future__ import annotations

import difflib
import os
import subprocess
from dataclasses import dataclass

import torch
from torchbus import bootstrap
from torchbus.errors import UsageError, an
from torchbus.world import Devices

from torchbus_device import accelerators

OF_TORCH = ("cuda", "xpu")
BROUGHT_BY = {
    "npu": "torch_npu",
    "hpu": "habana_frameworks.torch",
    "mlu": "torch_mlu",
    "musa": "torch_musa",
}
"""Device types that other packages add to torch, with the module to import."""
NO_TPU = (
    "accelerator={!r}: torch {} sees no TPU. Install torch_tpu on a host with TPUs; torch_xla ends"
    " with torch 2.9. torchbus-tpu is experimental, never run on a TPU (contrib/tpu/README.md)"
)
RANKS_PER_CORE = 64
ADVICE = "use a number, -1, 'auto', a list such as [0, 1], or a string such as '1,3'"


def threads_per_rank(ranks: int) -> int:
    """Return the number of CPU threads for each rank of this node.

    If OMP_NUM_THREADS is not set, each rank gets an equal part of the processors.
    """
    return (
        torch.get_num_threads()
        if "OMP_NUM_THREADS" in os.environ
        else max(1, (os.cpu_count() or 1) // ranks)
    )


@dataclass(frozen=True)
class DevicePlan:
    """The devices of one node.

    ``count`` is the number of ranks. ``indices`` are the device numbers, empty on CPU.
    ``automatic`` is True for ``devices="auto"``.
    """

    kind: str
    count: int
    indices: tuple[int, ...] = ()
    automatic: bool = False

    def device(self, local_rank: int) -> torch.device:
        """Return the device of a local rank."""
        return (
            torch.device(self.kind, self.indices[local_rank])
            if self.indices
            else torch.device(self.kind)
        )


def plan_devices(devices: Devices = "auto", accelerator: str = "auto") -> DevicePlan:
    """Parse ``devices`` (int, -1, "auto", list of device numbers, "1,3") for an accelerator.

    The accelerator is "auto", "cpu", "gpu" (any), or a device type such as "cuda". A count of 0,
    "0" and ``accelerator="cpu"`` mean CPU. Raises UsageError with the facts of this machine.
    """
    kind = chosen_kind(accelerator)
    there = accelerators.count(kind) if kind else 0
    chosen = _parse(devices)
    if isinstance(chosen, list):
        return _listed(chosen, kind, there, devices)
    if chosen == -1:
        return _counted(there or 1, kind, there, devices, automatic=devices == "auto")
    return _counted(chosen, kind, there, devices)


def chosen_kind(accelerator: str) -> str | None:
    """Return the device type that ``accelerator=`` means; None for a CPU.

    "auto" does not choose a Mac's MPS, which is a single device that many scripts don't use. Raises
    UsageError if there is no such device.
    """
    if accelerator == "cpu":
        return None
    if accelerator == "auto":
        found = accelerators.current()
        return None if found in accelerators.ONE_DEVICE else found
    kind = accelerators.current() if accelerator == "gpu" else accelerator
    if accelerator != "gpu" and accelerators.module(accelerator) not in _modules():
        raise UsageError(_unknown(accelerator))
    if kind is None or not accelerators.count(kind):
        raise UsageError(
            f"accelerator={accelerator!r}, but torch sees no {accelerators.name_of(accelerator)}:"
            " use accelerator='cpu', or see `torchbus doctor`"
        )
    return kind


def _modules() -> list[object]:
    return [accelerators.module(kind) for kind in accelerators.known()]


def _unknown(accelerator: str) -> str:
    """Return a message that names the package of a device type, or the known types."""
    if accelerator in ("tpu", "xla"):
        return NO_TPU.format(accelerator, torch.__version__)
    names = ["auto", "cpu", "gpu", *accelerators.known()]
    if accelerator in BROUGHT_BY:
        package = BROUGHT_BY[accelerator]
        return (
            f"accelerator={accelerator!r}: torch knows this device type only once {package} is"
            f" imported: install it, and write `import {package}` before the session"
        )
    near = difflib.get_close_matches(accelerator, [*names, *BROUGHT_BY, "tpu"], n=2)
    nearest = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
    return (
        f"accelerator={accelerator!r} is unknown{nearest}: use one of {', '.join(names)}, or import"
        " the package that registers this device type before the session"
    )


def _checked(number: int, given: Devices) -> int:
    if number < -1:
        raise UsageError(f"devices={given!r} is negative: {ADVICE}")
    return number


def _parse(devices: Devices) -> int | list[int]:
    if isinstance(devices, bool) or not isinstance(devices, int | str | list | tuple):
        raise UsageError(f"devices={devices!r} is {an(type(devices).__name__)}: {ADVICE}")
    if devices == "auto":
        return -1
    if isinstance(devices, int):
        return _checked(devices, devices)
    parts = (
        [part.strip() for part in devices.split(",") if part.strip()]
        if isinstance(devices, str)
        else list(devices)
    )
    try:
        numbers = [int(part) for part in parts if not isinstance(part, bool | float)]
    except (TypeError, ValueError):
        numbers = []
    if not numbers or len(numbers) != len(parts):
        raise UsageError(f"devices={devices!r} can't be read: {ADVICE}")
    if isinstance(devices, str) and "," not in devices:
        return _checked(numbers[0], devices)
    return numbers


def _listed(numbers: list[int], kind: str | None, there: int, given: Devices) -> DevicePlan:
    if len(set(numbers)) != len(numbers):
        raise UsageError(f"devices={given!r} names a device twice: each rank needs a different one")
    if kind is None and numbers == [0]:
        return DevicePlan("cpu", 1)
    missing = [number for number in numbers if not 0 <= number < there]
    if missing or kind is None:
        name = accelerators.name_of(kind or "cuda")
        raise UsageError(
            f"devices={given!r}: there is no {name} {missing[0]}; torch sees"
            f" {_seen(kind, there)}. On CPU give a number of ranks"
        )
    return DevicePlan(kind, len(numbers), tuple(numbers))


def _counted(
    count: int, kind: str | None, there: int, given: Devices, automatic: bool = False
) -> DevicePlan:
    if count == 0:
        return DevicePlan("cpu", 1)
    if kind is None:
        at_most = RANKS_PER_CORE * (os.cpu_count() or 1)
        if count > at_most:
            raise UsageError(
                f"devices={given!r}: these are {count} ranks on {os.cpu_count()} cores, and each"
                f" takes a process; ask for at most {at_most} on CPU"
            )
        return DevicePlan("cpu", count, automatic=automatic)
    if count > there and kind in accelerators.ONE_DEVICE:
        raise UsageError(
            f"devices={given!r}: {kind} is one device, and torch.distributed has no backend for it:"
            " use devices=1, or accelerator='cpu' for several ranks"
        )
    if count > there:
        raise UsageError(
            f"devices={given!r}, but torch sees {_seen(kind, there)}: ask for at most {there}, or"
            " for accelerator='cpu'"
        )
    return DevicePlan(kind, count, tuple(range(count)), automatic)


def _seen(kind: str | None, count: int) -> str:
    name = accelerators.name_of(kind or "cuda")
    return f"no {name}" if not count else f"{count} {name}{'s' if count > 1 else ''}"


def find_usable_devices(num_devices: int = -1) -> list[int]:
    """Return the numbers of GPUs that no other process uses, at most ``num_devices``. -1 means all.

    A GPU counts as unused if less than 5% of its memory is in use. Raises UsageError, which names
    the occupied GPUs, if there are fewer.
    """
    kind = accelerators.current()
    total = accelerators.count(kind) if kind else 0
    free = _free_devices(kind) if kind else []
    if num_devices == -1:
        return free
    if len(free) < num_devices:
        busy = sorted(set(range(total)) - set(free))
        raise UsageError(
            f"{num_devices} free GPUs asked for; torch sees {_seen(kind, total)}, occupied:"
            f" {busy or 'none'}"
        )
    return free[:num_devices]


_PROBE = """
import sys, torch
kind = getattr(torch, sys.argv[1])
for index in range(kind.device_count()):
    free_bytes, total_bytes = kind.mem_get_info(index)
    print(index, free_bytes, total_bytes)
"""


def _free_devices(kind: str) -> list[int]:
    """Return the numbers of the devices whose memory is free.

    Reading the free memory initialises every device, which would forbid a later fork. So another
    process does it, unless this process uses the devices already, or the script's imports added
    the device type.
    """
    if accelerators.is_initialized(kind) or kind not in OF_TORCH:
        reported = [
            (index, *accelerators.memory_info(kind, index))
            for index in range(accelerators.count(kind))
        ]
    else:
        answer = subprocess.run(
            [*bootstrap.command(_PROBE), kind], capture_output=True, text=True, check=True
        )
        numbers = iter(map(int, answer.stdout.split()))
        reported = list(zip(numbers, numbers, numbers, strict=True))
    return [index for index, free, total in reported if free > 0.95 * total]
