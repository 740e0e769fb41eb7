"""Nodes and hosts of a job that a launcher has started."""

from __future__ import annotations

import pytest
from torchbus import session
from torchbus.errors import UsageError

from torchbus_device.devices import plan_devices
from torchbus_launch.launched_rank import first_host
from torchbus_launch.request import LaunchRequest

PREFIXES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "SLURM_",
    "OMPI_",
    "PMI_",
    "MV2_",
    "MPI_",
    "NODE_RANK",
    "GROUP_RANK",
    "TORCHELASTIC_",
)
AT = {"MASTER_ADDR": "host", "MASTER_PORT": "1234"}


@pytest.fixture
def clean(monkeypatch):
    """The environment without any launcher's variables."""
    import os

    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    "variables",
    [{"RANK": "0"}, {"RANK": "3", "WORLD_SIZE": "2", **AT}, {"RANK": "x", "WORLD_SIZE": "2", **AT}],
)
def test_a_session_refuses_them_at_entry(clean, variables):
    for name, value in variables.items():
        clean.setenv(name, value)
    with pytest.raises(UsageError), session():
        raise AssertionError("the block must not run")


def test_a_world_of_one_needs_no_variables(clean):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1"}.items():
        clean.setenv(name, value)
    with session() as s:
        assert s.world_size == 1


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        (
            {},
            "num_nodes=2 without MASTER_ADDR and NODE_RANK: set MASTER_ADDR (the first node), MASTER_PORT and NODE_RANK on each node",
        ),
        ({"MASTER_ADDR": "host"}, "num_nodes=2 without NODE_RANK"),
        (
            {"MASTER_ADDR": "host", "NODE_RANK": "2"},
            "NODE_RANK='2' is not a whole number from 0 to 1. ",
        ),
        (
            {"MASTER_ADDR": "host", "NODE_RANK": "-1"},
            "NODE_RANK='-1' is not a whole number from 0 to 1. ",
        ),
        (
            {"MASTER_ADDR": "host", "NODE_RANK": "0", "MASTER_PORT": "x"},
            "MASTER_PORT='x' is not a whole number from 1 to 65535. ",
        ),
    ],
)
def test_nodes_by_hand(clean, variables, words):
    from torchbus_launch.joining import find_nodes

    for name, value in variables.items():
        clean.setenv(name, value)
    with pytest.raises(UsageError) as error:
        find_nodes(LaunchRequest(plan_devices(1, "cpu"), num_nodes=2))
    assert str(error.value).startswith(words)


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("gpu01", "gpu01"),
        ("gpu[07-09,12],x1", "gpu07"),
        ("a,b", "a"),
        ("node-[3,5]", "node-3"),
        ("n[1-2]", "n1"),
        ("r1n[01-04]", "r1n01"),
    ],
)
def test_first_host_of_a_node_list(nodelist, host):
    assert first_host(nodelist) == host
