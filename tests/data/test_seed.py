"""``seed=``: ranks begin with the numbers of one process that seeds every generator itself."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
from ranks import facts
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

BODY = """
        import random, numpy
        draws = lambda: [torch.rand(1).item(), random.random(), numpy.random.rand()]
        found["first"] = s.all_gather_object(draws())
        net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(2, 1))
        found["weights"] = [one.flatten().tolist() for one in net.parameters()]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.arange(24.0)), batch_size=24, shuffle=True)
        found["orders"] = []
        for _ in range(2):
            for (x,) in loader:
                order = torch.cat(s.all_gather(x))
                found["orders"].append(order.tolist())
                net(x.repeat(2, 1).T).mean().backward()
                found["training"] = s.all_gather_object(draws())
        found["after"] = s.all_gather_object(draws())
"""


def by_hand() -> dict[str, Any]:
    """One process that knows nothing of a session."""
    random.seed(42)
    numpy.random.seed(42)
    torch.manual_seed(42)
    first = [torch.rand(1, dtype=torch.float64).item(), random.random(), numpy.random.rand()]
    layers = torch.nn.Linear(2, 2), torch.nn.Dropout(0.5), torch.nn.Linear(2, 1)
    net = torch.nn.Sequential(*layers)
    weights = [one.flatten().tolist() for one in net.parameters()]
    loader = DataLoader(TensorDataset(torch.arange(24.0)), batch_size=24, shuffle=True)
    return {"first": first, "weights": weights, "order": next(iter(loader))[0].tolist()}


@pytest.fixture
def float64():  # type: ignore[no-untyped-def]
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_draw_what_one_process_draws(ranks: int) -> None:
    """Whatever was drawn before the block. From the first backward on each rank has its own for a
    divided batch; after the pass they draw alike.
    """
    expected = by_hand()
    before = "import random, numpy; torch.rand(5); random.random(); numpy.random.rand()"
    found = facts(BODY, 'seed=42, batch="global"', before, ranks)
    assert found["first"] == [expected["first"]] * ranks
    assert found["weights"] == expected["weights"]
    assert found["orders"][0] == expected["order"] != found["orders"][1]
    assert all(len(set(kind)) == ranks for kind in zip(*found["training"], strict=True))
    assert found["after"] == [found["after"][0]] * ranks


WORKERS = """
        import random, numpy
        class Noise(torch.utils.data.Dataset):
            def __len__(self):
                return 12

            def __getitem__(self, index):
                return torch.tensor([torch.rand(1).item(), random.random(), numpy.random.rand()])

        loader = DataLoader(Noise(), batch_size=2, num_workers=2)
        values = torch.cat(list(loader))
        nn.Linear(3, 1)(values[:1]).mean().backward()
        found["values"] = s.all_gather_object(values.tolist())
"""


def test_workers_draw_different_numbers_which_a_second_run_repeats() -> None:
    """Of torch, Python and NumPy, on each rank and in each worker."""
    one, again = (facts(WORKERS, "seed=7") for _ in range(2))
    other = facts(WORKERS, "seed=8")
    assert one == again != other
    rows = [row for rank in one["values"] for row in rank]
    assert len(rows) == 12
    assert all(len(set(kind)) == len(rows) for kind in zip(*rows, strict=True))


def test_one_rank_with_workers_is_one_process() -> None:
    alone = facts(WORKERS, "seed=7", ranks=1)
    seeded = "import random, numpy; random.seed(7); numpy.random.seed(7); torch.manual_seed(7)"
    assert alone == facts(WORKERS, before=seeded, ranks=1)


def test_without_a_seed_the_script_s_own_goes_on() -> None:
    torch.manual_seed(3)
    with session():
        value = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(value, torch.rand(1))


def test_explain_names_it() -> None:
    with session(seed=0) as s:
        assert "seed        0: torch on all devices, random and NumPy, on all ranks" in s.explain()
        assert torch.initial_seed() == 0
