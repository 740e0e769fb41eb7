"""What ddp is asked for, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torchbus import session
from torchbus.errors import PluginConflict, UsageError
from torchbus.session import Session

from torchbus_ddp.strategy import DDP
from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"


def strategy(s: Session) -> DDP:
    return next(plugin for _, plugin in s._context.bus.plugins() if isinstance(plugin, DDP))


def test_a_word_and_an_object_are_two_spellings_of_one_thing():
    by_word = session(
        strategy="ddp", bucket_cap_mb=50, loss_reduction="sum", sync_loss=False, backend="gloo"
    )
    by_object = session(
        DDP(bucket_cap_mb=50, loss_reduction="sum", sync_loss=False, backend="gloo")
    )
    by_strategy = session(
        strategy=DDP(bucket_cap_mb=50, loss_reduction="sum", sync_loss=False, backend="gloo")
    )
    assert vars(strategy(by_word)) == vars(strategy(by_object)) == vars(strategy(by_strategy))


def test_more_than_one_device_means_ddp(monkeypatch):
    assert strategy(session(devices=2, accelerator="cpu"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert strategy(session()) and strategy(session(devices=-1))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(StopIteration):
        strategy(session())


@pytest.mark.parametrize("given", [DDP(sync_loss=False), "ddp", "dp"])
def test_a_strategy_that_is_given_as_a_plugin_is_the_only_one(given):
    plugins = session(given, devices=2, accelerator="cpu")._context.bus.plugins()
    owners = [named for named in plugins if "strategy" in getattr(named[1], "owns", ())]
    assert len(owners) == 1 and given in owners[0]


def test_two_strategies_are_refused():
    with pytest.raises(PluginConflict, match="both own the strategy: pass only one of them"):
        session(DDP(), strategy="ddp")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": 1}, "backend=1 is an int: it must be the name of a torch.distributed backend"),
        ({"bucket_cap_mb": "big"}, "bucket_cap_mb='big' is a str: it must be a number of MiB"),
        ({"sync_loss": 1}, "sync_loss=1 is an int: it must be True or False"),
        (
            {"loss_reduction": "median"},
            "loss_reduction='median' is unknown: use 'auto', 'mean' or 'sum'",
        ),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(UsageError) as error:
        session(strategy="ddp", **options)
    assert str(error.value) == words


@pytest.mark.parametrize("size", [0, -1, float("nan")])
def test_a_bucket_must_hold_something(size):
    with pytest.raises(UsageError, match=f"bucket_cap_mb={size}"):
        session(strategy="ddp", bucket_cap_mb=size)


def test_the_backend_of_the_variable(monkeypatch):
    monkeypatch.delenv("TORCHBUS_BACKEND", raising=False)
    assert DDP().backend is None
    monkeypatch.setenv("TORCHBUS_BACKEND", "mpi")
    assert DDP().backend == "mpi" and DDP(backend="gloo").backend == "gloo"
    monkeypatch.setenv("TORCHBUS_BACKEND", "")
    assert DDP().backend is None


SCRIPT = """
    import os
    os.environ["TORCHBUS_BACKEND"] = "NAME"
    from torchbus import session
    with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
        print(s.explain())
"""


def test_the_backend_is_used():
    result = fork_script(SCRIPT.replace("NAME", "gloo"))
    assert result.ok() and "ddp over gloo" in result.stdout


@pytest.mark.parametrize("backend", ["", "goo", "cpu:goo", "gloo,", "\x1b[31mgloo", "gloo" * 99])
def test_nonsense_is_refused_before_ranks_start(backend, monkeypatch):
    monkeypatch.setenv("TORCHBUS_BACKEND", backend or "-1")
    with pytest.raises(UsageError) as error:
        session(strategy="ddp", devices=2, accelerator="cpu")
    shown = str(error.value)
    assert shown.startswith(f"TORCHBUS_BACKEND={backend or '-1'!r} names no backend")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo\x1b[31m")
    with pytest.raises(UsageError) as error:
        session(strategy="ddp", devices=2, accelerator="cpu", backend="gloo").__enter__()
    shown = str(error.value)
    assert shown.startswith("GLOO_SOCKET_IFNAME='lo\\x1b[31m' is not an interface of this host: ")


def test_a_backend_that_is_not_here():
    result = fork_script(SCRIPT.replace("NAME", "nccl"))
    assert result.ok(1)
    error = [line for line in result.stderr.splitlines() if "UsageError: " in line]
    assert len(error) == 1 and "backend='nccl'" in error[0]
    assert (
        "see `torchbus doctor` for those that are" in error[0]
        or "use backend='gloo' on CPU" in error[0]
        or "does not serve cpu: use backend='gloo'" in error[0]
    )


META = (SCRIPTS / "strategy_meta.py").read_text()


@pytest.mark.slow
def test_a_model_on_the_meta_device_is_refused():
    result = fork_script(META)
    assert result.ok(1) and result.stdout == "made\n"
    assert (
        "UsageError: Sequential is on the meta device, so its parameters have no values: call model.to_empty(device=...)"
        in result.stderr
    )
