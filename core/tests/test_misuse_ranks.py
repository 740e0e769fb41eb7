"""Ranks that no strategy starts or joins."""

from __future__ import annotations

import dataclasses

import pytest
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.errors import UsageError

from torchbus_testing.state import assert_torch_unchanged, torch_state


class Launches:
    owns = ("strategy",)

    @hookimpl
    def launch(self, session):
        return None


class LaunchesNothing:
    owns = ("strategy",)

    @hookimpl
    def run_backward(self, call, engine):
        engine(*call.start(), call.retain_graph, call.create_graph, inputs=call.inputs)


@pytest.mark.parametrize("strategy", [Launches(), LaunchesNothing()])
@pytest.mark.parametrize("options", [{"devices": 2, "accelerator": "cpu"}, {"num_nodes": 2}])
def test_ranks_that_no_strategy_starts(strategy, options):
    before = torch_state()
    with pytest.raises(UsageError) as error, session(strategy=strategy, **options):
        raise AssertionError("the block must not run")
    assert str(error.value) == (
        f"2 ranks are asked for, and strategy={type(strategy).__name__!r} starts and joins none: its listener to `launch` returns "
        "session.start_ranks()"
    )
    assert_torch_unchanged(before)
    with session(strategy=strategy) as s:
        assert s.world_size == 1


def test_ranks_without_a_strategy():
    words = "^2 ranks are asked for, and strategy=None starts and joins none: leave strategy out$"
    with (
        pytest.raises(UsageError, match=words),
        session(strategy=None, devices=2, accelerator="cpu"),
    ):
        raise AssertionError("the block must not run")


def test_ranks_of_a_launcher_that_a_strategy_does_not_join(monkeypatch):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
        "TORCHELASTIC_RUN_ID": "none",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        UsageError,
        match="^3 ranks are asked for, and strategy='LaunchesNothing' starts and joins none",
    ):
        session(strategy=LaunchesNothing()).start()
    with session(strategy=None) as s:  # each of them trains by itself
        assert s.world_size == 1


def test_a_world_without_its_ranks():
    class Own:
        @hookimpl
        def launch(self, session):
            return dataclasses.replace(session.world, rank=1, world_size=2)

    with (
        pytest.raises(
            UsageError, match="^2 ranks are asked for, and strategy='Own' starts and joins none"
        ),
        session(strategy=Own()),
    ):
        raise AssertionError("the block must not run")
