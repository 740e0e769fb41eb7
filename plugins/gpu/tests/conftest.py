"""A libnvidia-ml.so.1 of two GPUs, built here, and a torch that says it has them: the monitor and nvidia-ml-py are the real ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = r"""
#include <stdlib.h>
#include <string.h>
typedef unsigned int u32; typedef unsigned long long u64;
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
/* As NVML numbers them: the other way round than torch does. */
static const char *uuids[] = {"GPU-bbbbbbbb-0000-0000-0000-000000000000", "GPU-aaaaaaaa-0000-0000-0000-000000000000"};
static int gpus[2] = {0, 1}, reads = 0;
static int number(void *gpu) { return *(int *)gpu; }
static int setting(const char *name, int otherwise) { const char *text = getenv(name); return text ? atoi(text) : otherwise; }
int nvmlInitWithFlags(u32 flags) { return setting("FAKE_NO_DRIVER", 0) ? DRIVER_NOT_LOADED : OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Other"; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu) {
  for (int i = 0; i < 2; i++) if (!strcmp(uuid, uuids[i])) { *gpu = &gpus[i]; return OK; }
  return NOT_FOUND;
}
int nvmlDeviceGetName(void *gpu, char *name, u32 size) { strncpy(name, number(gpu) ? "Fake A" : "Fake B", size); return OK; }
int nvmlDeviceGetUtilizationRates(void *gpu, u32 *rates) {
  if (++reads > setting("FAKE_LOST_AFTER", 1 << 30)) return GPU_IS_LOST;
  rates[0] = setting("FAKE_UTIL", 10 + number(gpu)); rates[1] = 5; return OK;
}
int nvmlDeviceGetMemoryInfo(void *gpu, u64 *memory) { memory[0] = 80ull << 30; memory[1] = 79ull << 30; memory[2] = 1ull << 30; return OK; }
int nvmlDeviceGetTemperature(void *gpu, u32 sensor, u32 *value) { *value = 60 + number(gpu); return OK; }
int nvmlDeviceGetPowerUsage(void *gpu, u32 *milliwatts) { return NOT_SUPPORTED; }
int nvmlDeviceGetClockInfo(void *gpu, u32 kind, u32 *mhz) { *mhz = kind == 1 ? 1980 : 2619; return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, u64 *reasons) { *reasons = 0x40; return OK; }
"""
PRETEND = """
import sys, time, types, torch
UUIDS = ["aaaaaaaa-0000-0000-0000-000000000000", "bbbbbbbb-0000-0000-0000-000000000000"]
torch.cuda.device_count = lambda: 2
torch.cuda.is_initialized = lambda: True
torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(uuid=UUIDS[device.index])
torch.cuda.memory_stats = lambda device: {
    "allocated_bytes.all.current": 3 << 20, "allocated_bytes.all.peak": 4 << 20, "reserved_bytes.all.current": 8 << 20, "num_alloc_retries": 0,
}
"""


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which nvidia-ml-py finds the library."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is needed to build the library")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", folder / "nvml.c"], check=True)
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]))}


@pytest.fixture(scope="session")
def pretend_gpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a script can ``import pretend``: torch then says that it has two GPUs."""
    folder = tmp_path_factory.mktemp("pretend")
    Path(folder, "pretend.py").write_text(PRETEND)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))}
