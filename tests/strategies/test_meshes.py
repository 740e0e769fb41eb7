"""``s.world.mesh``: torch's DeviceMesh, with the dimensions that the strategy divides."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchbus import session
from torchbus.errors import UsageError
from torchbus.world import DataPlace, World

from torchbus_strategy.groups import arranged, mesh_sizes
from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"
SIZES = {
    "ddp": {"dp": 2},
    "ddp_sharded": {"dp": 2},
    "fsdp": {"dp": 2},
    "hybrid": {"dp_replicate": 1, "dp_shard": 2},
    "dp": {"dp": 1, "rows": 2},
    "ddp2": {"dp": 1, "rows": 2},
    "tp": {"dp": 2, "tp": 2},
    "pipeline": {"dp": 2, "pp": 2},
}


@pytest.fixture(scope="module")
def found():
    return fork_script(SCRIPTS / "meshes.py", timeout_s=240).json()


@pytest.mark.parametrize("strategy", SIZES)
def test_each_strategy_names_what_it_divides(found, strategy):
    """Each rank finds its part of the data along "dp", and groups that work."""
    sizes = SIZES[strategy]
    for rank, (told, place, joined, data, adds, gathers) in enumerate(found[strategy]):
        assert told == sizes and adds and gathers
        assert all(rank in ranks and len(ranks) == sizes[name] for name, ranks in joined.items())
        if "dp" in sizes:
            assert data[:2] == [place["dp"], sizes["dp"]]
    coordinates = [tuple(place.values()) for _, place, *_ in found[strategy]]
    assert coordinates == sorted(set(coordinates))


def test_explain_shows_several_dimensions(found):
    assert "4 as 2 (dp) x 2 (tp)," in found["tp explained"]
    assert " as " not in found["ddp explained"]


def test_there_is_no_mesh_of_one_rank_or_after_the_block(found):
    words = "world.mesh: there is no process group, because there is one rank or the block does not"
    assert found["one rank"].startswith(f"UsageError: {words}")
    assert found["after"].startswith(words)


def test_a_mesh_that_does_not_fit_is_refused():
    with pytest.raises(UsageError, match=r"a mesh of dp=2 x tp=3 has 6 ranks, and there are 4: ch"):
        arranged(World(world_size=4), {"dp": 2, "tp": 3})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"strategy": "pipeline", "tp": 2},
            "tp: an option of strategy='tp', and the strategy here is 'pipeline': leave it out",
        ),
        (
            {"strategy": "ddp", "tp": 2, "stages": 2},
            "stages: an option of strategy='pipeline', and the strategy here is 'ddp.tp'",
        ),
    ],
)
def test_layers_are_divided_either_by_tp_or_by_a_pipeline(options, words):
    with pytest.raises(UsageError, match=words):
        session(devices=4, accelerator="cpu", **options)


def test_the_data_is_divided_over_all_dimensions_of_data():
    world = arranged(World(rank=6, world_size=8), {"dp_replicate": 2, "dp_shard": 2, "tp": 2})
    assert world.data == DataPlace(3, 4) and world.member == 0


def test_groups_that_differ_in_size_form_no_mesh():
    with pytest.raises(UsageError, match=r"the ranks form no mesh, because .* differ in size"):
        mesh_sizes(World(world_size=3, data_place=DataPlace(0, 2)))


def test_a_sum_counts_each_sample_once_under_several_pipelines():
    assert fork_script(SCRIPTS / "logged_sum.py", timeout_s=120).json() == [120.0]
