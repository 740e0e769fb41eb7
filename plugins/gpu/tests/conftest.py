"""A libnvidia-ml.so.1 of two GPUs, built here, and a torch that says it has them: the monitor and
nvidia-ml-py are the real ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "scripts" / "fake_nvml.c"
PRETEND = """
import sys, time, types, torch
UUIDS = ["aaaaaaaa-0000-0000-0000-000000000000", "bbbbbbbb-0000-0000-0000-000000000000"]
torch.cuda.device_count = lambda: 2
torch.cuda.is_initialized = lambda: True
torch.cuda.current_device = lambda: 0
torch.cuda.set_device = lambda device: None
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
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", SOURCE],
        check=True,
    )
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(
            filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH", "")])
        )
    }


@pytest.fixture(scope="session")
def pretend_gpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a script can ``import pretend``: torch then says that it has two
    GPUs.
    """
    folder = tmp_path_factory.mktemp("pretend")
    Path(folder, "pretend.py").write_text(PRETEND)
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    }
