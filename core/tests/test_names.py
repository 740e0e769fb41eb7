"""``s.name_of``: what events carry has the script's names."""

from __future__ import annotations

import torch
from torch import nn
from torchbus import session


class Holder:
    def __init__(self) -> None:
        self.inner = nn.Bilinear(2, 2, 2)


def test_parts_of_models_have_the_names_of_variables():
    found = {}
    with session(strategy=None) as s:
        net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        head, held = nn.Linear(2, 2), Holder()
        sgd = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)

        @s.on("gradients_ready")
        def look(optimizer):
            parameters = optimizer.param_groups[0]["params"]
            found["event"] = [s.name_of(one) for one in parameters]
            found["optimizer"] = s.name_of(optimizer)

        head(net(torch.ones(3, 2))).sum().backward()
        sgd.step()
        things = (net, net[0], net[1].running_mean, head.weight, sgd, held.inner.bias, object())
        found["names"] = list(map(s.name_of, things))
    assert found["event"] == [
        *("net.0.weight", "net.0.bias", "net.1.weight", "net.1.bias"),
        *("head.weight", "head.bias"),
    ]
    assert found["optimizer"] == "sgd"  # not as the listener calls it
    names = ["net", "net.0", "net.1.running_mean", "head.weight", "sgd", "Bilinear.bias", ""]
    assert found["names"] == names
