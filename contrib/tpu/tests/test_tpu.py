"""The parts that run without a TPU: refusals, the ranks' environment, and device functions."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torchbus import session
from torchbus.errors import UsageError
from torchbus.world import World

from torchbus_device import accelerators
from torchbus_tpu import strategy as environment
from torchbus_tpu.strategy import TPU

ADDRESSES = "TORCH_TPU_SLICEBUILDER_ADDRESSES"


def set_launch_env(nproc_per_node: int | None) -> None:
    """Does not overwrite a variable that is set, like torch_tpu's function."""
    os.environ.setdefault(ADDRESSES, f"{nproc_per_node} addresses")


@pytest.fixture
def torch_tpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for torch_tpu, which raises where torch_tpu lets only torch call a function."""
    package, tpu = ModuleType("torch_tpu"), ModuleType("torch.tpu")
    package.__spec__ = ModuleSpec("torch_tpu", None)

    def refuse(*_: object) -> None:
        raise RuntimeError("internal to TorchTPU")

    vars(tpu).update(device_count=refuse, set_device=refuse, current_device=refuse)
    vars(tpu).update(distributed=SimpleNamespace(set_tpu_launch_env=set_launch_env))
    vars(tpu).update(Stream=object, default_generators=[torch.Generator()])
    monkeypatch.setitem(sys.modules, "torch_tpu", package)
    monkeypatch.setattr(torch, "tpu", tpu, raising=False)
    for name in (ADDRESSES, "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return tpu


class Stub:
    """The parts of a session that the strategy uses."""

    def __init__(self, kind: str = "tpu", launched_by: str = "session", **options: Any) -> None:
        self.device = SimpleNamespace(type=kind)
        self.options = {"devices": 4, "num_nodes": 2, **options}
        self.launcher, self.ranks_asked_for = self, 8
        self.on_close = ExitStack()
        self.inherited: str | None = None
        self._world = World(rank=5, world_size=8, local_rank=1, launched_by=launched_by)

    def has_many_ranks(self) -> bool:
        return True

    def start_ranks(self, form: str | None) -> World:
        assert form == "script"
        self.inherited = os.environ.get(ADDRESSES)
        return self._world


def launched(stub: Stub) -> World:
    given: Any = stub
    return TPU().launch(given)


def test_without_torch_tpu_it_says_that_it_is_experimental() -> None:
    with (
        pytest.raises(UsageError, match="needs torch_tpu, which is not installed") as error,
        session(strategy="tpu", devices=2, accelerator="cpu"),
    ):
        pass
    assert "EXPERIMENTAL, never run on a TPU" in str(error.value)


def test_another_device_is_refused(torch_tpu: ModuleType) -> None:
    with pytest.raises(UsageError, match="strategy='tpu' on cpu: pass accelerator='tpu'"):
        launched(Stub("cpu"))


@pytest.mark.parametrize(("devices", "said"), [(4, "4 addresses"), ("auto", "None addresses")])
def test_ranks_inherit_what_torch_tpu_has_chosen(
    torch_tpu: ModuleType, devices: object, said: str
) -> None:
    before = dict(os.environ)
    stub = Stub(devices=devices)
    assert launched(stub).rank == 5 and stub.inherited == said
    assert os.environ[ADDRESSES] == said  # until the block ends: this process is a rank, too
    stub.on_close.close()
    assert dict(os.environ) == before


def test_a_launchers_ranks_must_have_been_prepared(
    torch_tpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = Stub(launched_by="torchrun")
    with pytest.raises(UsageError, match=f"were started by torchrun, and {ADDRESSES} is not set"):
        launched(stub)
    stub.on_close.close()
    monkeypatch.setenv(ADDRESSES, "by hand")
    stub = Stub(launched_by="torchrun")
    assert launched(stub).launched_by == "torchrun" and stub.inherited == "by hand"
    stub.on_close.close()


def test_torch_tpu_reads_a_ranks_place(torch_tpu: ModuleType) -> None:
    before = dict(os.environ)
    with environment.rank_environment(World(rank=5, world_size=8, local_rank=1)):
        place = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    assert place == ["5", "8", "1"] and dict(os.environ) == before


def test_the_core_asks_torch_for_tpus(
    torch_tpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", asked.append)
    monkeypatch.setattr(torch.accelerator, "current_stream", asked.append)
    device = SimpleNamespace(type="tpu")
    accelerators.set_device(device)  # type: ignore[arg-type]
    accelerators.current_stream(device)  # type: ignore[arg-type]
    assert asked == [device, device] and accelerators.count("tpu") == 4
    assert accelerators.has_streams(device)  # type: ignore[arg-type]
    module = accelerators.module("tpu")
    state = module.get_rng_state()
    drawn = torch.rand(2, generator=torch_tpu.default_generators[0])
    module.set_rng_state(state)
    assert torch.equal(drawn, torch.rand(2, generator=torch_tpu.default_generators[0]))


def test_explain_says_that_it_is_experimental(torch_tpu: ModuleType) -> None:
    assert TPU().how().startswith("EXPERIMENTAL, never run on a TPU")


def test_what_the_loop_sets_meanwhile_stays(monkeypatch):
    monkeypatch.setenv("LOOP", "old")

    def set_launch_env(nproc_per_node):
        os.environ["TPU_PLACE"] = str(nproc_per_node)

    with environment.prepared(set_launch_env, 2):
        assert os.environ["TPU_PLACE"] == "2"
        os.environ["LOOP"] = "new"
    assert "TPU_PLACE" not in os.environ and os.environ["LOOP"] == "new"
