"""What the monitor measures, and that nothing of it can end, slow or outlive a training."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.errors import UsageError

from torchbus_testing.scripts import Result, run_script
from torchbus_testing.state import assert_torch_unchanged, torch_state

SCRIPTS = Path(__file__).parent / "scripts"

WATCH = SCRIPTS / "watch_gpu.py"


class Seen:
    """What was measured, with the thread that said so."""

    def __init__(self) -> None:
        self.all: list[tuple[dict[str, float], float, str]] = []

    @hookimpl
    def system_metrics(self, metrics: dict[str, float], time_s: float) -> None:
        self.all.append((metrics, time_s, threading.current_thread().name))

    def wait(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.all) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(self.all) >= count


def watch(env: dict[str, str], gpu: int = 0, **more: str) -> tuple[Result, list[dict[str, float]]]:
    result = run_script(WATCH, gpu, env=env | more, timeout_s=110)
    assert result.ok()
    return result, json.loads(result.stdout)


def test_process_and_host_are_measured_from_a_thread() -> None:
    seen = Seen()
    before = torch_state()
    with session(seen, interval_s=0.05):
        seen.wait(3)
    assert_torch_unchanged(before)  # the thread is gone, too
    metrics, time_s, thread = seen.all[-1]
    assert thread == "torchbus-gpu" and 0 < time_s < 60
    assert set(metrics) == {
        "process_cpu_pct",
        "process_rss_mib",
        "host_cpu_pct",
        "host_memory_pct",
        "loop_in_loader_pct",
    }
    assert metrics["process_rss_mib"] > 50 and 0 < metrics["host_memory_pct"] < 100
    count = len(seen.all)
    time.sleep(0.2)
    assert len(seen.all) == count


@pytest.mark.parametrize(("gpu", "name"), [(0, "A"), (1, "B")])
def test_the_gpu_is_found_by_its_uuid(
    fake_nvml: dict[str, str], pretend_gpus: dict[str, str], gpu: int, name: str
) -> None:
    result, seen = watch(fake_nvml | pretend_gpus, gpu)
    assert result.stderr == ""
    number = {"A": 1, "B": 0}[name]  # by NVML
    expected = {
        "gpu_util_pct": 10.0 + number,
        "gpu_memory_busy_pct": 5.0,
        "gpu_memory_used_mib": 1024.0,
        "gpu_memory_total_mib": 81920.0,
        "gpu_temperature_c": 60.0 + number,
        "gpu_sm_clock_mhz": 1980.0,
        "gpu_memory_clock_mhz": 2619.0,
        "gpu_slowed_down": 1.0,
        "torch_allocated_mib": 3.0,
        "torch_allocated_peak_mib": 4.0,
        "torch_reserved_mib": 8.0,
        "torch_alloc_retries": 0.0,
    }
    assert {key: seen[-1].get(key) for key in expected} == expected
    assert "gpu_power_w" not in seen[-1]  # this driver does not support it


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"FAKE_LOST_AFTER": "3"}, "cuda:0 is no longer measured: GPU is lost"),
        pytest.param(
            {"FAKE_NO_DRIVER": "1"},
            "cuda:0 is no longer measured: Driver Not Loaded",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"LD_LIBRARY_PATH": ""},
            "cuda:0 is no longer measured: NVML Shared Library Not Found",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_lost_gpu_or_a_missing_driver_is_one_warning(
    fake_nvml: dict[str, str], pretend_gpus: dict[str, str], setting: dict[str, str], words: str
) -> None:
    result, seen = watch(fake_nvml | pretend_gpus, **setting)
    assert result.stderr.count(words) == 1 and result.stderr.count("Warning") == 1
    assert len(seen) >= 8 and "host_cpu_pct" in seen[-1] and "gpu_util_pct" not in seen[-1]


def test_a_listener_that_raises_ends_nothing() -> None:
    class Broken:
        @hookimpl
        def system_metrics(self) -> None:
            raise OSError("disk full")

    with pytest.warns(UserWarning) as caught, session(Broken(), interval_s=0.05) as s:
        time.sleep(0.5)
        assert "disk full" in s.explain()
    assert len(caught) == 1


def test_a_full_stderr_and_a_logger_that_raises_end_no_measurement() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    result = run_script(FULL, timeout_s=110)
    assert result.ok() and result.stdout == "measured on\n"


FULL = SCRIPTS / "full_stderr.py"


def test_a_forked_child_is_not_measured_and_ends_by_itself() -> None:
    seen = Seen()
    with session(seen, interval_s=0.05):
        seen.wait(1)
        pid = os.fork()
        if pid == 0:
            count = len(seen.all)
            time.sleep(0.3)
            os._exit(
                int(
                    len(seen.all) != count
                    or any(thread.name == "torchbus-gpu" for thread in threading.enumerate())
                )
            )
        assert os.waitpid(pid, 0)[1] == 0


def test_a_forked_child_that_leaves_the_block_does_not_hang() -> None:
    result = run_script(
        """
        import os, sys
        from torchbus import session
        with session(interval_s=0.05):
            pid = os.fork()
            if pid == 0:
                sys.exit(3)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """,
        timeout_s=110,
    )
    assert result.ok() and result.stdout == "3\n"


def test_monitor_false_does_nothing() -> None:
    seen = Seen()
    with session(seen, gpu_monitor=False) as s:
        time.sleep(0.2)
        assert "monitor" not in s.explain().splitlines()
    assert seen.all == []


def test_nothing_in_torch_is_replaced_without_lint() -> None:
    with session() as s:  # with companions of what other tests have imported
        before = s._context.seams.places()
    with session("gpu") as s:
        assert s._context.seams.places() == before
        assert "item" not in vars(torch.Tensor)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"interval_s": "2"}, "it must be a number of seconds"),
        ({"interval_s": 0}, "it must be 0.05 or more"),
        ({"interval_s": float("nan")}, "it must be 0.05 or more"),
        ({"lint": 1}, "it must be True or False"),
        ({"gpu_monitor": None}, "it must be True or False"),
        ({"gpu_monitor": False, "lint": True}, "lint=True needs what the monitor measures"),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)


@pytest.mark.gpu
def test_a_real_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    seen = Seen()
    with session(seen, devices=1, interval_s=0.1):
        torch.ones(1024, 1024, device="cuda").square_().sum().item()
        seen.wait(len(seen.all) + 5)
    metrics = seen.all[-1][0]
    assert metrics["gpu_memory_total_mib"] == pytest.approx(
        torch.cuda.get_device_properties(0).total_memory / 2**20, rel=0.1
    )
    assert metrics["torch_allocated_peak_mib"] >= 4 and 0 <= metrics["gpu_util_pct"] <= 100
