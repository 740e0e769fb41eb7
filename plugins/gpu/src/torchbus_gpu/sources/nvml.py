"""One NVIDIA GPU, through NVML (https://docs.nvidia.com/deploy/nvml-api)."""

from __future__ import annotations

from collections.abc import Callable

import pynvml
import torch

MIB = 2**20
SLOWED_DOWN = (
    pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
)


def uuid_of(device: torch.device) -> str | None:
    """Return the UUID of a torch device. CUDA must be initialised.

    The numbers of devices differ between torch and NVML (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER).
    """
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)


class NvidiaGpu:
    """The GPU with this UUID (without "GPU-").

    Raises pynvml.NVMLError if there is no driver, or no such GPU.
    """

    def __init__(self, uuid: str) -> None:
        pynvml.nvmlInit()
        self._handle = _handle(uuid)
        self.name = str(pynvml.nvmlDeviceGetName(self._handle))
        self._readers: list[Callable[[], dict[str, float]]] = [
            self._utilisation,
            self._memory,
            self._temperature,
            self._power,
            self._clocks,
            self._slowdown,
        ]

    def read(self) -> dict[str, float]:
        """Raises pynvml.NVMLError when the GPU is lost."""
        return {
            name: value
            for reader in list(self._readers)
            for name, value in self._supported(reader).items()
        }

    def close(self) -> None:
        pynvml.nvmlShutdown()

    def _supported(self, reader: Callable[[], dict[str, float]]) -> dict[str, float]:
        try:
            return reader()
        except (
            pynvml.NVMLError_NotSupported,
            pynvml.NVMLError_FunctionNotFound,
            pynvml.NVMLError_NoPermission,
        ):
            self._readers.remove(reader)
            return {}

    def _utilisation(self) -> dict[str, float]:
        rates = pynvml.nvmlDeviceGetUtilizationRates(self._handle)
        return {"gpu_util_pct": float(rates.gpu), "gpu_memory_busy_pct": float(rates.memory)}

    def _memory(self) -> dict[str, float]:
        memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
        return {
            "gpu_memory_used_mib": memory.used / MIB,
            "gpu_memory_total_mib": memory.total / MIB,
        }

    def _temperature(self) -> dict[str, float]:
        return {
            "gpu_temperature_c": float(
                pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU)
            )
        }

    def _power(self) -> dict[str, float]:
        return {"gpu_power_w": pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1000}

    def _clocks(self) -> dict[str, float]:
        sm, memory = (
            pynvml.nvmlDeviceGetClockInfo(self._handle, kind)
            for kind in (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM)
        )
        return {"gpu_sm_clock_mhz": float(sm), "gpu_memory_clock_mhz": float(memory)}

    def _slowdown(self) -> dict[str, float]:
        """Return 1 while heat or power slows the GPU down."""
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        return {"gpu_slowed_down": float(bool(reasons & SLOWED_DOWN))}


def _handle(uuid: str) -> object:
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError_NotFound:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
