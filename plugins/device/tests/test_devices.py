"""The meaning of ``devices=`` and ``accelerator=``, and their invalid values."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchbus import session
from torchbus.errors import UsageError

from torchbus_device.devices import DevicePlan, find_usable_devices, plan_devices


@pytest.fixture
def gpus(monkeypatch):
    """Let torch see this number of GPUs."""
    return lambda count: monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("devices", "accelerator", "visible", "plan"),
    [
        (0, "auto", 2, DevicePlan("cpu", 1)),
        (0, "auto", 0, DevicePlan("cpu", 1)),
        ("0", "auto", 2, DevicePlan("cpu", 1)),
        (2, "auto", 0, DevicePlan("cpu", 2)),
        ("2", "auto", 0, DevicePlan("cpu", 2)),
        ("auto", "auto", 0, DevicePlan("cpu", 1, automatic=True)),
        (-1, "auto", 0, DevicePlan("cpu", 1)),
        ("auto", "auto", 3, DevicePlan("cuda", 3, (0, 1, 2), automatic=True)),
        (-1, "auto", 3, DevicePlan("cuda", 3, (0, 1, 2))),
        ("-1", "gpu", 3, DevicePlan("cuda", 3, (0, 1, 2))),
        (2, "gpu", 3, DevicePlan("cuda", 2, (0, 1))),
        ([1, 2], "cuda", 3, DevicePlan("cuda", 2, (1, 2))),
        ("1,3", "auto", 4, DevicePlan("cuda", 2, (1, 3))),
        (" 1 , 3 ", "auto", 4, DevicePlan("cuda", 2, (1, 3))),
        ("3,", "auto", 4, DevicePlan("cuda", 1, (3,))),
        ([0], "auto", 1, DevicePlan("cuda", 1, (0,))),
        (2, "cpu", 4, DevicePlan("cpu", 2)),
        ("auto", "cpu", 4, DevicePlan("cpu", 1, automatic=True)),
    ],
)
def test_meaning(gpus, devices, accelerator, visible, plan):
    gpus(visible)
    assert plan_devices(devices, accelerator) == plan


ADVICE = "use a number, -1, 'auto', a list such as [0, 1], or a string such as '1,3'"


@pytest.mark.parametrize(
    ("devices", "accelerator", "visible", "message"),
    [
        (
            3,
            "auto",
            2,
            "devices=3, but torch sees 2 GPUs: ask for at most 2, or for accelerator='cpu'",
        ),
        (
            2,
            "gpu",
            1,
            "devices=2, but torch sees 1 GPU: ask for at most 1, or for accelerator='cpu'",
        ),
        (
            10**6,
            "cpu",
            0,
            f"devices=1000000: these are 1000000 ranks on {os.cpu_count()} cores, and each takes a"
            f" process; ask for at most {64 * (os.cpu_count() or 1)} on CPU",
        ),
        (-2, "auto", 2, f"devices=-2 is negative: {ADVICE}"),
        ("-2", "auto", 2, f"devices='-2' is negative: {ADVICE}"),
        ("a,b", "auto", 2, f"devices='a,b' can't be read: {ADVICE}"),
        ("", "auto", 2, f"devices='' can't be read: {ADVICE}"),
        (",", "auto", 2, f"devices=',' can't be read: {ADVICE}"),
        ([], "auto", 2, f"devices=[] can't be read: {ADVICE}"),
        ([0.5], "auto", 2, f"devices=[0.5] can't be read: {ADVICE}"),
        (["x"], "auto", 2, f"devices=['x'] can't be read: {ADVICE}"),
        ([0, 0], "auto", 2, "devices=[0, 0] names a device twice: each rank needs a different one"),
        ("1,1", "auto", 2, "devices='1,1' names a device twice: each rank needs a different one"),
        (
            [0, 2],
            "auto",
            2,
            "devices=[0, 2]: there is no GPU 2; torch sees 2 GPUs. On CPU give a number of ranks",
        ),
        (
            [0, -1],
            "auto",
            2,
            "devices=[0, -1]: there is no GPU -1; torch sees 2 GPUs. On CPU give a number of ranks",
        ),
        (
            "0,1",
            "auto",
            0,
            "devices='0,1': there is no GPU 0; torch sees no GPU. On CPU give a number of ranks",
        ),
        (None, "auto", 2, f"devices=None is a NoneType: {ADVICE}"),
        (2.0, "auto", 2, f"devices=2.0 is a float: {ADVICE}"),
        (True, "auto", 2, f"devices=True is a bool: {ADVICE}"),
        ({0, 1}, "auto", 2, f"devices={{0, 1}} is a set: {ADVICE}"),
        (
            "auto",
            "tpu",
            2,
            f"accelerator='tpu': torch {torch.__version__} sees no TPU. Install torch_tpu on a host"
            " with TPUs; torch_xla ends with torch 2.9. torchbus-tpu is experimental, never run on a"
            " TPU (contrib/tpu/README.md)",
        ),
        (
            "auto",
            "npu",
            2,
            "accelerator='npu': torch knows this device type only once torch_npu is imported:"
            " install it, and write `import torch_npu` before the session",
        ),
        (
            "auto",
            "gpu",
            0,
            "accelerator='gpu', but torch sees no GPU: use accelerator='cpu', or see `torchbus doctor`",
        ),
        (
            2,
            "cuda",
            0,
            "accelerator='cuda', but torch sees no GPU: use accelerator='cpu', or see `torchbus doctor`",
        ),
    ],
)
def test_message(gpus, devices, accelerator, visible, message):
    gpus(visible)
    with pytest.raises(UsageError) as error:
        session(devices=devices, accelerator=accelerator)
    assert str(error.value) == message


@pytest.mark.parametrize("devices", [0, "auto", -1])
def test_one_rank_on_cpu_needs_no_strategy(devices):
    with session(devices=devices, accelerator="cpu") as s:
        assert (s.rank, s.local_rank, s.world_size, s.device, s.is_main) == (
            0,
            0,
            1,
            torch.device("cpu"),
            True,
        )
        assert "none: the loop runs as without a session" in s.explain()


numbers = st.integers(-5, 12)
words = st.one_of(
    numbers,
    st.lists(st.one_of(numbers, st.text(max_size=2), st.floats(), st.booleans()), max_size=5),
    st.lists(numbers, max_size=5).map(lambda items: ",".join(map(str, items))),
    numbers.map(str),
    st.text(max_size=6),
    st.none(),
    st.booleans(),
    st.floats(),
)


@given(
    devices=words,
    accelerator=st.sampled_from(["auto", "cpu", "gpu", "cuda", "tpu"]),
    visible=st.integers(0, 9),
)
def test_anything_is_a_sound_plan_or_a_usage_error(devices, accelerator, visible):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: visible)
        try:
            plan = plan_devices(devices, accelerator)
        except UsageError as error:
            assert repr(devices) in str(error) or repr(accelerator) in str(error)
            return
    assert plan.count >= 1 and plan.kind in ("cpu", "cuda")
    assert len(plan.indices) == len(set(plan.indices)) == (plan.count if plan.kind == "cuda" else 0)
    assert all(0 <= index < visible for index in plan.indices)
    assert plan.kind == "cpu" or accelerator != "cpu"
    assert [plan.device(rank) for rank in range(plan.count)] == [
        torch.device("cuda", i) for i in plan.indices
    ] or plan.kind == "cpu"


@given(chosen=st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True))
def test_spellings_of_a_list_are_equal(chosen):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: 8)
        text = ",".join(map(str, chosen))
        assert (
            plan_devices(chosen)
            == plan_devices(tuple(chosen))
            == plan_devices(text + ",")
            == DevicePlan("cuda", len(chosen), tuple(chosen))
        )


def test_usable_devices_are_those_that_are_free(gpus, monkeypatch):
    gpus(3)
    monkeypatch.setattr("torchbus_device.devices._free_devices", lambda kind: [0, 2])
    assert (
        find_usable_devices() == [0, 2]
        and find_usable_devices(1) == [0]
        and find_usable_devices(2) == [0, 2]
    )
    with pytest.raises(
        UsageError, match=r"3 free GPUs asked for; torch sees 3 GPUs, occupied: \[1\]"
    ):
        find_usable_devices(3)


def test_no_gpu_is_usable_where_there_is_none(gpus):
    gpus(0)
    assert find_usable_devices() == []
    with pytest.raises(
        UsageError, match="1 free GPUs asked for; torch sees no GPU, occupied: none"
    ):
        find_usable_devices(1)
