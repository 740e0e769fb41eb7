"""Errors before the first step. These tests run without Horovod."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torchbus import session
from torchbus.errors import PluginConflict, Unsupported, UsageError

from torchbus_horovod import strategy
from torchbus_horovod import strategy as installed
from torchbus_horovod.strategy import Horovod


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a stand-in for Horovod, with given answers about its build."""

    def stand_in(**answers: Any) -> ModuleType:
        package, module = ModuleType("horovod"), ModuleType("horovod.torch")
        package.__spec__ = SimpleNamespace(name="horovod")  # type: ignore[assignment]
        for name, answer in answers.items():
            setattr(module, name, lambda answer=answer: answer)
        package.torch = module  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "horovod", package)
        monkeypatch.setitem(sys.modules, "horovod.torch", module)
        return module

    return stand_in


def two_ranks(kind: str = "cpu", launched_by: str = "session", ranks: int = 2) -> Any:
    world = SimpleNamespace(launched_by=launched_by, world_size=ranks)
    device = SimpleNamespace(type=kind)
    return SimpleNamespace(
        world=world,
        device=device,
        rank=1,
        world_size=ranks,
        launcher=SimpleNamespace(has_many_ranks=lambda: True),
    )


def test_horovod_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)
    with (
        pytest.raises(UsageError, match="needs Horovod, which is not installed: contrib/horovod"),
        session(strategy="horovod", devices=2, accelerator="cpu"),
    ):
        pass


def test_horovod_has_no_library_for_torch(built: Any) -> None:
    built()
    with pytest.raises(UsageError, match="without its library for torch: .* HOROVOD_WITH_PYTORCH"):
        installed.load()


def test_horovod_was_built_without_gloo(built: Any) -> None:
    """The error comes before any rank starts."""
    built(init=None, gloo_built=0)
    with (
        pytest.raises(UsageError, match="built without gloo: build it with HOROVOD_WITH_GLOO=1"),
        session(strategy="horovod", devices=2, accelerator="cpu"),
    ):
        pass


def test_horovod_was_built_without_gpu_operations(built: Any) -> None:
    module = built(cuda_built=0, rocm_built=False)
    with pytest.raises(UsageError, match="without GPU operations, and this rank's device is cuda"):
        installed.check_device(module, "cuda")
    installed.check_device(module, "cpu")
    installed.check_device(built(cuda_built=1), "cuda")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"compression": "bf16"}, "compression='bf16' is unknown: use 'none' or 'fp16'"),
        ({"compression": None}, "compression=None is unknown: use 'none' or 'fp16'"),
        ({"adasum": "yes"}, "adasum='yes' is a str: it must be True or False"),
        ({"loss_reduction": "max"}, "loss_reduction='max' is unknown"),
    ],
)
def test_options_with_other_values(built: Any, words: dict[str, Any], message: str) -> None:
    built()
    with pytest.raises(UsageError) as error:
        Horovod(**words)
    assert str(error.value).startswith(message)


def test_two_strategies(built: Any) -> None:
    built(init=None, gloo_built=1)
    with pytest.raises(PluginConflict, match="Horovod and ddp both own the strategy"):
        session(Horovod(), strategy="ddp", devices=2, accelerator="cpu")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"ranks": 3},
            "adasum=True with 3 ranks: Horovod's Adasum takes a power of two. Start 2, 4",
        ),
        ({}, "needs Horovod's MPI operations: build Horovod with HOROVOD_WITH_MPI=1"),
        ({"launched_by": "MPI"}, "needs Horovod's MPI operations"),
    ],
)
def test_adasum_where_horovod_has_none(built: Any, asked: dict[str, Any], message: str) -> None:
    module = built(mpi_built=0, gloo_built=1, init=None)
    strategy = Horovod(adasum=True)
    strategy._hvd = module
    with pytest.raises(UsageError, match=message):
        strategy._needs_mpi(two_ranks(**asked))


def test_adasum_runs_over_mpi_on_a_cpu_and_over_nccl_on_gpus(built: Any) -> None:
    module = built(mpi_built=1, gloo_built=1, init=None)
    strategy = Horovod(adasum=True)
    strategy._hvd = module
    assert strategy._needs_mpi(two_ranks(launched_by="MPI", ranks=4))
    assert not strategy._needs_mpi(two_ranks("cuda"))


def test_the_elastic_mode(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built(init=None, gloo_built=1)
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    with pytest.raises(Unsupported, match="started in its elastic mode"):
        Horovod().launch(two_ranks())


def test_horovod_was_initialised_before(built: Any) -> None:
    module = built(is_initialized=True, rank=0, size=1)
    with pytest.raises(UsageError, match="as rank 0 of 1, and the session has rank 1 of 2"):
        strategy.open_horovod(two_ranks(), module, mpi=False)
