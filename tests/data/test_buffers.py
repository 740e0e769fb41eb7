"""Buffers that the forward fills from its batch: said once, or averaged."""

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
        data = TensorDataset(torch.randn(36, 3))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for (x,) in DataLoader(data, batch_size=6, shuffle=True):
                optimizer.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()
        found["said"] = [str(one.message) for one in said if "from its batch" in str(one.message)]
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
    assert "Centered.center" in said and "sync_buffers='mean'" in said and "mask" not in said
    assert found["all"][0] == found["all"][1]


def test_the_statistics_of_a_normalization_are_not_said() -> None:
    assert not trained(2, fills=False)["said"]
