"""Buffers that the forward fills from its batch: said once, averaged, or summed."""

from __future__ import annotations

from typing import Any

import pytest
from ranks import facts

BODY = """
        import warnings

        class Centered(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
                self.register_buffer("center", torch.zeros(1, 3))
                self.register_buffer("mask", torch.ones(3, 3).tril())

            def forward(self, x):
                z = self.layer(x)
                centered = z - self.center
                if FILLS:
                    with torch.no_grad():
                        self.center = 0.5 * self.center + 0.5 * z.mean(0, keepdim=True)
                else:
                    self.norm(x)
                return centered

        torch.manual_seed(0)
        net = Centered()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        data = TensorDataset(torch.randn(40, 3))  # shares are uneven
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for (x,) in DataLoader(data, batch_size=7, shuffle=True):
                optimizer.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()
        found["said"] = [str(one.message) for one in said if "from this rank's samples" in str(one.message)]
        found["center"] = net.center.flatten().tolist()
        found["all"] = [one.flatten().tolist() for one in s.all_gather(net.center)]
        found["weight"] = net.layer.weight.flatten().tolist()
"""


def trained(ranks: int, options: str = "", fills: bool = True) -> dict[str, Any]:
    return facts(BODY.replace("FILLS", str(fills)), "batch='global'" + options, ranks=ranks)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_running_mean_of_the_batches_can_be_that_of_one_process(ranks: int) -> None:
    whole, averaged = trained(1), trained(ranks, ", sync_buffers='mean'")
    assert averaged["center"] == pytest.approx(whole["center"], rel=1e-12)
    assert averaged["weight"] == pytest.approx(whole["weight"], rel=1e-12)
    assert not averaged["said"] and all(one == averaged["center"] for one in averaged["all"])


def test_else_it_is_rank_0s_and_this_is_said_once_with_the_option() -> None:
    found = trained(2)
    (said,) = found["said"]
    assert (
        "Centered.center" in said
        and "sync_buffers={'center': 'mean'}" in said
        and "mask" not in said
    )
    assert found["all"][0] == found["all"][1]


def test_the_statistics_of_a_normalization_are_not_said() -> None:
    assert not trained(2, fills=False)["said"]


FILLED = """
        import warnings

        class Bank(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(3, 2)
                self.register_buffer("memory", torch.randn(25, 2))
                self.register_buffer("rows", torch.zeros((), dtype=torch.long))
                self.register_buffer("recent", torch.zeros(()))
                self.register_buffer("used", torch.zeros(25, dtype=torch.bool))
                self.register_buffer("steps", torch.zeros(()))
                self.register_buffer("center", torch.zeros(2))

            def forward(self, x, index):
                z = self.layer(x)
                near = z @ self.memory.clone().T
                with torch.no_grad():
                    self.memory.index_copy_(0, index, z)
                    self.used[index] = True
                    self.rows += len(x)
                    self.recent += z.sum()
                    self.steps += 1
                    self.center.mul_(0.5).add_(z.mean(0), alpha=0.5)
                return near

        class Centered(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("count", torch.zeros(3))

            def forward(self, values):
                with torch.no_grad():
                    self.count += torch.bincount(values.argmax(1) % 3, minlength=3)
                return values.square().mean()

        torch.manual_seed(0)
        net, criterion = Bank(), Centered()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        data = TensorDataset(torch.randn(25, 3), torch.arange(25))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for epoch in range(2):
                net.recent.zero_()
                for x, index in DataLoader(data, batch_size=12, shuffle=True):
                    optimizer.zero_grad()
                    criterion(net(x, index)).backward()
                    optimizer.step()
        found["said"] = [str(one.message) for one in said if "sync_buffers" in str(one.message)]
        found |= {name: one.flatten().tolist() for name, one in net.state_dict().items()}
        found["count"] = [one.tolist() for one in s.all_gather(criterion.count)]
"""
SUMS = "'memory': 'sum', 'Bank.used': 'sum', 'rows': 'sum', 'recent': 'sum', 'count': 'sum'"


@pytest.mark.parametrize("ranks", [2, 3])
def test_counts_sums_and_rows_that_samples_write_are_those_of_one_process(ranks: int) -> None:
    """The last batch has one sample, so some ranks have none; one buffer is reset in each epoch."""
    options = "batch='global', sync_buffers={" + SUMS + "}"
    whole, several = facts(FILLED, options, ranks=1), facts(FILLED, options, ranks=ranks)
    assert several["count"] == whole["count"] * ranks
    assert several["rows"] == [50] and several["steps"] == [6]
    for name in ("memory", "used", "recent", "layer.weight"):
        assert several[name] == pytest.approx(whole[name], rel=1e-12), name
    (said,) = several["said"]
    assert "fills Bank.center" in said


def test_a_number_that_grows_by_the_samples_is_asked_about_once() -> None:
    said = facts(FILLED, "batch='global'", ranks=2)["said"]
    assert "Bank.memory" in said[0] and "Centered.count" in said[0]
    assert len(said) == 2 and "Bank.rows grew" in said[1] and "'rows': 'rank0'" in said[1]
    assert not facts(FILLED, "sync_buffers={'rows': 'rank0'}", ranks=1)["said"]


LATE = """
        import warnings

        class Observer(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("largest", torch.zeros(()))

            def forward(self, x):
                self.largest.copy_(torch.maximum(self.largest, x.detach().abs().max()))
                return x

        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
        data = TensorDataset(torch.randn(40, 3))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for phase in range(2):
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                for (x,) in DataLoader(data, batch_size=4, shuffle=True):
                    optimizer.zero_grad()
                    net(x).square().mean().backward()
                    optimizer.step()
                if not phase:
                    net = nn.Sequential(net[0], Observer(), net[1])
        found["said"] = [str(one.message) for one in said if "from this rank's samples" in str(one.message)]
        found["largest"] = [one.item() for one in s.all_gather(net[1].largest)]
"""


def test_a_buffer_of_a_later_phase_is_synchronised_and_said() -> None:
    found = facts(LATE, "batch='global'")
    assert len(set(found["largest"])) == 1 and len(found["said"]) == 1
    assert "Observer.largest" in found["said"][0]
