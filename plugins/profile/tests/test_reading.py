"""The summary of made-up events of an accelerator."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType

from torchbus_profile.result import read


def event(name, start, end, device=DeviceType.CPU, device_us=0.0, cpu_us=0.0):
    return SimpleNamespace(
        name=name,
        time_range=SimpleNamespace(start=start, end=end),
        device_type=device,
        is_async=False,
        self_device_time_total=device_us,
        self_cpu_time_total=cpu_us,
    )


def test_kernels_count_and_not_what_the_host_does_meanwhile():
    gpu = DeviceType.CUDA
    events = [
        event("ProfilerStep*", 0, 100),
        event("ProfilerStep*", 0, 100, gpu),  # repeated on the device
        event("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 30),
        event("aten::mm", 30, 35, device_us=40.0, cpu_us=5.0),
        event("aten::relu", 35, 95, device_us=10.0, cpu_us=60.0),
        event("sm90_gemm", 20, 60, gpu),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50, 80, gpu),
    ]
    found = read(SimpleNamespace(events=lambda: events), (), 7, 1)
    assert found.shares == pytest.approx((0.4, 0.2, 0.2, 0.2))
    assert [(one.name, one.seconds) for one in found.operators] == [
        ("aten::mm", pytest.approx(40e-6)),
        ("aten::relu", pytest.approx(10e-6)),
    ]
    assert (found.first_step, found.last_step, found.seconds) == (7, 7, pytest.approx(1e-4))


def test_a_recording_without_events():
    found = read(SimpleNamespace(events=lambda: None), (), 7, 1)
    assert found.seconds == 0 and found.shares == (0, 0, 0, 0) and found.operators == ()
