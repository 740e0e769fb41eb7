"""Launchers' variables: what they mean, and those that contradict each other or the call."""

from __future__ import annotations

import zlib

import pytest
from torchbus.errors import UsageError

from torchbus_device.devices import plan_devices
from torchbus_launch import launched_rank
from torchbus_launch.launched_rank import LaunchedRank
from torchbus_launch.request import LaunchRequest

AT = {"MASTER_ADDR": "host", "MASTER_PORT": "1234"}
PORT_HOROVOD = 20000 + zlib.crc32(b"10.0.0.1:4321") % 12000
PORT_123 = 20000 + zlib.crc32(b"123.0") % 12000
HOROVOD = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4321",
}
CASES = {
    "by hand": (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host"},
        LaunchedRank("environment", 1, 2, 1, 2, 0, "host", 29500),
    ),
    "torchrun, two nodes": (
        {
            "RANK": "3",
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "1",
            "TORCHELASTIC_RUN_ID": "x",
            **AT,
        },
        LaunchedRank("torchrun", 3, 4, 1, 2, 1, "host", 1234, job="x"),
    ),
    "SLURM": (
        {
            "SLURM_PROCID": "5",
            "SLURM_NTASKS": "8",
            "SLURM_LOCALID": "1",
            "SLURM_NODEID": "1",
            "SLURM_STEP_ID": "0",
            "SLURM_TASKS_PER_NODE": "4(x2)",
            "SLURM_STEP_NODELIST": "gpu[07-08]",
            "SLURM_JOB_ID": "123",
        },
        LaunchedRank("SLURM", 5, 8, 1, 4, 1, "gpu07", PORT_123, job="123.0"),
    ),
    "Open MPI": (
        {
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "PMIX_NAMESPACE": "123.0",
        },
        LaunchedRank("MPI", 1, 2, 1, 2, 0, "127.0.0.1", PORT_123, True, "123.0"),
    ),
    "Open MPI, an address": (
        {
            "OMPI_COMM_WORLD_RANK": "3",
            "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            **AT,
        },
        LaunchedRank("MPI", 3, 4, 1, 2, 1, "host", 1234),
    ),
    "MPICH": (
        {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
        LaunchedRank("MPI", 1, 2, 1, 2, 0, "127.0.0.1", 29500, True),
    ),
    "MVAPICH": (
        {
            "MV2_COMM_WORLD_RANK": "1",
            "MV2_COMM_WORLD_SIZE": "2",
            "MV2_COMM_WORLD_LOCAL_RANK": "1",
            "MV2_COMM_WORLD_LOCAL_SIZE": "2",
        },
        LaunchedRank("MPI", 1, 2, 1, 2, 0, "127.0.0.1", 29500, True),
    ),
    "horovodrun": (
        {**HOROVOD, "HOROVOD_LOCAL_SIZE": "2", "HOROVOD_CROSS_RANK": "0"},
        LaunchedRank("horovodrun", 1, 2, 1, 2, 0, "127.0.0.1", PORT_HOROVOD, True, "10.0.0.1:4321"),
    ),
    "horovodrun on two hosts, inside a SLURM allocation": (
        {
            **HOROVOD,
            "HOROVOD_LOCAL_RANK": "0",
            "HOROVOD_LOCAL_SIZE": "1",
            "HOROVOD_CROSS_RANK": "1",
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "2",
            "SLURM_STEP_ID": "0",
            **AT,
        },
        LaunchedRank("horovodrun", 1, 2, 0, 1, 1, "host", 1234, False, "10.0.0.1:4321"),
    ),
    "horovodrun -np 1": ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}, None),
    "SLURM, an interactive shell of many tasks": (
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"},
        None,
    ),
    "SLURM, an interactive shell": (
        {
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "8",
            "SLURM_JOB_ID": "1",
            "SLURM_STEP_ID": "4294967290",
        },
        None,
    ),
    "SLURM, one task": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}, None),
    "mpirun -n 1": ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, None),
    "nothing": ({}, None),
    "an address alone": (AT, None),
}


REMEDY = "Unset it if another launcher has left it, or correct it"


def find(variables: dict[str, str], **given) -> LaunchedRank | None:
    request = LaunchRequest(
        plan_devices(given.get("devices", 1), "cpu"), explicit_devices="devices" in given
    )
    return launched_rank.find(request, variables)


@pytest.mark.parametrize("name", CASES)
def test_meaning(name):
    variables, place = CASES[name]
    assert find(variables) == place


