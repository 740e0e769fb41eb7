"""Sources of measurements: objects with a ``read() -> dict[str, float]``.

Names end with their units.
"""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pynvml
import torch
from torchbus.plugin import Context

from torchbus_device import accelerators
from torchbus_gpu.users_code import Notices

MIB = 2**20


class Host:
    """Reads CPU in percent, and memory in MiB and percent.

    The process's CPU is in percent of one core (300 is three cores), the host's of all cores.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._read_before = False

    def read(self) -> dict[str, float]:
        memory = {
            "process_rss_mib": self._process.memory_info().rss / MIB,
            "host_memory_pct": psutil.virtual_memory().percent,
        }
        processor = {
            "process_cpu_pct": self._process.cpu_percent(None),
            "host_cpu_pct": psutil.cpu_percent(None),
        }
        if not self._read_before:  # percentages refer to the time since the last call
            self._read_before = True
            return memory
        return processor | memory


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


def of_allocator(device: torch.device) -> dict[str, float]:
    """Return the memory of this process on a device; nothing before the device is in use."""
    found = accelerators.memory_stats(device)
    if not found:
        return {}
    return {
        "torch_allocated_mib": found["allocated_bytes.all.current"] / MIB,
        "torch_allocated_peak_mib": found["allocated_bytes.all.peak"] / MIB,
        "torch_reserved_mib": found["reserved_bytes.all.current"] / MIB,
        "torch_alloc_retries": float(found["num_alloc_retries"]),
    }


class LocalGpu:
    """Reads nothing until the loop has initialised the device.

    Asking for the UUID initialises CUDA, after which the process can't fork ranks.
    """

    def __init__(self, session: Context, notices: Notices) -> None:
        self._session = session
        self._notices = notices
        self._gpu: NvidiaGpu | None = None
        self._given_up = False

    @property
    def name(self) -> str:
        return "" if self._gpu is None else self._gpu.name

    def read(self) -> dict[str, float]:
        device = self._session.device
        if device.type == "cpu" or not accelerators.is_initialized(device.type):
            return {}
        driver = self._from_driver() if device.type == "cuda" else {}
        return driver | of_allocator(device)

    def close(self) -> None:
        if self._gpu is not None:
            self._gpu.close()

    def _from_driver(self) -> dict[str, float]:
        if self._given_up:
            return {}
        try:
            self._gpu = self._gpu or self._find()
            return self._gpu.read()
        except (pynvml.NVMLError, LookupError) as error:
            self._given_up = True
            self._notices.warn(
                f"rank {self._session.rank}: {self._session.device} is no longer measured: {error}."
                " Training continues; nvidia-smi says whether the driver sees the GPU"
            )
            return {}

    def _find(self) -> NvidiaGpu:
        uuid = uuid_of(self._session.device)
        if uuid is None:
            raise LookupError(f"torch {torch.__version__} does not report its UUID")
        return NvidiaGpu(uuid)