@pytest.mark.parametrize(
    ("variables", "given", "words"),
    [
        (
            {"RANK": "0"},
            {},
            "only one of RANK and WORLD_SIZE is set: unset it, or start the script with torchrun",
        ),
        (
            {"WORLD_SIZE": "2"},
            {},
            "only one of RANK and WORLD_SIZE is set: unset it, or start the script with torchrun",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2"},
            {},
            "RANK=0 and WORLD_SIZE=2 are set, but MASTER_ADDR is not: set it, or use torchrun",
        ),
        (
            {"RANK": "2", "WORLD_SIZE": "2", **AT},
            {},
            "RANK='2' is not a whole number from 0 to 1. " + REMEDY,
        ),
        (
            {"RANK": "-1", "WORLD_SIZE": "2", **AT},
            {},
            "RANK='-1' is not a whole number from 0 to 1. " + REMEDY,
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "0", **AT},
            {},
            "WORLD_SIZE='0' is not a whole number from 1 to 2147483647. " + REMEDY,
        ),
        (
            {"RANK": "one", "WORLD_SIZE": "2", **AT},
            {},
            "RANK='one' is not a whole number from 0 to 1. " + REMEDY,
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "", **AT},
            {},
            "WORLD_SIZE='' is not a whole number from 1 to 2147483647. " + REMEDY,
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", **AT, "MASTER_PORT": "x"},
            {},
            "MASTER_PORT='x' is not a whole number from 1 to 65535. " + REMEDY,
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "2", **AT},
            {},
            "LOCAL_RANK='2' is not a whole number from 0 to 1. " + REMEDY,
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4", **AT},
            {},
            "LOCAL_WORLD_SIZE='4' is not a whole number from 1 to 2. " + REMEDY,
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "0", **AT},
            {},
            "LOCAL_WORLD_SIZE='0' is not a whole number from 1 to 2. " + REMEDY,
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", **AT},
            {"devices": 3},
            "devices asks for 3 on this node, but environment started 2: remove devices, or start that number of processes",
        ),
        (
            {"SLURM_PROCID": "8", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"},
            {},
            "SLURM_PROCID='8' is not a whole number from 0 to 7. " + REMEDY,
        ),
        (
            {"SLURM_PROCID": "x", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"},
            {},
            "SLURM_PROCID='x' is not a whole number from 0 to 7. " + REMEDY,
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            {},
            "mpirun started ranks on several hosts: pass the first one's address, mpirun -x MASTER_ADDR=...",
        ),
        (
            {**HOROVOD, "HOROVOD_LOCAL_SIZE": "1"},
            {},
            "horovodrun started ranks on several hosts: give the first one's address,"
            " MASTER_ADDR=... horovodrun ...",
        ),
    ],
)
def test_contradictions(variables, given, words):
    with pytest.raises(UsageError) as error:
        find(variables, **given)
    assert str(error.value) == words


STARTED = {
    "torchrun": "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 MASTER_ADDR=host"
    " MASTER_PORT=1234 TORCHELASTIC_RUN_ID=a",
    "SLURM": "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2"
    " SLURM_STEP_NODELIST=a[1-2] MASTER_PORT=1234 SLURM_STEP_ID=0",
    "MPI": "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0"
    " OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_ADDR=host MASTER_PORT=1234",
    "horovodrun": "HOROVOD_RANK=0 HOROVOD_SIZE=2 HOROVOD_LOCAL_RANK=0 HOROVOD_LOCAL_SIZE=2"
    " HOROVOD_CROSS_RANK=0 MASTER_ADDR=host MASTER_PORT=1234",
}
NO_HOST = ("", "a b", "\x1b[31m", "\u00b2", "x;" * 9_999)
NO_NUMBER = ("-1", "9" * 30, "1.5", *NO_HOST)
FREE = ("TORCHELASTIC_RUN_ID", "SLURM_STEP_ID")


@pytest.mark.parametrize("launcher", STARTED)
def test_nonsense_in_any_variable_is_named(launcher):
    variables = dict(word.split("=") for word in STARTED[launcher].split())
    assert find(variables) is not None
    for name in variables.keys() - {*FREE}:
        for text in NO_HOST if name in ("MASTER_ADDR", "SLURM_STEP_NODELIST") else NO_NUMBER:
            with pytest.raises(UsageError) as error:
                find({**variables, name: text})
            shown = str(error.value)
            assert shown.startswith(f"{name}=") and shown.endswith(REMEDY), shown
            assert len(shown) < 400 and shown.isprintable()
